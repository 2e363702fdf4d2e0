"use strict";
// Shows the value of the nearest mark at the pointer, and enlarges the chart that is clicked.
const picture = document.querySelector("svg");
const readout = document.getElementById("readout");
const whole = picture.getAttribute("viewBox");
const reach = 25; // pixels
const tips = new Map();
for (const title of picture.querySelectorAll("title")) {
  tips.set(title.parentNode, title.textContent);
  title.remove();
}
let near = null;

function distance(element, event) {
  const box = element.getBoundingClientRect();
  return Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2);
}

function markAt(event) {
  const chart = event.target.closest(".chart");
  let best = null;
  let least = reach;
  for (const dot of chart ? chart.querySelectorAll("circle") : []) {
    const away = tips.has(dot) ? distance(dot, event) : Infinity;
    if (away < least) {
      best = dot;
      least = away;
    }
  }
  for (let one = event.target; !best && one && one !== picture; one = one.parentNode) {
    best = tips.has(one) ? one : null;
  }
  return best;
}

picture.addEventListener("pointermove", (event) => {
  const found = markAt(event);
  if (near) near.classList.remove("near");
  near = found;
  readout.style.display = found ? "block" : "none";
  if (!found) return;
  if (found.tagName === "circle") found.classList.add("near");
  readout.textContent = tips.get(found);
  const room = window.innerWidth - readout.offsetWidth - 8;
  readout.style.left = `${Math.max(0, Math.min(event.clientX + 14, room))}px`;
  readout.style.top = `${Math.max(0, event.clientY - 34)}px`;
});
picture.addEventListener("pointerleave", () => {
  readout.style.display = "none";
});
picture.addEventListener("click", (event) => {
  const chart = event.target.closest(".chart");
  const enlarged = !picture.classList.contains("enlarged") && chart;
  picture.classList.toggle("enlarged", Boolean(enlarged));
  const [x, y] = enlarged ? chart.getAttribute("transform").match(/[\d.]+/g) : [];
  picture.setAttribute("viewBox", enlarged ? `${x} ${y} 560 300` : whole);
});
