"""Which examples train together: global batches that no number of processes changes.

An epoch is a list of global batches, each a list of example indices: a pure function of the data,
the seed and the epoch. A process takes every `world_size`-th index of each, so a run may stop after
any batch and go on with another number of processes, nothing skipped and nothing seen twice.

Letters: B batch, N tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from clusterformer.task import Task

PAD = 0
"""Token that fills a row; the mask, not this value, says what is padding."""

Numbers = Sequence[int] | NDArray[np.integer]
"""Token numbers of a text, or lengths of many, in memory or from disk."""

_SLACK = 1.1  # lengths within this factor share a bucket: at most a tenth of its batches is padding


class Plan(Protocol):
    """The global batches of each epoch; every epoch has the same number of them."""

    def __len__(self) -> int: ...

    def batches(self, epoch: int) -> Sequence[list[int]]: ...


class BucketPlan:
    """Every example once an epoch, in batches of like length.

    Examples are shuffled within buckets of nearly equal length, cut into batches, and the batches
    shuffled. Where to cut follows from the lengths alone, so each epoch has as many batches.

    Args:
        lengths: Tokens of each example.
        batch_size: Most examples a batch; None for no such limit.
        tokens_per_batch: Most tokens a batch, padding counted: longest times examples. An example
            longer than that is a batch of its own. None for no such limit.
        shuffle: False keeps one fixed order, for evaluation.
        seed: Of the shuffling.
    """

    def __init__(
        self,
        lengths: Numbers,
        *,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if batch_size is None and tokens_per_batch is None:
            raise ValueError("give batch_size, tokens_per_batch or both, got None and None")
        for name, limit in (("batch_size", batch_size), ("tokens_per_batch", tokens_per_batch)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit}")
        self._shuffle, self._seed = shuffle, seed
        tokens = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
        self._bucket = (np.log(tokens) / np.log(_SLACK)).astype(np.int16)
        sizes = np.bincount(self._bucket)
        longest = np.zeros(len(sizes), dtype=np.int64)
        np.maximum.at(longest, self._bucket, tokens)
        most = np.full(len(sizes), batch_size or len(tokens))
        if tokens_per_batch is not None:
            bound = np.maximum.accumulate(np.maximum(longest, 1))
            most = np.minimum(most, np.maximum(tokens_per_batch // bound, 1))
        self._cuts = _cuts(sizes.cumsum().tolist(), most.tolist())

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def batches(self, epoch: int) -> Sequence[list[int]]:
        """Global batches of `epoch`, lists of example indices."""
        rng = np.random.default_rng([self._seed, epoch])
        size = len(self._bucket)
        order = rng.permutation(size) if self._shuffle else np.arange(size)
        order = order[np.argsort(self._bucket[order], kind="stable")]
        cuts = list(pairwise(self._cuts))
        if self._shuffle:
            rng.shuffle(cuts)
        return _Slices(order, cuts)


class _Slices(Sequence[list[int]]):
    """Parts of an array, as lists made when asked for: as Python's numbers all take much memory."""

    def __init__(self, array: NDArray[np.int64], cuts: list[tuple[int, int]]) -> None:
        self._array, self._cuts = array, cuts

    def __len__(self) -> int:
        return len(self._cuts)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> _Slices: ...
    def __getitem__(self, index: int | slice) -> list[int] | _Slices:
        if isinstance(index, slice):
            return _Slices(self._array, self._cuts[index])
        start, stop = self._cuts[index]
        return self._array[start:stop].tolist()


def _cuts(ends: list[int], most: list[int]) -> list[int]:
    """Cut examples, sorted into buckets, into the largest batches within the limits.

    Args:
        ends: How many examples lie in each bucket and those before it.
        most: Examples a batch may have that reaches into the bucket, ever fewer.
    """
    cuts, bucket = [0], 0
    while ends and cuts[-1] < ends[-1]:
        start = stop = cuts[-1]
        while ends[bucket] <= start:
            bucket += 1
        reached = bucket
        while reached < len(ends) and stop - start < most[reached]:
            stop = max(stop, min(ends[reached], start + most[reached]))
            reached += 1
        cuts.append(stop)
    return cuts


class EndlessPlan:
    """Examples made from their index, never the same twice: epoch e goes on where e - 1 ended.

    Args:
        num_batches: Batches an epoch.
        batch_size: Examples a batch.
    """

    def __init__(self, num_batches: int, batch_size: int) -> None:
        self._num_batches, self._batch_size = num_batches, batch_size

    def __len__(self) -> int:
        return self._num_batches

    def batches(self, epoch: int) -> list[list[int]]:
        """Global batches of `epoch`: consecutive indices, counted on from epoch to epoch."""
        first = epoch * self._num_batches * self._batch_size
        starts = range(first, first + self._num_batches * self._batch_size, self._batch_size)
        return [list(range(start, start + self._batch_size)) for start in starts]


class Shares(Sampler[list[int]]):
    """One process's share of every global batch: an empty list where it has none.

    Args:
        plan: The global batches.
        rank: Number of this process, 0..world_size - 1.
        world_size: Number of processes.
        epoch: Epoch to begin with.
        start: Global batches of it already consumed.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        start: int = 0,
    ) -> None:
        self._plan, self._rank, self._world_size = plan, rank, world_size
        self._epoch, self._start = epoch, start

    def set_epoch(self, epoch: int) -> None:
        """Begin `epoch`; the one under way goes on from where it stands. Lightning calls this."""
        if epoch != self._epoch:
            self._epoch, self._start = epoch, 0

    def __len__(self) -> int:
        """Global batches of a whole epoch, those already consumed included."""
        return len(self._plan)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._plan.batches(self._epoch)[self._start :]:
            yield batch[self._rank :: self._world_size]


def loader(dataset: Dataset, plan: Plan, task: Task, *, training: bool = False) -> DataLoader:
    """Load this process's shares of the batches that `plan` makes of `dataset`.

    Args:
        dataset: Answers `dataset[indices]` with a batch, for an empty list with a dummy row.
        plan: The global batches.
        task: Knows rank, number of processes and, in training, the position to start at.
    """
    epoch, start = task.position if training else (0, 0)
    shares = Shares(plan, rank=task.rank, world_size=task.world_size, epoch=epoch, start=start)
    # One sampled item is a whole batch; as the `sampler`, Lightning tells it of each new epoch.
    return DataLoader(dataset, sampler=shares, batch_size=None)


def run_seed() -> int:
    """Seed of the run, as Lightning's seed_everything() left it; 0 if nobody called that."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


def pad(sequences: Sequence[Numbers]) -> tuple[Tensor, Tensor]:
    """Put sequences of different length in one rectangle.

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
