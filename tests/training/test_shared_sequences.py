"""A language model whose processes share each sequence trains as one process does."""

import csv
import random
from pathlib import Path

import pytest
from together import train_together

from clusterformer.cli.main import main

TINY = ["fit", "--pictures=false", "--data=LanguageModeling", "--data.context=33"]
TINY += ["--data.batch_size=4", "--model.d_model=16", "--model.num_heads=2", "--model.num_layers=2"]
TINY += ["--model.dropout=0", "--model.warmup=2", "--trainer.accelerator=cpu"]
TINY += ["--trainer.max_steps=6", "--trainer.log_every_n_steps=1", "--baselines=false"]
CLUSTERS = ["--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=3"]
FORMS = {
    "clusters": [*CLUSTERS, "--model.attention.chunk_size=4", "--model.sorting_weight=0.1"],
    "full": ["--model.attention=FullAttention", "--model.positions=learned"],
}


def logged(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return [{k: v for k, v in row.items() if "keys_seen" not in k} for row in rows]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw, words = random.Random(0), ["ein", "hund", "rot", "blau", "haus", "geht"]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(101)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [f"--data.train={tmp_path / 'text'}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "strategy", "form"),
    [
        (2, "sequence_parallel", "clusters"),
        (4, "sequence_parallel_2", "clusters"),
        (2, "sequence_parallel", "full"),
    ],
)
def test_processes_that_share_sequences_train_as_one(
    number: int, strategy: str, form: str, text: list[str], tmp_path: Path
) -> None:
    command, log = [*TINY, *text, *FORMS[form]], tmp_path / "log"
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
        assert row == pytest.approx(reference, rel=1e-3, abs=1e-5, nan_ok=True)
    assert main(["test", f"--checkpoint={found}"]) == 0  # one process, the whole text


@pytest.mark.slow
def test_what_cannot_be_shared_is_one_line(text: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [*TINY, *text, f"--runs={tmp_path}", "--trainer.strategy=sequence_parallel"]
    rotary = [*command, *FORMS["clusters"], "--model.positions=rotary"]
    assert 0 not in train_together(2, rotary, log)
    assert "sequence_parallel: a shared sequence needs positions added before" in log.read_text()
    assert "Traceback" not in log.read_text()
