"""Neural clustering of any points, without a Transformer around it (ClusterFormer, section 3.1).

P points   F features   C clusters
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.clustering.informative_groups import informative_groups
from clusterformer.clustering.merging import merges, merges_above_chance, natural_count
from clusterformer.clustering.processes import is_distributed, over_processes

_TEMPERATURE = 0.1  # initial
_JOINT_STEPS = 16  # steps before merging from which pairs are counted
_REVIVE_EVERY = 25  # steps between two searches for empty clusters


class NeuralClusters(nn.Module):
    """Memberships of points in learned clusters.

    The similarities are those of eq. 2, with the cosine for phi and a temperature:

        S_ij = cos(C_i, W X_j) / temperature

    Eq. 2 normalises them over points, U_ij = softmax_j S_ij = p(point j | cluster i). This network
    normalises over clusters, p(cluster i | point j) = softmax_i S_ij, so that a point can be
    assigned without other points (eq. 4 with clusters of equal weight). The temperature is learned
    too: it rises if neighbours often disagree.

    Training starts with more clusters than requested, and merges those whose points are neighbours
    most above chance. One class in two clusters beside two classes in one cluster is a local
    minimum that no small step leaves; with surplus clusters it does not arise.

    It is made in single precision, also where torch's default dtype is another. Its counts stay in
    it when the network is cast: bfloat16 counts to 256, float16 to 2,048.

    Args:
        num_features: F.
        num_clusters: C, after merging.
        hidden: Number of units of a hidden layer of W; None for a linear W, as in eq. 2.
        width: Width of the clustering space.
        merge_at: Training step after which C clusters are left; 0 starts with C.
        first: Number of clusters at the start; None for `initial_clusters`, where they merge.
        auto: Whether `num_clusters` is the number at the start, and merging finds C
            (see `natural_count`).
        by_information: Whether to merge to the most informative clusters (`informative_groups`),
            and not those that are neighbours most above chance.
        generator: Generator on the CPU of the initial weights; None for torch's global one.

    Attributes:
        centroids: (C + surplus, width); only those `alive` count.
        alive: (C + surplus,) bool.
        joint: (C + surplus, C + surplus), sums of memberships of neighbouring points.
        sharpness: Logarithm of 1 / temperature.
        sizes: (C,), number of points since the last search for empty clusters.
    """

    alive: Tensor
    joint: Tensor
    sizes: Tensor
    step: Tensor

    def __init__(
        self,
        num_features: int,
        num_clusters: int,
        *,
        hidden: int | None = None,
        width: int = 64,
        merge_at: int = 0,
        first: int | None = None,
        auto: bool = False,
        by_information: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        # drawn also where a hidden layer takes its place: seeds keep their random numbers
        self.project: nn.Module = _linear(num_features, width, generator)
        if hidden is not None:
            self.project = nn.Sequential(
                _linear(num_features, hidden, generator),
                nn.ReLU(),
                _linear(hidden, width, generator),
            )
        if first is None or not merge_at:
            first = initial_clusters(num_clusters) if merge_at and not auto else num_clusters
        self.centroids = nn.Parameter(
            torch.randn(first, width, generator=generator, dtype=torch.float32)
        )
        self.register_buffer("alive", torch.ones(first, dtype=torch.bool))
        self.register_buffer("joint", torch.zeros(first, first, dtype=torch.float32))
        self.register_buffer("sizes", torch.zeros(num_clusters, dtype=torch.float32))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.sharpness = nn.Parameter(torch.tensor(1 / _TEMPERATURE, dtype=torch.float32).log())
        self.num_clusters, self.merge_at, self.auto = num_clusters, merge_at, auto
        self.by_information, self.hidden = by_information, hidden

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        counts = {"joint": self.joint, "sizes": self.sizes}
        super()._apply(fn, recurse)
        for name, count in counts.items():
            if not count.is_meta:
                setattr(self, name, count.to(getattr(self, name).device))
        return self

    def embed(self, points: Tensor) -> Tensor:
        """Map points (P, F) to unit vectors (P, width).

        W has a bias: the direction of W x + b distinguishes even points on one line.
        """
        return F.normalize(self.project(points), dim=-1)

    def similarities(self, points: Tensor) -> Tensor:
        """Compute cosines (P, C) of points (P, F) with all living centroids."""
        with torch.autocast(points.device.type, enabled=False):  # close cosines decide
            return self.embed(points) @ F.normalize(self.centroids[self.alive], dim=-1).T

    def scores(self, points: Tensor) -> Tensor:
        """Compute cosines (P, C) times the length of each embedded point, which keeps their order.

        A linear W needs one matrix product, with the centroids folded into it.
        """
        directions = F.normalize(self.centroids[self.alive], dim=-1).T
        if not isinstance(self.project, nn.Linear):
            return self.project(points) @ directions
        weight, bias = self.project.weight.T @ directions, self.project.bias @ directions
        return torch.addmm(bias, points, weight)

    def forward(self, points: Tensor) -> Tensor:
        """Compute logits S (P, C) of points (P, F); their softmax is p(cluster | point)."""
        return self.similarities(points) * self.sharpness.exp()

    @torch.no_grad()
    def seed(
        self, points: Tensor, generator: torch.Generator, weights: Tensor | None = None
    ) -> None:
        """Place the centroids on some of the points (P, F), by k-means++ in the clustering space.

        Args:
            points: Candidates; if fewer are distinct than clusters, some serve more than once.
            generator: Generator on the CPU, for any device of the points.
            weights: Weight of each point, (P,); None for 1.
        """
        embedded = self.embed(points)
        chosen = int(torch.randint(len(points), (1,), generator=generator))
        distance = embedded.new_full((len(points),), torch.inf)
        for cluster in range(len(self.centroids)):
            self.centroids[cluster] = embedded[chosen]
            # half the squared distance, of unit vectors
            distance = distance.minimum(1 - embedded @ embedded[chosen]).clamp(min=1e-9)
            chances = distance if weights is None else distance * weights
            chosen = int(torch.multinomial(chances.cpu(), 1, generator=generator))

    @torch.no_grad()
    def watch(
        self,
        points: Tensor,
        logits: Tensor,
        neighbor_logits: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        """Record a training step: points (P, F), their logits (P, C) and those of neighbours.

        The last steps before `merge_at` determine the clusters to merge; after it, a cluster to
        which no point was assigned in 25 steps is revived. Counts are over all processes at each
        step: DDP and checkpoints keep those of the first process.
        """
        self.step += 1
        left = self.merge_at - int(self.step)
        merged = logits.shape[1] < len(self.alive)
        if merged and left >= 0:  # a training that goes on for longer than it was to
            left = -int(self.step)
        counted = max(1, self.merge_at // 3) if self.by_information else _JOINT_STEPS
        if 0 <= left < counted:
            p, q = self._memberships(logits), self._memberships(neighbor_logits)
            with torch.autocast(p.device.type, enabled=False):  # counts
                pairs = p.T @ q if weights is None else (p * weights[:, None]).T @ q
            self.joint += over_processes(pairs + pairs.T)
        if left == 0:
            self._merge(self.joint)
        if left < 0:
            sizes = torch.bincount(logits.argmax(1), minlength=self.num_clusters)
            self.sizes += over_processes(sizes)
            if left % _REVIVE_EVERY == 0:
                self.revive(points, self.sizes)
                self.sizes.zero_()

    @torch.no_grad()
    def revive(self, points: Tensor, sizes: Tensor) -> None:
        """Move empty centroids to points of the largest clusters that are least similar to theirs.

        Args:
            points: Candidates, (P, F).
            sizes: Number of points of each cluster, (C,).
        """
        empty = (sizes == 0).nonzero()[:, 0].tolist()
        if empty and len(points):
            embedded, similarities = self.embed(points), self.similarities(points)
            similarity, assigned = similarities.max(1)
            rows, sizes = self.alive.nonzero()[:, 0], sizes.float()
            for cluster in empty:
                largest = int(sizes.argmax())
                point = int(similarity.where(assigned == largest, torch.inf).argmin())
                self.centroids[rows[cluster]] = embedded[point]
                similarity[point] = torch.inf
                sizes[largest] /= 2
        if empty and is_distributed():
            torch.distributed.broadcast(self.centroids.data, 0)

    def _memberships(self, logits: Tensor) -> Tensor:
        """Compute what is counted of pairs, (P, C): groups of clusters need to know each alone."""
        if self.by_information:
            return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        return logits.float().softmax(-1)

    def _merge(self, joint: Tensor) -> None:
        """Merge clusters until C are left; `auto` finds C."""
        order: Iterator[tuple[int, int]] = merges_above_chance(joint)
        if self.auto:
            found = list(merges(joint))
            self.settle(natural_count(found))
            order = ((merge.kept, merge.gone) for merge in found)
        if self.by_information:
            order = _joined(informative_groups(joint, self.num_clusters))
        weights = joint.sum(1).double().cpu()
        merged = F.normalize(self.centroids, dim=-1).double().cpu() * weights[:, None]
        alive = self.alive.cpu().clone()
        for kept, gone in itertools.islice(order, len(alive) - self.num_clusters):
            merged[kept] += merged[gone]
            alive[gone] = False
        # a new tensor: a backward pass may still need the old one
        self.alive = alive.to(self.alive.device)
        self.centroids.copy_(F.normalize(merged, dim=-1))

    def settle(self, num_clusters: int) -> None:
        """Set the number of clusters that `auto` found."""
        self.num_clusters, self.sizes = num_clusters, self.sizes.new_zeros(num_clusters)

    def living_state(self) -> dict[str, Tensor]:
        """Return the state of a network that never had the clusters which were merged into others.

        Its memberships are the same; its `sizes`, which training alone reads, are those of `joint`.
        """
        joint = self.joint[self.alive][:, self.alive]
        return self.state_dict() | {
            "centroids": self.centroids.detach()[self.alive],
            "joint": joint,
            "sizes": joint.sum(1),
            "alive": self.alive[self.alive],
        }


def _joined(group: Tensor) -> Iterator[tuple[int, int]]:
    """Name the merges that join groups: the first cluster of each is kept."""
    first: dict[int, int] = {}
    for cluster, number in enumerate(group.tolist()):
        kept = first.setdefault(number, cluster)
        if kept != cluster:
            yield kept, cluster


def _linear(width: int, units: int, generator: torch.Generator | None) -> nn.Linear:
    """Make a layer with the initial weights of `nn.Linear`, drawn from a generator."""
    layer = torch.nn.utils.skip_init(nn.Linear, width, units, dtype=torch.float32)
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(width)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def initial_clusters(num_clusters: int) -> int:
    """Return the number of clusters with which training starts, to end with `num_clusters`."""
    return min(3 * num_clusters, num_clusters + 64) if num_clusters <= 1024 else num_clusters


def neighbor_loss(
    logits: Tensor,
    neighbor_logits: Tensor,
    balance: float = 1.0,
    weights: Tensor | None = None,
    mean: Tensor | None = None,
) -> Tensor:
    """Compute the negative log-likelihood of pairs of neighbours, given their clusters.

    Draw a cluster, then two of its points: p(i, j) = sum_c p(c) p(i | c) p(j | c). Here p(j | c) is
    U_cj of eq. 2, and p(c) is the mean m_c of the memberships, so P U_cj = p_jc / m_c and

        L = -mean_i log P^2 p(i, j(i)) = -mean_i log sum_c p_ic p_jc / m_c.

    The clustering loss of eq. 6, -phi(X_j, C'_{I_j}), is minimal where all points are equal. This
    loss compares two points instead of a point and its centroid. It is minimal where neighbours
    share clusters and there are many clusters: for one-hot memberships it is minus the information
    of a point's cluster about its neighbour.

    Args:
        logits: (P, C), whose softmax is p(cluster | point).
        neighbor_logits: Logits of each point's neighbour, (P, C).
        balance: Exponent of m_c: 0 lets one cluster take all, 1 is the likelihood, more makes
            clusters more equal in size.
        weights: Weight of each pair in all means, (P,); None for 1.
        mean: m, (C,), where these pairs are a part of those that it is over; without weights.
    """
    p, q = torch.cat([logits, neighbor_logits]).float().softmax(-1).chunk(2)
    if weights is not None:
        share = weights / weights.sum()
        mean = (share @ p + share @ q) / 2
        return -share @ (p * (q / mean**balance)).sum(-1).log()
    if mean is None:
        mean = (p.mean(0) + q.mean(0)) / 2
    return -(p * (q / mean**balance)).sum(-1).log().mean()
