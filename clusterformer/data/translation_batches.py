"""Batches of sentences with their translations, from disk or from memory.

Letters: B batch, N source tokens, M target tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from clusterformer.data.batches import Integers, pad
from clusterformer.data.tokenizers import BOS_EOS
from clusterformer.errors import InputError
from clusterformer.task import IGNORE

LONGEST = 1024
"""Maximum number of tokens of a sentence to translate; four times `max_length` if that is more."""


class Reference(NamedTuple):
    """Reference translation of a sentence, in the form of the model and as plain text."""

    tokenised: str
    plain: str


class TranslationBatch(NamedTuple):
    """A batch of sentences, each with its translation.

    Attributes:
        tokens: Source token ids, (B, N), ended by BOS_EOS.
        mask: (B, N), True at real tokens.
        target: Target token ids, (B, M), ended by BOS_EOS; IGNORE at padding.
        decoder_input: (B, M), BOS_EOS and the target up to its last token.
        decoder_mask: (B, M), True at real tokens.
        references: Reference of each row to be translated and scored, None for others.
    """

    tokens: Tensor
    mask: Tensor
    target: Tensor
    decoder_input: Tensor
    decoder_mask: Tensor
    references: list[Reference | None]

    @classmethod
    def make(
        cls,
        sources: Sequence[Integers],
        targets: Sequence[Integers],
        references: list[Reference | None] | None = None,
    ) -> TranslationBatch:
        """Pad token ids, each text ended by BOS_EOS; no texts make a dummy row."""
        tokens, mask = pad(sources)
        target, decoder_mask = pad(targets)
        decoder_input = target.roll(1, dims=1)
        decoder_input[:, 0] = BOS_EOS
        return cls(
            tokens,
            mask,
            target.masked_fill(~decoder_mask, IGNORE),
            decoder_input * decoder_mask,
            decoder_mask,
            references or [None] * len(tokens),
        )


class EncodedTexts(Protocol):
    """Token ids of many texts: a list, or a store on disk."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Integers: ...


class TranslationDataset(Dataset[TranslationBatch]):
    """Token ids of sentences and their translations; a list of indices gives a batch.

    Args:
        sources: Sentences, each ended by BOS_EOS: lists, or a store on disk.
        targets: Their translations, likewise.
        references: References of the first sentences, which are to be translated and scored.
    """

    def __init__(
        self,
        sources: EncodedTexts,
        targets: EncodedTexts,
        references: Sequence[Reference] = (),
    ) -> None:
        self._sources, self._targets, self._references = sources, targets, references

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of the longer side of each pair."""
        return np.maximum(_lengths(self._sources), _lengths(self._targets))

    def __getitem__(self, indices: list[int]) -> TranslationBatch:
        known = len(self._references)
        return TranslationBatch.make(
            [self._sources[index] for index in indices],
            [self._targets[index] for index in indices],
            [self._references[index] if index < known else None for index in indices],
        )


def _lengths(texts: EncodedTexts) -> NDArray[np.int64]:
    stored = getattr(texts, "lengths", None)
    if stored is not None:
        return stored
    return np.array([len(texts[index]) for index in range(len(texts))])


def check_length(line: str, limit: int, count: Callable[[], int]) -> None:
    """Refuse a sentence far longer than those of training: decoding takes its length squared.

    Args:
        line: The sentence.
        limit: Maximum number of tokens.
        count: Function that counts its tokens.

    Raises:
        InputError: with the number of tokens that are allowed.
    """
    if len(line) > 100 * limit:  # not worth the time of counting
        found = f"{len(line):,} characters"
    elif 4 * len(line) <= limit or (tokens := count()) <= limit:  # a token has a byte or more
        return
    else:
        found = f"{tokens:,} tokens"
    raise InputError(f"a sentence of {found}; allowed are {limit:,} tokens: translate it in parts")
