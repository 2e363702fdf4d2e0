"""The result of an analysis: numbers, and their presentation as sentences, table and figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

from analysis.lazy import drawing, np, pd
from analysis.store.frame import IDENTITY, require_homogeneous
from analysis.store.quality import Quality
from paradnn.core.errors import InsufficientData, ParadnnError


class Paragraph(NamedTuple):
    """A part of the text of a result.

    Attributes:
        head: One or more sentences.
        points: List items below them; empty for none.
    """

    head: str
    points: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([self.head, *self.points])


class Highlight(NamedTuple):
    """The finding that the page of a result shows first.

    Attributes:
        topic: Short heading, such as "What limits it".
        words: The finding as text. It does not repeat the name of the system that it is about.
    """

    topic: str
    words: str


#: Verdict of an analysis on A relative to B.
AnswerVerdict = Literal["faster", "slower", "equal", "undecided"]


@dataclass(frozen=True, kw_only=True)
class AnalysisAnswer:
    """Main finding of an analysis, in one sentence and as numbers.

    A comparison is about two sides, A and B. A point is one measured configuration.

    Attributes:
        sentence: The answer with its interval, as one sentence without line breaks.
        verdict: Whether A is faster than B, slower, equal within the margin, or undecided; None if
            the analysis compares nothing.
        ratio: A relative to B, above 1 if A is better; None if nothing is compared.
        low: Lower end of the 95% interval of `ratio`; None if it has no interval.
        high: Upper end of that interval.
        ahead: Number of points on which A is better; None if no points are compared.
        points: Number of points that the answer is about; None if it is not about points.
        basis: Sources of uncertainty that the interval covers, as text; empty without an interval.
    """

    sentence: str
    verdict: AnswerVerdict | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    ahead: int | None = None
    points: int | None = None
    basis: str = ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """The result of an analysis. A subclass may have further attributes.

    Attributes:
        sources: Ids of the runs from which the result is computed.
        numbers: The table of results.
        answer: The main finding, with which text, report and JSON begin; None for no answer.
        pooled: How the runs that were pooled on request differ in environment or protocol, as text;
            empty if they do not differ.
        quality: Which runs the checks excluded or flagged; None if the analysis checks no runs.
        set_aside: Which runs the result is about if others differ in environment or protocol, and
            how to see the others; None if all runs were used.
        sentences: The findings as text.
        picture: Function that draws the figure; None if there is nothing to draw.
        stands_out: The finding that a page shows first; None if no finding is highlighted.
        rows: (title, table) pairs with text that a terminal shows instead of the numbers. If the
            title is not empty, the first column names the rows. Empty to show the numbers, None to
            show no table.
        metrics: Metrics that the result is about, if the columns of the table do not name them.
        caveats: Limits of the findings, which text and figure state next to them.
    """

    sources: tuple[str, ...]
    numbers: pd.DataFrame
    answer: AnalysisAnswer | None = None
    pooled: str = ""
    quality: Quality | None = None
    set_aside: Paragraph | None = None
    sentences: Sequence[Paragraph | str] = ()
    picture: Callable[[], drawing.Figure] | None = None
    stands_out: Highlight | None = None
    rows: Sequence[tuple[str, pd.DataFrame]] | None = ()
    metrics: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """The table that --csv writes."""
        return self.numbers

    def headline(self) -> Highlight | None:
        """Return the finding that a page shows first; None if no finding is highlighted."""
        return self.stands_out

    @property
    def drawable(self) -> bool:
        """Whether the result has a figure and a table that is not empty."""
        return self.picture is not None and len(self.table) > 0

    def paragraphs(self) -> list[Paragraph]:
        """Return the text of the result: the answer, the findings, and the caveats about the runs.

        A finding that repeats the answer is omitted.
        """
        findings = [_as_paragraph(part) for part in self.sentences]
        paragraphs = [*findings, *self.limits()]
        if self.answer is None:
            return paragraphs
        answer = Paragraph(_with_period(self.answer.sentence))
        return [answer, *(part for part in paragraphs if part != answer)]

    def limits(self) -> list[Paragraph]:
        """Return paragraphs on the limits of the answer.

        They state caveats, differences among runs that were analyzed together, and excluded and
        unused runs.
        """
        parts: list[Paragraph | str] = [*self.caveats]
        if self.pooled:
            parts.append(f"Heterogeneous runs were pooled: {self.pooled}.")
        if self.quality is not None and self.quality.text():
            parts.append(self.quality.text())
        if self.set_aside is not None:
            parts.append(self.set_aside)
        return [_as_paragraph(part) for part in parts]

    def opening(self) -> str:
        """Return the answer, or the first finding if there is no answer; empty without both."""
        paragraphs = self.paragraphs()
        return paragraphs[0].head if paragraphs else ""

    def terminal_lines(self, limit: int = 5) -> tuple[list[str], int]:
        """Return the lines that a terminal shows between the answer and the table.

        The limits of the answer come first, then the findings.

        Args:
            limit: Largest number of lines.

        Returns:
            Up to `limit` lines, and the number of further lines, which are omitted.
        """
        findings = self.paragraphs()
        limits = self.limits()
        findings = [part for part in findings if part not in limits]
        lines = [*limits]
        if findings:
            opening, *others = findings
            lines += [Paragraph("", opening.points), *others]
        texts: list[str] = []
        for head, points in lines:
            if head:
                texts.append(head)
            texts += [f"  {point}" for point in points]
        return texts[:limit], max(0, len(texts) - limit)

    def text(self) -> str:
        """Return the answer, findings and limits as text, one line per paragraph or list item."""
        return "\n".join(map(str, self.paragraphs()))

    def as_json(self) -> dict[str, Any]:
        """Return the answer and the table as a dictionary that JSON can represent.

        Missing values and NaN are None. Infinite numbers are "Infinity" and "-Infinity", as in the
        JSON form of protocol buffers. Times are text in ISO 8601.
        """
        answer = self.answer or AnalysisAnswer(sentence=self.opening())
        fields = {
            "answer": _with_period(answer.sentence),
            "verdict": answer.verdict,
            "ratio": answer.ratio,
            "low": answer.low,
            "high": answer.high,
            "ahead": answer.ahead,
            "points": answer.points,
            "basis": answer.basis,
            "limits": [str(part) for part in self.limits()],
        }
        values = {name: _json_value(value) for name, value in fields.items()}
        rows = [
            {str(name): _json_value(value) for name, value in row.items()}
            for row in self.table.to_dict("records")
        ]
        return {**values, "rows": rows}

    def figure(self, width: float | None = None) -> drawing.Figure:
        """Draw the figure.

        Args:
            width: Width for print in inches; None for the default width on a screen.

        Raises:
            ParadnnError: If there is nothing to draw, or more than a figure can hold.
        """
        if self.picture is None or not self.drawable:
            raise ParadnnError("this result has nothing to draw; choose other runs")
        with drawing.page(width):
            drawn = self.picture()
            if self.caveats:
                drawing.add_caveats(drawn, self.caveats)
            drawn_width, height = drawn.get_size_inches()
            # The figure of another package's analysis may be drawn without `analysis.drawing`.
            if width is not None and drawn_width != width:
                drawn.set_size_inches(width, height * width / drawn_width)
            # Matplotlib makes tick labels when it draws: draw while the page's settings apply.
            drawn.draw_without_rendering()
        return drawn

    __repr__ = text

    def _repr_html_(self) -> str:
        """Return the answer, the table and the other findings as HTML for a notebook."""
        texts = [
            f"<p>{escape(head)}</p>"
            + "".join(f"<p style='margin-left: 2em'>{escape(point)}</p>" for point in points)
            for head, points in self.paragraphs()
        ]
        table = self.table.to_html(max_rows=20, index=False)
        return "".join([*texts[:1], table, *texts[1:]])


def _as_paragraph(part: Paragraph | str) -> Paragraph:
    return part if isinstance(part, Paragraph) else Paragraph(part)


def _with_period(sentence: str) -> str:
    return sentence if sentence.endswith(".") or not sentence else f"{sentence}."


def _json_value(value: Any) -> Any:
    """Convert a value to one that strict JSON can represent."""
    if isinstance(value, list | tuple):
        return [_json_value(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): _json_value(entry) for key, entry in value.items()}
    if pd.isna(value):
        return None
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isinf(number):
            return "Infinity" if number > 0 else "-Infinity"
        return number
    return str(value)


def pooled_within(frame: pd.DataFrame, by: Sequence[str], *, pool: bool) -> str:
    """Return how the runs within groups differ in environment, protocol and schema, as text.

    Args:
        frame: One row per run.
        by: The columns that define the groups.
        pool: Whether runs of a group may differ in these respects.

    Returns:
        The differences; empty if the runs of no group differ.

    Raises:
        HeterogeneousError: If the runs of a group differ and `pool` is false.
    """
    is_homogeneous = all(frame[key].nunique(dropna=False) <= 1 for key in IDENTITY if key in frame)
    if is_homogeneous:
        return ""
    differences = []
    for _, group in frame.groupby(list(by), sort=True, dropna=False):
        pooled = require_homogeneous(group, pool=pool)
        differences.append(str(pooled.attrs.get("pooled", "")))
    return joined(differences)


def joined(differences: Iterable[str]) -> str:
    """Join texts with semicolons, without repetitions and empty texts.

    Args:
        differences: The texts, such as differences between runs.
    """
    return "; ".join(dict.fromkeys(difference for difference in differences if difference))


def require_runs(frame: pd.DataFrame) -> None:
    """Raise InsufficientData if a frame has no run."""
    if frame.empty:
        raise InsufficientData(
            "no run matches; choose other runs (python -m analysis runs lists them)"
        )
