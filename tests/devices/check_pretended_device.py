"""The pretended device refuses what CUDA refuses, and no more; see test_devices.py."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from pretended_tensor import DEVICE
from torch import Tensor, nn


@pytest.fixture
def device() -> torch.device:
    return DEVICE


Use = Callable[[Tensor, Tensor, Tensor], object]


@pytest.mark.parametrize(
    "use",
    [
        lambda x, y, i: x + y,
        lambda x, y, i: y.add_(x),
        lambda x, y, i: torch.tensor(0.0).add_(x[0, 0]),
        lambda x, y, i: torch.stack([x[0, 0], torch.tensor(0.0)]),
        lambda x, y, i: torch.where(y > 0, x, x),
        lambda x, y, i: x.masked_fill(y > 0, 0.0),
        lambda x, y, i: x.gather(1, torch.zeros(3, 1, dtype=torch.long)),
        lambda x, y, i: x.index_select(0, i),
        lambda x, y, i: y[i.to(x.device)],
        lambda x, y, i: x.index_put_((i,), y[0]),
        lambda x, y, i: nn.functional.cross_entropy(x, i.expand(3)),
        lambda x, y, i: torch.randn(3, generator=torch.Generator(), device=x.device),
        lambda x, y, i: torch.randn(3, generator=torch.Generator(x.device)),
        lambda x, y, i: nn.Linear(3, 1).to(x.device)(y),
        lambda x, y, i: x.numpy(),
    ],
)
def test_what_mixes_devices_is_refused(use: Use, device: torch.device) -> None:
    with pytest.raises(RuntimeError, match=r"device|not supported"):
        use(torch.randn(3, 3).to(device), torch.randn(3, 3), torch.tensor([1]))


@pytest.mark.parametrize(
    "use",
    [
        lambda x, y, i: x + torch.tensor(1.0) + y[0, 0],
        lambda x, y, i: torch.where(x > 0, torch.tensor(1.0), x),
        lambda x, y, i: x.masked_fill(x > 0, torch.tensor(1.0)),
        lambda x, y, i: x[i] + x[y[:, 0] > -9],
        lambda x, y, i: x.index_put_((i,), torch.tensor(1.0)),
        lambda x, y, i: x.copy_(y),
        lambda x, y, i: x.new_tensor([1.0]) + torch.tensor([1.0], device=x.device),
        lambda x, y, i: torch.randn(3, generator=torch.Generator(x.device), device=x.device),
        lambda x, y, i: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    ],
)
def test_what_cuda_takes_is_taken(use: Use, device: torch.device) -> None:
    made = use(torch.randn(3, 3).to(device), torch.randn(3, 3), torch.tensor([1]))
    assert isinstance(made, Tensor)
    assert made.device == device


def test_a_module_trains_and_moves(device: torch.device) -> None:
    with device:
        module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    before = module[0].weight.detach().cpu().clone()
    module(torch.randn(5, 3, device=device)).square().sum().backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    assert not torch.equal(module[0].weight.cpu(), before)
    file = io.BytesIO()
    torch.save(copy.deepcopy(module).state_dict(), file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu", weights_only=True)
    module.double().to("cpu").load_state_dict(saved)
    assert torch.equal(module[0].weight, saved["0.weight"].double())
    assert type(module[0].weight) is nn.Parameter


def test_autocast_rounds_matrix_products(device: torch.device) -> None:
    layer, x = nn.Linear(3, 4).to(device), torch.randn(2, 3).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert layer(x).softmax(-1).dtype == torch.float32
