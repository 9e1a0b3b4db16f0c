"""Time and memory of whole training steps, optimizer included."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from clusterformer.bench.mechanisms import run_layers
from clusterformer.bench.report import Row
from clusterformer.bench.step_memory import step_memory
from clusterformer.bench.subjects import DTYPES, Setting
from clusterformer.bench.timing import time_in_turns
from clusterformer.module import ClusterFormer
from clusterformer.task import Task

Maker = Callable[[], tuple[ClusterFormer, Task]]
"""Maker of a model and its task, picklable: a fresh process calls it too."""


def measure(
    makers: Mapping[str, Maker], *, dtype: str = "fp32", repeats: int = 7, memory: bool = True
) -> Iterator[Row]:
    """Measure a training step of each model on a batch of its longest texts, on the CPU.

    Args:
        makers: Name to the maker of a model and its task.
        dtype: "fp32", "bf16" or "fp16", for autocast.
        repeats: Measurements of each.
        memory: Whether to measure peak memory in fresh processes.

    Yields:
        One row for each model.
    """
    made = {name: training_step(*make(), dtype) for name, make in makers.items()}
    samples = time_in_turns({name: step for name, (step, _) in made.items()}, repeats, "cpu")
    for name, times in samples.items():
        batch, length = made[name][1]
        yield {
            "mechanism": name,
            "length": length,
            "batch": batch,
            "median_ms": statistics.median(times),
            "samples_ms": times,
            "peak_mib": (
                step_memory(_warm_up, partial(_make_step, makers[name], dtype), "cpu")
                if memory
                else None
            ),
        }


def training_step(
    model: ClusterFormer, task: Task, dtype: str = "fp32"
) -> tuple[Callable[[], None], tuple[int, ...]]:
    """Make a function that trains one step on a batch of the task's longest texts.

    Returns:
        The function, and the shape of the batch's tokens.
    """
    task.prepare_data()
    task.setup("fit")
    model.network = task.build(model.transformer_config)
    batch = max(task.train_dataloader(), key=lambda batch: batch.tokens.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=model.lr, fused=True)
    autocast = torch.autocast("cpu", DTYPES[dtype], enabled=dtype != "fp32")

    def step() -> None:
        with autocast:
            parts = model.objective(task, batch).values()
        optimizer.zero_grad()
        torch.stack([weight * total / count for total, count, weight in parts]).sum().backward()
        optimizer.step()

    return step, tuple(batch.tokens.shape)


def _make_step(make: Maker, dtype: str) -> Callable[[], None]:
    return training_step(*make(), dtype)[0]


def _warm_up() -> None:
    run_layers(["FullAttention", "neural"], Setting(length=64, tokens=64, d_model=16, num_heads=2))
