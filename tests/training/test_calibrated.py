"""Clusters that a training of a pretrained model starts from."""

import random
from pathlib import Path

import pytest
import torch
from together import train_together

pytest.importorskip("transformers")

from tiny_pretrained import WORDS, write_bert

from clusterformer.cli.main import main
from clusterformer.training.checkpoints import read


@pytest.mark.slow
def test_two_processes_start_from_the_clusters_of_one(tmp_path: Path) -> None:
    """At a learning rate of 0 a checkpoint holds what the training started from."""
    draw, texts, bert = random.Random(0), tmp_path / "texts.tsv", tmp_path / "bert"
    rows = [f"{i % 2}\t{' '.join(draw.choices(WORDS, k=draw.randint(2, 12)))}" for i in range(48)]
    texts.write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    bert.mkdir()
    write_bert(bert)
    fit = ["fit", "--pictures=false", "--baselines=false", "--data=Classification"]
    fit += [f"--data.train={texts}", "--data.batch_size=8", f"--model.pretrained={bert}"]
    fit += ["--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=3"]
    fit += ["--model.attention.dense_length=4", "--model.lr=0", "--model.pretrained_lr=0"]
    fit += ["--trainer.accelerator=cpu", "--trainer.max_steps=1"]
    one, two, log = tmp_path / "one", tmp_path / "two", tmp_path / "log"
    assert main([*fit, f"--runs={one}"]) == 0
    together = [*fit, "--trainer.strategy=ddp", f"--runs={two}"]
    assert set(train_together(2, together, log)) == {0}, log.read_text()
    found, expected = (
        read(runs / "classification" / "1" / "checkpoints" / "last.ckpt")["state_dict"]
        for runs in (two, one)
    )
    names = [name for name in expected if name.endswith(("space.weight", "centroids"))]
    assert len(names) == 4
    for name in names:
        torch.testing.assert_close(found[name], expected[name])
