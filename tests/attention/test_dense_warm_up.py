"""The dense warm-up: who attends to all keys when, and what counts as a step of training."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clusterformer.attention import (
    IndexerAttention,
    MultiHeadAttention,
    QueryKeyClusteringAttention,
)
from clusterformer.attention.multi_head import Attended

CLUSTERS = {"num_clusters": 6, "chunk_size": 2, "dense_length": 0, "probes": 0, "key_clusters": 1}
MECHANISMS = {
    "indexer": partial(IndexerAttention, 32, 4, causal=True, top_k=3),
    "clusters": partial(QueryKeyClusteringAttention, 32, 4, causal=True, **CLUSTERS),
}
ALL_KEYS = {"indexer": {"top_k": 99}, "clusters": {"dense_length": 99}}
each = pytest.mark.parametrize("name", MECHANISMS)


def loss_of(*outs: Attended) -> Tensor:
    own = [
        out.grouping.loss.sum() for out in outs if out.grouping and out.grouping.loss is not None
    ]
    return sum((out.values.square().sum() for out in outs), sum(own))


@each
def test_attention_is_dense_in_the_first_steps_of_training_alone(name: str) -> None:
    core = MECHANISMS[name](dense_steps=2)
    q, k, v = torch.randn(3, 2, 4, 29, 8).unbind()
    hidden, mask = torch.randn(2, 29, 32), torch.arange(29) < torch.tensor([[29], [20]])
    everything = MECHANISMS[name](**ALL_KEYS[name])
    everything.load_state_dict(core.state_dict(), strict=False)
    full, _ = everything.eval()(q, k, v, hidden=hidden, key_mask=mask)

    def is_dense() -> bool:
        mixed, _ = core(q, k, v, hidden=hidden, key_mask=mask)
        return torch.allclose(*(x.transpose(1, 2)[mask] for x in (mixed, full)), atol=1e-5)

    core.eval()
    assert [is_dense() for _ in range(2)] == [False, False]
    core.train()
    with torch.no_grad():
        assert not is_dense()
    assert [is_dense() for _ in range(3)] == [True, True, False]
    core.load_state_dict({**core.state_dict(), "passes": torch.tensor(1)})
    assert [is_dense(), is_dense()] == [True, False]


@each
def test_a_pass_that_is_repeated_to_save_memory_counts_once(name: str) -> None:
    x = torch.randn(2, 19, 32)
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        layer = MultiHeadAttention(MECHANISMS[name](dense_steps=2))
        found = []
        for _ in range(3):
            out = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            parameters = list(layer.parameters())
            found += torch.autograd.grad(loss_of(out), parameters, materialize_grads=True)
        gradients.append(found)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@each
def test_a_pass_that_is_repeated_selects_what_the_first_one_selected(name: str) -> None:
    """Reentrant checkpointing runs its first pass without gradients: it has no warm-up."""
    gradients = []
    for dense_steps in (0, 2):
        torch.manual_seed(0)
        layer = MultiHeadAttention(MECHANISMS[name](dense_steps=dense_steps))
        x = torch.randn(2, 19, 32, requires_grad=True)
        checkpoint(
            lambda x, layer=layer: layer(x).values, x, use_reentrant=True
        ).sin().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


@each
def test_all_passes_before_a_backward_pass_count_once(name: str) -> None:
    """As of a layer that is used twice; one step between them has no backward pass."""
    inputs = [torch.randn(2, 19, 32, requires_grad=True) for _ in range(2)]
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        layer = MultiHeadAttention(MECHANISMS[name](dense_steps=2))
        found = []
        for step in range(4):
            outs = [
                checkpoint(layer, x, use_reentrant=False) if again else layer(x) for x in inputs
            ]
            if step != 1:
                weights = [*layer.parameters(), *inputs]
                found += torch.autograd.grad(loss_of(*outs), weights, materialize_grads=True)
        gradients.append(found)
        assert int(layer.core.passes) == 3
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_clusters_learn_from_every_token_in_the_dense_warm_up() -> None:
    core = MECHANISMS["clusters"](dense_steps=1)
    q, k, v = torch.randn(3, 2, 4, 29, 8, requires_grad=True).unbind()
    gradients = []
    for _ in range(2):
        core.zero_grad()
        core(q, k, v, hidden=torch.randn(2, 29, 32))[0].square().sum().backward()
        gradients.append(core.query_space.weight.grad)
    assert gradients[0].abs().sum() > 0
    assert gradients[1] is None  # of what is selected, z does not learn


@each
def test_a_negative_number_of_dense_steps_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="dense_steps must be"):
        MECHANISMS[name](dense_steps=-1)
