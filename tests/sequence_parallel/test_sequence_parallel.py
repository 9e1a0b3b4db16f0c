"""A sequence over several processes gives what one process gives: values, gradients, groupings."""

import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from forked import in_processes
from torch import Tensor, nn

from clusterformer.attention import (
    FullAttention,
    LocalAttention,
    MultiHeadAttention,
    NeuralClusteringAttention,
)
from clusterformer.attention.neural_clustering import PAPER_FORM
from clusterformer.clustering.processes import over_processes
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pooling import Pooling, pool
from clusterformer.models.transformer import Encoder
from clusterformer.sequence_parallel import (
    SequenceGroup,
    parallel_clustering,
    parallelize,
    sum_gradients,
)

WIDTH, HEADS = 8, 2
FORMS: dict[str, dict[str, Any]] = {
    "default": {"num_clusters": 5},
    "more clusters than tokens of a process": {"num_clusters": 17},
    "two blocks: a circle shorter than a window": {"num_clusters": 2},
    "paper": {"num_clusters": 4, **PAPER_FORM},
    "wide blocks": {"num_clusters": 6, "min_width": 4, "look_back": 2},
    "strict": {"num_clusters": 3, "causal": True, "chunk_size": 3},
    "strict, local heads": {
        "num_clusters": 3, "causal": True, "chunk_size": 4, "local_heads": 1, "local_window": 4
    },
    "strict, the first tokens see all before them": {
        "num_clusters": 3, "causal": True, "chunk_size": 3, "dense_length": 10
    },
    "rotary, some texts short": {"num_clusters": 5, "dense_length": 12},
    "all texts short": {"num_clusters": 5, "dense_length": 30},
    "strict, rotary, all texts short": {"num_clusters": 5, "causal": True, "dense_length": 30},
    "full": {},
    "full, rotary": {},
    "full, causal": {"causal": True},
}  # fmt: skip
LENGTHS = {2: (9, 14), 3: (8, 1, 14)}


def encoder(form: str) -> Encoder:
    torch.manual_seed(0)
    kind = FullAttention if form.startswith("full") else NeuralClusteringAttention
    config = TransformerConfig(
        attention=lambda width, heads: kind(width, heads, **FORMS[form]),
        d_model=WIDTH, num_heads=HEADS, num_layers=2, d_ff=16, dropout=0.0,
        positions="rotary" if "rotary" in form else "none",
    )  # fmt: skip
    return Encoder(config)


def texts(padded: bool) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 23, WIDTH, generator=generator)
    mask = torch.arange(23) < torch.tensor([[23], [10 if padded else 23]])
    return x, mask, torch.randn(2, 23, WIDTH, generator=generator)


