"""NeuralClustering: neural clusters as an estimator of scikit-learn.

Shapes have scikit-learn's names: n_samples, n_features, n_clusters. In the parts below them:
P points   F features (principal components)   K neighbours
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement
from torch import Tensor

from clusterformer.clustering.augmentation import Augment, Augmentation
from clusterformer.clustering.evaluation import (
    ENTRIES,
    Evaluator,
    Totals,
    compute_features,
    count_pairs,
    pair_loss,
    row_chunks,
)
from clusterformer.clustering.fitted import FittedMixin
from clusterformer.clustering.fitting import train
from clusterformer.clustering.neighbors import PrincipalComponents, mutual_pairs, nearest_neighbors
from clusterformer.clustering.network import NeuralClusters
from clusterformer.clustering.parameters import (
    MIN_PER_CLUSTER,
    SAMPLE,
    check_continued,
    check_fitted,
    fine_clusters,
    first_clusters,
    searched_neighbors,
)
from clusterformer.clustering.progress_bar import progress_bar
from clusterformer.clustering.restoring import restoring
from clusterformer.clustering.saving import SaveMixin, move
from clusterformer.clustering.weights import join_equal_points

_COMPONENT_SAMPLE = 10_000  # points from which principal components are computed
_OLD_WEIGHT = 0.5  # weight of the old centers when partial_fit gets new points
_MERGE_AT = {True: 0.4, "information": 0.5, False: 0.0}  # share of the training before merging

Random = np.random.RandomState


class _Data(NamedTuple):
    """Training points.

    Attributes:
        rows: Indices of rows of X, (P,).
        features: (P, F).
        near: (P, K), indices of the neighbours of each point.
        weights: (P,), with a mean of 1; None for 1.
        pairs: (num_pairs, 2), pairs that training draws; None to draw from the neighbours.
    """

    rows: NDArray
    features: Tensor
    near: Tensor
    weights: Tensor | None
    pairs: Tensor | None


class NeuralClustering(SaveMixin, FittedMixin, BaseEstimator):
    """Neural clustering: learned clusters that near neighbours share (ClusterFormer, appendix A).

    Points are compared with centroids by cosine in a learned space (eq. 2). The loss is
    `neighbor_loss`. Clusters are soft: `predict_proba` returns memberships.

    Examples:
        >>> labels = NeuralClustering(n_clusters=10, random_state=0).fit_predict(X)

    Args:
        n_clusters: Number of clusters; "auto" finds it: see `merging.natural_count`. Of fewer than
            16 points it finds one.
        hidden: Number of units of a hidden layer before the clustering space: better clusters, more
            time. None is a linear map, as in eq. 2 of the paper.
        balance: Exponent of the cluster sizes in the loss: 0 lets one cluster take all, 1 is the
            likelihood of `neighbor_loss`, more makes clusters more equal in size.
        augment: Function that returns equivalent variants of points (n, n_features), a tensor; it
            is called at each step. If its second argument is named `generator`, it gets the
            `torch.Generator` to draw from. For images:
            `clusterformer.clustering.images.RandomAffine`.
        merge: Start with more clusters, and merge surplus ones in training (see `NeuralClusters`).
            "information" is for few clusters of points whose kinds are separated, such as images:
            it starts with up to 300, trains on pairs of mutual neighbours, and merges to the most
            informative clusters (see `informative_groups`).
        n_neighbors: Number of nearest neighbours from which a point's pair is drawn in training;
            mutual neighbours are those among twice as many.
        n_components: Number of principal components of the data that neighbours and clusters see.
        max_iter: Maximum number of training steps.
        batch_size: Number of points in a training step; at least 8 per cluster, if there are.
        learning_rate: Initial learning rate of Adam.
        tol: Share of points; training ends when no more than it changed cluster in 25 steps.
        n_init: Number of trainings from different starts; the best by `score` is kept.
        min_probability: Membership below which a point is noise, with the label -1; 0 for no noise.
        device: Device of the computation: "cpu", "cuda" or a GPU such as "cuda:1".
        random_state: Seed or generator of all randomness; an int makes a fit repeatable.
        verbose: Verbosity; 1 shows a progress bar.

    Attributes:
        n_clusters_: Number of clusters.
        cluster_centers_: (n_clusters, n_features), means of the training points weighted by
            membership (eq. 3 in the space of the data).
        labels_: (n_samples,), cluster of each training point; -1 for noise.
        linkage_: (n_clusters - 1, 4), the hierarchy of clusters, which SciPy draws and cuts.
        features_: Principal components, a module that computes features of points.
        network_: Clusters, a module that computes logits of features.
        n_features_in_: Number of features seen in fit.
        n_iter_: Number of training steps taken.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 8,
        *,
        hidden: int | None = None,
        balance: float = 1.0,
        augment: Augment | None = None,
        merge: bool | Literal["information"] = True,
        n_neighbors: int = 5,
        n_components: int = 64,
        max_iter: int = 600,
        batch_size: int = 2048,
        learning_rate: float = 5e-3,
        tol: float = 1e-3,
        n_init: int = 1,
        min_probability: float = 0.0,
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
        self.min_probability = min_probability
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @restoring
    def fit(self, X: Any, y: object = None, sample_weight: Any = None) -> NeuralClustering:
        """Learn clusters from X: an array, tensor, data frame, sparse matrix or memory map.

        Equal points count as one of their common weight: a `sample_weight` (n_samples,) of 3 is the
        same as three copies. A fit that raises changes nothing, here and in `partial_fit`.

        Raises:
            ValueError: if X holds no points to cluster, an option does not fit them, or the
                training diverges.
        """
        X, weights, back = self._receive(X, sample_weight, reset=True)
        random = check_random_state(self.random_state)
        rows = _draw_rows(X.shape[0], weights, random)
        data = self._prepare(X, rows, weights, random, first=True)
        best = np.inf
        for _ in range(self.n_init):
            network, optimizer = self._start(data, random, _MERGE_AT[self.merge] * self.max_iter)
            steps = self._train(network, optimizer, X, data, random, self.max_iter)
            loss = -np.inf
            if self.n_init > 1:
                loss = pair_loss(network, data.features, data.near, data.weights)
            if loss < best:
                best, self._network, self.n_iter_ = loss, network, steps
        self._optimizer: torch.optim.Optimizer | None = None
        if hasattr(self, "_random"):  # of a partial_fit before
            del self._random
        labels = self._conclude(X, weights, data)
        seen = np.zeros(self.n_clusters_ + 1, dtype=bool)  # the last one is noise, -1
        seen[labels] = True
        found = seen[:-1].sum()
        if found < self.n_clusters_ and not self.min_probability:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters "
                f"({self.n_clusters_}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=3,  # beyond `restoring`
            )
        self.labels_, self.cluster_centers_ = back(labels), back(self.cluster_centers_)
        return self

    @restoring
    def partial_fit(self, X: Any, y: object = None, sample_weight: Any = None) -> NeuralClustering:
        """Continue learning from X, each point once.

        The first X determines the components and the first centroids, so it must be typical of the
        data. Neighbours are searched within X: pass thousands of points at a time, in random order.
        Another `n_clusters`, `hidden`, `n_components` or `merge` by information needs a new `fit`.

        Raises:
            ValueError: as `fit`, and if one of these is another one.
        """
        first = not hasattr(self, "_network")
        X, weights, back = self._receive(X, sample_weight, reset=first)
        if not first:
            check_fitted(self, self.n_clusters_, self._network.hidden)
            check_continued(self, self._features.num_features, self._network.by_information)
        if not hasattr(self, "_random"):
            self._random = check_random_state(self.random_state)
        data = self._prepare(X, np.arange(X.shape[0]), weights, self._random, first=first)
        steps = max(1, len(data.features) // self._batch())
        if first:
            self._network, self._optimizer = self._start(data, self._random, steps)
            self.n_iter_ = 0
        network = self._network
        move(network, self._optimizer, self.device)
        optimizer = self._optimizer or self._adam(network)
        self.n_iter_ += self._train(
            network, optimizer, X, data, self._random, steps, streaming=True, fill=first
        )
        self._optimizer = optimizer
        old = None if first else self._totals
        self.labels_ = back(self._conclude(X, weights, data, old))
        self.cluster_centers_ = back(self.cluster_centers_)
        return self

    def _batch(self) -> int:
        return max(self.batch_size, MIN_PER_CLUSTER * first_clusters(self))

    def _prepare(
        self, X: Any, rows: NDArray, weights: NDArray | None, random: Random, *, first: bool
    ) -> _Data:
        """Compute features of some rows of X in random order, and their neighbours."""
        rows, weights = join_equal_points(X, rows, weights, first_clusters(self))
        if first:
            self._features = self._learn_features(X, rows, weights, random)
        order = random.permutation(len(rows))
        features = self._compute(X, rows)[order]
        each = None if weights is None else torch.as_tensor(weights[order]).to(features)
        near = nearest_neighbors(features, searched_neighbors(self))
        if self.merge != "information":
            return _Data(rows[order], features, near, each, None)
        pairs, near = mutual_pairs(near), near[:, : self.n_neighbors]
        return _Data(rows[order], features, near, each, pairs)

    def _learn_features(
        self, X: Any, rows: NDArray, weights: NDArray | None, random: Random
    ) -> PrincipalComponents:
        count = min(_COMPONENT_SAMPLE, max(1, 8 * ENTRIES // X.shape[1]))
        if len(rows) > count:
            chosen = np.sort(random.permutation(len(rows))[:count])
            rows = rows[chosen]
            weights = None if weights is None else weights[chosen] / weights[chosen].mean()
        sample = torch.cat(list(row_chunks(X, first_clusters(self), self.device, rows)))
        each = None if weights is None else torch.as_tensor(weights).to(sample)
        return PrincipalComponents(X.shape[1], self.n_components).learn(sample, each)

    def _start(
        self, data: _Data, random: Random, merge_at: float
    ) -> tuple[NeuralClusters, torch.optim.Optimizer]:
        generator, auto = _generator(random), self.n_clusters == "auto"
        network = NeuralClusters(
            data.features.shape[1],
            first_clusters(self, len(data.features)),
            hidden=self.hidden,
            merge_at=max(auto, round(merge_at)) if self.merge else 0,
            first=fine_clusters(self, len(data.features)),
            auto=auto,
            by_information=self.merge == "information",
            generator=_restarted(generator),
        )
        seeds = slice(max(4096, MIN_PER_CLUSTER * first_clusters(self)))
        weights = None if data.weights is None else data.weights[seeds]
        network.to(self.device).seed(data.features[seeds], generator, weights)
        return network, self._adam(network)

    def _adam(self, network: NeuralClusters) -> torch.optim.Optimizer:
        return torch.optim.Adam(network.parameters(), lr=self.learning_rate, fused=True)

    def _train(
        self,
        network: NeuralClusters,
        optimizer: torch.optim.Optimizer,
        X: Any,
        data: _Data,
        random: Random,
        steps: int,
        *,
        streaming: bool = False,
        fill: bool = True,
    ) -> int:
        """Train a network, and return the number of steps taken.

        Raises:
            ValueError: if the training diverged.
        """
        generator = _generator(random)
        augment = self.augment and Augmentation(self.augment, _restarted(generator))

        def view(numbers: Tensor) -> Tensor:
            return self._compute(X, data.rows[numbers.cpu().numpy()], augment)

        with progress_bar(steps, shown=bool(self.verbose)) as progress:
            taken = train(
                network,
                optimizer,
                data.features,
                data.near,
                steps=steps,
                batch_size=self._batch(),
                balance=self.balance,
                generator=generator,
                anneal=not streaming,
                tol=-1.0 if streaming else self.tol,
                view=view if augment else None,
                report=progress,
                weights=data.weights,
                pairs=data.pairs,
                fill=fill,
            )
        if not network(data.features[:1]).isfinite().all():
            raise ValueError(
                f"the training diverged; lower learning_rate ({self.learning_rate}), or bring "
                f"balance ({self.balance}) nearer to 1"
            )
        return taken

    def _conclude(
        self, X: Any, weights: NDArray | None, data: _Data, old: Totals | None = None
    ) -> NDArray:
        """Label all points, and keep what centers and hierarchy follow from."""
        evaluator = Evaluator(self._network, self._features, X, self.device)
        labels, mass, sums = evaluator.assign(weights, self.min_probability)
        joint = count_pairs(self._network, data.features, data.near, data.weights)
        totals = Totals(mass, sums, joint)
        self._totals = totals if old is None else totals.add(old, _OLD_WEIGHT)
        self.n_clusters_ = len(mass)
        centers = self._totals.sums / self._totals.mass[:, None]
        self.cluster_centers_ = centers.astype(np.result_type(X.dtype, np.float32))
        return labels

    def _compute(
        self, X: Any, rows: NDArray, augment: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Compute the features of some rows of X, (P, F), of a variant of each with `augment`."""
        return compute_features(self._features, X, first_clusters(self), self.device, rows, augment)


def _draw_rows(num_points: int, weights: NDArray | None, random: Random) -> NDArray:
    """Draw up to SAMPLE rows to train on, of those that weigh something, in rising order."""
    even = weights is None or (weights == weights[0]).all()
    if even and num_points > SAMPLE:
        return np.sort(sample_without_replacement(num_points, SAMPLE, random_state=random))
    rows = np.arange(num_points) if weights is None else np.flatnonzero(weights)
    if len(rows) > SAMPLE:
        rows = np.sort(random.permutation(rows)[:SAMPLE])
    return rows


def _generator(random: Random) -> torch.Generator:
    return torch.Generator().manual_seed(int(random.randint(2**31 - 1)))


def _restarted(generator: torch.Generator) -> torch.Generator:
    """Make a generator that draws the same numbers from the start."""
    return torch.Generator().manual_seed(generator.initial_seed())
