"""The page of a comparison: one HTML file without external parts, for screen, phone and paper."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from clusterformer.compare.choosing import Choice
from clusterformer.compare.configs import differences
from clusterformer.compare.heat_maps import heat_maps
from clusterformer.compare.origin import origin_of
from clusterformer.compare.page_style import SORT, STYLE
from clusterformer.compare.plots import along_a_key, quality_against, validation_curves
from clusterformer.compare.results import Result
from clusterformer.compare.statistics import Summary
from clusterformer.compare.tables import body, format_number, header
from clusterformer.compare.verdict import explain_test, verdict
from clusterformer.wording import counted

KEYS_SEEN = (
    "Keys seen: the share of its text that a token attends to in a layer, up to itself where "
    "attention is causal; mean over tokens, heads and layers. At 1 nothing is selected."
)


def page(summary: Summary, title: str, command: str) -> str:
    """Write the page.

    Args:
        summary: The table.
        title: Title of the page.
        command: Command line that makes the page again.
    """
    runs = counted(summary.num_runs, "run")
    seeds = counted(len({result.seed for result in summary.results}), "seed")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict">{escape(verdict(summary))}</p>',
        f'<p class="note">{runs}, {seeds}. <code>{escape(command)}</code></p>',
        *(f'<p class="alarm">{escape(note)}</p>' for note in summary.notes),
        _section("Results", _table(summary) + _how_to_read(summary)),
        _section("Chosen by validation", _choices(summary.choices)),
        _section("Learning curves", _figure(validation_curves(summary), "Validation by steps: "
                 "mean over seeds; the band spans the lowest and the highest.")
                 + _figure(validation_curves(summary, "second"), "The same by seconds.")),
        _section("Quality and cost", _pair([
            _figure(quality_against(summary, cost), f"Against {cost}.")
            for cost in ("seconds an epoch", "peak MiB", "keys seen")
        ])),
        *(_section(f"Along {key}", _figure(drawing, "Mean over runs."))
          for key, drawing in along_a_key(summary).items()),
        _section("Heat maps", _figure(heat_maps(summary), f"{summary.metric}, mean over seeds.")),
        _section("Clusters", _clusters(summary.results)),
        _section("What differs", _differences(summary.results)),
        _section("Origin of the runs", _provenance(summary.results)),
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<script>{SORT}</script>\n</body>\n</html>\n"
    )


def _table(summary: Summary) -> str:
    heads = "".join(
        f'<th scope="col"><button>{escape(name) or "run"}</button></th>' for name in header(summary)
    )
    lines = []
    for cells in body(summary, lambda cell: f"\0{cell}"):
        exact = _exact(summary, cells[0]) if cells[0] in summary.costs else [None] * len(cells[1:])
        shown = "".join(
            f"<td{'' if value is None else f' data-value={value:g}'}>{_bold(cell)}</td>"
            for cell, value in zip(cells[1:], exact, strict=True)
        )
        paper = "" if cells[0] in summary.costs else ' class="paper"'
        lines.append(f'<tr{paper}><th scope="row">{escape(cells[0])}</th>{shown}</tr>')
    return _html_table(heads, lines)


def _exact(summary: Summary, row: str) -> list[float | None]:
    """Return the values by which a row's cells behind its name are sorted; None: by their text."""
    cells = (summary.cells.get((row, column)) for column in summary.columns)
    means = [None if cell is None else cell.mean for cell in cells]
    test = summary.significance.get(row)
    costs = (None if math.isnan(cost) else cost for cost in summary.costs_of(row))
    return [*means, test and test.p, *costs]


def _bold(cell: str) -> str:
    return f"<b>{escape(cell[1:])}</b>" if cell.startswith("\0") else escape(cell)


def _how_to_read(summary: Summary) -> str:
    better = "higher" if summary.mode == "max" else "lower"
    seen = KEYS_SEEN if "keys seen" in summary.cost_names else ""
    return (
        f'<p class="note">{escape(summary.metric)}, {better} is better: mean ± standard deviation '
        f"over seeds; the best value of a column is bold. {escape(explain_test(summary))} "
        f"{seen} Epochs to converge: the first epoch whose validation is within 1 % of the "
        "best.</p>"
    )