def step(network: nn.Module, x: Tensor, mask: Tensor, weights: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    output = network(x, mask)
    hidden = output.hidden * mask[..., None]
    (hidden * weights).sum().backward()
    grouping = output.groupings[-1]
    found = {"hidden": hidden.detach(), "x": x.grad}
    if grouping is not None:
        found |= {"assignment": grouping.assignment * mask, "centroids": grouping.centroids}
        found["clustered"] = grouping.clustered(mask)
    return {name: value.detach() for name, value in found.items()}


def join(store: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=30)  # one that fails must not leave the others waiting
    options: dict[str, Any] = {"rank": rank, "world_size": size, "timeout": patience}
    dist.init_process_group("gloo", init_method=f"file://{store}", **options)


def share(rank: int, form: str, padded: bool, size: int, store: str) -> dict[str, Tensor]:
    join(store, rank, size)
    group = SequenceGroup()
    begin = sum(LENGTHS[size][:rank])
    part = slice(begin, begin + LENGTHS[size][rank])
    network = parallelize(encoder(form), group)
    warnings.filterwarnings("error", "torch.searchsorted")  # its advice would reach the user
    found = step(network, *(x[:, part] for x in texts(padded)))
    sum_gradients(network, group)
    found |= {
        f"gradient of {name}": p.grad
        for name, p in network.named_parameters()
        if p.grad is not None
    }
    found["bytes"] = torch.tensor(group.bytes_sent)
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize(
    ("form", "size", "padded"),
    [
        pytest.param(form, size, padded, marks=[] if quick else pytest.mark.slow)
        for form in FORMS
        for size, padded in ((2, True), (3, False))
        for quick in [size == 2 and form in ("rotary, some texts short", "strict, local heads")]
    ],
)
def test_it_is_what_one_process_computes(
    form: str, padded: bool, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_clustering, "SIMILARITIES", 40)  # several pieces
    if form.startswith("full") and size == 3:
        pytest.skip("three processes do not divide two heads")
    assert_as_one_process(form, padded, size, tmp_path)


@pytest.mark.parametrize(
    "form", ["rotary, some texts short", "strict, local heads", "full, causal"]
)
def test_a_process_without_tokens_takes_part(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LENGTHS, 2, (23, 0))
    assert_as_one_process(form, True, 2, tmp_path)


def assert_as_one_process(form: str, padded: bool, size: int, tmp_path: Path) -> None:
    """Processes with shares of LENGTHS have the values and gradients of one process."""
    whole = encoder(form)
    expected = step(whole, *texts(padded))
    parts = in_processes(size, share, form, padded, size, str(tmp_path / "store"))
    for name, value in expected.items():
        found = [part[name] for part in parts]
        got = found[0] if name == "centroids" else torch.cat(found, 1)
        torch.testing.assert_close(got, value, atol=1e-5, rtol=1e-5)
    gradients = {
        f"gradient of {name}": p.grad for name, p in whole.named_parameters() if p.grad is not None
    }
    for part in parts:
        assert {name for name in part if name.startswith("gradient")} == set(gradients)
        for name, value in gradients.items():
            torch.testing.assert_close(part[name], value, atol=1e-5, rtol=1e-5)
        assert part["bytes"] > 0


def pooled(rank: int, size: int, store: str | None) -> dict[str, Tensor]:
    part, group = slice(None), None
    if store:
        join(store, rank, size)
        group, part = SequenceGroup(), slice(*((0, 2), (2, 3), (3, 7))[rank])
    hidden = torch.randn(4, 7, WIDTH, generator=torch.Generator().manual_seed(2))
    mask = torch.arange(7) < torch.tensor([7, 2, 5, 0])[:, None]
    mask[2, :2] = False  # its first token is not in the first process
    found = {}
    for how in get_args(Pooling):
        x = hidden[:, part].clone().requires_grad_()
        vector = pool(x, mask[:, part], how, group)
        if not rank:  # one process has the loss
            vector.square().sum().backward()
        else:
            (0.0 * vector).sum().backward()
        found |= {how: vector.detach(), f"gradient of {how}": x.grad}
    if store:
        dist.destroy_process_group()
    return found


def test_pooling_is_that_of_one_process(tmp_path: Path) -> None:
    parts = in_processes(3, pooled, 3, str(tmp_path / "store"))
    for name, value in pooled(0, 1, None).items():
        found = [part[name] for part in parts]
        for got in [torch.cat(found, 1)] if name.startswith("gradient") else found:
            torch.testing.assert_close(got, value)


def summed(rank: int, store: str) -> dict[str, Tensor | None]:
    join(store, rank, 2)
    network = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("a", "b", "c", "d")})
    x = torch.tensor([[1.0, 2.0]])
    y = network["c"](x) if rank else network["a"](x) + network["b"](x)
    (y.sum() + network["a"](x).sum()).backward()
    sum_gradients(network, SequenceGroup())
    dist.destroy_process_group()
    return {name: layer.weight.grad for name, layer in network.items()}


def test_gradients_that_one_process_has_are_summed_too(tmp_path: Path) -> None:
    for found in in_processes(2, summed, str(tmp_path / "store")):
        assert found.pop("d") is None
        for name, times in (("a", 3.0), ("b", 1.0), ("c", 1.0)):
            torch.testing.assert_close(found[name], times * torch.tensor([[1.0, 2.0]] * 2))


def gradients_of_gradients(rank: int, store: str) -> None:
    join(store, rank, 2)
    group = SequenceGroup()
    for sums, operation in (
        (True, group.total),
        (True, over_processes),
        (False, lambda x: group.exchange(x, [1, 1], [1, 1])),
    ):
        x = torch.tensor([[1.0], [2.0]], dtype=torch.float64) + rank
        sent, number = x.clone().requires_grad_(), 2 if sums else 1
        (first,) = torch.autograd.grad(operation(sent).pow(3).sum(), sent, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), sent)
        seen = 2 * x + 1 - 2 * rank if sums else x  # of each number, by the process that gets it
        torch.testing.assert_close(first, number * 3 * seen**2)
        torch.testing.assert_close(second, number**2 * 6 * seen)  # of the sum over processes
    dist.destroy_process_group()


def test_gradients_have_gradients_over_processes_too(tmp_path: Path) -> None:
    in_processes(2, gradients_of_gradients, str(tmp_path / "store"))


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        SequenceGroup()
    in_processes(1, refuse, str(tmp_path / "store"))


def refuse(rank: int, store: str) -> None:
    join(store, rank, 1)
    clusters = partial(NeuralClusteringAttention, 8, 2)
    for core, message in (
        (LocalAttention(8, 2), "got LocalAttention"),
        (clusters(causal="masked"), 'got causal="masked"'),
        (clusters(num_clusterings=2), "needs num_clusterings=1, got 2"),
        (clusters(exploration=0.5), "needs exploration=0, got 0.5"),
        (clusters(clusters="k-means", coupling=False), 'got "k-means"'),
    ):
        with pytest.raises(ValueError, match=message):
            parallelize(MultiHeadAttention(core), SequenceGroup())
    with pytest.raises(ValueError, match="short_convolution=0"):
        parallelize(MultiHeadAttention(clusters(), short_convolution=2), SequenceGroup())
    dist.destroy_process_group()
