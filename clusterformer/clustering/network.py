"""Neural clustering of any points, without a Transformer around it (ClusterFormer, section 3.1).

N points   F features of a point   P width of the clustering space   C clusters
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TEMPERATURE = 0.1  # to begin with
_WATCHED = 16  # steps
_REVIVED = 25  # steps from one look for clusters without points to the next


class NeuralClusters(nn.Module):
    """Memberships of points in clusters that are learnt.

    The similarities are those of eq. 2, with the cosine for phi and a temperature:

        S_ij = cos(C_i, W X_j) / temperature

    Eq. 2 reads them along the points, U_ij = softmax_j S_ij = p(point j | cluster i); this gives
    what U stands in proportion to for a single point, p(cluster i | point j) = softmax_i S_ij, so
    that a point can be assigned on its own (eq. 4 with clusters of like weight). The temperature is
    learnt like all else: partners that seldom agree make it higher, clean ones lower.

    Training begins with more clusters than wanted, and on its way merges those whose points are
    partners most above chance. A digit that two clusters share and two digits in one cluster are a
    local minimum that no small step leaves; with clusters to spare it does not arise.

    Args:
        num_features: F.
        num_clusters: C, in the end.
        hidden: Units of a hidden layer that W then has; None for a linear W, as in eq. 2.
        width: P.
        merge_at: Training step after which C clusters are left; 0 begins with C.

    Attributes:
        centroids: (C + surplus, P); those not `alive` are no more.
        alive: (C + surplus,) bool.
        sharpness: Logarithm of 1 / temperature.
        sizes: (C,), points since the last look for clusters without any.
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
        self.register_buffer("sizes", torch.zeros(num_clusters))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.sharpness = nn.Parameter(torch.tensor(1 / _TEMPERATURE).log())
        self.num_clusters, self.merge_at = num_clusters, merge_at

    def embed(self, points: Tensor) -> Tensor:
        """Unit vectors (N, P) for points (N, F).

        W has a bias: the direction of W x + b tells apart even points on one line.
        """
        return F.normalize(self.project(points), dim=-1)

    def similarities(self, points: Tensor) -> Tensor:
        """Cosines (N, C) of points (N, F) with all living centroids."""
        return self.embed(points) @ F.normalize(self.centroids[self.alive], dim=-1).T

    def forward(self, points: Tensor) -> Tensor:
        """Logits S (N, C) of points (N, F); their softmax is p(cluster | point)."""
        return self.similarities(points) * self.sharpness.exp()

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
    def watch(self, points: Tensor, logits: Tensor, partner_logits: Tensor) -> None:
        """Count a training step with points (N, F), and the logits (N, C) of them and of partners.

        The last steps before `merge_at` tell which clusters to merge; after it, a cluster to which
        no point was assigned in 25 steps is revived. Over all processes.
        """
        self.step += 1
        left = self.merge_at - int(self.step)
        if 0 <= left < _WATCHED:
            pairs = logits.float().softmax(-1).T @ partner_logits.float().softmax(-1)
            self.joint += pairs + pairs.T
        if left == 0:
            self._merge(_over_processes(self.joint))
        if left < 0:
            self.sizes += torch.bincount(logits.argmax(1), minlength=self.num_clusters)
            if left % _REVIVED == 0:
                self.revive(points, _over_processes(self.sizes))
                self.sizes.zero_()

    @torch.no_grad()
    def revive(self, points: Tensor, sizes: Tensor) -> None:
        """Put centroids without points on some of the largest clusters' that are least like theirs.

        Args:
            points: (N, F), to choose from.
            sizes: (C,), how many points each cluster has.
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
        if empty and _distributed():
            torch.distributed.broadcast(self.centroids.data, 0)

    def _merge(self, joint: Tensor) -> None:
        """Join the two clusters whose points are partners most above chance, until C are left."""
        joint = joint.double().cpu()
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


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _over_processes(counts: Tensor) -> Tensor:
    if _distributed():
        torch.distributed.all_reduce(counts)
    return counts


def first_clusters(num_clusters: int) -> int:
    """How many clusters training begins with, to end with `num_clusters`."""
    return min(3 * num_clusters, num_clusters + 64) if num_clusters <= 1024 else num_clusters


def partner_loss(logits: Tensor, partner_logits: Tensor, balance: float = 1.0) -> Tensor:
    """How unlikely the partners are as a pair, if all that counts is the cluster of each.

    Draw a cluster, then two of its points: p(i, j) = sum_c p(c) p(i | c) p(j | c). Here p(j | c) is
    U_cj of eq. 2, and p(c) is the mean m_c of the memberships, so N U_cj = p_jc / m_c and

        L = -mean_i log N^2 p(i, j(i)) = -mean_i log sum_c p_ic p_jc / m_c.

    The clustering loss of eq. 6 alone, -phi(X_j, C'_{I_j}), is least where all points are one.
    This asks the same of two points instead of a point and its own centroid, and is least where
    partners share clusters and the clusters are many: for one-hot memberships it is minus the
    information that the cluster of a point gives about its partner.

    Args:
        logits: (N, C), whose softmax is p(cluster | point).
        partner_logits: Of each point's partner, (N, C).
        balance: Exponent of m_c: 0 lets one cluster take all, 1 is the likelihood, more makes
            clusters more alike in size.
    """
    p, q = torch.cat([logits, partner_logits]).float().softmax(-1).chunk(2)
    mean = (p.mean(0) + q.mean(0)) / 2
    return -(p * (q / mean**balance)).sum(-1).log().mean()
