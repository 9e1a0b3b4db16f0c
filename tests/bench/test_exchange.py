"""Trained models with other mechanisms: the limits are what the model does by itself."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest
import torch

from clusterformer.api import load
from clusterformer.attention import FullAttention
from clusterformer.bench import exchange
from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import EncoderLayer, self_attention
from clusterformer.module import ClusterFormer
from clusterformer.tasks.generated.masked_copy import MaskedCopy


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained models, in the folders of a comparison."""
    folder = tmp_path_factory.mktemp("exchange")
    for row, mechanism in (("full", "FullAttention"), ("shared", "SharedQKAttention")):
        fit = ["fit", "--data=MaskedCopy", "--data.length=15", "--data.valid_texts=16"]
        fit += ["--data.epoch_steps=4", "--data.test_texts=16", "--trainer.max_epochs=1"]
        fit += [f"--model.attention={mechanism}", "--model.d_model=16", "--model.lr=0.01"]
        fit += ["--trainer.accelerator=cpu", f"--runs={folder / row / 'all' / 'seed-0'}"]
        assert main(fit) == 0
    return folder


def test_the_matrix_has_what_fits(comparison: Path, tmp_path: Path, capsys) -> None:
    others = ["full", "oracle-top-32", "shared-full", "ReformerAttention", "i-clustered-100"]
    told = ["bench", "exchange", "--comparison", str(comparison), "--with", *others]
    told += ["KeyClusteringAttention", "NeuralClusteringAttention", "--stage", "test"]
    assert main([*told, "--measure", "loss", "--out", str(tmp_path / "a.json")]) == 0
    out = capsys.readouterr().out
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    found = {(row["run"], row["mechanism"]): row.get("value") for row in rows}
    own = found["full", "own"]
    for same in ("full", "oracle-top-32", "i-clustered-100"):  # 32 tokens: all keys are kept
        assert found["full", same] == pytest.approx(own, rel=1e-5)
    shared = found["shared", "own"]
    for same in ("shared-full", "ReformerAttention"):  # a chunk of 64 is one bucket
        assert found["shared", same] == pytest.approx(shared, rel=1e-5)
        assert found["full", same] is None
    # its keys are queries at unit length, but a token sees itself
    assert found["shared", "full"] == pytest.approx(found["shared", "oracle-top-32"], rel=1e-5)
    assert found["shared", "full"] != pytest.approx(shared, rel=1e-5)
    assert found["full", "NeuralClusteringAttention"] is None
    reason = "shared-full shares queries and keys, and the model has keys of its own"
    assert f"full: does not fit: {reason}\n" in out
    assert re.search(r"full, with oracle-top-32: loss \S+, keys seen 1\n", out)
    assert ["shared-full", "-", f"{shared:.4f}"] in [line.split() for line in out.splitlines()]


def test_the_first_pass_of_a_mechanism_is_not_timed(comparison: Path) -> None:
    (folder,) = (comparison / "full").glob("all/seed-0/*/1")
    model = load(folder, device="cpu")
    met: set[type] = set()

    def wait_at_first(network: torch.nn.Module, _: object) -> None:
        kind = type(self_attention(network)[0])
        time.sleep(0 if kind in met else 3)
        met.add(kind)

    model.network.register_forward_pre_hook(wait_at_first)
    rows = list(exchange.measure(model.module, model.task, ["oracle-top"]))
    assert len(met) == len(rows) == 2
    assert all(0 < row["forward_seconds"] < 3 for row in rows)


def test_data_sets_of_a_comparison_stand_apart(comparison: Path, tmp_path: Path, capsys) -> None:
    for column in ("mr", "20news"):
        shutil.copytree(comparison / "full" / "all", tmp_path / "full" / column)
    told = ["bench", "exchange", "--comparison", str(tmp_path), "--with", "full"]
    assert main(told) == 0
    heading = next(x for x in capsys.readouterr().out.splitlines() if "evaluated with" in x)
    assert heading.split() == ["evaluated", "with", "full/20news", "full/mr"]


