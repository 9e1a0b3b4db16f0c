"""Word vectors in GloVe's text format, read once and then mapped into memory from the cache.

Letters: V vocabulary, E width of the vectors.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from numpy.typing import NDArray
from torch import Tensor

from clusterformer.data.cache import cache_folder, cached_folder
from clusterformer.data.text_pieces import open_bytes
from clusterformer.data.tokenizers import SPECIAL_TOKENS, WordTokenizer
from clusterformer.errors import InputError, missing, reading
from clusterformer.models.embeddings import PAD

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

_log = logging.getLogger(__name__)

TRAINED = "trained"
"""Name, instead of a file, of the vectors that `clusterformer prepare vectors` makes."""

_VECTORS, _WORDS = "vectors.npy", "words.txt"
_FORMAT = "word vectors in GloVe's format"


def trained_vectors() -> Path:
    """Path of the file that `clusterformer prepare vectors` makes."""
    return cache_folder() / "trained-vectors" / "trained.300d.txt"


def find_vectors(path: str | Path) -> str | Path:
    """Return the file of vectors, for `TRAINED` that of `prepare vectors`.

    Raises:
        InputError: if `prepare vectors` has not made it.
    """
    if str(path) != TRAINED:
        return path
    if not (trained := trained_vectors()).exists():
        raise InputError(f"vectors {TRAINED}: no file {trained}; `prepare vectors` makes it")
    return trained


def word_vectors(path: str | Path, tokenizer: WordTokenizer, *, seed: int = 0) -> Tensor:
    """Look up a vector for each word of a vocabulary.

    Words without a vector, and UNK, get normal random numbers of the same scale.

    Args:
        path: File of a word and E numbers a line, also with word2vec's header line or `.gz`; or
            `TRAINED`.
        tokenizer: Tokenizer with the vocabulary.
        seed: Seed of the random vectors.

    Returns:
        Vectors (V, E), float32; the row of PAD is zero.

    Raises:
        InputError: if the file is missing or in another format, with the line.
    """
    path = find_vectors(path)
    loaded = load_vectors(path)
    rows, vectors = loaded.key_to_index, loaded.vectors
    known = {
        i: rows[word] for i, word in enumerate(tokenizer.words, len(SPECIAL_TOKENS)) if word in rows
    }
    words = max(1, len(tokenizer.words))
    rank_zero_only(_log.info)(
        f"{path}: vectors for {len(known)} of {words} words ({len(known) / words:.1%})"
    )
    found = np.asarray(vectors)[list(known.values())]
    scale = float(found.std()) if known else 1.0
    rng = np.random.default_rng(seed)
    shape = (tokenizer.vocab_size, vectors.shape[1])
    matrix = scale * rng.standard_normal(shape, dtype=np.float32)
    matrix[list(known)] = found
    matrix[PAD] = 0
    return torch.from_numpy(matrix)


def load_vectors(path: str | Path) -> KeyedVectors:
    """Read a file of vectors, or map them into memory from the cache.

    A file whose path, size or time has changed is read again. Of several processes one reads the
    file and the others wait.

    Args:
        path: File in GloVe's text format.

    Returns:
        gensim's KeyedVectors, so that its searches work too; `vectors` (V, E) float32 is mapped.

    Raises:
        InputError: if the file is missing or in another format, with the line.
    """
    path = Path(path).expanduser()
    with reading(path, _FORMAT):
        status = path.stat()
    identity = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    name = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]
    folder = cache_folder() / "vectors" / name

    def fill(draft: Path) -> None:
        words, vectors = _read_vectors(path)
        np.save(draft / _VECTORS, vectors)
        (draft / _WORDS).write_text("\n".join(words), encoding="utf-8", newline="\n")

    try:
        cached_folder(folder, fill)
        words = (folder / _WORDS).read_bytes().decode().split("\n")
        vectors = np.load(folder / _VECTORS, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        reason = error.strerror or error
        _log.warning(f"{folder}: vectors not cached, to be read again next time: {reason}")
        words, vectors = _read_vectors(path)
    return _keyed(words, vectors)


def _keyed(words: list[str], vectors: NDArray[np.float32]) -> KeyedVectors:
    """Make gensim's object around an array; its own cache file would be a pickle."""
    try:
        from gensim.models import KeyedVectors
    except ImportError:
        raise missing("word vectors need gensim", "text") from None
    keyed = KeyedVectors(vectors.shape[1])
    keyed.index_to_key, keyed.vectors = words, vectors
    keyed.key_to_index = {word: row for row, word in enumerate(words)}
    return keyed


def _read_vectors(path: Path) -> tuple[list[str], NDArray[np.float32]]:
    """Read the text; of a word that occurs twice, the last vector counts.

    gensim's reader stops at the words with spaces in GloVe 840B, and takes five times as long.
    """
    rows: dict[str, int] = {}
    numbers = array("f")
    header: tuple[int, int] | None = None
    width = num_lines = 0
    with reading(path, _FORMAT) as at, open_bytes(path) as file:
        for at.line, raw in enumerate(file, 1):
            line = raw.decode()
            if at.line == 1:
                line = line.removeprefix("\ufeff")
                first = line.split()
                if len(first) == 2 and all(field.isdecimal() for field in first):
                    header = int(first[0]), int(first[1])
                    width = header[1]
                    continue
                width = len(first) - 1
            word, *fields = line.rstrip().rsplit(" ", width)
            if len(fields) != width or width < 1:
                raise ValueError(f"{len(fields)} numbers, allowed are {max(1, width)}")
            numbers.extend(map(float, fields))
            rows[word] = num_lines
            num_lines += 1
        if not rows:
            raise ValueError("no vectors in it")
        if header and header[0] != num_lines:
            raise ValueError(
                f"{num_lines:,} vectors, the first line says {header[0]:,}; the file is cut"
            )
        vectors = np.frombuffer(numbers, dtype=np.float32).reshape(-1, width)
        bad = np.flatnonzero(~np.isfinite(vectors).all(1))
        if len(bad):
            at.line = 1 + int(bad[0]) + bool(header)
            raise ValueError("nan or infinite, allowed are finite numbers")
    if len(rows) < num_lines:
        vectors = vectors[list(rows.values())]
    return list(rows), vectors
