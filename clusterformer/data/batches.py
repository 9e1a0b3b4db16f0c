"""Global batches of examples, the same for any number of processes; padding; data loaders.

An epoch is a list of global batches, each a list of example indices: a pure function of the data,
the seed and the epoch. A process takes every `world_size`-th index of each, so a run may stop after
any batch and continue with another number of processes; no example is skipped or seen twice.

Letters: B batch, N tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from clusterformer.errors import require_at_least
from clusterformer.models.embeddings import PAD
from clusterformer.task import Task

Integers = Sequence[int] | NDArray[np.integer]
"""Token ids of a text, or lengths of many texts, in memory or from disk."""

_SLACK = 1.1  # lengths within this factor share a bucket: at most a tenth of its batches is padding


class BatchPlan(Protocol):
    """The global batches of each epoch; every epoch has the same number of them."""

    def __len__(self) -> int: ...

    def batches(self, epoch: int) -> Sequence[list[int]]: ...


class BucketPlan:
    """Every example once an epoch, in batches of similar length.

    Examples are shuffled within buckets of nearly equal length, cut into batches, and the batches
    shuffled. The cuts depend on the lengths only, so every epoch has the same number of batches.

    Args:
        lengths: Number of tokens of each example.
        batch_size: Maximum number of examples a batch; None for no limit.
        tokens_per_batch: Maximum number of tokens a batch, padding included (longest example times
            number of examples); a longer example is a batch of its own. None for no limit.
        shuffle: Whether to shuffle; without it the order is fixed, for evaluation.
        seed: Seed of the shuffling.
    """

    def __init__(
        self,
        lengths: Integers,
        *,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if batch_size is None and tokens_per_batch is None:
            raise ValueError("give batch_size, tokens_per_batch or both, got None and None")
        require_at_least(1, batch_size=batch_size, tokens_per_batch=tokens_per_batch)
        self._shuffle, self._seed = shuffle, seed
        tokens = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
        self._bucket = (np.log(tokens) / np.log(_SLACK)).astype(np.int16)
        sizes = np.bincount(self._bucket)
        longest = np.zeros(len(sizes), dtype=np.int64)
        np.maximum.at(longest, self._bucket, tokens)
        max_sizes = np.full(len(sizes), batch_size or len(tokens))
        if tokens_per_batch is not None:
            bound = np.maximum.accumulate(np.maximum(longest, 1))
            max_sizes = np.minimum(max_sizes, np.maximum(tokens_per_batch // bound, 1))
        self._cuts = _cuts(sizes.cumsum().tolist(), max_sizes.tolist())

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def batches(self, epoch: int) -> Slices:
        """Return the global batches of `epoch`, lists of example indices."""
        rng = np.random.default_rng([self._seed, epoch])
        size = len(self._bucket)
        order = rng.permutation(size) if self._shuffle else np.arange(size)
        order = order[np.argsort(self._bucket[order], kind="stable")]
        cuts = list(pairwise(self._cuts))
        if self._shuffle:
            rng.shuffle(cuts)
        return Slices(order, [start for start, _ in cuts], [stop for _, stop in cuts])


class Slices(Sequence[list[int]]):
    """Slices of an array as lists, made on access: all at once would need much memory.

    Args:
        array: Numbers to be cut.
        starts: Index of the first number of each slice.
        stops: Index behind the last one of each.
    """

    def __init__(
        self, array: NDArray[np.int64], starts: Sequence[int], stops: Sequence[int]
    ) -> None:
        self._array, self._starts, self._stops = array, starts, stops

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> Slices: ...
    def __getitem__(self, index: int | slice) -> list[int] | Slices:
        if isinstance(index, slice):
            return Slices(self._array, self._starts[index], self._stops[index])
        return self._array[self._starts[index] : self._stops[index]].tolist()


def equal_slices(array: NDArray[np.int64], size: int) -> Slices:
    """Cut an array into slices of one size, but for the last."""
    starts = range(0, len(array), size)
    return Slices(array, starts, range(size, len(array) + size, size))


def _cuts(ends: list[int], max_sizes: list[int]) -> list[int]:
    """Cut examples, sorted into buckets, into the largest batches within the limits.

    Args:
        ends: Number of examples in each bucket and those before it.
        max_sizes: Maximum size of a batch that reaches into the bucket; never increases.
    """
    cuts, bucket = [0], 0
    while ends and cuts[-1] < ends[-1]:
        start = stop = cuts[-1]
        while ends[bucket] <= start:
            bucket += 1
        reached = bucket
        while reached < len(ends) and stop - start < max_sizes[reached]:
            stop = max(stop, min(ends[reached], start + max_sizes[reached]))
            reached += 1
        cuts.append(stop)
    return cuts


class EndlessPlan:
    """Examples generated from their index, each new: epoch e continues where epoch e - 1 ended.

    Args:
        num_batches: Number of batches an epoch.
        batch_size: Number of examples a batch.
    """

    def __init__(self, num_batches: int, batch_size: int) -> None:
        self._num_batches, self._batch_size = num_batches, batch_size

    def __len__(self) -> int:
        return self._num_batches

    def batches(self, epoch: int) -> Slices:
        """Return the global batches of `epoch`: consecutive indices, continued over epochs."""
        size = self._num_batches * self._batch_size
        indices = np.arange(epoch * size, (epoch + 1) * size, dtype=np.int64)
        return equal_slices(indices, self._batch_size)


class DistributedBatchSampler(Sampler[list[int]]):
    """One process's share of every global batch: an empty list where it has none.

    Args:
        plan: The global batches.
        rank: Rank of this process, 0..world_size - 1.
        world_size: Number of processes.
        epoch: First epoch.
        start: Number of its global batches that are already consumed.
        fixed: Whether all epochs are alike, for evaluation: the first batches of one are then
            those of any other.
    """

    def __init__(
        self,
        plan: BatchPlan,
        *,
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        start: int = 0,
        fixed: bool = False,
    ) -> None:
        self._plan, self._rank, self._world_size = plan, rank, world_size
        self._epoch, self._start, self._fixed = epoch, start, fixed

    def take_whole(self) -> None:
        """Give this process whole global batches instead of its share."""
        self._rank, self._world_size = 0, 1

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch`; the current epoch continues at `start`. Lightning calls this."""
        if epoch != self._epoch and not self._fixed:
            self._epoch, self._start = epoch, 0

    def __len__(self) -> int:
        """Number of global batches of a whole epoch, the consumed ones included."""
        return len(self._plan)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._plan.batches(self._epoch)[self._start :]:
            yield batch[self._rank :: self._world_size]


