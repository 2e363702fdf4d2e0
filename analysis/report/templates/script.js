"use strict";
// Sorts tables by their headings, enlarges figures on small screens, and opens folded parts: the target of a link, all
// parts for printing, and all parts on demand. Without this script the page has the same content.
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
function button(words, name) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = words;
  if (name) made.className = name;
  return made;
}
for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, place) => {
    const sort = button("");
    sort.setAttribute("aria-label", "Sort by " + heading.textContent);
    heading.append(sort);
    heading.addEventListener("click", () => sortBy(table, place, heading));
  });
}
for (const figure of document.querySelectorAll("details figure")) {
  const zoom = button("Enlarge", "zoom");
  zoom.addEventListener("click", () => {
    zoom.textContent = figure.classList.toggle("large") ? "Fit to the screen" : "Enlarge";
  });
  figure.append(zoom);
}
function reveal() {
  let found = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!found) return;
  for (let each = found; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  found.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
const folded = () => Array.from(document.querySelectorAll("details:not([open])"));
const nav = document.querySelector("nav");
if (nav && folded().length) {
  const all = button("Open all", "all");
  all.addEventListener("click", () => {
    const closed = folded();
    for (const one of closed.length ? closed : document.querySelectorAll("details")) one.open = closed.length > 0;
    all.textContent = closed.length ? "Fold all" : "Open all";
  });
  nav.append(all);
}
let opened = [];
addEventListener("beforeprint", () => {
  opened = folded();
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
