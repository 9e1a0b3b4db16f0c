"""What `fit` says last if asked: its result in a table with other models and simple baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from clusterformer.cli.runs import Run
from clusterformer.task import Task

Trained = tuple[Task, Run | None, Mapping[str, Any]]
"""Task, run folder and test results of a training."""


def against(
    others: Mapping[str, Any],
    trained: Trained,
    seconds: float,
    train: Callable[[list[str], str], Trained],
) -> None:
    """Train other models on the same data, seed and steps, and print a table of all.

    Args:
        others: Options of each other model, as in the `model` section of a configuration.
        trained: The training to set them against; their run folders go into its own.
        seconds: That it took.
        train: Trains with the given arguments, into a run folder of the given name.
    """
    task, run, results = trained
    measure = task.monitor.replace("val/", "test/")
    if run is None or measure not in results:
        return
    rows = [("this run", float(results[measure]), seconds)]
    for name, model in others.items():
        print(f"\nthe same with {name}:", flush=True)
        begun = time.monotonic()
        slug = "-".join("".join(c if c.isalnum() else " " for c in name).split())
        overlay = _overlay(run, slug, model)
        arguments = ["--config", str(run.config), "--config", str(overlay)]
        _, _, found = train([*arguments, "--runs", str(overlay.parent)], slug)
        rows.append((name, float(found[measure]), time.monotonic() - begun))
    for name, baseline in task.baselines().items():
        begun = time.monotonic()
        rows.append((name, baseline(), time.monotonic() - begun))
    width = max(len(name) for name, _, _ in rows)
    print(f"\n{'':<{width}}  {measure:>15}{'seconds':>10}")
    for name, value, taken in rows:
        print(f"{name:<{width}}  {value:>15.4f}{taken:>10.0f}")


def _overlay(run: Run, slug: str, model: Any) -> Path:
    path = run.folder / "against" / f"{slug}.yaml"
    path.parent.mkdir(exist_ok=True)
    options = {"against": None, "model": model}
    path.write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path
