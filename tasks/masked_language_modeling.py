"""Masked language modelling: pretraining an encoder on running text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MetricCollection

from clusterformer.data.batches import BucketPlan, make_loader, pad, run_seed
from clusterformer.data.documents import LanguageModelingCorpus
from clusterformer.data.framed_tokenizers import RowTokenizer
from clusterformer.data.masking import (
    EVALUATION,
    TRAINING,
    MaskedBatch,
    MaskedRows,
    NumberedWindowPlan,
    row_width,
)
from clusterformer.data.named_sets import Split
from clusterformer.data.stream_tokenizers import ByteTokenizer
from clusterformer.errors import InputError, require_at_least
from clusterformer.losses import cross_entropy
from clusterformer.models.config import TransformerConfig
from clusterformer.models.embeddings import require_positions
from clusterformer.models.masked_language_model import MaskedLanguageModel
from clusterformer.task import IGNORE, Output
from clusterformer.tasks.metrics import CodeLength
from clusterformer.tasks.running_text import RunningText

BLANK = "<mask>"
"""Spelling of a masked token in a user's text."""


class MaskedLanguageModeling(RunningText):
    """Predict hidden tokens of running text from those on both sides of them.

    Pretraining as in BERT (Devlin et al., 2019): 15 % of the tokens of a row are masked, others in
    every epoch; with `next_sentence`, a row has two segments, and its first token says whether the
    second follows the first. A named set, or own files: plain text, `.txt` or `.txt.gz`, or a
    folder of such files. Rows are cut from one stream of tokens and are full. Their borders move
    from epoch to epoch. Evaluation reads each row of a part once, with the same masks for every
    model.

    Measures: bits per masked token, and the share of masked tokens that are right; they compare
    models of one tokenizer. `--model.init_from RUN` starts another task from the result.

    Args:
        name: Named data set: wikitext2, gutenberg (51 books, split by book and author), stdlib
            (code of Python), pg19, wikipedia or wikipedia-simple; or a list of them.
        mask_share: Share of masked tokens.
        next_sentence: Rows of two segments, and prediction of whether the second follows.
        lowercase: Conversion of the texts to lower case, for bpe and wordpiece.
        options: Options of `RunningText`.
    """

    monitor = "val/bits_per_masked_token"
    reads = "text"
    commands: Mapping[str, str] = {
        "fill each <mask>": "predict --checkpoint {run} --input FILE",
        "start a task": "fit --config NAME --model.init_from {run}",
    }
    usage = "model.predict([TEXT])"
    kept_options: tuple[str, ...] = (*RunningText.kept_options, "lowercase")

    def __init__(
        self,
        name: LanguageModelingCorpus | list[LanguageModelingCorpus] | None = None,
        *,
        mask_share: float = 0.15,
        next_sentence: bool = False,
        lowercase: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        if not 0 < mask_share < 1:
            raise InputError(f"mask_share must be between 0 and 1, got {mask_share}")
        if lowercase and self._kind not in ("bpe", "wordpiece"):
            raise InputError(
                f"lowercase is for tokenizers bpe and wordpiece, got tokenizer {self._kind}"
            )
        require_at_least(8, context=self._context)
        self._share, self._pairs, self.lowercase = mask_share, next_sentence, lowercase
        self._num_positions: int | None = None  # of a network with learned positions

    @property
    def row_tokenizer(self) -> RowTokenizer:
        """Tokenizer with the special tokens of rows."""
        return RowTokenizer(self.tokenizer)

    def loader(self, split: Split) -> DataLoader:
        total = len(self._streams[split])
        width = row_width(total, self._context, self._pairs)
        if split == "train":
            seed = run_seed()
            moving = NumberedWindowPlan(total, width, batch_size=self._batch_size, seed=seed)
            return make_loader(self._rows(split, (seed, TRAINING)), moving, self, training=True)
        rows = self._rows(split, (0, EVALUATION), in_turn=True)
        # in one mixed order, so that trainer.limit_..._batches reads a sample of all documents
        plan = BucketPlan([1] * -(-total // width), batch_size=self._batch_size)
        return make_loader(rows, plan, self)

    def _rows(self, split: Split, seed: tuple[int, ...], in_turn: bool = False) -> MaskedRows:
        return MaskedRows(
            self._streams[split], self.row_tokenizer, self._context,
            seed=seed, share=self._share, next_sentence=self._pairs, in_turn=in_turn,
        )  # fmt: skip

    def check_text(self, line: str) -> None:
        """Refuse a line without a blank, or one longer than learned positions reach."""
        if BLANK not in line:
            raise InputError(f"no {BLANK} in {line!r:.80}; a line holds one for each hidden token")
        if self._num_positions is not None:
            require_positions(len(self._row(line)), self._num_positions)

    def text_batch(self, lines: list[str]) -> MaskedBatch:
        """Make a batch of user text, one row a line, with blanks to be filled."""
        rows, blank = [self._row(line) for line in lines], self.row_tokenizer.blank
        tokens, mask = pad(rows)
        asked, real = pad([[i for i, t in enumerate(r) if t == blank] for r in rows])
        target = torch.zeros_like(asked).masked_fill(~real, IGNORE)
        follows = torch.full((len(rows),), IGNORE)
        return MaskedBatch(tokens, mask, target, asked, torch.zeros_like(mask), follows)

    def _row(self, line: str) -> list[int]:
        """Tokens of a line of user text.

        A blank stands for one token: of subwords with the space before it, as in running text.
        """
        tokenizer = self.row_tokenizer
        *before, last = f" {line.strip()}".split(BLANK)
        if not isinstance(self.tokenizer, ByteTokenizer):
            before = [part.removesuffix(" ") for part in before]
        row = [tokenizer.start]
        for part in before:
            row += [*self.tokenizer.encode(part), tokenizer.blank]
        return [*row, *self.tokenizer.encode(last), tokenizer.separator]

    def build(self, config: TransformerConfig) -> MaskedLanguageModel:
        self._num_positions = self._context if config.positions == "learned" else None
        return MaskedLanguageModel(
            config,
            vocab_size=self.row_tokenizer.vocab_size,
            next_sentence=self._pairs,
            max_length=self._context,
        )

    def loss(
        self, output: Output, batch: MaskedBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Sum the cross-entropy of masked tokens; a row's segments weigh as much as its tokens."""
        total, count = cross_entropy(output.logits, batch.target, label_smoothing)
        if output.row_logits is not None:
            rows = F.cross_entropy(
                output.row_logits.float(), batch.follows, ignore_index=IGNORE, reduction="none"
            )
            total = total + (rows * (batch.target != IGNORE).sum(-1)).sum()
        return total, count

    def metrics(self) -> MetricCollection:
        """Bits per masked token, and shares of right tokens and right answers on segments."""
        found: dict[str, Any] = {
            "bits_per_masked_token": CodeLength("bits"),
            "masked_accuracy": MeanMetric(),
        }
        if self._pairs:
            found["next_sentence_accuracy"] = MeanMetric()
        return MetricCollection(found, compute_groups=False)

    def update(
        self, metrics: MetricCollection, output: Output, batch: MaskedBatch, network: nn.Module
    ) -> None:
        nats, count = cross_entropy(output.logits, batch.target, 0.0)
        metrics["bits_per_masked_token"].update(nats, count)
        right = output.logits.argmax(-1) == batch.target
        metrics["masked_accuracy"].update(right[batch.target != IGNORE].float())
        if output.row_logits is not None:
            right = output.row_logits.argmax(-1) == batch.follows
            metrics["next_sentence_accuracy"].update(right[batch.follows != IGNORE].float())

    def predictions(self, network: nn.Module, batch: MaskedBatch) -> list[dict[str, Any]]:
        """Text of each row with its blanks filled by the most probable tokens."""
        logits = network(batch).logits.float()
        logits[..., self.tokenizer.vocab_size :] = -torch.inf  # special tokens are no answers
        tokens = batch.tokens.clone()
        real = batch.target != IGNORE
        rows = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(real)
        tokens[rows[real], batch.asked[real]] = logits.argmax(-1)[real]
        return [
            {"text": self.row_tokenizer.decode(row[mask].tolist())}
            for row, mask in zip(tokens, batch.mask, strict=True)
        ]

    def describe(self, batch: MaskedBatch, index: int) -> list[str]:
        return self.row_tokenizer.ids_to_tokens(batch.tokens[index][batch.mask[index]].tolist())
