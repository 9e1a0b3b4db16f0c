"""Word vectors in GloVe's text format, read once and then mapped into memory from the cache.

Letters: V vocabulary, E width of the vectors.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import zlib
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from clusterformer.data.batches import PAD
from clusterformer.data.cache import cache_folder, cached_folder
from clusterformer.data.tokenizers import SPECIAL_TOKENS, WordTokenizer
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

_log = logging.getLogger(__name__)

_CACHED = "vectors.kv"


def word_vectors(path: str | Path, tokenizer: WordTokenizer, *, seed: int = 0) -> Tensor:
    """Look up a vector for each word of a vocabulary.

    Words without a vector, and UNK, get normal random numbers of the same scale.

    Args:
        path: File of a word and E numbers a line, also with word2vec's header line or `.gz`.
        tokenizer: Tokenizer with the vocabulary.
        seed: Seed of the random vectors.

    Returns:
        Vectors (V, E), float32; the row of PAD is zero.

    Raises:
        InputError: if the file is missing or in another format, with the line.
    """
    vectors = load_vectors(path)
    known = {
        i: vectors.key_to_index[word]
        for i, word in enumerate(tokenizer.words, len(SPECIAL_TOKENS))
        if word in vectors.key_to_index
    }
    words = max(1, len(tokenizer.words))
    rank_zero_only(_log.info)(
        f"{path}: vectors for {len(known)} of {words} words ({len(known) / words:.1%})"
    )
    found = np.asarray(vectors.vectors[list(known.values())])
    scale = float(found.std()) if known else 1.0
    rng = np.random.default_rng(seed)
    shape = (tokenizer.vocab_size, vectors.vector_size)
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

    Raises:
        InputError: if the file is missing or in another format, with the line.
    """
    try:
        from gensim.models import KeyedVectors
    except ImportError:
        raise InputError(
            "word vectors need the gensim library: pip install 'clusterformer[text]'"
        ) from None
    path = Path(path).expanduser()
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: no vectors there: {error.strerror}") from None
    identity = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder = cache_folder() / "vectors" / name

    def fill(draft: Path) -> None:
        _read_vectors(path).save(str(draft / _CACHED), separately=["vectors"])

    try:
        cached_folder(folder, fill)
    except OSError as error:
        _log.warning(f"{folder}: vectors not cached, to be read again next time: {error}")
        return _read_vectors(path)
    return KeyedVectors.load(str(folder / _CACHED), mmap="r")


def _read_vectors(path: Path) -> KeyedVectors:
    # gensim's own reader stops at the words with spaces in GloVe 840B, and takes five times as long
    from gensim.models import KeyedVectors

    words: list[str] = []
    numbers = array("f")
    width = 0
    line_number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for line_number, line in enumerate(file, 1):
                if line_number == 1:
                    first = line.split()
                    if len(first) == 2 and all(field.isdecimal() for field in first):
                        width = int(first[1])
                        continue
                    width = len(first) - 1
                word, *fields = line.rstrip().rsplit(" ", width)
                if len(fields) != width or width < 1:
                    raise ValueError(f"{len(fields)} numbers, allowed are {max(1, width)}")
                numbers.extend(map(float, fields))
                words.append(word)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path}:{line_number}: no vectors in GloVe's format: {error}") from None
    if not words:
        raise InputError(f"{path}: no vectors in it")
    vectors = KeyedVectors(width)
    vectors.add_vectors(words, np.frombuffer(numbers, dtype=np.float32).reshape(-1, width))
    return vectors
