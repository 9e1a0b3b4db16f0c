"""`clusterformer bench converted`: an encoder with clusters against its own full attention."""

from __future__ import annotations

import statistics
from pathlib import Path

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import report_each

HELP = """
usage: clusterformer bench converted --model DIR --text FILE ... --calibrate FILE ... [options]

Give a pretrained Hugging Face encoder clusters, in each form, and do not train it. Compare it with
its own full attention, at equal numbers of keys: the cosine of each text's mean vector, and of its
tokens. Texts of equal length are cut from the files. Needs transformers.

  --model DIR           directory of the pretrained model
  --text FILE ...       plain text or JSON lines with "text" (.gz), to measure on
  --calibrate FILE ...  the same, for the clusters to be fitted to
  --length 512          tokens of a text; more than the model's positions repeat these
  --texts 8             texts of each file to measure on;  --calibration_texts 24, to fit to
  --keys 0.25 0.1       shares of a text that a token sees
  --num_clusters 16     clusters;  --steps 4, steps of the fit on each batch of 4 texts
  --seed 0              seed of the random clusters
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write all cosines
"""


def run(arguments: list[str]) -> None:
    """Encode the texts with each form, print the cosines, write the JSON."""
    parser = BenchArguments()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--calibrate", type=Path, nargs="+", required=True)
    parser.add_number("--length", default=512)
    parser.add_number("--texts", default=8)
    parser.add_number("--calibration_texts", default=24)
    parser.add_number("--keys", type=float, minimum=0, nargs="+", default=[0.25, 0.1])
    parser.add_number("--num_clusters", default=16)
    parser.add_number("--steps", default=4)
    parser.add_number("--seed", minimum=0, default=0)
    options = parser.parse(arguments)
    import torch

    from clusterformer.bench import converted
    from clusterformer.bench.similarity import MeanPoolingEncoder

    encoder = MeanPoolingEncoder(options.model, options.length)
    texts, calibration = (
        torch.cat([converted.read_pieces(path, encoder, count) for path in paths])
        for paths, count in (
            (options.text, options.texts),
            (options.calibrate, options.calibration_texts),
        )
    )
    options.model = options.model.name
    options.text, options.calibrate = (
        [path.name for path in paths] for paths in (options.text, options.calibrate)
    )
    order = torch.Generator().manual_seed(options.seed)
    calibration = calibration[torch.randperm(len(calibration), generator=order)]
    print(f"{len(texts)} texts of {options.length} tokens, clusters of {len(calibration)} others")
    print(f"{'form':<38}{'clusters':>9}{'keys':>7}{'text':>9}{'token':>9}")
    found = converted.measure(
        encoder, texts, calibration, options.keys,
        num_clusters=options.num_clusters, steps=options.steps, seed=options.seed,
    )  # fmt: skip
    for *_, row in report_each(options, found):
        kind = "-" if row["form"].startswith("a window") else ("random", "fitted")[row["fitted"]]
        means = "".join(f"{statistics.fmean(row[name]):>9.4f}" for name in ("text", "token"))
        print(f"{row['form']:<38}{kind:>9}{row['keys_seen']:>7.3f}{means}", flush=True)
