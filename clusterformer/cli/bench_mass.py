"""`clusterformer bench mass`: full attention's mass on the keys that trained models select."""

from __future__ import annotations

from clusterformer.cli.bench_options import BenchArguments
from clusterformer.cli.bench_report import finish_report
from clusterformer.errors import InputError

HELP = """
usage: clusterformer bench mass --reference RUN --runs RUN ... [options]

Compare the keys that trained models select with those that a trained full attention looks at. The
reference is a run with FullAttention on the same data. "keys" is the share of keys that the tokens
of a model see, "mass" the share of the reference's attention that lies on them, in the same layer,
on the same test texts. A selection that knows nothing holds about as much mass as keys.

  --reference RUN       run directory of `fit` with FullAttention
  --runs RUN ...        run directories of the models to measure
  --batches 4           test batches that are read; texts of some thousand tokens at most
  --threads N           CPU threads (default: all cores)
  --out FILE.json       write the table
"""


def run(arguments: list[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = BenchArguments()
    parser.add_argument("--reference")
    parser.add_argument("--runs", nargs="+")
    parser.add_number("--batches", default=4)
    options = parser.parse(arguments)
    if options.reference is None or options.runs is None:
        raise InputError("give --reference RUN and --runs RUN ...")
    from clusterformer.api import load
    from clusterformer.bench import mass
    from clusterformer.cli.evaluation import refuse_edited

    reference = load(options.reference, device="cpu")
    refuse_edited(reference, "test")
    batches = mass.read_batches(reference.task, options.batches)
    networks = {}
    for folder in options.runs:
        model = load(folder, device="cpu")
        refuse_edited(model, "test")
        if not mass.same_texts(batches, mass.read_batches(model.task, options.batches)):
            raise InputError(f"{folder}: its test texts are not those of {options.reference}")
        networks[folder] = model.network
    found = [list(mass.measure(reference.network, networks, batch)) for batch in batches]
    wide = max(len(folder) for folder in ("run", *options.runs)) + 2
    print(f"{'run':<{wide}}{'mechanism':<28}{'layer':>6}{'keys':>8}{'mass':>8}")
    rows = list(mass.mean_over_tokens(found))
    for row in rows:
        start = f"{row['run']:<{wide}}{row['mechanism']:<28}{row['layer']:>6}"
        print(f"{start}{row['keys']:>8.3f}{row['mass']:>8.3f}")
    finish_report(options, rows)
