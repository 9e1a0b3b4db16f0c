import pytest
import torch
from torch import nn

from clusterformer.models.dropout import Dropout

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("p", [0.1, 0.4, 0.9])
def test_drops_each_value_with_the_probability_asked(p):
    torch.manual_seed(0)
    x = torch.ones(1000, 999)
    kept = Dropout(p)(x)
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(1.0).div(1 - p).item()}
    share = (kept == 0).float()
    for mean in (share.mean(0), share.mean(1)):  # no row, column or neighbour hangs together
        assert (mean - p).abs().max() < 5 * (p * (1 - p) / 999) ** 0.5
    neighbours = torch.stack([share[:, :-1].flatten(), share[:, 1:].flatten()])
    assert torch.corrcoef(neighbours)[0, 1].abs() < 0.005


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_passes_where_the_value_did(dtype):
    x = torch.randn(7, 13).to(dtype).requires_grad_()
    out = Dropout(0.5)(x)
    out.sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    torch.testing.assert_close(out, x.detach() * x.grad)


def test_same_seed_same_mask():
    dropout, x = Dropout(0.3), torch.randn(5, 3, 2)
    masks = []
    for _ in range(2):
        torch.manual_seed(7)
        masks.append(dropout(x))
    assert torch.equal(*masks)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_does_nothing_in_evaluation_and_the_limits_as_torch(p):
    x = torch.randn(4, 4)
    assert torch.equal(Dropout(p).eval()(x), x)
    if p in (0.0, 1.0):
        assert torch.equal(Dropout(p)(x), nn.Dropout(p)(x))


def test_odd_and_empty_shapes():
    for shape in [(), (1,), (3, 5, 7), (0, 4)]:
        assert Dropout(0.5)(torch.ones(shape)).shape == shape
