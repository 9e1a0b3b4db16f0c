"""What `clusterformer bench` prints and writes: rows as they are measured, then a plot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterformer.bench.report import Row


COLUMNS = {
    "forward_ms": ("forward", "{:.1f}"),
    "median_ms": ("ms", "{:.1f}"),
    "attention_ms": ("attention", "{:.1f}"),
    "optimizer_ms": ("optimizer", "{:.1f}"),
    "data_ms": ("data", "{:.1f}"),
    "peak_mib": ("MiB", "{:.0f}"),
    "times_floor": ("x floor", "{:.2f}"),
    "keys_seen": ("keys", "{:.3g}"),
}
"""Key of a row to the heading and format of its column."""


def print_times(row: Row, rows: Sequence[Row]) -> None:
    """Print a row of times and memory, the headings before the first.

    Args:
        row: The row.
        rows: All rows so far, this one included; "of full" compares it with full attention of
            the same length.
    """
    columns = {key: spec for key, spec in COLUMNS.items() if key in row}
    if len(rows) == 1:
        heads = "".join(f"{head:>11}" for head, _ in columns.values())
        print(f"{'length':>7}  {'mechanism':<28}{heads}{'of full':>11}")
    full = [
        r["median_ms"]
        for r in rows
        if r["length"] == row["length"] and r["mechanism"] in ("FullAttention", "full")
    ]
    share = f"{row['median_ms'] / full[0]:.2f}" if full else "-"
    cells = "".join(
        f"{'-' if row[key] is None else form.format(row[key]):>11}"
        for key, (_, form) in columns.items()
    )
    print(f"{row['length']:>7}  {row['mechanism']:<28}{cells}{share:>11}", flush=True)


def report_each(
    options: argparse.Namespace, measured: Iterable[Row], **sections: Any
) -> Iterator[list[Row]]:
    """Write each row to `--out` as it comes, and say so behind the last.

    Yields:
        All rows so far, the new one last.
    """
    rows: list[Row] = []
    for row in measured:
        rows.append(row)
        yield rows
        update_report(options, rows, **sections)
    if rows:
        finish_report(options, rows, **sections)


def finish_report(options: argparse.Namespace, rows: Sequence[Row], **measured: Any) -> None:
    """Write the report to `--out`, if it is given, with the options as its settings; say so."""
    update_report(options, rows, **measured)
    if options.out:
        print(f"written: {options.out}")


def update_report(options: argparse.Namespace, rows: Sequence[Row], **measured: Any) -> None:
    """Write the rows so far to `--out`, if it is given: whatever ends the process loses none."""
    if options.out is None:
        return
    import torch

    from clusterformer.bench.report import write_report

    settings = {key: value for key, value in vars(options).items() if key != "out"}
    settings["threads"] = torch.get_num_threads()
    write_report(options.out, rows, settings=settings, **measured)


def save_plot(
    plot: Callable[..., None], options: argparse.Namespace, rows: Sequence[Row], title: str
) -> None:
    """Draw beside `--out`, where matplotlib is installed."""
    path = options.out.with_suffix(".png")
    try:
        plot(rows, path, title=title)
    except ImportError:
        print("no plot: pip install 'clusterformer[plots]'")
    else:
        print(f"written: {path}")
