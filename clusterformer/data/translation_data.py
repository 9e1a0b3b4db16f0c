"""Where translation gets its pairs: text that is prepared here, or fairseq's binarised data."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.bitext import Bitext
from clusterformer.data.fairseq import FairseqFolder
from clusterformer.data.moses import TextForm
from clusterformer.data.named_bitext import Split
from clusterformer.data.parallel import Limits, ParallelText
from clusterformer.data.sentence_pairs import PairSet, Reference
from clusterformer.data.tokenizers import BOS_EOS, SubwordTokenizer, Tokenizer
from clusterformer.errors import InputError

_log = logging.getLogger(__name__)


class PairSource(ABC):
    """Gives a translation task its pairs as token numbers.

    Attributes:
        source: Form of the sentences.
        target: Form of the translations.
    """

    source: TextForm
    target: TextForm

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Text to numbers and back, by the training pairs."""

    @abstractmethod
    def training(self, tokenizer: Tokenizer) -> PairSet:
        """The pairs to train on."""

    @abstractmethod
    def scored(self, split: Split, tokenizer: Tokenizer, most: int | None) -> PairSet:
        """The pairs of "valid" or "test", all of them; with references for the first `most`."""

    def encode(self, texts: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
        """Token numbers of texts in the form of the model, each ended by BOS_EOS."""
        return [[*tokens, BOS_EOS] for tokens in tokenizer.encode_all(list(texts))]


class TextSource(PairSource):
    """Parallel text, prepared here.

    Args:
        find: Finds the files of a part; None where there is no such part.
        source: Form of the sentences.
        target: Form of the translations.
        written: Whether the files hold Moses tokens already, where the form asks for them.
        limits: Of what is fit for training.
        vocab_size: Pieces of the byte-pair encoding.
    """

    def __init__(
        self,
        find: Callable[[Split], Bitext | None],
        source: TextForm,
        target: TextForm,
        *,
        written: bool,
        limits: Limits,
        vocab_size: int,
    ) -> None:
        self._find = find
        self.source, self.target = source, target
        self._written, self._limits, self._vocab_size = written, limits, vocab_size

    @cached_property
    def _training(self) -> ParallelText:
        return self._text("train")

    def tokenizer(self) -> Tokenizer:
        return self._training.learn(self._vocab_size)

    def training(self, tokenizer: Tokenizer) -> PairSet:
        return PairSet(*self._training.encode(tokenizer))

    def scored(self, split: Split, tokenizer: Tokenizer, most: int | None) -> PairSet:
        text = self._text(split)
        pairs = list(text.bitext)
        for pair in pairs:
            if not pair.source.strip() or not pair.target.strip():
                raise InputError(f"{text.bitext.target}:{pair.line}: empty side, allowed is text")
        sources, targets = zip(*map(text.form, pairs), strict=True)
        references = [
            Reference(target, self.target.read(target) if self._written else pair.target)
            for pair, target in zip(pairs[:most], targets, strict=False)
        ]
        return PairSet(self.encode(sources, tokenizer), self.encode(targets, tokenizer), references)

    def _text(self, split: Split) -> ParallelText:
        bitext = self._find(split)
        if bitext is None and split == "test":
            _say_instead()
            bitext = self._find("valid")
        assert bitext is not None
        return ParallelText(bitext, self.source, self.target, self._limits, self._written)


class FairseqSource(PairSource):
    """Data that fairseq-preprocess binarised, in the pieces that it was cut into.

    Args:
        folder: The `data-bin` folder.
        languages: Source and target; None for what is found.
    """

    def __init__(self, folder: str, languages: tuple[str | None, str | None]) -> None:
        self._path, self._languages = folder, languages
        self.source = self.target = TextForm()

    @cached_property
    def _folder(self) -> FairseqFolder:
        return FairseqFolder(self._path, self._languages)

    def tokenizer(self) -> Tokenizer:
        return SubwordTokenizer(self._folder.words)

    def training(self, tokenizer: Tokenizer) -> PairSet:
        return self._pairs("train", tokenizer)

    def scored(self, split: Split, tokenizer: Tokenizer, most: int | None) -> PairSet:
        return self._pairs(split, tokenizer, most)

    def _pairs(self, split: Split, tokenizer: Tokenizer, most: int | None = 0) -> PairSet:
        if tokenizer.state() != self.tokenizer().state():
            raise InputError(
                f"{self._folder.folder}: its dictionaries are not those of the checkpoint"
            )
        part = self._folder.part(split)
        if part is None and split == "test":
            _say_instead()
            part = self._folder.part("valid")
        if part is None:
            raise InputError(f"{self._folder.folder}: no {split} part in it")
        sources, targets = part
        texts = [tokenizer.decode(targets[index]) for index in range(len(targets))[:most]]
        return PairSet(sources, targets, [Reference(text, text) for text in texts])


def _say_instead() -> None:
    rank_zero_only(_log.warning)("there is no test part: the validation pairs test")
