"""The option `against` of `fit`: a table of other models, trained likewise, and of baselines."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from lightning.pytorch.utilities.seed import isolate_rng

from clusterformer.attention import AttentionCore
from clusterformer.cli.fitting import FittedRun, fit_run
from clusterformer.cli.options import Options
from clusterformer.compare.planned_run import slug
from clusterformer.compare.tables import aligned
from clusterformer.errors import InputError
from clusterformer.module import ClusterFormer
from clusterformer.wording import counted, formatted


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


def fit_against(options: Options, first: FittedRun, seconds: float) -> None:
    """Train the models of the option `against` on the same data, seed and steps; print a table.

    Every process takes part in the training, only the first prints.

    Args:
        options: Options of the first training.
        first: First training; the run directories of the others go below its own.
        seconds: Seconds that it took.
    """
    measure = options.task.monitor.replace("val/", "test/")
    if measure not in first.fitted.results:
        return
    rows = [("this run", first.fitted.results[measure], seconds)]
    others: dict[str, Any] = options.config["against"] or {}
    for name, model in others.items():
        if first.run:
            print(f"\nthe same with {name}:", flush=True)
        begun = time.monotonic()
        runs = ["--runs", str(first.run.folder / "against")] if first.run else []
        other = fit_run(_likewise(options, model, *runs), name=slug(name))
        rows.append((name, other.fitted.results[measure], time.monotonic() - begun))
    if not first.run:
        return
    baselines = options.task.baselines(cheap=True) if options.config["baselines"] else {}
    for name, baseline in baselines.items():
        begun = time.monotonic()
        value = baseline().measures.get(measure.removeprefix("test/"))
        if value is not None:
            rows.append((name, value, time.monotonic() - begun))
    if len(rows) == 1:
        return
    cells = [[name, formatted(measure, value), f"{taken:.0f}"] for name, value, taken in rows]
    print(f"\n{aligned([['', measure, 'seconds'], *cells])}")
    if findings := first.fitted.findings:
        print(f"{findings.count:,} test examples")
    if others:
        print(f"\n{_verdict(options, first, rows[: len(others) + 1])}")


def _verdict(options: Options, first: FittedRun, rows: list[tuple[str, float, float]]) -> str:
    """Say in one sentence what each model reached, after how many steps, and what it sees."""
    core = type(_cores(options.model)[0]).__name__.removesuffix("Attention")
    rows[0] = (re.sub(r"(?<=[a-z])(?=[A-Z])", " ", core).lower(), *rows[0][1:])
    chance = options.task.chance
    parts = [
        f"{name} {value:.2f}{' (guessing)' if chance and value < 1.3 * chance else ''}"
        for name, value, _ in rows
    ]
    steps = first.fitted.trainer.global_step
    sentence = f"{', '.join(parts)}, after the same {counted(steps, 'step')}"
    seen = first.fitted.results.get("test/keys_seen", 1.0)
    return f"{sentence}; a token sees {100 * seen:.2g} % of its text" if seen < 0.995 else sentence


def _cores(model: ClusterFormer) -> list[AttentionCore]:
    return [module for module in model.modules() if isinstance(module, AttentionCore)]


def _likewise(options: Options, model: dict[str, Any], *arguments: str) -> Options:
    """Options of the same training with another model."""
    base = {key: value for key, value in options.resolved().items() if key != "against"}
    return Options([f"--model={json.dumps(model)}", *arguments], fitting=True, base=base)
