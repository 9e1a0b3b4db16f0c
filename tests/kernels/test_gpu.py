"""The Triton kernels on a GPU: bfloat16, large sizes, determinism, memory, long offsets.

python -m pytest -n 0 -m gpu tests/kernels
compute-sanitizer --tool memcheck python -m pytest -n 0 -m gpu tests/kernels -k "not million"
"""

import pytest
import torch
from torch import Tensor

from clusterformer.kernels import grouping, reference
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks, window_blocks
from clusterformer.kernels.dispatch import VARIABLE

pytestmark = pytest.mark.gpu
HEADS, WIDTH, WIDE = 8, 64, 16
FORMS = ("circle", "strict", "window")


def blocks_of(
    form: str, batch: int, length: int, mask: Tensor | None = None
) -> tuple[Blocks, dict]:
    if form == "window":
        device = torch.device("cuda")
        return window_blocks(length, batch, 256, mask, device=device), {"causal": True}
    assignment = torch.randint(64, (batch, length), device="cuda")
    grouped = grouping.sort(assignment, 64, mask)
    if form == "strict":
        return cluster_chunks(grouped, 64, mask), {"causal": True}
    return equal_blocks(grouped, 64, mask, look_ahead=1), {}


def inputs(batch: int, length: int, dtype: torch.dtype) -> list[Tensor]:
    rows = [torch.randn(batch, length, HEADS, WIDTH, device="cuda", dtype=dtype) for _ in "qkv"]
    columns = [torch.randn(batch, length, WIDE, device="cuda", dtype=dtype) for _ in "qk"]
    return [*(x.transpose(1, 2) for x in rows), *columns]


