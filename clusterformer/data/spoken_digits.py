"""Strings of spoken digits, joined from the Free Spoken Digit Dataset with pauses and noise."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clusterformer.data.audio import Samples, read_wav, resample, resampled_length
from clusterformer.data.named_sets import SPLITS, Split, check_count, data_folder, missing_file
from clusterformer.data.utterances import Utterances
from clusterformer.errors import InputError, reading, require_at_least

RATE = 8000
"""Samples per second of every recording of the set."""

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

NUM_RECORDINGS = 3000
_NAME = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav")


@dataclass(frozen=True)
class DigitStrings:
    """Strings of digits of one speaker each. Every part is the same in every run.

    Attributes:
        min_digits: Fewest digits of a string.
        max_digits: Most digits of a string.
        min_pause: Shortest pause before, between and after digits, seconds.
        max_pause: Longest pause, seconds.
        min_snr: Least power of the speech over that of white noise, decibels.
        max_snr: Greatest power, likewise.
        speeds: Speeds at which training recordings are played, one drawn for each string; the pitch
            changes as well, so that there seem to be more speakers.
        train: Number of training strings.
        valid: Number of validation strings.
        test: Number of test strings.
        fold: Number, 0..5, of the speaker who tests; the next one validates, four train.
    """

    min_digits: int = 10
    max_digits: int = 40
    min_pause: float = 0.05
    max_pause: float = 0.2
    min_snr: float = 10.0
    max_snr: float = 30.0
    speeds: tuple[float, ...] = (0.8, 0.9, 1.0, 1.1, 1.2)
    train: int = 2000
    valid: int = 100
    test: int = 200
    fold: int = 0

    def __post_init__(self) -> None:
        require_at_least(
            1, min_digits=self.min_digits, train=self.train, valid=self.valid, test=self.test
        )
        require_at_least(self.min_digits, max_digits=self.max_digits)
        require_at_least(0, min_pause=self.min_pause)
        require_at_least(self.min_pause, max_pause=self.max_pause)
        require_at_least(self.min_snr, max_snr=self.max_snr)
        if not self.speeds or not all(0.5 <= speed <= 2 for speed in self.speeds):
            raise InputError(f"speeds must be from 0.5 to 2, at least one; got {self.speeds}")
        if not 0 <= self.fold < 6:
            raise InputError(f"fold must be 0 to 5, one for each speaker, got {self.fold}")


class _Plan(NamedTuple):
    """Parts of a string: names of its recordings, samples of pauses, and how it is played."""

    names: list[str]
    pauses: list[int]
    speed: Fraction
    snr: float
    level: float


class SpokenDigits(Utterances):
    """Strings of digits, each made from its number when it is asked for.

    Args:
        strings: Their form and number.
        split: Part of the data.
        root: Folder of the named data sets.

    Attributes:
        speakers: Names of the speakers of the part.
    """

    def __init__(self, strings: DigitStrings, split: Split, root: str | None = None) -> None:
        self._recordings = read_digits(data_folder(root) / "fsdd")
        everyone = sorted({_parts(name)[1] for name in self._recordings})
        turned = [*everyone[strings.fold :], *everyone[: strings.fold]]
        self.speakers = {"test": turned[:1], "valid": turned[1:2], "train": turned[2:]}[split]
        self._names: dict[tuple[str, int], list[str]] = {}
        for name in self._recordings:
            digit, speaker, _ = _parts(name)
            self._names.setdefault((speaker, digit), []).append(name)
        self._at_speed: dict[tuple[str, Fraction], Samples] = {}
        self._stream = SPLITS.index(split)
        speeds = strings.speeds if split == "train" else (1.0,)
        size = {"train": strings.train, "valid": strings.valid, "test": strings.test}[split]
        self._plans = [self._plan(strings, speeds, index) for index in range(size)]
        self.texts = [
            " ".join(WORDS[_parts(name)[0]] for name in plan.names) for plan in self._plans
        ]
        self.num_samples = [self._length(plan) for plan in self._plans]

    def samples(self, index: int) -> Samples:
        plan, parts = self._plans[index], []
        for pause, name in zip(plan.pauses, plan.names, strict=False):
            parts += [np.zeros(pause, dtype=np.float32), self._played(name, plan.speed)]
        speech = np.concatenate([*parts, np.zeros(plan.pauses[-1], dtype=np.float32)])
        power = np.square(np.concatenate(parts[1::2])).mean()
        noise = self._generator(index, 1).standard_normal(len(speech), dtype=np.float32)
        mixed = speech + noise * np.sqrt(power / 10 ** (plan.snr / 10))
        loudest = max(np.sqrt(power) / 10 ** (plan.level / 20), float(np.abs(mixed).max()))
        return (mixed / loudest).astype(np.float32)

    def _played(self, name: str, speed: Fraction) -> Samples:
        if (name, speed) not in self._at_speed:
            self._at_speed[name, speed] = resample(self._recordings[name], 1 / speed)
        return self._at_speed[name, speed]

    def _generator(self, index: int, kind: int) -> np.random.Generator:
        return np.random.default_rng([self._stream, index, kind])

    def _plan(self, strings: DigitStrings, speeds: Sequence[float], index: int) -> _Plan:
        generator = self._generator(index, 0)
        size = int(generator.integers(strings.min_digits, strings.max_digits + 1))
        speaker = self.speakers[generator.integers(len(self.speakers))]
        choices = [self._names[speaker, digit] for digit in generator.integers(10, size=size)]
        pauses = generator.uniform(strings.min_pause, strings.max_pause, size + 1) * RATE
        return _Plan(
            [names[generator.integers(len(names))] for names in choices],
            pauses.astype(int).tolist(),
            Fraction(speeds[int(generator.integers(len(speeds)))]).limit_denominator(1000),
            float(generator.uniform(strings.min_snr, strings.max_snr)),
            float(generator.uniform(-35, -15)),
        )

    def _length(self, plan: _Plan) -> int:
        lengths = (len(self._recordings[name]) for name in plan.names)
        return sum(plan.pauses) + sum(resampled_length(n, 1 / plan.speed) for n in lengths)


@cache
def read_digits(folder: Path) -> dict[str, Samples]:
    """Read all recordings of single digits, by name, from recordings.tar.gz or from a folder.

    Raises:
        InputError: if they are not there, or not as many as published.
    """
    archive, unpacked = folder / "recordings.tar.gz", folder / "recordings"
    if not archive.exists() and not unpacked.is_dir():
        raise missing_file("fsdd", archive)
    found = {}
    for name, data in _files(unpacked if unpacked.is_dir() else archive):
        samples, rate = read_wav(io.BytesIO(data), name)
        check_count(folder / name, "samples a second", rate, RATE)
        found[name] = samples
    check_count(folder, "recordings", len(found), NUM_RECORDINGS)
    return dict(sorted(found.items()))


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for path in sorted(source.glob("*.wav")):
            if _NAME.fullmatch(path.name):
                yield path.name, path.read_bytes()
        return
    with reading(source, "a tar.gz of recordings"), tarfile.open(source, "r:gz") as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            file = archive.extractfile(member) if _NAME.fullmatch(name) else None
            if file is not None:
                yield name, file.read()


def _parts(name: str) -> tuple[int, str, int]:
    """Split a file's name: the digit, the speaker, the number of the recording."""
    found = _NAME.fullmatch(name)
    assert found is not None
    return int(found[1]), found[2], int(found[3])
