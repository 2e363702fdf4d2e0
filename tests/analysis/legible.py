"""Checks that the texts of a saved figure are complete, large enough and free of overlaps."""

from collections.abc import Iterator
from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def faults(figure: Figure) -> list[str]:
    """Return one sentence per legibility problem; empty for a readable figure.

    Problems are texts below 5.9 points, cut-off texts and overlapping texts. The figure is drawn at
    its own dpi.
    """
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    hidden = set(_undrawn(figure))
    boxes: list[tuple[str, Bbox]] = []
    slanted = set()
    found = []
    for text in figure.findobj(Text):
        if (
            not isinstance(text, Text)
            or id(text) in hidden
            or not text.get_visible()
            or not text.get_text().strip()
        ):
            continue
        if text.get_rotation() % 90:
            slanted.add(
                len(boxes)
            )  # the boxes of slanted texts may overlap although the texts do not
        boxes.append((text.get_text(), text.get_window_extent(renderer)))
        if text.get_fontsize() < 5.9:
            size = text.get_fontsize()
            found.append(
                f"{text.get_text()!r} is {size:.1f} points in size, below the limit of 5.9"
            )
    whole = figure.bbox
    for name, box in boxes:
        if (
            box.x0 < whole.x0 - 1
            or box.x1 > whole.x1 + 1
            or box.y0 < whole.y0 - 1
            or box.y1 > whole.y1 + 1
        ):
            found.append(f"{name!r} is cut off")
    upright = [box for index, box in enumerate(boxes) if index not in slanted]
    for (name, first), (other_name, second) in combinations(upright, 2):
        overlap_width = min(first.x1, second.x1) - max(first.x0, second.x0)
        overlap_height = min(first.y1, second.y1) - max(first.y0, second.y0)
        if overlap_width > 1.5 and overlap_height > 1.5:
            found.append(f"{name!r} is over {other_name!r}")
    return found


def _undrawn(figure: Figure) -> Iterator[int]:
    """Yield the ids of texts of ticks and axes that are not drawn.

    Undrawn ticks lie outside the view or belong to a panel without axes.
    """
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            shown = axes.get_visible() and axes.axison
            # type: ignore[attr-defined]
            if shown:
                drawn = {id(tick) for tick in axis._update_ticks()}
            else:
                drawn = set()
            for tick in (*axis.majorTicks, *axis.minorTicks):
                if id(tick) not in drawn:
                    yield from (id(tick.label1), id(tick.label2))
            if not shown:
                yield from (id(axis.label), id(axis.offsetText))
