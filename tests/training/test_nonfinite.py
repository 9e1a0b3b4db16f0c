"""The search for NaN and infinity: which step stops, and what its message names."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from toy_task import Toy, ToyBatch

from clusterformer import ClusterFormer
from clusterformer.attention import FullAttention
from clusterformer.errors import InputError
from clusterformer.tasks.generated.partner import Partner
from clusterformer.training.checkpoint_callbacks import LastCheckpoint
from clusterformer.training.checkpoints import CheckpointFiles, read
from clusterformer.training.nonfinite import first_nonfinite

TINY = {"d_model": 8, "num_heads": 2, "num_layers": 1, "warmup": 2}


def trainer(**options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": "callbacks" in options}
    return Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_nan_stops_with_step_layer_and_checkpoint(precision: Any, tmp_path: Path) -> None:
    run = trainer(callbacks=[LastCheckpoint(tmp_path, every=1)], precision=precision, max_epochs=2)
    with pytest.raises(InputError, match=r"not finite at step 7.*last\.ckpt") as caught:
        run.fit(ClusterFormer(**TINY), Toy(spoil_at=7))
    assert "\n" not in str(caught.value)
    weights = read(tmp_path / "last.ckpt")["state_dict"].values()
    assert all(weight.isfinite().all() for weight in weights)


class SpoiltGradients(Callback):
    """Gradients beyond float16 in all steps from one on, of losses that are finite."""

    def __init__(self, first: int, last: int) -> None:
        self._steps = range(first, last)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step in self._steps:
            for weight in pl_module.parameters():
                if weight.grad is not None:
                    weight.grad.fill_(torch.inf)


def test_a_loss_scaler_skips_steps_but_not_a_whole_training() -> None:
    def run(epochs: int, task: Toy, *callbacks: Callback) -> Trainer:
        scaled = trainer(
            plugins=[MixedPrecision("16-mixed", "cpu")], max_epochs=epochs, callbacks=[*callbacks],
            enable_checkpointing=False,
        )  # fmt: skip
        scaled.fit(ClusterFormer(**TINY), task)
        return scaled

    with pytest.raises(InputError, match=r"not finite at step 7 .*trainer\.precision bf16-mixed"):
        run(2, Toy(spoil_at=7))
    assert run(1, Toy(), SpoiltGradients(2, 4)).global_step == 5
    with pytest.raises(InputError, match=r"not finite at step 3\d .* first in the gradient of"):
        run(10, Toy(), SpoiltGradients(2, 50))


class SpoiltBatch(Callback):
    """NaN in the network at one batch of each epoch."""

    def __init__(self, number: int) -> None:
        self._number = number

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: ToyBatch, batch_idx: int
    ) -> None:
        def spoil(_module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
            return output * math.nan if args[0] is batch.tokens else output

        if batch_idx == self._number:
            pl_module.network.embedding.register_forward_hook(spoil)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize(("spoilt", "step"), [(0, 0), (2, 1), (3, 1)])
def test_nan_in_any_of_the_accumulated_batches_is_found(
    precision: Any, spoilt: int, step: int
) -> None:
    scaled = {"plugins": [MixedPrecision("16-mixed", "cpu")]} if precision == "16-mixed" else {}
    run = trainer(
        accumulate_grad_batches=2,
        callbacks=[SpoiltBatch(spoilt)],
        enable_checkpointing=False,
        **scaled,
    )
    with pytest.raises(InputError, match=rf"at step {step} .* first in the output of embedding;"):
        run.fit(ClusterFormer(**TINY), Toy())


def test_float16_itself_is_blamed_for_nan() -> None:
    model = ClusterFormer(FullAttention, **TINY, optimizer="RAdam")
    run = trainer(precision="16-true", max_steps=20, use_distributed_sampler=False)
    with pytest.raises(InputError, match=r"; float16 .* trainer\.precision to 16-mixed or bf16-"):
        run.fit(model, Partner(num_tokens=16, valid_texts=1))


def test_nan_after_resuming_names_the_checkpoint_of_the_earlier_start(tmp_path: Path) -> None:
    def run(epochs: int) -> Trainer:
        saving = LastCheckpoint(tmp_path, every=100)
        return trainer(callbacks=[saving], plugins=[CheckpointFiles()], max_epochs=epochs)

    first = run(1)
    first.fit(ClusterFormer(**TINY), Toy())
    spoilt = Toy(spoil_at=first.global_step + 1)
    with pytest.raises(InputError, match=r"last good checkpoint: .*last\.ckpt"):
        run(2).fit(ClusterFormer(**TINY), spoilt, ckpt_path=tmp_path / "last.ckpt")


def test_the_first_part_that_is_not_finite_is_named() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    batch = torch.tensor([[1e38, 1e38]])
    with torch.no_grad():
        network[0].weight.fill_(1.0)
        network[1][1].weight.fill_(3.0)
    assert first_nonfinite(network, batch) == "the output of 1.1"
    batch = torch.ones(1, 2)
    network[0].bias.grad = torch.tensor([0.0, math.nan])
    assert first_nonfinite(network, batch) == "the gradient of 0.bias"
    with torch.no_grad():
        network[1][1].weight[0, 0] = math.inf
    assert first_nonfinite(network, batch) == "the weights 1.1.weight"
