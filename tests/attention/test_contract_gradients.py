"""The contract for the transforms of torch.func."""

import pytest
import torch
from contract_layers import FORMS, WIDTH, build, name
from torch import Tensor
from torch.func import functional_call, grad, vmap

from clusterformer.attention import BlockTopKAttention

every_form = pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)


@every_form
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # a loop over the rows
def test_vmap_gives_what_a_batch_gives(cls, causal) -> None:
    layer, x = build(cls, causal), torch.randn(3, 19, WIDTH)
    values = vmap(lambda row: layer(row[None]).values[0], randomness="different")(x)
    torch.testing.assert_close(values, layer(x).values)


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
