"""ClusterFormer, the LightningModule: steps, optimiser, schedule and logging for any task.

B batch   N tokens   E model width
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.compile import to_uncompiled
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer

from clusterformer import __version__, losses
from clusterformer.attention import AttentionCore, NeuralClusteringAttention
from clusterformer.data.batches import run_seed
from clusterformer.errors import InputError, require_at_least, require_one_of, require_share
from clusterformer.findings import Findings
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained_options import PRETRAINED_LR, refuse_without_pretrained
from clusterformer.stack_groupings import keys_seen, stacks
from clusterformer.task import Output, Task
from clusterformer.training.calibrated import calibrate_task
from clusterformer.training.checkpoints import CHECKPOINT_KEY
from clusterformer.training.evaluation import Evaluation
from clusterformer.training.fully_sharded import FullyShardedStrategy
from clusterformer.training.learnt import Start, start_task
from clusterformer.training.loop_progress import begin_next_epoch, continue_epoch
from clusterformer.training.nonfinite import TrainedBatch, nonfinite_error, skips_step
from clusterformer.training.optimizer import (
    OptimizerName,
    apply_options,
    gradient_norm,
    make_optimizer,
    plan_schedule,
)
from clusterformer.training.schedule import Schedule
from clusterformer.training.shared_sequences import SharedSequenceStrategy


class ClusterFormer(LightningModule):
    """A Transformer whose attention may learn to cluster, trained on any `Task`.

    Examples:
        >>> model = ClusterFormer(FullAttention, d_model=64, num_layers=2)
        >>> Trainer(max_epochs=5, use_distributed_sampler=False).fit(model, Classification("mr"))

    Args:
        attention: Mechanism of every layer: a subclass of AttentionCore (its name, with options
            beside it, in a configuration), or a function `(d_model, num_heads) -> AttentionCore`.
        d_model: Width E of the hidden states.
        num_heads: Number of attention heads of a layer; must divide d_model.
        num_layers: Number of layers of an encoder, and of a decoder.
        d_ff: Width inside the feed-forward parts; 4 * d_model by default.
        dropout: Probability of dropping a value, from 0 to below 1.
        norm: Layer norm before each part of a layer ("pre") or after it ("post", as in the paper).
        positions: Kind of positions that tokens are given.
        rotary_base: Longest wavelength of rotary positions over 2 pi, in tokens.
        short_convolution: Number of tokens, the token itself and those before it, that a
            convolution mixes before each self-attention; 0 for none.
        query_scale: Factor on the queries of self-attention. No weight depends on it: a test on
            longer texts may set log(length) / log(length in training) (`MultiHeadAttention`).
        outer_attention: Mechanism of all layers but the central one; `attention` by default.
        pooling: Reduction of a text's tokens to one vector, in classifiers.
        recompute: Recomputation of attention in the backward pass: less memory, more time.
        decoder_attention: Mechanism of a decoder's layers, in its causal form; `attention` by
            default, which must then have one.
        cross_attention: Mechanism by which a decoder reads the encoder; FullAttention by default.
        pretrained: Pretrained model of transformers to start from: its name at huggingface.co, or
            its folder. It decides on widths, layers and positions, and brings its tokenizer.
        init_from: Run of any task to start from: its directory, a checkpoint or an export. Layers,
            embeddings and tokenizer come from it, and all are trained with `lr`; a report says what
            was taken.
        freeze: Whether the weights of `pretrained` stay as they are; all others are trained.
        calibration_texts: Number of training texts to which the clusters of `pretrained` are fitted
            before the training, so that it starts near its own attention; 0 for random clusters.
        optimizer: "AdamW", or "RAdam", by which clustered attention's models were trained.
        lr: Peak learning rate.
        pretrained_lr: Peak learning rate of the weights of `pretrained`; `lr` is that of the rest.
        weight_decay: Weight decay of linear layers' weights.
        warmup: Linear warm-up: number of steps, or below 1 a share of all steps of the training.
        schedule: Learning-rate schedule after the warm-up.
        lr_floor: Share of the peak learning rate at which the schedule "cosine" ends.
        betas: Decays of the optimiser's moving averages of the gradient and of its square.
        label_smoothing: Probability spread over all labels, from 0 to below 1.
        task_weight: Weight of the task's loss, lambda of eq. 17.
        clustering_weight: Weight of the clustering loss L1 (eq. 6), mu of eq. 17.
        sorting_weight: Weight of the sorting loss L2 (eq. 11), nu of eq. 17.
        clustering_form: Form of the clustering loss: "contrastive"; "bare" as in eq. 6, without a
            lower bound if the similarity is the inner product; "bounded", eq. 6 and 11 by cosine.

    Attributes:
        config: YAML of the run, if the command line made it; saved in the checkpoint.
        transformer_config: Configuration handed to every layer.
        network: The task's network, once the trainer has built it.
        findings: Results of the latest test beyond its measures; None without a test.
        start: Report of what came from `init_from`.
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
        short_convolution: int = 0,
        query_scale: float = 1.0,
        outer_attention: Callable[[int, int], AttentionCore] | None = None,
        pooling: Literal["mean", "max", "first"] = "mean",
        recompute: bool = False,
        decoder_attention: Callable[[int, int], AttentionCore] | None = None,
        cross_attention: Callable[[int, int], AttentionCore] | None = None,
        pretrained: str | None = None,
        init_from: str | None = None,
        freeze: bool = False,
        calibration_texts: int = 300,
        optimizer: OptimizerName = "AdamW",
        lr: float = 1e-3,
        pretrained_lr: float = PRETRAINED_LR,
        weight_decay: float = 0.01,
        warmup: int | float = 0.1,
        schedule: Schedule = "inverse-sqrt",
        lr_floor: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        label_smoothing: float = 0.0,
        task_weight: float = 1.0,
        clustering_weight: float = 0.02,
        sorting_weight: float = 0.0,
        clustering_form: losses.ClusteringForm = "contrastive",
    ) -> None:
        super().__init__()
        require_at_least(0, lr=lr, pretrained_lr=pretrained_lr, weight_decay=weight_decay)
        require_at_least(0, warmup=warmup, task_weight=task_weight)
        require_at_least(0, clustering_weight=clustering_weight, sorting_weight=sorting_weight)
        require_share(label_smoothing=label_smoothing, lr_floor=lr_floor)
        require_one_of(get_args(OptimizerName), optimizer=optimizer)
        require_share(**{f"betas[{number}]": beta for number, beta in enumerate(betas)})
        if warmup >= 1 and warmup != int(warmup):
            raise InputError(f"warmup is a share below 1 or a number of steps, got {warmup}")
        if not task_weight + clustering_weight + sorting_weight:
            raise InputError(
                "one of task_weight, clustering_weight, sorting_weight must be above 0"
            )
        self.transformer_config = TransformerConfig(
            attention=attention,
            d_model=d_model,
            num_heads=num_heads,
            num_layers=num_layers,
            d_ff=4 * d_model if d_ff is None else d_ff,
            dropout=dropout,
            norm=norm,
            positions=positions,
            rotary_base=rotary_base,
            short_convolution=short_convolution,
            query_scale=query_scale,
            outer_attention=outer_attention,
            pooling=pooling,
            recompute=recompute,
            decoder_attention=decoder_attention,
            cross_attention=cross_attention,
            pretrained=pretrained,
            freeze=freeze,
            calibration_texts=calibration_texts,
            init_from=init_from,
        )
        self.optimizer = optimizer
        self.lr = lr
        self.pretrained_lr = pretrained_lr
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.schedule = schedule
        self.lr_floor = lr_floor
        self.betas = betas
        self.label_smoothing = label_smoothing
        self.task_weight = task_weight
        self.clustering_weight = clustering_weight
        self.sorting_weight = sorting_weight
        self.clustering_form = clustering_form
        self.config: str | None = None
        self.network: nn.Module | None = None
        self.findings: Findings | None = None
        self.start: Start | None = None
        self._seed = 0
        self._trained: list[TrainedBatch] = []  # in the step that is under way

    @property
    def task(self) -> Task:
        """The task in training or evaluation.

        Raises:
            InputError: if the trainer was given anything else.
        """
        task = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(task, Task):
            raise InputError(f"ClusterFormer trains a clusterformer.task.Task, got {task!r}")
        return task

    def setup(self, stage: str) -> None:
        """Check options against the task and the trainer.

        Raises:
            InputError: for the first one that does not fit.
        """
        if self._compiler_ctx is not None:
            to_uncompiled(self)  # the trainer has put the compiled steps into this module
            raise InputError(
                "torch.compile cannot follow the steps of a training; give the trainer the module "
                "itself, and compile its network in a callback: pl_module.network.compile()"
            )
        if stage == "fit" and not self.trainer.ckpt_path:  # older runs with them go on
            refuse_without_pretrained(self.transformer_config, self.pretrained_lr)
        if stage == "fit" and self.label_smoothing and not self.task.smooths_labels:
            raise InputError(
                f"label_smoothing is for losses over labels, and {type(self.task).__name__} has "
                f"another one; set it to 0, got {self.label_smoothing}"
            )
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
            with torch.device("cpu"):  # a seed gives the same weights on every device
                self._build()
        assert self.network is not None
        if isinstance(self.trainer.strategy, FullyShardedStrategy | SharedSequenceStrategy):
            self.trainer.strategy.divide(self.network)

    def _build(self) -> None:
        """Make the network, and what it starts from.

        Raises:
            InputError: if an option does not fit the network.
        """
        try:
            self.task.pretrained = self.transformer_config.pretrained
            self.network = self.task.build(self.transformer_config)
        except ValueError as error:
            raise InputError(str(error)) from error
        attached = (self.network, self.task, self.trainer, self.transformer_config)
        self.start = start_task(*attached)
        calibrate_task(*attached)

    def forward(self, batch: Any) -> Output:
        """Run the network on a batch of the task."""
        assert self.network is not None
        return self.network(batch)

    def on_fit_start(self) -> None:
        if not self.trainer.ckpt_path:
            self._seed = run_seed()

    def on_train_start(self) -> None:
        """Apply the optimiser's options of this run, where a checkpoint brought others."""
        for config in self.trainer.lr_scheduler_configs:
            assert isinstance(config.scheduler, torch.optim.lr_scheduler.LambdaLR)
            apply_options(config.scheduler, self.lr, self.pretrained_lr)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed each step by its number, so that a resumed run draws the same numbers."""
        # Lightning 2.6 counts a step more or less after some resumes; logs stand under this number.
        self.trainer.fit_loop.epoch_loop._batches_that_stepped = self.global_step
        entropy = [self._seed, self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]))

    def objective(
        self, task: Task, batch: Any, *, measure: bool = False
    ) -> dict[str, tuple[Tensor, Tensor, float]]:
        """Parts of eq. 17 for a batch: the sum of each, the number of its terms, and its weight.

        Args:
            task: Task with the loss.
            batch: One of its batches.
            measure: Add `keys_seen`, of weight 0.
        """
        output = self(batch)
        parts = {"loss": (*task.loss(output, batch, self.label_smoothing), self.task_weight)}

        def add(name: str, summed: Tensor, count: Tensor, weight: float) -> None:
            before, counted, _ = parts.get(name, (0.0, 0, weight))
            parts[name] = before + summed, counted + count, weight

        found = stacks(output, batch)
        if self.clustering_weight or self.sorting_weight:
            for stack in found:
                clustering, sorting = stack.auxiliary(self.clustering_form)
                if clustering is not None and sorting is not None:
                    add("clustering_loss", clustering, stack.mask.sum(), self.clustering_weight)
                    add("sorting_loss", sorting, stack.sequences.sum(), self.sorting_weight)
        for stack in found:
            if (own := losses.mechanism_loss(stack.groupings)) is not None:
                add("mechanism_loss", own, stack.mask.sum(), 1.0)
        if measure and (seen := keys_seen(found)):
            parts["keys_seen"] = (*seen, 0.0)
        return parts

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logged = self.trainer._logger_connector.should_update_logs
        parts = self.objective(self.task, batch, measure=logged)
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
        weighted = [
            weight * share * part
            for (part, _, weight), share in zip(parts.values(), shares, strict=True)
            if weight
        ]
        if not weighted:
            raise InputError(
                "task_weight is 0, and no layer has a clustering loss: nothing would be learnt"
            )
        weights = (weight for _, _, weight in parts.values())
        trained = [part for part, weight in zip(sums, weights, strict=True) if weight]
        self._trained.append(TrainedBatch(batch, trained))
        return torch.stack(weighted).sum()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Stop before a step that would spoil the weights, else clip as the trainer says.

        Raises:
            InputError: if a gradient is not finite; with the layer and the step.
        """
        norm = gradient_norm(self)
        trained, self._trained = self._trained, []
        if not math.isfinite(norm) and not skips_step(self.trainer, trained):
            assert self.network is not None
            raise nonfinite_error(self, self.network, trained)
        self.log("train/gradient_norm", norm, batch_size=1)
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_validation_epoch_start(self) -> None:
        self._evaluation = Evaluation(self.task, self.device)

    def on_test_epoch_start(self) -> None:
        self._evaluation = Evaluation(self.task, self.device, self.task.report())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert self.network is not None
        self._evaluation.add(self.network, self(batch), batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")
        del self._evaluation

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")
        self.findings = self._evaluation.findings()
        del self._evaluation  # it refers to the data, and could not be pickled

    def _log_evaluation(self, stage: str) -> None:
        for name, value in self._evaluation.compute().items():
            name = f"{stage}/{name}"
            # already over all processes: sync_dist changes nothing but Lightning's advice to set it
            self.log(name, value, sync_dist=True, prog_bar=name == self.task.monitor)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = make_optimizer(
            self, self.optimizer, lr=self.lr, pretrained_lr=self.pretrained_lr,
            weight_decay=self.weight_decay, betas=self.betas,
            fused=self.trainer.precision != "16-mixed",  # cannot be clipped under a loss scaler
        )  # fmt: skip
        return plan_schedule(
            optimizer, self.trainer, self.schedule, warmup=self.warmup, floor=self.lr_floor
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what prediction needs; plain values, so that the file loads with weights_only."""
        checkpoint[CHECKPOINT_KEY] = {
            "version": __version__,
            "config": self.config,
            "seed": self._seed,
            "kind": type(self.task).__name__,
            "mode": self.task.mode,
            "task": self.task.state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if CHECKPOINT_KEY not in checkpoint:
            raise InputError("the checkpoint was not written by clusterformer")
        self._seed = checkpoint[CHECKPOINT_KEY]["seed"]
        loop = checkpoint["loops"]["fit_loop"]
        continue_epoch(loop)
        if self.trainer.max_steps != -1:
            begin_next_epoch(loop)
