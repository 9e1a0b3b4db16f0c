"""Clusters of a pretrained model are fitted on the device of the training; see test_devices.py."""

import random
from pathlib import Path

import pytest
from tiny_pretrained import WORDS, write_bert

from clusterformer.cli.main import main


def test_clusters_of_a_pretrained_model_are_fitted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    draw, texts, bert = random.Random(0), tmp_path / "texts.tsv", tmp_path / "bert"
    rows = [f"{i % 2}\t{' '.join(draw.choices(WORDS, k=draw.randint(6, 12)))}" for i in range(24)]
    texts.write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    bert.mkdir()
    write_bert(bert)
    fit = ["fit", "--pictures=false", "--baselines=false", "--data=Classification"]
    fit += [f"--data.train={texts}", "--data.batch_size=8", f"--model.pretrained={bert}"]
    fit += ["--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=3"]
    fit += ["--model.attention.dense_length=4", "--trainer.max_steps=1"]
    assert main([*fit, "--trainer.accelerator=cpu", f"--runs={tmp_path / 'runs'}"]) == 0
