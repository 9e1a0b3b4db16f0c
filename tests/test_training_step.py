"""One step of training: the parts of its loss, its random numbers, and its clipped gradients."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from toy_task import Toy

from clusterformer import ClusterFormer, losses
from clusterformer.attention import IndexerAttention, NeuralClusteringAttention
from clusterformer.training.schedule import factor

TINY = {"d_model": 8, "num_heads": 2, "num_layers": 1, "warmup": 2}


def fit(
    model: ClusterFormer, callback: Callback, size: int = 40, **options: Any
) -> tuple[Trainer, Toy]:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 1}
    run, task = Trainer(**{**quiet, **options}, callbacks=[callback]), Toy(size)
    run.fit(model, task)
    return run, task


@pytest.mark.parametrize("mechanism", [NeuralClusteringAttention, IndexerAttention])
def test_each_part_of_the_loss_is_a_mean_over_tokens_or_texts(mechanism: Any) -> None:
    """Of padded texts; a validation smooths no labels."""
    clusters = mechanism is NeuralClusteringAttention
    attention = partial(mechanism, **({"num_clusters": 5} if clusters else {"top_k": 2}))
    weights = {"task_weight": 2.0, "clustering_weight": 0.3, "sorting_weight": 0.7}
    still = {"num_layers": 2, "dropout": 0.0, "lr": 0.0, "label_smoothing": 0.2}
    model, steps = ClusterFormer(attention, **{**TINY, **still, **weights}), list[Any]()

    class Steps(Callback):
        def on_train_batch_end(
            self, trainer: Trainer, module: Any, outputs: Any, batch: Any, index: int
        ) -> None:
            steps.append((batch, outputs["loss"]))

    run, task = fit(model, Steps(), fast_dev_run=True, log_every_n_steps=1)
    assert model.network is not None
    ((batch, total),) = steps
    output, mask = model.network.train()(batch), batch.mask
    groupings, tokens, texts = output.encoded.groupings, mask.sum(), len(mask)
    assert tokens < mask.numel()
    pairs = zip(output.encoded.cores, groupings, strict=True)
    seen = [core.keys_seen(grouping, mask).sum() for core, grouping in pairs]
    smooth = F.cross_entropy(output.logits, batch.target, label_smoothing=0.2)
    expected = {"loss": smooth, "keys_seen": sum(seen) / (2 * tokens)}
    if clusters:
        clustering = [losses.clustering_loss(grouping, mask).sum() for grouping in groupings]
        sorting = [losses.sorting_loss(grouping).sum() for grouping in groupings]
        expected |= {"clustering_loss": sum(clustering) / 2 / tokens}
        expected |= {"sorting_loss": sum(sorting) / 2 / texts}
        rest = 0.3 * expected["clustering_loss"] + 0.7 * expected["sorting_loss"]
    else:
        rest = sum(grouping.loss.sum() for grouping in groupings) / 2 / tokens
        expected |= {"mechanism_loss": rest}
    torch.testing.assert_close(total, (2.0 * smooth + rest).detach())
    for name, value in expected.items():
        torch.testing.assert_close(run.callback_metrics[f"train/{name}"], value.detach())
    valid = next(iter(task.val_dataloader()))
    sharp = F.cross_entropy(model.network.eval()(valid).logits, valid.target)
    torch.testing.assert_close(run.callback_metrics["val/loss"], sharp.detach())


def test_each_step_of_each_process_draws_numbers_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seeds(seed: int = 0, rank: int = 0) -> list[int]:
        """Find the seed under which each step of two epochs draws."""
        found: list[int] = []

        class Seeds(Callback):
            def on_train_batch_end(self, *_: Any) -> None:
                found.append(torch.initial_seed())

        monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
        monkeypatch.setattr(ClusterFormer, "global_rank", rank)
        fit(ClusterFormer(**TINY), Seeds(), size=16, max_epochs=2, limit_val_batches=0)
        return found

    runs = [seeds(), seeds(seed=1), seeds(rank=1)]
    assert len({seed for run in runs for seed in run}) == 3 * 4
    assert seeds() == runs[0]


def test_gradients_are_clipped_and_the_norm_logged_is_that_before() -> None:
    before, after, logged = list[float](), list[float](), list[float]()

    def norm(module: Any) -> float:
        squares = [p.grad.square().sum() for p in module.parameters() if p.grad is not None]
        return float(torch.stack(squares).sum().sqrt())

    class Norms(Callback):
        def on_before_optimizer_step(self, trainer: Trainer, module: Any, _: Any) -> None:
            before.append(norm(module))

        def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
            after.append(norm(module))
            logged.append(float(trainer.callback_metrics["train/gradient_norm"]))

    fit(ClusterFormer(**TINY), Norms(), gradient_clip_val=0.01)
    assert min(before) > 0.02
    assert logged == pytest.approx(before)
    assert after == pytest.approx([0.01] * 5, rel=1e-3)


def test_a_schedule_ends_with_the_last_step_of_accumulated_batches() -> None:
    """Three steps of five batches: the last one is of a single batch."""
    rates: list[float] = []

    class Rates(Callback):
        def on_before_optimizer_step(self, trainer: Trainer, module: Any, optimizer: Any) -> None:
            rates.append(optimizer.param_groups[0]["lr"])

    model = ClusterFormer(**TINY, lr=1.0, schedule="cosine")
    fit(model, Rates(), max_epochs=2, accumulate_grad_batches=2, limit_val_batches=0)
    at = factor("cosine", 2, 6)
    assert rates == pytest.approx([at(step) for step in range(6)])
