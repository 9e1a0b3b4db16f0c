"""`clusterformer bench pairs`: what it takes to prepare parallel text and to load its batches."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from clusterformer.cli.arguments import Arguments
from clusterformer.cli.bench import require_positive, write

HELP = """
usage: clusterformer bench pairs [--pairs 200000] [--out FILE]

Prepares made-up parallel text as `fit --config wmt14.yaml` does (Moses tokens, joint byte pairs,
token numbers on disk) and loads every batch once: time and peak memory of each stage. --pairs
200000, --vocab_size 32000, --tokens_per_batch 32768, --seed 0, --out.
"""


def run(arguments: list[str]) -> None:
    """Make up pairs, prepare them, go through their batches once; print a line for each stage."""
    from clusterformer.bench.parallel_text import write_pairs

    parser = Arguments("bench pairs")
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--vocab_size", type=int, default=32_000)
    parser.add_argument("--tokens_per_batch", type=int, default=32_768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    require_positive(options, "pairs", "vocab_size", "tokens_per_batch")
    print(f"{'stage':<12}{'pairs':>10}{'seconds':>10}{'CPU':>10}{'peak MiB':>10}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files = write_pairs(Path(folder), options.pairs, options.seed)
        # in a process of its own: what made the pairs up has no place in its memory
        measured = (files, options.vocab_size, options.tokens_per_batch)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            rows = alone.submit(_measure, *measured).result()
    if options.out:
        write(options, rows)


def _measure(files: tuple[Path, Path], vocab_size: int, size: int) -> list[dict[str, Any]]:
    from clusterformer.training.memory import reset_peak, resident

    os.environ["XDG_CACHE_HOME"] = str(files[0].parent)
    rows: list[dict[str, Any]] = []
    reset_peak()
    begun = time.monotonic(), time.process_time()
    for stage, pairs in _stages(files, vocab_size, size):
        seconds, cpu = time.monotonic() - begun[0], time.process_time() - begun[1]
        peak = resident("VmHWM") or 0.0
        print(f"{stage:<12}{pairs:>10,}{seconds:>10.1f}{cpu:>10.1f}{peak:>10.0f}", flush=True)
        rows.append(
            {
                "stage": stage,
                "pairs": pairs,
                "seconds": seconds,
                "cpu_seconds": cpu,
                "peak_mib": peak,
            }
        )
        reset_peak()
        begun = time.monotonic(), time.process_time()
    return rows


def _stages(files: tuple[Path, Path], vocab_size: int, size: int) -> Iterator[tuple[str, int]]:
    """Go through what `fit` does with parallel text; after each stage its name and its pairs."""
    from clusterformer.data.batches import BucketPlan, Shares
    from clusterformer.data.bitext import Bitext
    from clusterformer.data.moses import TextForm
    from clusterformer.data.parallel import Limits, ParallelText
    from clusterformer.data.sentence_pairs import PairSet

    english, german = TextForm("en", moses=True), TextForm("de", moses=True)
    text = ParallelText(Bitext(*files), english, german, Limits(175, 1.5))
    tokenizer = text.learn(vocab_size)
    yield "byte pairs", sum(1 for _ in text.bitext)
    pairs = PairSet(*text.encode(tokenizer))
    yield "tokens", len(pairs.lengths)
    plan = BucketPlan(pairs.lengths, tokens_per_batch=size)
    yield "batches", sum(len(pairs[indices].tokens) for indices in Shares(plan))
