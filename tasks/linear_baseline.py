"""The simple method beside a text classifier: TF-IDF and logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from clusterformer.data.labelled_text import Row

NAME = "TF-IDF + logistic regression"
_MAX_CHARACTERS = 200_000_000
"""Number of characters of training and test texts above which the baseline is left out."""


def linear_baseline_is_cheap(texts: Sequence[Row]) -> bool:
    """Tell whether scikit-learn is installed and the texts are few enough for a minute or so."""
    found = find_spec("sklearn") is not None
    return found and sum(len(row.text) for row in texts) <= _MAX_CHARACTERS


def linear_baseline(train: Sequence[Row], test: Sequence[Row], measure: str) -> float:
    """Train on words and pairs of words, and measure on the test texts.

    Args:
        train: Training texts.
        test: Test texts.
        measure: "accuracy", or "f1" for the mean F1 of the labels.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score

    words = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, min_df=2 if len(train) > 500 else 1,
        max_features=200_000, token_pattern=r"\w+|[^\w\s]+",
    )  # fmt: skip
    features = words.fit_transform([row.text for row in train])
    model = LogisticRegression(C=10.0, max_iter=300).fit(features, [row.label for row in train])
    predicted = model.predict(words.transform([row.text for row in test]))
    labels = [row.label for row in test]
    if measure == "f1":
        return float(f1_score(labels, predicted, average="macro"))
    return float(accuracy_score(labels, predicted))
