"""`keys_seen` of whole runs: logged everywhere, and said where nothing was selected."""

import csv
import json
from pathlib import Path

import pytest
from torch import nn

from clusterformer.attention import AttentionCore, FullAttention, ReformerAttention
from clusterformer.cli.main import main
from clusterformer.models.config import TransformerConfig
from clusterformer.models.seq2seq import Seq2Seq
from clusterformer.training.selection import selected_nothing

TOY = ["fit", "--pictures=false", "--data=toy_task.Toy", "--model.d_model=8", "--model.num_heads=2"]
TOY += ["--model.num_layers=2", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
TOY += ["--trainer.log_every_n_steps=1", "--data.size=24"]
ALL = "--model.attention.num_clusters=3"
PARTS = ["--model.attention.num_clusters=3", "--model.attention.look_ahead=0"]


def train(arguments: list[str], runs: Path) -> dict[str, float]:
    assert main([*TOY, *arguments, f"--runs={runs}"]) == 0
    written = json.loads((runs / "toy" / "1" / "results.json").read_text())
    assert written["environment"]["command"].startswith("clusterformer")
    assert written["environment"]["packages"]["torch"]
    return written["results"]


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        (["--model.attention=FullAttention"], 1.0),
        (["--model.attention=NeuralClusteringAttention", ALL], 1.0),
        (["--model.attention=NeuralClusteringAttention", *PARTS], 0.71),
    ],
    ids=["full", "whole", "parts"],
)
def test_every_run_logs_what_its_tokens_see(arguments, share, tmp_path: Path, capsys) -> None:
    results = train(arguments, tmp_path)
    assert results["test/keys_seen"] == pytest.approx(share, abs=0.1 if share < 1 else 1e-6)
    layers = [results[f"test/layer{layer}/keys_seen"] for layer in (1, 2)]
    assert results["test/keys_seen"] == pytest.approx(sum(layers) / 2, abs=1e-5)
    with (tmp_path / "toy" / "1" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    trained = [row["train/keys_seen"] for row in rows if row["train/loss"]]
    assert len(trained) == 3
    assert all(0 < float(seen) <= 1 for seen in trained)
    assert [float(row["val/keys_seen"]) for row in rows if row["val/keys_seen"]]
    noted = "selected nothing" in capsys.readouterr().out
    assert noted == (share == 1.0 and "FullAttention" not in arguments[0])


def translator(attention: type[AttentionCore], decoder_attention: type[AttentionCore]) -> nn.Module:
    config = TransformerConfig(
        d_model=8, num_heads=2, num_layers=2,
        attention=attention, decoder_attention=decoder_attention,
    )  # fmt: skip
    return Seq2Seq(config, source_size=9, target_size=9)


def test_encoder_and_decoder_are_judged_apart() -> None:
    measures = {"test/keys_seen": 0.75}
    for layer in (1, 2):
        measures[f"test/layer{layer}/keys_seen"] = 1.0
        measures[f"test/decoder/layer{layer}/keys_seen"] = 0.5
    said = selected_nothing(translator(ReformerAttention, ReformerAttention), measures)
    assert said == (
        "every token of the encoder saw 100 % of its text: there ReformerAttention selected nothing"
    )
    assert selected_nothing(translator(FullAttention, ReformerAttention), measures) is None


def test_a_pretrained_model_is_judged_too() -> None:
    transformers = pytest.importorskip("transformers")
    from clusterformer import huggingface

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **sizes))
    huggingface.attach(model, "NeuralClusteringAttention")
    said = selected_nothing(nn.ModuleDict({"encoder": model}), {"test/keys_seen": 1.0})
    assert said is not None
    assert "NeuralClusteringAttention selected nothing" in said
    huggingface.detach(model)
    assert selected_nothing(model, {"test/keys_seen": 1.0}) is None
