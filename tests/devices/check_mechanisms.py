"""Every mechanism on a device other than the CPU; see test_devices.py."""

import pytest
import torch
from contract_layers import FORMS, STRICT, WIDTH, build, mask_of, name
from pretended_tensor import DEVICE

from clusterformer import losses
from clusterformer.attention import Grouping, MultiHeadAttention, mechanisms


@pytest.fixture
def device() -> torch.device:
    return DEVICE


def assert_on(device: torch.device, *values: object) -> None:
    for value in values:
        if isinstance(value, tuple):
            assert_on(device, *value)
        elif isinstance(value, torch.Tensor):
            assert value.device == device


def add_losses(grouping: Grouping | None, mask: torch.Tensor) -> torch.Tensor:
    """Sum every loss of a grouping."""
    found = [losses.mechanism_loss([grouping])]
    for form in ("contrastive", "bounded"):
        found += losses.auxiliary([grouping], mask, form)
    return sum((loss for loss in found if loss is not None), mask.new_zeros((), dtype=torch.float))


@pytest.mark.parametrize(
    ("padded", "training"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_forward_and_backward(cls, causal, padded: bool, training: bool, device) -> None:
    on_cpu = build(cls, causal).train(training)
    layer = build(cls, causal).train(training)
    layer.load_state_dict(on_cpu.state_dict())
    layer.to(device)
    x = torch.randn(3, 29, WIDTH)
    mask = mask_of([29, 17, 1], 29) if padded else None
    everything = torch.ones(3, 29, dtype=torch.bool)
    here = x.to(device).requires_grad_()
    masked = None if mask is None else mask.to(device)
    out = layer(here, masked)
    assert_on(device, out)
    counted = everything.to(device) if masked is None else masked
    seen = layer.core.keys_seen(out.grouping, counted)
    assert_on(device, seen)
    values = out.values if masked is None else out.values[masked]
    (values.square().sum() + add_losses(out.grouping, counted)).backward()
    assert_on(device, here.grad, *(p.grad for p in layer.parameters()))
    if not training:
        expected = on_cpu(x, mask).values
        torch.testing.assert_close(out.values.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", STRICT, ids=name)
def test_cached_decoding(cls, device) -> None:
    layer, x = build(cls, True).to(device), torch.randn(2, 17, WIDTH).to(device)
    with torch.no_grad():
        cache, steps = layer.cache(x), []
        values, cache = layer.prefill(x[:, :9], cache)
        steps.append(values)
        for token in x[:, 9:].split(1, dim=1):
            values, cache = layer.step(token, cache)
            steps.append(values)
        assert_on(device, cache)
        torch.testing.assert_close(torch.cat(steps, 1).cpu(), layer(x).values.cpu())


@pytest.mark.parametrize("cls", [cls for cls in mechanisms() if cls.cross], ids=name)
def test_cross_attention(cls, device) -> None:
    layer = build(cls).to(device)
    x, memory = torch.randn(2, 7, WIDTH).to(device), torch.randn(2, 12, WIDTH).to(device)
    mask = mask_of([12, 5], 12).to(device)
    layer(x, memory=memory, memory_mask=mask).values.sum().backward()
    layer.cross_attend(x[:, :1], layer.project_memory(memory, mask))


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_autocast(cls, causal, device) -> None:
    layer = build(cls, causal).train().to(device)
    x, mask = torch.randn(2, 23, WIDTH).to(device), mask_of([23, 9], 23).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        out = layer(x, mask)
        loss = out.values[mask].float().square().sum() + add_losses(out.grouping, mask)
    loss.backward()


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_construction_on_the_device(cls, causal, device) -> None:
    with device:
        layer: MultiHeadAttention = build(cls, causal)
    assert_on(device, *layer.state_dict().values())
