"""The largest of many scores: in order, by position where they are equal but for rounding."""

import pytest
import torch

from clusterformer.kernels.top_k import top_k_indices


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_different_scores_come_in_their_order(dtype: torch.dtype, last: bool) -> None:
    scores = torch.stack([torch.randperm(64) - 32 for _ in range(3)]).to(dtype)
    scores[scores == -32] = float("-inf")
    scores[scores == 31] = float("inf")
    found = top_k_indices(scores, 64, last=last)
    assert torch.equal(found, scores.argsort(-1, descending=True))
    assert torch.equal(top_k_indices(scores, 5, last=last), found[:, :5])


@pytest.mark.parametrize("last", [False, True])
def test_position_decides_between_scores_that_differ_by_rounding(last: bool) -> None:
    scores = torch.tensor([3.0, -0.25, 0.0, 3.0, -0.25, 7.5, 0.0, 3.0])
    expected = [5, 7, 3, 0, 6, 2, 4, 1] if last else [5, 0, 3, 7, 2, 6, 1, 4]
    for _ in range(20):
        rounded = scores * (1 + 1e-5 * torch.randn(8))
        assert top_k_indices(rounded, 8, last=last).tolist() == expected


def test_a_difference_of_a_thousandth_is_none_of_rounding() -> None:
    scores = torch.tensor([1.0, 1.001, -2.0, -1.998, 0.5, 0.5005])
    assert top_k_indices(scores, 6).tolist() == [1, 0, 5, 4, 3, 2]
