"""The auxiliary losses of texts with full attention, beside texts with clusters."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterformer.attention import NeuralClusteringAttention
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import Encoder
from clusterformer.stack_groupings import StackGroupings

SHORT, LONG = 8, 20
clusters = partial(NeuralClusteringAttention, num_clusters=3, block_size=4, dense_length=SHORT)
strict = partial(clusters, causal=True, chunk_size=3)
FORMS: dict[str, dict[str, Any]] = {
    "default": {"attention": clusters},
    "strict": {"attention": strict},
    "a clustering for each head": {"attention": partial(clusters, num_clusterings=2)},
    "layers of other limits": {
        "attention": strict,
        "outer_attention": partial(strict, dense_length=LONG - 1),
        "num_layers": 3,
    },
}


def encoder(form: str) -> Encoder:
    torch.manual_seed(0)
    return Encoder(TransformerConfig(d_model=16, num_heads=2, d_ff=32, dropout=0.0, **FORMS[form]))


def step(network: Encoder, texts: list[Tensor], padding: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Both losses of a batch, and the gradient of their sum in all weights."""
    length = max(map(len, texts)) + padding
    x = torch.stack([torch.cat([text, text.new_zeros(length - len(text), 16)]) for text in texts])
    mask = torch.arange(length) < torch.tensor([[len(text)] for text in texts])
    out = network(x, mask)
    clustering, sorting = StackGroupings("", out.groupings, mask, out.cores).auxiliary(
        "contrastive"
    )
    weights = list(network.parameters())
    gradients = torch.autograd.grad(clustering + sorting, weights, allow_unused=True)
    pairs = zip(gradients, weights, strict=True)
    flat = [torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in pairs]
    return clustering.detach(), sorting.detach(), torch.cat(flat)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_costs_what_its_texts_cost_apart(form: str) -> None:
    """So the losses do not depend on how texts are shared out to processes."""
    network = encoder(form)
    texts = [torch.randn(length, 16) for length in (SHORT, LONG, SHORT + 2, 3)]
    apart = [step(network, [text]) for text in texts]
    for found, *terms in zip(step(network, texts), *apart, strict=True):
        rounding = 4e-6 * float(found.abs().max())  # single precision, of sums in another order
        torch.testing.assert_close(found, sum(terms), atol=rounding, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_short_text_costs_nothing_however_long_its_padding(form: str) -> None:
    network, text = encoder(form), torch.randn(SHORT, 16)
    for padding in (0, LONG):
        assert not any(found.any() for found in step(network, [text], padding))


def test_short_texts_move_no_centroid_of_k_means() -> None:
    text, neighbour = torch.randn(SHORT, 16), torch.randn(LONG, 16)
    form = partial(clusters, clusters="k-means")
    observed = []
    for texts in ([neighbour], [neighbour, text]):
        torch.manual_seed(0)
        network = Encoder(TransformerConfig(form, d_model=16, num_heads=2, dropout=0.0))
        x = torch.zeros(len(texts), LONG, 16)
        for row, one in zip(x, texts, strict=True):
            row[: len(one)] = one
        network(x, torch.arange(LONG) < torch.tensor([[len(one)] for one in texts]))
        observed.append(network.layers[0].attention.core.means.observed)
    assert observed[0].any()
    torch.testing.assert_close(*observed)
