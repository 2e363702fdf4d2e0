"""`claims`: the paper's fourteen observations, or a user's own claims, as checks over the runs.

Claims as a forest plot: the number of each check with its interval, beside the range that the claim asks for.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.claims.kinds import Answer, Bound, Claim
from analysis.claims.load import load_claims, observations, restate
from analysis.lazy import drawing, np, pd, ticker
from analysis.options import option
from analysis.prediction import PredictedOptions, told_of
from analysis.registry import analysis
from analysis.result import Paragraph, Result, joined
from analysis.store.conditions import in_words
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.claims.evaluate import Finding, Verdict


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(PredictedOptions):
    """Which claims, and how to read them."""

    command = "claims"

    file: str | None = option(None, "YAML file of claims (default: the paper's observations)", metavar="FILE")
    only: tuple[str, ...] | None = option(None, "claims by their ids, such as 7,8", metavar="IDS")
    read_as: tuple[tuple[str, str], ...] = option(
        (),
        "read a value of the conditions as another, such as tpu=cpu, repeatable; asks of one platform what is claimed "
        "of another",
        metavar="OLD=NEW",
        several="repeat",
        flag="--as",
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClaimsResult(Result):
    """Every claim with its answer and the findings of its checks."""

    verdicts: tuple[Verdict, ...]

    @property
    def table(self) -> pd.DataFrame:
        from analysis.claims.evaluate import table

        return table(self.verdicts)

    def _figure(self) -> Figure:
        return draw_claims(self.verdicts)

    def _paragraphs(self) -> Iterator[Paragraph]:
        from analysis.claims.evaluate import sentences

        for verdict in self.verdicts:
            answer = f"{verdict.answer.upper()}{verdict.extent}"
            yield Paragraph(f"{verdict.title}: {answer}", tuple(sentences(verdict)))
        yield from self.closing()

    def closing(self) -> list[Paragraph]:
        """What holds for all claims together."""
        from analysis.claims.evaluate import summary

        return [*map(Paragraph, summary(self.verdicts))]


@analysis(
    ClaimsOptions,
    summary="claims about platforms, each supported, refuted or not enough data",
    description="Check claims over the runs: the fourteen observations of the paper, or those of a YAML file.\n"
    "A check is supported where the 95% interval of its number lies on the claimed side, refuted\n"
    "where it lies on the other, and undecided where it holds both. A claim is refuted where any\n"
    "check is, supported where all checks with data are; what has no data is named. Kinds of check\n"
    "and the layout of a file: analysis/claims/kinds.py and analysis/claims/observations.yaml.",
    example="python -m analysis claims --only 1,3 --as tpu=gpu",
    one_protocol=True,
    gate="queries",
    title="The paper's observations as checks",
    reading=("Supported: the 95% interval of its number lies on the claimed side."),
)
def check_claims(frame: pd.DataFrame, options: ClaimsOptions) -> ClaimsResult:
    """Every claim with its answer, its numbers and what is missing.

    ConfigError for an id that no claim has, DataError for a file that holds no claims. What stands in the way of one
    check is named in its finding.
    """
    from analysis.claims.evaluate import Data, judge
    from analysis.claims.predicted import OverSpace
    from analysis.store.load import load_types
    from analysis.store.past import read_space

    claims = _only(load_claims(Path(options.file)) if options.file else observations(), options.only)
    if options.read_as:
        claims = restate(claims, dict(options.read_as))
    data, how, over = Data(frame, lambda runs: load_types(runs, options.store), options.pool), {}, None
    if options.predicted:
        over = OverSpace(frame, None if options.space is None else read_space(options.space))
        how = {"evaluate": over.evaluate}
    return ClaimsResult(
        verdicts=judge(claims, data, **how),
        sources=tuple(sorted(data.used)),
        pooled=joined(sorted(data.pooled)),
        predicted=told_of([part for parts in over.completed.values() for part in parts]) if over else (),
    )


def _only(claims: Sequence[Claim], ids: tuple[str, ...] | None) -> Sequence[Claim]:
    """The claims with these ids; all for None."""
    if ids is None:
        return claims
    known = {claim.id: claim for claim in claims}
    for name in ids or ("",):
        if name not in known:
            raise ConfigError("--only", name, "there is no such claim", f"choose of {', '.join(known)}")
    return [known[name] for name in ids]


_WORDS = {Answer.NOT_ENOUGH: "undecided"}
_ASKED = "#dbe7d3"
_COMMON = ("mode", "device", "platform.name")  # conditions that tell no check of a claim from another
_BRIEF = {"platform.name=": "", "model.": ""}
_WRAP = 58  # characters of a check's line
_LINE = 0.17  # inches


class _Row(NamedTuple):
    label: str
    finding: Finding
    bound: Bound

    @property
    def lines(self) -> int:
        return max(2, self.label.count("\n") + 1)


def _looks() -> dict[Answer, tuple[str, str]]:
    """Answer of a check with data -> (marker, colour)."""
    return {
        Answer.SUPPORTED: ("o", drawing.COLOURS[0]),
        Answer.REFUTED: ("X", drawing.COLOURS[1]),
        Answer.NOT_ENOUGH: ("D", drawing.COLOURS[4]),
    }


def draw_claims(verdicts: Sequence[Verdict]) -> Figure:
    """A row for each check that has data, in panels of one scale: weights, shares, ratios. The range in which the claim
    says the number lies is shaded; claims of which nothing was measured are named below."""
    panels = _panels(verdicts)
    lines = [sum(row.lines for row in rows) for rows in panels.values()]
    count = max(1, len(panels))
    drawn, axes = drawing.panels(count, 8.0, 1.1 + _LINE * sum(lines) / count)
    if panels:
        axes[0].get_subplotspec().get_gridspec().set_height_ratios(lines)  # type: ignore[union-attr]
    else:
        axes[0].set_axis_off()
        axes[0].set_title("No check has data", loc="left")
    for each, (name, rows) in zip(axes, panels.items(), strict=False):
        _panel(each, name, rows)
    handles: list[Any] = [
        drawing.handle(_WORDS.get(answer, answer.value), marker=marker, color=colour, linestyle="-")
        for answer, (marker, colour) in _looks().items()
        if any(row.finding.answer is answer for rows in panels.values() for row in rows)
    ]
    handles.append(drawing.Patch(color=_ASKED, label="what the claim asks for"))
    drawing.legend(drawn, handles, _silent(verdicts))
    return drawn


def _panels(verdicts: Sequence[Verdict]) -> dict[str, list[_Row]]:
    """The checks with a number and at least one end of its interval, by the scale of their number."""
    panels: dict[str, list[_Row]] = {}
    for verdict in verdicts:
        for finding in verdict.findings:
            if finding.points and np.isfinite(finding.value):
                panels.setdefault(_scale(finding), []).append(_row(verdict, finding))
    order = ("standardised weight", "share", "ratio")
    return {name: panels[name] for name in sorted(panels, key=lambda name: (name not in order, name))}


def _scale(finding: Finding) -> str:
    """Which numbers share an axis."""
    if finding.check.kind in ("trend", "ranking"):
        return "standardised weight"
    if any(word in finding.quantity for word in ("share", "fraction")):
        return "share"
    return "ratio" if any(word in finding.quantity for word in ("speedup", "ratio")) else finding.quantity


def _row(verdict: Verdict, finding: Finding) -> _Row:
    check = finding.check
    if check.kind == "trend":
        bound = Bound(low=0) if check.direction == "rises" else Bound(high=0)
    else:
        bound = Bound(low=0) if check.kind == "ranking" else check.bound
    where = in_words({column: kept for column, kept in check.where.items() if column not in _COMMON})
    text = check.name or f"{check.sentence()}{f' ({where})' if where else ''}"
    for long, brief in _BRIEF.items():
        text = text.replace(long, brief)
    letters = min(_WRAP, drawing.letters_of_names(8.0, smaller=1.2))
    return _Row(textwrap.fill(f"{verdict.claim.id}. {text}", letters, break_on_hyphens=False), finding, bound)


def _panel(axes: Axes, name: str, rows: Sequence[_Row]) -> None:
    places, top = [], 0.0
    for row in rows:
        places.append(top + row.lines / 2)
        top += row.lines
    low, high = _limits(name, rows)
    axes.set_xscale("log" if name == "ratio" else "linear")
    axes.set_xlim(low, high)
    for row, place in zip(rows, places, strict=True):
        left, right = max(row.bound.low, low), min(row.bound.high, high)
        if right > left:
            corner = (left, place - 0.42 * row.lines)
            axes.add_patch(
                drawing.Rectangle(corner, right - left, 0.84 * row.lines, color=_ASKED, linewidth=0, zorder=0)
            )
        finding = row.finding
        marker, colour = _looks()[finding.answer]
        ends = [end if np.isfinite(end) else edge for end, edge in ((finding.low, low), (finding.high, high))]
        axes.plot(ends, (place, place), color=colour, linewidth=1.4)
        axes.plot(finding.value, place, marker, color=colour, markersize=6)
    drawing.names(axes.yaxis, [row.label for row in rows], places, smaller=1.2)
    axes.set_ylim(top, 0)
    drawing.finish(axes, "", f"{name}, 95% interval")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    if name == "ratio":
        drawing.ratio_axis(axes.xaxis)
    elif name == "share":
        axes.xaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    else:
        axes.axvline(0, color="#666666", linewidth=0.8)


def _limits(name: str, rows: Sequence[_Row]) -> tuple[float, float]:
    """The ends of an axis that shows all intervals and all bounds, with a margin."""
    if name == "share":
        return -0.02, 1.02
    numbers = [
        number
        for row in rows
        for number in (row.finding.value, row.finding.low, row.finding.high, row.bound.low, row.bound.high)
    ]
    known = [number for number in numbers if np.isfinite(number)]
    low, high = min(known), max(known)
    if name == "ratio":
        low = min(number for number in known if number > 0)
        return low / 1.2, high * 1.2
    margin = 0.06 * ((high - low) or 1.0)
    return low - margin, high + margin


def _silent(verdicts: Sequence[Verdict]) -> str:
    """Of which claims nothing, or only a part, was measured."""
    parts = [
        f"{verdict.claim.id} ({verdict.measured} of {len(verdict.findings)})"
        for verdict in verdicts
        if 0 < verdict.measured < len(verdict.findings)
    ]
    none = [verdict.claim.id for verdict in verdicts if not verdict.measured]
    texts = [f"No data for {', '.join(none)}." if none else ""]
    texts.append(f"Checks with data: {', '.join(parts)}." if parts else "")
    return " ".join(filter(None, texts))
