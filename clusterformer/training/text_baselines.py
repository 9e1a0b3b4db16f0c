"""Simple methods beside a network that labels texts: TF-IDF with a linear SVM, and no look at all.

P examples   F features
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.batches import run_seed
from clusterformer.data.labelled_text import Example
from clusterformer.data.named_sets import Split
from clusterformer.errors import missing
from clusterformer.task import SimpleResult

SVM, MAJORITY, SECOND = "TF-IDF + linear SVM", "majority label", "second text alone"
MAX_CHARACTERS = 200_000_000
"""Number of characters of training and test texts above which the end of a fit does without."""


class Labelled(NamedTuple):
    """Predictions of a method for P test examples.

    Attributes:
        labels: The label of each.
        scores: (P,) float, higher where the last label is more likely.
        parameters: Number of trained weights.
    """

    labels: list[str]
    scores: NDArray[np.float64]
    parameters: int


def text_baselines(
    read: Callable[[Split], Sequence[Any]],
    measure: Callable[[Sequence[Any], Labelled], dict[str, float]],
    *,
    cheap: bool,
) -> dict[str, Callable[[], SimpleResult]]:
    """List the methods for a set of texts; they choose nothing, so validation texts train too.

    Args:
        read: Function that reads a split.
        measure: Function that measures what a method says of the test examples.
        cheap: Whether to return none for more than `MAX_CHARACTERS`, or without scikit-learn.
    """
    test = read("test")
    if cheap:
        size = sum(len(text) for part in (read("train"), test) for e in part for text in e.texts)
        if size > MAX_CHARACTERS or find_spec("sklearn") is None:
            return {}
    methods: dict[str, Callable[..., Labelled]] = {SVM: linear_svm, MAJORITY: majority_label}
    if len(test[0].texts) > 1:
        methods[SECOND] = partial(linear_svm, second_alone=True)

    def run(method: Callable[..., Labelled]) -> SimpleResult:
        found = method([*read("train"), *read("valid")], test, run_seed())
        return SimpleResult(measure(test, found), found.parameters)

    return {name: partial(run, method) for name, method in methods.items()}


def label_measures(examples: Sequence[Example], found: Labelled) -> dict[str, float]:
    """Measure accuracy and macro F1."""
    from sklearn.metrics import accuracy_score, f1_score

    labels = [example.label for example in examples]
    return {
        "accuracy": float(accuracy_score(labels, found.labels)),
        "f1": float(f1_score(labels, found.labels, average="macro")),
    }


def majority_label(train: Sequence[Example], test: Sequence[Example], seed: int) -> Labelled:
    """Give every test example the most frequent training label, and a random score."""
    [(label, _)] = Counter(example.label for example in train).most_common(1)
    return Labelled([label] * len(test), np.random.default_rng(seed).random(len(test)), 0)


def linear_svm(
    train: Sequence[Example], test: Sequence[Example], seed: int, *, second_alone: bool = False
) -> Labelled:
    """Train a linear SVM on words and pairs of words, weighted by TF-IDF.

    Of a pair of texts it gets both vectors, their product, their absolute difference and their
    cosine.

    Args:
        train: Training examples, of at least one text each.
        test: Test examples.
        seed: Seed of the order in which the examples are visited.
        second_alone: Whether to read only the second text of each pair.

    Raises:
        InputError: if scikit-learn is missing.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.svm import LinearSVC
    except ImportError:
        raise missing(f"{SVM} needs scikit-learn", "cluster") from None
    names = sorted({example.label for example in train})
    if len(names) < 2:
        return majority_label(train, test, seed)
    trained, tested = ([_texts(one, second_alone) for one in part] for part in (train, test))
    words = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, max_features=500_000,
        token_pattern=r"\w+|[^\w\s]+", dtype=np.float32,
    )  # fmt: skip
    words.fit([text for texts in trained for text in texts])
    model = LinearSVC(random_state=seed).fit(
        _features(words, trained), [example.label for example in train]
    )
    scores = np.asarray(model.decision_function(_features(words, tested)), dtype=np.float64)
    best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
    last = scores if scores.ndim == 1 else scores[:, -1]
    return Labelled([str(model.classes_[row]) for row in best], last, int(model.coef_.size))


def _texts(example: Example, second_alone: bool) -> tuple[str, ...]:
    return example.texts[1:] if second_alone else example.texts


def _features(words: Any, examples: Sequence[tuple[str, ...]]) -> Any:
    """Features of one or two texts an example, sparse, (P, F)."""
    from scipy.sparse import csr_matrix, hstack

    columns = [words.transform(texts) for texts in zip(*examples, strict=True)]
    if len(columns) == 1:
        return columns[0]
    first, second = columns
    product = first.multiply(second)
    return hstack([first, second, product, abs(first - second), csr_matrix(product.sum(1))]).tocsr()
