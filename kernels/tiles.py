"""Tile sizes of the Triton kernels: a pure function of shapes, so that each size compiles once.

The numbers fit the shared memory and registers of the devices in the compile report; a table
measured on a device may take their place here.
"""

from typing import NamedTuple

LEAST = 16
"""Rows and columns below which Triton has no matrix product."""


class Tile(NamedTuple):
    """Attributes: rows of queries, rows of keys; warps of a program, stages of its pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def padded(width: int) -> int:
    """Least power of two that holds `width` columns and has a matrix product."""
    return max(LEAST, 1 << (width - 1).bit_length())


def tile(slots: int, width: int, itemsize: int) -> Tile:
    """Tile of the forward kernel.

    Args:
        slots: Tokens a block.
        width: Columns of a row, extra ones included.
        itemsize: Bytes a number.
    """
    most = 128 if width * itemsize <= 128 else 64 if width * itemsize <= 320 else 32
    rows = min(most, padded(slots))
    keys = min(64, rows)
    return Tile(rows, keys, warps=8 if rows * width >= 128 * 128 else 4, stages=2)


def backward_tile(slots: int, width: int, itemsize: int) -> Tile:
    """The same for the backward kernels, which hold more."""
    most = 64 if width * itemsize <= 192 else 32
    rows = min(most, padded(slots))
    return Tile(rows, min(32 if width * itemsize > 320 else 64, rows), warps=4, stages=1)
