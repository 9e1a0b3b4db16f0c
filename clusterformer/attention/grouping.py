"""Result of a mechanism that groups tokens, for losses, statistics, pictures and counts.

B batch   H heads   N tokens   C clusters   F features   S slots of a cluster
Z rows: B, or B times the clusterings of a mechanism with several
"""

from typing import NamedTuple

from torch import Tensor

from clusterformer.kernels.blocks import Blocks


class Grouping(NamedTuple):
    """Result of grouping; losses, statistics and plots read it.

    Attributes:
        assignment: (B, N) or (B, H, N) integer cluster of each token.
        num_clusters: C.
        blocks: Slot of each token, and blocks that see each other, of each sequence or, beside an
            assignment (B, H, N), of each head; None if there are none.
        points: (Z, N, F) clustered vectors.
        centroids: (Z, C, F) updated centroids C' of eq. 3, in the same space.
        similarity: phi of eq. 2: "cosine" or "dot".
        keys: (B, H, C, S) tokens that the queries of each cluster attend to, -1 for none; None
            where the blocks say it.
        queries: (B, H, C, S') tokens that each cluster takes as queries, -1 for none; None if each
            token is in the cluster of `assignment` alone.
        counts: (B, N) or (B, H, N) number of tokens that each token attends to, where the mechanism
            counts them as it selects.
        loss: (B,) loss of the mechanism itself, summed over the real tokens of each sequence, in
            training; None where the mechanism has none.
        texts: (B,), True at sequences that the mechanism clusters, False at those so short that
            they have full attention instead; None for all.
    """

    assignment: Tensor
    num_clusters: int
    blocks: Blocks | None = None
    points: Tensor | None = None
    centroids: Tensor | None = None
    similarity: str = "cosine"
    keys: Tensor | None = None
    queries: Tensor | None = None
    counts: Tensor | None = None
    loss: Tensor | None = None
    texts: Tensor | None = None

    def clustered(self, mask: Tensor) -> Tensor:
        """Leave out of a mask (B, N) the tokens of sequences that the mechanism does not cluster.

        Such a sequence costs nothing and is in no statistics, as in a batch of its own, where there
        is no grouping at all.
        """
        return mask if self.texts is None else mask & self.texts[:, None]
