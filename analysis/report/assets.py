"""The page's style and its script, both inline: nothing is fetched. Without the script the page says the same."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE", "TINTS"]

#: Greys from ink to ground, as a light and as a dark page has them: the variables --g0 to --g10.
_LIGHT = "#000000 #1a1a1a #333333 #4d4d4d #666666 #808080 #999999 #b3b3b3 #cccccc #e6e6e6 #ffffff"
_DARK = "#eef1f4 #e2e6ea #d3d9df #c3cad2 #b0b8c1 #98a1ab #828b95 #68717b #4d565f #343c45 #1a2027"
#: Colours of figures that change in the dark: the variable's name -> (light, dark).
TINTS = {"wine": ("#882255", "#d97aa9"), "blue": ("#0072b2", "#3f9fdc"), "asked": ("#dbe7d3", "#31432b")}


def _variables(place: int) -> str:
    """The colours of figures as CSS variables: 0 is light, 1 dark."""
    greys = (f"--g{number}:{colour};" for number, colour in enumerate((_LIGHT, _DARK)[place].split()))
    return "".join([*greys, *(f"--{name}:{colours[place]};" for name, colours in TINTS.items())])


#: Colours have a contrast of at least 4.5 to their ground (WCAG AA); figures follow the page, pictures stand on white.
STYLE = f"""
:root{{{_variables(0)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}
@media print{{:root{{{_variables(0)}}}}}
"""
STYLE += """
:root{--ink:#1b1f24;--soft:#515a66;--ground:#fff;--box:#f3f5f8;--line:#c9d0d9;--link:#00558a;--head:#e6edf5;
--yes:#0b5d35;--no:#9c2400;--open:#515a66}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebef;--soft:#b3bcc7;--ground:#14181d;--box:#1e242b;--line:#46505c;
--link:#8ac7f5;--head:#27323d;--yes:#7fdca9;--no:#ffab8f;--open:#b3bcc7}}
*{box-sizing:border-box}
html{color-scheme:light dark;scroll-behavior:smooth}
body{margin:0 auto;padding:1rem 1.25rem 4rem;max-width:68rem;font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;color:var(--ink);background:var(--ground);overflow-wrap:anywhere}
h1{font-size:1.8rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.4rem;line-height:1.25;margin:3rem 0 .75rem;padding-top:.75rem;border-top:3px solid var(--line)}
h3{font-size:1.13rem;margin:2.2rem 0 .4rem}
h4{font-size:1rem;margin:1.2rem 0 .2rem}
p,ul{margin:.4rem 0 .7rem;max-width:52rem}
li{margin:.15rem 0}
a{color:var(--link)}
a:focus-visible,button:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--link);
outline-offset:2px}
code{font:.86em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--box);
padding:.05em .3em;border-radius:3px}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem}
.headline{background:var(--box);border-left:6px solid var(--link);padding:.8rem 1.2rem;margin:1.2rem 0;
border-radius:4px}
.headline h2{border:0;margin:0;padding:0;font-size:1.15rem}
.headline ul{padding-left:1.1rem}
nav ul{columns:2;column-gap:2rem;padding-left:1.1rem;max-width:none}
nav li{break-inside:avoid}nav ul ul{columns:1}
.note,.reading,figcaption,.command{color:var(--soft);font-size:.92rem}
figure{margin:.8rem 0}
figure .chart{background:var(--g10);border:1px solid var(--line);border-radius:4px;padding:.4rem;overflow-x:auto}
figure svg{fill:var(--g0)}.chart:has(img){background:#fff}
figure svg,figure img{display:block;width:100%;height:auto;margin:0 auto}
figure.large .chart>*{width:56rem;max-width:none!important}
.scroll{overflow-x:auto;margin:.5rem 0 1rem;border:1px solid var(--line);border-radius:4px;max-height:80vh}
table{border-collapse:collapse;font-size:.88rem;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:.35rem .6rem;position:absolute;clip-path:inset(50%);width:1px;
height:1px;overflow:hidden}
th,td{padding:.28rem .6rem;text-align:left;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:normal}
thead th{background:var(--head);position:sticky;top:0;vertical-align:bottom}
td.n,th.n{text-align:right;white-space:nowrap}
td:not(.n){min-width:5.5rem}
thead th.n{white-space:normal}
td code{white-space:nowrap}
th button{font:inherit;color:var(--soft);background:none;border:0;padding:0 0 0 .25em;cursor:pointer}
th:has(button){cursor:pointer}
th button::after{content:"\\2195"}
th[aria-sort=ascending] button::after{content:"\\25B2"}
th[aria-sort=descending] button::after{content:"\\25BC"}
table.results td:last-child{min-width:11rem}
table.systems th{white-space:normal;min-width:8rem;vertical-align:top}
table.systems tbody th{background:var(--head);position:sticky;left:0}
details{margin:.5rem 0}
summary{cursor:pointer;color:var(--link);padding:.2rem 0}
.answer{font-weight:700;white-space:nowrap}
.supported{color:var(--yes)}.refuted{color:var(--no)}.open{color:var(--open)}
button.zoom{display:none;font:inherit;font-size:.9rem;color:var(--link);background:var(--box);
border:1px solid var(--line);border-radius:4px;padding:.3rem .7rem;margin-top:.35rem}
footer{margin-top:3rem;border-top:1px solid var(--line);color:var(--soft);font-size:.92rem}
@media (max-width:45rem){body{padding:.6rem .8rem 3rem}h1{font-size:1.45rem}h2{font-size:1.22rem}nav ul{columns:1}
.headline{padding:.6rem .9rem}button.zoom{display:inline-block}.scroll{max-height:none}}
@page{margin:13mm}
@media print{
:root{--ink:#000;--soft:#333;--ground:#fff;--box:#f3f5f8;--line:#999;--link:#00304f;--head:#e6edf5;--yes:#0b5d35;
--no:#9c2400;--open:#333}
html{color-scheme:light}
body{max-width:none;padding:0;font-size:10pt}
.scroll{overflow:visible;max-height:none;border:0}
thead th{position:static}thead{display:table-header-group}
table{font-size:7pt}table.wide{font-size:5.3pt}th,td{padding:1pt 2.5pt;overflow-wrap:anywhere}
td code{white-space:normal;font-size:.9em}td:not(.n){min-width:0}
.note,.reading,figcaption,.command{font-size:.9em}
tr,figure,.headline,li{break-inside:avoid}
h2,h3,h4,.reading{break-after:avoid}
figure svg,figure img{max-height:23cm}
figure .chart{overflow:visible;border:0;padding:0}
details::details-content{content-visibility:visible;display:block;block-size:auto;opacity:1}
summary{list-style:none;color:var(--soft)}
button,button.zoom,.skip{display:none}
a{text-decoration:none}
}
"""

#: Sorts tables by their headings, enlarges figures on small screens, opens what is collapsed for printing.
SCRIPT = """
"use strict";
function valueOf(row, place) {
  const cell = row.cells[place], exact = cell.dataset.v, words = cell.textContent;
  if (exact !== undefined) return Number(exact);
  return words !== "" && !isNaN(words) ? Number(words) : words;
}
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, {numeric: true});
}
function sortBy(table, place, heading) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0], rows = Array.from(body.rows);
  const known = rows.filter(row => valueOf(row, place) !== "-");
  const rest = rows.filter(row => valueOf(row, place) === "-");
  known.sort((a, b) => (down ? -1 : 1) * compare(valueOf(a, place), valueOf(b, place)));
  body.append(...known, ...rest);
}
for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-label", "Sort by " + heading.textContent);
    heading.append(button);
    heading.addEventListener("click", () => sortBy(table, place, heading));
  });
}
for (const figure of document.querySelectorAll("figure")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "zoom";
  button.textContent = "Enlarge";
  button.addEventListener("click", () => {
    button.textContent = figure.classList.toggle("large") ? "Fit to the screen" : "Enlarge";
  });
  figure.append(button);
}
let opened = [];
addEventListener("beforeprint", () => {
  opened = Array.from(document.querySelectorAll("details:not([open])"));
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
"""
