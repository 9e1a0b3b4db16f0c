"""Checkpoints that another hand edited: they work, or are refused in one line."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from clusterformer.cli.main import main
from clusterformer.training.checkpoints import CHECKPOINT_KEY

TINY = ["--model.d_model=8", "--model.num_heads=2", "--model.num_layers=1", "--model.d_ff=8"]
TINY += ["--trainer.accelerator=cpu", "--trainer.max_steps=2", "--trainer.max_epochs=1"]
TINY += ["--trainer.enable_progress_bar=false", "--baselines=false"]
TASKS = {
    "classification": (
        ["--data=Classification", "--data.train=train.tsv", "--data.class_weights=balanced"],
        "predict",
    ),
    "matching": (["--data=Matching", "--data.train=pairs.tsv", "--data.tokenizer=bpe"], "predict"),
    "languagemodeling": (
        ["--data=LanguageModeling", "--data.train=text.txt", "--data.context=16"],
        "generate",
    ),
    "translation": (
        [
            *("--data=Translation", "--data.train_source=a.de", "--data.train_target=a.en"),
            *("--data.vocab_size=270", "--data.valid_sentences=0"),
        ],
        "translate",
    ),
    "partner": (
        ["--data=Partner", "--data.num_tokens=8", "--data.valid_texts=4", "--data.test_texts=4"],
        "test",
    ),
    "maskedcopy": (
        ["--data=MaskedCopy", "--data.length=4", "--data.valid_texts=4", "--data.test_texts=4"],
        "test",
    ),
    "clustering": (["--data=Clustering", "--data.name=points.npy", "--data.n_clusters=3"], "test"),
}
VALUES: list[Any] = [
    *(None, True, 0, 3, -1, 10**30, 1.5, float("nan"), "", "x", "\ud800", "\x00"),
    *([], [3], ["x", "x"], {}, {"x": 1}, [[[]]], {"class_path": "os.system"}),
    *(torch.zeros(2, 3), torch.tensor(3), torch.zeros(0), torch.tensor([float("nan")])),
    *(torch.zeros(3, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.ones(4).bool()),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of finished trainings, one of each task, whose files stand in it."""
    folder = tmp_path_factory.mktemp("edited")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        rows = [f"{i % 2}\t{'a good' if i % 2 else 'no fine'} film {i}" for i in range(40)]
        Path("train.tsv").write_text("\n".join(["label\ttext", *rows]))
        rows = [f"{i % 2}\tone {i}\ttwo {i}" for i in range(40)]
        Path("pairs.tsv").write_text("\n".join(["label\tfirst\tsecond", *rows]))
        Path("text.txt").write_text("A line of words.\n" * 40)
        Path("a.de").write_text("".join(f"ein hund läuft {i}\n" for i in range(200)))
        Path("a.en").write_text("".join(f"a dog runs {i}\n" for i in range(200)))
        np.save("points.npy", np.random.default_rng(0).normal(size=(60, 4)))
        for options, _ in TASKS.values():
            assert main(["fit", "--pictures=false", *options, *TINY]) == 0
        yield folder


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of nested lists and mappings, as its container and its key."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from nodes(value[key])


def edit(checkpoint: dict[str, Any], rng: random.Random) -> str:
    """Change one or two places; say which."""
    ours = checkpoint[CHECKPOINT_KEY]
    printed = []
    for _ in range(rng.randint(1, 2)):
        text = ours.get("config")
        config = yaml.safe_load(text) if isinstance(text, str) else None
        inside = isinstance(config, dict) and rng.random() < 0.3
        chosen = config if inside else rng.choice([ours, ours, ours["task"], checkpoint])
        container, key = rng.choice(list(nodes(chosen)) or [(ours, "task")])
        value = rng.choice([v for v in VALUES if not (inside and isinstance(v, torch.Tensor))])
        if isinstance(container, dict) and rng.random() < 0.2:
            container[f"{key}2"] = container.pop(key)
        elif isinstance(container, list) and rng.random() < 0.2:
            container *= 2
        else:
            container[key] = value
        printed.append(f"{key}: {value!r:.50}")
        if inside:
            ours["config"] = yaml.safe_dump(config)
        if not isinstance(ours.get("task"), dict) or checkpoint.get(CHECKPOINT_KEY) is not ours:
            break
    return "; ".join(printed)


@pytest.mark.parametrize(
    "count", [pytest.param(5, id="few"), pytest.param(500, id="many", marks=pytest.mark.slow)]
)
def test_an_edited_checkpoint_works_or_is_one_line(
    count: int, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(count)
    refused = 0
    Path("line.txt").write_text("ein hund\ta dog\n")
    for number in range(count):
        name = list(TASKS)[number % len(TASKS)]
        run = runs / "runs" / name / "1"
        checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
        printed = edit(checkpoint, rng)
        edited = Path("runs") / name / "2"
        shutil.rmtree(edited, ignore_errors=True)
        shutil.copytree(run, edited)
        for file in ("best.ckpt", "last.ckpt"):
            torch.save(checkpoint, edited / "checkpoints" / file)
        command = TASKS[name][1]
        use = {
            "test": ["test", "--trainer.accelerator=cpu"],
            "generate": ["generate", "--tokens=2", "--prompt=a"],
        }.get(command, [command, "--input=line.txt"])
        resume = ["fit", f"--resume={edited}", "--trainer.max_steps=3"]
        test = ["test", f"--checkpoint={edited}", "--trainer.accelerator=cpu"]
        for arguments in ([*use, f"--checkpoint={edited}"], resume if number % 2 else test):
            capfd.readouterr()
            code = main(arguments)
            lines = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
            assert (code, len(lines)) in ((0, 0), (2, 1)), (printed, arguments[0], code, lines)
            refused += code == 2
    assert refused > count / 2


def test_files_that_only_a_checkpoint_names_are_not_read(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, alone = runs / "runs" / "classification" / "1", tmp_path / "alone.ckpt"
    shutil.copy(run / "checkpoints" / "last.ckpt", alone)
    assert main(["test", f"--checkpoint={run}"]) == 0  # its config.yaml names the file too
    assert main(["test", f"--checkpoint={alone}"]) == 2
    assert "refused, the checkpoint names the file train.tsv" in capfd.readouterr().err
    assert main(["test", f"--checkpoint={alone}", "--data.train=train.tsv"]) == 0
    checkpoint = torch.load(alone, weights_only=True)
    config = yaml.safe_load(checkpoint[CHECKPOINT_KEY]["config"])
    config["data"]["init_args"]["test"] = "/etc/passwd"
    checkpoint[CHECKPOINT_KEY]["config"] = yaml.safe_dump(config)
    torch.save(checkpoint, run / "checkpoints" / "other.ckpt")
    assert main(["test", f"--checkpoint={run / 'checkpoints' / 'other.ckpt'}"]) == 2
    assert "names the file /etc/passwd" in capfd.readouterr().err
