"""Translation: named sets or the user's own parallel files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from clusterformer.data.batches import pad
from clusterformer.data.bitext import Bitext, Limits, own_bitexts
from clusterformer.data.fairseq import FairseqSource, refuse_ignored
from clusterformer.data.named_sets import Split
from clusterformer.data.text_form import TextForm
from clusterformer.data.tokenizers import (
    BOS_EOS,
    BytePairTokenizer,
    Tokenizer,
    tokenizer_from_state,
)
from clusterformer.data.translation_batches import (
    LONGEST,
    TranslationBatch,
    TranslationDataset,
    check_length,
)
from clusterformer.data.translation_corpora import (
    TranslationCorpus,
    find_bitext,
    translation_protocol,
)
from clusterformer.data.translation_sources import ParallelTextSource, TranslationSource
from clusterformer.decoding import Hypothesis, Search, decode
from clusterformer.errors import InputError, require_at_least
from clusterformer.losses import cross_entropy
from clusterformer.models.alignment import alignment
from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import State
from clusterformer.models.inputs import TextInput
from clusterformer.models.seq2seq import Seq2Seq
from clusterformer.task import IGNORE, Output
from clusterformer.tasks.metrics import CodeLength, CorpusScore, Score
from clusterformer.tasks.split_task import LineTask

_VOCAB_SIZE, _MAX_LENGTH = 8000, 250


class SourceBatch(NamedTuple):
    """Sentences to be translated."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool, True at real tokens


class TranslationState(TypedDict):
    """State of the task in a checkpoint."""

    tokenizer: dict[str, Any]


