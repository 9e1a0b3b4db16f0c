"""Grids over rows (sequences, heads or hash rounds), more than one dimension of a grid holds."""

import triton
import triton.language as tl

LIMIT = 65_535
"""Maximum number of programs that CUDA takes in the second and in the third dimension."""


def spread_rows(rows: int) -> tuple[int, int]:
    """Return the second and the third dimension of a grid over rows; their product is `rows`.

    The third is as small as can be: 1 for up to LIMIT rows.

    Raises:
        ValueError: if no product of two numbers up to LIMIT is `rows`.
    """
    for z in range(max(1, -(-rows // LIMIT)), LIMIT + 1):
        if rows % z == 0:
            return rows // z, z
    raise ValueError(
        f"{rows} rows of sequences, heads and hash rounds are no product of two numbers up to "
        f"{LIMIT}, as grids of Triton take; change the batch size, or set "
        "CLUSTERFORMER_KERNELS=reference"
    )


@triton.jit
def row_of_program():
    """Row of a program, int64, on a grid whose last dimensions are `spread_rows`; no division."""
    return tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
