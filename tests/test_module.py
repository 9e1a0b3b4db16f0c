"""The LightningModule from Python: optimiser, schedule, seeds, NaN, checkpoints."""

import math
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from toy_task import Toy

from clusterformer import ClusterFormer
from clusterformer.attention import FullAttention, IndexerAttention, NeuralClusteringAttention
from clusterformer.errors import InputError
from clusterformer.training.checkpoint_callbacks import BestCheckpoint, LastCheckpoint
from clusterformer.training.checkpoints import CheckpointFiles, last_good, read
from clusterformer.training.schedule import factor, warmup_steps

TINY = {"d_model": 8, "num_heads": 2, "num_layers": 1, "warmup": 2}


def trainer(**options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": bool(options.get("callbacks"))}
    return Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})


def test_it_trains_from_python() -> None:
    torch.manual_seed(0)
    model, task = ClusterFormer(**TINY, dropout=0.0, lr=0.02), Toy(size=200)
    run = trainer(max_epochs=8, check_val_every_n_epoch=4)
    run.fit(model, task)
    assert run.callback_metrics["val/loss"] < 0.4
    assert run.test(model, task, verbose=False)[0]["test/accuracy"] > 0.8


def test_a_compiled_network_trains_to_the_same_weights_and_checkpoint(tmp_path: Path) -> None:
    class Compiled(Callback):
        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            assert isinstance(pl_module.network, nn.Module)
            pl_module.network.compile(backend="eager", fullgraph=True)

    weights = []
    for callbacks in ([], [Compiled()]):
        torch.manual_seed(0)
        run = trainer(callbacks=callbacks)
        run.fit(ClusterFormer(**TINY, dropout=0.0), Toy(batch_size=20))
        run.save_checkpoint(tmp_path / "a.ckpt")
        weights.append(torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"])
    torch.testing.assert_close(*weights)


def test_a_compiled_module_is_refused_with_what_to_do() -> None:
    module: Any = ClusterFormer(**TINY)
    with pytest.raises(InputError, match=r"compile its network .*pl_module\.network\.compile"):
        trainer().fit(torch.compile(module, backend="eager"), Toy())
    trainer(max_steps=1).fit(module, Toy())


def test_a_trained_module_can_be_pickled() -> None:
    model, task, run = ClusterFormer(**TINY), Toy(), trainer()
    run.fit(model, task)
    run.test(model, task, verbose=False)
    copy = pickle.loads(pickle.dumps(model)).eval()
    for batch in task.val_dataloader():
        assert torch.equal(copy(batch).logits, model.eval()(batch).logits)


@pytest.mark.parametrize(
    "option",
    [{"num_layers": 0}, {"d_ff": 0}, {"warmup": -1}, {"dropout": 1.0}, {"label_smoothing": -0.1}],
)
def test_impossible_options_are_refused(option: dict[str, Any]) -> None:
    ((name, value),) = option.items()
    with pytest.raises(InputError, match=rf"{name} must be .*, got {value}"):
        ClusterFormer(**option)


def test_smoothing_of_a_loss_without_labels_is_refused() -> None:
    class Distance(Toy):
        smooths_labels = False

    trainer().fit(ClusterFormer(**TINY), Distance())
    smoothed = ClusterFormer(**TINY, label_smoothing=0.1)
    with pytest.raises(InputError, match=r"^label_smoothing is .*Distance .*, got 0\.1"):
        trainer().fit(smoothed, Distance())
    trainer().test(smoothed, Distance(), verbose=False)  # a run of before


def test_a_name_is_no_mechanism_in_python() -> None:
    with pytest.raises(InputError, match="attention must be the class"):
        ClusterFormer("FullAttention")  # type: ignore[arg-type]


def test_clustering_may_be_trained_without_the_task() -> None:
    torch.manual_seed(0)
    weights = {"task_weight": 0.0, "clustering_weight": 1.0, "lr": 0.01}
    attention = partial(NeuralClusteringAttention, num_clusters=16)
    model = ClusterFormer(attention, **TINY, **weights)
    run = trainer(max_epochs=10)
    run.fit(model, Toy())
    assert run.callback_metrics["train/clustering_loss"] < 1.0


def test_a_training_of_nothing_is_refused() -> None:
    model = ClusterFormer(FullAttention, **TINY, task_weight=0.0)
    with pytest.raises(InputError, match="task_weight is 0, and no layer has a clustering loss"):
        trainer(fast_dev_run=True).fit(model, Toy())


def test_a_batch_of_short_texts_has_nothing_to_cluster() -> None:
    """The losses are there, so that all processes have the same ones."""
    model = ClusterFormer(NeuralClusteringAttention, **TINY, clustering_weight=1.0)
    run = trainer(fast_dev_run=True)
    run.fit(model, Toy())
    assert run.callback_metrics["train/clustering_loss"] == 0


def test_any_mechanism_may_be_given_by_class_or_function() -> None:
    for attention in (FullAttention, lambda width, heads: FullAttention(width, heads)):
        model = ClusterFormer(attention, **TINY)
        trainer(fast_dev_run=True).fit(model, Toy())


def test_weights_of_linear_layers_alone_decay() -> None:
    model = ClusterFormer(**TINY, weight_decay=0.5)
    run = trainer(fast_dev_run=True)
    run.fit(model, Toy())
    decayed, spared = run.optimizers[0].param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    assert {id(p) for p in decayed["params"]} == linear
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_an_indexer_learns_by_its_own_loss_beside_the_task() -> None:
    torch.manual_seed(0)
    model = ClusterFormer(partial(IndexerAttention, top_k=2), **TINY)
    run = trainer(max_epochs=1)
    before = None

    class Remember(Callback):
        def on_train_start(self, trainer: Trainer, module: Any) -> None:
            nonlocal before
            core = module.network.encoder.layers[0].attention.core
            before = core.index_keys.weight.detach().clone()

    run.callbacks.append(Remember())
    run.fit(model, Toy())
    core = model.network.encoder.layers[0].attention.core
    assert run.callback_metrics["train/mechanism_loss"] >= 0
    assert before is not None
    assert not torch.equal(core.index_keys.weight, before)


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_every_schedule_rises_to_one_and_never_above(schedule: Any, warmup: int) -> None:
    at = factor(schedule, warmup, 100)
    rates = [at(step) for step in range(101)]
    assert all(0 <= rate <= 1 for rate in rates)
    assert rates[max(0, warmup - 1)] == rates[warmup] == 1
    assert sorted(rates[:warmup]) == rates[:warmup]
    assert sorted(rates[warmup:], reverse=True) == rates[warmup:]
    expected = {"inverse-sqrt": math.sqrt(10 / 100), "cosine": 0, "constant": 1}[schedule]
    if warmup == 10:
        assert rates[100] == pytest.approx(expected, abs=1e-12)


def test_a_cosine_ends_at_its_floor() -> None:
    at = factor("cosine", 10, 100, 0.1)
    assert at(9) == at(10) == 1
    assert at(55) == pytest.approx(0.55)
    assert at(100) == pytest.approx(0.1)


def test_betas_and_floor_are_options_of_the_model() -> None:
    model = ClusterFormer(**TINY, betas=(0.8, 0.98), schedule="cosine", lr_floor=0.5, lr=1.0)
    run = trainer(max_steps=6, max_epochs=-1, enable_checkpointing=False)
    run.fit(model, Toy())
    assert [group["betas"] for group in run.optimizers[0].param_groups] == [(0.8, 0.98)] * 2
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5)
    for wrong, option in (({"betas": (0.9, 1.0)}, r"betas\[1\]"), ({"lr_floor": -1}, "lr_floor")):
        with pytest.raises(InputError, match=f"{option} must be from 0 to below 1, got"):
            ClusterFormer(**TINY, **wrong)


