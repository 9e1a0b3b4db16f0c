"""Token ids of many texts on disk, mapped into memory: a large corpus needs little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class TokenStore:
    """Texts as token ids, read from disk on access.

    Args:
        path: Path that a `TokenWriter` wrote to.
    """

    def __init__(self, path: Path) -> None:
        starts, tokens = _files(path)
        self._starts = np.load(starts, mmap_mode="r")
        total = int(self._starts[-1])
        dtype: type[np.integer] = np.uint16 if tokens.stat().st_size == 2 * total else np.int32
        self._tokens = (
            np.memmap(tokens, dtype, "r", shape=(total,)) if total else np.empty(0, dtype)
        )

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        return self._tokens[self._starts[index] : self._starts[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each text."""
        return np.diff(self._starts)


class TokenWriter:
    """Writer of a store, text after text; `close()` completes it.

    Args:
        path: Path of the store, without ending.
        vocab_size: Number of token ids; up to 65,536, a token takes two bytes, else four.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._table, tokens = _files(path)
        self._dtype = np.uint16 if vocab_size <= 2**16 else np.int32
        self._starts = array("q", [0])
        self._file = tokens.open("wb")

    def extend(self, texts: Iterable[Sequence[int]]) -> None:
        """Append the token ids of some texts."""
        for text in texts:
            self._file.write(np.asarray(text, dtype=self._dtype).tobytes())
            self._starts.append(self._starts[-1] + len(text))

    def close(self) -> None:
        """Write the offsets of the texts."""
        self._file.close()
        np.save(self._table, np.frombuffer(self._starts, dtype=np.int64))


def _files(path: Path) -> tuple[Path, Path]:
    return path.with_suffix(".starts.npy"), path.with_suffix(".tokens")
