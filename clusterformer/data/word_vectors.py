"""Word vectors in GloVe's text format, read once and memory-mapped ever after.

Letters: V vocabulary, P width of the vectors.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import shutil
import tempfile
import zlib
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from clusterformer.data.batches import PAD
from clusterformer.data.cache import cache_folder
from clusterformer.data.tokenizers import SPECIAL_TOKENS, WordTokenizer
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

_log = logging.getLogger(__name__)


def word_vectors(path: str | Path, tokenizer: WordTokenizer, *, seed: int = 0) -> Tensor:
    """Look up a vector for each word of a vocabulary.

    Words without one, and the unknown word, get normal random numbers of the others' scale.

    Args:
        path: A word and P numbers a line, with or without word2vec's header line; `.gz` allowed.
        tokenizer: Has the words.
        seed: Of the random vectors.

    Returns:
        (V, P) float32; the row of padding is zero.

    Raises:
        InputError: if the file is missing or in another format, with the line.
    """
    vectors = load_vectors(path)
    known = {
        number: vectors.key_to_index[word]
        for number, word in enumerate(tokenizer.words, len(SPECIAL_TOKENS))
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
    """Read a file of vectors, or map into memory what an earlier reading of it left in the cache.

    A changed file (path, size or time) is read anew. Processes may do this at once: each writes a
    folder of its own, and the first to put it in its place wins.
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
    cached = cache_folder() / "vectors" / name / "vectors.kv"
    if not cached.exists():
        vectors = _read_vectors(path)
        try:
            _save(vectors, cached)
        except OSError as error:
            _log.warning(f"{cached}: vectors not cached, to be read again next time: {error}")
            return vectors
    return KeyedVectors.load(str(cached), mmap="r")


def _save(vectors: KeyedVectors, cached: Path) -> None:
    shelf = cached.parent.parent
    shelf.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=shelf))
    vectors.save(str(draft / cached.name), separately=["vectors"])
    try:
        draft.rename(cached.parent)
    except OSError:
        shutil.rmtree(draft)
        if not cached.exists():
            raise


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
