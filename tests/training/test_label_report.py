"""Report of a classifier: measures of each label, saved predictions, options around them."""

import csv
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from full_disk import limited_files
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from clusterformer.cli.main import main
from clusterformer.data.labelled_text import Row
from clusterformer.training.label_report import LabelFindings

WORDS = {"good": ["fine", "great"], "bad": ["awful", "poor"], "so-so": ["plain", "usual"]}
TINY = [
    *("--model.d_model=16", "--model.num_heads=2", "--model.num_layers=1", "--model.dropout=0"),
    "--model.attention.num_clusters=4",
    *("--model.lr=0.03", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
]


def table(path: Path, seed: int, count: int = 60) -> Path:
    """A table whose texts tell their label only mostly."""
    rng = random.Random(seed)
    lines = ["text,label"]
    for _ in range(count):
        label = rng.choice(["good", "good", "bad", "so-so"])
        shown = rng.choice(list(WORDS)) if rng.random() < 0.3 else label
        lines.append(f'"a {rng.choice(WORDS[shown])} film, {rng.randrange(99)}",{label}')
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and one training, runs/classification/1."""
    folder = tmp_path_factory.mktemp("report")
    train, test = table(folder / "train.csv", 1, 120), table(folder / "test.csv", 2)
    table(folder / "other.csv", 3)
    assert main([*fit(train), f"--data.test={test}", f"--runs={folder / 'runs'}"]) == 0
    return folder


def fit(train: Path, *options: str) -> list[str]:
    data = ["--data=Classification", f"--data.train={train}", "--data.batch_size=10"]
    return ["fit", "--pictures=false", *data, *TINY, "--trainer.max_epochs=3", *options]


def test_the_report_is_that_of_scikit_learn(folder: Path) -> None:
    tested = folder / "runs" / "classification" / "1" / "test"
    report = json.loads((tested / "report.json").read_text())
    with (tested / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["source"] for row in rows] == [
        f"{folder / 'test.csv'}:{line}" for line in range(2, 62)
    ]
    assert rows[0]["text"].startswith("a ")
    labels = sorted(WORDS)
    given, predicted = ([row[name] for row in rows] for name in ("label", "predicted"))
    assert report["confusion"]["labels"] == labels
    assert report["confusion"]["rows"] == confusion_matrix(given, predicted, labels=labels).tolist()
    expected = precision_recall_fscore_support(given, predicted, labels=labels, zero_division=0)
    for label, *values in zip(labels, *expected, strict=True):
        assert list(report["labels"][label].values()) == pytest.approx(values, abs=1e-6)
    assert report["accuracy"] == pytest.approx(sum(map(str.__eq__, given, predicted)) / len(rows))
    assert len(set(predicted)) > 1
    assert (tested / "confusion.png").stat().st_size > 1000


@pytest.mark.slow
def test_two_processes_report_what_one_does(folder: Path, tmp_path: Path) -> None:
    test = table(tmp_path / "test.csv", 5, 33)  # the last batch is short: one process gets less
    options = [*fit(folder / "train.csv"), f"--data.test={test}", "--baselines=false"]
    assert main([*options, f"--runs={tmp_path / 'one'}"]) == 0
    two = [*options, f"--runs={tmp_path / 'two'}", "--trainer.strategy=ddp", "--trainer.devices=2"]
    done = subprocess.run(
        [sys.executable, "-m", "clusterformer", *two], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("precision  recall") == 1
    found, expected = (tmp_path / name / "classification" / "1" / "test" for name in ("two", "one"))
    tables = []
    for path in (found, expected):
        with (path / "predictions.csv").open() as file:
            tables.append(list(csv.DictReader(file)))
    assert [row["source"] for row in tables[0]] == [f"{test}:{line}" for line in range(2, 35)]
    for row, reference in zip(*tables, strict=True):
        probabilities = float(row.pop("probability")), float(reference.pop("probability"))
        assert probabilities[0] == pytest.approx(probabilities[1], abs=2e-3)
        assert row == reference
    reports = [json.loads((path / "report.json").read_text()) for path in (found, expected)]
    assert reports[0] == reports[1]
    assert reports[0]["examples"] == 33


def test_outputs_that_are_nan_have_no_measures() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [torch.nan, torch.nan], [0.2, 0.8]])
    findings = LabelFindings(["bad", "good"], [], torch.tensor([0, 0, 1]), probabilities)
    assert all(math.isnan(value) for value in findings.measures().values())


def test_a_full_disk_keeps_the_earlier_report(tmp_path: Path) -> None:
    def findings(count: int) -> LabelFindings:
        examples = [Row("a fine film", "good", f"test.csv:{line}") for line in range(count)]
        targets, probabilities = torch.zeros(count, dtype=torch.long), torch.rand(count, 2)
        return LabelFindings(["good", "bad"], examples, targets, probabilities)

    earlier = {path: path.read_bytes() for path in findings(5).write(tmp_path)}
    for limit, name in [(100, "report.json"), (2000, "predictions.csv")]:
        with limited_files(limit), pytest.raises(OSError, match=f"too large: .*{name}"):
            findings(1000).write(tmp_path)
        assert (tmp_path / name).read_bytes() == earlier[tmp_path / name]
    assert set(tmp_path.iterdir()) == set(earlier)


def test_a_label_of_two_lines_takes_one_line_of_the_table() -> None:
    labels = LabelFindings(["a\nb", "c"], [], torch.tensor([0, 1]), torch.eye(2))
    assert [row[0] for row in labels.summary()] == ["label", "a b", "c"]


def test_ranked_answers_may_all_be_called_wrong(caplog: pytest.LogCaptureFixture) -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2]])
    for ranks in (True, False):
        LabelFindings(["0", "1"], [], torch.tensor([0, 1, 0]), probabilities, ranks=ranks).warn()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the model predicts '0' for all 3 test examples: it has learnt nothing")
    assert said.endswith("; train longer, change lr, or set data.class_weights: balanced")
    LabelFindings(["0", "1"], [], torch.tensor([0, 1, 0]), probabilities, balanced=True).warn()
    assert caplog.messages[-1].endswith("beyond one label; train longer, or change lr")


def test_other_data_is_tested_and_reported(folder: Path, capsys) -> None:
    run, out = folder / "runs" / "classification" / "1", folder / "out"
    assert main(["test", f"--checkpoint={run}", f"--data.test={folder / 'other.csv'}",
                 f"--report={out}"]) == 0  # fmt: skip
    printed = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    report = json.loads((out / "report.json").read_text())
    assert float(printed["test/accuracy"]) == pytest.approx(report["accuracy"], abs=1e-4)
    assert float(printed["test/f1"]) == pytest.approx(report["macro"]["f1"], abs=1e-4)
    assert float(printed["test/recall/bad"]) == pytest.approx(
        report["labels"]["bad"]["recall"], abs=1e-4
    )
    with (out / "predictions.csv").open() as file:
        assert {row["source"].split(":")[0] for row in csv.DictReader(file)} == {
            str(folder / "other.csv")
        }


def test_all_probabilities_on_request(folder: Path, capsys) -> None:
    run, texts = folder / "runs" / "classification" / "1", folder / "texts.txt"
    texts.write_text("a fine film\nan awful film\n")
    command = ["predict", f"--checkpoint={run}", f"--input={texts}", "--probabilities"]
    assert main([*command, "--format=jsonl"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for record in records:
        assert set(record["probabilities"]) == set(WORDS)
        assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert max(record["probabilities"].values()) == record["probability"]
    assert main(command) == 0
    label, probability, rest = capsys.readouterr().out.splitlines()[0].split("\t")
    assert json.loads(rest)[label] == float(probability)


def test_patience_ends_a_training_that_gains_nothing(folder: Path, tmp_path: Path) -> None:
    command = [*fit(folder / "train.csv", "--model.lr=1e-30", "--patience=2"), f"--runs={tmp_path}"]
    assert main([*command, "--trainer.max_epochs=9"]) == 0
    results = json.loads((tmp_path / "classification" / "1" / "results.json").read_text())
    assert results["epochs"] == 3


def test_what_is_monitored_chooses_the_best(folder: Path, tmp_path: Path, capsys) -> None:
    command = [*fit(folder / "train.csv"), f"--runs={tmp_path}"]
    assert main([*command, "--monitor=val/loss"]) == 0
    results = json.loads((tmp_path / "classification" / "1" / "results.json").read_text())
    assert (results["monitor"], results["mode"]) == ("val/loss", "min")
    with (tmp_path / "classification" / "1" / "metrics.csv").open() as file:
        losses = [float(row["val/loss"]) for row in csv.DictReader(file) if row["val/loss"]]
    assert results["results"]["val/loss"] == pytest.approx(min(losses), abs=1e-4)
    capsys.readouterr()
    assert main([*command, "--monitor=val/f2"]) == 2
    assert (
        "nothing is logged as 'val/f2'; did you mean val/f1? there is val/accuracy, val/f1"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "classification" / "2").exists()  # refused before the first step


def test_one_label_for_all_is_said_in_a_line(tmp_path: Path, capsys) -> None:
    train = tmp_path / "train.csv"
    rows = "".join(f"word{2 * i},a\nword{2 * i + 1},b\n" for i in range(30))
    train.write_text(f"text,label\n{rows}")  # of a text that training lacks it knows nothing
    command = [*fit(train), f"--runs={tmp_path}", "--trainer.max_epochs=1"]
    assert main([*command, "--baselines=false"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "the model predicts" in line]
    assert len(lines) == 1
    assert "for all 6 test examples" in lines[0]


def test_a_linear_model_stands_beside_the_result(folder: Path, tmp_path: Path, capsys) -> None:
    command = [*fit(folder / "train.csv"), f"--data.test={folder / 'test.csv'}"]
    assert main([*command, f"--runs={tmp_path}", "--data.class_weights=balanced"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.startswith("TF-IDF + linear SVM")]
    assert 0.5 < float(row[4]) < 0.95
    (row,) = [line.split() for line in lines if line.startswith("majority label")]
    assert 0 < float(row[2]) < 0.7
    assert "60 test examples" in lines
    assert main([*command, f"--runs={tmp_path}", "--baselines=false"]) == 0
    assert "TF-IDF" not in capsys.readouterr().out
