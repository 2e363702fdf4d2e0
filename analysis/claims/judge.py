"""The answer to a claim from those of its checks, as a table and in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from analysis.claims.evaluate import Finding, evaluate
from analysis.claims.kinds import Answer, Check, Claim
from analysis.claims.sides import Data
from analysis.lazy import np, pd

__all__ = ["Verdict", "judge", "sentences", "summary", "table"]

#: The first of these that any measured check has is the claim's.
_ORDER = (Answer.REFUTED, Answer.NOT_ENOUGH, Answer.SUPPORTED)


@dataclass(frozen=True)
class Verdict:
    """A claim with the findings of its checks.

    Refuted where any check is; supported where some check is and each one that has data is; else not enough data.
    """

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def answer(self) -> Answer:
        """That of the checks that have data."""
        answers = {finding.answer for finding in self.findings if finding.points}
        return next((answer for answer in _ORDER if answer in answers), Answer.NOT_ENOUGH)

    @property
    def title(self) -> str:
        """The claim with its id and its proof."""
        proof = f" ({self.claim.proof})" if self.claim.proof else ""
        return f"{self.claim.id}. {self.claim.says.rstrip('.')}{proof}"

    @property
    def extent(self) -> str:
        """What to add to the answer where some checks have no data; else empty."""
        total = len(self.findings)
        return f", as far as measured: {self.measured} of {total} checks" if 0 < self.measured < total else ""

    @property
    def measured(self) -> int:
        """How many checks have data."""
        return sum(finding.points > 0 for finding in self.findings)


def judge(
    claims: Sequence[Claim], data: Data, evaluate: Callable[[Check, Data], Finding] = evaluate
) -> tuple[Verdict, ...]:
    """Answer every claim over one frame: each check by itself, and all that have data together.

    Intervals that each hold at 1 - a / m hold at once in 1 - a, however the m checks hang together (Bonferroni).
    """
    alone = [[evaluate(check, data) for check in claim.checks] for claim in claims]
    measured = sum(finding.points > 0 for findings in alone for finding in findings)
    level, data.level = data.level, 1 - (1 - data.level) / max(measured, 1)

    def together(finding: Finding) -> Finding:
        answer = evaluate(finding.check, data).answer if finding.points and measured > 1 else finding.answer
        return replace(finding, together=answer)

    try:
        found = [tuple(map(together, findings)) for findings in alone]
    finally:
        data.level = level
    return tuple(Verdict(claim, findings) for claim, findings in zip(claims, found, strict=True))


def table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """A row for each check, with its claim's answer, its effect and interval, and what is missing."""
    rows = [
        {
            "claim": verdict.claim.id,
            "claim_answer": verdict.answer.value,
            "check": str(finding.check),
            "answer": finding.answer.value,
            "answer_together": finding.together.value,
            "quantity": finding.quantity,
            "value": finding.value,
            "low": finding.low,
            "high": finding.high,
            "needed": finding.needed,
            "points": finding.points,
            "missing": finding.missing,
        }
        for verdict in verdicts
        for finding in verdict.findings
    ]
    return pd.DataFrame(rows)


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """A sentence that counts the answers, and one of how many stay when all intervals are to hold at once."""
    counts = {answer: sum(verdict.answer is answer for verdict in verdicts) for answer in Answer}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items())
    closing = (
        f"{len(verdicts)} claims: {counted}. Intervals are 95% for each check by itself, over models and batch sizes "
        "as a sample of their kind; an interval that holds both sides of a claim leaves it undecided."
    )
    return [closing, *_together(verdicts)]


def _together(verdicts: Sequence[Verdict]) -> list[str]:
    """What is left of the answers when the intervals of all checks are to hold at once."""
    found = [finding for verdict in verdicts for finding in verdict.findings if finding.points]
    decided = [finding for finding in found if finding.answer is not Answer.NOT_ENOUGH]
    if len(found) < 2 or not decided:
        return []
    kept = sum(finding.together == finding.answer for finding in decided)
    return [
        f"With intervals so wide that all {len(found)} hold at once in 95% (Bonferroni), {kept} of the "
        f"{len(decided)} decided checks stay decided"
        + (": the others rest on their own interval alone." if kept < len(decided) else ".")
    ]


def sentences(verdict: Verdict) -> list[str]:
    """What each check that has data found, and what the others lack."""
    lines = [_sentence(finding) for finding in verdict.findings if finding.points]
    missing: dict[str, list[str]] = {}
    for finding in verdict.findings:
        if not finding.points:
            missing.setdefault(finding.missing, []).append(str(finding.check))
    return lines + [
        f"{Answer.NOT_ENOUGH}: {reason} ({len(checks)} check{'s'[: len(checks) != 1]})"
        for reason, checks in missing.items()
    ]


def _sentence(finding: Finding) -> str:
    if np.isfinite(finding.low) or np.isfinite(finding.high):
        interval = f" (95% interval {_number(finding.low)} to {_number(finding.high)})"
    else:
        interval = " (no interval)"
    what = f"{finding.quantity} {_number(finding.value)}{interval} over {finding.points} points"
    reason = f"; {finding.missing}" if finding.missing else ""
    if finding.answer != finding.together:
        reason += "; by itself, not with all checks together"
    return f"{finding.answer}: {finding.check}: {what}, {finding.needed} is needed{reason}"


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "unknown"
