"""Running text as one long row of tokens, and the windows in which a language model sees it.

T tokens of the row   N tokens of a window (the context)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from clusterformer.data.cache import cache_folder, kept
from clusterformer.data.documents import Document
from clusterformer.data.stream_tokenizers import StreamTokenizer
from clusterformer.data.tokenizers import BOS
from clusterformer.errors import InputError
from clusterformer.task import IGNORE, Batch


def token_stream(
    documents: Sequence[Document], tokenizer: StreamTokenizer, encoding: str = "utf-8"
) -> NDArray[np.integer]:
    """The tokens of all documents, `BOS` before each, (T,), mapped from disk.

    Made once and kept in the user's cache, under a hash of the files' names, sizes and times.

    Raises:
        InputError: as `Document.read` does, and for documents without any text.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    marks = [[*map(str, document), *_stamp(document.path)] for document in documents]
    asked = json.dumps([marks, tokenizer.state(), encoding])
    folder = cache_folder() / "streams" / hashlib.sha256(asked.encode()).hexdigest()[:32]

    def fill(draft: Path) -> None:
        with (draft / "tokens").open("wb") as file:
            for document in documents:
                tokens = tokenizer.encode_document(document.read(encoding))
                if not len(tokens):
                    raise InputError(f"{document.path}: no text in {document.part}")
                file.write(np.concatenate([[BOS], tokens]).astype(dtype).tobytes())

    return np.memmap(kept(folder, fill) / "tokens", dtype, "r")


def _stamp(path: Path) -> list[int]:
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.exists() else []


class ShiftedPlan:
    """All of the text once an epoch, in windows whose borders move from epoch to epoch.

    The row is a circle; the windows of an epoch lie end to end on it from a random place, and
    what is left over, less than a window, is another piece of the text in each epoch.

    Args:
        total: T.
        context: N; of a shorter row all of it.
        batch_size: Windows a batch.
        seed: Of places and order.
    """

    def __init__(self, total: int, context: int, *, batch_size: int, seed: int = 0) -> None:
        self._total, self._context = total, min(context, total)
        self._batch_size, self._seed = batch_size, seed
        self._windows = total // self._context

    def __len__(self) -> int:
        return -(-self._windows // self._batch_size)

    def batches(self, epoch: int) -> list[list[int]]:
        """Global batches of `epoch`: the place in the row where each window starts."""
        rng = np.random.default_rng([self._seed, epoch])
        first = rng.integers(self._total)
        starts = (first + rng.permutation(self._windows) * self._context) % self._total
        return [
            starts[at : at + self._batch_size].tolist()
            for at in range(0, self._windows, self._batch_size)
        ]


class Windows(Dataset[Batch]):
    """Windows by the place where they start; a list of places gives a batch.

    Args:
        stream: (T,) tokens, as a circle.
        context: N.
    """

    def __init__(self, stream: NDArray[np.integer], context: int) -> None:
        self._stream, self._context = stream, min(context, len(stream))

    def __getitem__(self, starts: list[int]) -> Batch:
        if not starts:
            return nothing()
        places = np.asarray(starts)[:, None] + np.arange(self._context + 1)
        tokens = torch.from_numpy(self._stream[places % len(self._stream)].astype(np.int64))
        return batch_of(tokens[:, :-1], tokens[:, 1:])


class Strides(Dataset[Batch]):
    """The whole text from left to right, every token predicted once; a list of numbers is a batch.

    Window 0 predicts the first N tokens, each further one the next `stride` (the last one what is
    left), reading the tokens before them as far as the context goes. With a stride of N nothing is
    read twice; a shorter one gives every token at least N - stride tokens to go by.

    Args:
        stream: (T,) tokens; the first is only read.
        context: N.
        stride: 1..N.
    """

    def __init__(self, stream: NDArray[np.integer], context: int, stride: int) -> None:
        self._stream, self._stride = stream, stride
        self._predicted = len(stream) - 1
        self._context = min(context, self._predicted)

    def __len__(self) -> int:
        return 1 - (self._context - self._predicted) // self._stride

    def __getitem__(self, numbers: list[int]) -> Batch:
        if not numbers:
            return nothing()
        ends = np.asarray(numbers) * self._stride + self._context
        before = np.where(ends > self._context, ends - self._stride, 0)  # predicted already
        starts = np.minimum(ends, self._predicted) - self._context
        places = starts[:, None] + np.arange(self._context + 1)
        tokens = torch.from_numpy(self._stream[places].astype(np.int64))
        old = torch.from_numpy(places[:, :-1] < before[:, None])
        return batch_of(tokens[:, :-1], tokens[:, 1:].masked_fill(old, IGNORE))


def batch_of(tokens: Tensor, target: Tensor) -> Batch:
    """Rows (B, N) without padding."""
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), target)


def nothing() -> Batch:
    """The row of a process that has no share of a batch."""
    tokens = torch.zeros(1, 1, dtype=torch.long)
    return Batch(tokens, tokens.bool(), torch.full_like(tokens, IGNORE))
