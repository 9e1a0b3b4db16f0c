"""Registers, spills and shared memory of the Triton kernels, compiled for any device.

The device need not be here. B batch   H heads   N tokens   D head width   S slots of a block
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from clusterformer.errors import InputError, missing
from clusterformer.kernels.dispatch import forcing
from clusterformer.kernels.tiles import Device

if TYPE_CHECKING:
    from torch import Tensor

    from clusterformer.kernels.blocks import Blocks

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
DEVICES = {
    target: Device(lanes, from_shared=target == "sm_90") for target, (*_, lanes) in TARGETS.items()
}
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
"""Largest number of bytes of shared memory of one program."""

HEADS, GROUPS = 8, 16

NAMES = {
    "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "i32", "int64": "i64",
    "bool": "i1",
}  # fmt: skip
"""PyTorch's names of data types to Triton's."""


class Shape(NamedTuple):
    """One set of sizes for which the kernels are compiled.

    Attributes:
        form: "circle" of equal blocks; "ends", the same with a mask that the queries of a block
            share, as global tokens have it; "strict" chunks of clusters, causal; "window", causal;
            "round", in which each head has its own blocks; or "rounds", the same with a mask.
        width: D.
        wide: Additional columns of queries and keys.
        slots: S.
        reach: Blocks that a block sees.
        dtype: "fp32", "bf16" or "fp16".
    """

    form: str
    width: int
    wide: int
    slots: int
    reach: int
    dtype: str


SHAPES = (
    Shape("circle", 64, 0, 64, 2, "bf16"),
    Shape("circle", 64, 0, 256, 2, "bf16"),
    Shape("circle", 128, 0, 256, 2, "bf16"),
    Shape("circle", 75, 0, 75, 2, "bf16"),
    Shape("circle", 64, 16, 128, 3, "bf16"),
    Shape("circle", 64, 16, 64, 3, "fp16"),
    Shape("circle", 64, 16, 64, 3, "fp32"),
    Shape("circle", 128, 16, 256, 3, "bf16"),
    Shape("circle", 75, 16, 75, 2, "bf16"),
    Shape("circle", 75, 16, 16, 3, "fp32"),
    Shape("circle", 50, 16, 16, 3, "fp32"),
    Shape("circle", 32, 16, 16, 3, "bf16"),
    Shape("circle", 16, 16, 16, 3, "fp32"),
    Shape("ends", 32, 16, 34, 3, "bf16"),
    Shape("ends", 64, 16, 66, 3, "bf16"),
    Shape("strict", 64, 16, 64, 2, "bf16"),
    Shape("strict", 64, 16, 256, 2, "bf16"),
    Shape("strict", 32, 16, 32, 2, "fp32"),
    Shape("window", 64, 0, 256, 2, "bf16"),
    Shape("window", 32, 0, 32, 2, "fp32"),
    Shape("round", 64, 0, 64, 2, "bf16"),
    Shape("rounds", 64, 0, 64, 2, "bf16"),
    Shape("circle", 64, 0, 64, 1, "bf16"),
)
"""The paper's form, the default, the strict one, Reformer and Routing, in the widths of the
shipped configurations."""


def compile_all(targets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Compile every kernel at each of `SHAPES` for each target.

    Yields:
        One row for each kernel, with target, shape, tile, registers, spilled bytes and bytes of
        shared memory.

    Raises:
        InputError: if Triton is missing, or set to interpret.
    """
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        raise missing("compiling needs triton", "kernels") from None
    from clusterformer.kernels._chunk_kernels_triton import forward_kernel

    if not isinstance(forward_kernel, JITFunction):
        raise InputError("TRITON_INTERPRET is set: unset it to compile")
    known: set[str] = set()
    for target in targets:
        for shape in SHAPES:
            for launch in _launches(shape, DEVICES[target]):
                row = _compile(launch, shape, target)
                if (made := row.pop("hash")) not in known:
                    known.add(made)
                    yield row


