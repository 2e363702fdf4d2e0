"""`claims`: check the paper's observations, or the claims of a YAML file, against runs.

The paper has fourteen observations. A claim consists of checks. A check compares an estimate with a
claimed range. A check is supported if the 95% interval of its estimate lies within the claimed
range. It is refuted if the interval lies outside the range, and undecided if the interval includes
an end of the range. A claim is refuted if any of its checks is refuted. It is supported if all of
its checks with data are supported; checks without data are named.

analysis/claims/kinds.py defines the kinds of checks. analysis/claims/observations.yaml is an
example of a file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.claims.evaluate import (
    CheckFinding,
    ClaimVerdict,
    Data,
    judge,
    sentences,
    summary,
    table,
)
from analysis.claims.kinds import ClaimAnswer, StatedClaim
from analysis.claims.load import load_claims, observations
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, joined
from analysis.store.conditions import format_conditions
from paradnn.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(Options):
    """Options of the command `claims`: the file of claims, and the ids of the claims to check."""

    file: str | None = option(
        None, "YAML file of claims (default: the paper's observations)", metavar="FILE"
    )
    only: tuple[str, ...] | None = option(None, "claims by their ids, such as 7,8", metavar="IDS")


#: Explanation of the intervals, the last sentence of a result.
_INTERVALS = (
    "Intervals are 95% for each check, without a correction for the number of checks. They hold "
    "for the measured points; intervals of trends and rankings generalize over models and batch "
    "sizes. A check is undecided if its interval includes an end of the claimed range."
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClaimsResult(Result):
    """Result of the command `claims`: the verdict on each claim.

    Attributes:
        verdicts: Every claim with its answer (supported, refuted, undecided or without data) and
            the findings of its checks.
    """

    verdicts: tuple[ClaimVerdict, ...]


def answered(
    verdicts: tuple[ClaimVerdict, ...], sources: tuple[str, ...], pooled: str
) -> ClaimsResult:
    """Build the result of an analysis from the verdicts on claims.

    Args:
        verdicts: The claims with their answers.
        sources: Ids of the runs that the answers use.
        pooled: How the pooled runs differ, as text; empty if no heterogeneous runs were pooled.
    """
    paragraphs = [
        Paragraph(
            f"{verdict.title}: {verdict.answer.upper()}{verdict.extent}",
            tuple(sentences(verdict)),
        )
        for verdict in verdicts
    ]
    return ClaimsResult(
        verdicts=verdicts,
        numbers=table(verdicts),
        answer=AnalysisAnswer(sentence=summary(verdicts), points=len(verdicts)),
        sentences=[*paragraphs, _INTERVALS] if paragraphs else (),
        picture=lambda: draw_claims(verdicts),
        rows=[("", _overview(verdicts))] if verdicts else None,
        sources=sources,
        pooled=pooled,
    )


def _overview(verdicts: Sequence[ClaimVerdict]) -> pd.DataFrame:
    """Return a row of text per claim: the claim, its answer, and its number of checks with data.

    Args:
        verdicts: The claims with their answers and the findings of their checks.
    """
    return pd.DataFrame(
        {
            "claim": [
                f"{verdict.claim.id}. {verdict.claim.says.rstrip('.')}" for verdict in verdicts
            ],
            "answer": [verdict.answer.value for verdict in verdicts],
            "checks with data": [
                f"{verdict.measured} of {len(verdict.findings)}" for verdict in verdicts
            ],
        }
    )


@analysis(
    ClaimsOptions,
    name="claims",
    summary="claims about platforms, each supported, refuted, undecided or without data",
    example="python -m analysis claims --only 1,3",
    requires_one_protocol=True,
    gate="queries",
    title="The paper's observations as checks",
    reading=("Supported: the 95% interval of the estimate lies within the claimed range."),
)
def check_claims(frame: pd.DataFrame, options: ClaimsOptions) -> ClaimsResult:
    """Check every claim against the runs, and report estimates and missing data.

    If a check cannot be evaluated, its finding states the reason, and the other checks are
    unaffected.

    Args:
        frame: Runs, one per row.
        options: The file of claims (None for the paper's observations), and the ids of the claims
            to check (None for all).

    Raises:
        ConfigError: If no claim has a given id, or a claim in the file is invalid.
        DataError: If the file cannot be read or has no claims.
    """
    from analysis.store.load import load_types

    claims = _select_claims(
        load_claims(Path(options.file)) if options.file else observations(), options.only
    )
    data = Data(frame, lambda runs: load_types(runs, options.store), options.pool)
    verdicts = judge(claims, data)
    return answered(verdicts, tuple(sorted(data.used)), joined(sorted(data.pooled)))


def _select_claims(
    claims: Sequence[StatedClaim], ids: tuple[str, ...] | None
) -> Sequence[StatedClaim]:
    """Return the claims with the given ids.

    Args:
        claims: Claims to choose from.
        ids: Ids of claims; None to return all claims.

    Raises:
        ConfigError: If no claim has one of the ids.
    """
    if ids is None:
        return claims
    known = {claim.id: claim for claim in claims}
    for name in ids or ("",):
        if name not in known:
            raise ConfigError(
                "--only", name, "there is no such claim", f"choose one of {', '.join(known)}"
            )
    return [known[name] for name in ids]


_BOUND_COLOR = "#dbe7d3"
#: Columns of conditions that labels omit, since they rarely distinguish the checks of a claim.
_UNLABELED_COLUMNS = (
    "mode",
    "device",
    "platform.name",
)
#: Maximum number of characters per line of a label, and the height of a line in inches.
_MAX_LABEL_CHARS = 58
_LINE_HEIGHT = 0.17
#: Scales of the panels, in the order of the figure.
_SCALES = ("standardized weight", "share", "ratio")
#: Marker of each answer, and the index of its color in `drawing.COLORS`.
_MARKERS = {
    ClaimAnswer.SUPPORTED: ("o", 0),
    ClaimAnswer.REFUTED: ("X", 1),
    ClaimAnswer.UNDECIDED: ("D", 4),
}


def draw_claims(verdicts: Sequence[ClaimVerdict]) -> drawing.Figure:
    """Draw the estimate of each check that has data, as a row with its 95% interval.

    Each scale has a panel: standardized weights, shares and ratios. The claimed range is shaded.

    Args:
        verdicts: The claims with the findings of their checks.
    """
    panels: dict[str, list[tuple[str, CheckFinding]]] = {}
    for verdict in verdicts:
        for finding in verdict.findings:
            if finding.points and np.isfinite(finding.value):
                panels.setdefault(_scale(finding), []).append((_label(verdict, finding), finding))
    order = sorted(panels, key=lambda name: (name not in _SCALES, name))
    # All rows of a panel have the height of its longest label.
    counts = [
        len(panels[name]) * max(2, *(label.count("\n") + 1 for label, _ in panels[name]))
        for name in order
    ]
    count = max(1, len(panels))
    drawn, axes = drawing.panels(count, 8.0, 1.1 + _LINE_HEIGHT * sum(counts) / count)
    if panels:
        axes[0].get_subplotspec().get_gridspec().set_height_ratios(counts)  # type: ignore[union-attr]
    else:
        axes[0].set_axis_off()
        axes[0].set_title("No check has data", loc="left")
    for each, name in zip(axes, order, strict=False):
        _panel(each, name, panels[name])
    handles: list[Any] = [
        drawing.handle(answer.value, marker=marker, color=drawing.COLORS[color], linestyle="-")
        for answer, (marker, color) in _MARKERS.items()
    ]
    handles.append(drawing.Patch(color=_BOUND_COLOR, label="claimed range"))
    without_data = [verdict.claim.id for verdict in verdicts if not verdict.measured]
    title = ""
    if without_data:
        title = f"No data for {', '.join(without_data)}."
    drawing.legend(drawn, handles, title)
    return drawn


def _scale(finding: CheckFinding) -> str:
    """Return the name of the scale on which an estimate is drawn, such as "share" or "ratio".

    Estimates with the same scale share a panel.

    Args:
        finding: The result of a check.
    """
    if finding.check.kind in ("trend", "ranking"):
        return _SCALES[0]
    words = {"share": "share", "fraction": "share", "speedup": "ratio", "ratio": "ratio"}
    return next(
        (name for word, name in words.items() if word in finding.quantity), finding.quantity
    )


def _label(verdict: ClaimVerdict, finding: CheckFinding) -> str:
    check = finding.check
    where = format_conditions(
        {
            column: conditions
            for column, conditions in check.where.items()
            if column not in _UNLABELED_COLUMNS
        }
    )
    text = check.name or f"{check.sentence()}{f' ({where})' if where else ''}"
    text = text.replace("platform.name=", "").replace("model.", "")
    width = min(_MAX_LABEL_CHARS, drawing.label_width_chars(8.0, smaller=1.2))
    return textwrap.fill(f"{verdict.claim.id}. {text}", width, break_on_hyphens=False)


def _panel(axes: drawing.Axes, name: str, rows: Sequence[tuple[str, CheckFinding]]) -> None:
    ends = np.array(
        [(one.low, one.value, one.high, one.bound.low, one.bound.high) for _, one in rows]
    )
    known = ends[np.isfinite(ends) & ((ends > 0) | (name != "ratio"))]
    low = known.min()
    high = known.max()
    margin = 0.06 * (np.ptp(known) or 1.0)
    if name == "ratio":
        low /= 1.2
        high *= 1.2
        axes.set_xscale("log")
    elif name == "share":
        low = -0.02
        high = 1.02
    else:
        low -= margin
        high += margin
    axes.set_xlim(low, high)
    ends = np.where(np.isfinite(ends), ends, np.array([low, low, high, low, high])).clip(low, high)
    for position, (_, one) in enumerate(rows):
        start, value, end, left, right = ends[position]
        if right > left:
            axes.barh(position, right - left, 0.84, left, color=_BOUND_COLOR, linewidth=0, zorder=0)
        marker, color = _MARKERS[one.answer]
        axes.plot((start, end), (position, position), color=drawing.COLORS[color], linewidth=1.4)
        axes.plot(value, position, marker, color=drawing.COLORS[color], markersize=6)
    drawing.names(axes.yaxis, [label for label, _ in rows], smaller=1.2)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    logs = {"x": drawing.times} if name == "ratio" else None
    shares = "x" if name == "share" else ""
    drawing.finish(axes, "", f"{name}, 95% interval", logs=logs, shares=shares, grid="x")
    axes.tick_params(axis="y", length=0)
    if name not in ("ratio", "share"):
        axes.axvline(0, color="#666666", linewidth=0.8)
