"""Similarity of two texts, learnt as a number, from random and from pretrained weights."""

import json
import random
from pathlib import Path
from typing import Literal

import pytest
import torch
from lightning.pytorch.plugins.precision import HalfPrecision
from tiny_pretrained import WORDS, write_bert
from torch import nn

pytest.importorskip("transformers")

import clusterformer
from clusterformer.cli.main import main
from clusterformer.data.frames import Frame
from clusterformer.data.labelled_text import TextPair
from clusterformer.errors import InputError
from clusterformer.models.transformer import Output, StackOutput
from clusterformer.task import IGNORE
from clusterformer.tasks.pairs import pair_batch
from clusterformer.tasks.similarity import TF_IDF, Similarity, score_bits

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
    pretrained: bool,
    joint: str,
    pairs: list[tuple[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bert = write_bert(tmp_path / "bert")
    scored = tmp_path / "scored.tsv"
    lines = [f"{u}\t{v}\t{2 + 3 * (u[0] == v[0]):.1f}" for u, v in pairs]
    scored.write_text("\n".join(["first\tsecond\tscore", *lines]) + "\n")
    fit = fit_on(scored, "score")
    fit += [f"--data.joint={joint}", "--model.attention=FullAttention", f"--runs={tmp_path}"]
    fit += [f"--model.pretrained={bert}"] if pretrained else ["--model.d_model=8"]
    assert main([*fit, *SHORT, "--model.label_smoothing=0.1"]) == 2
    assert "label_smoothing is for losses over labels" in capsys.readouterr().err
    assert main([*fit, *SHORT]) == 0
    run = tmp_path / "similarity" / "1"
    results = json.loads((run / "results.json").read_text())["results"]
    assert {"test/spearman", "test/pearson"} <= set(results)
    model = clusterformer.load(run)
    [record, other] = model.predict([("a film", "a film"), ("a", "the plot")])
    assert set(record) == {"score"}
    with pytest.raises(InputError, match="tasks with labels, this is a run of Similarity"):
        model.predict([("a film", "a film")], probabilities=True)
    if pretrained and joint == "false":  # the cosine of a text with itself
        assert record["score"] == pytest.approx(5.0, abs=1e-4)
        assert other["score"] < 5.0


def test_a_process_without_a_share_of_a_batch_counts_nothing() -> None:
    task = Similarity("stsb")
    metrics, network, nothing = task.metrics(), nn.Identity(), StackOutput(torch.zeros(0), [])
    for scores, logits in (
        ([1.0, 2.0, 3.0], [0.1, 0.5, 0.4]),
        ([IGNORE], [0.3]),
        ([4.0], [0.6]),
        ([IGNORE], [0.9]),
    ):
        texts, numbers = [[1]] * len(scores), [0] * len(scores)
        rows = [-1 if score == IGNORE else 0 for score in scores]
        batch = pair_batch(texts, texts, score_bits(scores), numbers, Frame(), rows)
        task.update(metrics, Output(torch.tensor(logits)[:, None], nothing), batch, network)
    expected = torch.corrcoef(torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.1, 0.5, 0.4, 0.6]]))[0, 1]
    assert float(metrics.compute()["pearson"]) == pytest.approx(float(expected), abs=1e-6)


def test_the_loss_is_in_units_of_the_scale() -> None:
    task = Similarity("stsb")
    task.learn_labels([TextPair("a", "b", label, "") for label in ("1", "5", "2")])
    scores = score_bits([4.0, 1.0, IGNORE])
    batch = pair_batch([[1]] * 3, [[1]] * 3, scores, [0] * 3, Frame(), [0, 1, -1])
    logits = torch.tensor([[0.5], [0.0], [1.0]])  # 3, 1 and 5
    total, count = task.loss(Output(logits, StackOutput(torch.zeros(0), [])), batch, 0.0)
    assert (float(total), int(count)) == (0.0625, 2)


def test_a_score_of_minus_a_hundred_counts(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    table = tmp_path / "labelled.tsv"
    scored = [f"{u}\t{v}\t{float(IGNORE if i % 2 else 100)}" for i, (u, v) in enumerate(pairs)]
    table.write_text("\n".join(["first\tsecond\tlabel", *scored]) + "\n")
    task = Similarity(train=str(table))
    task.setup("fit")
    for batch in task.train_dataloader():
        output = Output(torch.zeros(len(batch.target), 1), StackOutput(torch.zeros(0), []))
        total, count = task.loss(output, batch, 0.0)  # each guess is the lowest score
        assert (int(total), int(count)) == (int((task.wanted(batch) > 0).sum()), len(batch.target))
        metrics = task.metrics()
        task.update(metrics, output, batch, nn.Identity())
        assert int(metrics["pearson"].n_total) == len(batch.target)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_scores_are_not_rounded_in_half_precision(
    precision: Literal["bf16-true", "16-true"], pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    table, scores = tmp_path / "labelled.tsv", [70_000 + i / 8 for i in range(len(pairs))]
    lines = [f"{u}\t{v}\t{score}" for (u, v), score in zip(pairs, scores, strict=True)]
    table.write_text("\n".join(["first\tsecond\tlabel", *lines]) + "\n")
    task = Similarity(train=str(table))
    task.setup("fit")
    batches = map(HalfPrecision(precision).convert_input, task.train_dataloader())
    found = torch.cat([task.wanted(batch) for batch in batches]).tolist()
    assert len(found) > 10
    assert set(found) <= set(scores)


def test_a_score_that_is_no_number_is_named(
    pairs: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "labelled.tsv"
    lines = [f"{u}\t{v}\tsame" for u, v in pairs]
    table.write_text("\n".join(["first\tsecond\tlabel", *lines]) + "\n")
    fit = [*fit_on(table, "label"), f"--runs={tmp_path}", *TRAINER]
    assert main(fit) == 2
    assert "the score must be a number, got '" in capsys.readouterr().err


def test_words_of_one_letter_are_compared_too(tmp_path: Path) -> None:
    table = tmp_path / "letters.tsv"
    scores = {"a b\ta b": 2, "a b\tb c": 1, "a b\tc d": 0}
    lines = [f"{texts}\t{score}\n" for texts, score in scores.items()]
    table.write_text("first\tsecond\tlabel\n" + "".join(lines))
    task = Similarity(train=str(table), valid=str(table), test=str(table))
    measures = task.baselines()[TF_IDF]().measures
    assert measures["spearman"] == pytest.approx(1, abs=1e-5)


def test_scores_that_are_all_the_same_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, scores in (("train", range(5)), ("valid", [3, 3.0, 3, 3])):
        rows = "".join(f"a {number}\tb {number}\t{score}\n" for number, score in enumerate(scores))
        (tmp_path / f"{name}.tsv").write_text("first\tsecond\tlabel\n" + rows)
    files = {part: str(tmp_path / f"{part}.tsv") for part in ("train", "valid")}
    Similarity(**files, test=files["train"]).setup("fit")
    assert "valid: all pairs have the same score 3, so nothing correlates with it" in caplog.text
    assert "test: all pairs" not in caplog.text