def _choices(choices: Sequence[Choice]) -> str:
    names = list(dict.fromkeys(name for choice in choices for name in choice.scores))
    lines = []
    for choice in choices:
        cells = [choice.row, choice.column]
        for name in names:
            score = choice.scores.get(name, math.nan)
            shown = "-" if math.isnan(score) else format_number(score)
            cells.append(f"\0{shown}" if name == choice.chosen else shown)
        lines.append(f"<tr>{''.join(f'<td>{_bold(cell)}</td>' for cell in cells)}</tr>")
    if not lines:
        return ""
    measures = ", ".join(dict.fromkeys(choice.measure for choice in choices))
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("row", "column", *names))
    note = f'<p class="note">{escape(measures)}, mean over seeds; the choice is bold.</p>'
    return _html_table(heads, lines) + note


def _clusters(results: Sequence[Result]) -> str:
    shown = {}
    for result in results:
        folder = Path(result.folder) / "pictures" if result.folder else None
        found = sorted(folder.glob("clusters-layer*.png")) if folder else []
        if found and result.row not in shown:
            data = base64.b64encode(_small(found[0])).decode()
            caption = f"{result.row}{', ' + result.column if result.column else ''}, layer 1"
            shown[result.row] = (
                f'<figure><img alt="Tokens by cluster: {escape(caption)}" '
                f'src="data:image/png;base64,{data}"><figcaption>{escape(caption)}</figcaption>'
                "</figure>"
            )
    return "".join(shown.values())


def _small(picture: Path) -> bytes:
    """Compress a PNG of few colours to half; the page holds one for each row."""
    from PIL import Image

    image = Image.open(picture).convert("RGB")
    image.thumbnail((1000, 1000), Image.Resampling.LANCZOS)  # pixels; wider than it is shown
    small = io.BytesIO()
    image.quantize(32).save(small, "PNG", optimize=True)
    return small.getvalue()


def _differences(results: Sequence[Result]) -> str:
    different = {
        key: values
        for key, values in differences([result.config for result in results]).items()
        if key not in ("seed_everything", "runs")
    }
    if not different:
        return ""
    first: dict[tuple[str, str], int] = {}
    for index, result in enumerate(results):
        first.setdefault((result.row, result.column), index)
    lines = []
    for (row, column), index in first.items():
        own = [
            f"{key}={values[index]}"
            for key, values in different.items()
            if index == 0 or values[index] != values[0]
        ]
        name = " / ".join(filter(None, (row, column)))
        options = "".join(f"<code>{escape(option)}</code><br>" for option in own) or "nothing"
        lines.append(f"<tr><td>{escape(name)}</td><td>{options}</td></tr>")
    heads = "<th>run</th><th>options that differ from the first run</th>"
    return _html_table(heads, lines, words=True)


def _provenance(results: Sequence[Result]) -> str:
    lines = []
    for result in results:
        commit, command, machine, versions = origin_of(result.environment)
        short = re.sub(r"\b([0-9a-f]{12})[0-9a-f]+", r"\1", commit)
        cells = [result.row, result.column, str(result.seed), short, machine, command, versions]
        shown = [escape(cell) for cell in cells[:3]]
        shown += [f"<code>{escape(cell)}</code>" if cell else "not recorded" for cell in cells[3:]]
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in shown)}</tr>")
    names = ("run", "on", "seed", "commit", "machine", "command", "versions")
    heads = "".join(f"<th>{name}</th>" for name in names)
    table = _html_table(heads, lines, words=True)
    return f"<details><summary>{counted(len(lines), 'run')}</summary>{table}</details>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _figure(drawing: str | None, caption: str) -> str:
    if drawing is None:
        return ""
    told = escape(caption)  # in place of the drawing's loose numbers, where a page is read aloud
    named = drawing.replace("<svg", f'<svg role="img" aria-label="{told}"', 1)
    return f"<figure>{named}<figcaption>{told}</figcaption></figure>"


def _pair(figures: list[str]) -> str:
    inside = "".join(figures)
    return f'<div class="pair">{inside}</div>' if inside else ""


def _html_table(heads: str, lines: Sequence[str], *, words: bool = False) -> str:
    """Make a table, of numbers unless it is of words, that scrolls where it is too wide."""
    kind = ' class="words"' if words else ""
    rows = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide" tabindex="0"><table{kind}>{rows}</table></div>'
