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
  // Virtual machines and remote desktops often lack WebGL, which draws many marks and parallel coordinates.
  const hasWebGl = Boolean(document.createElement("canvas").getContext("webgl"));
  const draw = (element, {traces, layout}) => {
    if (hasWebGl) return Plotly.newPlot(element, traces, layout, config);
    if (traces.some(({type}) => type === "parcoords")) {
      element.textContent = "This figure needs WebGL, which this browser does not offer.";
      element.className = "caption";
      return null;
    }
    const vector = traces.map((trace) => ({...trace, type: trace.type.replace("scattergl", "scatter")}));
    return Plotly.newPlot(element, vector, layout, config);
  };
  const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]};
  const observer = new IntersectionObserver((entries) => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      draw(target, figures[Number(target.id.replace("figure-", ""))]);
    }
  }, {rootMargin: "300px"});
  for (const element of document.querySelectorAll(".figure")) observer.observe(element);
})();
