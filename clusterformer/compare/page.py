"""The page of a comparison: one HTML file without external parts, for screen, phone and paper."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterformer.compare.configs import differences
from clusterformer.compare.plots import along_a_key, quality_against, validation_curves
from clusterformer.compare.results import Result
from clusterformer.compare.statistics import Summary
from clusterformer.compare.tables import body, header
from clusterformer.compare.verdict import explain_test, verdict

STYLE = """
:root { color-scheme: light; --ink: #1a1a1a; --quiet: #5f5f5f; --faint: #dcdcdc; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; color: var(--ink);
  background: #fff; font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2.4rem 0 .6rem; }
p.note { color: var(--quiet); font-size: .85rem; margin: .3rem 0; }
p.alarm { border-left: 3px solid #b00020; padding-left: .6rem; font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid var(--faint);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid var(--ink); }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
tr.paper td { color: var(--quiet); }
svg, img { max-width: 100%; height: auto; display: block; }
figure { margin: 0 0 1rem; } figcaption { color: var(--quiet); font-size: .85rem; }
details { margin: .3rem 0; } summary { cursor: pointer; }
code { font-size: .8rem; overflow-wrap: anywhere; white-space: normal; }
td code { display: inline-block; min-width: 16rem; text-align: left; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } .wide { overflow: visible; }
  details > * { display: block; } h2, figure, tr { break-inside: avoid; } }
"""

SORT = """
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0];
  const heads = [...head.parentElement.children], index = heads.indexOf(head);
  const upward = head.getAttribute("aria-sort") === "descending";
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", upward ? "ascending" : "descending");
  const groups = [];  // a row, and the paper's row below it
  for (const row of body.rows) row.className ? groups.at(-1).push(row) : groups.push([row]);
  const value = ([row]) => row.children[index].dataset.value ?? row.children[index].textContent;
  groups.sort((a, b) => {
    const [x, y] = [a, b].map(value), [p, q] = [x, y].map(parseFloat);
    if (isNaN(p) !== isNaN(q)) return isNaN(p) - isNaN(q);
    const order = isNaN(p) ? y.localeCompare(x) : p - q;
    return upward ? order : -order;
  });
  body.append(...groups.flat());
};
"""


def page(summary: Summary, title: str, command: str) -> str:
    """Write the page.

    Args:
        summary: The table.
        title: Title of the page.
        command: Command line that makes the page again.
    """
    number = len(summary.results)
    seeds = len({result.seed for result in summary.results})
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="verdict">{_text(verdict(summary))}</p>',
        f'<p class="note">{number} runs, {seeds} seeds. <code>{_text(command)}</code></p>',
        *(f'<p class="alarm">{_text(note)}</p>' for note in summary.notes),
        _section("Results", _table(summary) + _how_to_read(summary)),
        _section("Learning curves", _figure(validation_curves(summary), "Mean over seeds; the "
                 "band spans the lowest and the highest.")),
        _section("Quality and cost", _pair([
            _figure(quality_against(summary, cost), f"Against {cost}.")
            for cost in ("seconds an epoch", "peak MiB")
        ])),
        *(_section(f"Along {key}", _figure(drawing, "Mean over runs."))
          for key, drawing in along_a_key(summary).items()),
        _section("Clusters", _clusters(summary.results)),
        _section("Different options", _differences(summary.results)),
        _section("Origin of the runs", _provenance(summary.results)),
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<script>{SORT}</script>\n</body>\n</html>\n"
    )


def _table(summary: Summary) -> str:
    heads = "".join(
        f'<th scope="col"><button>{_text(name) or "run"}</button></th>' for name in header(summary)
    )
    lines = []
    for cells in body(summary, lambda cell: f"\0{cell}"):
        exact = _exact(summary, cells[0]) if cells[0] in summary.costs else [None] * len(cells)
        shown = "".join(
            f"<td{'' if value is None else f' data-value={value:g}'}>{_bold(cell)}</td>"
            for cell, value in zip(cells, exact, strict=True)
        )
        paper = "" if cells[0] in summary.costs else ' class="paper"'
        lines.append(f"<tr{paper}>{shown}</tr>")
    return _wide(f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>")


def _exact(summary: Summary, row: str) -> list[float | None]:
    """Return the values by which the cells of a row are sorted, None for sorting by text."""
    cells = (summary.cells.get((row, column)) for column in summary.columns)
    means = [None if cell is None else cell.mean for cell in cells]
    test = summary.significance.get(row)
    return [None, *means, test and test.p, *summary.costs_of(row)]


def _bold(cell: str) -> str:
    return f"<b>{_text(cell[1:])}</b>" if cell.startswith("\0") else _text(cell)


def _how_to_read(summary: Summary) -> str:
    better = "higher" if summary.mode == "max" else "lower"
    return (
        f'<p class="note">{_text(summary.metric)}, {better} is better: mean ± standard deviation '
        f"over seeds; the best value of a column is bold. {_text(explain_test(summary))} "
        "Epochs to converge: the first epoch whose validation is within 1 % of the best.</p>"
    )


def _clusters(results: Sequence[Result]) -> str:
    shown = {}
    for result in results:
        folder = Path(result.folder) / "pictures" if result.folder else None
        found = sorted(folder.glob("clusters-layer*.png")) if folder else []
        if found and result.row not in shown:
            data = base64.b64encode(_few_colours(found[0])).decode()
            caption = f"{result.row}{', ' + result.column if result.column else ''}, layer 1"
            shown[result.row] = (
                f'<figure><img alt="Tokens by cluster: {_text(caption)}" '
                f'src="data:image/png;base64,{data}"><figcaption>{_text(caption)}</figcaption>'
                "</figure>"
            )
    return "".join(shown.values())


def _few_colours(picture: Path) -> bytes:
    """Compress a PNG of few colours to a quarter; the page holds one for each row."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return small.getvalue()


