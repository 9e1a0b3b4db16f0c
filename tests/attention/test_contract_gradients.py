"""The contract for gradients of gradients, and for the transforms of torch.func."""

import re

import pytest
import torch
from contract_layers import FORMS, WIDTH, build, name
from torch import Tensor
from torch.func import functional_call, grad, vmap

from clusterformer.attention import BlockTopKAttention
from clusterformer.losses import clustering_loss

every_form = pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
REFUSED = re.compile("clusterformer::.* has no gradient of its gradient|derivative for aten::.*not")


@every_form
@pytest.mark.parametrize("length", [11, pytest.param(300, marks=pytest.mark.slow)])
def test_gradients_of_gradients_are_right_or_refused(cls, causal, length: int) -> None:
    layer = build(cls, causal).double()
    x, weight, way = torch.randn(3, 1, length, WIDTH, dtype=torch.float64)

    def gradient(x: Tensor, further: bool = False) -> Tensor:
        return torch.autograd.grad(layer(x).values.sin().sum(), x, create_graph=further)[0]

    x = x.requires_grad_()
    try:
        (second,) = torch.autograd.grad((gradient(x, further=True) * weight).sum(), x)
    except RuntimeError as error:
        if not REFUSED.match(str(error)):
            raise
        return
    found, nearest = (second * way).sum().item(), float("inf")
    for step in (1e-3, 1e-4, 1e-5):  # a step may change what is selected
        change = gradient(x + step * way) - gradient(x - step * way)
        slope = (change * weight).sum().item() / (2 * step)
        nearest = min(nearest, abs(slope - found))
    assert nearest < 0.02 * max(1, abs(found))


@every_form
def test_the_gradient_of_a_token_at_zero_is_bounded(cls, causal) -> None:
    """Silence is such a token, and one whose embedding is that of padding. It has no direction."""
    layer, x = build(cls, causal), torch.randn(2, 40, WIDTH)
    x[0, [7, 8, 30]] = 0
    x.requires_grad_()
    values, grouping = layer(x)
    loss = values.sin().sum()
    if grouping is not None and grouping.points is not None:
        loss = loss + clustering_loss(grouping, torch.ones(2, 40, dtype=torch.bool)).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    size = gradient.norm(dim=-1)
    assert size[0].max() < 10 * size[1].max()


@every_form
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # a loop over the rows
def test_vmap_gives_what_a_batch_gives(cls, causal) -> None:
    layer, x = build(cls, causal), torch.randn(3, 19, WIDTH, requires_grad=True)
    values = vmap(lambda row: layer(row[None]).values[0], randomness="different")(x)
    expected = layer(x).values
    torch.testing.assert_close(values, expected)
    found, right = (torch.autograd.grad(out.sin().sum(), x)[0] for out in (values, expected))
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_each_row_come_from_vmap(causal) -> None:
    layer, x = build(BlockTopKAttention, causal), torch.randn(3, 19, WIDTH)
    weights = {key: value.detach() for key, value in layer.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(layer, weights, (row[None],)).values.square().sum()

    found = vmap(grad(loss), (None, 0))(weights, x)
    for at, row in enumerate(x):
        layer.zero_grad()
        layer(row[None]).values.square().sum().backward()
        for key, parameter in layer.named_parameters():
            torch.testing.assert_close(found[key][at], parameter.grad)
