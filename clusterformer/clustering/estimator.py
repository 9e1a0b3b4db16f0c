"""NeuralClustering: neural clusters as an estimator of scikit-learn.

Shapes have scikit-learn's names: n_samples, n_features, n_clusters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from clusterformer.clustering.augmentation import Augment, Augmentation
from clusterformer.clustering.evaluation import (
    ENTRIES,
    Evaluator,
    compute_features,
    pair_loss,
    row_chunks,
)
from clusterformer.clustering.fitting import train
from clusterformer.clustering.neighbors import PrincipalComponents, nearest_neighbors
from clusterformer.clustering.network import NeuralClusters
from clusterformer.clustering.parameters import (
    MIN_PER_CLUSTER,
    SAMPLE,
    check_memory,
    check_parameters,
)
from clusterformer.clustering.progress_bar import Progress
from clusterformer.clustering.saving import SaveMixin

_COMPONENT_SAMPLE = 10_000  # points from which principal components are computed
_OLD_WEIGHT = 0.5  # weight of the old centers when partial_fit gets new points
_MERGE_AT = 0.4  # share of the training after which surplus clusters are merged

Random = np.random.RandomState


class NeuralClustering(
    SaveMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator
):
    """Neural clustering: learned clusters that near neighbours share (ClusterFormer, appendix A).

    Points are compared with centroids by cosine in a learned space (eq. 2). The loss is
    `neighbor_loss`. Clusters are soft: `predict_proba` returns memberships.

    Examples:
        >>> labels = NeuralClustering(n_clusters=10, random_state=0).fit_predict(X)

    Args:
        n_clusters: Number of clusters.
        hidden: Number of units of a hidden layer before the clustering space: better clusters, more
            time. None is a linear map, as in eq. 2 of the paper.
        balance: Strength of the pull to clusters of equal size; 1 is the likelihood of
            `neighbor_loss`.
        augment: Function that returns equivalent variants of points (n, n_features), a tensor; it
            is called at each step. If its second argument is named `generator`, it gets the
            `torch.Generator` to draw from. For images:
            `clusterformer.clustering.images.RandomAffine`.
        merge: Start with more clusters, and merge surplus ones in training (see `NeuralClusters`).
        n_neighbors: Number of nearest neighbours from which a point's pair is drawn in training.
        n_components: Number of principal components of the data that neighbours and clusters see.
        max_iter: Maximum number of training steps.
        batch_size: Number of points in a training step; at least 8 per cluster, if there are.
        learning_rate: Initial learning rate of Adam.
        tol: Share of points; training ends when no more than it changed cluster in 25 steps.
        n_init: Number of trainings from different starts; the best by `score` is kept.
        device: Device of the computation: "cpu" or "cuda".
        random_state: Seed or generator of all randomness; an int makes a fit repeatable.
        verbose: Verbosity; 1 shows a progress bar.

    Attributes:
        cluster_centers_: (n_clusters, n_features), means of the training points weighted by
            membership (eq. 3 in the space of the data).
        labels_: (n_samples,), cluster of each training point.
        n_features_in_: Number of features seen in fit.
        n_iter_: Number of training steps taken.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        hidden: int | None = None,
        balance: float = 1.0,
        augment: Augment | None = None,
        merge: bool = True,
        n_neighbors: int = 5,
        n_components: int = 64,
        max_iter: int = 600,
        batch_size: int = 2048,
        learning_rate: float = 5e-3,
        tol: float = 1e-3,
        n_init: int = 1,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.hidden = hidden
        self.balance = balance
        self.augment = augment
        self.merge = merge
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.tol = tol
        self.n_init = n_init
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: object = None) -> NeuralClustering:
        """Learn clusters from X: an array, data frame, sparse matrix or memory map."""
        X = self._check(X, reset=True)
        random = check_random_state(self.random_state)
        rows = np.arange(X.shape[0])
        if len(rows) > SAMPLE:
            rows = np.sort(random.permutation(len(rows))[:SAMPLE])
        self._features = self._learn_features(X, rows, random)
        features, rows = self._shuffled(X, rows, random)
        near = nearest_neighbors(features, self.n_neighbors)
        best = np.inf
        for _ in range(self.n_init):
            network, optimizer = self._start(features, random, _MERGE_AT * self.max_iter)
            steps = self._train(network, optimizer, X, rows, features, near, random, self.max_iter)
            loss = pair_loss(network, features, near) if self.n_init > 1 else -np.inf
            if loss < best:
                best, self._network, self.n_iter_ = loss, network, steps
        self._optimizer: torch.optim.Optimizer | None = None
        self.labels_, mass, sums = self._assign(X)
        self._keep_centers(mass, sums, X.dtype)
        found = len(np.unique(self.labels_))
        if found < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X: Any, y: object = None) -> NeuralClustering:
        """Continue learning from X, each point once.

        The first X determines the components and the first centroids, so it must be typical of the
        data. Neighbours are searched within X: pass thousands of points at a time, in random order.
        """
        first = not hasattr(self, "_network")
        X = self._check(X, reset=first)
        if not hasattr(self, "_random"):
            self._random = check_random_state(self.random_state)
        if first:
            self._features = self._learn_features(X, np.arange(X.shape[0]), self._random)
        features, rows = self._shuffled(X, np.arange(X.shape[0]), self._random)
        steps = max(1, len(features) // self._batch())
        if first:
            self._network, self._optimizer = self._start(features, self._random, steps)
            self.n_iter_ = 0
        network = self._network.to(self.device)
        optimizer = self._optimizer or self._adam(network)
        near = nearest_neighbors(features, self.n_neighbors)
        self.n_iter_ += self._train(
            network, optimizer, X, rows, features, near, self._random, steps, streaming=True
        )
        self._optimizer = optimizer
        self.labels_, mass, sums = self._assign(X)
        if not first:
            mass, sums = mass + _OLD_WEIGHT * self._mass, sums + _OLD_WEIGHT * self._sums
        self._keep_centers(mass, sums, X.dtype)
        return self

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return the cluster of each point, (n_samples,): its largest membership (eq. 4)."""
        return self._per_point(X, lambda network, x: network.similarities(x).argmax(1))

    def predict_proba(self, X: Any) -> NDArray:
        """Return memberships p(cluster | point), (n_samples, n_clusters); rows sum to 1.

        X must be dense: scikit-learn's checks treat an estimator with probabilities for sparse data
        as a classifier. `transform` takes any X.
        """
        if hasattr(X, "toarray"):
            raise TypeError("predict_proba takes no sparse data; use transform, or X.toarray()")
        return self._per_point(X, lambda network, x: network(x).softmax(1))

    def transform(self, X: Any) -> NDArray:
        """Return distances to centroids, (n_samples, n_clusters): 1 - cosine."""
        return self._per_point(X, lambda network, x: 1 - network.similarities(x))

    def score(self, X: Any, y: object = None) -> float:
        """Return the information of a point's cluster about its nearest neighbour in X, in nats.

        It is minus `neighbor_loss`: at most log n_clusters; 0 is no information.
        """
        check_is_fitted(self, "_network")
        X = self._check(X, reset=False)
        features = self._compute(X, np.arange(X.shape[0]))
        return -pair_loss(self._network.to(self.device), features, nearest_neighbors(features, 1))

    # Training

    def _check(self, X: Any, *, reset: bool) -> Any:
        check_parameters(self)
        X = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])
        if reset and X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")
        if reset:
            check_memory(self, X.shape[0])
        return X

    def _batch(self) -> int:
        return max(self.batch_size, MIN_PER_CLUSTER * self.n_clusters)

    def _learn_features(self, X: Any, rows: NDArray, random: Random) -> PrincipalComponents:
        count = min(_COMPONENT_SAMPLE, max(1, 8 * ENTRIES // X.shape[1]))
        if len(rows) > count:
            rows = rows[np.sort(random.permutation(len(rows))[:count])]
        sample = torch.cat(list(row_chunks(X, self.n_clusters, self.device, rows)))
        return PrincipalComponents(X.shape[1], self.n_components).learn(sample)

    def _shuffled(self, X: Any, rows: NDArray, random: Random) -> tuple[Tensor, NDArray]:
        """Compute features of some rows in random order; returns the order of the rows too."""
        order = random.permutation(len(rows))
        return self._compute(X, rows)[order], rows[order]

    def _start(
        self, features: Tensor, random: Random, merge_at: float
    ) -> tuple[NeuralClusters, torch.optim.Optimizer]:
        generator = _generator(random)
        network = NeuralClusters(
            features.shape[1],
            self.n_clusters,
            hidden=self.hidden,
            merge_at=round(merge_at) if self.merge else 0,
            generator=_restarted(generator),
        )
        network.to(self.device).seed(
            features[: max(4096, MIN_PER_CLUSTER * self.n_clusters)], generator
        )
        return network, self._adam(network)

    def _adam(self, network: NeuralClusters) -> torch.optim.Optimizer:
        return torch.optim.Adam(network.parameters(), lr=self.learning_rate, fused=True)

    def _train(
        self,
        network: NeuralClusters,
        optimizer: torch.optim.Optimizer,
        X: Any,
        rows: NDArray,
        features: Tensor,
        near: Tensor,
        random: Random,
        steps: int,
        *,
        streaming: bool = False,
    ) -> int:
        generator = _generator(random)
        augment = self.augment and Augmentation(self.augment, _restarted(generator))

        def view(numbers: Tensor) -> Tensor:
            return self._compute(X, rows[numbers.cpu().numpy()], augment)

        with Progress(steps, shown=bool(self.verbose)) as progress:
            taken = train(
                network,
                optimizer,
                features,
                near,
                steps=steps,
                batch_size=self._batch(),
                balance=self.balance,
                generator=generator,
                anneal=not streaming,
                tol=-1.0 if streaming else self.tol,
                view=view if augment else None,
                report=progress,
            )
        if not network(features[:1]).isfinite().all():
            raise ValueError(
                f"the training diverged; lower learning_rate ({self.learning_rate}), or bring "
                f"balance ({self.balance}) nearer to 1"
            )
        return taken

    def _keep_centers(self, mass: NDArray, sums: NDArray, dtype: Any) -> None:
        self._mass, self._sums = mass, sums
        self.cluster_centers_ = (sums / mass[:, None]).astype(dtype)

    def _compute(
        self, X: Any, rows: NDArray, augment: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        return compute_features(self._features, X, self.n_clusters, self.device, rows, augment)

    def _assign(self, X: Any) -> tuple[NDArray, NDArray, NDArray]:
        return Evaluator(self._network, self._features, X, self.device).assign()

    def _per_point(self, X: Any, function: Any) -> NDArray:
        check_is_fitted(self, "_network")
        X = self._check(X, reset=False)
        return Evaluator(self._network, self._features, X, self.device).per_point(function)

    # scikit-learn's interface

    @property
    def _n_features_out(self) -> int:
        return self._network.num_clusters

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_network")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _generator(random: Random) -> torch.Generator:
    return torch.Generator().manual_seed(int(random.randint(2**31 - 1)))


def _restarted(generator: torch.Generator) -> torch.Generator:
    """Make a generator that draws the same numbers from the start."""
    return torch.Generator().manual_seed(generator.initial_seed())
