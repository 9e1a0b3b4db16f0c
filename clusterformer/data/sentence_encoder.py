"""A sentence encoder of Hugging Face's, from a local folder.

P texts   B batch   N tokens   F features
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from clusterformer.data.cache import cache_folder, cached_folder, checksum
from clusterformer.data.pretrained import PACKAGED
from clusterformer.errors import InputError, missing, reading

_log = logging.getLogger(__name__)

_VECTORS = "vectors.npy"
_ALLOWED = "allowed is the folder of a sentence encoder"
_BATCH = 64
_FILES = ("*.json", "*.txt", "*.safetensors", "1_Pooling/config.json")
_LONGEST = 100  # characters a token that are read, so that a huge text costs no more than its cut


class SentenceEncoder:
    """Map texts to vectors of unit length.

    Args:
        name: Folder of transformers or sentence-transformers, or a name in `PACKAGED`. The folder's
            own pooling is used: the mean over tokens, or the first token.
        max_length: Maximum number of tokens of a text; the rest is cut off. None for the folder's.
        device: "cpu" or "cuda".

    Raises:
        InputError: if transformers is missing, or the folder holds no encoder.
    """

    def __init__(self, name: str, *, max_length: int | None = None, device: str = "cpu") -> None:
        folder = _find(name)
        try:
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils import logging
        except ImportError:
            raise missing("--encoder needs transformers", "pretrained") from None
        logging.disable_progress_bar()  # of 0.1 s
        with reading(folder, "the folder of a sentence encoder"):
            if "model_type" not in _settings(folder / "config.json"):
                raise InputError(f"{folder}: no model_type in config.json; {_ALLOWED}")
            local = {"local_files_only": True, "trust_remote_code": False}
            try:
                self._tokenizer = AutoTokenizer.from_pretrained(folder, **local)
            except (OSError, ValueError):  # of several lines about other libraries
                raise InputError(f"{folder}: no tokenizer that can be read; {_ALLOWED}") from None
            model = AutoModel.from_pretrained(
                folder, **local, use_safetensors=True, dtype=torch.float32
            )
            limit = min(self._tokenizer.model_max_length, model.config.max_position_embeddings)
            own = _settings(folder / "sentence_bert_config.json").get("max_seq_length", limit)
            pooling = _settings(folder / "1_Pooling" / "config.json")
        self._folder, self._model = folder, model.to(device).eval()
        self._first_token = bool(pooling.get("pooling_mode_cls_token"))
        self.name = name if name in PACKAGED else str(folder.resolve())
        self.max_length = min(max_length or own, limit)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute the vectors of texts, (P, F), those of similar length together."""
        if not texts:
            return np.zeros((0, self._model.config.hidden_size), dtype=np.float32)
        cut = [text[: _LONGEST * self.max_length] for text in texts]
        ids = self._tokenizer(cut, truncation=True, max_length=self.max_length)["input_ids"]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]), reverse=True)
        vectors = np.zeros((len(ids), self._model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            batch = self._tokenizer.pad(
                {"input_ids": [ids[row] for row in rows]}, return_tensors="pt"
            ).to(self._model.device)
            hidden = self._model(**batch).last_hidden_state  # (B, N, F)
            mask = batch["attention_mask"][..., None].to(hidden)
            pooled = hidden[:, 0] if self._first_token else (hidden * mask).sum(1) / mask.sum(1)
            vectors[rows] = F.normalize(pooled, dim=1).cpu().numpy()
        return vectors

    def encode_once(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute the vectors of texts, (P, F), or find those of an earlier call in the cache.

        They are found by the content of the encoder's files and of the texts.
        """
        identity = hashlib.blake2b(f"{self.max_length}".encode(), digest_size=16)
        for path in sorted(path for kind in _FILES for path in self._folder.glob(kind)):
            identity.update(checksum(path).encode())
        for text in texts:
            identity.update(hashlib.blake2b(text.encode(errors="surrogatepass")).digest())

        def fill(draft: Path) -> None:
            _log.info(f"{self.name}: vectors of {len(texts):,} texts, kept in the cache")
            np.save(draft / _VECTORS, self.encode(texts))

        folder = cache_folder() / "sentence-vectors" / identity.hexdigest()
        try:
            return np.load(cached_folder(folder, fill) / _VECTORS, allow_pickle=False)
        except OSError as error:
            reason = error.strerror or error
            _log.warning(f"{folder}: vectors not cached, to be computed again next time: {reason}")
            return self.encode(texts)


def _find(name: str) -> Path:
    """Find the folder of an encoder.

    Raises:
        InputError: if there is none.
    """
    folder = Path(name).expanduser()
    if name in PACKAGED and not folder.is_dir():
        package = find_spec(PACKAGED[name])
        if package is None or package.origin is None:
            raise missing(f"--encoder {name} is not installed", "pretrained")
        folder = Path(package.origin).parent / "model"
    if not (folder / "config.json").is_file():
        known = ", ".join(PACKAGED)
        raise InputError(
            f"--encoder {name}: no folder with a config.json; by name there is {known}"
        )
    return folder


def _settings(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
