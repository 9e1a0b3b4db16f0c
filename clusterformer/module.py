"""ClusterFormer, the LightningModule: steps, optimiser, schedule and logging for any task.

Letters: B batch, N tokens, E model width.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer

from clusterformer import __version__, losses
from clusterformer.attention import AttentionCore, NeuralClusteringAttention
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.config import TransformerConfig
from clusterformer.task import Output, Task, stacks
from clusterformer.training.checkpoints import CHECKPOINT_KEY, begin_next_epoch
from clusterformer.training.evaluation import Evaluation
from clusterformer.training.nonfinite import first_nonfinite
from clusterformer.training.schedule import Schedule, factor


class ClusterFormer(LightningModule):
    """A Transformer whose attention may learn to cluster, trained on any `Task`.

    Examples:
        >>> model = ClusterFormer(FullAttention, d_model=64, num_layers=2)
        >>> Trainer(max_epochs=5, use_distributed_sampler=False).fit(model, Classification("mr"))

    Args:
        attention: Mechanism of every layer: a subclass of AttentionCore by its name, its options
            following it, or a function `(d_model, num_heads) -> AttentionCore`.
        d_model: E, width of the hidden states.
        num_heads: Attention heads a layer; divides d_model.
        num_layers: Layers of the encoder.
        d_ff: Width inside the feed-forward part; None for 4 * d_model.
        dropout: Probability of dropping a value, 0..1, where a Transformer does.
        norm: Layer norm before each part ("pre") or after it ("post", as in the paper).
        positions: How a token knows its place.
        rotary_base: Longest wavelength of rotary positions over 2 pi, tokens.
        outer_attention: Mechanism of all layers but the central one; none: `attention` too.
        pooling: How a classifier sums up the tokens.
        recompute: Compute the attention again in the backward pass: less memory, more time.
        decoder_attention: Mechanism of a decoder's layers, in its causal form; None: that of
            `attention`, which must then have one.
        cross_attention: Mechanism by which a decoder reads the encoder; None: FullAttention.
        lr: Peak learning rate of AdamW.
        weight_decay: Of the weights of linear layers alone.
        warmup: Steps of linear warm-up.
        schedule: What follows the warm-up.
        label_smoothing: Probability spread over all labels, 0..1.
        task_weight: lambda of eq. 17, weight of the task's loss.
        clustering_weight: mu of eq. 17, weight of the clustering loss L1 (eq. 6).
        sorting_weight: nu of eq. 17, weight of the sorting loss L2 (eq. 11).
        clustering_form: Of L1: "contrastive", or "bare" as in eq. 6.

    Attributes:
        config: YAML of the run, if the command line made it; goes into the checkpoint.
    """

    def __init__(
        self,
        attention: Callable[[int, int], AttentionCore] = NeuralClusteringAttention,
        *,
        d_model: int = 128,
        num_heads: int = 4,
        num_layers: int = 2,
        d_ff: int | None = None,
        dropout: float = 0.1,
        norm: Literal["pre", "post"] = "pre",
        positions: Literal["sinusoidal", "learned", "rotary", "none"] = "sinusoidal",
        rotary_base: float = 10_000.0,
        outer_attention: Callable[[int, int], AttentionCore] | None = None,
        pooling: Literal["mean", "max", "first"] = "mean",
        recompute: bool = False,
        decoder_attention: Callable[[int, int], AttentionCore] | None = None,
        cross_attention: Callable[[int, int], AttentionCore] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        warmup: int = 200,
        schedule: Schedule = "inverse-sqrt",
        label_smoothing: float = 0.0,
        task_weight: float = 1.0,
        clustering_weight: float = 0.02,
        sorting_weight: float = 0.0,
        clustering_form: losses.ClusteringForm = "contrastive",
    ) -> None:
        super().__init__()
        require_at_least(
            1,
            d_model=d_model,
            num_heads=num_heads,
            num_layers=num_layers,
            d_ff=d_ff,
            rotary_base=rotary_base,
        )
        require_at_least(
            0,
            warmup=warmup,
            task_weight=task_weight,
            clustering_weight=clustering_weight,
            sorting_weight=sorting_weight,
        )
        for name, share in (("dropout", dropout), ("label_smoothing", label_smoothing)):
            if not 0 <= share < 1:
                raise InputError(f"{name} must be from 0 to below 1, got {share}")
        if not task_weight + clustering_weight + sorting_weight:
            raise InputError(
                "one of task_weight, clustering_weight, sorting_weight must be above 0"
            )
        self.transformer_config = TransformerConfig(
            attention=attention,
            d_model=d_model,
            num_heads=num_heads,
            num_layers=num_layers,
            d_ff=d_ff or 4 * d_model,
            dropout=dropout,
            norm=norm,
            positions=positions,
            rotary_base=rotary_base,
            outer_attention=outer_attention,
            pooling=pooling,
            recompute=recompute,
            decoder_attention=decoder_attention,
            cross_attention=cross_attention,
        )
        self.lr = lr
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.schedule = schedule
        self.label_smoothing = label_smoothing
        self.task_weight = task_weight
        self.clustering_weight = clustering_weight
        self.sorting_weight = sorting_weight
        self.clustering_form = clustering_form
        self.config: str | None = None
        self.network: nn.Module | None = None
        self._seed = 0
        self._batch: Any = None

    @property
    def task(self) -> Task:
        """The task in training or evaluation."""
        task = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(task, Task):
            raise InputError(f"ClusterFormer trains a clusterformer.task.Task, got {task!r}")
        return task

    def setup(self, stage: str) -> None:
        accelerator = self.trainer._accelerator_connector
        if self.trainer.world_size > 1 and accelerator.use_distributed_sampler:
            raise InputError(
                "a task shares out its batches itself; give Trainer(use_distributed_sampler=False)"
            )
        if isinstance(self.trainer.strategy, DDPStrategy):
            # W and the centroids are unused where neither loss nor coupling reads them
            self.trainer.strategy._ddp_kwargs.setdefault("find_unused_parameters", True)

    def configure_model(self) -> None:
        if self.network is None:
            try:
                self.network = self.task.build(self.transformer_config)
            except InputError:
                raise
            except ValueError as error:
                raise InputError(str(error)) from error

    def forward(self, batch: Any) -> Output:
        """Run the network on a batch of the task."""
        assert self.network is not None
        return self.network(batch)

    def on_fit_start(self) -> None:
        if not self.trainer.ckpt_path:
            self._seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed each step from its place alone, so that a resumed run draws the same numbers."""
        place = [self._seed, self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0]))
        self._batch = batch

    def objective(self, task: Task, batch: Any) -> dict[str, tuple[Tensor, Tensor, float]]:
        """The parts of eq. 17 for a batch: sum, how many were summed, and weight of each."""
        output = self(batch)
        parts = {"loss": (*task.loss(output, batch, self.label_smoothing), self.task_weight)}
        if self.clustering_weight or self.sorting_weight:
            for stack in stacks(output, batch):
                clustering, sorting = losses.auxiliary(
                    stack.groupings, stack.mask, self.clustering_form
                )
                if clustering is None or sorting is None:
                    continue
                tokens, sequences = stack.mask.sum(), stack.mask.any(-1).sum()
                for name, summed, count, weight in (
                    ("clustering_loss", clustering, tokens, self.clustering_weight),
                    ("sorting_loss", sorting, sequences, self.sorting_weight),
                ):
                    before, counted, _ = parts.get(name, (0.0, 0, weight))
                    parts[name] = before + summed, counted + count, weight
        return parts

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        parts = self.objective(self.task, batch)
        # DDP averages gradients over processes; with sums over the counts of all processes that is
        # the gradient of the whole global batch, however it is shared out.
        sums = torch.stack([part.detach().float() for part, _, _ in parts.values()])
        counts = torch.stack([part.float() for _, part, _ in parts.values()])
        sums, counts = self.trainer.strategy.reduce(torch.stack([sums, counts]), reduce_op="sum")
        counts = counts.clamp(min=1)
        means = dict(zip(parts, sums / counts, strict=True))
        self.log("train/loss", means.pop("loss"), prog_bar=True, batch_size=1)
        self.log_dict({f"train/{name}": mean for name, mean in means.items()}, batch_size=1)
        self.log("train/lr", self.optimizers().param_groups[0]["lr"], batch_size=1)  # type: ignore[union-attr]
        shares = self.trainer.world_size / counts
        return torch.stack(
            [
                weight * share * part
                for (part, _, weight), share in zip(parts.values(), shares, strict=True)
                if weight
            ]
        ).sum()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Stop before a step that would spoil the weights, else clip as the trainer says."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = self.trainer.strategy.reduce(
            torch.nn.utils.get_total_norm(gradients), reduce_op="mean"
        )
        # with fp16, infinite gradients are the loss scaler's business
        if self.trainer.precision != "16-mixed" and not math.isfinite(norm):
            self._stop()
        self.log("train/gradient_norm", norm, batch_size=1)
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def _stop(self) -> None:
        assert self.network is not None
        with self.trainer.precision_plugin.forward_context():
            where = [first_nonfinite(self.network, self._batch)]
        if self.trainer.world_size > 1:
            found, where = where[0], [""] * self.trainer.world_size
            torch.distributed.all_gather_object(where, found)
            if self.global_rank:
                raise SystemExit(2)  # the first process says it for all
        # gradients are those of all processes, weights and outputs tell whose batch it was
        where.sort(key=lambda found: found.startswith("the gradient"))
        saved = [
            path
            for callback in self.trainer.checkpoint_callbacks
            if (path := getattr(callback, "last_model_path", ""))
        ]
        raise InputError(
            f"the loss is not finite at step {self.global_step} (epoch {self.current_epoch}): "
            f"NaN or infinity first in {where[0]}; last good checkpoint: "
            f"{saved[0] if saved else 'none'}; try a smaller model.lr or a longer model.warmup"
        )

    def on_validation_epoch_start(self) -> None:
        self._evaluation = Evaluation(self.task, self.device)

    def on_test_epoch_start(self) -> None:
        self._evaluation = Evaluation(self.task, self.device)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.network is not None
        self._evaluation.add(self.network, self(batch), batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, stage: str) -> None:
        for name, value in self._evaluation.compute().items():
            name = f"{stage}/{name}"
            # already over all processes: sync_dist changes nothing but Lightning's advice to set it
            self.log(name, value, sync_dist=True, prog_bar=name == self.task.monitor)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        decayed = {id(module.weight) for module in self.modules() if isinstance(module, nn.Linear)}
        parameters = [p for p in self.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if id(p) in decayed]},
            {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
        ]
        # Fused takes an eighth of the time on a CPU, but cannot be clipped under a loss scaler.
        scaled = self.trainer.precision == "16-mixed"
        try:
            optimizer = torch.optim.AdamW(
                groups, lr=self.lr, weight_decay=self.weight_decay, fused=not scaled
            )
            rate = factor(self.schedule, self.warmup, self._total_steps())
        except ValueError as error:
            raise InputError(str(error)) from error
        # Lightning takes every fused optimizer under autocast for one that has a scaler to undo.
        optimizer._step_supports_amp_scaling = False
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _total_steps(self) -> int | None:
        # Not trainer.estimated_stepping_batches: it makes the loader before progress is restored.
        limits = []
        if self.trainer.max_steps > 0:
            limits.append(self.trainer.max_steps)
        if self.schedule == "cosine" and (self.trainer.max_epochs or -1) > 0:
            batches: float = len(self.task.train_dataloader())
            limit = self.trainer.limit_train_batches
            batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
            epoch = math.ceil(batches / self.trainer.accumulate_grad_batches)
            limits.append(epoch * (self.trainer.max_epochs or 0))
        return min(limits) if limits else None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what prediction needs; plain values, so that the file loads with weights_only."""
        checkpoint[CHECKPOINT_KEY] = {
            "version": __version__,
            "config": self.config,
            "seed": self._seed,
            "kind": type(self.task).__name__,
            "task": self.task.state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if CHECKPOINT_KEY not in checkpoint:
            raise InputError("the checkpoint was not written by clusterformer")
        self._seed = checkpoint[CHECKPOINT_KEY]["seed"]
        if self.trainer.max_steps != -1:
            begin_next_epoch(checkpoint["loops"]["fit_loop"])