class Launch(NamedTuple):
    """A launch of a kernel: the kernel, its arguments and its options."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def _launches(shape: Shape, device: Device) -> list[Launch]:
    """Record the launches of one step, clustering included; the kernels themselves do not run."""
    import torch

    from clusterformer.kernels import _chunk_attention_triton as attention
    from clusterformer.kernels import _chunk_kernels_triton as chunks
    from clusterformer.kernels import _chunking_triton, _grouping_triton, _means_triton, grouping

    found: list[Launch] = []

    def recorder(kernel: Any) -> Any:
        def record(*arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
            found.append(Launch(kernel, arguments, options))

        return record

    q, k, v, blocks, options = _example(shape)
    real = torch.ones(len(blocks.slot), q.shape[2], dtype=torch.bool)
    space = shape.wide or HEADS * shape.width
    points = torch.zeros(1, q.shape[2], space, requires_grad=True)
    anchors = torch.zeros(GROUPS, space, requires_grad=True)
    with ExitStack() as stack:
        for kernel in (
            _grouping_triton._assign_kernel, _grouping_triton._count_kernel,
            _grouping_triton._position_kernel,
            _means_triton._means_kernel, _means_triton._means_anchors_kernel,
            _means_triton._means_points_kernel, _chunking_triton._circle_kernel,
            _chunking_triton._circle_slots_kernel, _chunking_triton._chunks_kernel,
            _chunking_triton._chunk_slots_kernel, _chunking_triton._pack_kernel,
            chunks.forward_kernel, chunks.dq_kernel, chunks.dkv_kernel,
        ):  # fmt: skip
            stack.enter_context(patch.object(kernel, "run", recorder(kernel)))
        stack.enter_context(patch.object(Device, "of", staticmethod(lambda where: device)))
        stack.enter_context(forcing("triton"))
        chosen, means = grouping.assign(points, anchors)
        means.sum().backward()
        grouping.sort(chosen, GROUPS)
        _blocks(shape, len(real), q.shape[2], real)
        attention.chunk_attention(q, k, v, blocks, scale=0.1, **options).sum().backward()
    return found


def _example(shape: Shape) -> tuple[Any, ...]:
    """Make q, k, v, blocks and the options of the operation."""
    import torch

    from clusterformer.kernels.blocks import window_mask
    from clusterformer.kernels.chunk_attention import LAST_RESORT

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[shape.dtype]
    length, causal = GROUPS * shape.slots, shape.form in ("strict", "window")
    rows = torch.zeros(1, length, HEADS, shape.width, dtype=dtype, requires_grad=True)
    columns = torch.zeros(1, length, shape.wide, dtype=dtype)
    options: dict[str, Any] = {
        "mask": None, "causal": causal, "within": None, "self_bias": 0.0,
        "extra": (columns, columns),
    }  # fmt: skip
    batch = {"round": HEADS, "rounds": 2 * HEADS}.get(shape.form, 1)
    blocks = _blocks(shape, batch, length)
    if shape.form == "window":
        options["within"] = shape.slots
    if shape.form.startswith("round"):
        options["self_bias"] = LAST_RESORT
    if shape.form in ("ends", "rounds"):
        options["mask"] = window_mask(blocks, causal=shape.form == "rounds")
    return *(rows.transpose(1, 2) for _ in range(3)), blocks, options


def _blocks(shape: Shape, batch: int, length: int, key_mask: Tensor | None = None) -> Blocks:
    import torch

    from clusterformer.kernels import chunking, reference

    device = torch.device("cpu")
    if shape.form == "window":
        return chunking.window_blocks(length, batch, shape.slots, key_mask, device=device)
    grouped = reference.sort(torch.zeros(batch, length, dtype=torch.long), GROUPS)
    if shape.form == "strict":
        return chunking.cluster_chunks(grouped, shape.slots, key_mask)
    looks = min(1, shape.reach - 1), max(0, shape.reach - 2)
    return chunking.equal_blocks(grouped, GROUPS, key_mask, *looks)


def _compile(launch: Launch, shape: Shape, target: str) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, arguments, options = launch
    names = [parameter.name for parameter in kernel.params]
    given = {**dict(zip(names, arguments, strict=False)), **options}
    device = {name: given.pop(name) for name in ("num_warps", "num_stages") if name in given}
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    hints: dict[tuple[int], list[list[Any]]] = {}
    for index, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        kind, hint = "constexpr", list[list[Any]]()
        if not parameter.is_constexpr:
            kind, hint = _specialised(value, TARGETS[target][0])
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[(index,)] = value
        elif hint:
            hints[(index,)] = hint
    made = triton.compile(
        ASTSource(kernel, signature, constants, hints),
        target=GPUTarget(*TARGETS[target]),
        options=device,
    )
    registers, spilled = _assembled(made.asm, target)
    return {
        "hash": made.hash,
        "kernel": kernel.__name__,
        "target": target,
        **shape._asdict(),
        "tile": {name: given[name] for name in given if name.startswith("BLOCK_")},
        "warps": made.metadata.num_warps,
        "registers": registers,
        "spilled_bytes": spilled,
        "shared_bytes": made.metadata.shared,
        "shared_limit": SHARED_LIMIT[target],
    }


def _specialised(value: Any, backend: str) -> tuple[str, list[list[Any]]]:
    """Return Triton's type of an argument, and the hints about its value, as at a launch."""
    aligned = ["tt.divisibility", 16]
    if isinstance(value, (bool, float)):
        return ("i1" if isinstance(value, bool) else "fp32"), []
    if isinstance(value, int):
        kind = "constexpr" if value == 1 else "i32" if value < 2**31 else "i64"
        return kind, [] if value % 16 else [aligned]
    kind = "*" + NAMES[str(value.dtype).removeprefix("torch.")]
    small = [["tt.pointer_range", 32]] if backend == "hip" else []
    return kind, [aligned, *small]


def _assembled(asm: Any, target: str) -> tuple[int, int]:
    """Return the registers of a thread and the bytes it spills, as the assembler prints them."""
    if "amdgcn" in asm:
        text = asm["amdgcn"]
        numbers = {
            name: int(re.search(rf"\.{name}:\s+(\d+)", text)[1])  # type: ignore[index]
            for name in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")
        }
        return numbers["vgpr_count"], 4 * (
            numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"]
        )
    import triton.backends.nvidia

    assembler = Path(triton.backends.nvidia.__file__).parent / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(asm["ptx"])
        gpu = "sm_90a" if target == "sm_90" else target
        done = subprocess.run(
            [assembler, "-v", f"--gpu-name={gpu}", path, "-o", Path(folder) / "kernel.cubin"],
            capture_output=True,
            text=True,
            check=True,
        )
    used = re.search(r"Used (\d+) registers", done.stderr)
    spilled = re.search(r"(\d+) bytes spill stores", done.stderr)
    if not (used and spilled):
        raise InputError(f"no registers or spills in the output of ptxas: {done.stderr}")
    return int(used[1]), int(spilled[1])
