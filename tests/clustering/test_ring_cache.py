"""The last tokens of each cluster, kept for decoding."""

import pytest
import torch

from clusterformer.clustering.ring_cache import fill, insert, look_up, make_ring_cache


@pytest.mark.parametrize(
    ("length", "clusters", "size"), [(1, 1, 4), (7, 3, 4), (50, 5, 8), (300, 4, 6)]
)
def test_filling_at_once_equals_one_token_after_the_other(
    length: int, clusters: int, size: int
) -> None:
    cluster, entries = torch.randint(clusters, (3, length)), torch.randn(3, length, 5)
    together = fill(make_ring_cache(3, clusters, size, (entries,)), cluster, (entries,))
    each = make_ring_cache(3, clusters, size, (entries,))
    for token in range(length):
        each = insert(each, cluster[:, token], (entries[:, token],))
    assert torch.equal(together[-1], each[-1])
    for number in range(clusters):
        asked = torch.full((3,), number)
        (found,), mask = look_up(together, asked, size // 2)
        (expected,), seen = look_up(each, asked, size // 2)
        assert torch.equal(mask, seen)
        assert torch.equal(found[mask], expected[seen])


def test_an_empty_ring_shows_nothing() -> None:
    like = torch.zeros(2)
    cache = make_ring_cache(1, 3, 4, (like, like))
    cache = insert(cache, torch.tensor([1]), (torch.ones(1, 2), torch.ones(1, 2)))
    assert not look_up(cache, torch.tensor([2]), 2)[1].any()
    (seen, _), mask = look_up(cache, torch.tensor([1]), 2)
    assert torch.equal(seen[mask], torch.ones(1, 2))
