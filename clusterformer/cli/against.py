"""What `fit` says last if asked: its result in a table with other models and simple baselines."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.utilities.seed import isolate_rng

from clusterformer.cli.options import Options
from clusterformer.errors import InputError
from clusterformer.task import Task
from clusterformer.training.runs import Run

Trained = tuple[Task, Run | None, Mapping[str, Any]]
"""Task, run folder and test results of a training."""


def against(
    options: Options,
    trained: Trained,
    seconds: float,
    train: Callable[[list[str], str], Trained],
) -> None:
    """Train the models of the option `against` on the same data, seed and steps, and print a table.

    Every process takes part in the training, the first alone prints.

    Args:
        options: Of the training to set them against.
        trained: What came of it; the others' run folders go into its own.
        seconds: That it took.
        train: Trains with the given arguments, into a run folder of the given name.
    """
    task, run, results = trained
    measure = task.monitor.replace("val/", "test/")
    if measure not in results:
        return
    rows = [("this run", float(results[measure]), seconds)]
    for name, model in options.config["against"].items():
        if run:
            print(f"\nthe same with {name}:", flush=True)
        begun = time.monotonic()
        with _arguments(options, model) as arguments:
            if run:
                arguments += ["--runs", str(run.folder / "against")]
            _, _, found = train(arguments, _slug(name))
        rows.append((name, float(found[measure]), time.monotonic() - begun))
    if not run:
        return
    for name, baseline in task.baselines().items():
        begun = time.monotonic()
        rows.append((name, baseline(), time.monotonic() - begun))
    width = max(len(name) for name, _, _ in rows)
    print(f"\n{'':<{width}}  {measure:>15}{'seconds':>10}")
    for name, value, taken in rows:
        print(f"{name:<{width}}  {value:>15.4f}{taken:>10.0f}")


def check(options: Options) -> None:
    """Make every model of the option `against` once, so that a bad one is known before training.

    Raises:
        InputError: if one has a class or option that does not exist, or a value of another type.
    """
    for name, model in (options.config["against"] or {}).items():
        with isolate_rng(), _arguments(options, model) as arguments:
            _make(name, arguments)


def _make(name: str, arguments: list[str]) -> None:
    try:
        Options(arguments, fitting=True)
    except InputError as error:
        raise InputError(f"against, {name}: {error}") from error


@contextmanager
def _arguments(options: Options, model: dict[str, Any]) -> Iterator[list[str]]:
    """Command line of the same training with another model."""
    sections = options.config.as_dict().keys() - {"config", "against"}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(options.yaml(*sections))
        file.flush()
        yield ["--config", file.name, f"--model={json.dumps(model)}"]


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())
