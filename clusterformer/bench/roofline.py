"""The roofline model: bytes and operations of the kernels, and lower bounds of their time.

The formulas stand in the docstrings of the kernels too; a test keeps both equal. Bytes are those
that memory has to move: rows that several blocks see come from memory once, then from a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Ceilings(NamedTuple):
    """The highest rates of a device.

    Attributes:
        memory: Bytes per second.
        matrix: 16-bit operations per second in matrix products, without sparsity.
        plain: float32 operations per second.
    """

    memory: float
    matrix: float
    plain: float


DATA_SHEETS = {
    "a100": Ceilings(2.039e12, 312e12, 19.5e12),
    "h100": Ceilings(3.35e12, 989e12, 67e12),
    "h200": Ceilings(4.8e12, 989e12, 67e12),
}
"""NVIDIA's data sheets of SXM boards."""


class Work(NamedTuple):
    """Attributes: bytes moved; operations in 16-bit matrix products; operations in float32."""

    bytes: float
    matrix: float = 0.0
    plain: float = 0.0


class Size(NamedTuple):
    """Sizes of one problem, by the letters of the kernels.

    Attributes:
        B, N: Sequences, tokens of each.
        H, D, A: Heads, their width, additional columns.
        F, C: Width of the clustering space, clusters.
        Y: Parts of that width; the kernels of the means compute scores again for each.
        S, J: Slots per block, blocks that a block sees.
        i: Bytes a number.
    """

    B: int
    N: int
    H: int
    D: int
    A: int
    F: int
    C: int
    Y: int
    S: int
    J: int
    i: int


MODEL: dict[str, tuple[str, str, str]] = {
    "forward_kernel": ("B H N ((4 D + 2 A) i + 8)", "B H N J S (4 D + 2 A)", "0"),
    "dq_kernel": ("B H N ((6 D + 2 A) i + 4 A + 12)", "B H N J S (6 D + 4 A)", "0"),
    "dkv_kernel": ("B H N ((6 D + 2 A) i + 4 A + 12)", "B H N J S (8 D + 4 A)", "0"),
    "_assign_kernel": ("B N (4 F + 9)", "12 B N C F", "0"),
    "_count_kernel": ("B N (8 + C / 8)", "0", "0"),
    "_position_kernel": ("B N 32", "0", "0"),
    "_means_kernel": ("B N (4 F + 1 + C (F + 1) / 256)", "12 B N C F (Y + 1)", "0"),
    "_means_anchors_kernel": ("B N (4 F + 1 + C F / 256)", "12 B N C F (2 Y + 1)", "0"),
    "_means_points_kernel": ("B N (8 F + 1)", "12 B N C F (2 Y + 2)", "0"),
    "points": ("B N 4 (H D + F)", "0", "2 B N H D F"),
    "points backward": ("B N 4 (2 H D + F)", "0", "4 B N H D F"),
    "hashing": ("B H N (D i + 4 C)", "0", "B H N D C"),
    "routing": ("B H N (D i + 8 C)", "0", "2 B H N D C"),
    "routed rows": ("8 B H N D i", "0", "0"),
    "full attention": ("B H N 4 D i", "4 B H N N D", "0"),
    "full attention backward": ("B H N 8 D i", "10 B H N N D", "0"),
}
"""Bytes, 16-bit operations and float32 operations of each kernel, as in its docstring.

A float32 product that is computed as three tf32 products counts as six of 16 bits, since each is
half as fast."""


ASSIGNING = ("_means_kernel", "_assign_kernel")
MEANS_BACKWARD = ("_means_anchors_kernel", "_means_points_kernel")


class Form(NamedTuple):
    """Attributes: whether coupled (A = 16, else A = 0); blocks seen; whether strictly causal."""

    coupled: bool
    reach: int
    causal: bool


FORMS = {
    "paper": Form(False, 2, False),
    "neural": Form(True, 3, False),
    "strict": Form(True, 2, True),
}


def work(kernel: str, size: Size) -> Work:
    """Compute the work of one launch."""
    return Work(*(_evaluate(formula, size) for formula in MODEL[kernel]))


