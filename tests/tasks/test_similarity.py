"""Similarity of two texts, learnt as a number, from random and from pretrained weights."""

import json
import random
from pathlib import Path

import pytest
from tiny_pretrained import WORDS, write_bert

pytest.importorskip("transformers")

import clusterformer
from clusterformer.cli.main import main

TRAINER = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--baselines=false"]
SHORT = [*TRAINER, "--trainer.max_epochs=1", "--data.batch_size=10"]


def fit_on(table: Path, label_column: str) -> list[str]:
    options = [f"--data.train={table}", f"--data.label_column={label_column}"]
    return ["fit", "--pictures=false", "--data=Similarity", *options]


@pytest.fixture
def pairs(tmp_path: Path) -> list[tuple[str, str]]:
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(2, 9)))

    return [(sentence(), sentence()) for _ in range(60)]


@pytest.mark.parametrize(
    ("pretrained", "joint"),
    [
        (True, "true"),
        pytest.param(False, "false", marks=pytest.mark.slow),
        pytest.param(True, "false", marks=pytest.mark.slow),
        pytest.param(False, "true", marks=pytest.mark.slow),
    ],
)
def test_similarity_is_learnt_as_a_number(
    pretrained: bool, joint: str, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    bert = write_bert(tmp_path / "bert")
    scored = tmp_path / "scored.tsv"
    lines = [f"{u}\t{v}\t{2 + 3 * (u[0] == v[0]):.1f}" for u, v in pairs]
    scored.write_text("\n".join(["first\tsecond\tscore", *lines]) + "\n")
    fit = fit_on(scored, "score")
    fit += [f"--data.joint={joint}", "--model.attention=FullAttention", f"--runs={tmp_path}"]
    fit += [f"--model.pretrained={bert}"] if pretrained else ["--model.d_model=8"]
    assert main([*fit, *SHORT]) == 0
    run = tmp_path / "similarity" / "1"
    results = json.loads((run / "results.json").read_text())["results"]
    assert {"test/spearman", "test/pearson"} <= set(results)
    [record, other] = clusterformer.load(run).predict([("a film", "a film"), ("a", "the plot")])
    assert set(record) == {"score"}
    if pretrained and joint == "false":  # the cosine of a text with itself
        assert record["score"] == pytest.approx(5.0, abs=1e-4)
        assert other["score"] < 5.0


def test_a_score_that_is_no_number_is_named(
    pairs: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "labelled.tsv"
    lines = [f"{u}\t{v}\tsame" for u, v in pairs]
    table.write_text("\n".join(["first\tsecond\tlabel", *lines]) + "\n")
    fit = [*fit_on(table, "label"), f"--runs={tmp_path}", *TRAINER]
    assert main(fit) == 2
    assert "the score must be a number, got '" in capsys.readouterr().err
