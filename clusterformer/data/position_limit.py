"""Texts beyond the learned positions of a network: refused before the training, with their line."""

from __future__ import annotations

from collections.abc import Sequence

from clusterformer.data.labelled_text import Example
from clusterformer.errors import InputError
from clusterformer.models.embeddings import require_positions


class PositionLimit:
    """The longest text of each part of the data, and the learned positions of the network.

    Either may be known first: a training reads its texts before the network is built, a test the
    other way round.
    """

    def __init__(self) -> None:
        self._longest: dict[str, tuple[int, str]] = {}  # number of tokens, and where
        self._num_positions: int | None = None

    @property
    def is_set(self) -> bool:
        """Tell whether the network has learned positions."""
        return self._num_positions is not None

    def set(self, num_positions: int | None) -> None:
        """Set the number of learned positions; None if there are none.

        Raises:
            InputError: with the place of a longer text.
        """
        self._num_positions = num_positions
        for length, where in self._longest.values():
            self._require_part(length, where)

    def read(self, part: str, lengths: Sequence[int], examples: Sequence[Example]) -> None:
        """Note the longest of the examples of a part; `lengths` has their numbers of tokens.

        Raises:
            InputError: with its place, if it is longer than the positions.
        """
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        self._longest[part] = lengths[longest], examples[longest].where
        self._require_part(*self._longest[part])

    def require(self, length: int) -> None:
        """Refuse a text of more tokens than positions.

        Raises:
            InputError: with both numbers.
        """
        if self._num_positions is not None:
            require_positions(length, self._num_positions)

    def _require_part(self, length: int, where: str) -> None:
        try:
            self.require(length)
        except InputError as error:
            raise InputError(f"{where}: {error}; data.max_length cuts longer texts") from error
