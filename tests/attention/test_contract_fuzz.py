"""The contract of attention on random cases; see `contract_cases`.

`CASES` of them run for each form and check by default, thousands under `slow`.
"""

from collections.abc import Callable

import pytest
import torch
from contract_cases import FORMS, Case, Form, draw_case, name_of
from torch import Tensor

CASES, MANY = 6, 1200
GRAPHS, MANY_GRAPHS = 1, 12
Check = Callable[[Case], None]


def check_padding(case: Case) -> None:
    """Each text alone, without padding, has the values that it has in the batch."""
    filled = case.x.masked_fill(~case.mask[..., None], float("nan"))
    values = case.values(filled, case.mask)
    assert values[case.mask].isfinite().all()
    for row, mask, text in zip(values, case.mask, case.x, strict=True):
        if mask.any():
            case.close(row[mask], case.values(text[mask][None])[0])


def check_future(case: Case) -> None:
    """Nothing that follows a token changes its value."""
    length = case.x.shape[1]
    if case.layer.core.causal is not True or length < 2:
        return
    values = case.values(case.x, case.mask)
    cut = length // 2
    changed = torch.cat([case.x[:, :cut], 3 * torch.randn_like(case.x)[:, cut:]], 1)
    found = case.values(changed, case.mask)[:, :cut]
    case.close(found[case.mask[:, :cut]], values[:, :cut][case.mask[:, :cut]])


