"""A pretrained model whose mechanism was trained before: it is kept, and where clusters start."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import clusterformer
from clusterformer import huggingface
from clusterformer.attention import (
    FullAttention,
    LocalAttention,
    NeuralClusteringAttention,
)
from clusterformer.cli.main import main
from clusterformer.data.pretrained import open_pretrained
from clusterformer.errors import InputError
from clusterformer.models.config import MakeCore, TransformerConfig
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.training.checkpoints import read

TRAINER = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--baselines=false"]
SHORT = [*TRAINER, "--trainer.max_epochs=1", "--data.batch_size=10"]
SHORT += ["--trainer.log_every_n_steps=1"]


@pytest.mark.slow
def test_a_training_starts_from_calibrated_clusters_unless_they_were_trained(
    bert: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a learning rate of 0 a checkpoint holds what the training started from."""
    fit = ["fit", "--pictures=false", "--data=Classification", f"--data.train={texts}", *SHORT]
    fit += ["--model.lr=0", "--model.pretrained_lr=0", f"--runs={tmp_path}"]
    model = ["--model.attention.num_clusters=3", f"--model.pretrained={bert}"]
    spaces = []
    for further in (model, [*model, "--model.calibration_texts=0"]):
        assert main([*fit, *further]) == 0
        spaces.append("clusters fitted" in capsys.readouterr().err)
    assert spaces == [True, False]
    run = tmp_path / "classification"
    started = [read(run / n / "checkpoints" / "last.ckpt")["state_dict"] for n in "12"]
    moved = {name for name in started[0] if not torch.equal(started[0][name], started[1][name])}
    assert {name.rpartition("core.")[2] for name in moved} == {"space.weight", "centroids"}
    from transformers import AutoModel

    trained = huggingface.attach(
        AutoModel.from_pretrained(bert), "NeuralClusteringAttention", num_clusters=3
    )
    shutil.copytree(bert, tmp_path / "converted")
    trained.save_pretrained(tmp_path / "converted")
    assert main([*fit, f"--model.pretrained={tmp_path / 'converted'}"]) == 0
    assert "clusters fitted" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_converted_folder_keeps_its_mechanism(
    bert: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModel

    model = huggingface.attach(AutoModel.from_pretrained(bert), "LocalAttention", window=3)
    shutil.copytree(bert, tmp_path / "converted")
    model.save_pretrained(tmp_path / "converted")
    fit = [
        "fit",
        "--pictures=false",
        "--data=Classification",
        f"--data.train={texts}",
        f"--runs={tmp_path}",
    ]
    assert main([*fit, f"--model.pretrained={tmp_path / 'converted'}", *SHORT]) == 0
    said = capsys.readouterr().err
    assert "attention LocalAttention, with which it was saved" in said
    assert "ignored" not in said
    assert main(["export", str(tmp_path / "classification" / "1"), str(tmp_path / "export")]) == 0
    assert "ignored" not in capsys.readouterr().err
    card = (tmp_path / "export" / "README.md").read_text()
    assert "Attention: `LocalAttention(window=3)`" in card
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert config["attention"]["init_args"] == {"window": 3}
    network = clusterformer.load(tmp_path / "classification" / "1").network
    windows = [part.window for part in network.modules() if isinstance(part, LocalAttention)]
    assert windows == [3, 3]


def test_another_mechanism_than_the_saved_one_is_refused(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModel

    model = huggingface.attach(AutoModel.from_pretrained(bert), "LocalAttention", window=3)
    shutil.copytree(bert, tmp_path / "converted")
    model.save_pretrained(tmp_path / "converted")
    source = open_pretrained(str(tmp_path / "converted"))

    def encoder(attention: MakeCore, weights: Path | None = source.folder) -> PretrainedEncoder:
        return PretrainedEncoder(TransformerConfig(attention), source.config, weights=weights)

    with pytest.raises(InputError, match=r"saved with LocalAttention.*got FullAttention; leave"):
        encoder(FullAttention)
    encoder(FullAttention, None)  # a checkpoint that was trained when nothing was refused
    encoder(NeuralClusteringAttention)  # the default, which nobody may have asked for
    encoder(partial(LocalAttention, window=3))
    assert "ignored" not in caplog.text
    found = encoder(partial(LocalAttention, window=4))
    assert "model.attention's window is ignored" in caplog.text
    assert [part.window for part in found.modules() if isinstance(part, LocalAttention)] == [3, 3]
