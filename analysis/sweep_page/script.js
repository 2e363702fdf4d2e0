"use strict";
// Plotly's script is in the page as compressed base64, a third of its size. Figures are drawn when they scroll into
// view, so that a page with many of them opens at once.
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]};
  const observer = new IntersectionObserver((entries) => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      const figure = figures[Number(target.id.replace("figure-", ""))];
      Plotly.newPlot(target, figure.traces, figure.layout, config);
    }
  }, {rootMargin: "300px"});
  for (const element of document.querySelectorAll(".figure")) observer.observe(element);
})();
