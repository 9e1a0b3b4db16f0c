"""`clusterformer bench pretrained`: a pretrained encoder under each attention."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import report_each

if TYPE_CHECKING:
    from clusterformer.bench.report import Row

HELP = """
usage: clusterformer bench pretrained --model DIR --pairs FILE.tsv [options]

Replace the attention of a pretrained Hugging Face encoder by each mechanism, without training it
again, or read what `clusterformer convert` made of it. Correlate its similarities of sentence pairs
with people's scores. "keys" is the share of its text that a token sees. Needs transformers.

  --model DIR           directory of the pretrained model
  --pairs FILE.tsv      lines of text, text, score, such as the test part of STS-B
  --mechanisms NAME ... classes of mechanisms without weights (default: ClusteredAttention
                        ImprovedClusteredAttention MultipoleAttention;
                        none beside --converted)
  --converted DIR ...   directories of the same model, converted
  --num_clusters 25     clusters of each mechanism that has them
  --length 128          maximum number of tokens in a text
  --join 1              pairs of similar score to join into one pair of longer texts
  --seeds 1             repetitions, each joining other pairs; the table shows deviations over them
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write all correlations
"""


def run(arguments: list[str]) -> None:
    """Embed the pairs with each attention, print the correlations, write the JSON."""
    parser = BenchArguments("mechanisms")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--converted", type=Path, nargs="+", default=[])
    parser.add_number("--num_clusters", default=25)
    parser.add_number("--length", default=128)
    parser.add_number("--join", default=1)
    parser.add_number("--seeds", default=1)
    options = parser.parse(arguments)
    from clusterformer.bench import pretrained
    from clusterformer.bench.similarity import MeanPoolingEncoder, read_scored_pairs

    seeds = range(options.seeds)
    draws = [read_scored_pairs(options.pairs, options.join, seed) for seed in seeds]
    encoder = MeanPoolingEncoder(options.model, options.length)
    print(f"{len(draws[0].scores)} pairs")
    heads = f"{'Spearman':>9}{'less full':>18}{'with full':>11}{'keys':>7}{'CPU s':>9}"
    print(f"{'attention':<28}{heads}")
    converted = options.converted
    options.model, options.pairs = options.model.name, options.pairs.name
    options.converted = [folder.name for folder in converted]
    found = pretrained.measure(
        encoder,
        draws,
        options.mechanisms,
        num_clusters=options.num_clusters,
        converted=converted,
    )
    for rows in report_each(options, found):
        print(_line(rows[-1], rows[0]), flush=True)


def _line(row: Row, full: Row) -> str:
    """Format means over the seeds."""
    differences = [a - b for a, b in zip(row["spearman"], full["spearman"], strict=True)]
    spread = f" ±{statistics.stdev(differences):.4f}" if len(differences) > 1 else ""
    options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
    seen = "-" if row["keys_seen"] is None else f"{row['keys_seen']:.3g}"
    return (
        f"{row['mechanism']:<28}{statistics.fmean(row['spearman']):>9.4f}"
        f"{f'{statistics.fmean(differences):+.4f}{spread}':>18}"
        f"{statistics.fmean(row['spearman_with_full']):>11.4f}{seen:>7}"
        f"{row['cpu_seconds']:>9.1f}  {options}"
    )
