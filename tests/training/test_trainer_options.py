"""Options of the trainer that depend on the machine."""

import pytest
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from clusterformer.errors import InputError
from clusterformer.training.fit import make_trainer
from clusterformer.training.runs import first_process
from clusterformer.training.trainer_options import know_node_by_hand


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
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)  # trainers set it
    options = {"num_nodes": 2, "devices": 1, "accelerator": "cpu", "logger": False}
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"num_nodes 2: .* start all by srun or torchrun --nnodes"):
        make_trainer(options)
    for name, value in (("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500"), ("NODE_RANK", "1")):
        monkeypatch.setenv(name, value)
    make_trainer(options)
    told = "node 1 of 2 (NODE_RANK, from 0): work begins once all nodes have met at "
    assert capsys.readouterr().err == f"{told}10.0.0.1:29500\n"
    launched = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0"}
    launched |= {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    make_trainer(options)
    assert told not in capsys.readouterr().err


def test_a_node_started_by_hand_knows_that_another_one_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)
    for node, num_nodes, launcher, first in (
        ("0", 2, None, True),
        ("1", 1, None, True),  # a variable of the machine, and a training of one node
        ("1", 2, "RANK", True),
        ("1", 2, None, False),
    ):
        monkeypatch.setenv("NODE_RANK", node)
        with monkeypatch.context() as launched:
            if launcher:
                launched.setenv(launcher, "0")
            know_node_by_hand(num_nodes)
        assert first_process() == first
    for node in ("2", "x"):
        monkeypatch.setenv("NODE_RANK", node)
        with pytest.raises(InputError, match=f"NODE_RANK must be from 0 to 1, got '{node}'"):
            know_node_by_hand(2)
