"""Compiling the Triton kernels for devices that are not here: registers, spills, shared memory."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from clusterformer.errors import InputError

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
"""Bytes of shared memory that one program may take."""

TYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
ITEMSIZE = {"fp32": 4, "bf16": 2, "fp16": 2}


class Shape(NamedTuple):
    """One use of the kernels.

    Attributes:
        width: D.
        wide: P.
        slots: S.
        reach: R.
        causal: Whether later tokens are hidden.
        dtype: "fp32", "bf16" or "fp16".
    """

    width: int
    wide: int
    slots: int
    reach: int
    causal: bool
    dtype: str


SHAPES = (
    Shape(64, 0, 64, 2, False, "bf16"),
    Shape(64, 0, 256, 2, False, "bf16"),
    Shape(64, 16, 128, 3, False, "bf16"),
    Shape(64, 16, 64, 2, True, "bf16"),
    Shape(128, 16, 256, 3, False, "bf16"),
    Shape(32, 16, 16, 3, False, "bf16"),
    Shape(75, 16, 75, 2, False, "bf16"),
    Shape(64, 16, 64, 3, False, "fp32"),
    Shape(64, 16, 64, 3, False, "fp16"),
)
"""The paper's form, the default and the strict one; widths of the shipped configurations."""


def compile_all(targets: list[str]) -> Iterator[dict[str, Any]]:
    """Compile every kernel at every shape for every target.

    Yields:
        kernel, target, shape, tile, registers, spilled bytes, shared memory in bytes.

    Raises:
        InputError: if Triton is missing, or set to interpret.
    """
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        raise InputError("compiling needs triton: pip install 'clusterformer[kernels]'") from None
    from clusterformer.kernels import _chunk_kernels_triton as kernels

    found = (kernels.forward_kernel, kernels.dq_kernel, kernels.dkv_kernel)
    if not isinstance(found[0], JITFunction):
        raise InputError("TRITON_INTERPRET is set: unset it to compile")
    for target in targets:
        for shape in SHAPES:
            for kernel in found:
                yield _compile(kernel, shape, target)


def _compile(kernel: Any, shape: Shape, target: str) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from clusterformer.kernels.tiles import backward_tile, row, tile

    choose = tile if kernel.__name__ == "forward_kernel" else backward_tile
    chosen = choose(shape.slots, row(shape.width, shape.wide), ITEMSIZE[shape.dtype])
    constants = _constants(shape, chosen)
    names = [parameter.name for parameter in kernel.params]
    constant = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    signature = {
        name: "constexpr" if name in constant else _type(name, shape.dtype) for name in names
    }
    aligned = [["tt.divisibility", 16]]
    hints = {
        (index,): aligned
        for index, name in enumerate(names)
        if signature[name].startswith("*")
        or "_stride" in name
        or name.endswith(("_batch", "_head"))
    }
    source = ASTSource(
        kernel, signature, {(names.index(name),): constants[name] for name in constant}, hints
    )
    made = triton.compile(
        source,
        target=GPUTarget(*TARGETS[target]),
        options={"num_warps": chosen.warps, "num_stages": chosen.stages},
    )
    registers, spilled = _assembled(made.asm, target)
    return {
        "kernel": kernel.__name__,
        "target": target,
        **shape._asdict(),
        "tile": list(chosen),
        "registers": registers,
        "spilled_bytes": spilled,
        "shared_bytes": made.metadata.shared,
        "shared_limit": SHARED_LIMIT[target],
    }


def _constants(shape: Shape, chosen: Any) -> dict[str, Any]:
    from clusterformer.kernels.reference import LATER
    from clusterformer.kernels.tiles import padded

    return {
        "H": 8,
        "R": shape.reach,
        "BACK": 1,
        "COPIES": 1 if shape.causal else 3,
        "LATER_BY": LATER,
        "SHARED": True,
        "WIDE": shape.wide > 0,
        "CAUSAL": shape.causal,
        "WITHIN": False,
        "ALONE": False,
        "MASKED": False,
        "PRECISION": "ieee" if shape.dtype == "fp32" else "tf32",
        "BLOCK_D": padded(shape.width),
        "BLOCK_P": padded(shape.wide),
        "BLOCK_M": chosen.queries,
        "BLOCK_K": chosen.keys,
    }


def _type(name: str, dtype: str) -> str:
    if name in ("MEMBERS", "HOMES"):
        return "*i64"
    if name in ("FILLED", "VISIBLE", "MASK"):
        return "*i1"
    if name in ("LSE", "DELTA", "D_Q_EXTRA", "D_K_EXTRA"):
        return "*fp32"
    if name.isupper() and name not in ("N", "G", "S"):
        return f"*{TYPES[dtype]}"
    return "fp32" if name in ("scale", "itself") else "i32"


def _assembled(asm: Any, target: str) -> tuple[int, int]:
    """Registers of a thread, and bytes it spills, as the assembler says."""
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
        raise InputError(f"ptxas did not say what it used: {done.stderr}")
    return int(used[1]), int(spilled[1])
