"""Time and memory of whole training steps, optimizer included."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from clusterformer.bench.mechanisms import run_layers
from clusterformer.bench.report import Row
from clusterformer.bench.step_memory import step_memory
from clusterformer.bench.step_parts import PartTimes
from clusterformer.bench.subjects import DTYPES, Setting
from clusterformer.bench.timing import clock, time_in_turns
from clusterformer.errors import making
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training.optimizer import make_optimizer

Maker = Callable[[], tuple[ClusterFormer, Task]]
"""Maker of a model and its task, picklable: a fresh process calls it too."""


def measure(
    makers: Mapping[str, Maker],
    *,
    dtype: str = "fp32",
    repeats: int = 7,
    memory: bool = True,
    report: Callable[[str, Mapping[str, float]], None] | None = None,
) -> Iterator[Row]:
    """Measure a training step of each model on a batch of its longest texts, on the CPU.

    Args:
        makers: Name to the maker of a model and its task.
        dtype: "fp32", "bf16" or "fp16", for autocast.
        repeats: Measurements of each.
        memory: Whether to measure peak memory in fresh processes.
        report: Function that gets the times of each turn, since rows come after the last one.

    Yields:
        One row for each model. "attention_ms" and "optimizer_ms" are parts of its step (see
        `PartTimes`), the former None where a pretrained model keeps its own attention. "data_ms"
        is the mean time of making a batch, which is no part of it. "keys_seen" is the share of the
        tokens of its text that a token attends to, mean over layers; None where no layer says.
    """
    made = {name: TrainingStep(*make(), dtype) for name, make in makers.items()}
    samples = time_in_turns(made, repeats, "cpu", report=report)
    for name, times in samples.items():
        step = made[name]
        batch, length = step.shape
        yield {
            "mechanism": name,
            "length": length,
            "batch": batch,
            "median_ms": statistics.median(times),
            "samples_ms": times,
            **step.median_parts(repeats),
            "data_ms": step.data_ms,
            "keys_seen": step.keys_seen(),
            "peak_mib": (
                step_memory(_warm_up, partial(_make_step, makers[name], dtype), "cpu")
                if memory
                else None
            ),
        }


class TrainingStep:
    """A training step on a batch of the task's longest texts; a call takes it.

    Attributes:
        shape: Texts, and tokens of the longest; frames that an encoder of speech reads.
        data_ms: Mean time of making a batch of the training data, in milliseconds.
    """

    def __init__(self, model: ClusterFormer, task: Task, dtype: str = "fp32") -> None:
        task.prepare_data()
        task.setup("fit")
        with making("the network"):
            model.network = task.build(model.transformer_config)
        self.model, self.task = model, task
        begun, batches = clock(), task.train_dataloader()
        self.batch = max(batches, key=lambda batch: batch.mask.shape[1])
        self.data_ms = (clock() - begun) * 1e3 / len(batches)
        self.shape = tuple(self.batch.mask.shape)
        self.optimizer = make_optimizer(
            model, model.optimizer, lr=model.lr, pretrained_lr=model.pretrained_lr,
            weight_decay=model.weight_decay, betas=model.betas,
        )  # fmt: skip
        self.autocast = torch.autocast("cpu", DTYPES[dtype], enabled=dtype != "fp32")
        self.parts = PartTimes(model, self.optimizer)
        self._taken: list[dict[str, float]] = []

    def __call__(self) -> None:
        """Take a step."""
        self.parts.clear()
        with self.autocast:
            parts = self.model.objective(self.task, self.batch).values()
        self.optimizer.zero_grad()
        torch.stack([weight * total / count for total, count, weight in parts]).sum().backward()
        self.optimizer.step()
        self._taken.append(self.parts.milliseconds)

    def median_parts(self, steps: int) -> Row:
        """Compute the median times of attention and the optimizer in the last `steps` steps."""
        last = self._taken[-steps:]
        parts = {f"{part}_ms": statistics.median(row[part] for row in last) for part in last[0]}
        return parts if self.parts.sees_attention else parts | {"attention_ms": None}

    @torch.no_grad()
    def keys_seen(self) -> float | None:
        """Measure the share of its text that a token of the batch attends to, in a training pass.

        None where no layer says what it sees.
        """
        with self.autocast:
            parts = self.model.objective(self.task, self.batch, measure=True)
        if "keys_seen" not in parts:
            return None
        total, count, _ = parts["keys_seen"]
        return float(total / count)


def _make_step(make: Maker, dtype: str) -> TrainingStep:
    return TrainingStep(*make(), dtype)


def _warm_up() -> None:
    run_layers(["FullAttention", "neural"], Setting(length=64, tokens=64, d_model=16, num_heads=2))
