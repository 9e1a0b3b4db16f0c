"""Test of causality: replace later inputs, and count the earlier outputs that change.

Letters: B batch, N tokens, E model width, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, MultiHeadAttention
from clusterformer.task import Task
from clusterformer.training.shared_sequences import sequence_size

_log = logging.getLogger(__name__)

_ROUNDING = 1e-3
"""Largest change, relative to the largest output, that is rounding: other chunks are summed in
another order."""

_VOCABULARY, _WIDTH, _LAYERS = 8, 32, 2  # of the language model of random tokens


class Leak(NamedTuple):
    """Result of a probe.

    Attributes:
        changed: Positions before the cuts whose output changed.
        positions: Positions before the cuts.
    """

    changed: int
    positions: int

    @property
    def share(self) -> float:
        """Share of earlier positions that changed, 0..1."""
        return self.changed / max(1, self.positions)


def probe(outputs: Callable[[Tensor], Tensor], inputs: Tensor) -> Leak:
    """Replace all inputs from a cut on, and count the outputs before the cut that change.

    The cuts are a quarter, half and three quarters of N. With a causal mechanism no output changes,
    through selection, sorting or chunk borders either. Gradients cannot show such leaks: sorting
    has none.

    Args:
        outputs: Maps inputs to outputs (B, N, ...), without dropout.
        inputs: (B, N) tokens, replaced by others of the batch; or (B, N, E), replaced by noise.
    """
    length = inputs.shape[1]
    # of a short text some are the same: processes that divide a network read as often as each other
    cuts = [max(1, length * part // 4) for part in (1, 2, 3)]
    generator = torch.Generator().manual_seed(0)
    expected = outputs(inputs).float()
    allowed = _ROUNDING * expected.abs().max()
    changed = positions = 0
    for cut in cuts:
        suffix = inputs[:, cut:]
        if inputs.is_floating_point():
            noise = torch.randn(suffix.shape, generator=generator).to(suffix)
            suffix = noise * inputs.std()
        else:
            chosen = torch.randint(inputs.numel(), suffix.shape, generator=generator)
            suffix = inputs.flatten()[chosen.to(inputs.device)]
        found = outputs(torch.cat([inputs[:, :cut], suffix], 1)).float()
        moved = ((found - expected)[:, :cut].abs() > allowed)[..., None].flatten(2).any(-1)
        changed += int(moved.sum())
        positions += moved.numel()
    return Leak(changed, positions)


@torch.no_grad()
def probe_core(core: AttentionCore, length: int) -> Leak:
    """Probe a mechanism in a layer with random projections on random inputs."""
    layer = MultiHeadAttention(core).eval()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, length, core.d_model, generator=generator)
    return probe(lambda x: layer(x).values, inputs)


class _RandomTokens(nn.Module):
    """A language model: embedding, attention layers with residuals, and a feed-forward head."""

    def __init__(self, cores: list[AttentionCore]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.layers = nn.ModuleList(MultiHeadAttention(core) for core in cores)
        self.head = nn.Sequential(
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.ReLU(),
            nn.Linear(4 * _WIDTH, _VOCABULARY),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, x.shape[-1:])).values
        return self.head(x)


def loss_on_random_tokens(
    make: Callable[[int, int], AttentionCore], *, length: int = 64, steps: int = 300
) -> tuple[float, float]:
    """Train a small language model on random tokens, new ones in each step.

    The next token cannot be predicted: a loss below ln V shows a model that reads it.

    Args:
        make: Makes a causal mechanism from (d_model, num_heads).
        length: N, tokens of a sequence.
        steps: Training steps; the loss of the second half is measured.

    Returns:
        Mean loss in nats, and the number of standard errors by which it is below ln V.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _RandomTokens([make(_WIDTH, 4) for _ in range(_LAYERS)])
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(steps):
            tokens = torch.randint(_VOCABULARY, (16, length))
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    measured = torch.stack(losses[steps // 2 :])
    error = measured.std() / math.sqrt(len(measured))
    return float(measured.mean()), float((math.log(_VOCABULARY) - measured.mean()) / error)


class CausalityProbe(Callback):
    """A callback that probes the network on a batch before each validation, and warns of a leak.

    It logs `causality/leak`, the share of earlier positions that changed, in the first batches of
    all processes: 0 of a causal network. Only tasks with a `causal_input` are probed.
    """

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        task = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(task, Task) or task.causal_input is None or sequence_size(trainer) > 1:
            return
        loaders = trainer.val_dataloaders
        assert loaders is not None
        batch = next(iter(loaders[0] if isinstance(loaders, list) else loaders))
        batch = module.transfer_batch_to_device(batch, module.device, 0)
        field = task.causal_input
        with torch.no_grad():  # in full precision, where no rounding looks like a leak
            leak = probe(
                lambda tokens: module(batch._replace(**{field: tokens})).logits,
                getattr(batch, field),
            )
        found = torch.tensor(leak, device=module.device)
        leak = Leak(*trainer.strategy.reduce(found, reduce_op="sum").tolist())
        module.log("causality/leak", leak.share, sync_dist=True)  # against Lightning's advice only
        if leak.changed:
            _log.warning(
                "the model is not causal: later tokens changed %d of %d earlier outputs; "
                "take a mechanism with causal=True",
                *leak,
            )
