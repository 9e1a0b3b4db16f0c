"""The tokenizer of a pretrained model: a text's tokens, and the special ones around texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clusterformer.data.byte_pairs import tokenizers_library
from clusterformer.data.framed_tokenizers import FramedTokenizer
from clusterformer.data.frames import Frame
from clusterformer.errors import InputError

_TOKENIZER_FILE, _SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a model's folder by transformers.

    Raises:
        InputError: if there is none; transformers makes one that knows no word.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise InputError(
            f"{folder}: no tokenizer; save it beside the model, tokenizer.save_pretrained"
        )
    return tokenizer


class PretrainedTokenizer(FramedTokenizer):
    """The tokenizer of a pretrained model of transformers.

    `encode` gives a text's own tokens; `single` and `pair` put the special ones around them. In
    batches padding is 0 as everywhere; the network puts the model's own padding in its stead.

    Args:
        files: Files of the tokenizer, as transformers saved them: name to text.
    """

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self._library = tokenizers_library().Tokenizer.from_str(files[_TOKENIZER_FILE])
        self._library.no_truncation()
        self._library.no_padding()

    @classmethod
    def read(cls, folder: Path) -> PretrainedTokenizer:
        """Read the tokenizer of a model's folder.

        Raises:
            InputError: if it has none, or none of the tokenizers library.
        """
        tokenizer = load_tokenizer(folder)
        with TemporaryDirectory() as written:
            tokenizer.save_pretrained(written)
            files = {
                path.name: path.read_text(encoding="utf-8")
                for path in sorted(Path(written).iterdir())
                if path.suffix in (".json", ".jinja")
            }
        if _TOKENIZER_FILE not in files:
            raise InputError(f"{folder}: no tokenizer of the tokenizers library")
        return cls(files)

    @property
    def vocab_size(self) -> int:
        return self._library.get_vocab_size()

    @cached_property
    def unknown(self) -> int | None:
        """Token of what the vocabulary does not have; None if it can spell everything."""
        return self._special("unk_token")

    @cached_property
    def blank(self) -> int:
        """Token that stands for a masked one; without one, that of a text's end or the unknown."""
        found = (self._special(name) for name in ("mask_token", "eos_token", "unk_token"))
        return next((token for token in found if token is not None), self.vocab_size - 1)

    def _special(self, name: str) -> int | None:
        token = json.loads(self.files.get(_SETTINGS_FILE, "{}")).get(name)
        content = token["content"] if isinstance(token, dict) else token
        return None if content is None else self._library.token_to_id(content)

    @cached_property
    def single(self) -> Frame:
        """Special tokens around a text that has a row of its own."""
        before, after = self._special_tokens(self._library.encode("a"))
        return Frame(before, (), after)

    @cached_property
    def pair(self) -> Frame:
        """Special tokens around and between two texts of one row."""
        row = self._library.encode("a", "a")
        before, between, after = self._special_tokens(row)
        segments = row.type_ids[len(before) + row.sequence_ids.count(0) :]
        return Frame(before, between, after, segments.index(1) if 1 in segments else None)

    @staticmethod
    def _special_tokens(row: Any) -> list[tuple[int, ...]]:
        """Return the special tokens before the first text of a row, and behind each."""
        found: list[list[int]] = [[]]
        for token, text in zip(row.ids, row.sequence_ids, strict=True):
            if text is None:
                found[-1].append(token)
            elif text == len(found) - 1:
                found.append([])
        return [tuple(tokens) for tokens in found]

    def encode(self, text: str) -> list[int]:
        return self._library.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [str(self._library.id_to_token(i)) for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self._library.decode(list(ids))

    def state(self) -> dict[str, Any]:
        return {"files": self.files}
