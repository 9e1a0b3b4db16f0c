"""Hash codes and k-means on them, against literal versions with Python's own bit counts."""

import pytest
import torch
from default_dtype import default_dtype
from torch import Tensor

from clusterformer.clustering.hamming import hamming_kmeans
from clusterformer.clustering.hashing import SignHash, pack, unpack
from clusterformer.clustering.seeding import seeds


def literal_kmeans(codes: list[int], clusters: int, iterations: int) -> list[int]:
    start = seeds(torch.ones(1, len(codes)), clusters, 0.5)[0].tolist()
    centroids = [codes[point] for point in start]

    def nearest(code: int) -> int:
        return min(range(clusters), key=lambda c: ((code ^ centroids[c]).bit_count(), c))

    for _ in range(iterations):
        assignment = [nearest(code) for code in codes]
        for cluster in range(clusters):
            own = [code for code, c in zip(codes, assignment, strict=True) if c == cluster]
            if own:
                centroids[cluster] = sum(
                    1 << bit
                    for bit in range(63)
                    if 2 * sum(code >> bit & 1 for code in own) > len(own)
                )
    return [nearest(code) for code in codes]


def random_codes(batch: int, length: int) -> Tensor:
    return torch.randint(2**63 - 1, (batch, length))


def test_bits_survive_packing() -> None:
    bits = torch.rand(2, 5, 64) < 0.5
    assert torch.equal(unpack(pack(bits)) > 0, bits)
    assert pack(torch.arange(64) == 5).item() == 1 << 5


def test_codes_hold_the_signs_of_projections() -> None:
    hashing = SignHash(8, bits=20, seed=3)
    x = torch.randn(4, 8)
    codes = hashing(x)
    assert codes.dtype == torch.int64
    for row, code in zip(x, codes.tolist(), strict=True):
        for bit in range(63):
            assert (code >> bit & 1) == int(bit < 20 and row @ hashing.planes[:, bit] > 0)


def test_planes_come_from_their_own_generator() -> None:
    torch.manual_seed(1)
    first = SignHash(8, seed=5).planes
    torch.manual_seed(2)
    assert torch.equal(SignHash(8, seed=5).planes, first)
    assert not torch.equal(SignHash(8, seed=6).planes, first)
    assert "planes" in SignHash(8).state_dict()


@pytest.mark.parametrize("bits", [0, 64])
def test_bits_must_fit_an_integer(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits must be in 1..63, got {bits}"):
        SignHash(8, bits)


@pytest.mark.parametrize(("length", "clusters"), [(40, 6), (7, 7), (5, 9), (64, 1)])
@pytest.mark.parametrize("iterations", [0, 1, 10])
def test_kmeans_is_lloyds(length: int, clusters: int, iterations: int) -> None:
    codes = random_codes(3, length)
    found = hamming_kmeans(codes, clusters, iterations=iterations)
    for row, assignment in zip(codes.tolist(), found.tolist(), strict=True):
        assert assignment == literal_kmeans(row, clusters, iterations)


def test_many_clusters_keep_the_first_of_equally_near_ones() -> None:
    codes = random_codes(1, 900)
    found = hamming_kmeans(codes, 300, iterations=2)[0].tolist()
    assert found == literal_kmeans(codes[0].tolist(), 300, 2)


def test_kmeans_is_the_same_in_half_precision() -> None:
    codes = random_codes(2, 900)
    expected = hamming_kmeans(codes, 300, iterations=2)
    with default_dtype(torch.bfloat16):
        assert torch.equal(hamming_kmeans(codes, 300, iterations=2), expected)


def test_different_codes_have_clusters_of_their_own_if_there_are_enough() -> None:
    codes = random_codes(1, 9).repeat(1, 2)
    found = hamming_kmeans(codes, 20)
    assert torch.equal(found[0, :9], found[0, 9:])
    assert len(found.unique()) == 9


def test_padding_does_not_count() -> None:
    codes = random_codes(2, 30)
    mask = torch.rand(2, 30) < 0.6
    found = hamming_kmeans(codes, 5, mask)
    for row in range(2):
        alone = hamming_kmeans(codes[row][mask[row]][None], 5)
        assert torch.equal(found[row][mask[row]], alone[0])
