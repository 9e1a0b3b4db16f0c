"""Neural clustering of any points, without a Transformer around it (ClusterFormer, section 3.1).

N points   F features of a point   P width of the clustering space   C clusters
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_WATCHED = 16  # steps


class NeuralClusters(nn.Module):
    """Memberships of points in clusters that are learnt.

    The similarities are those of eq. 2, with the cosine for phi and a temperature:

        S_ij = cos(C_i, W X_j) / temperature

    Eq. 2 reads them along the points, U_ij = softmax_j S_ij = p(point j | cluster i); this gives
    what U stands in proportion to for a single point, p(cluster i | point j) = softmax_i S_ij, so
    that a point can be assigned on its own (eq. 4 with clusters of like weight).

    Training begins with more clusters than wanted, and on its way merges those whose points are
    partners most above chance. A digit that two clusters share and two digits in one cluster are a
    local minimum that no small step leaves; with clusters to spare it does not arise.

    Args:
        num_features: F.
        num_clusters: C, in the end.
        hidden: Units of a hidden layer that W then has; None for a linear W, as in eq. 2.
        width: P.
        temperature: Of the similarities.
        merge_at: Training step after which C clusters are left; 0 begins with C.

    Attributes:
        centroids: (C + surplus, P); those not `alive` are no more.
        alive: (C + surplus,) bool.
    """

    alive: Tensor
    joint: Tensor
    step: Tensor

    def __init__(
        self,
        num_features: int,
        num_clusters: int,
        *,
        hidden: int | None = None,
        width: int = 64,
        temperature: float = 0.1,
        merge_at: int = 0,
    ) -> None:
        super().__init__()
        self.project: nn.Module = nn.Linear(num_features, width)  # with a bias: see `embed`
        if hidden is not None:
            self.project = nn.Sequential(
                nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, width)
            )
        first = first_clusters(num_clusters) if merge_at else num_clusters
        self.centroids = nn.Parameter(torch.randn(first, width))
        self.register_buffer("alive", torch.ones(first, dtype=torch.bool))
        self.register_buffer("joint", torch.zeros(first, first))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.num_clusters, self.temperature, self.merge_at = num_clusters, temperature, merge_at

    def embed(self, points: Tensor) -> Tensor:
        """Unit vectors (N, P) for points (N, F).

        W has a bias: the direction of W x + b tells apart even points on one line.
        """
        return F.normalize(self.project(points), dim=-1)

    def similarities(self, points: Tensor) -> Tensor:
        """Cosines (N, C) of points (N, F) with all living centroids."""
        return self.embed(points) @ F.normalize(self.centroids[self.alive], dim=-1).T

    def forward(self, points: Tensor) -> Tensor:
        """Log p(cluster | point), (N, C), of points (N, F)."""
        return (self.similarities(points) / self.temperature).log_softmax(-1)

    @torch.no_grad()
    def seed(self, points: Tensor, generator: torch.Generator) -> None:
        """Put the centroids on some of the points (N, F), by k-means++ in the clustering space.

        Args:
            points: To choose from; fewer different ones than clusters are taken more than once.
            generator: On the CPU, whatever the device of the points.
        """
        embedded = self.embed(points)
        chosen = int(torch.randint(len(points), (1,), generator=generator))
        distance = torch.full((len(points),), torch.inf, device=points.device)
        for cluster in range(len(self.centroids)):
            self.centroids[cluster] = embedded[chosen]
            # half the squared distance, of unit vectors
            distance = distance.minimum(1 - embedded @ embedded[chosen]).clamp(min=1e-9)
            chosen = int(torch.multinomial(distance.cpu(), 1, generator=generator))

    @torch.no_grad()
    def watch(self, log_p: Tensor, log_q: Tensor) -> None:
        """Count a training step with the memberships (N, C) of points and of their partners.

        The last steps before `merge_at` tell which clusters to merge, over all processes.
        """
        if int(self.step) >= self.merge_at:
            return
        self.step += 1
        if int(self.step) > self.merge_at - _WATCHED:
            pairs = log_p.float().exp().T @ log_q.float().exp()
            self.joint += pairs + pairs.T
        if int(self.step) == self.merge_at:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(self.joint)
            self._merge()

    def _merge(self) -> None:
        joint = self.joint.double().cpu()
        sizes = joint.sum(1)
        merged = F.normalize(self.centroids, dim=-1).double().cpu() * sizes[:, None]
        alive = self.alive.cpu().clone()
        for _ in range(len(alive) - self.num_clusters):
            lift = joint / (sizes[:, None] * sizes).clamp(min=1e-300)
            lift[~alive] = lift[:, ~alive] = -1.0
            kept, gone = divmod(int(lift.fill_diagonal_(-1.0).argmax()), len(alive))
            joint[kept] += joint[gone]
            joint[:, kept] += joint[:, gone]
            sizes[kept] += sizes[gone]
            merged[kept] += merged[gone]
            alive[gone] = False
        self.alive = alive.to(self.alive.device)  # anew: a backward pass may still need the old one
        self.centroids.copy_(F.normalize(merged, dim=-1))


def first_clusters(num_clusters: int) -> int:
    """How many clusters training begins with, to end with `num_clusters`."""
    return min(3 * num_clusters, num_clusters + 64) if num_clusters <= 1024 else num_clusters


def partner_loss(log_p: Tensor, log_q: Tensor, balance: float = 1.0) -> Tensor:
    """How unlikely the partners are as a pair, if all that counts is the cluster of each.

    Draw a cluster, then two of its points: p(i, j) = sum_c p(c) p(i | c) p(j | c). Here p(j | c) is
    U_cj of eq. 2, and p(c) is the mean m_c of the memberships, so N U_cj = p_jc / m_c and

        L = -mean_i log N^2 p(i, j(i)) = -mean_i log sum_c p_ic p_jc / m_c.

    The clustering loss of eq. 6 alone, -phi(X_j, C'_{I_j}), is least where all points are one.
    This asks the same of two points instead of a point and its own centroid, and is least where
    partners share clusters and the clusters are many: for one-hot memberships it is minus the
    information that the cluster of a point gives about its partner.

    Args:
        log_p: log p(cluster | point), (N, C).
        log_q: Of each point's partner, (N, C).
        balance: Exponent of m_c: 0 lets one cluster take all, 1 is the likelihood, more makes
            clusters more alike in size.
    """
    both = torch.cat([log_p, log_q])
    log_mean = both.logsumexp(0) - math.log(len(both))
    return -(log_p + log_q - balance * log_mean).logsumexp(-1).mean()
