"""Configurations as dotted keys, and the differences between those of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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

    A row is the mechanism, with the options of the model that differ; a column is the data.
    """
    different = differences(configs)
    named = []
    for index, config in enumerate(configs):
        options = {
            key.rpartition(".")[2]: _plain(values[index])
            for key, values in different.items()
            if key.startswith("model.") and key != "model.attention" and values[index] is not None
        }
        kind = str(config.get("model.attention", "run"))
        row = ", ".join([kind, *(f"{key}={value}" for key, value in options.items())])
        named.append((row, str(config.get("data.name") or config.get("data") or "")))
    rows = {row for row, _ in named}
    short = {row: row for row in rows}
    for row in rows:  # without options, where the mechanism distinguishes the rows
        kind = row.partition(",")[0]
        if sum(other.partition(",")[0] == kind for other in rows) == 1:
            short[row] = kind
    return [(short[row], column) for row, column in named]


def _plain(value: Any) -> Any:
    """Write 1.0 as 1, as Weights & Biases does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
