"""What README shows is true: commands parse or run, Python runs, files it names exist."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from clusterformer.cli import prepare
from clusterformer.cli.main import main
from clusterformer.data.prepare.publishers import sets
from clusterformer.training.config_files import shipped

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SHELL = "".join(block for kind, block in FENCES if kind == "bash").replace("\\\n", " ")
COMMANDS = [line for line in SHELL.splitlines() if " -m clusterformer " in line]
PYTHON = [block for kind, block in FENCES if kind == "python" and "runs/" not in block]
OTHERS = ("translate", "generate", "compare", "cluster", "bench steps", "bench causality")
ELSEWHERE = [line for line in COMMANDS if any(f" {name} " in f"{line} " for name in OTHERS)]
"""Commands with tests of their own that are too long for here, or want a run of another task."""
HERE = [line for line in COMMANDS if line not in ELSEWHERE]
ON_A_RUN = [line for line in HERE if "--checkpoint" in line or "--resume" in line]
BENCH = [line for line in HERE if " bench " in line]
PREPARE = [line for line in HERE if " prepare " in line]
START = [line for line in HERE if line not in ON_A_RUN + BENCH + PREPARE]
OWN_DATA = """
data:
  class_path: Classification
  init_args: {train: reviews.tsv, test: reviews.tsv, text_column: 2, label_column: 1}
model: {d_model: 16}
trainer: {max_epochs: 1, accelerator: cpu}
"""


def options_of(line: str) -> list[str]:
    """What follows the program's name, up to a comment or pipe; shell variables are 0."""
    options = re.split(r"[#|<>;]", line.split(" -m clusterformer ")[1])[0]
    return re.sub(r"\$\w+", "0", options).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the texts that README names and a trained run under its names."""
    folder = tmp_path_factory.mktemp("readme")
    rows = [f"{i % 2}\t{'good' if i % 2 else 'bad'} film number {i}\n" for i in range(40)]
    (folder / "reviews.tsv").write_text("".join(rows), encoding="utf-8")
    (folder / "new.txt").write_text("a good film\na bad one\n", encoding="utf-8")
    (folder / "mr.yaml").write_text(OWN_DATA, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", "mr.yaml"]) == 0
    shutil.copytree(folder / "runs/mr", folder / "runs/classify")
    return folder


def test_there_are_commands() -> None:
    assert len(START) > 6
    assert len(ON_A_RUN) > 3


@pytest.mark.parametrize("line", START)
def test_training_commands_parse(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = None
    with contextlib.suppress(SystemExit):
        code = main([*options_of(line), "--print_config"])
    captured = capsys.readouterr()
    assert code in (None, 0), captured.err
    assert "class_path" in captured.out


@pytest.mark.parametrize("line", ELSEWHERE)
def test_options_of_other_commands_are_in_their_help(line: str) -> None:
    command, *options = options_of(line)
    told = import_module(f"clusterformer.cli.{command}").HELP
    for option in options:
        if option.startswith("--"):
            assert option in told, line


@pytest.mark.parametrize("line", PREPARE)
def test_data_sets_are_there_to_be_prepared(line: str) -> None:
    options = prepare.parse(options_of(line)[1:])
    assert options.list or options.names
    assert set(options.names) <= set(sets())


@pytest.mark.parametrize("line", BENCH)
def test_benchmarks_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--lengths", "32", "--tokens", "64", "--d_model", "16", "--repeats", "1"]
    assert main([*options_of(line), *small, "--no-memory"]) == 0


@pytest.mark.parametrize("line", [line for line in ON_A_RUN if "predict" not in line])
def test_commands_on_a_run_work(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(options_of(line)) == 0, capsys.readouterr().err


@pytest.mark.parametrize("line", [line for line in ON_A_RUN if "predict" in line])
def test_pipes_into_predict_work(line: str, folder: Path) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("block", PYTHON)
def test_python_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_named_configurations_are_shipped() -> None:
    named = set(re.findall(r"`([\w-]+\.yaml)`", README)) | {
        option for line in COMMANDS for option in options_of(line) if option.endswith(".yaml")
    }
    assert named <= set(shipped())


def test_extras_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
    table = README.split("| extra |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras
