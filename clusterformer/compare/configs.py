"""Configurations as dotted keys, and the differences between those of several runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_START = "model.init_from"


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into dotted keys.

    `class_path` and `init_args` leave no keys of their own: the class's name is the value of the
    key above, its arguments are keys below that.
    """
    if not isinstance(tree, dict):
        return {prefix: tree}
    if "class_path" in tree:
        name = str(tree["class_path"]).rpartition(".")[2]
        return {prefix: name} | _flatten_entries(tree.get("init_args") or {}, prefix)
    return _flatten_entries(tree, prefix)


def _flatten_entries(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Find the keys, sorted, whose values are not the same in all configurations.

    Returns:
        Key to its value in each configuration, None where it is absent.
    """
    keys = sorted({key for config in configs for key in config})
    found = {key: [config.get(key) for config in configs] for key in keys}
    return {key: values for key, values in found.items() if any(v != values[0] for v in values)}


def name_rows(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Name the row and column of each run, by what distinguishes its configuration.

    A row is the mechanism, with the options of the model that differ, its own only between runs of
    that mechanism; or a simple method, which has no model. A column is the data. Runs that would
    share a cell and a seed are told apart by what else differs between them: options of the data
    name the column too, those of the training the row.
    """
    configs = _without_run_numbers(configs)
    networks = [config for config in configs if not config.get("method")]
    options = [key for key in differences(networks) if _is_model_option(key)]
    mechanisms = {config.get("model.attention") for config in networks}
    own = {
        mechanism: differences([c for c in networks if c.get("model.attention") == mechanism])
        for mechanism in mechanisms
    }

    def name(config: Mapping[str, Any], keys: Sequence[str]) -> str:
        told = own.get(config.get("model.attention"), {})
        named = [key for key in keys if key in told or not key.startswith("model.attention.")]
        return _name_row(config, named)

    rows = [name(config, options) for config in configs]
    columns = [str(config.get("data.name") or config.get("data") or "") for config in configs]

    together: dict[tuple[str, str, Any], list[Mapping[str, Any]]] = {}
    for config, row, column in zip(configs, rows, columns, strict=True):
        cell = row, column, config.get("seed_everything")
        together.setdefault(cell, []).append(config)
    apart = [key for group in together.values() for key in differences(group)]
    of_training = sorted({key for key in apart if _is_of_training(key)})
    of_data = sorted({key for key in apart if key.startswith("data.")} - {*of_training})

    rows = _shorten([name(config, options + of_training) for config in configs])
    columns = [
        ", ".join([column, *_options(config, of_data)])
        for config, column in zip(configs, columns, strict=True)
    ]
    return list(zip(rows, columns, strict=True))


def _without_run_numbers(configs: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Leave out the numbers of runs that others start from, if each seed starts from its own."""
    starts = [config.get(_START) for config in configs]
    cut = [
        {**config, _START: re.sub(r"/(seed-)?\d+(?=/|$)", "", str(start))} if start else config
        for config, start in zip(configs, starts, strict=True)
    ]
    begun: dict[str, set[Any]] = {}  # by all that makes a row and a column, and the seed
    for config, start in zip(cut, starts, strict=True):
        begun.setdefault(repr(sorted(config.items())), set()).add(start)
    return cut if all(len(found) == 1 for found in begun.values()) else configs


def with_data_of(trained: Mapping[str, Any], tested: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration that names a test of a model: its row's, in the column of the data.

    Args:
        trained: Configuration of the training.
        tested: Configuration of the test. If its data are those of the training, what else it
            changed names it, and it is returned as it is.
    """
    keys = [k for k in tested if k.startswith("data.") and not _is_of_training(k)]
    changed = {key: tested[key] for key in keys if tested[key] != trained.get(key)}
    return {**trained, **changed} if changed else tested


_OF_TRAINING = (
    *("average", "monitor", "patience"),
    *(f"data.{name}" for name in ("epoch_steps", "batch_size", "tokens_per_batch")),
    "data.frames_per_batch",
)
"""Options, beside the trainer's, of how a model is trained on the same data."""


def _is_of_training(key: str) -> bool:
    return key.startswith("trainer.") or key in _OF_TRAINING


def _is_model_option(key: str) -> bool:
    return key.startswith("model.") and key != "model.attention"


def _name_row(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    if method := config.get("method"):
        return str(method)
    return ", ".join([str(config.get("model.attention", "run")), *_options(config, keys)])


def _options(config: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    named = [(key.rpartition(".")[2], config.get(key)) for key in keys]
    return [f"{name}={_plain(value)}" for name, value in named if value is not None]


def _shorten(rows: Sequence[str]) -> list[str]:
    """Leave the options out where the mechanism distinguishes the rows."""
    kinds = {row: row.partition(",")[0] for row in rows}
    number = Counter(kinds.values())  # of different rows
    return [kinds[row] if number[kinds[row]] == 1 else row for row in rows]


def _plain(value: Any) -> Any:
    """Write 1.0 as 1, as Weights & Biases does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
