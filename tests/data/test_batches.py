"""Global batches: the same for any number of processes, exact after a stop, little padding."""

from itertools import chain

import numpy as np
import pytest
import torch

from clusterformer.data.batches import BucketPlan, DistributedBatchSampler, EndlessPlan, pad

LENGTHS = np.random.default_rng(0).lognormal(3, 0.7, 1000).astype(int).clip(1, 200).tolist()


def plans():
    return [
        BucketPlan(LENGTHS, batch_size=32, seed=3),
        BucketPlan(LENGTHS, tokens_per_batch=512, seed=3),
        EndlessPlan(20, 32),
    ]


def joined(plan, world_size, **position):
    """Global batches put together again from the shares of all processes."""
    ranks = [
        DistributedBatchSampler(plan, rank=r, world_size=world_size, **position)
        for r in range(world_size)
    ]
    return [sorted(chain(*shares)) for shares in zip(*ranks, strict=True)]


@pytest.mark.parametrize("plan", plans())
@pytest.mark.parametrize("world_size", [2, 3, 50])
def test_shares_make_the_same_global_batches(plan, world_size):
    assert joined(plan, world_size) == [sorted(batch) for batch in plan.batches(0)]


@pytest.mark.parametrize("plan", plans())
def test_resuming_with_other_processes_neither_skips_nor_repeats(plan):
    whole = joined(plan, 1, epoch=2)
    assert joined(plan, 2, epoch=2)[:7] + joined(plan, 3, epoch=2, start=7) == whole


@pytest.mark.parametrize("plan", plans())
def test_next_epoch_starts_at_its_beginning(plan):
    shares = DistributedBatchSampler(plan, epoch=1, start=5)
    shares.set_epoch(1)
    assert list(shares) == list(plan.batches(1)[5:])
    shares.set_epoch(2)
    assert list(shares) == list(plan.batches(2))
    assert len(shares) == len(plan) == len(plan.batches(1)) == len(plan.batches(2))


@pytest.mark.parametrize("plan", plans()[:2])
def test_epochs_differ_and_each_holds_every_example_once(plan):
    assert list(plan.batches(0)) != list(plan.batches(1))
    assert list(plan.batches(1)) == list(plan.batches(1))
    assert sorted(chain(*plan.batches(1))) == list(range(len(LENGTHS)))


def test_endless_examples_never_come_back():
    plan = EndlessPlan(3, 4)
    seen = list(chain(*chain(*(plan.batches(epoch) for epoch in range(3)))))
    assert seen == list(range(36))


def test_token_limit_holds_and_padding_is_low():
    batches = BucketPlan(LENGTHS, tokens_per_batch=512).batches(0)
    padded = [max(LENGTHS[i] for i in batch) * len(batch) for batch in batches]
    assert max(padded) <= 512
    assert 1 - sum(LENGTHS) / sum(padded) < 0.08


def test_both_limits_hold_together():
    batches = BucketPlan(LENGTHS, batch_size=9, tokens_per_batch=512).batches(0)
    assert max(map(len, batches)) == 9
    assert max(max(LENGTHS[i] for i in batch) * len(batch) for batch in batches) <= 512


def test_too_long_example_is_a_batch_of_its_own():
    batches = BucketPlan([3, 100, 3, 4], tokens_per_batch=8).batches(0)
    assert sorted(map(sorted, batches)) == [[0, 2], [1], [3]]


def test_evaluation_has_one_fixed_order():
    plan = BucketPlan(LENGTHS, batch_size=32, shuffle=False)
    assert list(plan.batches(0)) == list(plan.batches(1))
    assert sorted(chain(*plan.batches(0))) == list(range(len(LENGTHS)))


def test_no_examples_are_no_batches():
    plan = BucketPlan([], batch_size=4)
    assert len(plan) == 0
    assert list(plan.batches(0)) == []


@pytest.mark.parametrize("limits", [{}, {"batch_size": 0}, {"tokens_per_batch": -1}])
def test_limits_that_allow_nothing_are_refused(limits):
    with pytest.raises(ValueError, match="batch"):
        BucketPlan(LENGTHS, **limits)


def test_pad_marks_real_tokens():
    tokens, mask = pad([[5, 6, 7], [8]])
    assert tokens.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]
    assert tokens.dtype == torch.int64


def test_pad_of_nothing_is_a_dummy_row():
    tokens, mask = pad([])
    assert tokens.tolist() == [[0]]
    assert mask.tolist() == [[False]]
