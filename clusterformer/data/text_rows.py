"""Texts to the tokens of rows: tokenizer, limit, and a pretrained model's special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from clusterformer.data.framed_tokenizers import FramedTokenizer, RowTokenizer
from clusterformer.data.frames import Frame
from clusterformer.data.pretrained import Pretrained, open_pretrained
from clusterformer.data.stream_tokenizers import StreamTokenizer
from clusterformer.data.tokenizers import Tokenizer, tokenizer_from_state
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.models.pretrained_model import read_num_positions

Tokens = list[list[int]]
"""Token ids of each text."""


class LabelledDataset(Dataset[Any]):
    """Encoded examples in memory; a list of indices gives a batch, an empty one a dummy row.

    Attributes:
        lengths: Number of tokens of each example, padding between its texts counted.
    """

    lengths: list[int]


def row_tokenizer_from_state(state: dict[str, Any]) -> Tokenizer:
    """Make the tokenizer of a row's texts that returned this `state()`.

    Raises:
        InputError: if none did.
    """
    return RowTokenizer.from_state(state) if state["kind"] == "row" else tokenizer_from_state(state)


class TextRows(NamedTuple):
    """The way from texts to token ids, the same in training and prediction.

    Attributes:
        tokenizer: Tokenizer of the texts.
        max_length: Maximum number of tokens of a text, or of a row with its special tokens where
            the tokenizer has them; None for no limit.
        joint: Whether both texts of a pair share a row.
        pretrained: Pretrained model that reads the rows; None for a network of our own.
    """

    tokenizer: Tokenizer
    max_length: int | None = None
    joint: bool = False
    pretrained: Pretrained | None = None

    @property
    def framed(self) -> bool:
        """True if the tokenizer has special tokens of its own for rows."""
        return isinstance(self.tokenizer, FramedTokenizer)

    @property
    def vocab_size(self) -> int:
        """Number of token ids of a row: those of the tokenizer, and ours between two texts."""
        return self.tokenizer.vocab_size + (self.joint and not self.framed)

    @property
    def row_length(self) -> int | None:
        """Maximum number of tokens of a row; None for no limit."""
        if self.max_length is None or self.framed or not self.joint:
            return self.max_length
        return 2 * self.max_length + 1

    def cut_to(self, limit: int) -> TextRows:
        """Return these rows with another maximum number of tokens.

        Raises:
            InputError: if the pretrained model has fewer positions.
        """
        own = self.max_length or 0
        if self.pretrained is not None and limit > own:
            positions = read_num_positions(self.pretrained.config)
            if positions is not None and limit > max(positions, own):
                raise InputError(
                    f"data.max_length is {limit}, the pretrained model of this run has "
                    f"{max(positions, own)} positions; only a training extends them"
                )
        return self._replace(max_length=limit)

    @property
    def pair(self) -> Frame:
        """Tokens around and between two texts of one row."""
        if isinstance(self.tokenizer, FramedTokenizer):
            return self.tokenizer.pair
        return Frame(between=(self.tokenizer.vocab_size,), second=1)

    def encode(self, columns: Sequence[Sequence[str]]) -> tuple[list[Tokens], list[int]]:
        """Encode the texts of examples, one column for each text of an example.

        Texts that are to share a row come without the tokens around them: `pair` has them.

        Returns:
            Token ids of the texts of each column, cut to the limit; and of each text the number of
            tokens that were cut off.
        """
        whole = [self.tokenizer.encode_all(texts) for texts in columns]
        rows = (self._cut(list(texts)) for texts in zip(*whole, strict=True))
        cut = [list(column) for column in zip(*rows, strict=True)] or whole
        excess = [
            len(before) - len(after)
            for old, new in zip(whole, cut, strict=True)
            for before, after in zip(old, new, strict=True)
        ]
        if isinstance(self.tokenizer, FramedTokenizer) and not self.joint:
            single = self.tokenizer.single
            cut = [[single.around(text) for text in column] for column in cut]
        return cut, excess

    def _cut(self, texts: Tokens) -> Tokens:
        if not isinstance(self.tokenizer, FramedTokenizer):
            return [text[: self.max_length] for text in texts]
        if self.joint:
            return self.pair.cut(texts, self.max_length)
        single = self.tokenizer.single
        return [cut for text in texts for cut in single.cut([text], self.max_length)]

    @classmethod
    def of_pretrained(cls, name: str, max_length: int | None, joint: bool) -> TextRows:
        """Make the rows of a pretrained model, by default as long as it has positions.

        Raises:
            InputError: as `open_pretrained`.
        """
        source = open_pretrained(name)
        limit = max_length or read_num_positions(source.config)
        return cls(source.tokenizer, limit, joint, source)

    @classmethod
    def of_learnt(cls, tokenizer: Tokenizer, max_length: int | None, joint: bool) -> TextRows:
        """Make the rows of a run's tokenizer; one of running text gets special tokens."""
        if isinstance(tokenizer, StreamTokenizer):
            tokenizer = RowTokenizer(tokenizer)
        return cls(tokenizer, max_length, joint)

    def make_encoder(self, config: TransformerConfig) -> PretrainedEncoder | None:
        """Make the encoder of the pretrained model; None for a network of our own."""
        source = self.pretrained
        if source is None:
            return None
        return PretrainedEncoder(
            config, source.config, weights=source.folder, max_length=self.max_length
        )

    def state(self) -> dict[str, Any]:
        """Return plain values from which `from_state` makes the same tokenizer and model."""
        if self.pretrained is not None:
            return {"kind": "pretrained", **self.pretrained.state()}
        return self.tokenizer.state()

    @classmethod
    def from_state(
        cls, state: dict[str, Any], max_length: int | None, joint: bool = False
    ) -> TextRows:
        """Make the rows that returned this `state()`."""
        if state["kind"] != "pretrained":
            return cls(row_tokenizer_from_state(state), max_length, joint)
        pretrained = Pretrained.from_state(state)
        return cls(pretrained.tokenizer, max_length, joint, pretrained)
