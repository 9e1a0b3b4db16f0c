"""`clusterformer bench causality`: mechanisms whose output depends on future tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import report_each

if TYPE_CHECKING:
    from clusterformer.bench.report import Row

HELP = """
usage: clusterformer bench causality [options]

Find the mechanisms whose output depends on future tokens. For each causal form, in a layer with
random weights, all inputs after a position are replaced; "moved" counts the outputs before it that
change. "no key" counts tokens that get no value in some head, and "keys" is the share of the tokens
up to its own that a token attends to: where it is 1, nothing is selected. Mechanisms that give the
first tokens full attention select among them too here (dense_length 0). Then a small language model
is trained on random tokens. They cannot be predicted, so a loss below ln V shows that the model
reads future tokens.

  --mechanisms NAME ... classes of mechanisms (default: all)
  --length 256          tokens per sequence
  --d_model 64          model width; --num_heads 4
  --steps 300           training steps; 0 trains nothing
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write the table
"""


def run(arguments: list[str]) -> None:
    """Probe, train, print the table, write the JSON."""
    parser = BenchArguments("mechanisms")
    parser.add_number("--length", minimum=4, default=256)
    parser.add_number("--d_model", default=64)
    parser.add_number("--num_heads", default=4)
    parser.add_number("--steps", minimum=0, default=300)
    options = parser.parse(arguments)
    from clusterformer.bench import causality
    from clusterformer.bench.subjects import choose_mechanisms

    kinds = choose_mechanisms(options.mechanisms)
    print(f"{'mechanism':<28}{'causal':<9}{'moved':>11}{'no key':>8}{'keys':>7}{'loss':>9}", end="")
    print(f"  (ln 8 = {math.log(8):.4f})" if options.steps else "")
    sizes = {name: getattr(options, name) for name in ("length", "d_model", "num_heads", "steps")}
    for *_, row in report_each(options, causality.measure(kinds, **sizes)):
        print(_line(row), flush=True)


def _line(row: Row) -> str:
    from clusterformer.bench.causality import SIGNIFICANT

    if row["causal"] is None:
        return f"{row['mechanism']:<28}{'refused':<9}"
    moved = f"{row['moved']}/{row['positions']}"
    keys = "-" if row["keys_seen"] is None else f"{row['keys_seen']:.2f}"
    line = f"{row['mechanism']:<28}{row['causal']!s:<9}{moved:>11}{row['without_key']:>8}{keys:>7}"
    if "random_tokens_loss" in row:
        line += f"{row['random_tokens_loss']:>9.4f}"
        line += "  reads the future" if row["standard_errors_below"] > SIGNIFICANT else ""
    return line
