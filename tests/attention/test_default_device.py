"""Modules made under `with torch.device(...)`, as Lightning, transformers and users make them."""

import pytest
import torch
from contract_layers import FORMS, build, name


@pytest.mark.parametrize(("cls", "causal"), FORMS, ids=name)
def test_mechanisms_are_made_on_the_default_device(cls, causal) -> None:
    with torch.device("meta"):
        layer = build(cls, causal)
    assert {x.device.type for x in layer.state_dict().values()} <= {"meta"}
