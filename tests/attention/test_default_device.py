"""Modules made under `with torch.device(...)`, as Lightning, transformers and users make them."""

import pytest
import torch
from contract_layers import FORMS, build, name


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_mechanisms_are_made_on_the_default_device(cls, causal) -> None:
    with torch.device("meta"):
        layer = build(cls, causal)
    assert {x.device.type for x in layer.state_dict().values()} <= {"meta"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_mechanisms_are_made_in_the_default_dtype(cls, causal, dtype) -> None:
    """As transformers and users make models for inference."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        layer = build(cls, causal)
        with torch.no_grad():
            values = layer(torch.randn(2, 9, layer.core.d_model)).values
    finally:
        torch.set_default_dtype(before)
    assert values.dtype == dtype
    assert values.isfinite().all()
