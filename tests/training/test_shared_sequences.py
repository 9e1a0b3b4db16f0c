"""A model whose processes share each sequence trains as one process does."""

import csv
import random
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from together import train_together

from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.tasks.language_modeling import LanguageModeling

TINY = ["--pictures=false", "--data.batch_size=4", "--model.d_model=16", "--model.num_heads=2"]
TINY += ["--model.num_layers=2"]
TINY += ["--model.dropout=0", "--model.warmup=2", "--trainer.accelerator=cpu"]
TINY += ["--trainer.max_steps=6", "--trainer.log_every_n_steps=1", "--baselines=false"]
CLUSTERS = ["--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=5"]
CLUSTERS += ["--model.sorting_weight=0.1"]
STRICT, FULL = ["--model.attention.chunk_size=4"], ["--model.attention=FullAttention"]
STREAM, SHORT = ["--data.context=33"], ["--model.attention.dense_length=5"]
HEADER, ROTARY = ["--data.header=true"], ["--model.positions=rotary"]
FORMS = {
    "clusters": ["--data=LanguageModeling", *STREAM, *CLUSTERS, *STRICT],
    "rotary": ["--data=LanguageModeling", *STREAM, *CLUSTERS, *STRICT, *ROTARY],
    "full": ["--data=LanguageModeling", *STREAM, *FULL, "--model.positions=learned"],
    "masked": ["--data=MaskedLanguageModeling", *STREAM, *CLUSTERS, "--data.next_sentence=true"],
    "labels": ["--data=Classification", *HEADER, *CLUSTERS, *SHORT, "--model.pooling=first"],
    "pairs": ["--data=Matching", *HEADER, "--data.joint=true", *CLUSTERS, *ROTARY],
}


def logged(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return [{k: v for k, v in row.items() if "keys_seen" not in k} for row in rows]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw, words = random.Random(0), ["ein", "hund", "rot", "blau", "haus", "geht"]

    def line() -> str:
        return " ".join(draw.choices(words, k=draw.randint(2, 9)))

    files = {
        "text": [line() for _ in range(101)],
        "labels.tsv": ["label\ttext", *(f"{draw.choice('ab')}\t{line()}" for _ in range(61))],
        "pairs.tsv": [
            "label\tfirst\tsecond",
            *(f"{draw.choice('01')}\t{line()}\t{line()}" for _ in range(61)),
        ],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def command_of(form: str, texts: Path) -> list[str]:
    file = {"labels": "labels.tsv", "pairs": "pairs.tsv"}.get(form, "text")
    data, *options = FORMS[form]
    return ["fit", data, *TINY, *options, f"--data.train={texts / file}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "strategy", "form"),
    [
        (2, "sequence_parallel", "clusters"),
        (4, "sequence_parallel_2", "clusters"),
        (2, "sequence_parallel", "full"),
        (3, "sequence_parallel", "rotary"),
        (2, "sequence_parallel", "masked"),
        (3, "sequence_parallel", "labels"),
        (4, "sequence_parallel_2", "pairs"),
    ],
)
def test_processes_that_share_sequences_train_as_one(
    number: int, strategy: str, form: str, texts: Path, tmp_path: Path
) -> None:
    command, log = command_of(form, texts), tmp_path / "log"
    assert main([*command, f"--runs={tmp_path / 'one'}"]) == 0
    shared = [*command, f"--trainer.strategy={strategy}", f"--runs={tmp_path / 'shared'}"]
    assert set(train_together(number, shared, log)) == {0}, log.read_text()
    (one,), (found,) = ((tmp_path / name).glob("*/1") for name in ("one", "shared"))
    expected = logged(one)
    assert len(expected) > 6
    for row, reference in zip(logged(found), expected, strict=True):
        reference.pop("causality/leak", None)
        groups = [name for name in reference if "layer" in name]  # of each process's own tokens
        reference = {k: v for k, v in reference.items() if k not in groups}
        row = {k: v for k, v in row.items() if k in reference}
        assert row == pytest.approx(reference, rel=1e-4, abs=1e-5, nan_ok=True)
    assert main(["test", f"--checkpoint={found}"]) == 0  # one process, the whole text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["LanguageModeling", "--model.attention=LocalAttention"],
            "sequence needs Neural",
        ),
        (["Recall", *FULL], "got a AskedTokens; take ddp or fsdp2"),
    ],
)
def test_what_cannot_be_shared_is_one_line(
    options: list[str], message: str, texts: Path, tmp_path: Path
) -> None:
    log, (data, *rest) = tmp_path / "log", options
    own = [f"--data.train={texts / 'text'}"] if data == "LanguageModeling" else []
    command = ["fit", f"--data={data}", *TINY, *own, *rest, f"--runs={tmp_path}"]
    assert 0 not in train_together(2, [*command, "--trainer.strategy=sequence_parallel"], log)
    assert message in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_measure_that_needs_whole_texts_is_refused_before_training(texts: Path) -> None:
    task = LanguageModeling(train=str(texts / "text"), far=4)
    task.trainer = Trainer(accelerator="cpu", devices=2, strategy="sequence_parallel", logger=False)
    with pytest.raises(InputError, match=r"data\.far needs whole texts"):
        task.setup("fit")


@pytest.mark.slow
@pytest.mark.parametrize("then", [(3, "sequence_parallel"), (1, "auto")])
def test_a_shared_run_goes_on_with_another_number_of_processes(
    then: tuple[int, str], texts: Path, tmp_path: Path
) -> None:
    """No example is lost or doubled: each step has the loss of a run in one process."""
    command, log, (number, strategy) = command_of("rotary", texts), tmp_path / "log", then
    assert main([*command, f"--runs={tmp_path / 'one'}"]) == 0
    begun = [*command, "--trainer.max_steps=4", "--trainer.strategy=sequence_parallel"]
    assert set(train_together(2, [*begun, f"--runs={tmp_path / 'two'}"], log)) == {0}
    (one,), (run,) = ((tmp_path / name).glob("*/1") for name in ("one", "two"))
    resume = ["fit", f"--resume={run}", "--trainer.max_steps=6", f"--trainer.strategy={strategy}"]
    assert set(train_together(number, resume, log)) == {0}, log.read_text()
    expected, found = (
        {row["step"]: row["train/loss"] for row in logged(each) if "train/loss" in row}
        for each in (one, run)
    )
    assert found == pytest.approx(expected, rel=1e-4)
    assert len(found) == 6
