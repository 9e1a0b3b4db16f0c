"""Sources of a translation task's pairs: what each of them must offer, and parallel text files."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.bitext import Bitext, Limits, SentencePair
from clusterformer.data.documents import warn_of_table
from clusterformer.data.doubtful_examples import warn_of_known
from clusterformer.data.named_sets import Split
from clusterformer.data.parallel import ParallelText, warn_of_dropped
from clusterformer.data.text_form import TextForm
from clusterformer.data.tokenizers import BOS_EOS, Tokenizer
from clusterformer.data.translation_batches import Reference, TranslationDataset
from clusterformer.errors import InputError

_log = logging.getLogger(__name__)


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
        parts: tuple[Split, ...] = ("train", "valid", "test")
        for bitext in filter(None, map(self._find, parts)):  # told before the long work
            for path in bitext.files:
                if not path.exists():
                    raise InputError(f"{path}: no such file")
                if bitext.columns is None:
                    warn_of_table(path)
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

    def warn_of_known(self, split: Split) -> None:
        """Warn if pairs of the files of a split are among the training pairs."""
        bitext = self._find(split)
        if bitext is not None:
            trained = map(_sides, self._training.bitext)
            warn_of_known(split, "pairs", [*map(_sides, bitext)], trained)

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


def _sides(pair: SentencePair) -> tuple[str, str]:
    return pair.source.strip(), pair.target.strip()


def warn_no_test() -> None:
    """Warn that the validation pairs test."""
    rank_zero_only(_log.warning)("there is no test part: the validation pairs test")