def make_loader(
    dataset: Dataset, plan: BatchPlan, task: Task, *, training: bool = False
) -> DataLoader:
    """Load this process's share of every global batch.

    Args:
        dataset: Dataset whose `dataset[indices]` is a batch; a dummy row for an empty list.
        plan: The global batches.
        task: Task that knows rank, number of processes and, in training, the first position.
        training: Whether to begin at the task's position.
    """
    epoch, start = task.position if training else (0, 0)
    sampler = DistributedBatchSampler(
        plan, rank=task.rank, world_size=task.world_size,
        epoch=epoch, start=start, fixed=not training,
    )  # fmt: skip
    # One sampled item is a whole batch; Lightning tells a `sampler` of each new epoch.
    return DataLoader(dataset, sampler=sampler, batch_size=None)


class TextLines(IterableDataset[Any]):
    """Lines of a user's text in order, in batches of up to 64 consecutive lines.

    Args:
        lines: The lines.
        make_batch: Function that makes a batch of a list of lines.
    """

    def __init__(self, lines: Iterable[str], make_batch: Callable[[list[str]], Any]) -> None:
        self._lines, self._make_batch = lines, make_batch

    def __iter__(self) -> Iterator[Any]:
        lines = iter(self._lines)
        while chunk := list(islice(lines, 64)):
            yield self._make_batch(chunk)


def run_seed() -> int:
    """Seed of the run, as set by Lightning's seed_everything(); 0 if that was never called."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


def pad(sequences: Sequence[Integers]) -> tuple[Tensor, Tensor]:
    """Pad sequences to one length.

    Returns:
        Tokens (B, N) int64, N the longest length, and the mask (B, N), True at real tokens.
        No sequence at all gives one row of one padding token.
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences] or [0])
    mask = torch.arange(max(1, int(lengths.max()))) < lengths[:, None]
    tokens = torch.full(mask.shape, PAD)
    if sequences:
        flat = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
        tokens[mask] = torch.from_numpy(flat)
    return tokens, mask
