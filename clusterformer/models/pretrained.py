"""Networks around a pretrained model of transformers: its weights, any mechanism, a new head.

B batch   N tokens   E model width   L labels
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer import huggingface
from clusterformer.attention import AttentionCore, FullAttention
from clusterformer.huggingface.positions import num_positions
from clusterformer.huggingface.recording import calls, without_cache
from clusterformer.models.classifier import compare, comparison_head
from clusterformer.models.config import TransformerConfig
from clusterformer.models.dropout import Dropout
from clusterformer.models.inputs import TextInput, TextPairInput
from clusterformer.models.pooling import pool
from clusterformer.models.pretrained_model import make_model
from clusterformer.models.pretrained_options import (
    compare_with_saved,
    mechanism,
    refuse_own_networks,
    warn_of_ignored,
)
from clusterformer.models.transformer import Output, StackOutput

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)


class PretrainedEncoder(nn.Module):
    """A pretrained model of transformers whose attention is a mechanism of ours.

    Args:
        config: Mechanism of all layers, and whether the pretrained weights are frozen.
        model_config: Configuration of the model, plain values as transformers writes them.
        weights: Folder of the pretrained weights; None for random ones, which a checkpoint
            replaces.
        max_length: Longest row in tokens; where the model has fewer positions, they are repeated.

    Attributes:
        model: The model of transformers.
        width: E.
        converted: Whether the model was saved with its mechanism, which was trained then.

    Raises:
        ValueError: if the mechanism does not fit the model, or its positions cannot be extended.
    """

    def __init__(
        self,
        config: TransformerConfig,
        model_config: dict[str, Any],
        *,
        weights: Path | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        refuse_own_networks(config)
        if weights is not None:  # else a checkpoint has them, and this was said at its training
            warn_of_ignored(config)
            compare_with_saved(config, model_config)
        # random numbers of its own: at one seed every model and mechanism starts with one head
        seed = int(torch.randint(2**62, (), device="cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = make_model(model_config, weights).train()
            positions = num_positions(self.model)
            extended = max_length is not None and positions is not None and max_length > positions
            if max_length is not None and extended:
                huggingface.extend_positions(self.model, max_length)
            attached = _attach(self.model, config, model_config)
            if extended:
                attached += f", positions extended from {positions:,} to {max_length:,}"
        self.width: int = self.model.config.hidden_size
        self.converted = "clusterformer" in model_config
        # without a mechanism of ours: these say what a token sees in the model's own attention
        self._plain = [FullAttention(1, 1)] * self.model.config.num_hidden_layers
        self._pad: int = self.model.config.pad_token_id or 0
        taken = inspect.signature(self.model.forward).parameters
        kinds = getattr(self.model.config, "type_vocab_size", 0)  # GPT-2 takes them, and has none
        self._segments = "token_type_ids" in taken and kinds > 1
        self._options = without_cache(self.model)
        if config.freeze:
            for weight in self.pretrained_parameters():
                weight.requires_grad_(False)
        if weights is not None:
            self._describe(attached)

    def _describe(self, attached: str) -> None:
        config = self.model.config
        weights = sum(weight.numel() for weight in self.pretrained_parameters()) / 1e6
        _log.info(
            f"{type(self.model).__name__}: {weights:.1f} M pretrained weights, "
            f"{config.num_hidden_layers} layers of {config.num_attention_heads} heads, width "
            f"{self.width}, "
            f"attention {attached}"
        )

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        second: Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> StackOutput:
        """Encode rows of tokens.

        Args:
            tokens: (B, N).
            mask: (B, N), True at real tokens.
            second: (B, N), True at tokens of the second segment; None if there is one segment.
            states: List that gets the hidden states that each layer reads, and those behind all,
                (B, N, E) each.
        """
        tokens = tokens.masked_fill(~mask, self._pad)
        if not torch.compiler.is_compiling():  # a row without any token would give NaN
            first = torch.arange(mask.shape[1], device=mask.device) == 0
            mask = mask | (first & ~mask.any(1, keepdim=True))
        options: dict[str, Any] = dict(self._options)
        if second is not None and self._segments:
            options["token_type_ids"] = second.long()
        if states is not None:
            options["output_hidden_states"] = True
        with calls(self.model) as found:
            output = self.model(input_ids=tokens, attention_mask=mask, **options)
        if states is not None:
            states.extend(output.hidden_states)
        layers = [(call.core, call.grouping) for call in found]
        layers = layers or [(core, None) for core in self._plain]
        return StackOutput(
            output.last_hidden_state, [one for _, one in layers], [core for core, _ in layers]
        )

    def pretrained_parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the weights that were there before: all but those of mechanisms."""
        new = {
            id(weight)
            for part in self.model.modules()
            if isinstance(part, AttentionCore)
            for weight in part.parameters()
        }
        return (weight for weight in self.model.parameters() if id(weight) not in new)


