"""Parallel text for training, cleaned and encoded.

It is prepared as a stream, so that millions of pairs need little memory, and only once: byte pairs
and token ids are in the cache, under a hash of the files' contents and all options.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.bitext import NO_LIMITS, Bitext, Limits, SentencePair
from clusterformer.data.cache import cache_folder, cached_folder, hash_file
from clusterformer.data.text_form import TextForm
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
_REPORT_EVERY = 250_000  # pairs
_MAX_SAMPLE = 1_000_000  # pairs from which byte pairs are learnt
_SIDES = ("source", "target")


@dataclass(frozen=True)
class ParallelText:
    """Training pairs in the form of the model.

    Attributes:
        bitext: Files of the pairs.
        source: Form of the sentences.
        target: Form of the translations.
        limits: Conditions on a training pair.
        tokenised: Whether the files hold Moses tokens already, where the form asks for them.
    """

    bitext: Bitext
    source: TextForm
    target: TextForm
    limits: Limits = NO_LIMITS
    tokenised: bool = False

    def clean(self, dropped: Counter[str], every: int = 1) -> Iterator[SentencePair]:
        """Yield the pairs that are fit for training, in the form of the model.

        Args:
            dropped: Counter of the other pairs, by the condition that they violate.
            every: Step of a sample: 10 looks at every tenth pair only.

        Raises:
            InputError: as `Bitext` does, and for an unfit pair if these are an error.
        """
        for pair in islice(self.bitext, 0, None, every):
            source, target = self.preprocess(pair)
            violation = self.limits.violation(source, target)
            if violation is None:
                yield SentencePair(source, target, pair.line)
            else:
                drop(violation, self.where(pair), self.limits, dropped)

    def where(self, pair: SentencePair) -> str:
        """File and line of a pair: of the source if that is empty, else of the target."""
        file = self.bitext.target if pair.source.strip() else self.bitext.source
        return f"{file}:{pair.line}"

    def fits(self, ids: Sequence[list[int]], line: int, dropped: Counter[str]) -> bool:
        """Tell whether an encoded pair is within the limits, where these count subwords.

        Raises:
            InputError: for an unfit pair if these are an error.
        """
        source, target = map(len, ids)
        violation = self.limits.excess((source, target)) if self.limits.unit == "subwords" else None
        if violation:
            drop(violation, f"{self.bitext.target}:{line}", self.limits, dropped)
        return violation is None

    def preprocess(self, pair: SentencePair) -> tuple[str, str]:
        """Bring both sides to the form of the model."""
        if self.tokenised:
            return self.source.read_tokens(pair.source), self.target.read_tokens(pair.target)
        return self.source.preprocess(pair.source), self.target.preprocess(pair.target)

    def learn_tokenizer(self, vocab_size: int) -> Tokenizer:
        """Learn the byte pairs of both languages together, or find them in the cache."""

        def fill(folder: Path) -> None:
            count = sum(1 for _ in self.bitext)
            if count >= _REPORT_EVERY:
                _log.info(f"{self.bitext.source}: {count:,} pairs, learning their byte pairs")
            every = -(-count // _MAX_SAMPLE)
            texts = (text for pair in self.clean(Counter(), every) for text in pair[:2])
            learnt = BytePairTokenizer.train(
                texts, vocab_size=vocab_size, lowercase=False, bos_eos=True
            )
            _write_json(folder / "tokenizer.json", learnt.state())

        folder = cached_folder(self._cache_path("byte-pairs", vocab_size), fill)
        return tokenizer_from_state(_read_json(folder / "tokenizer.json"))

    def encode(self, tokenizer: Tokenizer) -> tuple[TokenStore, TokenStore]:
        """Encode all sources and targets, each ended by BOS_EOS, or find them in the cache."""

        def fill(folder: Path) -> None:
            dropped: Counter[str] = Counter()
            pairs = self.clean(dropped)
            writers = [TokenWriter(folder / side, tokenizer.vocab_size) for side in _SIDES]
            chunks = iter(lambda: list(islice(pairs, _CHUNK)), [])
            for number, chunk in enumerate(chunks, 1):
                *texts, lines = zip(*chunk, strict=True)
                encoded = zip(*map(tokenizer.encode_all, texts), strict=True)
                kept = [
                    pair
                    for pair, line in zip(encoded, lines, strict=True)
                    if self.fits(pair, line, dropped)
                ]
                for side, writer in enumerate(writers):
                    writer.extend([*pair[side], BOS_EOS] for pair in kept)
                if number * _CHUNK % _REPORT_EVERY == 0:
                    _log.info(f"{self.bitext.source}: {number * _CHUNK:,} pairs encoded")
            for writer in writers:
                writer.close()
            _write_json(folder / "dropped.json", dropped)

        folder = cached_folder(self._cache_path("tokens", tokenizer.state()), fill)
        warn_of_dropped(self.bitext.source, _read_json(folder / "dropped.json"))
        sources, targets = (TokenStore(folder / side) for side in _SIDES)
        if not len(sources):
            raise InputError(f"{self.bitext.source}: no pair is fit for training")
        return sources, targets

    def _cache_path(self, kind: str, options: Any) -> Path:
        form: list[Any] = [
            self.bitext.columns,
            self.source,
            self.target,
            self.limits,
            self.tokenised,
        ]
        if self.tokenised:
            form.append("without XML escapes")
        if self.bitext.part != "all":
            form += [self.bitext.part, "of different sources"]
        identity = json.dumps([kind, self._digest, repr(form), options])
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return cache_folder() / "translation" / f"{kind}-{name}"

    @cached_property
    def _digest(self) -> list[str]:
        return [_hash_of(file) for file in self.bitext.files]


def drop(violation: str, where: str, limits: Limits, dropped: Counter[str]) -> None:
    """Count an unfit pair, or raise InputError if these are an error."""
    if limits.unfit == "error":
        raise InputError(f"{where}: {violation}; data.unfit: drop leaves such pairs out")
    dropped[violation] += 1


def warn_of_dropped(path: Path, dropped: Mapping[str, int], pairs: str = "pairs") -> None:
    """Say in one line how many pairs were dropped and why; nothing if none was."""
    if dropped:
        reasons = ", ".join(f"{count:,} with {reason}" for reason, count in dropped.items())
        rank_zero_only(_log.warning)(f"{path}: {pairs} dropped: {reasons}")


def _hash_of(path: Path) -> str:
    try:
        return hash_file(path, hashlib.sha256())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
