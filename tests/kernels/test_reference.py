"""The reference operations: what the kernels are held to must itself be right."""

import pytest
import torch

from clusterformer.kernels import reference


def some_blocks(kind: str, mask: torch.Tensor | None) -> reference.Blocks:
    assignment = torch.randint(0, 4, (3, 17))
    grouped = reference.sort(assignment, 4, mask)
    if kind == "chunks":
        return reference.cluster_chunks(grouped, 3, mask, look_back=2)
    if kind == "window":
        return reference.window_blocks(17, 3, 4, mask, device=torch.device("cpu"))
    return reference.equal_blocks(grouped, 5, mask, look_back=1, look_ahead=1)


kinds = pytest.mark.parametrize("kind", ["blocks", "chunks", "window"])
masked = pytest.mark.parametrize("masked", [False, True])


def some_mask(masked: bool) -> torch.Tensor | None:
    return torch.arange(17) < torch.tensor([17, 8, 0])[:, None] if masked else None


@kinds
@masked
def test_every_real_token_has_one_slot(kind: str, masked: bool) -> None:
    mask = some_mask(masked)
    blocks = some_blocks(kind, mask)
    real = torch.ones(3, 17, dtype=torch.bool) if mask is None else mask
    for row in range(3):
        held = blocks.members[row][blocks.filled[row]]
        assert sorted(held.tolist()) == real[row].nonzero()[:, 0].tolist()
        slots = blocks.slot[row][real[row]]
        assert blocks.members[row].flatten()[slots].tolist() == real[row].nonzero()[:, 0].tolist()
        assert (blocks.slot[row][~real[row]] == -1).all()


@kinds
@masked
def test_seen_by_is_the_inverse_of_neighbours(kind: str, masked: bool) -> None:
    blocks = some_blocks(kind, some_mask(masked))
    batch, groups, reach = blocks.neighbours.shape
    holds = blocks.filled.any(-1)
    for b in range(batch):
        for g in range(groups):
            for r in range(reach):
                if blocks.visible[b, g, r] and holds[b, g]:
                    assert blocks.seen_by[b, blocks.neighbours[b, g, r], r] == g


@kinds
@masked
def test_moving_rows_is_indexing_with_its_gradient(kind: str, masked: bool) -> None:
    blocks = some_blocks(kind, some_mask(masked))
    rows = torch.randn(3, 17, 5, dtype=torch.double, requires_grad=True)
    seen = reference.window_mask(blocks)[:, :, 0] & blocks.filled.any(-1, keepdim=True)
    windows = reference.gather_windows(rows, blocks)
    index = torch.stack([blocks.members[b][blocks.neighbours[b]].flatten(1) for b in range(3)])
    expected = torch.stack([rows[b][index[b]] for b in range(3)])
    torch.testing.assert_close(windows, expected)
    weight = torch.randn_like(windows) * seen[..., None]  # attention gives the rest none
    (gradient,) = torch.autograd.grad((windows * weight).sum(), rows)
    (wanted,) = torch.autograd.grad((expected * weight).sum(), rows)
    torch.testing.assert_close(gradient, wanted)


@kinds
@masked
def test_resort_undoes_the_gathering(kind: str, masked: bool) -> None:
    mask = some_mask(masked)
    blocks = some_blocks(kind, mask)
    rows = torch.randn(3, 17, 5, dtype=torch.double, requires_grad=True)
    back = reference.resort(reference.gather_rows(rows, blocks), blocks)
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
    blocks = reference.equal_blocks(grouped, 4, mask)
    assert blocks.filled.sum(-1).tolist() == [[3, 3, 3, 3], [2, 2, 2, 1], [1, 1, 1, 0]]


def test_the_circle_runs_over_blocks_that_hold_tokens() -> None:
    mask = torch.arange(12) < torch.tensor([12, 3])[:, None]
    grouped = reference.sort(torch.zeros(2, 12, dtype=torch.long), 1, mask)
    blocks = reference.equal_blocks(grouped, 4, mask)
    assert blocks.neighbours[0].tolist() == [[3, 0], [0, 1], [1, 2], [2, 3]]
    assert blocks.neighbours[1, :3].tolist() == [[2, 0], [0, 1], [1, 2]]


def test_memberships_sum_to_one_over_real_tokens() -> None:
    mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    assigned = reference.assign(torch.randn(2, 5, 9) * 3, mask)
    torch.testing.assert_close(assigned.memberships.sum(-1), torch.ones(2, 5))
    assert (assigned.memberships[1, :, 4:] == 0).all()


def test_chunk_attention_takes_values_narrower_than_keys() -> None:
    blocks = some_blocks("blocks", None)
    q, k = torch.randn(2, 3, 2, 17, 12).unbind(0)
    v = torch.randn(3, 2, 17, 8)
    out = reference.chunk_attention(q, k, v, blocks, scale=0.5)
    padded = torch.nn.functional.pad(v, (0, 4))
    expected = reference.chunk_attention(q, k, padded, blocks, scale=0.5)[..., :8]
    torch.testing.assert_close(out, expected)
