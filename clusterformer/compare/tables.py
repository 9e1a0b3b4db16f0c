"""The table of a comparison, for the terminal and as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence

from clusterformer.compare.origin import Origin, origin_of
from clusterformer.compare.significance import format_p
from clusterformer.compare.statistics import Cell, Summary

Bold = Callable[[str], str]

LATEX = str.maketrans(
    {
        **{character: rf"\{character}" for character in "%_&#${}"},
        **{character: f"${character}$" for character in "<>|"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "[": "{[}",  # after a line's end it would begin an argument
        "±": r"$\pm$",
    }
)
"""Characters of a cell in LaTeX."""


def header(summary: Summary) -> list[str]:
    """Return the titles of the columns."""
    titles = (_title(summary, column) for column in summary.columns)
    return ["", *titles, "p", *summary.cost_names]


def body(summary: Summary, bold: Bold = str) -> list[list[str]]:
    """Return the rows: cells as "mean ± deviation", then p against the baseline, then costs."""
    lines = []
    for row in summary.rows:
        cells = [_cell(summary.cells.get((row, column)), bold) for column in summary.columns]
        test = summary.significance.get(row)
        tested = f"{format_p(test.p)} (n = {test.num_pairs})" if test else "-"
        tested = "baseline" if row == summary.baseline else tested
        costs = ["-" if math.isnan(x) else format_number(x) for x in summary.costs_of(row)]
        lines.append([row, *cells, tested, *costs])
        if row in summary.paper:
            theirs = summary.paper[row]
            given = [format_number(theirs[c]) if c in theirs else "" for c in summary.columns]
            lines.append(["  in the paper", *given, "", *("" for _ in costs)])
    return lines


def text(summary: Summary) -> str:
    """Format the table for the terminal; the best of each column has a star."""
    table = aligned([header(summary), *body(summary, lambda cell: f"{cell}*")])
    return f"{table}\n* the best of its column"


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Align rows of cells for the terminal: names to the left, numbers to the right."""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return "\n".join(lines)


def markdown(summary: Summary) -> str:
    """Format the table as Markdown, and its notes below; the best of each column is bold."""
    head, *rows = header(summary), *body(summary, lambda cell: f"**{cell}**")
    marks = ["---", *("---:" for _ in head[1:])]
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (head, marks, *rows)]
    notes = ["", *(f"- {note}" for note in summary.notes)] if summary.notes else []
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), *notes, ""])


def latex(summary: Summary) -> str:
    """Format the table in LaTeX, with booktabs; the best of each column is bold."""
    head, *rows = header(summary), *body(summary, lambda cell: f"\0{cell}")
    lines = [" & ".join(_latex_cell(cell) for cell in line) + r" \\" for line in (head, *rows)]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def runs_csv(summary: Summary) -> str:
    """Format every run with all its measures as a line of CSV."""
    names = sorted({name for result in summary.results for name in result.measures})
    file = io.StringIO()
    writer = csv.writer(file)
    fixed = ["row", "column", "seed", "epochs", "seconds_an_epoch", "parameters", "peak_mib"]
    writer.writerow([*fixed, "epochs_to_converge", *Origin._fields, *names])
    for result in summary.results:
        measures = [result.measures.get(name, "") for name in names]
        values = [getattr(result, name) for name in fixed]
        origin = origin_of(result.environment)
        converged = result.epochs_to_converge
        near = "" if converged is None else f"{converged:g}"
        writer.writerow([*values, near, *origin, *measures])
    return file.getvalue()


def format_number(value: float) -> str:
    """Format a number with the few digits that carry information."""
    if value != value:
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f} M"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.2g}"
    return f"{value:.3f}" if abs(value) < 1.5 else f"{value:.2f}"


def _title(summary: Summary, column: str) -> str:
    several = len(set(summary.metrics.values())) > 1 and column in summary.metrics
    return (
        f"{column} {summary.metrics[column].partition('/')[2]}"
        if several
        else column or summary.metric
    )


def _cell(cell: Cell | None, bold: Bold) -> str:
    if cell is None:
        return "-"
    spread = "" if cell.spread is None else f" ± {format_number(cell.spread)}"
    text = format_number(cell.mean) + spread
    return bold(text) if cell.best else text


def _latex_cell(cell: str) -> str:
    escaped = cell.lstrip("\0").translate(LATEX)
    return rf"\textbf{{{escaped}}}" if cell.startswith("\0") else escaped
