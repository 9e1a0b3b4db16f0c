"""Training pairs for translation: parallel text, cleaned and encoded, or fairseq's binarised data.

Parallel text is prepared as a stream, so that millions of pairs need little memory, and only once:
byte pairs and token ids are in the cache, under a hash of the files' contents and all options.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.bitext import NO_LIMITS, Bitext, Limits, SentencePair
from clusterformer.data.cache import cache_folder, cached_folder, hash_file
from clusterformer.data.named_sets import Split
from clusterformer.data.text_form import TextForm
from clusterformer.data.token_store import TokenStore, TokenWriter
from clusterformer.data.tokenizers import (
    BOS_EOS,
    BytePairTokenizer,
    Tokenizer,
    tokenizer_from_state,
)
from clusterformer.data.translation_batches import Reference, TranslationDataset
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
            return self.source.fold_case(pair.source), self.target.fold_case(pair.target)
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
        if self.bitext.part != "all":
            form += [self.bitext.part, "of different sources"]
        identity = json.dumps([kind, self._digest, repr(form), options])
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return cache_folder() / "translation" / f"{kind}-{name}"

    @cached_property
    def _digest(self) -> list[str]:
        return [_hash_of(file) for file in self.bitext.files]


class TranslationSource(ABC):
    """Source of a translation task's pairs, as token ids.

    Attributes:
        source_form: Form of the sentences.
        target_form: Form of the translations.
        detokenises: Whether the form can be undone, which scores of plain text need.
    """

    source_form: TextForm
    target_form: TextForm
    detokenises = True

    @abstractmethod
    def learn_tokenizer(self) -> Tokenizer:
        """Make the tokenizer of both languages from the training pairs."""

    @abstractmethod
    def training_pairs(self, tokenizer: Tokenizer) -> TranslationDataset:
        """Return the pairs to train on."""

    @abstractmethod
    def evaluation_pairs(
        self, split: Split, tokenizer: Tokenizer, num_references: int | None
    ) -> TranslationDataset:
        """Return all pairs of "valid" or "test".

        Args:
            split: "valid" or "test"; without a test split, "test" gives the validation pairs.
            tokenizer: Tokenizer of both languages.
            num_references: Number of pairs, the first ones, with a reference; None for all.
        """

    def encode(self, texts: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
        """Encode texts in the form of the model, each ended by BOS_EOS."""
        return [[*ids, BOS_EOS] for ids in tokenizer.encode_all(list(texts))]


class ParallelTextSource(TranslationSource):
    """Pairs of parallel text files, prepared here.

    Args:
        find: Function that finds the files of a split; None where there is no such split.
        source: Form of the sentences.
        target: Form of the translations.
        tokenised: Whether the files hold Moses tokens already, where the form asks for them.
        limits: Conditions on a training pair.
        vocab_size: Number of tokens of the byte-pair encoding.
    """

    def __init__(
        self,
        find: Callable[[Split], Bitext | None],
        source: TextForm,
        target: TextForm,
        *,
        tokenised: bool,
        limits: Limits,
        vocab_size: int,
    ) -> None:
        self._find = find
        self.source_form, self.target_form = source, target
        self._tokenised, self._limits, self._vocab_size = tokenised, limits, vocab_size

    @cached_property
    def _training(self) -> ParallelText:
        return self._text("train")

    def learn_tokenizer(self) -> Tokenizer:
        return self._training.learn_tokenizer(self._vocab_size)

    def training_pairs(self, tokenizer: Tokenizer) -> TranslationDataset:
        return TranslationDataset(*self._training.encode(tokenizer))

    def evaluation_pairs(
        self, split: Split, tokenizer: Tokenizer, num_references: int | None
    ) -> TranslationDataset:
        text = self._text(split)
        pairs = list(text.bitext)
        if text.bitext.part == "held out":
            pairs = [pair for pair in pairs if pair.source.strip() and pair.target.strip()]
        for pair in pairs:
            if not pair.source.strip() or not pair.target.strip():
                raise InputError(f"{text.where(pair)}: empty side, allowed is text")
        texts = [text.preprocess(pair) for pair in pairs]
        encoded = [self.encode(side, tokenizer) for side in zip(*texts, strict=True)]
        dropped: Counter[str] = Counter()
        rows = [
            (pair.target, target, *ids)
            for pair, (_, target), *ids in zip(pairs, texts, *encoded, strict=True)
            if split == "test" or text.fits([side[:-1] for side in ids], pair.line, dropped)
        ]
        warn_of_dropped(text.bitext.source, dropped, "validation pairs")
        if not rows:
            raise InputError(f"{text.bitext.source}: no pair is fit for validation")
        plain, tokenised, sources, targets = map(list, zip(*rows, strict=True))
        if self._tokenised:
            plain = [self.target_form.detokenise(target) for target in tokenised[:num_references]]
        references = map(Reference, tokenised[:num_references], plain)
        return TranslationDataset(sources, targets, list(references))

    @cached_property
    def _parts(self) -> tuple[Bitext, Bitext]:
        """Pairs to train on and to validate on, where there is no validation file."""
        bitext = self._find("train")
        assert bitext is not None
        rest, held_out = bitext.hold_out()
        rank_zero_only(_log.info)(
            f"{bitext.source}: {len(held_out.held_out):,} of its sentences validate instead of "
            "training; data.valid_source and data.valid_target set files for that"
        )
        return rest, held_out

    def _text(self, split: Split) -> ParallelText:
        bitext = self._find(split)
        if bitext is None and split == "test":
            warn_no_test()
            split, bitext = "valid", self._find("valid")
        if split != "test" and self._find("valid") is None:
            bitext = self._parts[split == "valid"]
        assert bitext is not None
        return ParallelText(
            bitext, self.source_form, self.target_form, self._limits, self._tokenised
        )


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


def warn_no_test() -> None:
    """Warn that the validation pairs test."""
    rank_zero_only(_log.warning)("there is no test part: the validation pairs test")


def _hash_of(path: Path) -> str:
    try:
        return hash_file(path, hashlib.sha256())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
