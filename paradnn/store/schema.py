"""What driver and analysis must agree on about a stored run: its version, keys that came later, how it says its end."""

from __future__ import annotations

from collections.abc import Mapping

from paradnn.config.identity import later_keys, texts

__all__ = [
    "ANALYSIS_OUTCOME",
    "CEILINGS_OUTCOME",
    "EXPIRES",
    "LATER_PARAMS",
    "OUTCOME_TAGS",
    "OWNER",
    "SCHEMA_VERSION",
    "outcome_of",
]

#: Version of what a run holds.
#:   1  the first.
SCHEMA_VERSION = "1"

#: Tags of a claim: who holds it, and until when it is believed. The UI hides what begins with "mlflow."; runs recorded
#: by earlier versions have both without that beginning.
OWNER, EXPIRES = "mlflow.paradnn.owner", "mlflow.paradnn.claim_expires"

#: Params that came later, with the value that every run measured before them had, written as the store writes it.
LATER_PARAMS: Mapping[str, str] = texts(later_keys())

#: How runs that are no points say their end: under names of their own, so that who counts outcomes counts points.
CEILINGS_OUTCOME, ANALYSIS_OUTCOME = "ceilings_outcome", "analysis_outcome"
#: Tags of which a finished run has one. Those recorded by earlier versions say `outcome`, whatever they are.
OUTCOME_TAGS = ("outcome", CEILINGS_OUTCOME, ANALYSIS_OUTCOME)


def outcome_of(tags: Mapping[str, str]) -> str | None:
    """How the run with these tags ended, whatever its kind; None while it has not."""
    return next((tags[name] for name in OUTCOME_TAGS if name in tags), None)
