"""A training of a moment as a command, and the one line of an error."""

import pytest

from clusterformer.cli.main import main

TOY = ["fit", "--pictures=false", "--data=toy_task.Toy", "--model.d_model=8", "--model.num_heads=2"]
TOY += ["--model.num_layers=1", "--trainer.accelerator=cpu", "--trainer.max_epochs=1"]


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("clusterformer: error: ")
    return lines[0].removeprefix("clusterformer: error: ")
