"""Attributes of a batch that each network reads; any object with them will do, as a NamedTuple.

B batch   N tokens or frames   A tokens that ask   M frames after subsampling   K neighbours
F features
"""

from typing import Protocol

from torch import Tensor


class TextInput(Protocol):
    """Texts: tokens (B, N) and mask (B, N), True at real tokens."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...


class TextPairInput(TextInput, Protocol):
    """Pairs of texts: second (rows, N), True at tokens of a second text.

    Encoded apart, rows are the first texts of all pairs, then the second ones. Encoded jointly, a
    row holds both texts of a pair.
    """

    @property
    def second(self) -> Tensor: ...


class AskingInput(TextInput, Protocol):
    """Texts, and the positions that ask, (B, A)."""

    @property
    def asked(self) -> Tensor: ...


class MaskedInput(AskingInput, Protocol):
    """Rows of tokens, the positions that ask, and second (B, N), True at a second segment."""

    @property
    def second(self) -> Tensor: ...


class TranslationInput(TextInput, Protocol):
    """Source texts with what the decoder reads, (B, N), and its mask."""

    @property
    def decoder_input(self) -> Tensor: ...
    @property
    def decoder_mask(self) -> Tensor: ...


class KeyValueInput(TextInput, Protocol):
    """Texts of keys, with a value (B, N) beside each."""

    @property
    def values(self) -> Tensor: ...


class PointInput(Protocol):
    """Points (B, F), their neighbours (B, K, F), and mask (B, 1), True at real points."""

    @property
    def points(self) -> Tensor: ...
    @property
    def neighbors(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...


class SpeechInput(Protocol):
    """Recordings (B, N, F), their frames (B,), and the mask (B, M) of what the encoder reads."""

    @property
    def features(self) -> Tensor: ...
    @property
    def frames(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
