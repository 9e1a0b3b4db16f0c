"""`clusterformer bench regret`: the default form of neural clustering against the best choice."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import finish_report, update_report

if TYPE_CHECKING:
    from clusterformer.bench.report import Row

HELP = """
usage: clusterformer bench regret [options]

Measure one attention layer, forward and backward on the CPU, at shapes from 64 to 16,384 tokens,
width 128 to 1,024, fp32 and bf16, bidirectional and strictly causal: full attention, the default
form of neural clustering, and its other forms. "regret" is the time of the default over that of
the fastest, less 1; "dense" is the same against full attention, "-" where that takes much longer.

  --shapes 40           number of shapes, evenly spread over the 40
  --dtypes fp32 bf16    data types: autocast
  --repeats 7           measurements of each layer
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write all measurements
"""


def run(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = BenchArguments("repeats")
    parser.add_number("--shapes", default=40)
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    options = parser.parse(arguments)
    from clusterformer.bench import regret

    print(" length batch width  type  form         default ms     regret   dense  best")
    rows: list[Row] = []
    for row in regret.measure(regret.settings(options.shapes, options.dtypes), options.repeats):
        rows.append(row)
        print(_line(row, regret.DEFAULT), flush=True)
        update_report(options, rows)
    regrets = [row["regret"] for row in rows]
    dense = [row["over_dense"] for row in rows if row["over_dense"] is not None]
    summary = {
        "mean_regret": statistics.mean(regrets),
        "worst_regret": max(regrets),
        "worst_over_dense": max(dense, default=None),
    }
    print(
        f"mean regret {summary['mean_regret']:+.1%}, worst {summary['worst_regret']:+.1%}", end=""
    )
    print(f"; worst against full attention {max(dense):+.1%}" if dense else "")
    finish_report(options, rows, summary=summary)


def _line(row: Row, default: str) -> str:
    form = "causal" if row["causal"] else "both ways"
    dense = "-" if row["over_dense"] is None else f"{row['over_dense']:+.1%}"
    sizes = f"{row['length']:>7}{row['batch']:>6}{row['d_model']:>6}  {row['dtype']}  {form:<9}"
    time = row["median_ms"][default]
    return f"{sizes}{time:>12.1f}{row['regret']:>+11.1%}{dense:>8}  {row['best']}"
