"""Simple methods of the tasks on texts, by themselves, at the end of `fit` and as rows."""

import json
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from forked import Process

from clusterformer.cli.main import main
from clusterformer.compare import runner
from clusterformer.data.labelled_text import Row, TextPair
from clusterformer.tasks.classification import Classification
from clusterformer.tasks.matching import Matching
from clusterformer.training.text_baselines import (
    MAJORITY,
    SECOND,
    SVM,
    label_measures,
    linear_svm,
    majority_label,
)


def row(rng: random.Random) -> Row:
    label = rng.choice(["sports", "space", "space"])
    word = {"sports": "goal", "space": "orbit"}[label]
    return Row(f"a {word} of {rng.randrange(50)}", label, "")


def told_by(rng: random.Random, side: int) -> TextPair:
    """A pair whose first (0) or second (1) text tells the label."""
    label = rng.choice(["no", "yes"])
    texts = [f"thing {rng.randrange(99)}", f"thing {rng.randrange(99)}"]
    texts[side] += {"no": " never", "yes": " always"}[label]
    return TextPair(*texts, label, "")


def test_the_svm_reads_and_the_majority_does_not() -> None:
    rng = random.Random(0)
    train, test = ([row(rng) for _ in range(count)] for count in (80, 40))
    assert label_measures(test, linear_svm(train, test, 0))["accuracy"] == 1.0
    share = sum(one.label == "space" for one in test) / 40
    assert label_measures(test, majority_label(train, test, 0))["accuracy"] == pytest.approx(share)


def test_the_second_text_alone_does_not_see_the_first() -> None:
    rng = random.Random(0)
    for side, alone in ((0, (0.2, 0.8)), (1, (1.0, 1.0))):
        train, test = ([told_by(rng, side) for _ in range(count)] for count in (80, 40))
        both = label_measures(test, linear_svm(train, test, 0))
        second = label_measures(test, linear_svm(train, test, 0, second_alone=True))
        assert both["accuracy"] == 1.0
        assert alone[0] <= second["accuracy"] <= alone[1]


def test_an_only_label_needs_no_svm() -> None:
    rows = [Row("a", "x", ""), Row("b", "x", "")]
    assert linear_svm(rows, rows, 0).labels == ["x", "x"]


def test_rankings_are_measured_by_their_measures(tmp_path: Path) -> None:
    """A right answer shares its words with the question, whatever the words are."""
    rng = random.Random(0)
    lines = ["question\tfirst\tsecond\tlabel"]
    for number in range(60):
        words = [f"w{rng.randrange(400)}" for _ in range(6)]
        for label in rng.sample([1, 0, 0, 0], 4):
            answer = words[:5] if label else [f"w{rng.randrange(400)}" for _ in range(5)]
            lines.append(f"{number}\t{' '.join(words)}\t{' '.join(answer)} v{number}\t{label}")
    (tmp_path / "q.tsv").write_text("\n".join(lines) + "\n")
    task = Matching(train=str(tmp_path / "q.tsv"), group_column="question")
    methods = task.baselines()
    assert list(methods) == [SVM, MAJORITY, SECOND]
    found = {name: method().measures for name, method in methods.items()}
    assert all(set(measures) == {"map", "mrr"} for measures in found.values())
    assert found[SVM]["map"] == 1.0
    assert found[MAJORITY]["map"] < 0.8
    assert found[SECOND]["map"] < 0.9


@pytest.mark.slow
def test_a_row_of_a_comparison_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = SimpleNamespace(**{**vars(subprocess), "Popen": Process})
    monkeypatch.setattr(runner, "subprocess", module)  # runs start in a moment
    rng = random.Random(0)
    lines = [f"{one.label}\t{one.text}" for one in (row(rng) for _ in range(60))]
    (tmp_path / "own.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    plan = {
        "config": "classify.yaml",
        "options": {
            "data.train": str(tmp_path / "own.tsv"),
            "model.d_model": 8,
            "model.d_ff": 8,
            "trainer.max_epochs": 1,
            "trainer.accelerator": "cpu",
        },
        "rows": {"network": {}, "SVM": {"method": SVM}, "majority": {"method": MAJORITY}},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    assert main(["compare", "plan.yaml"]) == 0
    runs = tmp_path / "comparisons/plan"
    written = {name: next((runs / name).rglob("results.json")) for name in plan["rows"]}
    found = {name: json.loads(path.read_text()) for name, path in written.items()}
    assert found["SVM"]["results"]["test/accuracy"] == 1.0
    assert found["SVM"]["parameters"] > 0 == found["majority"]["parameters"]
    table = (tmp_path / "comparisons/plan/table.md").read_text()
    assert "| SVM | **1** |" in table
    capfd.readouterr()
    assert main(["compare", "plan.yaml"]) == 0  # trains nothing again
    assert "[1/" not in capfd.readouterr().out


def test_an_unknown_method_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", "--config=quickstart.yaml", "--method=SVM", f"--runs={tmp_path}"]
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert "Partner has no method 'SVM'; it has: linear, bag of tokens" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("strip", "least"), [(False, 0.86), (True, 0.70)])
def test_20_newsgroups_by_date(data_root: Path, strip: bool, least: float) -> None:
    task = Classification("20news", root=str(data_root), strip=strip)
    assert task.baselines()[SVM]().measures["accuracy"] > least
