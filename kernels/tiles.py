"""Tile sizes of the Triton kernels: a pure function of shapes and device, compiled once for each.

The numbers are the largest that spill no register on the devices of the compile report; a table
measured on a device may take their place here.
"""

from typing import NamedTuple

import torch

LEAST = 16
"""Rows and columns below which Triton has no matrix product."""

SEGMENT, PROGRAMS = 1024, 512
"""Fewest tokens worth a segment, and programs that fill a GPU."""


class Device(NamedTuple):
    """What tiles depend on.

    Attributes:
        lanes: Threads of a warp. Where there are 64, each row that may be masked holds two scalar
            registers, of which there are few: tiles that stream by are short.
        from_shared: Whether matrix products read their operands from shared memory (Hopper on),
            which leaves registers free.
    """

    lanes: int
    from_shared: bool

    @classmethod
    def of(cls, device: torch.device) -> "Device":
        """That of a tensor; the interpreter's is as good as any."""
        if device.type != "cuda":
            return cls(lanes=32, from_shared=True)
        found = torch.cuda.get_device_properties(device)
        return cls(found.warp_size, torch.version.hip is None and found.major >= 9)

    @property
    def exact(self) -> str:
        """Matrix products of float32 without loss: three in tf32 where there is that."""
        return "tf32x3" if self.lanes == 32 else "ieee"


class Tile(NamedTuple):
    """Attributes: rows that a program owns, rows that stream by; its warps, pipeline stages."""

    own: int
    streamed: int
    warps: int
    stages: int


class MeansTile(NamedTuple):
    """Attributes: rows and columns that a program owns, rows that stream by, its warps."""

    own: int
    columns: int
    streamed: int
    warps: int


def padded(width: int) -> int:
    """Least power of two that holds `width` columns and has a matrix product."""
    return max(LEAST, 1 << (width - 1).bit_length())


def tile(slots: int, width: int, wide: int, itemsize: int, device: Device) -> Tile:
    """Tile of the forward kernel, which owns queries.

    Args:
        slots: Tokens a block.
        width, wide: Columns of a row, and extra ones.
        itemsize: Bytes a number.
        device: Where it runs.
    """
    size = _bytes(width, wide, itemsize)
    if size <= 192:
        most = Tile(128, 64, 8, 2) if slots > 64 else Tile(64, 64, 4, 2)
    elif size <= 320 and itemsize == 2:
        most = Tile(128 if device.from_shared and _aligned(width, itemsize) else 64, 64, 8, 2)
    else:
        most = Tile(32, 32, 8, 2)
    return _fit(most, slots, itemsize, device)


def backward_tile(
    slots: int, width: int, wide: int, itemsize: int, device: Device, *, keys: bool
) -> Tile:
    """Tile of a backward kernel, which owns queries (dq) or, with `keys`, keys (dkv); likewise."""
    size = _bytes(width, wide, itemsize)
    if size <= 192:
        own = 64 if device.lanes == 32 else 32
        most = Tile(own, 32 if device.from_shared else 16, 4, 2)
    elif size <= 320 and itemsize == 2 and device.from_shared and _aligned(width, itemsize):
        most = Tile(64, 32, 8, 2)
    elif size <= 320:
        most = Tile(32, 16, 8, 1)
    else:
        most = Tile(16, 16, 16 if keys else 8, 1)
    return _fit(most, slots, itemsize, device)


def means_tile(width: int, *, points: bool) -> MeansTile:
    """Tile of the kernels of centroid means, on any device.

    Args:
        width: Columns of points and anchors.
        points: Whether the kernel owns points, and anchors stream by; else the other way round.
    """
    columns = min(256 if width % 16 == 0 else 128, padded(width))  # Triton tells no finer alignment
    own = 32 if points and columns == 256 else 64
    return MeansTile(own, columns, 16, 4 if columns == LEAST else 8)


def segment_length(length: int, programs: int) -> int:
    """Tokens that one program sums over, where each of `programs` would sum over all `length`."""
    pieces = max(1, min(length // SEGMENT, -(-PROGRAMS // programs)))
    return -(-length // (64 * pieces)) * 64


def _bytes(width: int, wide: int, itemsize: int) -> int:
    """Bytes of a row in a tile."""
    return itemsize * (padded(width) + (padded(wide) if wide else 0))


def _aligned(width: int, itemsize: int) -> bool:
    """Whether rows can be read 16 bytes at a time; else each number has an address of its own."""
    return width * itemsize % 16 == 0


def _fit(most: Tile, slots: int, itemsize: int, device: Device) -> Tile:
    """No rows beyond the block's, and no warps without rows."""
    own = min(most.own, padded(slots))
    streamed = min(most.streamed, own, 16 if device.lanes == 64 else own)
    few = own <= 16 and itemsize == 2
    warps = 1 if few and most.warps <= 4 else min(most.warps, 512 // device.lanes)
    return Tile(own, streamed, warps, 1 if device.lanes == 64 else most.stages)