class Translation(LineTask):
    """Translate sentences into another language.

    A named set, or own files in UTF-8, one sentence a line, each also with `.gz`.

    Args:
        name: Named data set: multi30k, iwslt14, iwslt14-part, wmt14 or tatoeba.
        data_bin: Folder written by fairseq-preprocess in its default format, instead of texts: byte
            pairs of subword-nmt, with limits in subwords, and `tokenised_bleu` as the only score.
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        raw: Original text of multi30k instead of the tokenised, lower-cased one.
        source_lang: Language to translate from, such as de; optional for a named data set.
        target_lang: Language to translate to, such as en; optional for a named data set.
        train_source: Own file of training sentences.
        train_target: Own file of their translations, line by line.
        valid_source: Own file of validation sentences; without it, a tenth of the different
            training sentences, at most 2,000 pairs, validates instead of training.
        valid_target: Own file of their translations, line by line.
        test_source: Own file of test sentences; without it, the validation sentences test.
        test_target: Own file of their translations, line by line.
        moses: Moses tokens instead of plain text for the model; used for named data sets by
            default.
        tokenised: Moses tokens in own files, with XML escapes or without.
        lowercase: Conversion of all texts to lower case; done for lower-cased data sets by default.
        vocab_size: Number of subwords of the byte-pair encoding that both languages share, at
            least 259.
        split_hyphens: Tokens of their own for hyphens within words, with Moses (its option -a).
        max_length: Maximum number of words in either sentence of a training pair.
        max_ratio: Maximum ratio of the lengths of both sentences of a training pair.
        limit_unit: Unit of `max_length` and `max_ratio`: words, or subwords, which limit validation
            pairs too.
        unfit: Treatment of training pairs beyond these limits or with an empty sentence: "drop" or
            "error".
        batch_size: Maximum number of pairs in a batch, over all processes.
        tokens_per_batch: Maximum number of tokens of the longer side in a batch, over all
            processes.
        valid_sentences: Number of validation sentences to translate, greedily, for BLEU.
        beam: Number of hypotheses followed in a test and in prediction; 1 is greedy.
        length_penalty: Exponent of the length in scores of hypotheses: above 1 favours long
            translations, below 1 short ones.
        nbest: Number of translations of each sentence that the command `translate` writes.
    """

    causal_input = "decoder_input"
    decodes = True
    reads = "text"
    commands: Mapping[str, str] = {"translate": "translate --checkpoint {run} --input FILE"}
    usage = "model.translate([TEXT])"
    state_type = TranslationState
    kept_options = ("vocab_size",)

    def __init__(
        self,
        name: TranslationCorpus | None = None,
        *,
        data_bin: str | None = None,
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
        split_hyphens: bool = False,
        vocab_size: int = _VOCAB_SIZE,
        max_length: int | None = _MAX_LENGTH,
        max_ratio: float | None = None,
        limit_unit: Literal["words", "subwords"] = "words",
        unfit: Literal["drop", "error"] = "drop",
        batch_size: int | None = None,
        tokens_per_batch: int | None = 4000,
        valid_sentences: int = 1000,
        beam: int = 5,
        length_penalty: float = 1.0,
        nbest: int = 1,
    ) -> None:
        super().__init__()
        files: dict[Split, tuple[str | None, str | None]] = {
            "train": (train_source, train_target),
            "valid": (valid_source, valid_target),
            "test": (test_source, test_target),
        }
        require_at_least(BytePairTokenizer.min_vocab_size, vocab_size=vocab_size)
        require_at_least(
            1,
            max_length=max_length,
            max_ratio=max_ratio,
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
        )
        require_at_least(0, valid_sentences=valid_sentences)
        own = any(any(paths) for paths in files.values())
        if [name is not None, data_bin is not None, own].count(True) != 1:
            raise InputError(
                f"give a named set (name), data_bin or own files (train_source ...), one of them; "
                f"got name {name!r}, data_bin {data_bin!r} and {'own' if own else 'no own'} files"
            )
        if raw and name is None:
            raise InputError("data.raw needs data.name multi30k, got own files")
        direction = translation_protocol(name).direction if name else (None, None)
        languages = (source_lang or direction[0], target_lang or direction[1])
        limits = Limits(max_length, max_ratio, unfit, limit_unit)
        self.source: TranslationSource
        if data_bin is not None:
            given = moses, tokenised, lowercase, split_hyphens, vocab_size != _VOCAB_SIZE
            refuse_ignored(given, limits, Limits(_MAX_LENGTH))
            self.source = FairseqSource(data_bin, languages, limits)
        else:
            if name:
                if tokenised:
                    raise InputError(f"data.tokenised needs own files, got data.name {name}")
                tokenised = translation_protocol(name, raw=raw).tokenised
                if tokenised and split_hyphens:
                    raise InputError(f"{name} holds Moses tokens without split_hyphens")
                find: Callable[[Split], Bitext | None] = partial(
                    find_bitext, name, languages, root, raw
                )
            else:
                find = own_bitexts(files).get
            if tokenised and moses is False:
                raise InputError("the files hold Moses tokens; leave data.moses out")
            folded = bool(name and tokenised) if lowercase is None else lowercase
            tokens = (bool(name) if moses is None else moses) or tokenised
            self.source = ParallelTextSource(
                find,
                *(TextForm(language, tokens, folded, split_hyphens) for language in languages),
                tokenised=tokenised,
                limits=limits,
                vocab_size=vocab_size,
            )
        self._files = files
        self._compounds = name == "wmt14" and languages[1] == "de" and not split_hyphens
        self._batch_size, self._tokens_per_batch = batch_size, tokens_per_batch
        self._valid_sentences = valid_sentences
        self.search = Search(beam, length_penalty, nbest)
        self._longest = None if max_length is None else max(LONGEST, 4 * max_length)
        bleu = "val/sacrebleu" if self.source.detokenises else "val/tokenised_bleu"
        self.monitor, self.mode = (bleu, "max") if valid_sentences else ("val/loss", "min")
        self._tokenizer: Tokenizer | None = None
        self._pairs: dict[Split, TranslationDataset] = {}

    def prepare_data(self) -> None:
        """Fill the cache, in one process of a machine; the others read it in `setup`."""
        if self.trainer and self.trainer.state.fn == "fit":
            self._tokenizer = self._tokenizer or self.source.learn_tokenizer()
            self._pairs["train"] = self.source.training_pairs(self._tokenizer)

    def setup(self, stage: str) -> None:
        """Read the parts that the stage needs; learn the vocabulary unless restored."""
        if stage == "predict":
            return
        if self._tokenizer is None:
            self._tokenizer = self.source.learn_tokenizer()
        if stage == "fit" and "train" not in self._pairs:
            self._pairs["train"] = self.source.training_pairs(self.tokenizer)
        split: Split = "test" if stage == "test" else "valid"
        if split not in self._pairs:
            scored = self._valid_sentences if split == "valid" else None
            self._pairs[split] = self.source.evaluation_pairs(split, self.tokenizer, scored)
            self._warn_of_known(split)

    def _warn_of_known(self, split: Split) -> None:
        """Warn of own pairs that train too; beyond a training, only if the files are the same."""
        own, trained = self._files[split], self._files["train"]
        if all(own) and ("train" in self._pairs or own == trained):
            assert isinstance(self.source, ParallelTextSource)
            self.source.warn_of_known(split)

    def loader(self, split: Split) -> DataLoader:
        part = self._pairs[split]
        return self.bucketed(split, part, part.lengths, self._batch_size, self._tokens_per_batch)

    def check_text(self, line: str) -> None:
        if self._longest is not None:
            check_length(line, self._longest, lambda: int(self.text_batch([line]).mask.sum()))

    def text_batch(self, lines: list[str]) -> SourceBatch:
        """Make a batch of user text, one row a line."""
        texts = [self.source.source_form.preprocess(line) for line in lines]
        return SourceBatch(*pad(self.source.encode(texts, self.tokenizer)))

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the texts; available after `setup()` or `load_state()`."""
        assert self._tokenizer is not None
        return self._tokenizer

    def build(self, config: TransformerConfig) -> Seq2Seq:
        size = self.tokenizer.vocab_size
        network = Seq2Seq(config, source_size=size, target_size=size, share_embeddings=True)
        limits = (self._longest, network.source.num_positions)
        self._longest = min((limit for limit in limits if limit is not None), default=None)
        return network

    def loss(
        self, output: Output, batch: TranslationBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        return cross_entropy(output.logits, batch.target, label_smoothing)

    def metrics(self) -> MetricCollection:
        accuracy = MulticlassAccuracy(
            self.tokenizer.vocab_size, average="micro", ignore_index=IGNORE
        )
        metrics: dict[str, Any] = {"accuracy": accuracy, "perplexity": CodeLength("perplexity")}
        return MetricCollection(metrics | self._corpus_scores(), compute_groups=False)

    @property
    def _scores(self) -> list[Score]:
        compounds: list[Score] = ["compound_bleu"] if self._compounds else []
        plain: list[Score] = ["sacrebleu", "chrf"] if self.source.detokenises else []
        return ["tokenised_bleu", *compounds, *plain]

    def signatures(self) -> dict[str, str]:
        return {name: score.signature for name, score in self._corpus_scores().items()}

    def _corpus_scores(self) -> dict[Score, CorpusScore]:
        lowercase = self.source.target_form.lowercase
        return {name: CorpusScore(name, lowercase) for name in self._scores}

    def update(
        self, metrics: MetricCollection, output: Output, batch: TranslationBatch, network: nn.Module
    ) -> None:
        """Count tokens; translate the rows that have a reference, and count these."""
        metrics["perplexity"].update(*self.loss(output, batch, 0.0))
        metrics["accuracy"].update(output.logits.argmax(-1), batch.target)
        rows = [row for row, reference in enumerate(batch.references) if reference]
        if not rows:
            return
        assert isinstance(network, Seq2Seq)
        encoded, mask = output.encoded.hidden[rows], batch.mask[rows]
        state = network.start_from(encoded, mask)
        search = replace(self.search, nbest=1) if self.testing else Search(beam=1)
        found = self._decode(network, state, mask, search)
        tokenised = [self.tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]
        plain = [self.source.target_form.detokenise(text) for text in tokenised]
        references = [reference for reference in batch.references if reference]
        for name in self._scores:
            if name in ("sacrebleu", "chrf"):
                metrics[name].update(plain, [reference.plain for reference in references])
            else:
                metrics[name].update(tokenised, [reference.tokenised for reference in references])

    def _decode(
        self, network: Seq2Seq, state: State, mask: Tensor, search: Search
    ) -> list[list[Hypothesis]]:
        """Find the best translations of each text, from the state before the first token."""
        first = torch.full((len(mask),), BOS_EOS, device=mask.device)
        max_length = 2 * mask.sum(-1) + 10
        if (positions := network.target.num_positions) is not None:
            max_length = max_length.clamp(max=positions - 1)  # the first one is that of BOS_EOS
        return decode(network.step, state, first, search, eos=BOS_EOS, max_length=max_length)

    def predictions(self, network: nn.Module, batch: SourceBatch) -> list[dict[str, Any]]:
        """The best translation of each row."""
        search = replace(self.search, nbest=1)
        return [best for [best] in self.translations(network, batch, search)]

    def translations(
        self, network: nn.Module, batch: SourceBatch, search: Search
    ) -> list[list[dict[str, Any]]]:
        """Translate each row: up to `search.nbest` records for it, best first."""
        assert isinstance(network, Seq2Seq)
        state = network.start(batch)
        found = self._decode(network, state, batch.mask, search)
        return [
            [
                {
                    "translation": self.source.target_form.detokenise(
                        self.tokenizer.decode(hypothesis.tokens)
                    ),
                    "score": hypothesis.score,
                }
                for hypothesis in hypotheses
            ]
            for hypotheses in found
        ]

    def describe(self, batch: TextInput, index: int) -> list[str]:
        return self.tokenizer.ids_to_tokens(batch.tokens[index][batch.mask[index]].tolist())

    def alignment(
        self, network: nn.Module, batch: TranslationBatch, index: int
    ) -> tuple[list[str], Tensor]:
        assert isinstance(network, Seq2Seq)
        one = TranslationBatch._make(part[index : index + 1] for part in batch)
        read, written = one.mask[0], one.decoder_mask[0]
        weights = alignment(network, one)[0][written][:, read].float()
        return self.tokenizer.ids_to_tokens(one.target[0][written].tolist()), weights

    def state(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._tokenizer = tokenizer_from_state(state["tokenizer"])