def step(tensors: list[Tensor], blocks: Blocks, options: dict) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    q, k, v, *extra = leaves
    out = chunk_attention(q, k, v, blocks, scale=0.125, extra=(extra[0], extra[1]), **options)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_as_near_to_float32_as_plain_pytorch(form, dtype, monkeypatch) -> None:
    blocks, options = blocks_of(form, 2, 4099)
    tensors = inputs(2, 4099, dtype)
    found = step(tensors, blocks, options)
    monkeypatch.setenv(VARIABLE, "reference")
    plain = step(tensors, blocks, options)
    truth = step([x.float() for x in tensors], blocks, options)
    for ours, theirs, true in zip(found, plain, truth, strict=True):
        error, limit = ((x.float() - true).abs().max() for x in (ours, theirs))
        assert error <= 2 * limit + 1e-4 * true.abs().max()


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_twice(form) -> None:
    blocks, options = blocks_of(form, 2, 4099)
    tensors = inputs(2, 4099, torch.bfloat16)
    first, second = (step(tensors, blocks, options) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_sorting_and_assigning_long_sequences() -> None:
    points, anchors = torch.randn(2, 65537, 16, device="cuda"), torch.randn(256, 16, device="cuda")
    chosen, _ = grouping.assign(points, anchors)
    scores = (anchors @ points.transpose(1, 2)).log_softmax(-1)
    missed = scores.amax(1) - scores.gather(1, chosen[:, None])[:, 0]
    assert missed.max() < 1e-3
    for ours, theirs in zip(grouping.sort(chosen, 256), reference.sort(chosen, 256), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("padded", [False, True])
def test_cutting_long_sequences(form, padded, monkeypatch) -> None:
    length = 65537
    lengths = torch.tensor([[length], [1000]], device="cuda")
    mask = torch.arange(length, device="cuda") < lengths if padded else None
    found = []
    for kernel in ("triton", "reference"):
        monkeypatch.setenv(VARIABLE, kernel)
        torch.manual_seed(0)
        found.append(blocks_of(form, 2, length, mask)[0])
    for name in ("members", "filled", "slot", "copies", "visible"):
        assert torch.equal(*(getattr(blocks, name) for blocks in found)), name


@pytest.mark.parametrize(("length", "width"), [(65537, 16), (4099, 300), (4099, 512)])
def test_centroid_means_of_long_sequences(length, width) -> None:
    """As near to float64 as plain PyTorch, and the same bits twice."""
    points = torch.randn(2, length, width, device="cuda")
    anchors = torch.randn(256, width, device="cuda") / width**0.5
    lengths = torch.tensor([[length], [length // 2]], device="cuda")
    mask = torch.arange(length, device="cuda") < lengths
    gradient = torch.randn(2, 256, width, device="cuda")

    def plain(points: Tensor, anchors: Tensor) -> Tensor:
        scores = anchors @ points.transpose(1, 2)
        return scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1) @ points

    def fused(points: Tensor, anchors: Tensor) -> Tensor:
        return grouping.assign(points, anchors, mask)[1]

    def run(means_of, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (points, anchors)]
        means = means_of(*leaves)
        return [means.detach(), *torch.autograd.grad(means, leaves, gradient.to(dtype))]

    cases = (fused, torch.float32), (fused, torch.float32), (plain, torch.float32)
    found = [run(*case) for case in (*cases, (plain, torch.float64))]
    for ours, again, theirs, true in zip(*found, strict=True):
        assert torch.equal(ours, again)
        error, limit = ((x - true).abs().max() for x in (ours, theirs))
        assert error <= 4 * limit + 1e-5 * true.abs().max()


def test_a_million_tokens_take_memory_in_proportion() -> None:
    peaks = []
    for length in (2**19, 2**20):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        blocks, options = blocks_of("circle", 1, length)
        step(inputs(1, length, torch.bfloat16), blocks, options)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 2.2 * peaks[0]


def test_rows_beyond_the_reach_of_32_bits() -> None:
    length, stride = 4097, 2**19
    blocks, options = blocks_of("window", 1, length)
    storage = torch.zeros(length * stride, device="cuda", dtype=torch.bfloat16)
    far = storage.as_strided((1, 1, length, WIDTH), (length * stride, WIDTH, stride, 1))
    near = torch.randn_like(far)
    far.copy_(near)
    expected, found = (
        chunk_attention(x, x, x, blocks, scale=0.125, **options) for x in (near.contiguous(), far)
    )
    assert torch.equal(found, expected)


def test_points_beyond_the_reach_of_32_bits() -> None:
    length, width = 2**27 + 64, 16
    points = torch.zeros(1, length, width, device="cuda")
    anchors = torch.randn(5, width, device="cuda")
    points[:, -64:] = torch.randn(64, width, device="cuda")
    real, normalizer = points[..., 0].isfinite(), anchors.new_zeros(1, 5)
    found = torch.ops.clusterformer.assign_triton(points, anchors, real, normalizer)[:, -64:]
    assert torch.equal(found, (anchors @ points[:, -64:].transpose(1, 2)).argmax(1))


def test_more_rows_than_a_second_dimension_of_a_grid_holds(monkeypatch) -> None:
    from clusterformer.kernels import _chunking_triton

    rows, length = 70_000, 5
    assignment = torch.randint(3, (rows, length), device="cuda")
    # small integers: scores are exact, so equal ones tie in both
    points, anchors = (
        torch.randint(-4, 5, (size, 4), device="cuda").float() for size in (rows * length, 3)
    )
    found = []
    for kernel in ("triton", "reference"):
        monkeypatch.setenv(VARIABLE, kernel)
        leaves = [x.clone().requires_grad_() for x in (points, anchors)]
        chosen, means = grouping.assign(
            leaves[0].view(rows, length, 4), leaves[1], without_normalizer=True
        )
        gradients = torch.autograd.grad(means.square().mean(), leaves)
        grouped = grouping.sort(assignment, 3)
        cuts = equal_blocks(grouped, 3, look_ahead=1), cluster_chunks(grouped, 2)
        indices = [x for blocks in cuts for x in blocks[:5]]
        found.append([chosen, *grouped, *indices, means.detach(), *gradients])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    members, _ = _chunking_triton.packed(cuts[0])
    assert torch.equal(members.long(), cuts[0].members.masked_fill(~cuts[0].filled, -1))
