"""Random keys in training: the sum that they stand for, who sees them, and what they teach."""

import pytest
import torch
from torch import Tensor

from clusterformer.attention import QueryKeyClusteringAttention
from clusterformer.attention.sampled_keys import sampled_attention

WIDTH, HEADS, LENGTH = 32, 4, 41
SMALL = {"num_clusters": 2, "key_clusters": 2, "chunk_size": 4, "dense_length": 0, "probes": 0,
         "local_heads": 0}  # fmt: skip
both = pytest.mark.parametrize("causal", [False, True])


def layer(causal: bool, **options: int) -> QueryKeyClusteringAttention:
    return QueryKeyClusteringAttention(WIDTH, HEADS, causal=causal, **{**SMALL, **options})


def inputs() -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """Draw queries, keys and values, hidden states, and a mask with a shorter text."""
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH // HEADS).unbind()
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, [3, 8, *range(30, LENGTH)]] = False
    return (q, k, v), torch.randn(2, LENGTH, WIDTH), mask


@both
@pytest.mark.parametrize("padded", [False, True])
def test_all_keys_as_sample_are_full_attention(causal: bool, padded: bool) -> None:
    """Each key counts once, whether it was selected or drawn."""
    core = layer(causal, sampled_keys=99)
    rows, hidden, mask = inputs()
    key_mask = mask if padded else None
    values, _ = core(*rows, hidden=hidden, key_mask=key_mask)
    everything = layer(causal, dense_length=99).eval()
    everything.load_state_dict(core.state_dict())
    full, _ = everything(*rows, hidden=hidden, key_mask=key_mask)
    real = mask if padded else mask | True
    torch.testing.assert_close(values.transpose(1, 2)[real], full.transpose(1, 2)[real])
    selected, _ = core.eval()(*rows, hidden=hidden, key_mask=key_mask)
    assert not torch.allclose(selected, values)


@both
def test_on_average_the_sums_are_those_over_all_keys(causal: bool) -> None:
    """With equal weights the sum of v over all keys is their mean times N."""
    core = layer(causal, sampled_keys=12)
    (q, k, v), hidden, mask = inputs()
    torch.nn.init.zeros_(core.query_space.weight)  # each logit is 0
    lengths = mask.cumsum(1) if causal else mask.sum(1, keepdim=True).expand(-1, LENGTH)
    marked = torch.zeros_like(v).index_fill(2, torch.tensor([5]), 1.0)
    with torch.no_grad():
        drawn = [core(q, k, marked, hidden=hidden, key_mask=mask)[0] for _ in range(400)]
        chosen = core.eval()(q, k, marked, hidden=hidden, key_mask=mask)[0]
    late = mask & (torch.arange(LENGTH) > 20)
    share = torch.stack(drawn).mean(0)[..., 0].transpose(1, 2)
    unseen = chosen[..., 0].transpose(1, 2) == 0
    expected = (1 / lengths)[..., None].expand_as(share)
    there = late[..., None] & unseen
    assert there.sum() > 20
    ratio = share[there].mean() / expected[there].mean()
    assert 0.8 < ratio < 1.25


@pytest.mark.parametrize("count", [12, 99])
def test_the_sample_stands_for_the_real_keys_of_its_own_text(count: int) -> None:
    """With logits of 0 and no key selected, the sum is the number of keys, whatever is drawn."""
    rows, _, mask = inputs()
    q, k, v = (x[:, 0] for x in rows)
    members = torch.arange(LENGTH).expand(2, 1, LENGTH)  # one group of all queries
    seen = torch.zeros_like(members)
    _, masses = sampled_attention(
        0 * q, k, v, members, members >= 0, seen, seen > 0, count, mask, causal=False, scale=1.0
    )
    numbers = mask.sum(1, keepdim=True).expand(-1, LENGTH).float()
    torch.testing.assert_close(masses[..., 0].exp(), numbers)


@both
def test_a_later_token_moves_none_before_it(causal: bool) -> None:
    core = layer(causal, sampled_keys=12)
    rows, hidden, mask = inputs()
    found = []
    for last in (0.0, 3.0):
        torch.manual_seed(1)
        changed = hidden + last * torch.eye(LENGTH)[25][:, None] * torch.randn(WIDTH)
        found.append(core(*rows, hidden=changed, key_mask=mask)[0].transpose(1, 2)[:, :25])
    assert torch.equal(*found) == causal


@both
def test_a_full_text_has_the_same_sample_beside_a_padded_one(causal: bool) -> None:
    core = layer(causal, sampled_keys=12)
    rows, hidden, mask = inputs()
    found = []
    for key_mask in (None, mask):
        torch.manual_seed(3)
        found.append(core(*rows, hidden=hidden, key_mask=key_mask)[0][0])
    torch.testing.assert_close(*found)


@both
def test_padding_has_no_weight(causal: bool) -> None:
    core = layer(causal, sampled_keys=12)
    (q, k, v), hidden, mask = inputs()
    found = []
    for content in (0.0, 1e3):
        torch.manual_seed(3)
        row = v.masked_fill(~mask[:, None, :, None], content)
        found.append(core(q, k, row, hidden=hidden, key_mask=mask)[0].transpose(1, 2)[mask])
    assert torch.equal(*found)


@both
def test_each_query_learns_from_the_sample(causal: bool) -> None:
    """Without it no gradient reaches the points: what is selected does not teach."""
    rows, hidden, _ = inputs()
    hidden.requires_grad_()
    for count in (0, 12):
        core = layer(causal, sampled_keys=count)
        values, _ = core(*rows, hidden=hidden)
        if not count:
            assert not values.requires_grad
            continue
        for token in (20, LENGTH - 1):
            one = values[:, :, token].square().sum()
            grad = torch.autograd.grad(one, hidden, retain_graph=True)[0]
            assert grad[:, token].abs().amax(1).min() > 0
        values.square().sum().backward()
        for weight in (core.query_space.weight, core.key_space.weight):
            assert weight.grad is not None
            assert weight.grad.isfinite().all()
            assert weight.grad.any()


@both
def test_the_gradient_is_that_of_finite_differences(causal: bool) -> None:
    core = layer(causal, sampled_keys=99).double()
    (q, k, v), hidden, mask = inputs()
    q, k, v, hidden = (x.double() for x in (q, k, v, hidden))
    with torch.no_grad():
        direction, weight = torch.randn_like(hidden), torch.randn_like(v)

    def loss(step: float) -> Tensor:
        values, _ = core(q, k, v, hidden=hidden + step * direction, key_mask=mask)
        return (values * weight * mask[:, None, :, None]).sum()

    start = torch.zeros((), dtype=torch.float64, requires_grad=True)
    values, _ = core(q, k, v, hidden=hidden + start * direction, key_mask=mask)
    (slope,) = torch.autograd.grad((values * weight * mask[:, None, :, None]).sum(), start)
    torch.testing.assert_close((loss(1e-3) - loss(-1e-3)) / 2e-3, slope, rtol=2e-3, atol=2e-3)


@both
def test_a_test_sees_no_sample(causal: bool) -> None:
    core = layer(causal, sampled_keys=12)
    rows, hidden, mask = inputs()
    none = layer(causal).eval()
    none.load_state_dict(core.state_dict())
    expected, _ = none(*rows, hidden=hidden, key_mask=mask)
    values, _ = core.eval()(*rows, hidden=hidden, key_mask=mask)
    assert torch.equal(values, expected)


def test_a_negative_number_of_sampled_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="sampled_keys"):
        layer(False, sampled_keys=-1)
