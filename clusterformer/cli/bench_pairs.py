"""`clusterformer bench pairs`: time and memory of preparing parallel text and its batches."""

from __future__ import annotations

from clusterformer.cli.arguments import Arguments
from clusterformer.cli.bench_options import report_file
from clusterformer.cli.bench_report import report_each

HELP = """
usage: clusterformer bench pairs [options]

Prepare synthetic parallel text as `fit --config wmt14.yaml` does (Moses tokens, joint byte pairs,
token numbers on disk), and load every batch once. Show time and peak memory of each stage.

  --pairs 200000            sentence pairs
  --vocab_size 32000        tokens in the joint vocabulary
  --tokens_per_batch 32768  maximum number of tokens in a batch
  --seed 0                  seed of the text
  --out FILE.json           write the table
"""


def run(arguments: list[str]) -> None:
    """Measure, print a line for each stage, write the JSON."""
    parser = Arguments()
    parser.add_number("--pairs", default=200_000)
    parser.add_number("--vocab_size", default=32_000)
    parser.add_number("--tokens_per_batch", default=32_768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=report_file)
    options = parser.parse_args(arguments)
    from clusterformer.bench import parallel_text

    print(f"{'stage':<12}{'pairs':>10}{'seconds':>10}{'CPU':>10}{'peak MiB':>10}", flush=True)
    found = parallel_text.measure(
        options.pairs,
        vocab_size=options.vocab_size,
        tokens_per_batch=options.tokens_per_batch,
        seed=options.seed,
    )
    for *_, row in report_each(options, found):
        peak = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        times = f"{row['seconds']:>10.1f}{row['cpu_seconds']:>10.1f}"
        print(f"{row['stage']:<12}{row['pairs']:>10,}{times}{peak:>10}", flush=True)
