"""Time and memory of preparing parallel text and of loading its batches."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from clusterformer.bench.fresh_process import iterate_in_fresh_process
from clusterformer.bench.report import Row
from clusterformer.bench.synthetic_text import write_parallel_text
from clusterformer.data.batches import BucketPlan, DistributedBatchSampler
from clusterformer.data.bitext import Bitext
from clusterformer.data.parallel import Limits, ParallelText
from clusterformer.data.text_form import TextForm
from clusterformer.data.translation_batches import TranslationDataset
from clusterformer.training.memory import reset_peak, resident


def measure(
    pairs: int = 200_000, *, vocab_size: int = 32_000, tokens_per_batch: int = 32_768, seed: int = 0
) -> Iterator[Row]:
    """Prepare synthetic parallel text as `fit` does, and load every batch once.

    Args:
        pairs: Number of sentence pairs.
        vocab_size: Number of tokens in the joint vocabulary.
        tokens_per_batch: Maximum number of tokens in a batch.
        seed: Seed of the text.

    Yields:
        One row for each stage, with its wall-clock seconds, CPU seconds and peak memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = write_parallel_text(Path(folder), pairs, seed)
        # in a fresh process: the memory that writing the text took must not count
        yield from iterate_in_fresh_process(_measure_stages, files, vocab_size, tokens_per_batch)


def _measure_stages(
    files: tuple[Path, Path], vocab_size: int, tokens_per_batch: int
) -> Iterator[Row]:
    os.environ["XDG_CACHE_HOME"] = str(files[0].parent)
    os.chdir(files[0].parent)  # messages name the files, and not a temporary folder
    files = Path(files[0].name), Path(files[1].name)
    reset_peak()
    begun = time.monotonic(), time.process_time()
    for stage, pairs in _stages(files, vocab_size, tokens_per_batch):
        yield {
            "stage": stage,
            "pairs": pairs,
            "seconds": time.monotonic() - begun[0],
            "cpu_seconds": time.process_time() - begun[1],
            "peak_mib": resident("VmHWM"),
        }
        reset_peak()
        begun = time.monotonic(), time.process_time()


def _stages(
    files: tuple[Path, Path], vocab_size: int, tokens_per_batch: int
) -> Iterator[tuple[str, int]]:
    """Run each stage, and yield its name and its number of pairs when it is done."""
    english, german = TextForm("en", moses=True), TextForm("de", moses=True)
    text = ParallelText(Bitext(*files), english, german, Limits(175, 1.5))
    tokenizer = text.learn_tokenizer(vocab_size)
    yield "byte pairs", sum(1 for _ in text.bitext)
    pairs = TranslationDataset(*text.encode(tokenizer))
    yield "tokens", len(pairs.lengths)
    plan = BucketPlan(pairs.lengths, tokens_per_batch=tokens_per_batch)
    sampler = DistributedBatchSampler(plan)
    yield "batches", sum(len(pairs[indices].tokens) for indices in sampler)
