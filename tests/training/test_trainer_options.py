"""Options of the trainer that depend on the machine."""

import pytest
import torch

from clusterformer.errors import InputError
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


def test_nodes_that_nothing_starts_are_refused_and_those_started_by_hand_wait_with_a_word(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"num_nodes": 2, "devices": 1, "accelerator": "cpu", "logger": False}
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"num_nodes 2: .* start all by srun or torchrun --nnodes"):
        make_trainer(options)
    for name, value in (("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500"), ("NODE_RANK", "1")):
        monkeypatch.setenv(name, value)
    with caplog.at_level("INFO"):
        make_trainer(options)
    told = "node 1 of 2 (NODE_RANK, from 0): training begins once all nodes have met at "
    assert caplog.messages.count(told + "10.0.0.1:29500") == 1
    caplog.clear()
    launched = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0"}
    launched |= {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level("INFO"):
        make_trainer(options)
    assert told not in caplog.text
