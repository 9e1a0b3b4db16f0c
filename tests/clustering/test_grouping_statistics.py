"""Statistics of groupings on cases that one can count by hand."""

import pytest
import torch
from default_dtype import default_dtype

from clusterformer.attention import NeuralClusteringAttention
from clusterformer.attention.weights import attention_weights
from clusterformer.clustering.grouping_statistics import cluster_sizes, grouping_statistics
from clusterformer.kernels import reference
from clusterformer.kernels.chunking import equal_blocks


def test_equal_clusters_are_fully_entropic_and_pure() -> None:
    assignment = torch.arange(12).remainder(3)[None]
    mask = torch.ones(1, 12, dtype=torch.bool)
    grouped = reference.sort(assignment, 3, mask)
    blocks = equal_blocks(grouped, 3, mask, look_back=0)
    found = grouping_statistics(assignment, 3, mask, blocks)
    assert found.purity is not None
    assert found.entropy.item() == pytest.approx(1)
    assert found.largest.item() == pytest.approx(1 / 3)
    assert found.dead.item() == 0
    assert found.purity.item() == 1
    both = equal_blocks(grouped, 3, mask, look_back=1)
    assert grouping_statistics(assignment, 3, mask, both).purity == pytest.approx(1 / 2)


def test_purity_is_the_mean_of_the_sequences() -> None:
    assignment = torch.tensor([[0, 1] * 6, [0] * 12])
    mask = torch.arange(12) < torch.tensor([12, 4, 0])[:, None]
    assignment = torch.cat([assignment, assignment[:1]])

    def purity(rows: slice) -> float:
        grouped = reference.sort(assignment[rows], 2, mask[rows])
        blocks = equal_blocks(grouped, 3, mask[rows], look_back=1)
        found = grouping_statistics(assignment[rows], 2, mask[rows], blocks).purity
        assert found is not None
        return found.item()

    apart = [purity(slice(0, 1)), purity(slice(1, 2))]
    assert apart[0] < apart[1] == 1
    assert purity(slice(0, 3)) == pytest.approx(sum(apart) / 2)


def test_one_cluster_for_all_is_dead_elsewhere() -> None:
    assignment = torch.zeros(2, 8, dtype=torch.long)
    mask = torch.arange(8) < torch.tensor([8, 2])[:, None]
    found = grouping_statistics(assignment, 4, mask)
    assert found.entropy.item() == 0
    assert found.largest.item() == 1
    assert found.dead.item() == pytest.approx((3 / 4 + 1 / 2) / 2)  # 2 tokens fill 2 of 4 at most


def test_few_tokens_apart_are_fully_entropic() -> None:
    found = grouping_statistics(torch.tensor([[3, 1]]), 4, torch.ones(1, 2, dtype=torch.bool))
    assert found.entropy.item() == pytest.approx(1)
    assert found.dead.item() == 0


def test_padding_does_not_count() -> None:
    mask = torch.tensor([[True, True, False]])
    assert cluster_sizes(torch.tensor([[1, 1, 0]]), 2, mask).tolist() == [[0, 2]]
    batch = grouping_statistics(
        torch.tensor([[0, 1, 0]] * 2), 2, mask.expand(2, 3) & mask.new_tensor([[True], [False]])
    )
    assert batch.entropy.item() == 1


def test_heads_count_as_sequences() -> None:
    assignment = torch.stack([torch.arange(4), torch.zeros(4, dtype=torch.long)])[None]
    found = grouping_statistics(assignment, 4, torch.ones(1, 4, dtype=torch.bool))
    assert found.entropy.item() == pytest.approx(0.5)
    assert found.purity is None


def test_statistics_are_the_same_in_half_precision() -> None:
    assignment, mask = torch.randint(5, (2, 3000)), torch.ones(2, 3000, dtype=torch.bool)
    blocks = equal_blocks(reference.sort(assignment, 5), 7)
    expected = grouping_statistics(assignment, 5, mask, blocks)
    with default_dtype(torch.bfloat16):
        assert cluster_sizes(assignment, 5, mask).sum() == 6000
        assert grouping_statistics(assignment, 5, mask, blocks) == expected


@torch.no_grad()
def test_the_purity_of_heads_with_clusters_of_their_own_is_that_of_the_pairs_that_meet() -> None:
    core = NeuralClusteringAttention(8, 2, num_clusters=4, num_clusterings=2, dense_length=0).eval()
    q, hidden = torch.zeros(3, 2, 40, 4), torch.randn(3, 40, 8)
    _, grouping = core(q, q, q, hidden=hidden)
    mask = torch.ones(3, 40, dtype=torch.bool)
    found = grouping_statistics(grouping.assignment, 4, mask, grouping.blocks).purity
    meet = attention_weights(core, q, q, hidden=hidden) > 0  # (B, H, N, N)
    same = grouping.assignment[..., None] == grouping.assignment[..., None, :]
    shares = (meet & same).sum((2, 3)) / meet.sum((2, 3))
    torch.testing.assert_close(found, shares.mean())
