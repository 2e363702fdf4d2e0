"""Which columns of a frame an analysis is about: hyperparameters by name, and the metric to explain.

Users write `nodes` for `model.nodes`; a wrong name is answered with the nearest right one. Used by every method that
takes "any hyperparameter" or "any metric".
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.labels import not_recorded
from analysis.prices import PRICE
from analysis.store.frame import families, is_ok
from paradnn.core.workload import key_groups, option_names
from paradnn.errors import ConfigError
from paradnn.store.metrics import METRICS

__all__ = [
    "DEFAULT_METRICS",
    "Group",
    "GroupKey",
    "blocks_of",
    "choose_metric",
    "find_column",
    "find_metric",
    "groups",
    "hyperparameters",
    "settings",
]

#: What is shown or explained unless a metric is named: the first that the runs have. With one device, peak and
#: precision the first two differ by a constant factor, so what depends on what is the same.
DEFAULT_METRICS = ("flops_utilization", "flops_per_second", "examples_per_second")
#: Hyperparameters that are not of the model itself, in the order they are listed in.
_RUN = (
    "batch_size",
    "precision",
    "compile",
    "mode",
    *(key for work in key_groups().values() if not work.same_step for key in option_names(work)),
    "devices",
    "transport",
    "hosts",
    "scenario",
)
#: Settings that also change what is measured, though they are no hyperparameters.
_SETTINGS = (
    *("optimizer.", "platform.", "framework.", "data.", "software."),
    *(f"{group}." for group, work in key_groups().items() if work.same_step),
)


@dataclass(frozen=True)
class GroupKey:
    """One model family on one device."""

    family: str
    device: str

    @property
    def name(self) -> str:
        """Such as "fc on TPU v2"."""
        return f"{self.family} on {self.device}"


@dataclass(frozen=True)
class Group(GroupKey):
    """The runs of one model family on one device."""

    rows: pd.DataFrame


def groups(frame: pd.DataFrame) -> list[Group]:
    """The frame by family, in the paper's order, and device, by name, or that it is not recorded."""
    family, device = (frame[name].astype("object").fillna(not_recorded(name)) for name in ("family", "device"))
    present = set(zip(family, device, strict=True))
    order = [*families(frame), not_recorded("family")]
    ordered = sorted(present, key=lambda pair: (order.index(pair[0]), pair[1]))
    return [Group(*pair, frame[(family == pair[0]) & (device == pair[1])]) for pair in ordered]


def hyperparameters(frame: pd.DataFrame) -> list[str]:
    """The columns `model.*` (but the name) and those of the run, such as batch_size, that any of these runs has."""
    model = [name for name in frame.columns if str(name).startswith("model.") and name != "model.name"]
    return [name for name in (*model, *_RUN) if name in frame and frame[name].notna().any()]


def settings(frame: pd.DataFrame) -> list[str]:
    """Columns of the configuration that are no hyperparameters but may change speed, and vary among these runs."""
    named = [name for name in frame.columns if str(name).startswith(_SETTINGS) and name != PRICE]
    return [name for name in named if frame[name].nunique(dropna=False) > 1]


def find_column(frame: pd.DataFrame, name: str, option: str) -> str:
    """The hyperparameter column that a user means, with or without `model.`; ConfigError if there is none."""
    for candidate in (name, f"model.{name}"):
        if candidate in frame and frame[candidate].notna().any():
            return candidate
    known = [column for column in frame.columns if frame[column].notna().any()]
    raise ConfigError(option, name, "these runs have no such hyperparameter", _advice(name, known, frame))


def find_metric(frame: pd.DataFrame, name: str, option: str = "--metric") -> str:
    """`name`, if it is a column of numbers that an ok run has a value in; else ConfigError says what there is."""
    held = frame.loc[is_ok(frame)]
    if name in held and pd.api.types.is_numeric_dtype(held[name]) and held[name].notna().any():
        return name
    known = [column for column in METRICS if column in held and held[column].notna().any()]
    if name in METRICS:
        raise ConfigError(option, name, "none of these runs has a value of it", f"they have {', '.join(known[:8])}")
    close = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        option,
        name,
        "is no metric of these runs",
        f"did you mean {close[0]}?" if close else f"they have {', '.join(known[:8])}",
    )


def choose_metric(frame: pd.DataFrame, candidates: Sequence[str] = DEFAULT_METRICS) -> str:
    """The first candidate that at least nine of ten ok runs have, else the one that most of them have.

    ConfigError when no ok run has any of them.
    """
    held = frame.loc[is_ok(frame)]
    share = {name: float(held[name].notna().mean()) for name in candidates if name in held and len(held)}
    if not any(share.values()):
        raise ConfigError(
            "--metric",
            "(none given)",
            f"no measured run has {', '.join(candidates)}",
            "measure first, choose other runs, or name a metric",
        )
    return next((name for name, part in share.items() if part >= 0.9), max(share, key=lambda name: share[name]))


def blocks_of(text: object) -> list[int] | None:
    """The counts in a value such as "[3, 4, 6, 3]" of `model.blocks`; None for what is no list of numbers."""
    try:
        value = json.loads(str(text))
    except ValueError:
        return None
    counts = value if isinstance(value, list) else None
    return counts if counts and all(isinstance(count, int) for count in counts) else None


def _advice(name: str, known: Sequence[str], frame: pd.DataFrame) -> str:
    close = difflib.get_close_matches(name, [*known, *(str(column).removeprefix("model.") for column in known)], n=1)
    return f"did you mean {close[0]}?" if close else f"they have {', '.join(hyperparameters(frame))}"
