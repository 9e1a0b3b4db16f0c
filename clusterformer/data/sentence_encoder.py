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
from clusterformer.models.pretrained_model import read_weights

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
        device: "cpu", "cuda" or a GPU such as "cuda:1".

    Raises:
        InputError: if transformers is missing, or the folder holds no encoder, or one that pools in
            another way or has further layers.
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
            model: Any = read_weights(AutoModel, folder, **local)
            limit = min(self._tokenizer.model_max_length, model.config.max_position_embeddings)
            own = _settings(folder / "sentence_bert_config.json").get("max_seq_length", limit)
            self._first_token = _takes_first_token(folder)
        self._folder, self._model = folder, model.to(device).eval()
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
                {"input_ids": [ids[row] for row in rows]},
                padding_side="right",  # a text's positions begin at 0 then, and its first token is
                return_tensors="pt",
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
        options = f"{self.max_length}" + " first token" * self._first_token
        identity = hashlib.blake2b(options.encode(), digest_size=16)
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


_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")
"""Modules of sentence-transformers that are computed here, or change nothing."""


def _takes_first_token(folder: Path) -> bool:
    """Tell whether an encoder's folder pools by the first token, not by the mean over tokens.

    Raises:
        InputError: if it pools in another way, or other modules come behind.
    """
    pooling = _settings(folder / "1_Pooling" / "config.json")
    # up to version 5 of sentence-transformers a flag for each mode: pooling_mode_mean_tokens
    modes = pooling.get("pooling_mode") or [
        name.removeprefix("pooling_mode_").partition("_token")[0]
        for name, chosen in pooling.items()
        if name.startswith("pooling_mode_") and chosen
    ]
    modes = [modes] if isinstance(modes, str) else list(modes) or ["mean"]
    # another divisor, as of mean_sqrt_len_tokens, does not count at unit length
    if len(modes) > 1 or not modes[0].startswith(("cls", "mean")):
        raise InputError(f"{folder}: pools by {' and '.join(modes)}, allowed are mean and cls")
    modules: Any = _settings(folder / "modules.json")
    for module in modules:
        if (kind := module["type"].rpartition(".")[2]) not in _MODULES:
            raise InputError(f"{folder}: has a module {kind}, allowed are {', '.join(_MODULES)}")
    return modes == ["cls"]
