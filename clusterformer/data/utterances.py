"""Recordings with transcripts: lists of files, and what is wrong with them, counted."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.audio import (
    Samples,
    expanded,
    is_clipped,
    read_audio,
    read_header,
    resampled_length,
)
from clusterformer.data.filter_banks import FilterBanks
from clusterformer.data.labelled_text import read_rows
from clusterformer.data.tables import Column
from clusterformer.errors import InputError

_log = logging.getLogger(__name__)


class Utterances(ABC):
    """Recordings with their transcripts, by number.

    Attributes:
        texts: Transcript of each.
        num_samples: Length of each, samples.
    """

    texts: Sequence[str]
    num_samples: Sequence[int]

    @abstractmethod
    def samples(self, index: int) -> Samples:
        """Read or make the samples of one."""


class _Listed(NamedTuple):
    where: str  # file and line
    path: Path
    text: str
    num_samples: int


class ListedUtterances(Utterances):
    """Recordings that a table lists.

    A recording shorter than one window is left out; a line says how many there were. Another line
    says how many have another rate, and are resampled.

    Args:
        table: `.tsv`, `.csv` or `.jsonl` with a column of paths and one of transcripts; a path that
            is not absolute starts at the folder of the table.
        banks: Features, with the rate to which recordings are brought.
        audio_column: Column of the paths.
        text_column: Column of the transcripts.

    Attributes:
        paths: Path of each recording, without links.

    Raises:
        InputError: for a line without path or transcript, a path without a recording, or a table
            without a recording that is long enough.
    """

    def __init__(
        self,
        table: Path,
        banks: FilterBanks,
        *,
        audio_column: Column = "audio",
        text_column: Column = "text",
    ) -> None:
        rate = self._rate = banks.rate
        listed, rates, empty = [], set(), []
        rows = read_rows(table, text_column=text_column, label_column=audio_column, encoding=None)
        for row in rows:
            with _at(row.where):
                path = table.parent / expanded(row.label)
                if path.is_file() and not path.stat().st_size:
                    empty.append(path)
                    continue
                header = read_header(path)
            length = resampled_length(header.num_samples, Fraction(rate, header.rate))
            if length < banks.window:
                empty.append(path)
                continue
            rates.add(header.rate)
            listed.append(_Listed(row.where, path, row.text, length))
        if not listed:
            raise InputError(f"{table}: no recording in it is as long as {banks.window_ms:g} ms")
        if empty:
            _warn(f"{table}: recordings left out, empty or too short: {_named(empty)}")
        if rates - {rate}:
            others = ", ".join(map(str, sorted(rates - {rate})))
            _warn(f"{table}: recordings of {others} Hz are resampled to {rate} Hz")
        self._listed = listed
        self.paths = [one.path.resolve() for one in listed]
        self.texts = [one.text for one in listed]
        self.num_samples = [one.num_samples for one in listed]

    def samples(self, index: int) -> Samples:
        return self._read(self._listed[index])

    def _read(self, one: _Listed) -> Samples:
        with _at(one.where):
            return read_audio(one.path, self._rate)

    def check(self, most: int) -> None:
        """Read recordings, at most so many, and say how many are clipped or cut short."""
        chosen = np.linspace(0, len(self._listed) - 1, min(most, len(self._listed))).astype(int)
        clipped, short = [], []
        for one in (self._listed[index] for index in chosen):
            samples = self._read(one)
            if is_clipped(samples):
                clipped.append(one.path)
            if len(samples) < one.num_samples:
                short.append(one.path)
        for found, what in ((clipped, "clipped"), (short, "shorter than their headers say")):
            if found:
                _warn(f"of {len(chosen)} training recordings some are {what}: {_named(found)}")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Put the line of the table before what is wrong with its recording."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _named(paths: Sequence[Path]) -> str:
    """Count paths, and name the first."""
    return f"{len(paths)}, {paths[0]}" + ", ..." * (len(paths) > 1)


def _warn(message: str) -> None:
    rank_zero_only(_log.warning)(message)