def test_radam_takes_over_from_adamw_with_its_own_options(tmp_path: Path) -> None:
    first = trainer(max_steps=2, max_epochs=-1, enable_checkpointing=False)
    first.fit(ClusterFormer(**TINY, weight_decay=0.2), Toy())
    checkpoint = tmp_path / "last.ckpt"
    first.save_checkpoint(checkpoint)
    second = trainer(max_steps=4, max_epochs=-1, enable_checkpointing=False)
    model = ClusterFormer(**TINY, weight_decay=0.4, optimizer="RAdam")
    second.fit(model, Toy(), ckpt_path=checkpoint, weights_only=True)
    optimizer = second.optimizers[0]
    assert isinstance(optimizer, torch.optim.RAdam)
    assert [group["decoupled_weight_decay"] for group in optimizer.param_groups] == [True] * 2
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.4, 0.0]
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"),
    [(0.1, 30, 3), (0.1, 5, 1), (7, 10, 7), (0, 5, 0)],
)
def test_a_warm_up_below_one_is_a_share_of_the_run(
    warmup: float, steps: int, expected: int
) -> None:
    model = ClusterFormer(**TINY | {"warmup": warmup}, lr=1.0, schedule="constant")
    rates = []

    class Rates(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    run = trainer(max_steps=steps, max_epochs=-1, callbacks=[Rates()], enable_checkpointing=False)
    run.fit(model, Toy())
    assert len(rates) == steps
    assert sum(rate < 1 for rate in rates) == max(0, expected - 1)


def test_a_share_of_an_endless_run_is_200_steps() -> None:
    assert warmup_steps(0.1, None) == 200
    with pytest.raises(
        InputError, match=r"warmup is a share below 1 or a number of steps, got 2\.5"
    ):
        ClusterFormer(**TINY | {"warmup": 2.5})


def test_cosine_ends_with_the_training() -> None:
    model = ClusterFormer(**TINY, schedule="cosine")
    run = trainer(max_epochs=2)
    run.fit(model, Toy())
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_weights_without_an_optimizer_are_no_last_good_checkpoint(tmp_path: Path) -> None:
    assert last_good(tmp_path) == "none"
    for name in ("best.ckpt", "last.ckpt", "step9_0.5.ckpt"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "step9_0.5.ckpt", (2e9, 2e9))  # the newest
    assert last_good(tmp_path) == tmp_path / "last.ckpt"


def test_accumulated_batches_take_one_step() -> None:
    run = trainer(accumulate_grad_batches=2)
    run.fit(ClusterFormer(**TINY), Toy())
    assert run.global_step == 3


def test_the_best_checkpoint_survives_a_moved_run_folder(tmp_path: Path) -> None:
    def callbacks(folder: str) -> list[Any]:
        path = tmp_path / folder
        return [BestCheckpoint(path, Toy.monitor, Toy.mode), LastCheckpoint(path, 100)]

    run = trainer(callbacks=callbacks("old"), plugins=[CheckpointFiles()])
    run.fit(ClusterFormer(**TINY), Toy())
    (tmp_path / "old").rename(tmp_path / "new")
    again = trainer(callbacks=callbacks("new"), plugins=[CheckpointFiles()])
    again.fit(ClusterFormer(**TINY), Toy(), ckpt_path=tmp_path / "new" / "last.ckpt")
    best = again.checkpoint_callback
    assert isinstance(best, BestCheckpoint)
    assert best.best_model_path == str(tmp_path / "new" / "best.ckpt")
    assert best.best_model_score == run.checkpoint_callback.best_model_score  # type: ignore[union-attr]


def test_an_interrupted_write_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = CheckpointFiles(), tmp_path / "last.ckpt"
    entries = {"version": "0", "config": None, "seed": 0, "kind": "Toy", "mode": "max", "task": {}}
    content = {"clusterformer": entries, "state_dict": {}, "global_step": 1}
    files.save_checkpoint(content, path)

    def die(content: Any, file: Any) -> None:
        file.write(b"half a checkpoint")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", die)
    with pytest.raises(KeyboardInterrupt):
        files.save_checkpoint({**content, "global_step": 2}, path)
    assert read(path)["global_step"] == 1


def test_a_module_without_a_task_says_what_it_wants() -> None:
    loader = Toy().train_dataloader()
    with pytest.raises(InputError, match=r"trains a clusterformer\.task\.Task, got None"):
        trainer().fit(ClusterFormer(**TINY), loader)


def test_text_is_labelled_from_python() -> None:
    model, task = ClusterFormer(**TINY), Toy()
    trainer().fit(model, task)
    network = model.network.eval()
    found = [task.predictions(network, b) for b in task.text_dataloader(["1 2", "3"])]
    assert [set(record) for records in found for record in records] == [
        {"label", "probability"}
    ] * 2


def test_lightnings_predict_says_how_to_predict() -> None:
    model, task, run = ClusterFormer(**TINY), Toy(), trainer()
    run.fit(model, task)
    with pytest.raises(InputError, match=r"no texts; call task\.predictions\(model\.network"):
        run.predict(model, task)
