"""`claims`: the paper's fourteen observations, or a user's own claims, as checks over the runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import joined, sentence
from analysis.summaries.result import Result
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.claims.kinds import Claim

__all__ = ["COMMANDS"]


def claims(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """Every claim with its answer, its numbers and what is missing."""
    from analysis.claims.judge import judge, table, text
    from analysis.claims.load import load_claims, observations
    from analysis.claims.restate import restate
    from analysis.claims.sides import Data
    from analysis.store.operations import load_types

    asked: Sequence[Claim] = load_claims(Path(args.file)) if args.file else observations()
    asked = _only(asked, args.only)
    if args.as_:
        asked = restate(asked, dict(args.as_))
    data = Data(frame, lambda runs: load_types(runs, args.store), args.pool)
    verdicts = judge(asked, data)

    def draw() -> Figure:
        from analysis.figures.claims import draw_claims

        return draw_claims(verdicts)

    pooled = joined(sorted(data.pooled))
    words = "\n".join([text(verdicts), *sentence(pooled)])
    return Result(table(verdicts), words, draw, sorted(data.used), pooled)


def _only(claims: Sequence[Claim], names: str | None) -> Sequence[Claim]:
    """The claims with the ids in a list such as "7,8"; all without one."""
    if names is None:
        return claims
    wanted = [part.strip() for part in names.split(",") if part.strip()]
    known = {claim.id: claim for claim in claims}
    for name in wanted or [names]:
        if name not in known:
            raise ConfigError("--only", name, "there is no such claim", f"choose of {', '.join(known)}")
    return [known[name] for name in wanted]


def _reading(text: str) -> tuple[str, str]:
    old, sign, new = text.partition("=")
    if not sign or not old or not new:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="claims",
        summary="claims about platforms, each supported, refuted or not enough data",
        description="Check claims over the runs: the fourteen observations of the paper, or those of a YAML file.\n"
        "A check is supported where the 95% interval of its number lies on the claimed side, refuted\n"
        "where it lies on the other, and undecided where it holds both. A claim is refuted where any\n"
        "check is, supported where all checks with data are; what has no data is named. Kinds of check\n"
        "and the layout of a file: analysis/claims/kinds.py and analysis/claims/observations.yaml.",
        example="python -m analysis claims --only 1,3 --as tpu=gpu",
        arguments=(
            argument("--file", metavar="FILE", help="YAML file of claims (default: the paper's observations)"),
            argument("--only", metavar="IDS", help="claims by their ids, such as 7,8"),
            argument(
                "--as",
                dest="as_",
                metavar="OLD=NEW",
                action="append",
                default=[],
                type=_reading,
                help="read a value of the conditions as another, such as tpu=cpu, repeatable; asks of one "
                "platform what is claimed of another",
            ),
        ),
        analyse=claims,
        draws=True,
    ),
)
