"""Units in which speech is recognised: characters, or the phones or words between spaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, TypedDict

from clusterformer.ctc import BLANK
from clusterformer.errors import InputError

UnitKind = Literal["character", "phone", "word"]


class OutputUnitsState(TypedDict):
    """State of the units in a checkpoint."""

    kind: UnitKind
    symbols: list[str]


class OutputUnits:
    """Units of transcripts and their numbers.

    Args:
        kind: "character" with a space between words as a unit too; "phone" or "word" for what
            stands between spaces.
        symbols: Units, in the order of their numbers from 1.

    Raises:
        InputError: if there is no unit, or one occurs twice.
    """

    def __init__(self, kind: UnitKind, symbols: Sequence[str]) -> None:
        if not symbols or len(set(symbols)) < len(symbols):
            raise InputError(f"units must be different strings, at least one; got {symbols!r:.200}")
        self.kind = kind
        self.symbols = list(symbols)
        self._numbers = {symbol: number for number, symbol in enumerate(symbols, BLANK + 1)}

    @classmethod
    def learn(cls, kind: UnitKind, transcripts: Iterable[str]) -> OutputUnits:
        """List the units that transcripts hold."""
        return cls(kind, sorted({unit for text in transcripts for unit in split(kind, text)}))

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> tuple[list[int], int]:
        """Return the numbers of the units of a text, and how many units of it are unknown."""
        found = split(self.kind, text)
        known = [self._numbers[unit] for unit in found if unit in self._numbers]
        return known, len(found) - len(known)

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Return the units of numbers."""
        return [self.symbols[number - BLANK - 1] for number in numbers]

    def join(self, units: Iterable[str]) -> str:
        """Write units as text."""
        return " ".join("".join(units).split()) if self.kind == "character" else " ".join(units)

    def state(self) -> dict[str, Any]:
        """Return the values from which `from_state` makes the same units."""
        return {"kind": self.kind, "symbols": self.symbols}

    @classmethod
    def from_state(cls, state: OutputUnitsState) -> OutputUnits:
        """Make the units that returned this `state()`."""
        return cls(state["kind"], state["symbols"])


def split(kind: UnitKind, text: str) -> list[str]:
    """Split a transcript into units; several spaces count as one."""
    words = text.split()
    return list(" ".join(words)) if kind == "character" else words


def frames_needed(target: Sequence[int]) -> int:
    """Return the fewest frames in which CTC can write a target: one each, a blank within pairs."""
    pairs = pairwise(target)
    return len(target) + sum(first == second for first, second in pairs)