def size_of(form: str, length: int, tokens: int, heads: int, width: int) -> Size:
    """Choose the sizes of neural clustering; the number of clusters is the square root of N."""
    from clusterformer.kernels.tiles import means_tile

    coupled, reach, _ = FORMS[form]
    clusters = max(1, int(length**0.5))
    space = 16 if coupled else heads * width
    slots = -(-length // clusters)
    batch = max(1, tokens // length)
    parts = -(-space // means_tile(space, points=False).columns)
    return Size(batch, length, heads, width, 16 * coupled, space, clusters, parts, slots, reach, 2)


def kernels(form: str, backward: bool) -> list[str]:
    """List the launches of a mechanism and its clustering, without projections of q, k, v, output.

    The paper's form clusters the hidden states, without a projection for clustering. Backward
    starts at the values; losses on centroids add the gradient of the means, MEANS_BACKWARD.
    """
    coupled = FORMS[form].coupled
    names = ["points"] if coupled else []
    names += [*ASSIGNING, "_count_kernel", "_position_kernel", "forward_kernel"]
    if backward:
        names += ["dq_kernel", "dkv_kernel"] + (["points backward"] if coupled else [])
    return names


def rival(name: str, size: Size, causal: bool) -> tuple[Work, Work]:
    """Compute the work of Reformer with one round, or of Routing, on the same kernels.

    Each head has its own groups, by C / 2 random columns or by its C centroids. Where Routing is
    not causal, each centroid gathers its queries, keys and values, and scatters its results.

    Returns:
        Work of forward, and of forward and backward.
    """
    routed = name == "RoutingAttention" and not causal
    heads = size._replace(B=size.B * size.H)
    size = size._replace(A=0, J=1 if routed else 2)
    grouping = [work("hashing" if name == "ReformerAttention" else "routing", size)]
    rows = []
    if routed:
        grouping *= 2  # queries and keys
        rows = [work("routed rows", size)]
    else:
        grouping += [work(kernel, heads) for kernel in ("_count_kernel", "_position_kernel")]
    forward = [*grouping, *rows, work("forward_kernel", size)]
    backward = [*rows, *(work(kernel, size) for kernel in ("dq_kernel", "dkv_kernel"))]
    return total(forward), total(forward + backward)


def total(works: Iterable[Work]) -> Work:
    """Add the work of several launches."""
    return Work(*map(sum, zip(*works, strict=True)))


def seconds(work: Work, device: Ceilings) -> float:
    """Compute the lower bound of the time: memory and units at their ceilings, all at once."""
    return max(work.bytes / device.memory, work.matrix / device.matrix, work.plain / device.plain)


def sequential_seconds(size: Size, names: Iterable[str], device: Ceilings) -> float:
    """Compute the lower bound of the time of launches, one after the other."""
    return sum(seconds(work(name, size), device) for name in names)


def predict(
    device: str, lengths: Iterable[int], tokens: int, heads: int, width: int
) -> Iterator[dict[str, Any]]:
    """Predict lower bounds of the time of each form and of full attention, forward and backward.

    Yields:
        form, length, batch, clusters, milliseconds, those of full attention, and their ratio.
    """
    ceilings = DATA_SHEETS[device]
    for length in lengths:
        for form, (_, _, causal) in FORMS.items():
            size = size_of(form, length, tokens, heads, width)
            full = sequential_seconds(size, ("full attention", "full attention backward"), ceilings)
            full /= 1 + causal  # it skips what lies above the diagonal
            ours = sequential_seconds(size, kernels(form, backward=True), ceilings)
            yield {
                "form": form,
                "length": length,
                "batch": size.B,
                "clusters": size.C,
                "least_ms": ours * 1e3,
                "full_least_ms": full * 1e3,
                "ratio": full / ours,
            }


def _evaluate(formula: str, size: Size) -> float:
    """Evaluate a sum of products that is written with blanks, as in a docstring."""
    spaced = formula.replace("(", " ( ").replace(")", " ) ").split()
    parts, before = [], ""
    for part in spaced:
        if before not in ("", "(", "+", "/") and part not in (")", "+", "/"):
            parts.append("*")
        parts.append(part)
        before = part
    return float(eval(" ".join(parts), {"__builtins__": {}}, size._asdict()))
