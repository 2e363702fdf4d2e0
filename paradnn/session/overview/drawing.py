"""Charts as SVG text, drawn in about a millisecond without a library.

Matplotlib takes 0.45 s of processor time for four charts, which would delay the next point. A chart
is a list of marks on two axes. A page places charts in a grid.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

#: Colors of Okabe and Ito (Color Universal Design, 2008), as in the figures of the analyses.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
YELLOW = "#E69F00"
SKY = "#56B4E9"
GRAY = "#888888"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY)

#: Size of a chart, space around its plot, and space between charts, in pixels.
WIDTH = 560
HEIGHT = 300
_LEFT = 74
_RIGHT = 16
_TOP = 30
_BOTTOM = 46
_GAP = 20
_LINE = 19  # height of a line of text below the title of a page
_CHARACTER = 6.3  # mean width of a character at a font size of 12 pixels, rounded up
#: Minimum ratio of the ends of a logarithmic axis.
_MIN_RATIO = 4.0
_MAX_TICKS = 6

Point = tuple[float, float]
Text = Callable[[float], str]


def plain_number(value: float) -> str:
    """Return a number with at most six significant digits, without trailing zeros."""
    return f"{value:,.6g}"


@dataclass(frozen=True)
class ChartAxis:
    """A horizontal or vertical axis of a chart.

    Attributes:
        label: Name and unit of the quantity.
        low: Value at the left or the bottom.
        high: Value at the right or the top.
        is_log: Whether the axis is logarithmic.
        text: Formats the value at a tick as text.
    """

    label: str
    low: float
    high: float
    is_log: bool = False
    text: Text = plain_number

    @classmethod
    def linear(
        cls,
        label: str,
        values: Iterable[float],
        text: Text = plain_number,
        *,
        has_zero: bool = False,
    ) -> ChartAxis:
        """Return a linear axis that covers the finite values, with a margin.

        Args:
            label: Name and unit of the quantity.
            values: The values to show. Infinite values and NaN are ignored.
            text: Formats the value at a tick as text.
            has_zero: Whether to include zero, without a margin at the low end.
        """
        known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low = min(known)
        high = max(known)
        if has_zero:
            low = min(0.0, low)
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        return cls(label, low if has_zero else low - margin, high + margin, text=text)

    @classmethod
    def log(cls, label: str, values: Iterable[float], text: Text = plain_number) -> ChartAxis:
        """Return a logarithmic axis that covers the positive finite values, with a margin.

        Args:
            label: Name and unit of the quantity.
            values: The values to show. Values that are not positive and finite are ignored.
            text: Formats the value at a tick as text.
        """
        known = [value for value in values if 0 < value < math.inf] or [1.0, 10.0]
        low = min(known)
        high = max(known)
        widening = max(1.2, math.sqrt(_MIN_RATIO * low / high))
        return cls(label, low / widening, high * widening, is_log=True, text=text)

    def share(self, value: float) -> float:
        """Return the relative position of a value on the axis: 0 at `low`, 1 at `high`.

        A value outside the axis is moved to the nearer end.
        """
        if not self.is_log:
            position = (value - self.low) / (self.high - self.low)
        elif value <= 0:
            position = 0.0
        else:
            low = math.log(self.low)
            position = (math.log(value) - low) / (math.log(self.high) - low)
        return min(1.0, max(0.0, position))

    def ticks(self) -> list[float]:
        """Return round values within the axis to label: about six (`_MAX_TICKS`) at most."""
        if self.is_log:
            return self._log_ticks()
        step = _round_step((self.high - self.low) / _MAX_TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            ticks = [mantissa * 10.0**decade for decade in decades for mantissa in mantissas]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) <= _MAX_TICKS:
                break
        return ticks[:: math.ceil(len(ticks) / _MAX_TICKS) or 1]


def _round_step(minimum: float) -> float:
    """Return the smallest round number (1, 2 or 5 times a power of ten) of at least `minimum`."""
    power = 10.0 ** math.floor(math.log10(minimum))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    return next(step for step in steps if step >= minimum * (1 - 1e-9))


@dataclass
class Chart:
    """A chart with a title, two axes and marks.

    Attributes:
        title: The title.
        x: The horizontal axis.
        y: The vertical axis.
        legend: Pairs of text and color, one per entry of the legend.
    """

    title: str
    x: ChartAxis
    y: ChartAxis
    legend: list[tuple[str, str]] = field(default_factory=list)
    _marks: list[str] = field(default_factory=list)

    def line(self, points: Sequence[Point], color: str, *, dashes: str = "", tip: str = "") -> None:
        """Draw a line through points.

        Args:
            points: Pairs (x, y) in units of the axes.
            color: Color as in CSS.
            dashes: Lengths of dashes and gaps in pixels, such as "6 4"; empty for a solid line.
            tip: Text that appears at the pointer; empty for none.
        """
        positions = " ".join(f"{self._left(x):.1f},{self._top(y):.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._marks.append(
            f'<polyline points="{positions}" fill="none" stroke="{color}" '
            f'stroke-width="1.8"{dashed}>{_tip(tip)}</polyline>'
        )

    def dots(
        self, points: Sequence[Point], color: str, tips: Sequence[str], radius: float = 2.5
    ) -> None:
        """Draw dots.

        A dot outside the range of the y axis is drawn hollow at the nearer end of the axis.

        Args:
            points: Pairs (x, y) in units of the axes.
            color: Color as in CSS.
            tips: Text per dot that appears at the pointer.
            radius: Radius of a dot in pixels.
        """
        group = [f'<g fill="{color}" stroke="{color}">']
        for (x, y), tip in zip(points, tips, strict=True):
            hollow = "" if self.y.low <= y <= self.y.high else ' fill="white"'
            group.append(
                f'<circle cx="{self._left(x):.1f}" cy="{self._top(y):.1f}" r="{radius}"{hollow}>'
                f"{_tip(tip)}</circle>"
            )
        self._marks.append("".join([*group, "</g>"]))

    def bars(self, points: Sequence[Point], width: float, color: str, tips: Sequence[str]) -> None:
        """Draw vertical bars from the bottom of the plot. The x axis must be linear.

        Args:
            points: Pairs of the center and the top of each bar, in units of the axes.
            width: Width of a bar in units of the x axis.
            color: Color as in CSS.
            tips: Text per bar that appears at the pointer.
        """
        pixels = max(1.0, width / (self.x.high - self.x.low) * _PLOT_WIDTH - 1)
        bottom = self._top(self.y.low)
        for (x, y), tip in zip(points, tips, strict=True):
            top = self._top(y)
            self._marks.append(
                f'<rect x="{self._left(x) - pixels / 2:.1f}" y="{top:.1f}" width="{pixels:.1f}" '
                f'height="{max(0.0, bottom - top):.1f}" fill="{color}">{_tip(tip)}</rect>'
            )

    def interval(self, x: float, low: float, high: float, color: str) -> None:
        """Draw a vertical error bar.

        Args:
            x: Horizontal position in units of the x axis.
            low: Lower end in units of the y axis.
            high: Upper end in units of the y axis.
            color: Color as in CSS.
        """
        left = self._left(x)
        bottom = self._top(low)
        top = self._top(high)
        self._marks.append(
            f'<path d="M{left:.1f} {bottom:.1f}V{top:.1f}M{left - 5:.1f} {bottom:.1f}h10'
            f'M{left - 5:.1f} {top:.1f}h10" stroke="{color}" fill="none" stroke-width="1.5"/>'
        )

    def band(self, low: float, high: float, color: str, tip: str) -> None:
        """Draw a translucent horizontal band across the plot.

        Args:
            low: Lower end of the band in units of the y axis.
            high: Upper end of the band in units of the y axis.
            color: Color as in CSS.
            tip: Text that appears at the pointer.
        """
        top = self._top(high)
        height = max(1.0, self._top(low) - top)
        self._marks.append(
            f'<rect x="{_LEFT}" y="{top:.1f}" width="{_PLOT_WIDTH}" height="{height:.1f}" '
            f'fill="{color}" fill-opacity="0.25">{_tip(tip)}</rect>'
        )

    def note(self, x: float, y: float, text: str, color: str = GRAY, anchor: str = "start") -> None:
        """Write a text slightly above a position in the plot.

        Args:
            x: Horizontal position in units of the x axis.
            y: Vertical position in units of the y axis.
            text: The text.
            color: Color as in CSS.
            anchor: The part of the text at `x`: "start", "middle" or "end".
        """
        self._marks.append(
            f'<text x="{self._left(x):.1f}" y="{self._top(y) - 6:.1f}" fill="{color}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def __str__(self) -> str:
        parts = [_title(self.title), self._frame(), *self._marks]
        right = float(WIDTH - _RIGHT)
        for text, color in reversed(self.legend):
            right -= _CHARACTER * len(text)
            parts.append(f'<text x="{right:.1f}" y="20">{escape(text)}</text>')
            parts.append(f'<circle cx="{right - 8:.1f}" cy="16" r="4" fill="{color}"/>')
            right -= 26
        return "".join(parts)

    def _frame(self) -> str:
        bottom = HEIGHT - _BOTTOM
        parts = ['<g stroke="#e4e4e4">']
        x_ticks = [(self._left(value), self.x.text(value)) for value in self.x.ticks()]
        parts += [f'<path d="M{left:.1f} {_TOP}V{bottom}"/>' for left, _ in x_ticks]
        y_ticks = [(self._top(value), self.y.text(value)) for value in self.y.ticks()]
        parts += [f'<path d="M{_LEFT} {top:.1f}h{_PLOT_WIDTH}"/>' for top, _ in y_ticks]
        parts.append(
            f'<path d="M{_LEFT} {_TOP}V{bottom}h{_PLOT_WIDTH}" stroke="#666" fill="none"/></g>'
        )
        parts += [
            f'<text x="{left:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(text)}</text>'
            for left, text in x_ticks
        ]
        parts += [
            f'<text x="{_LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{escape(text)}</text>'
            for top, text in y_ticks
        ]
        middle = (_TOP + bottom) / 2
        parts.append(
            f'<text x="{_LEFT + _PLOT_WIDTH / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">'
            f"{escape(self.x.label)}</text>"
            f'<text transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y.label)}</text>"
        )
        return "".join(parts)

    def _left(self, value: float) -> float:
        return _LEFT + self.x.share(value) * _PLOT_WIDTH

    def _top(self, value: float) -> float:
        return HEIGHT - _BOTTOM - self.y.share(value) * (HEIGHT - _BOTTOM - _TOP)


_PLOT_WIDTH = WIDTH - _LEFT - _RIGHT


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart.

    Attributes:
        name: Name to the left of the bar.
        value: Value that the bar's length shows; not negative.
        text: The value as text, to the right of the bar.
        color: Color of the bar.
    """

    name: str
    value: float
    text: str
    color: str = BLUE


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars with names and values; their lengths are proportional to the values.

    Attributes:
        title: The title.
        bars: The bars, from the top.
        legend: Pairs of text and color, one per entry of the legend.
    """

    title: str
    bars: Sequence[Bar]
    legend: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        names = [_shortened(bar.name, 26) for bar in self.bars]
        left = 16 + max(map(len, names), default=0) * _CHARACTER
        texts = max((len(bar.text) for bar in self.bars), default=0) * _CHARACTER
        scale = (WIDTH - _RIGHT - left - texts - 14) / (max(bar.value for bar in self.bars) or 1.0)
        height = min(24.0, (HEIGHT - _TOP - 30) / max(1, len(self.bars)))
        parts = [_title(self.title)]
        for number, (bar, name) in enumerate(zip(self.bars, names, strict=True)):
            top = _TOP + 6 + number * height
            middle = top + height / 2 + 4
            width = max(1.0, scale * bar.value)
            parts.append(
                f"<g>{_tip(f'{bar.name}: {bar.text}')}"
                f'<text x="{left - 6:.1f}" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>'
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{height - 4:.1f}" fill="{bar.color}"/>'
                f'<text x="{left + width + 6:.1f}" y="{middle:.1f}">{escape(bar.text)}</text></g>'
            )
        for text, color in self.legend:
            parts.append(
                f'<circle cx="{left + 4:.1f}" cy="{HEIGHT - 14}" r="4" fill="{color}"/>'
                f'<text x="{left + 12:.1f}" y="{HEIGHT - 10}">{escape(text)}</text>'
            )
            left += 30 + _CHARACTER * len(text)
        return "".join(parts)


def _shortened(text: str, max_length: int) -> str:
    if len(text) <= max_length:
        return text
    return f"{text[: max_length - 1]}…"


def _title(text: str) -> str:
    return f'<text x="4" y="20" font-size="14" font-weight="bold">{escape(text)}</text>'


def _tip(text: str) -> str:
    """Return an SVG title element, which browsers show at the pointer; empty for an empty text."""
    return f"<title>{escape(text)}</title>" if text else ""


def page(title: str, lines: Sequence[str], charts: Sequence[Chart | BarChart]) -> str:
    """Return an SVG picture with a title, lines of text, and charts in two columns.

    Args:
        title: The title.
        lines: Lines of text below the title; long lines are wrapped.
        charts: The charts, row by row.
    """
    width = 2 * WIDTH + 3 * _GAP
    max_length = int((width - 2 * _GAP) / _CHARACTER)
    texts = [part for line in lines for part in textwrap.wrap(line, max_length)]
    top = 44 + _LINE * len(texts)
    rows = math.ceil(len(charts) / 2)
    height = top + rows * (HEIGHT + _GAP) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" '
        f'font-size="12" fill="#222" role="img" aria-label="{escape(title)}">'
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_GAP}" y="32" font-size="20" font-weight="bold">'
        f"{escape(_shortened(title, max_length // 2))}</text>",
    ]
    for number, text in enumerate(texts, 1):
        baseline = 34 + _LINE * number
        parts.append(f'<text x="{_GAP}" y="{baseline}">{escape(text)}</text>')
    for number, chart in enumerate(charts):
        left = _GAP + number % 2 * (WIDTH + _GAP)
        chart_top = top + number // 2 * (HEIGHT + _GAP)
        # A browser reports pointer events of a chart only where something is drawn.
        background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        parts.append(
            f'<g class="chart" transform="translate({left} {chart_top})">{background}{chart}</g>'
        )
    return "".join([*parts, "</svg>\n"])
