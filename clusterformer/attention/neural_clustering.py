"""Neural clustering attention (ClusterFormer, Wang et al., ACL 2022, sections 3.1-3.2, B).

B batch   H heads   N tokens   D head width   E model width   C clusters   S block size
G clusterings   Z rows: B * G   F features (width of the clustering space)
"""

import math
from operator import attrgetter
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.base import AttentionCore, Causal, Grouping, without_training
from clusterformer.attention.cluster_decoding import ClusterDecoding
from clusterformer.attention.head_parts import Part, attend_in_parts
from clusterformer.attention.softmax import full_attention, replace_prefix, replace_short_texts
from clusterformer.attention.text_ends import (
    TextEnds,
    count_with_ends,
    repeat_ends,
    text_ends,
)
from clusterformer.attention.visibility import share_of_tokens
from clusterformer.clustering.spherical import SphericalMeans
from clusterformer.clustering.unit_vectors import unit_vectors
from clusterformer.errors import require_at_least, require_one_of, require_positive, require_whole
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks
from clusterformer.kernels.grouping import assign, explore, sort
from clusterformer.kernels.rows import repeat_rows
from clusterformer.masks import padded_last

PAPER_FORM: dict[str, Any] = {
    "coupling": False, "similarity": "dot", "look_ahead": 0, "dense_length": 0,
}  # fmt: skip
"""Options of `NeuralClusteringAttention` that give the paper's form, but for the divisor that its
`similarity` names."""

NUM_CLUSTERS, BLOCK_SIZE, DENSE_LENGTH = 16, 64, 512
"""Defaults; up to 512 tokens full attention takes no longer on CPU, see `bench regret`."""


Similarity = Literal["cosine", "dot"]
Origin = Literal["learnt", "k-means", "random"]


