"""The contract of DESIGN section 3 on random shapes, repeated tokens, masks, options and dtypes.

A case is a number; `CASES` of them run for each form by default, thousands under `slow`.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterformer.attention import AttentionCore, MultiHeadAttention, mechanisms

CASES, MANY = 40, 1500
FORMS = [(cls, causal) for cls in mechanisms() for causal in cls.causal_forms]
CHOICES: dict[str, list[Any]] = {  # options of any mechanism that has them, None: its default
    "num_clusters": [1, 2, 3, 5, 11],
    "chunk_size": [1, 3, 4, 7],
    "window": [1, 2, 5],
    "top_k": [1, 3, 8],
    "block_size": [2, 5, 7],
    "local_window": [1, 3, 4],
    "min_width": [1, 3, 6],
    "look_back": [0, 1, 2],
    "num_hashes": [1, 2, 3],
    "num_buckets": [None, 1, 2, 6],
    "iterations": [1, 3],
    "cap": [1.0, 2.0],
    "exact_clusters": [0, 1],
    "damped": [False, True],
    "bits": [4, 31],
}


@dataclass
class Case:
    """A layer and a batch of texts for it.

    Attributes:
        layer: On evaluation.
        x: (B, N, E).
        mask: (B, N), True at real tokens.
        tolerance: Relative and absolute, of values.
    """

    layer: MultiHeadAttention
    x: Tensor
    mask: Tensor
    tolerance: float

    def close(self, found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=self.tolerance, atol=self.tolerance)


def case(cls: type[AttentionCore], causal: object, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def draw(choices: list[Any]) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    torch.manual_seed(seed)
    heads, width = draw([(1, 8), (2, 16), (4, 32)])
    known = inspect.signature(cls).parameters
    options = {name: draw(values) for name, values in CHOICES.items() if name in known}
    if "similarity" in known and draw([False, False, True]):
        options |= {"similarity": "dot", "coupling": False}
    if "local_heads" in known and causal is True:
        options["local_heads"] = draw([0, heads // 2, heads])
    dtype, tolerance = draw([torch.float64, torch.float32]), 1e-4
    positions = draw(["none", "right", "left", "holes", "a row of padding"])
    core = cls(width, heads, causal=causal, **options)
    layer = MultiHeadAttention(core, rotary_base=draw([None, 100.0]))
    batch, length = draw([1, 2, 4]), draw([1, 2, 3, 5, 8, 13, 24, 37])
    x = torch.randn(batch, length, width, generator=generator)
    kind = draw(["different", "different", "repeated", "equal", "zero"])
    if kind == "repeated":
        x = x[:, torch.randint(3, (length,), generator=generator) % length]
    elif kind != "different":
        x = x[:, :1].expand_as(x) * (kind == "equal")
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    position = torch.arange(length)
    mask = {
        "none": torch.ones(batch, length, dtype=torch.bool),
        "right": position < lengths,
        "left": position >= length - lengths,
        "holes": torch.rand(batch, length, generator=generator) < 0.6,
        "a row of padding": (position < lengths) & (torch.arange(batch)[:, None] > 0),
    }[positions]
    return Case(layer.eval().to(dtype), x.to(dtype).contiguous(), mask, tolerance)


def check_padding(case: Case) -> None:
    """Each text alone, without padding, has the values that it has in the batch."""
    filled = case.x.masked_fill(~case.mask[..., None], float("nan"))
    values = case.layer(filled, case.mask).values
    assert values[case.mask].isfinite().all()
    for row, mask, text in zip(values, case.mask, case.x, strict=True):
        if mask.any():
            case.close(row[mask], case.layer(text[mask][None]).values[0])


def check_future(case: Case) -> None:
    """Nothing that follows a token changes its value."""
    length = case.x.shape[1]
    if case.layer.core.causal is not True or length < 2:
        return
    values = case.layer(case.x, case.mask).values
    cut = length // 2
    changed = torch.cat([case.x[:, :cut], 3 * torch.randn_like(case.x)[:, cut:]], 1)
    found = case.layer(changed, case.mask).values[:, :cut]
    case.close(found[case.mask[:, :cut]], values[:, :cut][case.mask[:, :cut]])


def check_steps(case: Case) -> None:
    """Decoding with the cache gives what the whole forward gives."""
    if case.layer.core.causal is not True:
        return
    cache, steps = case.layer.cache(case.x), []
    for token in case.x.split(1, dim=1):
        values, cache = case.layer.step(token, cache)
        steps.append(values)
    case.close(torch.cat(steps, 1), case.layer(case.x).values)


def check_orphans(case: Case) -> None:
    """Equal values stay what they are, whatever attends to them; and twice gives the same bits."""
    layer = case.layer
    torch.nn.init.zeros_(layer.v_proj.weight)
    torch.nn.init.normal_(layer.v_proj.bias)
    torch.nn.init.eye_(layer.out_proj.weight)
    values = layer(case.x, case.mask).values
    assert torch.equal(values, layer(case.x, case.mask).values)
    case.close(values[case.mask], layer.v_proj.bias.expand_as(values[case.mask]))


def check_dtypes(case: Case) -> None:
    """Forward, backward and steps run in half precision, with finite gradients."""
    for dtype in (torch.bfloat16, torch.float16):
        layer = case.layer.to(dtype)
        x = case.x.to(dtype).requires_grad_()
        layer.train()
        values = layer(x, case.mask).values
        assert values.dtype == dtype
        values[case.mask].float().square().sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        layer.eval()
        if layer.core.causal is True:
            cache = layer.cache(x.detach())
            for token in x.detach()[:, :3].split(1, dim=1):
                values, cache = layer.step(token, cache)
                assert values.dtype == dtype
                assert values.isfinite().all()


CHECKS = [check_padding, check_future, check_steps, check_orphans, check_dtypes]


def name(value: object) -> str:
    return value.__name__ if callable(value) else f"causal={value}"


def run(check, cls, causal, seeds: range) -> None:
    failures = []
    for seed in seeds:
        found = case(cls, causal, seed)
        try:
            with torch.set_grad_enabled(check is check_dtypes):
                check(found)
        except (AssertionError, RuntimeError, ValueError) as error:
            failures.append(f"case {seed}: {str(error).splitlines()[0]}")
    assert not failures, f"{len(failures)} of {len(seeds)}: {failures[:3]}"


@pytest.mark.parametrize("check", CHECKS, ids=name)
@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_the_contract_holds_on_random_cases(cls, causal, check) -> None:
    run(check, cls, causal, range(CASES))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=name)
@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_the_contract_holds_on_many_random_cases(cls, causal, check) -> None:
    run(check, cls, causal, range(10_000, 10_000 + MANY))
