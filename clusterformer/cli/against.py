"""The option `against` of `fit`: a table of other models, trained likewise, and of baselines."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.utilities.seed import isolate_rng

from clusterformer.cli.fitting import FittedRun, ended_by, fit_run
from clusterformer.cli.options import Options
from clusterformer.compare.notes import limits_test
from clusterformer.compare.planned_run import slug
from clusterformer.compare.tables import aligned
from clusterformer.errors import InputError
from clusterformer.training.config_files import to_argument
from clusterformer.training.mechanism_defaults import MECHANISMS, without_defaults
from clusterformer.training.runs import Run, first_process
from clusterformer.training.saved import checkpoint_to_resume
from clusterformer.wording import counted, formatted


class Outcome(NamedTuple):
    """Outcome of a training.

    Attributes:
        run: Its directory; None in all processes but the first.
        results: Measures of its chosen checkpoint.
        steps: Number of steps.
        seconds: Seconds of training, validation included.
        examples: Number of test examples, where they were compared one by one.
    """

    run: Run | None
    results: dict[str, float]
    steps: int
    seconds: float
    examples: int | None = None

    @property
    def keys_seen(self) -> float | None:
        """Share of its text that a token attends to; None where the mechanism does not say it."""
        return self.results.get("test/keys_seen")

    @classmethod
    def of_training(cls, trained: FittedRun) -> Outcome:
        run, fitted = trained
        examples = fitted.findings.count if fitted.findings else None
        steps = fitted.trainer.global_step
        return cls(run, fitted.results, steps, fitted.seconds, examples)

    @classmethod
    def of_run(cls, run: Run) -> Outcome:
        """Read what a run that ended wrote down."""
        found = run.results
        assert found is not None
        own = run if first_process() else None
        return cls(own, found["results"], found["steps"], found["seconds"])


def check_against(options: Options) -> None:
    """Make every model of the option `against` once, so that a bad one is known before training.

    Raises:
        InputError: if one has a class or option that does not exist, or a value of another type.
    """
    for name, model in (options.config["against"] or {}).items():
        _check(options, name, model)


def _check(options: Options, name: str, model: dict[str, Any]) -> None:
    try:
        with isolate_rng():
            _likewise(options, model)
    except InputError as error:
        raise InputError(f"against, {name}: {error}") from error


def fit_against(options: Options, first: Outcome, resumed: Run | None) -> None:
    """Train the models of the option `against` on the same data, seed and steps; print a table.

    Every process takes part in the training, only the first prints.

    Args:
        options: Options of the first training.
        first: First training; the run directories of the others go below its own.
        resumed: Its run directory where it was resumed: the others go on too.
    """
    measure = options.task.monitor.replace("val/", "test/")
    if measure not in first.results:
        return
    trained = [("this run", first)]
    others: dict[str, Any] = options.config["against"] or {}
    for name, model in others.items():
        if first.run:
            print(f"\nthe same with {name}:", flush=True)
        runs = ["--runs", str(first.run.folder / "against")] if first.run else []
        begun = _begun(resumed.folder / "against" / slug(name)) if resumed else None
        trained.append((name, _train(_likewise(options, model, *runs), slug(name), begun)))
    if not first.run:
        return
    rows = [(name, each.results[measure], each.seconds) for name, each in trained]
    seen = [each.keys_seen for _, each in trained]
    baselines = options.task.baselines(cheap=True) if options.config["baselines"] else {}
    for name, baseline in baselines.items():
        start = time.monotonic()
        value = baseline().measures.get(measure.removeprefix("test/"))
        if value is not None:
            rows.append((name, value, time.monotonic() - start))
            seen.append(None)
    if len(rows) == 1:
        return
    cells = [
        [name, formatted(measure, value), "-" if keys is None else f"{keys:.3g}", f"{taken:.0f}"]
        for (name, value, taken), keys in zip(rows, seen, strict=True)
    ]
    print(f"\n{aligned([['', measure, 'keys seen', 'seconds'], *cells])}")
    if first.examples:
        print(f"{first.examples:,} test examples")
    if baselines and limits_test(options.config["trainer"]["limit_test_batches"]):
        print("the simple methods are tested on all examples, whatever trainer.limit_test_batches")
    if others:
        steps = [each.steps for _, each in trained]
        print(f"\n{_verdict(options, first, rows[: len(trained)], steps)}")


def _begun(folder: Path) -> tuple[Run, Path] | None:
    """Find the latest run of a folder, and the checkpoint to go on from; None where there is none.

    A run without a checkpoint was stopped before it trained: another begins anew.
    """
    numbers = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    if not numbers or not (folder / str(max(numbers)) / "config.yaml").exists():
        return None
    run = Run.open(folder / str(max(numbers)))
    checkpoint = checkpoint_to_resume(run)
    return (run, checkpoint) if checkpoint else None


def _train(options: Options, name: str, begun: tuple[Run, Path] | None) -> Outcome:
    """Train one of the others, or go on with it; of one that ended, read what it reached."""
    if begun is None:
        return Outcome.of_training(fit_run(options, name=name))
    if ended_by(*begun, options):
        return Outcome.of_run(begun[0])
    return Outcome.of_training(fit_run(options, *begun, name=name))


def _verdict(
    options: Options, first: Outcome, rows: list[tuple[str, float, float]], steps: list[int]
) -> str:
    """Say in one sentence what each model reached, after how many steps, and what it sees."""
    attention: str = options.resolved()["model"]["attention"]["class_path"]
    core = attention.rsplit(".", 1)[-1].removesuffix("Attention")
    rows[0] = (re.sub(r"(?<=[a-z])(?=[A-Z])", " ", core).lower(), *rows[0][1:])
    chance = options.task.chance
    parts = [
        f"{name} {value:.2f}{' (guessing)' if chance and value < 1.3 * chance else ''}"
        for name, value, _ in rows
    ]
    taken = f"the same {counted(first.steps, 'step')}"
    if len(set(steps)) > 1:  # one lost patience
        taken = f"{', '.join(f'{number:,}' for number in steps)} steps"
    sentence = f"{', '.join(parts)}, after {taken}"
    seen = 1.0 if first.keys_seen is None else first.keys_seen
    return f"{sentence}; a token sees {100 * seen:.2g} % of its text" if seen < 0.995 else sentence


def _likewise(options: Options, model: dict[str, Any], *arguments: str) -> Options:
    """Options of the same training with another model; another mechanism has its own defaults."""
    base = {key: value for key, value in options.resolved().items() if key != "against"}
    own = base["model"]
    for name in (name for name in MECHANISMS if name in model and own[name] is not None):
        other = model[name]
        if isinstance(other, dict) and {*other} == {"init_args"}:  # of the same mechanism
            model = {**model, name: {"class_path": own[name]["class_path"], **other}}
        own[name] = without_defaults(own[name])
    return Options([f"--model={to_argument(model)}", *arguments], fitting=True, base=base)