def check_steps(case: Case) -> None:
    """Decoding with the cache gives what the whole forward gives, also after a prefill."""
    layer, x = case.layer, case.x
    if layer.core.causal is not True:
        return
    expected = layer(x).values
    for read in {0, x.shape[1] // 2}:
        cache, parts = layer.cache(x), []
        if read:
            values, cache = layer.prefill(x[:, :read], cache)
            parts.append(values)
        for token in x[:, read:].split(1, dim=1):
            values, cache = layer.step(token, cache)
            parts.append(values)
        case.close(torch.cat(parts, 1), expected)


def check_orphans(case: Case) -> None:
    """Equal values stay what they are, whatever attends to them; and twice gives the same bits."""
    layer = case.layer
    torch.nn.init.zeros_(layer.v_proj.weight)
    torch.nn.init.normal_(layer.v_proj.bias)
    torch.nn.init.eye_(layer.out_proj.weight)
    values = layer(case.x, case.mask).values
    assert torch.equal(values, layer(case.x, case.mask).values)
    case.close(values[case.mask], layer.v_proj.bias.expand_as(values[case.mask]))


def check_cross(case: Case) -> None:
    """A text attends to its memory as it does alone, a query as it does alone if independent."""
    layer = case.layer
    if not layer.core.cross or layer.core.causal:
        with pytest.raises(ValueError, match="no cross-attention"):
            layer(case.x, memory=case.memory)
        return
    nothing = float("nan")
    values = layer(
        case.x.masked_fill(~case.mask[..., None], nothing),
        case.mask,
        case.memory.masked_fill(~case.memory_mask[..., None], nothing),
        case.memory_mask,
    ).values
    assert values[case.mask].isfinite().all()
    rows = zip(values, case.x, case.mask, case.memory, case.memory_mask, strict=True)
    for row, text, mask, memory, memory_mask in rows:
        if not (mask.any() and memory_mask.any()):
            continue
        memory = memory[memory_mask][None]
        case.close(row[mask], layer(text[mask][None], memory=memory).values[0])
        if layer.core.independent_queries:
            projected = layer.project_memory(memory)
            tokens = text[mask][:3]
            found = [layer.cross_attend(token[None, None], projected)[0, 0] for token in tokens]
            case.close(torch.stack(found), row[mask][:3])


def half_precision(case: Case, x: Tensor, dtype: torch.dtype) -> None:
    """Run forward, backward and steps; check the dtype of values, and finite gradients."""
    layer = case.layer.train()
    layer.zero_grad()
    values = layer(x.requires_grad_(), case.mask).values
    assert values.dtype == dtype
    values[case.mask].float().square().sum().backward()
    assert x.grad is not None
    for gradient in (x.grad, *(p.grad for p in layer.parameters())):
        assert gradient is None or gradient.isfinite().all()
    layer.eval()
    if layer.core.causal is True:
        cache = layer.cache(x.detach())
        for token in x.detach()[:, :3].split(1, dim=1):
            values, cache = layer.step(token, cache)
            assert values.dtype == dtype
            assert values.isfinite().all()


def check_dtypes(case: Case) -> None:
    """Forward, backward and steps run in half precision, with finite gradients."""
    for dtype in (torch.bfloat16, torch.float16):
        case.layer.to(dtype)
        half_precision(case, case.x.to(dtype), dtype)


def check_autocast(case: Case) -> None:
    """The same under autocast."""
    case.layer.float()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            half_precision(case, case.x.float().clone(), dtype)


def check_double(case: Case) -> None:
    """Autocast leaves float64 as it is, as in PyTorch's own layers."""
    case.layer.double()
    with torch.autocast("cpu", torch.bfloat16):
        values = case.layer(case.x.double(), case.mask).values
    assert values.dtype is torch.float64
    assert values[case.mask].isfinite().all()


def longer(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Make batches of the case's texts, of three lengths above 1."""
    pairs = []
    for count in (2, 3, 7):
        x, mask = case.x.repeat(1, count, 1), case.mask.repeat(1, count)
        pairs.append((x + torch.linspace(-1, 1, x.shape[1], dtype=x.dtype)[:, None], mask))
    return pairs


def check_compile(case: Case) -> None:
    """The compiled layer gives the same at any length, in at most two graphs."""
    torch._dynamo.reset()
    compiled = torch.compile(case.layer, dynamic=True, fullgraph=True, backend="eager")
    for x, mask in longer(case):
        case.close(compiled(x, mask).values[mask], case.layer(x, mask).values[mask])


def check_export(case: Case) -> None:
    """One exported program gives the same at any length."""

    class Values(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = case.layer

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.layer(x, mask).values

    pairs, length = longer(case), torch.export.Dim.DYNAMIC
    program = torch.export.export(
        Values(), pairs[1], dynamic_shapes=({1: length}, {1: length}), strict=False
    ).module()
    for x, mask in pairs:
        case.close(program(x, mask)[mask], case.layer(x, mask).values[mask])


WITH_GRADIENTS = [check_dtypes, check_autocast]
CHECKS = [check_padding, check_future, check_steps, check_orphans, check_cross, *WITH_GRADIENTS]
CHECKS += [check_double]
GRAPH_CHECKS = [check_compile, check_export]


def failure(check: Check, form: Form, seed: int) -> str | None:
    """Run a check on a case; return what went wrong."""
    try:
        case = draw_case(form, seed)
        with torch.set_grad_enabled(check in WITH_GRADIENTS):
            check(case)
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        return f"{name_of(form)}, case {seed}: {type(error).__name__}: {first[0]}"
    return None


def run(check: Check, cases: list[tuple[Form, int]]) -> None:
    failures = [found for form, seed in cases if (found := failure(check, form, seed))]
    assert not failures, f"{len(failures)} of {len(cases)}: {failures[:3]}"


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_the_contract_holds_on_random_cases(form: Form, check: Check) -> None:
    run(check, [(form, seed) for seed in range(CASES)])


@pytest.mark.slow
def test_random_cases_export() -> None:
    run(check_export, [(FORMS[7 * seed - 4], seed) for seed in range(GRAPHS)])


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_the_contract_holds_on_many_random_cases(form: Form, check: Check) -> None:
    run(check, [(form, seed) for seed in range(10_000, 10_000 + MANY)])


@pytest.mark.slow
@pytest.mark.parametrize("check", GRAPH_CHECKS, ids=name_of)
@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_many_random_cases_compile_and_export(form: Form, check: Check) -> None:
    run(check, [(form, seed) for seed in range(10_000, 10_000 + MANY_GRAPHS)])