class NeuralClusteringAttention(ClusterDecoding):
    """Attention within blocks of tokens of learned clusters.

    Tokens are assigned to centroids, sorted by cluster, cut into blocks of equal width, and attend
    to the blocks around their own (eq. 2-10). Hidden states are clustered: once for all heads, or
    with `num_clusterings` once for each share of them. The next layer starts from the updated
    centroids.

    With `block_size`, a token sees as many tokens of any text. `num_clusters` without it is the
    paper's k, and cuts any text into k blocks: the cost is quadratic again. `num_clusters=k` and
    `**PAPER_FORM` together are the paper's form. Beyond it:

    - coupling: the unit vector z = W x / |W x| by which tokens are clustered also enters the
      logits, q_u . k_v / sqrt(D) + alpha z_u . z_v with a learned alpha > 0. So the task's loss
      trains W, and moves tokens that need each other into one cluster;
    - similarity="cosine": bounded losses (see `clusterformer.losses`);
    - look_ahead=1: where nothing is causal, a block also sees the block after it.

    Causal forms:

    - `causal=True` is strict. A token is assigned by this layer's own centroids, without regard to
      other tokens; chunks of `chunk_size` are cut within each cluster by rank; a token sees its
      own chunk and the `look_back` chunks before it of its cluster. No future token changes it.
      The first `dense_length` tokens attend to all before them, and are keys for later ones.
    - `causal="masked"` is appendix B with -inf: sort and blocks as without causality, the scores of
      later tokens set to -inf. (Eq. 14 multiplies them by 0, which leaves the weight of exp(0); eq.
      13 compares keys with keys, here queries with keys.) It LEAKS: the blocks depend on later
      tokens, so a change of the suffix changes outputs before it. For comparison only.

    With `coupling=False`, k = 1 and k = 2 equal full attention, as does k = 3 looking both ways.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False, True or "masked".
        num_clusters: Number of clusters (C), the paper's k; texts may be shorter. None: 16.
        num_clusterings: Number of clusterings (G), each with W, centroids and an equal share of the
            heads of its own; `num_heads` gives every head its own clusters.
        block_size: Number of tokens in a block, except with `causal=True` (see `chunk_size`). None:
            the number of clusters divides the text if it is given, else 64.
        dense_length: Length, in tokens, up to which a text has full attention and no clusters,
            because that takes no longer. With `causal=True`: number of first tokens of any text
            that attend to all before them. None: 512, or what a token sees if that is more; 0 if
            `num_clusters` is given without `block_size`.
        min_width: Minimum number of tokens in a block where the number of clusters divides the
            text. Narrow blocks of short texts see less and cost the same.
        look_back: Number of blocks (or chunks) before its own that a token sees.
        look_ahead: Number of blocks after its own that a token sees; None: 0 if causal, else 1.
        coupling: Add the similarity in the clustering space to the logits.
        alpha: Initial value of the learned strength of the coupling, above 0. It also raises the
            weight of a token on itself: 2 suits long texts, less suits sentences.
        similarity: Similarity phi of eq. 2: "cosine" in a space of `cluster_width`, or "dot", the
            paper's inner product in d_model with W^C folded into the centroids. Eq. 2 divides it by
            sqrt(E), as attention divides its scores; the losses (eq. 6, 11) do not.
        cluster_width: Width of the clustering space (F) for "cosine".
        temperature: Divisor of the cosine in eq. 2.
        chunk_size: Number of tokens in a chunk with `causal=True`.
        local_heads: Number of heads that attend to near tokens instead, like half of the heads of
            Routing Transformer: to their own chunk, the one before and, unless causal, the next.
        local_window: Number of tokens in a chunk of the local heads.
        global_tokens: Number of tokens at each end of a text, such as [CLS] and [SEP], that all
            tokens see and that see all (`causal=False` only).
        exploration: Scale of the Gumbel noise by which a token tries other clusters in training, 0
            for none. 1 draws its cluster i by softmax_i S_ij of the similarities of eq. 2. So
            tokens meet that need each other and that their clusters keep apart. A token draws
            without regard to others; eq. 4 weighs clusters over all tokens where not strictly
            causal, so there a small scale does not come near to 0.
        clusters: "learnt" by the loss, or for comparison: "random", W and centroids stay as they
            start; "k-means", the centroids follow the tokens of each cluster, and W stays.

    Cost: O(N (F + C F) + N S D) time, O(N (C + D)) memory.
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True, "masked")

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int | None = None,
        num_clusterings: int = 1,
        block_size: int | None = None,
        dense_length: int | None = None,
        min_width: int = 1,
        look_back: int = 1,
        look_ahead: int | None = None,
        coupling: bool = True,
        alpha: float = 2.0,
        similarity: Similarity = "cosine",
        cluster_width: int = 16,
        temperature: float = 0.1,
        chunk_size: int = 64,
        local_heads: int = 0,
        local_window: int = 64,
        global_tokens: int = 0,
        exploration: float = 0.0,
        clusters: Origin = "learnt",
    ) -> None:
        super().__init__(
            d_model, num_heads, causal=causal, local_heads=local_heads, local_window=local_window
        )
        if look_ahead is None:
            look_ahead = 0 if causal else 1
        require_whole(1, num_clusters=num_clusters, block_size=block_size, chunk_size=chunk_size)
        require_whole(1, min_width=min_width, cluster_width=cluster_width)
        require_whole(1, num_clusterings=num_clusterings)
        require_whole(0, look_back=look_back, look_ahead=look_ahead, dense_length=dense_length)
        require_whole(0, global_tokens=global_tokens)
        require_at_least(0, exploration=exploration)
        if num_clusters is None:
            num_clusters, block_size = NUM_CLUSTERS, block_size or BLOCK_SIZE
        if dense_length is None and block_size is not None:
            width = chunk_size if causal is True else block_size
            dense_length = max(DENSE_LENGTH, (look_back + 1 + look_ahead) * width)
        require_positive(temperature=temperature, alpha=alpha)
        require_one_of(get_args(Similarity), similarity=similarity)
        require_one_of(get_args(Origin), clusters=clusters)
        if similarity == "dot" and (coupling or num_clusterings > 1 or clusters == "k-means"):
            raise ValueError(
                'coupling, num_clusterings > 1 and clusters="k-means" need similarity="cosine"; '
                'with "dot" set coupling=False'
            )
        for name, count in (("look_ahead", look_ahead), ("global_tokens", global_tokens)):
            if causal and count:
                raise ValueError(
                    f"{name} must be 0 with causal={causal!r}, as decoders have it, got {count}"
                )
        if (num_heads - local_heads) % num_clusterings:
            raise ValueError(
                f"num_clusterings must divide the {num_heads - local_heads} heads that cluster, "
                f"got {num_clusterings}"
            )
        self.num_clusters, self.block_size, self.chunk_size = num_clusters, block_size, chunk_size
        self.dense_length, self.min_width = dense_length or 0, min_width
        self.look_back, self.look_ahead = look_back, look_ahead
        self.coupling, self.similarity, self.temperature = coupling, similarity, temperature
        self.global_tokens, self.exploration = global_tokens, exploration
        self.num_clusterings = num_clusterings
        width = cluster_width if similarity == "cosine" else d_model
        self.clusters, self.width = clusters, width
        self.space = nn.Linear(d_model, num_clusterings * width, bias=False)  # W^C
        start = torch.randn(num_clusterings, num_clusters, width).squeeze(0)
        self.centroids: Tensor | None
        if clusters == "learnt":
            self.centroids = nn.Parameter(start)
        else:
            without_training(self.space)
            self.centroids = nn.Buffer(start)
        self.means: SphericalMeans | None = None
        if clusters == "k-means":
            self.means = SphericalMeans(num_clusterings, num_clusters, width, decay=0.999, seed=0)
            self.centroids = None
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha))) if coupling else None

    def read_width(self, width: int) -> None:
        if self.similarity == "dot" and width != self.d_model:
            raise ValueError(
                f'similarity="dot" needs hidden states of width {self.d_model}, got {width}'
            )
        super().read_width(width)

    def can_inherit(self, below: AttentionCore) -> bool:
        """Tell whether centroids of the layer below fit, and are there whenever they are needed."""
        if not isinstance(below, NeuralClusteringAttention) or type(below) is not type(self):
            return False
        alike = attrgetter("num_clusters", "num_clusterings", "similarity", "clusters", "width")
        return alike(below) == alike(self) and below.dense_length <= self.dense_length

    def inherit(self) -> None:
        if self.causal is not True:
            self.centroids = self.means = None

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        hidden: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        previous: Grouping | None = None,
    ) -> tuple[Tensor, Grouping | None]:
        is_causal, limit = bool(self.causal), self.dense_length
        exporting = torch.compiler.is_exporting()  # a graph for any length
        if self.means is not None and self.training:
            self.means.move()
        if limit and not exporting and q.shape[2] <= limit:
            self._count_points(hidden, key_mask, None)
            return full_attention(q, k, v, key_mask, causal=is_causal), None
        with torch.autocast(hidden.device.type, enabled=False):
            grouping = self.grouping_of(hidden.float(), key_mask, previous)
        self._count_points(hidden, key_mask, grouping)
        blocks, points = grouping.blocks, grouping.points
        assert blocks is not None
        assert points is not None
        local, parts, heads = self.local_heads, [], q.shape[1]  # a process may hold some heads
        if local:
            parts.append(Part(local, self.near_blocks(hidden, key_mask)))
        if local < heads:
            parts.append(Part(heads - local, blocks, self.coupling_columns(points)))
        # A graph for any length does not cut a text at one.
        in_place = limit > 0 and self.causal is True and not exporting and padded_last(key_mask)
        mixed = attend_in_parts(
            q, k, v, parts, self.ends(hidden, key_mask), key_mask,
            scale=self.head_width**-0.5, causal=is_causal, prefix=limit if in_place else 0,
        )  # fmt: skip
        if self.causal is True:
            if limit and not in_place:
                mixed = replace_prefix(mixed, q, k, v, key_mask, limit)
            return mixed, grouping
        if limit and (exporting or key_mask is not None):
            mixed = replace_short_texts(mixed, q, k, v, key_mask, limit, causal=is_causal)
        return mixed, grouping

    def _count_points(
        self, hidden: Tensor, key_mask: Tensor | None, grouping: Grouping | None
    ) -> None:
        """Let k-means count the points of this batch, from which its centroids move in the next."""
        if self.means is None or not self.training:
            return
        if grouping is None:
            self.means.observe_nothing(hidden)
            return
        assert grouping.points is not None
        by_text = len(hidden), self.num_clusterings, -1
        points = grouping.points.view(*by_text, self.width)
        mask = None if key_mask is None else grouping.clustered(key_mask)
        self.means.observe(points, grouping.assignment.view(by_text), mask, hidden)

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        if grouping is None:  # short texts
            return mask.float()
        assert grouping.blocks is not None
        causal = bool(self.causal)
        rows = repeat_rows(mask, self.num_clusterings)
        ends = self.ends(mask, mask)
        every = None if ends is None else repeat_ends(ends, self.num_clusterings)
        counts = count_with_ends(grouping.blocks, every, rows, causal)
        if self.num_clusterings > 1:
            counts = counts.view(len(mask), self.num_clusterings, -1).float().mean(1)
        if self.local_heads:
            near = count_with_ends(self.near_blocks(mask, mask), ends, mask, causal)
            counts = self.mean_over_heads(near, counts)
        shares = share_of_tokens(counts, mask, causal)
        # of the text; of the tokens up to itself, where strictly causal
        length = mask.cumsum(1) if self.causal is True else mask.sum(1, keepdim=True)
        return torch.where(length <= self.dense_length, mask.float(), shares)

    def ends(self, like: Tensor, key_mask: Tensor | None) -> TextEnds | None:
        """Find the tokens that all see, in texts of the shape (B, N) of `like`; None for none."""
        return text_ends(like, self.global_tokens, key_mask) if self.global_tokens else None

    def grouping_of(
        self, hidden: Tensor, key_mask: Tensor | None, previous: Grouping | None
    ) -> Grouping:
        points, anchors = self.anchors(hidden, previous)
        mask = None if key_mask is None else repeat_rows(key_mask, self.num_clusterings)
        assignment, updated = assign(points, anchors, mask, without_normalizer=self.causal is True)
        tried = assignment
        if self.training and self.exploration:
            tried = explore(points, anchors, self.exploration)
        blocks = self.blocks_of(tried, mask)
        updated = self.read_centroids(updated)
        if self.num_clusterings > 1:
            assignment = assignment.unflatten(0, (hidden.shape[0], self.num_clusterings))
        found = Grouping(assignment, self.num_clusters, blocks, points, updated, self.similarity)
        return found._replace(texts=self.long_texts(key_mask))

    def long_texts(self, key_mask: Tensor | None) -> Tensor | None:
        """Find the texts, (B,), of more than `dense_length` tokens; None where all of them are."""
        if key_mask is None or not self.dense_length:
            return None
        return key_mask.sum(1) > self.dense_length

    def anchors(self, hidden: Tensor, previous: Grouping | None) -> tuple[Tensor, Tensor]:
        """Compute points (Z, N, F) and anchors (C, F) or (Z, C, F) of the centroids of this layer.

        The similarity of eq. 2 is S = anchors points^T.

        Args:
            hidden: Hidden states, (B, N, E), in float32.
            previous: Grouping of the layer below; only strictly causal layers do without.

        Raises:
            ValueError: if the layer has no centroids of its own, and gets none; or if those of
                `previous` are of another shape.
        """
        centroids, parts = self.own_centroids(), self.num_clusterings
        if self.causal is not True and previous is not None and previous.centroids is not None:
            centroids = previous.centroids
            shape = (hidden.shape[0] * parts, self.num_clusters, self.width)
            if centroids.shape != shape:
                raise ValueError(
                    f"centroids of previous must be {shape}, got {tuple(centroids.shape)}; "
                    "pass it only where core.can_inherit(core_below)"
                )
        elif centroids is None:
            raise ValueError("this layer has no centroids of its own: pass `previous`, got None")
        elif parts > 1:
            centroids = centroids.repeat(hidden.shape[0], 1, 1)
        if self.similarity == "dot":
            return hidden, centroids.float() @ self.space.weight.float() * self.d_model**-0.5
        points = F.linear(hidden, self.space.weight.float())
        if parts > 1:
            points = points.unflatten(-1, (parts, -1)).transpose(1, 2).flatten(0, 1)
        anchors = unit_vectors(centroids.float()) / self.temperature
        return unit_vectors(points), anchors

    def own_centroids(self) -> Tensor | None:
        """Return the centroids of this layer, (C, F) or (G, C, F); None if it inherits them."""
        return self.centroids if self.means is None else self.means.centroids.squeeze(0)

    def read_centroids(self, means: Tensor) -> Tensor:
        """Make the centroids C' of eq. 3 of the means U X of the points, (Z, C, F)."""
        if self.similarity == "dot":
            return F.linear(means, self.space.weight.float())  # (U X) W of eq. 3, never X W
        return means

    def blocks_of(self, assignment: Tensor, key_mask: Tensor | None) -> Blocks:
        """Cut tokens of these clusters, (Z, N), into blocks."""
        grouped = sort(assignment, self.num_clusters, key_mask)
        if self.causal is True:
            return cluster_chunks(grouped, self.chunk_size, key_mask, self.look_back)
        count, width = self.num_clusters, self.min_width
        if self.block_size is not None:
            count, width = assignment.shape[1], self.block_size
        return equal_blocks(grouped, count, key_mask, self.look_back, self.look_ahead, width)

    def coupling_columns(self, points: Tensor) -> tuple[Tensor, Tensor] | None:
        """Compute columns alpha z and z, (Z, N, F), that add alpha z . z to q . k / sqrt(D)."""
        if self.log_alpha is None:
            return None
        return self.log_alpha.float().exp() * self.head_width**0.5 * points, points
