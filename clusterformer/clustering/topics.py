"""Names of clusters of texts: the words that distinguish each from the others.

P texts   C clusters   V words
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NAME_WORDS = 4
_NUM_WORDS = 10
_NUM_EXAMPLES = 3
_MAX_WORDS = 50_000  # of the vocabulary


class Topic(NamedTuple):
    """A cluster of texts.

    Attributes:
        name: Its first words.
        size: Number of texts.
        words: Words with their class TF-IDF, the highest first.
        examples: Indices of the most typical texts.
    """

    name: str
    size: int
    words: list[tuple[str, float]]
    examples: list[int]


def find_topics(
    texts: Sequence[str],
    labels: NDArray,
    memberships: NDArray,
    *,
    stop_words: str | None = "english",
) -> list[Topic]:
    """Name each cluster by class TF-IDF (Grootendorst, BERTopic, 2022, eq. 2).

    All texts of a cluster are one document; the weight of word t in cluster c is

        W_tc = sqrt(tf_tc) log(1 + A / f_t),

    with tf_tc the share of t among the words of c, f_t its count in all clusters, and A the mean
    number of words of a cluster. The root, BERTopic's `reduce_frequent_words`, keeps words that are
    frequent everywhere ("edu" in posts) out of the names.

    Args:
        texts: P texts.
        labels: Cluster of each text, (P,); -1 is noise, which counts nowhere.
        memberships: (P, C); the texts with the highest are examples.
        stop_words: "english", or None to keep all words.

    Raises:
        ValueError: if there are no words.
    """
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(
        stop_words=stop_words, max_features=_MAX_WORDS, token_pattern=r"(?u)\b[^\W\d_]\w+\b"
    )
    try:
        counts = counter.fit_transform(texts)
    except ValueError:
        raise ValueError(
            "the texts hold no words to name clusters by; try --stop_words none"
        ) from None
    vocabulary = counter.get_feature_names_out()
    certain = np.flatnonzero(labels >= 0)
    ones = np.ones(len(certain))
    shape = memberships.shape[1], len(texts)
    frequency = (csr_matrix((ones, (labels[certain], certain)), shape) @ counts).toarray()
    total = np.maximum(frequency.sum(0), 1)
    mean = frequency.sum() / max(1, len(frequency))
    share = frequency / np.maximum(frequency.sum(1, keepdims=True), 1)
    weights = np.sqrt(share) * np.log1p(mean / total)
    return [
        _topic(cluster, weights[cluster], vocabulary, labels, memberships)
        for cluster in range(len(frequency))
    ]


def _topic(
    cluster: int,
    weights: NDArray,
    vocabulary: Any,
    labels: NDArray,
    memberships: NDArray,
) -> Topic:
    best = np.argsort(-weights, kind="stable")[:_NUM_WORDS]
    words = [(str(vocabulary[word]), float(weights[word])) for word in best if weights[word] > 0]
    members = np.flatnonzero(labels == cluster)
    typical = members[np.argsort(-memberships[members, cluster], kind="stable")[:_NUM_EXAMPLES]]
    name = " ".join(word for word, _ in words[:_NAME_WORDS]) or f"cluster {cluster}"
    return Topic(name, len(members), words, typical.tolist())
