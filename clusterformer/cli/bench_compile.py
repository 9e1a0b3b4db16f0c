"""`clusterformer bench compile`: what the Triton kernels need on GPUs that are not here."""

from __future__ import annotations

from pathlib import Path

from clusterformer.cli.arguments import Arguments

HELP = """
usage: clusterformer bench compile [options]

Compile the Triton kernels for GPUs that need not be here. Show the registers and shared memory that
each kernel takes, and the bytes that it spills.

  --targets sm_80 sm_90 gfx942
                    GPUs (default: all three)
  --out FILE.json   write the table
"""


def run(arguments: list[str]) -> None:
    """Compile, print the table, write the JSON."""
    from clusterformer.bench.compilation import TARGETS, compile_all
    from clusterformer.bench.report import write_report

    parser = Arguments()
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    print(
        f"{'target':<8}{'kernel':<23}{'form':<8}{'D+P':>7}{'S':>5}{'R':>3}{'dtype':>6}"
        f"{'tile':>17}{'warps':>6}{'registers':>11}{'spilled':>9}{'shared':>9}"
    )
    for row in compile_all(options.targets):
        rows.append(row)
        width = f"{row['width']}+{row['wide']}"
        tile = "x".join(map(str, row["tile"].values()))
        print(
            f"{row['target']:<8}{row['kernel']:<23}{row['form']:<8}{width:>7}{row['slots']:>5}"
            f"{row['reach']:>3}{row['dtype']:>6}{tile:>17}{row['warps']:>6}"
            f"{row['registers']:>11}{row['spilled_bytes']:>9}{row['shared_bytes']:>9}",
            flush=True,
        )
    if options.out:
        write_report(options.out, rows)
        print(f"written: {options.out}")
