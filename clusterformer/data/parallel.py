"""Preparation of parallel text: cleaning, joint byte-pair encoding, and token numbers on disk.

Everything is a stream, so that millions of pairs need little memory, and is done once: results lie
in the cache under a hash of the files' contents and of all that was asked for.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from clusterformer.data.bitext import Bitext, Pair
from clusterformer.data.cache import cache_folder, kept
from clusterformer.data.moses import TextForm
from clusterformer.data.token_store import TokenStore, TokenWriter
from clusterformer.data.tokenizers import (
    BOS_EOS,
    BytePairTokenizer,
    Tokenizer,
    tokenizer_from_state,
)
from clusterformer.errors import InputError

_log = logging.getLogger(__name__)

_CHUNK = 10_000  # pairs encoded at once
_MANY = 250_000  # pairs after which to say how far it is
_SAMPLE = 1_000_000  # most pairs from which byte pairs are learnt


@dataclass(frozen=True)
class Limits:
    """Which pairs are fit for training.

    Attributes:
        max_length: Most words a side; None for any number.
        max_ratio: Most words of one side for each of the other; None for any number.
        unfit: Whether other pairs, and those with an empty side, are dropped or an error.
    """

    max_length: int | None = None
    max_ratio: float | None = None
    unfit: Literal["drop", "error"] = "drop"

    def fault(self, source: str, target: str) -> str | None:
        """What is wrong with a pair, if anything is."""
        lengths = sorted([len(source.split()), len(target.split())])
        if not lengths[0]:
            return "empty side"
        if self.max_length is not None and lengths[1] > self.max_length:
            return f"more than max_length {self.max_length} words"
        if self.max_ratio is not None and lengths[1] > self.max_ratio * lengths[0]:
            return f"length ratio above max_ratio {self.max_ratio}"
        return None


@dataclass(frozen=True)
class ParallelText:
    """Training pairs in the form in which the model reads them.

    Attributes:
        bitext: The files.
        source: Form of their sentences.
        target: Form of the translations.
        limits: Of what is fit for training.
        written: Whether the files hold Moses tokens already, where the form asks for them.
    """

    bitext: Bitext
    source: TextForm
    target: TextForm
    limits: Limits = Limits()
    written: bool = False

    def clean(self, dropped: Counter[str], every: int = 1) -> Iterator[tuple[str, str]]:
        """Read the pairs fit for training.

        Args:
            dropped: Counts the others by what is wrong with them.
            every: Looks at every so many-th pair alone, as a sample.

        Raises:
            InputError: as `Bitext` does, and for an unfit pair if such are an error.
        """
        for pair in islice(self.bitext, 0, None, every):
            source, target = self.form(pair)
            fault = self.limits.fault(source, target)
            if fault is None:
                yield source, target
            elif self.limits.unfit == "error":
                raise InputError(
                    f"{self.bitext.target}:{pair.line}: {fault}; data.unfit: drop leaves such "
                    "pairs out"
                )
            else:
                dropped[fault] += 1

    def form(self, pair: Pair) -> tuple[str, str]:
        """Both sides as the model reads them."""
        if self.written:
            return self.source.fold(pair.source), self.target.fold(pair.target)
        return self.source.write(pair.source), self.target.write(pair.target)

    def learn(self, vocab_size: int) -> Tokenizer:
        """Byte pairs of both languages together, learnt from these texts or found in the cache."""

        def fill(folder: Path) -> None:
            count = sum(1 for _ in self.bitext)
            if count >= _MANY:
                _log.info(f"{self.bitext.source}: {count:,} pairs, learning their byte pairs")
            every = -(-count // _SAMPLE)
            texts = (text for pair in self.clean(Counter(), every) for text in pair)
            learnt = BytePairTokenizer.train(
                texts, vocab_size=vocab_size, lowercase=False, bos_eos=True
            )
            _write(folder / "tokenizer.json", learnt.state())

        folder = kept(self._shelf("byte-pairs", vocab_size), fill)
        return tokenizer_from_state(_read(folder / "tokenizer.json"))

    def encode(self, tokenizer: Tokenizer) -> tuple[TokenStore, TokenStore]:
        """Token numbers of all sources and targets, each ended by BOS_EOS, made or found."""

        def fill(folder: Path) -> None:
            dropped: Counter[str] = Counter()
            pairs = self.clean(dropped)
            writers = [TokenWriter(folder / side, tokenizer.vocab_size) for side in _SIDES]
            chunks = iter(lambda: list(islice(pairs, _CHUNK)), [])
            for number, chunk in enumerate(chunks, 1):
                for writer, texts in zip(writers, zip(*chunk, strict=True), strict=True):
                    encoded = tokenizer.encode_all(texts)
                    writer.extend([*tokens, BOS_EOS] for tokens in encoded)
                if number * _CHUNK % _MANY == 0:
                    _log.info(f"{self.bitext.source}: {number * _CHUNK:,} pairs encoded")
            for writer in writers:
                writer.close()
            _write(folder / "dropped.json", dropped)

        folder = kept(self._shelf("tokens", tokenizer.state()), fill)
        dropped = _read(folder / "dropped.json")
        if dropped:
            reasons = ", ".join(f"{count:,} with {fault}" for fault, count in dropped.items())
            _log.warning(f"{self.bitext.source}: pairs dropped: {reasons}")
        sources, targets = (TokenStore(folder / side) for side in _SIDES)
        if not len(sources):
            raise InputError(f"{self.bitext.source}: no pair is fit for training")
        return sources, targets

    def _shelf(self, kind: str, asked: Any) -> Path:
        """Place in the cache of something made from these texts."""
        form = [self.bitext.columns, self.source, self.target, self.limits, self.written]
        identity = json.dumps([kind, self._digest, repr(form), asked])
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return cache_folder() / "translation" / f"{kind}-{name}"

    @cached_property
    def _digest(self) -> list[str]:
        return [_content(file) for file in self.bitext.files]


_SIDES = ("source", "target")


def _content(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    return found.hexdigest()


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
