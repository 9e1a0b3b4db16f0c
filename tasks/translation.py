"""Translation: named sets or the user's own parallel files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from clusterformer.decoding import Hypothesis, beam_search, greedy
from clusterformer.errors import InputError
from clusterformer.models.architecture import Architecture
from clusterformer.models.seq2seq import Seq2Seq
from clusterformer.task import IGNORE, Output, Task
from clusterformer.tasks.batches import BucketPlan, loader, run_seed
from clusterformer.tasks.bitext import Bitext
from clusterformer.tasks.bitexts import NamedBitext, Split, find, missing, protocol
from clusterformer.tasks.moses import TextForm
from clusterformer.tasks.parallel import Limits, ParallelText
from clusterformer.tasks.scores import CorpusScore, Perplexity, Score
from clusterformer.tasks.sentence_pairs import PairSet, Reference, SentencePairs
from clusterformer.tasks.text import EDGE, Tokenizer, restore

_log = logging.getLogger(__name__)


class Translation(Task):
    """Say a sentence in another language.

    A named set, or own files in UTF-8, one sentence a line, each also with `.gz`.

    Args:
        name: Named set: multi30k, iwslt14, wmt14 or tatoeba.
        root: Folder of the named sets; default $CLUSTERFORMER_DATA, else the user's cache.
        raw: multi30k: the text as written instead of tokenised and lower-cased.
        source_lang: Language to translate from, such as de; a named set knows its usual one.
        target_lang: Language to translate to.
        train_source: Own file of training sentences.
        train_target: Own file of their translations, line by line.
        valid_source: Own validation files, likewise.
        valid_target: See there.
        test_source: Own test files, likewise; without any, the validation files test.
        test_target: See there.
        moses: Whether the model reads and writes Moses tokens; default: in named sets.
        tokenised: Own files: they hold Moses tokens already.
        lowercase: Whether case is ignored; default: where the named set is lower-cased.
        vocab_size: Pieces of the byte-pair encoding that both languages share.
        max_length: Training: most words a side.
        max_ratio: Training: most words of one side for each of the other.
        unfit: Training pairs beyond these limits, or with an empty side: dropped, or an error.
        batch_size: Most pairs a batch, over all processes.
        tokens_per_batch: Most tokens of the longer side a batch, over all processes.
        valid_sentences: How many validation sentences to translate, greedily, for BLEU.
        beam: Hypotheses followed in a test and in prediction; 1 is greedy.
        length_penalty: Above 1 favours long translations, below 1 short ones.
        nbest: Translations of each sentence in prediction, best first.
    """

    mode = "max"

    def __init__(
        self,
        name: NamedBitext | None = None,
        *,
        root: str | None = None,
        raw: bool = False,
        source_lang: str | None = None,
        target_lang: str | None = None,
        train_source: str | None = None,
        train_target: str | None = None,
        valid_source: str | None = None,
        valid_target: str | None = None,
        test_source: str | None = None,
        test_target: str | None = None,
        moses: bool | None = None,
        tokenised: bool = False,
        lowercase: bool | None = None,
        vocab_size: int = 8000,
        max_length: int | None = 250,
        max_ratio: float | None = None,
        unfit: Literal["drop", "error"] = "drop",
        batch_size: int | None = None,
        tokens_per_batch: int | None = 4000,
        valid_sentences: int = 1000,
        beam: int = 5,
        length_penalty: float = 1.0,
        nbest: int = 1,
    ) -> None:
        super().__init__()
        self._files: dict[Split, tuple[str | None, str | None]] = {
            "train": (train_source, train_target),
            "valid": (valid_source, valid_target),
            "test": (test_source, test_target),
        }
        for option, number, least in (
            ("vocab_size", vocab_size, 1),
            ("max_length", max_length, 1),
            ("max_ratio", max_ratio, 1),
            ("batch_size", batch_size, 1),
            ("tokens_per_batch", tokens_per_batch, 1),
            ("valid_sentences", valid_sentences, 0),
            ("beam", beam, 1),
            ("nbest", nbest, 1),
        ):
            if number is not None and number < least:
                raise InputError(f"data.{option} must be at least {least}, got {number}")
        if nbest > beam:
            raise InputError(f"data.nbest must be at most data.beam {beam}, got {nbest}")
        self._check_files(name)
        direction = protocol(name).direction if name else (None, None)
        self._languages = (source_lang or direction[0], target_lang or direction[1])
        self._name, self._root, self._raw = name, root, raw
        self._written = protocol(name, raw=raw).tokenised if name else tokenised
        folded = bool(name and self._written) if lowercase is None else lowercase
        tokens = bool(name) if moses is None else moses
        self._forms = tuple(
            TextForm(language, tokens or self._written, folded) for language in self._languages
        )
        self._limits = Limits(max_length, max_ratio, unfit)
        self._vocab_size = vocab_size
        self._batch_size, self._tokens_per_batch = batch_size, tokens_per_batch
        self._valid_sentences = valid_sentences
        self._beam, self._length_penalty, self._nbest = beam, length_penalty, nbest
        self.monitor, self.mode = (
            ("val/sacrebleu", "max") if valid_sentences else ("val/loss", "min")
        )
        self._tokenizer: Tokenizer | None = None
        self._network: Seq2Seq | None = None
        self._pairs: dict[Split, PairSet] = {}

    def _check_files(self, name: str | None) -> None:
        given = {split: [bool(file) for file in files] for split, files in self._files.items()}
        if name is not None:
            if any(map(any, given.values())):
                raise InputError("give either a named set (name) or own files, got both")
            return
        for split, sides in given.items():
            if any(sides) != all(sides) or (split != "test" and not all(sides)):
                raise InputError(
                    f"give a named set (name), or own files: {split}_source and {split}_target"
                )

    # Data

    def prepare_data(self) -> None:
        """Fill the cache, in one process of a machine, with what `setup` then finds there."""
        if self.trainer and self.trainer.state.fn == "fit":
            training = self._training()
            training.encode(self._tokenizer or training.learn(self._vocab_size))

    def setup(self, stage: str) -> None:
        """Read what the stage needs; learn the byte pairs if no checkpoint brought them."""
        if self._tokenizer is None and stage != "predict":
            self._tokenizer = self._training().learn(self._vocab_size)
        if stage == "fit" and "train" not in self._pairs:
            self._pairs["train"] = PairSet(*self._training().encode(self.tokenizer))
        split: Split = "test" if stage == "test" else "valid"
        if stage != "predict" and split not in self._pairs:
            self._pairs[split] = self._scored(split)

    def train_dataloader(self) -> DataLoader:
        return loader(self._pairs["train"], self._plan("train"), self, training=True)

    def val_dataloader(self) -> DataLoader:
        return loader(self._pairs["valid"], self._plan("valid"), self)

    def test_dataloader(self) -> DataLoader:
        return loader(self._pairs["test"], self._plan("test"), self)

    def _plan(self, split: Split) -> BucketPlan:
        return BucketPlan(
            self._pairs[split].lengths,
            batch_size=self._batch_size,
            tokens_per_batch=self._tokens_per_batch,
            shuffle=split == "train",
            seed=run_seed(),
        )

    def _training(self) -> ParallelText:
        return ParallelText(self._bitext("train"), *self._forms, self._limits, self._written)

    def _scored(self, split: Split) -> PairSet:
        """Every pair of an evaluation part, whatever its length."""
        text = ParallelText(self._bitext(split), *self._forms, written=self._written)
        pairs = list(text.bitext)
        sources, targets = zip(*map(text.form, pairs), strict=True)
        most = self._valid_sentences if split == "valid" else None
        references = [
            Reference(target, self._forms[1].read(target) if self._written else pair.target)
            for pair, target in zip(pairs[:most], targets, strict=False)
        ]
        return PairSet(self.encode(sources), self.encode(targets), references)

    def _bitext(self, split: Split) -> Bitext:
        if self._name is None:
            files = self._files[split]
            if split == "test" and files[0] is None:
                return self._instead("no test files are given")
            return Bitext(Path(str(files[0])).expanduser(), Path(str(files[1])).expanduser())
        options: dict[str, Any] = {"root": self._root, "raw": self._raw}
        source, target = map(str, self._languages)
        found = find(self._name, split, source, target, **options)
        if found:
            return found
        if split == "test":
            return self._instead(f"{self._name} has no test part here")
        raise missing(self._name, split, **options)

    def _instead(self, reason: str) -> Bitext:
        rank_zero_only(_log.warning)(f"{reason}: the validation pairs test")
        return self._bitext("valid")

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Token numbers of texts in the form of the model, each ended by EDGE."""
        return [[*tokens, EDGE] for tokens in self.tokenizer.encode_all(list(texts))]

    def text_dataloader(self, lines: Iterable[str]) -> DataLoader:
        """Batches of user text in its order, one row a line."""
        return DataLoader(_Lines(lines, self), batch_size=None)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to numbers and back; there after `setup()` or `load_state()`."""
        assert self._tokenizer is not None
        return self._tokenizer

    # Network, loss and metrics

    def build(self, architecture: Architecture) -> Seq2Seq:
        size = self.tokenizer.vocab_size
        self._network = Seq2Seq(
            architecture, source_size=size, target_size=size, share_embeddings=True
        )
        return self._network

    def loss(
        self, output: Output, batch: SentencePairs, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        total = F.cross_entropy(
            output.logits.flatten(0, 1).float(),
            batch.target.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
        return total, (batch.target != IGNORE).sum()

    def metrics(self) -> MetricCollection:
        accuracy = MulticlassAccuracy(
            self.tokenizer.vocab_size, average="micro", ignore_index=IGNORE
        )
        scores = {name: CorpusScore(name, self._forms[1].lowercase) for name in self._scores}
        return MetricCollection(
            {"accuracy": accuracy, "perplexity": Perplexity(), **scores}, compute_groups=False
        )

    @property
    def _scores(self) -> list[Score]:
        compounds: list[Score] = ["compound_bleu"] if self._name == "wmt14" else []
        return ["tokenised_bleu", *compounds, "sacrebleu", "chrf"]

    def update(self, metrics: MetricCollection, output: Output, batch: SentencePairs) -> None:
        """Count tokens; translate the rows that have a reference, and count these."""
        total, count = self.loss(output, batch, 0.0)
        metrics["perplexity"].update(total / count.clamp(min=1), count)
        metrics["accuracy"].update(output.logits.argmax(-1), batch.target)
        rows = [row for row, reference in enumerate(batch.references) if reference]
        if not rows:
            return
        testing = bool(self.trainer and self.trainer.testing)
        found = self._translate(output, batch, rows, self._beam if testing else 1)
        written = [self.tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]
        references = [reference for reference in batch.references if reference]
        for name in self._scores:
            if name in ("sacrebleu", "chrf"):
                plain = [self._forms[1].read(text) for text in written]
                metrics[name].update(plain, [reference.plain for reference in references])
            else:
                metrics[name].update(written, [reference.written for reference in references])

    def _translate(
        self, output: Output, batch: SentencePairs, rows: list[int], beam: int, nbest: int = 1
    ) -> list[list[Hypothesis]]:
        """The best hypotheses for some rows of the batch, from what the encoder made of them."""
        network = self._network
        assert network is not None
        hidden, mask = output.encoded.hidden[rows], batch.mask[rows]
        state = network.decoder.cache(hidden, hidden, mask)
        first = torch.full((len(rows),), EDGE, device=hidden.device)
        longest = 2 * mask.sum(-1) + 10
        if beam == 1:
            return [[one] for one in greedy(network.step, state, first, eos=EDGE, longest=longest)]
        return beam_search(
            network.step,
            state,
            first,
            eos=EDGE,
            longest=longest,
            beam=beam,
            length_penalty=self._length_penalty,
            nbest=nbest,
        )

    def predictions(self, output: Output, batch: SentencePairs) -> list[dict[str, Any]]:
        """`nbest` records for each row, best first."""
        rows = list(range(len(batch.tokens)))
        return [
            {
                "translation": self._forms[1].read(self.tokenizer.decode(hypothesis.tokens)),
                "score": hypothesis.score,
            }
            for hypotheses in self._translate(output, batch, rows, self._beam, self._nbest)
            for hypothesis in hypotheses
        ]

    def describe(self, batch: SentencePairs, index: int) -> list[str]:
        return self.tokenizer.pieces(batch.tokens[index][batch.mask[index]].tolist())

    # Checkpoints

    def state(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._tokenizer = restore(state["tokenizer"])


class _Lines(IterableDataset[SentencePairs]):
    """User text as it comes, in batches of consecutive lines."""

    def __init__(self, lines: Iterable[str], task: Translation) -> None:
        self._lines, self._task = lines, task

    def __iter__(self) -> Iterator[SentencePairs]:
        lines = iter(self._lines)
        form = self._task._forms[0]
        while chunk := list(islice(lines, 64)):
            sources = self._task.encode(form.write(line) for line in chunk)
            yield SentencePairs.make(sources, [[]] * len(sources))
