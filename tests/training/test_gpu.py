"""Training on a GPU: every mechanism through the Trainer, and clusters of a pretrained model.

python -m pytest -n 4 -m gpu tests/training
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from toy_task import Toy

from clusterformer import ClusterFormer
from clusterformer.attention import mechanisms
from clusterformer.cli.main import main
from clusterformer.training.checkpoints import read

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cls", mechanisms(), ids=lambda cls: cls.__name__)
def test_a_seed_gives_every_mechanism_the_weights_that_it_gives_on_a_cpu(cls) -> None:
    found = []
    for accelerator in ("cpu", "gpu"):
        options: dict[str, Any] = {"d_model": 32, "num_heads": 4, "num_layers": 2, "lr": 0.0}
        torch.manual_seed(0)
        model = ClusterFormer(cls, **options)
        trainer = Trainer(
            accelerator=accelerator, devices=1, max_steps=2, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(model, Toy())
        found.append({name: weight.cpu() for name, weight in model.named_parameters()})
    torch.testing.assert_close(*found, rtol=0, atol=0)  # at a learning rate of 0


def test_clusters_of_a_pretrained_model_are_fitted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tiny_pretrained import WORDS, write_bert

    draw, texts, bert = random.Random(0), tmp_path / "texts.tsv", tmp_path / "bert"
    rows = [f"{i % 2}\t{' '.join(draw.choices(WORDS, k=draw.randint(2, 12)))}" for i in range(48)]
    texts.write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    bert.mkdir()
    write_bert(bert)
    fit = ["fit", "--pictures=false", "--baselines=false", "--data=Classification"]
    fit += [f"--data.train={texts}", "--data.batch_size=8", f"--model.pretrained={bert}"]
    fit += ["--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=3"]
    fit += ["--model.attention.dense_length=4", "--model.lr=0", "--model.pretrained_lr=0"]
    fit += ["--trainer.accelerator=gpu", "--trainer.max_steps=1", f"--runs={tmp_path}"]
    assert main(fit) == 0
    saved = read(tmp_path / "classification" / "1" / "checkpoints" / "last.ckpt")["state_dict"]
    fitted = [name for name in saved if name.endswith("centroids")]
    assert len(fitted) == 2
    for name in fitted:  # k-means of unit vectors, where random ones have other lengths
        torch.testing.assert_close(saved[name].norm(dim=-1), torch.ones(3))