def test_first_parts_of_a_comparison_are_left_out(comparison: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(comparison / "full" / "all", tmp_path / "full" / "short")
    shutil.copytree(comparison / "full" / "all", tmp_path / "full" / "long")
    record = {"version": "0.1.0", "arguments": [], "after": "full/short/seed-0"}
    (tmp_path / "full/long/seed-0/planned.json").write_text(json.dumps(record))
    assert main(["bench", "exchange", "--comparison", str(tmp_path), "--with", "full"]) == 0
    heading = next(x for x in capsys.readouterr().out.splitlines() if "evaluated with" in x)
    assert heading.split() == ["evaluated", "with", "full/long"]


def test_what_was_set_aside_or_goes_on_is_not_averaged(
    comparison: Path, tmp_path: Path, capsys
) -> None:
    shutil.copytree(comparison / "full", tmp_path / "full")
    (run,) = tmp_path.glob("full/all/seed-0/*/1")
    shutil.copytree(run, run.with_name("1.damaged-ab12"))
    resumed = tmp_path / "full/all/seed-1/maskedcopy/1"
    shutil.copytree(run, resumed)
    shutil.copy(resumed / "config.yaml", resumed / "config-2.yaml")
    assert main(["bench", "exchange", "--comparison", str(tmp_path), "--with", "full"]) == 0
    assert capsys.readouterr().out.count("full, with own: ") == 1


def test_runs_of_one_name_stand_apart(comparison: Path, capsys) -> None:
    runs = [str(comparison / row / "all/seed-0/maskedcopy/1") for row in ("full", "shared")]
    assert main(["bench", "exchange", "--runs", *runs, "--with", "full"]) == 0
    heading = next(x for x in capsys.readouterr().out.splitlines() if "evaluated with" in x)
    assert heading.split() == ["evaluated", "with", *runs]


def test_the_current_folder_is_named_as_any_other(comparison: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(comparison / "full/all/seed-0/maskedcopy/1")
    assert main(["bench", "exchange", "--runs", ".", "--with", "full"]) == 0
    heading = next(x for x in capsys.readouterr().out.splitlines() if "evaluated with" in x)
    assert heading.split() == ["evaluated", "with", "maskedcopy/1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --runs or --comparison, one of them"),
        (["--comparison", "none"], "none: no finished run of a comparison in it"),
        (["--runs", "none"], "none: no such run directory or checkpoint file"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "exchange", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_mechanism_or_measure_is_named(comparison: Path, capsys) -> None:
    run = next(comparison.glob("full/all/seed-0/*/1"))
    told = ["bench", "exchange", "--runs", str(run), "--with"]
    assert main([*told, "full", "--measure", "bleu"]) == 2
    assert "has accuracy, keys_seen" in capsys.readouterr().err
    assert main([*told, "full", "NoAttention"]) == 2
    out, err = capsys.readouterr()
    assert "no mechanism 'NoAttention'" in err
    assert out == ""  # nothing was measured before


def test_a_mechanism_without_a_causal_form_does_not_fit_a_causal_model() -> None:
    config = TransformerConfig(FullAttention, d_model=16, num_heads=2)
    network = EncoderLayer(config, FullAttention(16, 2, causal=True))
    exchange.exchange(network, "full")
    with pytest.raises(exchange.DoesNotFitError, match="clustered-100 has no form with caus"):
        exchange.exchange(network, "clustered-100")


def test_a_network_without_layers_of_ours_is_refused() -> None:
    module = ClusterFormer(FullAttention)
    module.network = torch.nn.Linear(2, 2)  # as one around a model of transformers
    with pytest.raises(InputError, match="Linear has no layers of ours"):
        next(exchange.measure(module, MaskedCopy(), ["full"]))
