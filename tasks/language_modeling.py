"""Language modelling: named texts or the user's own, by bytes, byte pairs or words."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from clusterformer.data.batches import BucketPlan, make_loader, pad, run_seed
from clusterformer.data.documents import LanguageModelingCorpus
from clusterformer.data.named_sets import Split
from clusterformer.data.recurrence import distance_to_last
from clusterformer.data.stream_tokenizers import StreamWordTokenizer
from clusterformer.data.streams import ShiftedWindowPlan, StridedWindows, Windows
from clusterformer.data.tokenizers import BOS
from clusterformer.errors import InputError, require_at_least
from clusterformer.losses import cross_entropy
from clusterformer.models.config import TransformerConfig
from clusterformer.models.embeddings import require_positions
from clusterformer.models.language_model import LanguageModel
from clusterformer.task import IGNORE, Batch, Output
from clusterformer.tasks.metrics import CodeLength, Units
from clusterformer.tasks.running_text import RunningText
from clusterformer.training.position_report import PositionReport
from clusterformer.training.shared_sequences import sequence_size

_log = logging.getLogger(__name__)


class LanguageModeling(RunningText):
    """Predict each token of running text from those before it.

    A named set, or own files: plain text, `.txt` or `.txt.gz`, or a folder of such files. All
    documents of a part make one stream of tokens, BOS before each. Training reads it in windows
    whose borders move from epoch to epoch; evaluation predicts every token exactly once.

    Measures: bits per byte, the code length of the text over its UTF-8 bytes (not for words, which
    lose spaces); and word perplexity, the exponential of the same length in nats over its words.
    Words stand between spaces; for wikitext2 and the tokenizer "word" each line end counts as the
    word `<eos>` too. So wikitext2's test part has 245,569 words, its published convention, however
    the text is tokenised. Beside other sets its line ends count with the tokenizer "word" alone.

    Args:
        name: Named data set: wikitext2, gutenberg (51 books, split by book and author), stdlib
            (code of Python), pg19, wikipedia or wikipedia-simple; or a list of them.
        stride: Number of new tokens in each window of an evaluation, the others being context;
            `context` by default. A smaller stride gives a better score for more time.
        far: Distance, in tokens: also measure bits per byte of the tokens that end an n-gram whose
            last occurrence in the window is further back, such as those out of a local model's
            sight. Not for words.
        far_length: Number of tokens of such an n-gram.
        options: Options of `RunningText`.
    """

    monitor = "val/bits_per_byte"
    causal_input = "tokens"
    reads = "text"
    commands: Mapping[str, str] = {"continue": "generate --checkpoint {run} --prompt TEXT"}
    usage = "model.generate(TEXT)"

    def __init__(
        self,
        name: LanguageModelingCorpus | list[LanguageModelingCorpus] | None = None,
        *,
        stride: int | None = None,
        far: int | None = None,
        far_length: int = 8,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        require_at_least(1, far=far, far_length=far_length)
        if stride is not None and not 1 <= stride <= self._context:
            raise InputError(f"stride must be in 1..context ({self._context}), got {stride}")
        self._stride = stride or self._context
        self._far, self._far_length = far, far_length
        self._told_case = False
        self._num_positions: int | None = None  # of a network with learned positions
        if self._kind == "word":
            self.monitor = "val/word_perplexity"

    def setup(self, stage: str) -> None:
        if self._far is not None and sequence_size(self.trainer) > 1:
            raise InputError("data.far needs whole texts; leave it out with sequence_parallel")
        super().setup(stage)
        if stage != "predict" and self.tokenizer.lowercase and not self._told_case:
            self._told_case = True
            rank_zero_only(_log.warning)(
                "the tokenizer, of a run with data.lowercase, drops case: bits per byte and word "
                "perplexity are of the text in lower case, lower than those of the text as it is"
            )

    def loader(self, split: Split) -> DataLoader:
        stream = self._streams[split]
        if split == "train":
            moving = ShiftedWindowPlan(
                len(stream), self._context, batch_size=self._batch_size, seed=run_seed()
            )
            return make_loader(Windows(stream, self._context), moving, self, training=True)
        windows = StridedWindows(stream, self._context, self._stride)
        # in one mixed order, so that trainer.limit_..._batches reads a sample of all documents
        plan = BucketPlan([1] * len(windows), batch_size=self._batch_size)
        return make_loader(windows, plan, self)

    def check_text(self, line: str) -> None:
        """Refuse a line longer than learned positions reach."""
        if self._num_positions is not None:
            require_positions(len(self.tokenizer.encode(line)), self._num_positions)

    def text_batch(self, lines: list[str]) -> Batch:
        """Make a batch of user text, one row a line, each a text of its own."""
        texts = [[BOS, *self.tokenizer.encode(line)] for line in lines]
        tokens, mask = pad([text[:-1] for text in texts])
        target, _ = pad([text[1:] for text in texts])
        return Batch(tokens, mask, target.masked_fill(~mask, IGNORE))

    def report(self) -> PositionReport | None:
        if sequence_size(self.trainer) > 1:  # a process sees a part of the positions
            return None
        if self._context == 1:  # there is no position to compare with
            return None
        return PositionReport(self._context)

    def build(self, config: TransformerConfig) -> LanguageModel:
        self._num_positions = self._context if config.positions == "learned" else None
        return LanguageModel(config, vocab_size=self.tokenizer.vocab_size, max_length=self._context)

    def loss(self, output: Output, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        return cross_entropy(output.logits, batch.target, label_smoothing)

    def metrics(self) -> MetricCollection:
        """Bits per byte and perplexity per word, as the class describes them."""
        found: dict[str, Any] = {"word_perplexity": CodeLength("perplexity")}
        if not isinstance(self.tokenizer, StreamWordTokenizer):
            found["bits_per_byte"] = CodeLength("bits")
            if self._far is not None:
                found["bits_per_byte_far"] = CodeLength("bits")
        return MetricCollection(found, compute_groups=False)

    def update(
        self, metrics: MetricCollection, output: Output, batch: Batch, network: nn.Module
    ) -> None:
        nats, _ = self.loss(output, batch, 0.0)
        size, words = self._units.count(batch.tokens, batch.target, batch.target != IGNORE)
        metrics["word_perplexity"].update(nats, words)
        if "bits_per_byte" in metrics:
            metrics["bits_per_byte"].update(nats, size)
        if "bits_per_byte_far" in metrics:
            far = self._is_far(batch)
            target = batch.target.masked_fill(~far, IGNORE)
            nats, _ = cross_entropy(output.logits, target, 0.0)
            size, _ = self._units.count(batch.tokens, batch.target, far)
            metrics["bits_per_byte_far"].update(nats, size)

    def _is_far(self, batch: Batch) -> Tensor:
        """Targets (B, N) that end an n-gram which was last seen further back than `far`."""
        assert self._far is not None
        # a target is the next token, but where another window counts it, it is not given here
        next_token = torch.where(batch.target == IGNORE, batch.tokens.roll(-1, 1), batch.target)
        text = torch.cat([batch.tokens[:, :1], next_token], 1)
        distance = distance_to_last(text, self._far_length)[:, 1:]
        return (distance > self._far) & (batch.target != IGNORE)

    @cached_property
    def _units(self) -> Units:
        # of the text that is read, which a test may have other than the training
        line_ends = self._names == ["wikitext2"] or isinstance(self.tokenizer, StreamWordTokenizer)
        return Units.of(self.tokenizer, line_ends)

    def predictions(self, network: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """Code length of each text in bits, and its number of tokens."""
        nats = F.cross_entropy(
            network(batch).logits.float().transpose(1, 2),
            batch.target,
            ignore_index=IGNORE,
            reduction="none",
        )
        counts = (batch.target != IGNORE).sum(-1)
        return [
            {"bits": bits, "tokens": count}
            for bits, count in zip(
                (nats.sum(-1) / math.log(2)).tolist(), counts.tolist(), strict=True
            )
        ]

    def describe(self, batch: Batch, index: int) -> list[str]:
        tokens = batch.tokens[index][batch.mask[index]].tolist()
        return self.tokenizer.ids_to_tokens(tokens)
