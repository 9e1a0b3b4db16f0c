"""`clusterformer bench`: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest

from clusterformer.attention import NeuralClusteringAttention
from clusterformer.cli.main import main

SMALL = ["--tokens", "64", "--d_model", "16", "--num_heads", "2", "--repeats", "1"]


def test_every_mechanism_at_every_length_is_measured(tmp_path: Path, capsys) -> None:
    out = tmp_path / "new" / "bench.json"
    arguments = ["bench", *SMALL, "--lengths", "16", "40", "--no-memory", "--out", str(out)]
    assert main([*arguments, "--mechanisms", "FullAttention", "paper", "neural", "strict"]) == 0
    report = json.loads(out.read_text())
    found = [(row["length"], row["batch"], row["mechanism"]) for row in report["rows"]]
    forms = ["FullAttention", "paper", "neural", "strict"]
    assert found == [(n, 64 // n, form) for n in (16, 40) for form in forms]
    assert all(len(row["samples_ms"]) == 1 for row in report["rows"])
    assert report["environment"]["packages"]["torch"]
    assert report["settings"]["threads"] >= 1
    table = capsys.readouterr().out.splitlines()
    assert table[1].split()[:2] == ["16", "FullAttention"]
    assert table[1].split()[3] == "1.00"


def test_a_stack_of_layers_and_fewer_parts_can_be_measured(capsys) -> None:
    arguments = ["bench", *SMALL, "--lengths", "16", "--no-memory", "--mechanisms", "neural"]
    assert main([*arguments, "--layers", "2", "--d_ff", "8"]) == 0
    assert main([*arguments, "--no-output"]) == 0
    assert capsys.readouterr().out.count("neural") == 2


def test_whole_training_steps_of_a_configuration_are_measured(capsys) -> None:
    assert main(["bench", "--config", "quickstart.yaml", "--repeats", "1", "--no-memory"]) == 0
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
        (["--mechanisms", "Ful"], "no mechanism 'Ful'; there are FullAttention"),
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
