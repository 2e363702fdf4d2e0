"""`claims`: the paper's fourteen observations, or a user's own claims, as checks over the runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.options import option
from analysis.result import Paragraph, Result, joined
from analysis.summaries.gate import gated_with_queries
from analysis.summaries.predicted import PredictedOptions, told_of
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.claims.judge import Verdict
    from analysis.claims.kinds import Claim

__all__ = ["ClaimsOptions", "ClaimsResult", "check_claims"]


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
        from analysis.claims.judge import table

        return table(self.verdicts)

    def _figure(self) -> Figure:
        from analysis.figures.claims import draw_claims

        return draw_claims(self.verdicts)

    def _paragraphs(self) -> Iterator[Paragraph]:
        from analysis.claims.judge import sentences

        for verdict in self.verdicts:
            answer = f"{verdict.answer.upper()}{verdict.extent}"
            yield Paragraph(f"{verdict.title}: {answer}", tuple(sentences(verdict)))
        yield from self.closing()

    def closing(self) -> list[Paragraph]:
        """What holds for all claims together."""
        from analysis.claims.judge import summary

        return [Paragraph(sentence) for sentence in summary(self.verdicts)]


@gated_with_queries
def check_claims(frame: pd.DataFrame, options: ClaimsOptions | None = None) -> ClaimsResult:
    """Every claim with its answer, its numbers and what is missing.

    ConfigError for an id that no claim has, DataError for a file that holds no claims. What stands in the way of one
    check is named in its finding.
    """
    from analysis.claims.judge import judge
    from analysis.claims.load import load_claims, observations
    from analysis.claims.predicted import OverSpace
    from analysis.claims.restate import restate
    from analysis.claims.sides import Data
    from analysis.store.operations import load_types
    from analysis.store.spaces import read_space

    options = options or ClaimsOptions()
    claims = _only(load_claims(Path(options.file)) if options.file else observations(), options.only)
    if options.read_as:
        claims = restate(claims, dict(options.read_as))
    data = Data(frame, lambda runs: load_types(runs, options.store), options.pool)
    if not options.predicted:
        verdicts = judge(claims, data)
        return ClaimsResult(verdicts=verdicts, sources=tuple(sorted(data.used)), pooled=joined(sorted(data.pooled)))
    over = OverSpace(frame, None if options.space is None else read_space(options.space))
    verdicts = judge(claims, data, over.evaluate)
    told = told_of([part for parts in over.completed.values() for part in parts])
    return ClaimsResult(
        verdicts=verdicts, sources=tuple(sorted(data.used)), pooled=joined(sorted(data.pooled)), predicted=told
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
