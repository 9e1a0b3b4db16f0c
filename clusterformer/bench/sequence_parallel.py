"""Memory, time, traffic and equality of a layer whose sequence several processes share.

N tokens   n tokens of a process   E model width   P processes
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from clusterformer.attention import FullAttention, MultiHeadAttention, NeuralClusteringAttention
from clusterformer.bench.fresh_process import interrupts_blocked
from clusterformer.bench.report import Row
from clusterformer.errors import InputError
from clusterformer.sequence_parallel import SequenceGroup, parallelize, sum_gradients
from clusterformer.training import memory

MECHANISMS = ("neural clustering", "full attention")
RING_TENSORS = 6
"""Tensors (n, E) that ring attention passes to each other process: keys and values forward; keys,
values and their gradients backward (Liu et al., "Ring Attention", 2023)."""


class ParallelSetting(NamedTuple):
    """One layer to measure.

    Attributes:
        mechanism: One of MECHANISMS.
        length: N.
        d_model: E.
        num_heads: Attention heads.
        num_clusters: Clusters of neural clustering, which has as many blocks.
        causal: Whether attention is strictly causal.
        repeats: Steps that are measured.
    """

    mechanism: str
    length: int
    d_model: int
    num_heads: int
    num_clusters: int
    causal: bool
    repeats: int


def measure(setting: ParallelSetting, processes: int) -> Row:
    """Measure forward and backward of one layer in one process, and shared by several.

    Every process is fresh. The largest growth of resident memory over a step counts, and the
    process that sends most.

    Raises:
        InputError: if a process fails, or this system does not tell the memory of a process.
    """
    with tempfile.TemporaryDirectory() as folder:
        (in_one,) = _run(setting, 1, Path(folder))
        together = _run(setting, processes, Path(folder))
        error = _largest_error(Path(folder), processes)
    alone, peak = in_one["peak_mib"], max(part["peak_mib"] for part in together)
    share = -(-setting.length // processes)
    return {
        **setting._asdict(),
        "processes": processes,
        "largest_difference": error,
        "peak_mib_alone": alone,
        "peak_mib": peak,
        "peak_ratio": peak / alone if alone else None,  # a short sequence needs no new page
        "seconds_alone": in_one["seconds"],
        "seconds": max(part["seconds"] for part in together),
        "sent_mib": max(part["bytes_sent"] for part in together) / memory.MIB,
        "ring_mib": (processes - 1) * RING_TENSORS * share * setting.d_model * 4 / memory.MIB,
    }


def _run(setting: ParallelSetting, processes: int, folder: Path) -> list[dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    results: Queue[dict[str, float]] = context.Queue()
    children = [
        context.Process(target=_measure, args=(setting, rank, processes, folder, results))
        for rank in range(processes)
    ]
    with interrupts_blocked():
        for child in children:
            child.start()
    try:
        for child in children:
            child.join()
    except BaseException:  # an interrupt
        for child in children:
            child.terminate()
        raise
    if any(child.exitcode for child in children):
        raise InputError("a process that measures ended early, see above")
    return [results.get() for _ in children]


def _measure(
    setting: ParallelSetting,
    rank: int,
    processes: int,
    folder: Path,
    results: Queue[dict[str, float]],
) -> None:
    import_module("torch._dynamo")  # custom operations import it at their first call
    torch.set_num_threads(1)
    layer = _layer(setting)
    group = None
    if processes > 1:
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
        group = SequenceGroup()
        layer = parallelize(layer, group)
    parts = list(pairwise(round(i * setting.length / processes) for i in range(processes + 1)))
    x, weights = (part[:, slice(*parts[rank])].clone() for part in _tokens(setting, setting.length))
    _step(layer, x[:, :64].clone(), weights[:, :64], group)  # libraries and thread pools
    found, peaks, seconds = x, [], []
    sent = 0
    for _ in range(setting.repeats):
        reset, before = memory.reset_peak(), memory.resident("VmRSS")
        begun, sent = time.perf_counter(), group.bytes_sent if group else 0
        found = _step(layer, x, weights, group)
        seconds.append(time.perf_counter() - begun)
        sent = (group.bytes_sent if group else 0) - sent
        peak = memory.resident("VmHWM")
        if not reset or before is None or peak is None:
            raise InputError("this system does not tell the peak memory of a process")
        peaks.append(peak - before)
    torch.save(found, folder / f"{processes}-{rank}.pt")
    results.put(
        {"peak_mib": max(peaks), "seconds": statistics.median(seconds), "bytes_sent": float(sent)}
    )
    if group:
        dist.destroy_process_group()


def _layer(setting: ParallelSetting) -> MultiHeadAttention:
    torch.manual_seed(0)
    width, heads = setting.d_model, setting.num_heads
    if setting.mechanism == "full attention":
        return MultiHeadAttention(FullAttention(width, heads, causal=setting.causal))
    core = NeuralClusteringAttention(
        width, heads, causal=setting.causal, num_clusters=setting.num_clusters
    )
    return MultiHeadAttention(core)


def _tokens(setting: ParallelSetting, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (1, length, setting.d_model)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def _step(
    layer: MultiHeadAttention, x: Tensor, weights: Tensor, group: SequenceGroup | None
) -> Tensor:
    """Return the values; the gradient of the first projection stands below them."""
    layer.zero_grad()
    values = layer(x).values
    (values * weights).mean(-1).sum().backward()
    if group:
        sum_gradients(layer, group)
    gradient = layer.q_proj.weight.grad
    assert gradient is not None
    return torch.cat([values.detach()[0], gradient])


def _largest_error(folder: Path, processes: int) -> float:
    """Compare values and a gradient of the processes with those of one, relative to the largest."""
    whole = torch.load(folder / "1-0.pt", weights_only=True)
    parts: Sequence[Any] = [
        torch.load(folder / f"{processes}-{rank}.pt", weights_only=True)
        for rank in range(processes)
    ]
    width = whole.shape[1]
    values = torch.cat([part[:-width] for part in parts])
    pairs = [(values, whole[:-width]), *((part[-width:], whole[-width:]) for part in parts)]
    return max(float((found - right).abs().max() / right.abs().max()) for found, right in pairs)
