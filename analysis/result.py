"""What every analysis answers with: typed findings, and how they are shown as sentences, table and
figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from analysis.lazy import drawing, pd
from analysis.store.frame import IDENTITY, require_homogeneous
from analysis.store.quality import Quality
from paradnn.core.errors import NotEnoughData, ParadnnError


class Paragraph(NamedTuple):
    """A sentence, or a few, and the points below it."""

    head: str
    points: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join([self.head, *self.points])


class Highlight(NamedTuple):
    """What a page says first of an answer: a word or two, and a sentence without the name of what
    it is about.
    """

    topic: str
    words: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """What an analysis found: numbers, sentences, and where there is something to draw what draws
    it.

    `stands_out` is what a page says first, `rows` what a terminal shows in place of the numbers
    (None: nothing). `sources` are the ids of the runs it rests on; `pooled` says what differed
    among runs that were pooled on demand, and is empty where they were homogeneous; `quality` what
    the gate left out or flagged, None where runs pass none; `set_aside` which group of
    heterogeneous runs it is about, and how to see the others. A subclass may hold more.
    """

    sources: tuple[str, ...]
    numbers: pd.DataFrame
    pooled: str = ""
    quality: Quality | None = None
    set_aside: Paragraph | None = None
    sentences: Sequence[Paragraph | str] = ()
    picture: Callable[[], drawing.Figure] | None = None
    stands_out: Highlight | None = None
    rows: Sequence[tuple[str, pd.DataFrame]] | None = ()
    #: Metrics that the result is about, if the columns of the table do not name them.
    metrics: tuple[str, ...] = ()
    #: Sentences that text and figure state next to the findings.
    caveats: tuple[str, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """The numbers, as --csv writes them."""
        return self.numbers

    def headline(self) -> Highlight | None:
        """The finding that stands out, if one does."""
        return self.stands_out

    @property
    def drawable(self) -> bool:
        """Whether there is anything to draw."""
        return self.picture is not None and len(self.table) > 0

    def paragraphs(self) -> list[Paragraph]:
        """The findings in words."""
        if self.pooled:
            pooled = [f"Heterogeneous runs were pooled: {self.pooled}."]
        else:
            pooled = []
        if self.quality is not None and self.quality.text():
            left_out = [self.quality.text()]
        else:
            left_out = []
        set_aside = [self.set_aside] if self.set_aside is not None else []
        found = [*self.sentences, *self.caveats, *pooled, *left_out, *set_aside]
        return [part if isinstance(part, Paragraph) else Paragraph(part) for part in found]

    def text(self) -> str:
        """The findings in words, a line for each sentence or point."""
        return "\n".join(map(str, self.paragraphs()))

    def figure(self, width: float | None = None) -> drawing.Figure:
        """The picture, set for print where a `width` in inches is given; ParadnnError where there
        is nothing to draw, or more than a figure holds.
        """
        if self.picture is None or not self.drawable:
            raise ParadnnError("there is nothing to draw; choose other runs")
        with drawing.page(width):
            drawn = self.picture()
            if self.caveats:
                drawing.add_caveats(drawn, self.caveats)
            own, height = drawn.get_size_inches()
            if width is not None and own != width:  # of an analysis that makes its figures itself
                drawn.set_size_inches(width, height * width / own)
            drawn.draw_without_rendering()  # texts that are made as they are drawn are made for this page too
        return drawn

    __repr__ = text

    def _repr_html_(self) -> str:
        """The table and the sentences, for a notebook."""
        words = "".join(
            f"<p>{escape(head)}</p>"
            + "".join(f"<p style='margin-left: 2em'>{escape(point)}</p>" for point in points)
            for head, points in self.paragraphs()
        )
        return f"{self.table.to_html(max_rows=20, index=False)}{words}"


def pooled_within(frame: pd.DataFrame, by: Sequence[str], pool: bool) -> str:
    """What differs within the groups (columns `by`) in environment, protocol and schema; empty
    where nothing does.

    HeterogeneousError where anything differs, unless `pool`.
    """
    alike = all(frame[key].nunique(dropna=False) <= 1 for key in IDENTITY if key in frame)
    if alike:
        groups = ()
    else:
        groups = (group for _, group in frame.groupby(list(by), sort=True, dropna=False))
    return joined(require_homogeneous(group, pool=pool).attrs.get("pooled", "") for group in groups)


def joined(differences: Iterable[str]) -> str:
    """Differences as one text, each once."""
    return "; ".join(dict.fromkeys(filter(None, differences)))


def require_runs(frame: pd.DataFrame) -> None:
    """NotEnoughData where a frame holds no run."""
    if frame.empty:
        raise NotEnoughData("no run matches; choose other runs, see python -m analysis runs")
