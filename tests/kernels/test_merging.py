"""Further keys in the softmax of blocks: values and gradients are those of one softmax over all."""

import pytest
import torch
from torch import Tensor

from clusterformer.kernels import _narrow_blocks_cpu, reference
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import equal_blocks
from clusterformer.kernels.dispatch import VARIABLE

B, H, N, D, A = 2, 2, 13, 4, 3
SCALE = 0.4


@pytest.mark.parametrize("way", ["narrow", "blocks", "reference", "triton"])
@pytest.mark.parametrize("far", [-1e4, 0.0, 1e4], ids=["weightless", "even", "dominant"])
def test_one_softmax(way: str, far: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "triton":
        pytest.importorskip("triton")
    if way in ("reference", "triton"):
        monkeypatch.setenv(VARIABLE, way)
    if way == "blocks":
        monkeypatch.setattr(_narrow_blocks_cpu, "SCORES", 0)
    real = torch.arange(N) < torch.tensor([[N], [N - 4]])
    grouped = reference.sort(torch.randint(3, (B, N)), 3, real)
    blocks = equal_blocks(grouped, N, real, 1, 1, 2)
    q, k, v, values = (torch.randn(B, H, N, D, requires_grad=True) for _ in range(4))
    ask, offer = (torch.randn(B, N, A, requires_grad=True) for _ in range(2))
    masses = (torch.randn(B, H, N) + far).requires_grad_()
    inputs = [q, k, v, ask, offer, values, masses]

    def given() -> Tensor:
        return chunk_attention(
            q, k, v, blocks, scale=SCALE, extra=(ask, offer),
            more=(values.masked_fill(~real[:, None, :, None], 0), masses),
        )  # fmt: skip

    def defined() -> Tensor:
        seen = torch.zeros(B, N, N, dtype=torch.bool)
        for row in range(B):
            entry = (blocks.slot[row] // 2).tolist()
            for i in real[row].nonzero().flatten().tolist():
                window = blocks.members[row, entry[i] - 1 : entry[i] + 2]
                held = blocks.filled[row, entry[i] - 1 : entry[i] + 2]
                seen[row, i, window[held]] = True
        logits = SCALE * (q @ k.mT + (ask @ offer.mT)[:, None])
        logits = logits.masked_fill(~seen[:, None], float("-inf"))
        weights = torch.cat([logits, masses[..., None]], -1).softmax(-1)
        out = weights[..., :-1] @ v + weights[..., -1:] * values
        return out.masked_fill(~real[:, None, :, None], 0)

    weight = torch.randn(B, H, N, D)
    found, expected = given(), defined()
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
