"""A causal language model: token by token is the whole forward, and nothing is read ahead."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from clusterformer.attention import (
    FullAttention,
    LocalAttention,
    MultipoleAttention,
    NeuralClusteringAttention,
    ReformerAttention,
    RoutingAttention,
)
from clusterformer.data.streams import unpadded_batch
from clusterformer.models.config import TransformerConfig
from clusterformer.models.language_model import LanguageModel

NEURAL = partial(
    NeuralClusteringAttention, num_clusters=4, chunk_size=4, local_heads=1, local_window=4
)


def network(attention, positions: str = "rotary", size: int = 20, **options) -> LanguageModel:
    shape = {"d_model": 16, "num_heads": 2, "d_ff": 32, "dropout": 0.0, **options}
    return LanguageModel(
        TransformerConfig(attention, positions=positions, **shape), vocab_size=size
    ).eval()


def neural_and_local(**options) -> LanguageModel:
    return network(NEURAL, num_layers=3, outer_attention=partial(LocalAttention, window=5))


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned", "none"])
@pytest.mark.parametrize("attention", [FullAttention, NEURAL], ids=["full", "neural"])
def test_step_by_step_equals_the_full_forward(attention, positions: str) -> None:
    check_steps(network(attention, positions))


def test_step_by_step_equals_the_full_forward_in_a_mixed_stack() -> None:
    model = neural_and_local()
    kinds = [type(layer.attention.core) for layer in model.decoder.layers]
    assert kinds == [LocalAttention, NeuralClusteringAttention, LocalAttention]
    check_steps(model)


STRICT = [
    FullAttention,
    NEURAL,
    partial(NEURAL, num_clusters=3, chunk_size=2, local_heads=1, local_window=3),
    partial(NEURAL, num_clusters=3, chunk_size=2, local_heads=2, local_window=3),
    partial(NEURAL, num_clusters=2, chunk_size=3, look_back=2, coupling=False),
    partial(LocalAttention, window=5),
    partial(RoutingAttention, num_clusters=3),
    ReformerAttention,
    MultipoleAttention,
]


@pytest.mark.parametrize(
    ("positions", "length"),
    [
        ("rotary", 4),
        ("sinusoidal", 23),
        *(
            pytest.param(positions, length, marks=pytest.mark.slow)
            for positions, length in [
                ("rotary", 1), ("rotary", 23), ("sinusoidal", 1), ("sinusoidal", 4)
            ]
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("attention", STRICT)
def test_a_beginning_read_at_once_is_that_read_step_by_step(
    attention, positions: str, length: int
) -> None:
    model = network(attention, positions)
    tokens = torch.randint(1, 20, (3, 31), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        expected, slow = None, model.start(3)
        for column in tokens[:, :length].unbind(1):
            expected, slow = model.step(column, slow)
        found, fast = model.prefill(tokens[:, :length])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        for column in tokens[:, length:].unbind(1):
            expected, slow = model.step(column, slow)
            found, fast = model.step(column, fast)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert fast.position.tolist() == slow.position.tolist() == [31] * 3


def check_steps(model: LanguageModel) -> None:
    tokens = torch.randint(1, 20, (3, 31))
    with torch.no_grad():
        expected = model(unpadded_batch(tokens, tokens)).logits
        state, found = model.start(3), []
        for column in tokens.unbind(1):
            logits, state = model.step(column, state)
            found.append(logits)
    torch.testing.assert_close(torch.stack(found, 1), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model", ["neural", pytest.param("mixed", marks=pytest.mark.slow)])
def test_random_tokens_cannot_be_predicted(model: str) -> None:
    """A causal model that reads the answer would go below ln V; an honest one cannot."""
    torch.manual_seed(1)
    net = network(NEURAL, d_model=32, size=9) if model == "neural" else neural_and_local()
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(100):
        tokens = torch.randint(1, 9, (16, 33))
        logits = net(unpadded_batch(tokens[:, :-1], tokens[:, 1:])).logits
        # the 8 tokens that occur are a free choice; what never occurs is soon ruled out
        loss = F.cross_entropy(logits[..., 1:9].flatten(0, 1), tokens[:, 1:].flatten() - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = torch.tensor(losses[-40:])
    assert last.mean() > math.log(8) - 4 * last.std() / math.sqrt(40)
    assert last.mean() < math.log(8) + 0.05
