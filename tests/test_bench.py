"""`clusterformer bench`: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

from clusterformer.attention import NeuralClusteringAttention, mechanisms
from clusterformer.benchmark.operations import count
from clusterformer.benchmark.subjects import Setting, Subject
from clusterformer.cli.main import main

SMALL = ["--tokens", "64", "--d_model", "16", "--num_heads", "2", "--repeats", "1"]


def test_every_mechanism_at_every_length_is_measured(tmp_path: Path, capsys) -> None:
    out = tmp_path / "new" / "bench.json"
    arguments = ["bench", *SMALL, "--lengths", "16", "40", "--no-memory", "--out", str(out)]
    assert main([*arguments, "--mechanisms", "FullAttention", "paper", "neural"]) == 0
    report = json.loads(out.read_text())
    found = [(row["length"], row["batch"], row["mechanism"]) for row in report["rows"]]
    forms = ["FullAttention", "paper", "neural"]
    assert found == [(n, 64 // n, form) for n in (16, 40) for form in forms]
    for row in report["rows"]:
        assert len(row["samples_ms"]) == len(row["forward_samples_ms"]) == 1
        assert (row["relative_squared_error"] == 0) == (row["mechanism"] == "FullAttention")
    assert report["environment"]["packages"]["torch"]
    assert report["settings"]["threads"] >= 1
    table = capsys.readouterr().out.splitlines()
    assert table[2].split()[:2] == ["16", "FullAttention"]
    assert table[2].split()[-1] == "1.00"
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_every_mechanism_is_measured_unless_told_otherwise(capsys) -> None:
    arguments = [*SMALL, "--lengths", "32", "--tokens", "32", "--no-memory"]
    for causal in ([], ["--causal"]):
        assert main(["bench", *arguments, *causal]) == 0
        shown = {line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]}
        kinds = {kind.__name__ for kind in mechanisms() if not causal or True in kind.causal_forms}
        assert shown == kinds - {"NeuralClusteringAttention"} | {"neural"} | (
            set() if causal else {"paper"}
        )


def test_operations_of_full_attention_are_those_of_the_formula() -> None:
    batch, heads, length, width = 2, 3, 10, 4
    q = torch.randn(batch, heads, length, width, requires_grad=True)
    forward = 4 * batch * heads * length**2 * width
    attend = torch.nn.functional.scaled_dot_product_attention
    assert count(lambda: attend(q, q, q)) == forward
    assert count(lambda: attend(q, q, q).sum().backward()) == forward * 7 // 2


def test_operations_of_blocks_are_those_of_full_attention_within_them() -> None:
    setting = Setting(64, 64, 16, 2, 4, False, True, 0, 16, "fp32", "cpu")
    full, paper = (count(Subject(name, setting).step) for name in ("FullAttention", "paper"))
    projections = 3 * 4 * 2 * 64 * 16 * 16
    assert full == projections + 14 * 64 * 64 * 16
    assert projections + 14 * 64 * 32 * 16 < paper < projections + 14 * 64 * 32 * 16 * 2


def test_a_stack_of_layers_and_fewer_parts_can_be_measured(capsys) -> None:
    arguments = ["bench", *SMALL, "--lengths", "16", "--no-memory", "--mechanisms", "neural"]
    assert main([*arguments, "--layers", "2", "--d_ff", "8"]) == 0
    assert main([*arguments, "--no-output"]) == 0
    assert capsys.readouterr().out.count("neural") == 2


def test_whole_training_steps_of_a_configuration_are_measured(capsys) -> None:
    arguments = ["--config", "quickstart.yaml", "--repeats", "1", "--no-memory"]
    assert main(["bench", "steps", *arguments]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["128", "FullAttention"], ["128", "configured"]]


def test_memory_is_that_of_a_fresh_process(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    arguments = ["--d_model", "64", "--num_heads", "2", "--repeats", "1", "--out", str(out)]
    sizes = ["--lengths", "1024", "--tokens", "8192", "--mechanisms", "FullAttention"]
    assert main(["bench", *arguments, *sizes]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    rows_mib = 8192 * 64 * 4 / 2**20
    assert 3 * rows_mib < row["peak_mib"] < 60 * rows_mib


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mechanisms", "Ful"], "no mechanism 'Ful'; there are"),
        (["--lengths", "512", "--tokens", "64"], "--lengths must be in 1..--tokens (64)"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--lenghts", "5"], "unrecognized arguments: --lenghts"),
    ],
)
def test_bad_options_get_one_line(arguments: list[str], message: str, capsys) -> None:
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_papers_form_keeps_its_options() -> None:
    from clusterformer.attention import PAPER_FORM

    core = NeuralClusteringAttention(16, 2, **PAPER_FORM)
    assert core.log_alpha is None
    assert core.space.weight.shape == (16, 16)
