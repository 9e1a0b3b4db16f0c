"""Vectors of texts, to cluster: TF-IDF with singular vectors, or a sentence encoder of a folder.

P texts   F features   V words
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.sentence_encoder import SentenceEncoder
from clusterformer.errors import reading
from clusterformer.whole_files import replacing

FILE = "vectors.npz"
"""File of the vectorizer in the folder of a model."""

_COMPONENTS = 100
_KIND = "vectors of `clusterformer cluster --text`"


class TfidfVectors:
    """TF-IDF reduced to singular vectors, of unit length; no model is needed.

    Args:
        stop_words: "english", or None to keep all words.
    """

    def __init__(self, *, stop_words: str | None = "english") -> None:
        self._stop_words = stop_words
        self._vocabulary: dict[str, int] | None = None
        self._idf: NDArray | None = None  # (V,)
        self._components: NDArray | None = None  # (V, F)

    def fit_transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Learn words and components of texts; returns their vectors, (P, F).

        Raises:
            ValueError: if the texts have too few words in common.
        """
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        few = len(texts) < 100
        vectorizer = TfidfVectorizer(
            min_df=1 if few else 3,
            max_df=1.0 if few else 0.5,
            sublinear_tf=True,
            stop_words=self._stop_words,
        )
        try:
            weights = vectorizer.fit_transform(texts)
        except ValueError:
            raise ValueError(self._missing_words(texts)) from None
        number = min(_COMPONENTS, min(weights.shape) - 1)
        if number < 1:
            raise ValueError(
                f"{len(texts)} texts with {weights.shape[1]} words, allowed are two or more of "
                "both; an --encoder needs no words"
            )
        reduction = TruncatedSVD(number, random_state=0).fit(weights)
        self._vocabulary = {word: int(n) for word, n in vectorizer.vocabulary_.items()}
        self._idf, self._components = vectorizer.idf_, reduction.components_.T
        return self.transform(texts)

    def _missing_words(self, texts: Sequence[str]) -> str:
        """Say why no words are left to compare texts by."""
        from sklearn.feature_extraction.text import CountVectorizer

        def holds_words(stop_words: str | None) -> bool:
            words_of = CountVectorizer(stop_words=stop_words).build_analyzer()
            return any(words_of(text) for text in texts)

        if len(texts) > 1 and len(set(texts)) == 1:
            return f"all {len(texts)} texts are the same"
        if not holds_words(None):
            return "no text holds a word of two or more letters; an --encoder needs no words"
        if not holds_words(self._stop_words):
            return "the texts hold nothing but stop words; try --stop_words none"
        return (
            f"of {len(texts)} texts no word is in three or more and in at most half; an --encoder "
            "needs no common words"
        )

    def transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute the vectors of texts, (P, F); a text without a known word is 0.

        Raises:
            ValueError: before `fit_transform`.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize

        if self._vocabulary is None:
            raise ValueError("no words are known yet; call fit_transform first")
        vectorizer = TfidfVectorizer(
            vocabulary=self._vocabulary, sublinear_tf=True, stop_words=self._stop_words
        )
        vectorizer.idf_ = self._idf
        return normalize(vectorizer.transform(texts) @ self._components).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write `FILE`, without pickle."""
        described = {"vocabulary": self._vocabulary, "stop_words": self._stop_words}
        _write(folder, described, idf=self._idf, components=self._components)


class EncoderVectors:
    """Vectors of a sentence encoder.

    Args:
        encoder: The encoder.
    """

    def __init__(self, encoder: SentenceEncoder) -> None:
        self._encoder = encoder

    def fit_transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute the vectors of texts, (P, F); nothing is learnt. The cache keeps them."""
        return self._encoder.encode_once(texts)

    def transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Compute the vectors of texts, (P, F)."""
        return self._encoder.encode(texts)

    def save(self, folder: Path) -> None:
        """Write the encoder's name, not its weights."""
        _write(folder, {"encoder": self._encoder.name, "max_length": self._encoder.max_length})


def load_vectors_of(folder: Path, device: str) -> TfidfVectors | EncoderVectors:
    """Read what `save` wrote.

    Raises:
        InputError: if it is missing or damaged, or its encoder is no longer there.
    """
    path = folder / FILE
    with reading(path, _KIND), np.load(path, allow_pickle=False) as file:
        described = json.loads(str(file["json"]))
        if "encoder" in described:
            encoder = described["encoder"], described["max_length"]
        else:
            vectors = TfidfVectors(stop_words=described["stop_words"])
            vectors._vocabulary = described["vocabulary"]
            vectors._idf, vectors._components = file["idf"], file["components"]
            return vectors
    return EncoderVectors(SentenceEncoder(encoder[0], max_length=encoder[1], device=device))


def _write(folder: Path, described: dict[str, Any], **arrays: Any) -> None:
    with replacing(folder / FILE) as partial, partial.open("wb") as file:
        np.savez(file, json=np.array(json.dumps(described)), **arrays)
