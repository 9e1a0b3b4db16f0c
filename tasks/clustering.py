"""Clustering of points: the model of `NeuralClustering`, trained like any other task.

B batch   P points   F features   K neighbours   C clusters
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from clusterformer.clustering.evaluation import label
from clusterformer.clustering.measures import measures
from clusterformer.clustering.neighbors import PrincipalComponents, nearest_neighbors
from clusterformer.clustering.network import NeuralClusters, initial_clusters, neighbor_loss
from clusterformer.clustering.processes import is_distributed, over_processes
from clusterformer.data.batches import BucketPlan, make_loader, run_seed
from clusterformer.data.named_sets import Split
from clusterformer.data.point_batches import PointBatch, PointDataset
from clusterformer.data.points import read_points
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.cluster_network import ClusterNetwork
from clusterformer.models.config import TransformerConfig
from clusterformer.task import IGNORE, Output, SimpleResult
from clusterformer.tasks.metrics import Purity
from clusterformer.tasks.split_task import LineTask
from clusterformer.training.clustering_methods import METHODS, make_clustering
from clusterformer.training.fully_sharded import FullyShardedStrategy
from clusterformer.training.optimizer import step_limit

_FITTED = 10_000  # points from which the principal components are learnt
_MAPPED = 1500  # test points in the map
_ENDLESS_MERGE_AT = 240  # step of merging of a share, where no end of the training is set
_CHUNK = 16_384  # points whose features are computed at a time


class ClusteringState(TypedDict):
    """State of the task in a checkpoint."""

    features: dict[str, Tensor]


class Clustering(LineTask):
    """Put near neighbours into the same cluster, and use all clusters.

    Labels only serve to measure. A tenth of the training points validates, by loss.

    Args:
        name: Data set (mnist, digits or 20news) or a file (.npy, .npz, .csv, .tsv, or word
            vectors).
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        label_column: Column of the labels of a table, by name or by number from 1.
        n_clusters: Number of clusters, C.
        hidden: Number of units of a hidden layer; a linear W, as in eq. 2, by default.
        n_neighbors: Number of neighbours of a point, K.
        n_components: Number of principal components in which points are compared, F.
        balance: Exponent of the cluster sizes in the loss: 0 lets one cluster take all, 1 is the
            likelihood, more makes clusters more equal in size.
        merge_at: Training step at which surplus clusters are merged, or below 1 a share of the
            training; 0 starts without any.
        batch_size: Number of points in a batch, over all processes.
        min_probability: Membership below which `predict` takes a point as noise, cluster -1; 0 for
            no noise.
    """

    monitor = "val/loss"
    mode = "min"
    state_type = ClusteringState
    reads = "point"
    commands: Mapping[str, str] = {"label points": "predict --checkpoint {run} --input FILE"}
    usage = "model.predict([POINT])"
    kept_options = ("n_clusters", "hidden", "n_components")
    smooths_labels = False

    def __init__(
        self,
        name: str = "digits",
        *,
        root: str | None = None,
        label_column: str | None = None,
        n_clusters: int = 100,
        hidden: int | None = None,
        n_neighbors: int = 5,
        n_components: int = 64,
        balance: float = 1.0,
        merge_at: int | float = 0.4,
        batch_size: int = 2048,
        min_probability: float = 0.0,
    ) -> None:
        super().__init__()
        require_at_least(
            1,
            n_clusters=n_clusters,
            hidden=hidden,
            n_neighbors=n_neighbors,
            n_components=n_components,
            batch_size=batch_size,
        )
        require_at_least(0, balance=balance, merge_at=merge_at, min_probability=min_probability)
        if merge_at >= 1 and merge_at != int(merge_at):
            raise InputError(f"merge_at is a share below 1 or a number of steps, got {merge_at}")
        if min_probability >= 1:
            raise InputError(f"min_probability must be below 1, got {min_probability}")
        self._name, self._root, self._label_column = name, root, label_column
        self._n_clusters, self._hidden = n_clusters, hidden
        self._n_neighbors, self._n_components = n_neighbors, n_components
        self._balance, self._merge_at, self._batch_size = balance, merge_at, batch_size
        self._min_probability = min_probability
        self._features: PrincipalComponents | None = None
        self._labels: list[str] = []
        self._image: tuple[int, int] | None = None
        self._parts: dict[str, PointDataset] = {}

    def setup(self, stage: str) -> None:
        if self.trainer is not None and isinstance(self.trainer.strategy, FullyShardedStrategy):
            raise InputError(
                "trainer.strategy fsdp2 does not train clusters: merging moves centroids, of which "
                "each process would have a part; take ddp"
            )
        if self._parts or stage == "predict":
            return
        data = read_points(self._name, root=self._root, label_column=self._label_column)
        order = np.random.default_rng(0).permutation(len(data.train))
        tenth = len(order) // 10
        rows = {"valid": np.sort(order[:tenth]), "train": order[tenth:]}
        if tenth < 2 or len(rows["train"]) < self._n_clusters:
            raise InputError(
                f"{self._name}: {len(order)} points are too few for {self._n_clusters} clusters"
            )
        self._image = data.image
        x = {part: data.train[found] for part, found in rows.items()} | {"test": data.test}
        y: dict[str, NDArray | None] = dict.fromkeys(x)
        if data.train_labels is not None and data.test_labels is not None:
            y = {part: data.train_labels[found] for part, found in rows.items()}
            y["test"] = data.test_labels
        self._labels = sorted(
            {str(label) for part in y.values() if part is not None for label in np.unique(part)}
        )
        if self._features is None:
            fitted = torch.as_tensor(np.asarray(x["train"][:_FITTED], dtype=np.float32))
            self._features = PrincipalComponents(fitted.shape[1], self._n_components).learn(fitted)
        for part, points in x.items():
            features = self._compute(points)
            neighbors = nearest_neighbors(features, self._n_neighbors)
            self._parts[part] = PointDataset(
                features, neighbors, self._numbers(y[part], len(features))
            )

    def _compute(self, points: NDArray) -> Tensor:
        assert self._features is not None
        columns = len(self._features.center)
        if points.shape[1] != columns:
            raise InputError(f"{self._name}: {points.shape[1]} columns, training had {columns}")
        chunks = [
            torch.from_numpy(np.array(points[start : start + _CHUNK], dtype=np.float32))
            for start in range(0, len(points), _CHUNK)
        ]
        if not all(chunk.isfinite().all() for chunk in chunks):
            raise InputError(f"{self._name}: NaN or infinity in it; allowed are finite numbers")
        return torch.cat([self._features(chunk) for chunk in chunks])

    def _numbers(self, labels: NDArray | None, count: int) -> Tensor:
        if labels is None:
            return torch.full((count,), IGNORE)
        known = {label: number for number, label in enumerate(self._labels)}
        return torch.tensor([known[str(label)] for label in labels])

    def loader(self, split: Split) -> DataLoader:
        points, training = self._parts[split], split == "train"
        # a validation, too, in one mixed order: of a sorted file a batch would have one kind alone
        plan = BucketPlan(
            [1] * len(points), batch_size=self._batch_size, seed=run_seed() if training else 0
        )
        return make_loader(points, plan, self, training=training)

    def text_batch(self, lines: list[str]) -> PointBatch:
        """Make a batch of points; a line holds the numbers of one, with commas, tabs or spaces."""
        try:
            rows = [list(map(float, line.replace(",", " ").split())) for line in lines]
            features = self._compute(np.array(rows).reshape(len(rows), -1))
        except ValueError as error:
            raise InputError(f"not a point: {error}") from None
        neighbors = torch.zeros(len(rows), 1, dtype=torch.long)
        points = PointDataset(features, neighbors, self._numbers(None, len(rows)))
        return points[list(range(len(rows)))]

    def build(self, config: TransformerConfig) -> ClusterNetwork:
        """Make clusters with their centroids on training points; `config` is not used."""
        assert self._features is not None
        network = NeuralClusters(
            self._features.projection.shape[1],
            self._n_clusters,
            hidden=self._hidden,
            merge_at=self._merging_step(),
        )
        if "train" in self._parts and not next(network.parameters()).is_meta:
            generator = torch.Generator().manual_seed(run_seed())
            network.seed(
                self._parts["train"].features[: max(4096, 8 * self._n_clusters)], generator
            )
        return ClusterNetwork(network)

    def _merging_step(self) -> int:
        """Find the step, of one batch each, at which surplus clusters are merged.

        Raises:
            InputError: if the training ends before.
        """
        is_share, steps = 0 < self._merge_at < 1, None
        if self.trainer is not None and self.trainer.state.fn == "fit":
            limit = step_limit(self.trainer)
            steps = None if limit is None else limit * self.trainer.accumulate_grad_batches
        if is_share:
            return _ENDLESS_MERGE_AT if steps is None else max(1, round(self._merge_at * steps))
        if steps is not None and self._merge_at >= steps:
            raise InputError(
                f"merge_at must be below the {steps} steps of the training, got {self._merge_at}: "
                "surplus clusters would stay; below 1 it is a share of the training"
            )
        return int(self._merge_at)

    def loss(
        self, output: Output, batch: PointBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Loss of pairs of points and neighbours, relative to the mean membership of this batch.

        The mean is over the shares of the batch of all processes.

        Until surplus clusters are merged, validation gets 0, the loss of uninformative clusters, so
        that no checkpoint with more than C clusters is the best.
        """
        real = batch.mask[:, 0]
        if not output.logits.requires_grad and output.logits.shape[-1] > self._n_clusters:
            return output.logits.new_zeros(()), real.sum()
        pairs, mean = output.logits[real], None  # (P, 2, C)
        if is_distributed():
            members = over_processes(pairs.float().softmax(-1).sum((0, 1)))
            mean = members / over_processes(2 * real.sum()).clamp(min=1)
        if not len(pairs):  # a mean has gradients to sum over processes also from here
            return (output.logits.sum() if mean is None else mean.sum()) * 0.0, real.sum()
        logits, partner_logits = pairs.unbind(1)
        found = neighbor_loss(logits, partner_logits, self._balance, mean=mean)
        return found * real.sum(), real.sum()

    def metrics(self) -> MetricCollection:
        """Purity, where there are labels."""
        if not self._labels:
            return MetricCollection({})
        purity = Purity(initial_clusters(self._n_clusters), len(self._labels))
        return MetricCollection({"purity": purity})

    def update(
        self, metrics: MetricCollection, output: Output, batch: PointBatch, network: nn.Module
    ) -> None:
        if self._labels:
            metrics.update(output.logits[:, 0].argmax(-1), batch.target)

    def baselines(self, *, cheap: bool = False) -> dict[str, Callable[[], SimpleResult]]:
        """Methods of `clusterformer cluster`, none of which is cheap."""
        if cheap:
            return {}
        points = read_points(self._name, root=self._root, label_column=self._label_column)

        def run(method: str) -> SimpleResult:
            clustering = make_clustering(
                method, self._n_clusters, run_seed(), hidden=self._hidden or 256, image=points.image
            ).fit(points.train)
            tested = clustering.predict(points.test)
            given = points.train_labels, tested, points.test_labels
            found = measures(clustering.labels_, *given, points.test)
            return SimpleResult(found, int(clustering.cluster_centers_.size))

        return {method: partial(run, method) for method in METHODS}

    def state(self) -> dict[str, Any]:
        assert self._features is not None
        return {"features": self._features.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        features = state["features"]
        projection = features.get("projection", torch.empty(0))
        if projection.ndim != 2 or not all(part.isfinite().all() for part in features.values()):
            raise InputError("features must hold principal components, finite numbers")
        self._features = PrincipalComponents(*projection.shape)
        self._features.load_state_dict(features)

    def predictions(self, network: nn.Module, batch: PointBatch) -> list[dict[str, Any]]:
        logits = network(batch).logits[:, 0]
        clusters, memberships = label(logits, self._min_probability), logits.softmax(-1).amax(-1)
        return [
            {"cluster": cluster, "membership": membership}
            for cluster, membership in zip(clusters.tolist(), memberships.tolist(), strict=True)
        ]

    @torch.no_grad()
    def draw(self, network: nn.Module, folder: Path) -> list[Path]:
        """Draw sizes, test points in the plane of two components, and mean images of clusters."""
        from clusterformer.plots import centroid_images, cluster_size_curves, point_maps

        assert self._features is not None
        assert isinstance(network, ClusterNetwork)
        features = self._parts["test"].features
        count = int(network.clusters.alive.sum())
        clusters = network.clusters(features.to(network.clusters.centroids)).argmax(1).cpu()
        paths = [folder / f"{name}.png" for name in ("sizes", "map", "centroids")]
        sizes = clusters.bincount(minlength=count)
        cluster_size_curves({"neural": sizes.numpy()}, paths[0], title=f"Sizes of {count} clusters")
        plane, shown = F.pad(features, (0, 1))[:_MAPPED, :2], clusters[:_MAPPED]
        point_maps(plane.numpy(), {"neural": shown.numpy()}, paths[1], title=f"{count} clusters")
        if not self._image:
            return paths[:2]
        means = torch.zeros(count, features.shape[1]).index_add_(0, clusters, features)
        means /= sizes.clamp(min=1)[:, None]
        images = self._features.center + means @ torch.linalg.pinv(self._features.projection)
        centroid_images(images.numpy(), self._image, paths[2], title="Means of clusters")
        return paths
