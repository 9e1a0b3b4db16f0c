"""The clustering task trains the model of NeuralClustering through Lightning."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer

from clusterformer import ClusterFormer
from clusterformer.errors import InputError
from clusterformer.models.cluster_network import ClusterNetwork
from clusterformer.models.transformer import StackOutput
from clusterformer.task import IGNORE, Output
from clusterformer.tasks.clustering import Clustering, PointBatch
from clusterformer.tasks.metrics import Purity
from clusterformer.training.fit import fit
from clusterformer.training.runs import Run


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    x = np.eye(3)[y] * 4 + 0.3 * rng.standard_normal((300, 3))
    path = tmp_path / "blobs.npz"
    np.savez(path, x=x, y=y)
    return path


def trainer(**options: object) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "accelerator": "cpu",
    }
    return Trainer(**(quiet | options))


@pytest.fixture
def trained(blobs: Path) -> tuple[Trainer, ClusterFormer, Clustering]:
    task = Clustering(str(blobs), n_clusters=3, batch_size=64, merge_at=12)
    model = ClusterFormer(lr=5e-3, weight_decay=0.0, warmup=0)
    fitter = trainer(max_epochs=8)
    fitter.fit(model, task)
    return fitter, model, task


def test_it_finds_the_groups(trained: tuple[Trainer, ClusterFormer, Clustering]) -> None:
    fitter, model, task = trained
    (results,) = fitter.test(model, task, verbose=False)
    assert results["test/purity"] > 0.95
    assert results["test/loss"] < -0.8  # -log 3 at best


def test_purity_counts_labels_that_training_lacks(tmp_path: Path) -> None:
    points = np.random.default_rng(0).standard_normal((100, 3))
    tests = np.arange(100) % 5 == 4
    labels = np.where(tests & (np.arange(100) < 50), "rare", "common")
    unlabelled, labelled = tmp_path / "points.npy", tmp_path / "labelled.npz"
    np.save(unlabelled, points)
    np.savez(labelled, x=points, y=labels)
    for trained in (unlabelled, labelled):
        before, task = (Clustering(str(path), n_clusters=2) for path in (trained, labelled))
        before.setup("fit")
        task.load_state(before.state())
        task.setup("test")
        metrics = task.metrics()
        for batch in task.test_dataloader():
            metrics.update(torch.zeros(len(batch.target), dtype=torch.long), batch.target)
        assert metrics.compute() == {"purity": 0.5}


def test_the_order_of_a_file_does_not_decide_the_loss_of_a_validation(tmp_path: Path) -> None:
    labels = np.arange(3000) // 300
    np.savez(tmp_path / "sorted.npz", x=np.eye(10)[labels], y=labels)
    task = Clustering(str(tmp_path / "sorted.npz"), n_clusters=10, batch_size=100)
    for stage in ("fit", "test"):
        task.setup(stage)
    for loader in (task.val_dataloader(), task.test_dataloader()):
        total = count = 0.0
        for batch in loader:
            logits = 30.0 * F.one_hot(batch.target, 10)
            output = Output(torch.stack([logits, logits], 1), StackOutput(logits, []))
            loss, number = task.loss(output, batch, 0.0)
            total, count = total + float(loss), count + float(number)
        assert total / count < -2.1  # -log 10 at best


def test_surplus_clusters_are_no_result_in_validation() -> None:
    task = Clustering(n_clusters=3)
    mask = torch.ones(4, 1, dtype=torch.bool)
    points = torch.randn(4, 2)
    batch = PointBatch(points, points[:, None], mask, torch.zeros(4, dtype=torch.long))
    for clusters, counts in ((9, False), (3, True)):
        logits = torch.randn(4, 2, clusters)
        output = Output(logits, StackOutput(points, []))
        assert (task.loss(output, batch, 0.0)[0] != 0) == counts
        training = Output(logits.requires_grad_(), StackOutput(points, []))
        assert task.loss(training, batch, 0.0)[0] != 0


def test_its_pictures_are_sizes_and_a_map(
    trained: tuple[Trainer, ClusterFormer, Clustering], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    _, model, task = trained
    assert model.network is not None
    drawn = task.draw(model.network, tmp_path)
    assert [path.name for path in drawn] == ["sizes.png", "map.png"]
    assert all(path.stat().st_size > 1000 for path in drawn)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_its_run_has_pictures_in_any_precision(precision: str, blobs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    task = Clustering(str(blobs), n_clusters=3, batch_size=64, merge_at=4)
    run = Run.create(tmp_path, "blobs")
    options = {"precision": precision, "max_epochs": 2, "accelerator": "cpu"}
    found = fit(ClusterFormer(warmup=0), task, options, run=run)
    names = [path.name for path in found.pictures]
    assert names == ["curves.png", "sizes.png", "map.png"]


def test_it_has_no_labels_to_smooth(blobs: Path) -> None:
    task = Clustering(str(blobs), n_clusters=3, batch_size=64, merge_at=1)
    with pytest.raises(InputError, match=r"label_smoothing is .*Clustering.*, got 0\.1"):
        trainer(max_steps=2).fit(ClusterFormer(label_smoothing=0.1), task)


def test_its_state_alone_labels_new_points(
    trained: tuple[Trainer, ClusterFormer, Clustering], blobs: Path
) -> None:
    _, model, task = trained
    other = Clustering("nowhere.npy", n_clusters=3, merge_at=12)
    other.load_state(task.state())
    network = other.build(model.transformer_config).eval()
    assert model.network is not None
    network.load_state_dict(model.network.state_dict())
    (batch,) = other.text_dataloader(["4 0 0", "0,4,0", "0\t0\t4"])
    found = [record["cluster"] for record in other.predictions(network, batch)]
    assert sorted(found) == [0, 1, 2]
    with pytest.raises(InputError, match="2 columns, training had 3"):
        list(other.text_dataloader(["1 2"]))
    with pytest.raises(InputError, match="not a point"):
        list(other.text_dataloader(["1 2 x"]))


def test_an_empty_share_of_a_batch_counts_nothing(
    trained: tuple[Trainer, ClusterFormer, Clustering],
) -> None:
    _, model, task = trained
    nothing = task.train_dataloader().dataset[[]]
    total, count = task.loss(model(nothing), nothing, 0.0)
    assert (total.item(), count.item()) == (0, 0)
    total.backward()


def test_bad_points_are_refused(tmp_path: Path) -> None:
    x = np.ones((50, 2))
    x[3, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(InputError, match="allowed are finite"):
        Clustering(str(tmp_path / "x.npy"), n_clusters=2).setup("fit")
    np.save(tmp_path / "x.npy", np.nan_to_num(x))
    with pytest.raises(InputError, match="50 points are too few for 100 clusters"):
        Clustering(str(tmp_path / "x.npy")).setup("fit")
    with pytest.raises(InputError, match="n_clusters must be at least 1, got 0"):
        Clustering(n_clusters=0)


def test_purity_counts_the_majority_and_ignores_the_unlabelled() -> None:
    purity = Purity(2, 3)
    purity.update(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 2, IGNORE]))
    assert purity.compute().item() == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    "options",
    [
        {"balance": float("nan")},
        {"balance": float("inf")},
        {"merge_at": -1},
        {"merge_at": 1.5},
        {"min_probability": 1.0},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict) -> None:
    (name,) = options
    with pytest.raises(InputError, match=rf"{name} (must be|is a share)"):
        Clustering(**options)


def merged_at(task: Clustering, **options: object) -> int:
    """Train clusters, and return the step at which surplus ones were merged."""
    model = ClusterFormer(lr=5e-3, weight_decay=0.0, warmup=0)
    trainer(**options).fit(model, task)
    assert isinstance(model.network, ClusterNetwork)
    clusters = model.network.clusters
    assert int(clusters.alive.sum()) == 3
    return clusters.merge_at


def test_surplus_clusters_merge_in_short_and_in_long_trainings(blobs: Path) -> None:
    def task(**options: object) -> Clustering:
        return Clustering(str(blobs), n_clusters=3, batch_size=64, **options)

    assert merged_at(task(), max_epochs=2) == 3  # 0.4 of 8
    assert merged_at(task(), max_epochs=10) == 16
    assert merged_at(task(), max_epochs=10, accumulate_grad_batches=2) == 16
    assert merged_at(task(), fast_dev_run=True) == 1
    assert merged_at(task(merge_at=7), max_epochs=2) == 7
    with pytest.raises(InputError, match=r"merge_at must be below the 8 steps .*, got 240: "):
        merged_at(task(merge_at=240), max_epochs=2)


def test_clusters_that_have_merged_do_not_merge_again_in_a_longer_training(blobs: Path) -> None:
    task = Clustering(str(blobs), n_clusters=3, batch_size=64)
    model = ClusterFormer(lr=5e-3, weight_decay=0.0, warmup=0)
    trainer(max_epochs=2).fit(model, task)
    assert isinstance(model.network, ClusterNetwork)
    model.network.clusters.merge_at = 20
    trainer(max_epochs=5).fit(model, task)
    assert int(model.network.clusters.alive.sum()) == 3
    assert int(model.network.clusters.step) == 8 + 20
