"""The reference operations: what the kernels are held to must self_bias be right."""

import pytest
import torch

from clusterformer.kernels import reference
from clusterformer.kernels.blocks import Blocks, window_mask, windows
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks, window_blocks
from clusterformer.kernels.rows import gather_own, gather_rows, resort


def some_blocks(kind: str, mask: torch.Tensor | None) -> Blocks:
    assignment = torch.randint(0, 4, (3, 17))
    grouped = reference.sort(assignment, 4, mask)
    if kind == "chunks":
        return cluster_chunks(grouped, 3, mask, look_back=2)
    if kind == "window":
        return window_blocks(17, 3, 4, mask, device=torch.device("cpu"))
    return equal_blocks(grouped, 5, mask, look_back=1, look_ahead=1)


kinds = pytest.mark.parametrize("kind", ["blocks", "chunks", "window"])
masked = pytest.mark.parametrize("masked", [False, True])


def some_mask(masked: bool) -> torch.Tensor | None:
    return torch.arange(17) < torch.tensor([17, 8, 0])[:, None] if masked else None


@kinds
@masked
def test_every_real_token_has_one_slot_of_its_own(kind: str, masked: bool) -> None:
    mask = some_mask(masked)
    blocks = some_blocks(kind, mask)
    real = torch.ones(3, 17, dtype=torch.bool) if mask is None else mask
    for row in range(3):
        tokens = real[row].nonzero()[:, 0].tolist()
        held = blocks.members[row, blocks.own][blocks.own_filled[row]]
        assert sorted(held.tolist()) == tokens
        slots = blocks.slot[row][real[row]]
        assert blocks.members[row].flatten()[slots].tolist() == tokens
        assert (blocks.slot[row][~real[row]] == -1).all()


@kinds
@masked
def test_copies_are_all_slots_that_hold_a_token(kind: str, masked: bool) -> None:
    blocks = some_blocks(kind, some_mask(masked))
    for row in range(3):
        held: dict[int, list[int]] = {}
        for slot, (token, full) in enumerate(
            zip(blocks.members[row].flatten(), blocks.filled[row].flatten(), strict=True)
        ):
            if full:
                held.setdefault(int(token), []).append(slot)
        for token, copies in enumerate(blocks.copies[row].tolist()):
            assert sorted(c for c in copies if c >= 0) == held.get(token, [])


@kinds
@masked
def test_moving_rows_is_indexing_with_its_gradient(kind: str, masked: bool) -> None:
    blocks = some_blocks(kind, some_mask(masked))
    rows = torch.randn(3, 17, 5, dtype=torch.double, requires_grad=True)
    gathered = gather_rows(rows, blocks)
    expected = torch.stack([rows[b][blocks.members[b]] for b in range(3)])
    torch.testing.assert_close(gathered, expected)
    weight = torch.randn_like(gathered) * blocks.filled[..., None]  # attention gives the rest none
    (gradient,) = torch.autograd.grad((gathered * weight).sum(), rows)
    (wanted,) = torch.autograd.grad((expected * weight).sum(), rows)
    torch.testing.assert_close(gradient, wanted)


@kinds
@masked
def test_resort_undoes_the_gathering(kind: str, masked: bool) -> None:
    mask = some_mask(masked)
    blocks = some_blocks(kind, mask)
    rows = torch.randn(3, 17, 5, dtype=torch.double, requires_grad=True)
    back = resort(gather_own(rows, blocks), blocks)
    expected = rows if mask is None else rows.masked_fill(~mask[..., None], 0.0)
    torch.testing.assert_close(back, expected)
    weight = torch.randn_like(back)
    (gradient,) = torch.autograd.grad((back * weight).sum(), rows)
    (wanted,) = torch.autograd.grad((expected * weight).sum(), rows)
    torch.testing.assert_close(gradient, wanted)


