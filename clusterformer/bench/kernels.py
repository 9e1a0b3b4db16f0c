"""Time of operations and mechanisms against full attention, checked first, beside the roofline."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from clusterformer.bench.problems import BACKENDS, RIVALS, Problem, Timed
from clusterformer.bench.report import Row
from clusterformer.bench.roofline import Ceilings, Work, seconds, size_of
from clusterformer.bench.subjects import DTYPES
from clusterformer.bench.timing import copy_rate, matmul_rate, time_in_turns


def measure_ceilings(device: str, dtype: str) -> Ceilings:
    """Measure the rates of this device in a copy and in matrix products."""
    product = matmul_rate(device, DTYPES[dtype])
    plain = matmul_rate(device, torch.float32)
    return Ceilings(copy_rate(device), product, plain)


def measure(
    lengths: Sequence[int],
    forms: Sequence[str],
    ceilings: Ceilings,
    *,
    tokens: int,
    num_heads: int,
    width: int,
    dtype: str,
    device: str,
    repeats: int = 7,
) -> Iterator[Row]:
    """Check everything, then time what is right; all of one form and length take turns.

    Args:
        lengths: Tokens of a sequence, each measured.
        forms: Names among `roofline.FORMS`.
        ceilings: Best rates of the device, from `measure_ceilings`.
        tokens: Tokens of a batch.
        num_heads: H.
        width: D.
        dtype: "fp32", "bf16" or "fp16".
        device: "cpu" or "cuda".
        repeats: Measurements of each.

    Yields:
        One row for each operation, mechanism or kind of full attention and each direction. A row
        with `correct` False has an error above its limit, and no time.
    """
    for length in lengths:
        for form in forms:
            size = size_of(form, length, tokens, num_heads, width)
            size = size._replace(i=DTYPES[dtype].itemsize)
            problem = Problem(form, size, DTYPES[dtype], device)
            yield from _measure_problem(problem, ceilings, repeats)


def subjects(problem: Problem) -> Iterator[tuple[str, Timed]]:
    """List the subjects: operations, mechanisms, and each full attention that runs here."""
    yield from problem.operations().items()
    yield "mechanism", problem.mechanism()
    if problem.form != "neural":  # compared with the form that sees as many blocks
        for name in RIVALS:
            yield name, problem.rival(name)
    for backend in BACKENDS:
        timed = problem.full(backend)
        if _runs(timed):
            yield f"full, {backend}", timed
    if problem.form == "paper" and problem.q.device.type == "cuda":
        yield "flex_attention", problem.flex()


def _runs(timed: Timed) -> bool:
    """Return whether PyTorch has this backend for the device and dtype."""
    try:
        timed.forward()
        if timed.both:
            timed.both()
    except RuntimeError:
        return False
    return True


def _measure_problem(problem: Problem, ceilings: Ceilings, repeats: int) -> Iterator[Row]:
    size = problem.size
    common = {"length": size.N, "batch": size.B, "clusters": size.C, "form": problem.form}
    rows: list[tuple[str, Row, Work]] = []
    steps: dict[str, Callable[[], object]] = {}
    for what, timed in subjects(problem):
        error, limit = timed.check() if timed.check else (None, None)
        correct = error is None or limit is None or error <= limit
        directions = [("forward", timed.forward)]
        if timed.both:
            directions.append(("forward+backward", timed.both))
        for (direction, step), work in zip(directions, timed.work, strict=False):
            row: Row = {
                **common,
                "what": what,
                "direction": direction,
                "correct": correct,
                "error": error,
                "error_limit": limit,
                "bytes": work.bytes,
                "flop": work.matrix + work.plain,
            }
            name = f"{what}|{direction}"
            rows.append((name, row, work))
            if correct:
                steps[name] = step
    samples = time_in_turns(steps, repeats, problem.q.device.type)
    for name, row, work in rows:
        if row["correct"]:
            taken = statistics.median(samples[name]) * 1e-3
            row |= {"median_ms": taken * 1e3, "samples_ms": samples[name]}
            row |= {"gb_s": work.bytes / taken / 1e9, "tflop_s": row["flop"] / taken / 1e12}
            row |= {"share": seconds(work, ceilings) / taken}
        yield row
