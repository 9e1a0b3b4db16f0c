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
        width: Columns of a padded row, padded extra ones included; see `row`.
        itemsize: Bytes a number.
    """
    most = 128 if width * itemsize <= 128 else 64 if width * itemsize <= 300 else 32
    rows = min(most, padded(slots))
    return Tile(rows, min(64, rows), warps=8 if width > 64 or rows > 64 else _warps(rows), stages=2)


def backward_tile(slots: int, width: int, itemsize: int) -> Tile:
    """Tile of the backward kernels, which hold more at a time; likewise."""
    most = 16 if width >= 128 else 32 if width * itemsize > 192 else 64
    rows = min(most, padded(slots))
    return Tile(rows, rows, warps=8 if rows >= 32 or width >= 128 else _warps(rows), stages=1)


def row(width: int, wide: int) -> int:
    """Columns that a tile holds of a row of `width` columns and `wide` extra ones."""
    return padded(width) + (padded(wide) if wide else 0)


def _warps(rows: int) -> int:
    """Few for small tiles, whose threads would otherwise have nothing to do."""
    return 1 if rows <= 16 else 4