def test_sort_is_stable_with_padding_last() -> None:
    assignment = torch.tensor([[2, 0, 1, 0, 2, 1]])
    mask = torch.tensor([[True, True, True, True, False, True]])
    grouped = reference.sort(assignment, 3, mask)
    assert grouped.order.tolist() == [[1, 3, 2, 5, 0, 4]]
    assert grouped.inverse.tolist() == [[4, 0, 2, 1, 5, 3]]
    assert grouped.counts.tolist() == [[2, 2, 1]]


def test_widths_count_real_tokens_of_each_sequence() -> None:
    mask = torch.arange(12) < torch.tensor([12, 7, 3])[:, None]
    grouped = reference.sort(torch.zeros(3, 12, dtype=torch.long), 1, mask)
    blocks = equal_blocks(grouped, 4, mask)
    assert blocks.own_filled.sum(-1).tolist() == [
        [3, 3, 3, 3],
        [2, 2, 2, 1],
        [1, 1, 1, 0],
    ]


def test_blocks_of_short_sequences_keep_a_least_width() -> None:
    mask = torch.arange(12) < torch.tensor([12, 7, 3])[:, None]
    grouped = reference.sort(torch.zeros(3, 12, dtype=torch.long), 1, mask)
    blocks = equal_blocks(grouped, 6, mask, min_width=3)
    assert blocks.own_filled.sum(-1).tolist() == [[3, 3, 3, 3], [3, 3, 1, 0], [3, 0, 0, 0]]
    wide = equal_blocks(grouped, 2, mask, min_width=3)
    assert wide.own_filled.sum(-1).tolist() == [[6, 6], [4, 3], [3, 0]]


def test_the_circle_runs_over_blocks_that_hold_tokens() -> None:
    mask = torch.arange(12) < torch.tensor([12, 3])[:, None]
    grouped = reference.sort(torch.zeros(2, 12, dtype=torch.long), 1, mask)
    blocks = equal_blocks(grouped, 4, mask, look_back=1, look_ahead=1)
    assert blocks.members[0, :, 0].tolist() == [9, 0, 3, 6, 9, 0]
    assert blocks.members[1, :5, 0].tolist() == [2, 0, 1, 2, 0]
    assert blocks.filled[1].any(-1).tolist() == [True] * 5 + [False]


@pytest.mark.parametrize(("look_back", "look_ahead"), [(0, 0), (1, 0), (1, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9])
def test_a_block_sees_its_neighbours_once(look_back: int, look_ahead: int, length: int) -> None:
    grouped = reference.sort(torch.zeros(1, length, dtype=torch.long), 1)
    blocks = equal_blocks(grouped, 5, None, look_back, look_ahead)
    width = blocks.members.shape[-1]
    used = -(-length // width)
    seen = windows(blocks.members, look_back + look_ahead + 1)
    mask = window_mask(blocks)[0, :, 0]
    for block in range(used):
        around = {(block + o) % used for o in range(-look_back, look_ahead + 1)}
        tokens = [t for b in around for t in range(b * width, min((b + 1) * width, length))]
        assert sorted(seen[0, block][mask[block]].tolist()) == sorted(tokens)


def test_memberships_sum_to_one_over_real_tokens() -> None:
    mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    assigned = reference.assign(torch.randn(2, 5, 9) * 3, mask)
    torch.testing.assert_close(assigned.memberships.sum(-1), torch.ones(2, 5))
    assert (assigned.memberships[1, :, 4:] == 0).all()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_place_of_the_largest_is_the_first_of_equals(dim: int) -> None:
    values = torch.randint(0, 3, (4, 9, 5)).float()
    expected = torch.from_numpy(values.numpy().argmax(dim))
    torch.testing.assert_close(reference.argmax_first(values, dim), expected)
    values[0, 0] = float("nan")
    found = reference.argmax_first(values, dim)
    assert ((found >= 0) & (found < values.shape[dim])).all()  # an index, whatever came in