def _attach(model: PreTrainedModel, config: TransformerConfig, model_config: dict[str, Any]) -> str:
    """Give a model its mechanism, and describe it; one that was saved with it keeps its own."""
    saved = model_config.get("clusterformer")
    if saved is not None:
        if not huggingface.is_attached(model):
            huggingface.attach(model, saved["mechanism"], **saved["options"])
        return f"{saved['mechanism']}, with which it was saved"
    kind, options = mechanism(config.attention)
    if kind is not FullAttention:
        huggingface.attach(model, kind, **options)
    return kind.__name__


class PretrainedClassifier(nn.Module):
    """A pretrained encoder, pooling over the tokens of a row, dropout and a linear map.

    A row is one text, or both texts of a pair, as the model's tokenizer joins them.

    Args:
        config: Pooling, and the dropout of the head.
        encoder: The encoder.
        num_labels: L.
    """

    def __init__(
        self, config: TransformerConfig, encoder: PretrainedEncoder, *, num_labels: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = config.pooling
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(encoder.width, num_labels)

    def forward(self, batch: TextInput, states: list[Tensor] | None = None) -> Output:
        """Logits (B, L) of rows (B, N).

        Args:
            batch: The rows.
            states: List that gets the hidden states that each layer reads, and those behind all,
                (B, N, E) each.
        """
        encoded = self.encoder(batch.tokens, batch.mask, getattr(batch, "second", None), states)
        row = pool(encoded.hidden, batch.mask, self.pooling)
        return Output(self.head(self.dropout(row)), encoded)


class PretrainedPairClassifier(nn.Module):
    """A pretrained encoder that reads both texts of a pair apart, and compares their vectors.

    Args:
        config: Pooling, and the dropout of the head.
        encoder: The encoder.
        num_labels: L.
    """

    def __init__(
        self, config: TransformerConfig, encoder: PretrainedEncoder, *, num_labels: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = config.pooling
        self.head = comparison_head(encoder.width, num_labels, config.dropout)

    def forward(self, batch: TextPairInput) -> Output:
        """Logits (B, L) of B pairs."""
        encoded = self.encoder(batch.tokens, batch.mask)
        u, v = pool(encoded.hidden, batch.mask, self.pooling).chunk(2)
        return Output(self.head(compare(u, v)), encoded)


class PretrainedSimilarity(nn.Module):
    """A pretrained encoder that reads both texts of a pair apart: the cosine of their vectors.

    Args:
        config: Pooling.
        encoder: The encoder.
    """

    def __init__(self, config: TransformerConfig, encoder: PretrainedEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = config.pooling

    def forward(self, batch: TextPairInput) -> Output:
        """Cosines (B, 1) of B pairs."""
        encoded = self.encoder(batch.tokens, batch.mask)
        u, v = pool(encoded.hidden.float(), batch.mask, self.pooling).chunk(2)
        return Output(F.cosine_similarity(u, v)[:, None], encoded)
