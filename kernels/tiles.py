"""Tile sizes of the Triton kernels: a pure function of shapes and device, compiled once for each.

The numbers are the largest that spill no register on the devices of the compile report; a table
measured on a device may take their place here.
"""

from typing import NamedTuple

import torch

MIN_DOT = 16
"""Minimum number of rows and columns of a matrix product in Triton."""

MIN_SEGMENT, NUM_PROGRAMS = 1024, 512
"""Minimum number of tokens in a segment, and number of programs that fill a GPU."""


_POINTS = {16: (64, 4), 32: (32, 8), 64: (16, 4), 128: (32, 4), 256: (32, 8)}
"""Points that a program of the gradient of points owns, and its warps, for each number of columns.

64 points and 8 warps gave wrong gradients on an H100 where rows are not aligned (Triton 3.6).
"""


class Device(NamedTuple):
    """Properties of a device that tiles depend on.

    Attributes:
        lanes: Threads of a warp. Where there are 64, each row that may be masked holds two scalar
            registers, of which there are few: tiles that stream by are short.
        from_shared: True if matrix products read their operands from shared memory (Hopper and
            later), which leaves registers free.
    """

    lanes: int
    from_shared: bool

    @classmethod
    def of(cls, device: torch.device) -> "Device":
        """Describe the device of a tensor; in the interpreter, any."""
        if device.type != "cuda":
            return cls(lanes=32, from_shared=True)
        found = torch.cuda.get_device_properties(device)
        return cls(found.warp_size, torch.version.hip is None and found.major >= 9)

    @property
    def exact(self) -> str:
        """Precision of lossless float32 matrix products: three products in tf32 where it exists."""
        return "tf32x3" if self.lanes == 32 else "ieee"


class Tile(NamedTuple):
    """Attributes: rows that a program owns; rows that stream by; warps; pipeline stages."""

    own: int
    streamed: int
    warps: int
    stages: int


class MeansTile(NamedTuple):
    """Attributes: rows and columns that a program owns; rows that stream by; warps."""

    own: int
    columns: int
    streamed: int
    warps: int


def padded(width: int) -> int:
    """Return the least power of two that holds `width` columns and has a matrix product."""
    return max(MIN_DOT, 1 << (width - 1).bit_length())


def tile(slots: int, width: int, extra: int, itemsize: int, device: Device) -> Tile:
    """Choose the tile of the forward kernel, which owns queries.

    Args:
        slots: Tokens per block.
        width, extra: Columns of a row, and additional ones.
        itemsize: Bytes of a number.
        device: Device that runs the kernel.
    """
    size = _bytes(width, extra, itemsize)
    if size <= 192:
        largest = Tile(128, 64, 8, 2) if slots > 64 else Tile(64, 64, 4, 2)
    elif size <= 320 and itemsize == 2:
        largest = Tile(128 if device.from_shared and _aligned(width, itemsize) else 64, 64, 8, 2)
    else:
        largest = Tile(32, 32, 8, 2)
    return _fit(largest, slots, itemsize, device)


def backward_tile(
    slots: int, width: int, extra: int, itemsize: int, device: Device, *, keys: bool
) -> Tile:
    """Choose the tile of a backward kernel, which owns queries (dq) or, with `keys`, keys (dkv)."""
    size = _bytes(width, extra, itemsize)
    if size <= 192:
        own = 64 if device.lanes == 32 else 32
        largest = Tile(own, 32 if device.from_shared else 16, 4, 2)
    elif size <= 320 and itemsize == 2 and device.from_shared and _aligned(width, itemsize):
        largest = Tile(64, 32, 8, 2)
    elif size <= 320:
        largest = Tile(32, 16, 8, 1)
    else:
        largest = Tile(16, 16, 16 if keys else 8, 1)
    return _fit(largest, slots, itemsize, device)


def means_tile(width: int, *, points: bool) -> MeansTile:
    """Choose the tile of the kernels of centroid means, on any device.

    Args:
        width: Columns of points and anchors.
        points: True if the kernel owns points and anchors stream by, False for the reverse.
    """
    columns = min(256 if width % 16 == 0 else 128, padded(width))  # Triton tells no finer alignment
    own, warps = _POINTS[columns] if points else (64, 4 if columns == MIN_DOT else 8)
    return MeansTile(own, columns, 16, warps)


def segment_length(length: int, programs: int) -> int:
    """Return the tokens that one program sums over, if `programs` would sum over all `length`."""
    segments = max(1, min(length // MIN_SEGMENT, -(-NUM_PROGRAMS // programs)))
    return -(-length // (64 * segments)) * 64


def _bytes(width: int, extra: int, itemsize: int) -> int:
    """Bytes of a row in a tile."""
    return itemsize * (padded(width) + (padded(extra) if extra else 0))


def _aligned(width: int, itemsize: int) -> bool:
    """Tell whether rows can be read 16 bytes at a time, not number by number."""
    return width * itemsize % 16 == 0


def _fit(largest: Tile, slots: int, itemsize: int, device: Device) -> Tile:
    """Limit a tile to the rows of a block, and warps to those with rows."""
    own = min(largest.own, padded(slots))
    streamed = min(largest.streamed, own, 16 if device.lanes == 64 else own)
    narrow = own <= 16 and itemsize == 2
    warps = 1 if narrow and largest.warps <= 4 else min(largest.warps, 512 // device.lanes)
    return Tile(own, streamed, warps, 1 if device.lanes == 64 else largest.stages)