def _differences(results: Sequence[Result]) -> str:
    different = {
        key: values
        for key, values in differences([result.config for result in results]).items()
        if key not in ("seed_everything", "runs")
    }
    if not different:
        return ""
    rows = list(dict.fromkeys((result.row, result.column) for result in results))
    first = {(r.row, r.column): index for index, r in reversed(list(enumerate(results)))}
    heads = "".join(f"<th>{_text(' / '.join(filter(None, row)))}</th>" for row in rows)
    lines = "".join(
        f"<tr><td>{_text(key)}</td>"
        + "".join(f"<td>{_shown(values[first[row]])}</td>" for row in rows)
        + "</tr>"
        for key, values in different.items()
    )
    return _wide(
        f"<table><thead><tr><th>key</th>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    )


def _provenance(results: Sequence[Result]) -> str:
    lines = []
    for result in results:
        environment = result.environment
        packages = environment.get("packages", {})
        versions = ", ".join(f"{name} {version}" for name, version in packages.items())
        hardware = ", ".join(environment.get("gpus") or [f"{environment.get('cpus', '?')} CPUs"])
        lines.append(
            f"<tr><td>{_text(result.row)}</td><td>{_text(result.column)}</td><td>{result.seed}</td>"
            f"<td>{_text(str(environment.get('commit') or '-')[:12])}</td>"
            f"<td>{_text(hardware)}</td>"
            f"<td><code>{_text(environment.get('command', ''))}</code></td>"
            f"<td><code>{_text(versions)}</code></td></tr>"
        )
    heads = "".join(
        f"<th>{name}</th>"
        for name in ("run", "on", "seed", "commit", "hardware", "command", "versions")
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f"<details><summary>{len(lines)} runs</summary>{_wide(table)}</details>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{content}</section>" if content else ""


def _figure(drawing: str | None, caption: str) -> str:
    if drawing is None:
        return ""
    return f"<figure>{drawing}<figcaption>{_text(caption)}</figcaption></figure>"


def _pair(figures: list[str]) -> str:
    inside = "".join(figures)
    return f'<div class="pair">{inside}</div>' if inside else ""


def _wide(table: str) -> str:
    return f'<div class="wide" tabindex="0">{table}</div>'


def _shown(value: Any) -> str:
    return "-" if value is None else _text(str(value))


def _text(text: str) -> str:
    return html.escape(text)
