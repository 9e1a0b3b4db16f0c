"""`clusterformer bench causality`: mechanisms whose output depends on future tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterformer.cli.bench import BenchArguments, save

if TYPE_CHECKING:
    from clusterformer.bench.report import Row

HELP = """
usage: clusterformer bench causality [options]

Find the mechanisms whose output depends on future tokens. For each causal form, in a layer with
random weights, all inputs after a position are replaced; "moved" counts the outputs before it that
change. Then a small language model is trained on random tokens. They cannot be predicted, so a loss
below ln V shows that the model reads future tokens.

  --mechanisms NAME ... classes of mechanisms (default: all)
  --length 256          tokens per sequence
  --d_model 64          model width; --num_heads 4
  --steps 300           training steps; 0 trains nothing
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write the table
"""


def run(arguments: list[str]) -> None:
    """Probe, train, print the table, write the JSON."""
    parser = BenchArguments()
    parser.add_number("--length", minimum=4, default=256)
    parser.add_number("--d_model", default=64)
    parser.add_number("--num_heads", default=4)
    parser.add_number("--steps", minimum=0, default=300)
    options = parser.parse(arguments)
    from clusterformer.bench import causality
    from clusterformer.bench.subjects import choose_mechanisms

    kinds = choose_mechanisms(options.mechanisms)
    print(f"{'mechanism':<28}{'causal':<10}{'moved':>12}{'loss':>9}", end="")
    print(f"  (ln 8 = {math.log(8):.4f})" if options.steps else "")
    sizes = {name: getattr(options, name) for name in ("length", "d_model", "num_heads", "steps")}
    rows = []
    for row in causality.measure(kinds, **sizes):
        rows.append(row)
        print(_line(row), flush=True)
    if options.out:
        save(options, rows)


def _line(row: Row) -> str:
    from clusterformer.bench.causality import SIGNIFICANT

    if row["causal"] is None:
        return f"{row['mechanism']:<28}{'refused':<10}"
    moved = f"{row['moved']}/{row['positions']}"
    line = f"{row['mechanism']:<28}{row['causal']!s:<10}{moved:>12}"
    if "random_tokens_loss" in row:
        line += f"{row['random_tokens_loss']:>9.4f}"
        line += "  reads the future" if row["standard_errors_below"] > SIGNIFICANT else ""
    return line
