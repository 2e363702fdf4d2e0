"""A differential flame graph: the work of a program by call stack, colored by its change.

The head is the version of the program to check, and the base is the version to compare it with. The
width of a frame is its share of the head's work. Its color shows the change from the base to the
head: red for more work, blue for less (B. Gregg, "Differential Flame Graphs", 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from paradnn.compare.profiles import WorkProfile

_WIDTH = 1200
_ROW = 17
_MARGIN = 10
_HEADER = 46
#: Frames with a share of the total work below this value are not drawn.
_MIN_SHARE = 0.0015
#: Width of a character of a label, in pixels.
_CHARACTER = 6.6
#: Change, as a share of the total work, at which a frame has the full color.
_FULL_COLOR = 0.01


class FunctionChange(NamedTuple):
    """The work of a function, without its callees, in two versions of a program.

    Attributes:
        name: Name of the function.
        base: Work in the base, the version to compare with: instructions or lines of Python.
        head: Work in the head, the version to check, in the same unit.
    """

    name: str
    base: int
    head: int

    @property
    def change(self) -> int:
        """Work in the head minus work in the base, in instructions or lines of Python."""
        return self.head - self.base


def changed_functions(head: WorkProfile, base: WorkProfile, most: int = 5) -> list[FunctionChange]:
    """Return the functions whose work without callees changed most, largest change first.

    Args:
        head: Profile of the version of the program to check.
        base: Profile of the version to compare with, in the same unit.
        most: Maximum number of functions.
    """
    names = {*head.own, *base.own}
    changes = [FunctionChange(name, base.own.get(name, 0), head.own.get(name, 0)) for name in names]
    changes = [change for change in changes if change.change]
    return sorted(changes, key=lambda change: (-abs(change.change), change.name))[:most]


@dataclass
class _Frame:
    """A function at one position of the call tree; `weight` is its work with all callees."""

    name: str
    weight: float = 0.0
    children: dict[str, _Frame] = field(default_factory=dict)


def _tree(profile: WorkProfile) -> _Frame:
    """Return the root of the call tree of a profile; the root has the name "all"."""
    root = _Frame("all")
    for stack, weight in profile.stacks.items():
        frame = root
        frame.weight += weight
        for name in stack:
            frame = frame.children.setdefault(name, _Frame(name))
            frame.weight += weight
    return root


def draw_flame_graph(head: WorkProfile, base: WorkProfile, labels: Sequence[str]) -> str:
    """Return a differential flame graph as the text of a self-contained SVG file.

    Args:
        head: Profile of the version of the program to check.
        base: Profile of the version to compare with, in the same unit.
        labels: Names of head and base.
    """
    first = _tree(head)
    second = _tree(base)
    boxes = list(
        _boxes(
            first, second, x=float(_MARGIN), row=0, width=_WIDTH - 2 * _MARGIN, total=first.weight
        )
    )
    depth = max(row for row, _ in boxes)
    height = _HEADER + (depth + 1) * _ROW + _MARGIN
    change = 100 * (head.total / max(base.total, 1) - 1)
    title = f"{labels[0]} against {labels[1]}: {change:+.2f}% {head.unit}"
    legend = f"Width: share of {head.unit}. Red: more than at {labels[1]}; blue: fewer."
    if head.is_reconstructed:
        legend += " Stacks are reconstructed from a call graph."
    drawn = "\n".join(box for _, box in boxes)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" \
viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="11">
<rect width="100%" height="100%" fill="#ffffff"/>
<g font-family="sans-serif">
<text x="{_MARGIN}" y="18" font-size="14">{escape(title)}</text>
<text x="{_MARGIN}" y="36" fill="#555555">{escape(legend)}</text>
</g>
{drawn}
</svg>
"""


def _boxes(
    frame: _Frame, base: _Frame | None, x: float, row: int, width: float, total: float
) -> Iterator[tuple[int, str]]:
    """Yield row number and SVG text of a frame, then those of its callees in the rows below.

    Args:
        frame: The frame in the head's call tree.
        base: The frame with the same call stack in the base; None if there is no such stack.
        x: Left edge of the frame in pixels.
        row: Row of the frame, from 0 at the top.
        width: Width of the frame in pixels.
        total: Total work of the head, in the unit of its profile.
    """
    base_weight = base.weight if base else 0.0
    change = frame.weight - base_weight
    label = frame.name
    characters = int((width - 4) / _CHARACTER)
    if len(label) > characters:
        label = label[: max(characters - 1, 0)] + "…" if characters > 3 else ""
    tip = (
        f"{frame.name}: {frame.weight:,.0f} "
        f"({100 * frame.weight / total:.2f}%), {change:+,.0f} against the base"
    )
    y = _HEADER + row * _ROW
    yield (
        row,
        f'<g><title>{escape(tip)}</title><rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" '
        f'height="{_ROW - 1}" fill="{_color(change / total)}" stroke="#ffffff" '
        f'stroke-width="0.4"/><text x="{x + 2:.1f}" y="{y + 12}">{escape(label)}</text></g>',
    )
    for child in sorted(frame.children.values(), key=lambda each: -each.weight):
        if child.weight < _MIN_SHARE * total:
            continue
        child_width = width * child.weight / frame.weight
        counterpart = base.children.get(child.name) if base else None
        yield from _boxes(child, counterpart, x, row + 1, child_width, total)
        x += child_width


def _color(change: float) -> str:
    """Return a color for a change: blue (less work), gray (equal) or red (more work).

    Args:
        change: Increase of a function's work, as a share of the total work.
    """
    strength = min(abs(change) / _FULL_COLOR, 1.0)
    faded = round(225 - 130 * strength)
    if change > 0:
        return f"rgb(240,{faded},{faded})"
    if change < 0:
        return f"rgb({faded},{faded},245)"
    return "rgb(225,225,225)"
