"""Style and script of the page of a comparison."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --quiet: #5f5f5f;
  --faint: #dcdcdc; --alarm: #b00020; --shade: #0003; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e8e8e8; --quiet: #a8a8a8;
  --faint: #3a3d42; --alarm: #ff8a80; --shade: #fff4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2.4rem 0 .6rem; }
p.verdict { font-size: 1.1rem; max-width: 60rem; }
p.note { color: var(--quiet); font-size: .85rem; margin: .3rem 0; }
p.alarm { border-left: 3px solid var(--alarm); padding-left: .6rem; font-size: .85rem; }
/* a shadow at an edge where more is hidden */
.wide, section > figure { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 3rem 100% local no-repeat,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% local no-repeat,
  linear-gradient(to right, var(--shade), transparent) left / .9rem 100% no-repeat,
  linear-gradient(to left, var(--shade), transparent) right / .9rem 100% no-repeat; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .5rem; text-align: right; border-bottom: 1px solid var(--faint);
  white-space: nowrap; overflow-wrap: normal; }
th:first-child, td:first-child, .words td { text-align: left; }
th:first-child, td:first-child { white-space: normal; min-width: 7rem; }
thead th { border-bottom: 2px solid var(--ink); white-space: normal; vertical-align: bottom; }
tbody th { font-weight: normal; }
.words th { text-align: left; }
.words td { white-space: normal; overflow-wrap: anywhere; vertical-align: top; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
tr.paper > * { color: var(--quiet); }
svg, img { max-width: 100%; height: auto; display: block; }
img { background: #fff; }
figure { margin: 0 0 1rem; } figcaption { color: var(--quiet); font-size: .85rem; }
details { margin: .3rem 0; } summary { cursor: pointer; }
code { font-size: .8rem; overflow-wrap: anywhere; white-space: normal; }
td code { display: inline-block; min-width: 12rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem; }
@media (max-width: 40rem) { section > figure svg { min-width: 36rem; } }
@media print { :root { color-scheme: light; --paper: #fff; --ink: #1a1a1a; --quiet: #5f5f5f;
  --faint: #dcdcdc; } body { max-width: none; padding: 0; font-size: 11pt; }
  .wide, section > figure { overflow: visible; background: none; } details > * { display: block; }
  h2, figure, tr { break-inside: avoid; } }
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
