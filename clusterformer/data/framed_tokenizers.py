"""Tokenizers that know the special tokens of a row: around a text, and between two."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from clusterformer.data.frames import Frame
from clusterformer.data.stream_tokenizers import StreamTokenizer, stream_tokenizer_from_state
from clusterformer.data.tokenizers import Tokenizer


class FramedTokenizer(Tokenizer):
    """Tokenizer with special tokens; `encode` gives a text's own tokens, without them."""

    @property
    @abstractmethod
    def single(self) -> Frame:
        """Special tokens around a text that has a row of its own."""

    @property
    @abstractmethod
    def pair(self) -> Frame:
        """Special tokens around and between two texts of one row."""


class RowTokenizer(FramedTokenizer):
    """A tokenizer of running text, with special tokens for rows behind its own.

    A text is encoded as if a space stood before it: in running text one stands before most words.

    Args:
        inner: Tokenizer of running text.

    Attributes:
        start: Token at the start of a row.
        separator: Token behind each text of a row.
        blank: Token that stands for a masked one.
    """

    marks = ("<row>", "<sep>", "<mask>")

    def __init__(self, inner: StreamTokenizer) -> None:
        self.inner = inner
        first = inner.vocab_size
        self.start, self.separator, self.blank = first, first + 1, first + 2

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size + len(self.marks)

    @property
    def single(self) -> Frame:
        return Frame((self.start,), (), (self.separator,))

    @property
    def pair(self) -> Frame:
        return Frame((self.start,), (self.separator,), (self.separator,), second=1)

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(f" {text.strip()}")

    def ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        size = self.inner.vocab_size
        return [self.inner.ids_to_tokens([i])[0] if i < size else self.marks[i - size] for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self.inner.decode(i for i in ids if i < self.inner.vocab_size).strip()

    def state(self) -> dict[str, Any]:
        return {"kind": "row", "inner": self.inner.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RowTokenizer:
        """Make the tokenizer that returned this `state()`.

        Raises:
            InputError: if none did.
        """
        return cls(stream_tokenizer_from_state(state.get("inner", {})))
