"""Running text as one long stream of tokens, and the windows in which a language model sees it.

Letters: B batch, N tokens of a window (the context), T tokens of the stream.
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

from clusterformer.data.batches import Slices, equal_slices
from clusterformer.data.cache import cache_folder, cached_folder
from clusterformer.data.documents import Document
from clusterformer.data.stream_tokenizers import StreamTokenizer
from clusterformer.data.tokenizers import BOS
from clusterformer.errors import InputError
from clusterformer.task import IGNORE, Batch


def token_stream(
    documents: Sequence[Document], tokenizer: StreamTokenizer, encoding: str = "utf-8"
) -> NDArray[np.integer]:
    """Return the tokens of all documents, BOS before each, (T,), mapped from disk.

    They are computed once: the user's cache keeps them under a hash of the files' paths, sizes and
    times.

    Raises:
        InputError: as `Document.read` does, and for documents without any text.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    marks = [
        [*map(str, document._replace(path=document.path.absolute())), *_stamp(document.path)]
        for document in documents
    ]
    asked = json.dumps([marks, tokenizer.state(), encoding])
    folder = cache_folder() / "streams" / hashlib.sha256(asked.encode()).hexdigest()[:32]

    def fill(draft: Path) -> None:
        with (draft / "tokens").open("wb") as file:
            for document in documents:
                count = 0
                file.write(np.array([BOS], dtype).tobytes())
                for piece in document.pieces(encoding):
                    tokens = tokenizer.encode_document(piece)
                    file.write(tokens.astype(dtype).tobytes())
                    count += len(tokens)
                if not count:
                    empty = not any(Document(document.path).pieces(encoding))
                    part = "it" if empty else document.part
                    raise InputError(f"{document.path}: no text in {part}")

    return np.memmap(cached_folder(folder, fill) / "tokens", dtype, "r")


def _stamp(path: Path) -> list[int]:
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.exists() else []


class ShiftedWindowPlan:
    """All of the text once an epoch, in windows whose borders move from epoch to epoch.

    The stream is a circle; the windows of an epoch lie end to end on it from a random offset. The
    rest, less than a window, is another part of the text in each epoch.

    Args:
        total: Number of tokens of the stream, T.
        context: Number of tokens of a window, N; at most T are used.
        batch_size: Number of windows a batch.
        seed: Seed of offsets and order.
    """

    def __init__(self, total: int, context: int, *, batch_size: int, seed: int = 0) -> None:
        self._total, self._context = total, min(context, total)
        self._batch_size, self._seed = batch_size, seed
        self._windows = total // self._context

    def __len__(self) -> int:
        return -(-self._windows // self._batch_size)

    def batches(self, epoch: int) -> Slices:
        """Return the global batches of `epoch`: the offset of each window."""
        return equal_slices(self._starts(epoch), self._batch_size)

    def _starts(self, epoch: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([self._seed, epoch])
        first = rng.integers(self._total)
        return (first + rng.permutation(self._windows) * self._context) % self._total


class Windows(Dataset[Batch]):
    """Windows by their offset; a list of offsets gives a batch.

    Args:
        stream: Tokens (T,), taken as a circle.
        context: Number of tokens of a window, N.
    """

    def __init__(self, stream: NDArray[np.integer], context: int) -> None:
        self._stream, self._context = stream, min(context, len(stream))

    def __getitem__(self, offsets: list[int]) -> Batch:
        if not offsets:
            return dummy_batch()
        positions = np.asarray(offsets)[:, None] + np.arange(self._context + 1)
        tokens = torch.from_numpy(self._stream[positions % len(self._stream)].astype(np.int64))
        return unpadded_batch(tokens[:, :-1], tokens[:, 1:])


class StridedWindows(Dataset[Batch]):
    """Windows from left to right that predict every token once; a list of indices gives a batch.

    Window 0 predicts the first N tokens, each further window the next `stride` tokens (the last
    one the rest), with the tokens before them as context. With a stride of N no token is read
    twice; with a shorter one every token has a context of at least N - stride tokens.

    Args:
        stream: Tokens (T,); the first is only read.
        context: Number of tokens of a window, N.
        stride: Number of new tokens a window, 1..N.
    """

    def __init__(self, stream: NDArray[np.integer], context: int, stride: int) -> None:
        self._stream, self._stride = stream, stride
        self._predicted = len(stream) - 1
        self._context = min(context, self._predicted)

    def __len__(self) -> int:
        return 1 - (self._context - self._predicted) // self._stride

    def __getitem__(self, indices: list[int]) -> Batch:
        if not indices:
            return dummy_batch()
        ends = np.asarray(indices) * self._stride + self._context
        before = np.where(ends > self._context, ends - self._stride, 0)  # predicted already
        starts = np.minimum(ends, self._predicted) - self._context
        positions = starts[:, None] + np.arange(self._context + 1)
        tokens = torch.from_numpy(self._stream[positions].astype(np.int64))
        old = torch.from_numpy(positions[:, :-1] < before[:, None])
        return unpadded_batch(tokens[:, :-1], tokens[:, 1:].masked_fill(old, IGNORE))


def unpadded_batch(tokens: Tensor, target: Tensor) -> Batch:
    """Make a batch of rows (B, N) without padding."""
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), target)


def dummy_batch() -> Batch:
    """Make the batch of a process that has no share of a global batch: one ignored row."""
    tokens = torch.zeros(1, 1, dtype=torch.long)
    return Batch(tokens, tokens.bool(), torch.full_like(tokens, IGNORE))
