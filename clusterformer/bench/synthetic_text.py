"""Synthetic parallel text of any length by Zipf's law, as hard on memory as real text."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CHUNK = 10_000  # pairs made at once
_RANKS = 2_000_000  # words of a language; a short text has fewer of them
_LETTERS = {"en": ("bdfgklmnprst", "ei"), "de": ("bdfgklmnrstz", "uä")}
_PUNCTUATED = ("{},", "{},", "{},", "({})", '"{}"', "{}'s", "{}-{}", "3.{}", "{}:")


def write_parallel_text(folder: Path, pairs: int, seed: int) -> tuple[Path, Path]:
    """Write English and German sentences, one on each line, of 25 words on average.

    Args:
        folder: Directory of both files.
        pairs: Number of sentence pairs.
        seed: Seed of the text: equal seeds give equal text.

    Returns:
        The files.
    """
    paths = folder / "train.en", folder / "train.de"
    with (
        paths[0].open("w", encoding="utf-8") as english,
        paths[1].open("w", encoding="utf-8") as german,
    ):
        for begun in range(0, pairs, _CHUNK):
            rng = np.random.default_rng([seed, begun])
            words = rng.lognormal(3.08, 0.55, min(_CHUNK, pairs - begun)).clip(2, 150)
            english.writelines(_sentences("en", words, rng))
            german.writelines(_sentences("de", words * rng.normal(0.95, 0.1, len(words)), rng))
    return paths


def _sentences(language: str, words: NDArray[np.float64], rng: np.random.Generator) -> list[str]:
    """Make lines of the given numbers of words; word r is 1 / r as frequent as the first."""
    lengths = words.clip(1).astype(np.int64)
    ranks = np.exp(rng.random(lengths.sum()) * np.log(_RANKS)).astype(np.int64)
    text = [_word(language, rank) for rank in ranks.tolist()]
    for index, kind in enumerate(rng.integers(12 * len(_PUNCTUATED), size=len(text)).tolist()):
        if kind < len(_PUNCTUATED):
            text[index] = _PUNCTUATED[kind].format(text[index], text[index - 1])
    ends = lengths.cumsum()
    return [
        " ".join(text[first:end]).capitalize() + ".\n"
        for first, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    ]


@lru_cache(100_000)
def _word(language: str, rank: int) -> str:
    """Write the rank in syllables, so that frequent words are short."""
    consonants, vowels = _LETTERS[language]
    word = ""
    while rank:
        rank, syllable = divmod(rank, len(consonants) * len(vowels))
        word += consonants[syllable // len(vowels)] + vowels[syllable % len(vowels)]
    return word
