"""Options of the trainer that depend on the machine."""

import pytest
import torch

from clusterformer.training.fit import make_trainer


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "32-true"])
def test_bfloat16_is_advised_against_only_on_a_cpu_without_it(
    precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    """oneDNN says whether it has a product of bfloat16; without one PyTorch's is far slower."""
    make_trainer({"precision": precision, "accelerator": "cpu", "logger": False})
    slow = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert ("add --trainer.precision 32-true" in caplog.text) == (
        slow and precision.startswith("bf16")
    )
