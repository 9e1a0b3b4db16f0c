"""The causality probe: it finds a leak where there is one, and none where there is none."""

import csv
import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from together import train_together

from clusterformer.attention import (
    AttentionCore,
    FullAttention,
    NeuralClusteringAttention,
    ReformerAttention,
    RoutingAttention,
    mechanisms,
)
from clusterformer.bench import causality
from clusterformer.cli.main import main
from clusterformer.training.causality import loss_on_random_tokens, probe, probe_core

LEAKING = {
    NeuralClusteringAttention: {"num_clusters": 8},
    ReformerAttention: {"chunk_size": 8},
    RoutingAttention: {"num_clusters": 8},
}


@pytest.mark.parametrize("kind", ["vectors", "tokens"])
def test_it_counts_the_outputs_that_move(kind: str) -> None:
    inputs = torch.randn(3, 20, 5) if kind == "vectors" else torch.randint(999, (3, 20))
    past = probe(lambda x: x.float().cumsum(1), inputs)
    assert past == (0, 3 * (5 + 10 + 15))
    everything = probe(lambda x: x.float() + x.float().mean(1, keepdim=True), inputs)
    assert everything == (3 * (5 + 10 + 15), 3 * (5 + 10 + 15))
    one_ahead = probe(lambda x: x.float().roll(-1, 1), inputs)
    assert one_ahead.changed == 3 * 3


@pytest.mark.parametrize("kind", [kind for kind in mechanisms() if True in kind.causal_forms])
def test_strict_forms_do_not_leak(kind: type[AttentionCore]) -> None:
    assert probe_core(kind(32, 4, causal=True), 150) == (0, 4 * (37 + 75 + 112))


@pytest.mark.parametrize("kind", LEAKING)
def test_the_papers_forms_do(kind: type[AttentionCore]) -> None:
    assert probe_core(kind(32, 4, causal="masked", **LEAKING[kind]), 64).share > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in mechanisms() if True in kind.causal_forms])
def test_nobody_strict_guesses_random_tokens(kind: type[AttentionCore]) -> None:
    loss, errors = loss_on_random_tokens(partial(kind, causal=True))
    assert errors < 4
    assert loss < 1.02 * math.log(8)  # it trains: no worse than the uniform guess


@pytest.mark.slow
def test_a_leaking_model_reads_random_tokens() -> None:
    options = LEAKING[RoutingAttention] | {"local_heads": 0}
    _, errors = loss_on_random_tokens(partial(RoutingAttention, causal="masked", **options))
    assert errors > 5


def test_the_command_prints_a_table_and_writes_what_it_found(tmp_path: Path, capsys) -> None:
    out = tmp_path / "leaks.json"
    arguments = ["--mechanisms", "FullAttention", "RoutingAttention", "--steps", "0"]
    assert main(["bench", "causality", *arguments, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["mechanism"], row["causal"], row["moved"] > 0) for row in rows] == [
        ("FullAttention", True, False),
        ("RoutingAttention", True, False),
        ("RoutingAttention", "masked", True),
    ]
    assert capsys.readouterr().out.count("RoutingAttention") == 2
    assert main(["bench", "causality", "--mechanisms", "Ful"]) == 2
    assert "no mechanism 'Ful'; there is" in capsys.readouterr().err


def test_the_table_probes_a_selection_and_not_the_dense_first_tokens() -> None:
    kinds = {"ours": NeuralClusteringAttention}
    strict, masked = causality.measure(kinds, steps=0)
    assert (strict["moved"], masked["moved"] > 0) == (0, True)
    assert strict["keys_seen"] < 0.5


class _Forgetful(FullAttention):
    """Every third token gets no value in one head."""

    def forward(self, *heads, **masks):
        mixed, grouping = super().forward(*heads, **masks)
        mixed[:, 1, ::3] = 0.0
        return mixed, grouping


def test_the_table_counts_tokens_without_a_key() -> None:
    kinds = {"full": FullAttention, "forgetful": _Forgetful}
    full, forgetful = causality.measure(kinds, length=30, d_model=16, num_heads=2, steps=0)
    assert (full["without_key"], full["keys_seen"]) == (0, 1)
    assert (forgetful["without_key"], forgetful["tokens"]) == (4 * 10, 4 * 30)


@pytest.mark.parametrize("causal", [pytest.param("true", marks=pytest.mark.slow), "masked"])
def test_validation_warns_of_a_model_that_reads_the_future(
    causal: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    lines = ["".join(map(chr, row)) for row in torch.randint(97, 123, (100, 20)).tolist()]
    Path("text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [
        *(
            "fit",
            "--pictures=false",
            "--data=LanguageModeling",
            "--data.train=text.txt",
            "--data.context=32",
        ),
        *("--model.decoder_attention=NeuralClusteringAttention", "--model.d_model=16"),
        *(f"--model.decoder_attention.causal={causal}", "--model.num_heads=2"),
        "--model.decoder_attention.num_clusters=4",  # by default, short texts have full attention
        *("--trainer.accelerator=cpu", "--trainer.max_epochs=1"),
    ]
    assert main(command) == 0
    assert ("is not causal" in capsys.readouterr().err) is (causal == "masked")
    rows = Path("runs/languagemodeling/1/metrics.csv").read_text().splitlines()
    logged = [float(row["causality/leak"]) for row in csv.DictReader(rows) if row["causality/leak"]]
    assert logged
    assert all((share > 0) is (causal == "masked") for share in logged)


def test_processes_that_divide_a_network_probe_as_often_as_each_other(tmp_path: Path) -> None:
    """The only row of the validation is of the first one; the other has one of padding."""
    text, log = tmp_path / "text.txt", tmp_path / "log"
    text.write_text("a few words. " * 20)
    command = ["fit", "--data=LanguageModeling", "--data.context=16", "--data.batch_size=8"]
    command += [f"--data.{part}={text}" for part in ("train", "test")]
    (tmp_path / "valid.txt").write_text("a few words.")
    command += [f"--data.valid={tmp_path / 'valid.txt'}", "--model.d_model=8"]
    command += ["--model.num_heads=2", "--model.num_layers=1", "--trainer.accelerator=cpu"]
    command += ["--trainer.max_steps=1", "--trainer.strategy=fsdp2", f"--runs={tmp_path}"]
    assert train_together(2, [*command, "--pictures=false"], log) == [0, 0], log.read_text()
    with next(tmp_path.glob("*/1/metrics.csv")).open() as file:
        assert [float(row["causality/leak"] or 0) for row in csv.DictReader(file)][-1] == 0
    assert "sync_dist" not in log.read_text()
