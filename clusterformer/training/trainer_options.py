"""Options of the trainer that Lightning itself does not check, or only in the middle of a run."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities import rank_zero_only

from clusterformer.errors import InputError, require_at_least
from clusterformer.training.fully_sharded import check_sharding

_log = logging.getLogger(__name__)

MINIMUMS = {
    "max_epochs": -1,
    "min_epochs": 0,
    "max_steps": -1,
    "min_steps": 0,
    "num_nodes": 1,
    "fast_dev_run": 0,
    "num_sanity_val_steps": -1,
    "gradient_clip_val": 0,
    "val_check_interval": 0,
    "log_every_n_steps": 0,
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "reload_dataloaders_every_n_epochs": 0,
}

_AVERAGE = "--average N averages the weights of the last N validations"

REPLACING_CALLBACKS = {
    "WeightAveraging": _AVERAGE,
    "EMAWeightAveraging": _AVERAGE,
    "BatchSizeFinder": "set --data.batch_size or --data.tokens_per_batch",
    "LearningRateFinder": "`compare` trains a grid of --model.lr",
    "SpikeDetection": "a loss that is not finite ends the training without it",
    "StochasticWeightAveraging": _AVERAGE,
}
"""Callbacks of Lightning that would replace what the module does itself, and what to use."""

_UNTRAINABLE = ("spawn", "fork", "notebook", "xla", "tpu")
"""Words in names of Lightning's strategies that start processes in which no run can be, or need
hardware that no run has seen."""

MAX_DEVICES = max(64, os.cpu_count() or 1)
"""Maximum number of processes of one machine; Lightning would start any number."""


def check_trainer_options(options: Mapping[str, Any]) -> None:
    """Refuse options of Lightning's Trainer that make no sense.

    Raises:
        InputError: for the first such option.
    """
    for name, minimum in MINIMUMS.items():
        value = options.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):  # fast_dev_run: true
            require_at_least(minimum, **{f"trainer.{name}": value})
    for name in ("max_epochs", "max_steps", "limit_train_batches", "val_check_interval"):
        if options.get(name) == 0:
            raise InputError(f"trainer.{name} must be above 0, got 0")
    if options.get("barebones"):
        raise InputError(
            "trainer.barebones cannot be used, a run writes its metrics and checkpoints; "
            "trainer.fast_dev_run N trains on N batches and writes nothing"
        )
    if options.get("overfit_batches"):
        raise InputError(
            "trainer.overfit_batches cannot be used, a task orders its batches itself; "
            "trainer.limit_train_batches N trains on N batches"
        )
    for callback in options.get("callbacks") or ():
        if advice := REPLACING_CALLBACKS.get(name := type(callback).__name__):
            raise InputError(f"trainer.callbacks: {name} cannot be used; {advice}")
    check_sharding(options.get("strategy"), options.get("precision"))
    _check_strategy(options.get("strategy"))
    devices = str(options.get("devices"))  # Lightning takes "2" for 2
    if devices.isdecimal() and int(devices) > MAX_DEVICES:
        raise InputError(f"trainer.devices must be at most {MAX_DEVICES}, got {devices}")


def _check_strategy(strategy: object) -> None:
    """Refuse a name of no strategy, or of one by which no run trains; a class is the user's own."""
    if not isinstance(strategy, str) or "." in strategy:
        return
    name = strategy.lower()
    there = name in ("auto", *StrategyRegistry.available_strategies())
    if not there or any(word in name for word in _UNTRAINABLE):
        raise InputError(
            "trainer.strategy must be auto, ddp, fsdp2, fsdp2_sharded_checkpoint or "
            f"sequence_parallel, got {strategy!r}"
        )


def refuse_no_time(trainer: Trainer) -> None:
    """Refuse a `trainer.max_time`, or a Timer, that ends a training before its first step.

    Raises:
        InputError: if there is one.
    """
    for timer in trainer.callbacks:  # type: ignore[attr-defined]
        left = timer.time_remaining() if isinstance(timer, Timer) else None
        if left is not None and left <= 0:
            raise InputError(f"trainer.max_time must be above 0, got {timedelta(seconds=left)}")


def warn_of_slow_bfloat16(trainer: Trainer) -> None:
    """Warn of bfloat16 on a CPU on which oneDNN has no product of it: PyTorch's own is far slower.

    Measured on a CPU with AVX2 alone: a product of matrices took 39 times that in float32.
    """
    if trainer.strategy.root_device.type == "cpu" and is_slow_on_cpu(trainer.precision):
        rank_zero_only(_log.warning)(
            "trainer.precision %s %s; add --trainer.precision 32-true", trainer.precision, SLOW
        )


SLOW = "is many times slower than 32-true on this CPU, which has no instructions for it"
"""What `is_slow_on_cpu` says of a precision, for messages."""


def is_slow_on_cpu(precision: str) -> bool:
    """Tell whether a precision of the trainer is bfloat16, and this CPU has no product of it."""
    return (
        precision.startswith("bf16")
        and torch.backends.mkldnn.is_available()
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def check_nodes(trainer: Trainer) -> None:
    """Refuse several nodes that could not meet; say what a node waits for that was started by hand.

    torchrun, Slurm and others start all nodes, and check their number.

    Raises:
        InputError: if no launcher starts the nodes, and none is told where to meet the others.
    """
    environment = trainer._accelerator_connector.cluster_environment
    if trainer.num_nodes == 1 or type(environment) is not LightningEnvironment:
        return
    if "MASTER_PORT" not in os.environ:
        raise InputError(
            f"trainer.num_nodes {trainer.num_nodes}: nothing starts the other nodes; start all by "
            f"srun or torchrun --nnodes {trainer.num_nodes}, or each by hand with MASTER_ADDR, "
            "MASTER_PORT and NODE_RANK set"
        )
    if environment.local_rank() == 0:  # of every node: each has a terminal of its own
        print(
            f"node {environment.node_rank()} of {trainer.num_nodes} (NODE_RANK, from 0): work "
            "begins once all nodes have met at "
            f"{environment.main_address}:{environment.main_port}",
            file=sys.stderr,
            flush=True,
        )


_RANKS = ("RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""Variables by which launchers tell a process its rank among all, so that Lightning knows it."""


def know_node_by_hand(num_nodes: int) -> None:
    """Let a process of a node that was started by hand know that it is not the first of all.

    Without a launcher only the trainer finds it, after the run directory is made.

    Args:
        num_nodes: Number of nodes.

    Raises:
        InputError: if NODE_RANK is no number of a node.
    """
    node = os.environ.get("NODE_RANK")
    if node is None or num_nodes == 1 or any(name in os.environ for name in _RANKS):
        return
    if not node.isdecimal() or int(node) >= num_nodes:
        raise InputError(f"NODE_RANK must be from 0 to {num_nodes - 1}, got {node!r}")
    rank_zero_only.rank = rank_zero_only.rank or int(node)  # type: ignore[attr-defined]
