"""The gate that runs pass on their way into every analysis: what is wrong stays out, what is
doubtful is reported.

runs, quality = usable_runs(frame) quality.text()   "Left out: 3 runs with failed checks, 12 copies of
other runs; 4 runs are not steady."
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from analysis.lazy import np, pd
from analysis.store.frame import is_ok, units
from paradnn.core.words import counted

_LARGEST = 1e30  # no quantity is as large, in any unit: so many FLOPs are a century of all computers there are
#: What tells one timing from another: metrics in one tuple follow from each other, so they agree
#: together.
_TIMINGS = (
    ("step_time_ms", "examples_per_second", "flops_per_second"),
    ("step_time_low_ms", "examples_per_second_high"),
    ("step_time_high_ms", "examples_per_second_low"),
    ("step_time_cv",),
    ("compile_seconds",),
)
#: Significant digits in which two timings must agree, over all that tell them apart, to be one: two
#: measurements with a spread of 1% agree in five digits once in 3,000 times.
_DIGITS = 5
# times the slowest block; times what was rounded to so many digits
_BEYOND = 1.1
_SLACK = 1 + 1e-5
_BLOCKS = (
    "step_time_ms",
    "step_time_low_ms",
    "step_time_high_ms",
    "step_time_min_ms",
    "step_time_max_ms",
)
_ENDS = (*_BLOCKS[1:3], "examples_per_second_low", "examples_per_second_high")


@dataclass(frozen=True)
class Quality:
    """What the gate left out and what it let pass although it is doubtful, as numbers of runs.

    Out are `failed_checks`, `copies` and, with `steady_only`, `unsteady` and `contended` runs,
    which are else flagged. `impossible` values and `wild` intervals are taken as missing. `failed`
    maps outcomes to runs that failed beside ok replicates of `partly_failed` points; `scenarios`
    are runs that were taken for what their steps are.
    """

    runs: int = 0
    failed_checks: int = 0
    copies: int = 0
    impossible: int = 0
    wild: int = 0
    unsteady: int = 0
    contended: int = 0
    steady_only: bool = False
    partly_failed: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    scenarios: int = 0

    @property
    def out(self) -> int:
        """How many runs were left out."""
        return (
            self.failed_checks
            + self.copies
            + (self.unsteady + self.contended if self.steady_only else 0)
        )

    def as_json(self) -> dict[str, Any]:
        """The fields, and `out`."""
        return asdict(self) | {"out": self.out}

    def text(self) -> str:
        """What was left out and what is doubtful in one line; empty where there is neither."""
        runs = functools.partial(counted, noun="run")
        strict = self.steady_only
        failed = ", ".join(f"{count} {outcome}" for outcome, count in self.failed.items())
        out = {
            f"{runs(self.failed_checks)} with failed checks": self.failed_checks,
            f"{self.copies} {'copies' if self.copies > 1 else 'copy'} of other runs": self.copies,
            f"{runs(self.unsteady)} that are not steady": self.unsteady * strict,
            f"{runs(self.contended)} on a contended machine": self.contended * strict,
            f"{self.impossible} infinite or impossible values": self.impossible,
        }
        rest = f"{counted(self.partly_failed, 'point')} rest on the replicates that did not fail ({failed} failed)"
        shared = f"{runs(self.contended)} shared the machine with other work (--steady-only leaves such runs out)"
        steps = f"{runs(self.scenarios)} of scenarios count for the steps that they time, not for their queries"
        parts = {
            f"left out: {', '.join(words for words, count in out.items() if count)}": sum(
                out.values()
            ),
            f"{runs(self.unsteady)} {'are' if self.unsteady > 1 else 'is'} not steady": self.unsteady
            * (not strict),
            shared: self.contended * (not strict),
            f"{runs(self.wild)} without an interval, which would reach far beyond every block": self.wild,
            rest: self.partly_failed,
            f"{steps} (docs/how-to/serving.md)": self.scenarios,
        }
        line = "; ".join(words for words, count in parts.items() if count)
        return f"{line[0].upper()}{line[1:]}." if line else ""


def usable_runs(frame: pd.DataFrame, steady_only: bool = False) -> tuple[pd.DataFrame, Quality]:
    """The runs that an analysis may rest on, and what became of the others; `steady_only` also
    leaves out runs that are not steady or whose machine was contended.
    """
    if "outcome" not in frame:  # models without runs
        return frame, Quality(runs=len(frame))
    wrong = _begins(frame, "checks", "failed")
    copied = ~wrong & find_copies(frame)
    contended = ~wrong & ~copied & _begins(frame, "contended", "true")
    unsteady = (
        ~wrong & ~copied & ~contended & is_ok(frame).to_numpy() & _begins(frame, "steady", "false")
    )
    out = wrong | copied | ((unsteady | contended) & steady_only)
    kept = frame[~out].reset_index(drop=True) if out.any() else frame
    numbers = kept[
        [name for name in units(kept.columns) if pd.api.types.is_float_dtype(kept[name])]
    ]
    impossible = (
        numbers.loc[:, (numbers.max() > _LARGEST) | (numbers.min() < -_LARGEST)].abs() > _LARGEST
    )
    if impossible.size:
        kept = kept.assign(
            **{str(name): numbers[name].mask(bad) for name, bad in impossible.items()}
        )
    kept, wild = drop_implausible_intervals(kept)
    points, failed = _failed_beside_ok(kept)
    return kept, Quality(
        runs=len(frame),
        failed_checks=int(wrong.sum()),
        copies=int(copied.sum()),
        impossible=int(impossible.to_numpy().sum()),
        wild=wild,
        unsteady=int(unsteady.sum()),
        contended=int(contended.sum()),
        steady_only=steady_only,
        partly_failed=points,
        failed=failed,
    )


def find_copies(frame: pd.DataFrame) -> np.ndarray:
    """Which ok runs (n,) are copies of one that stands before them.

    A copy is of the same record (`offline_id`, or `origin` together with the point) or of the same
    point in the same environment with the same timings to rounding: every timing that both hold
    agrees in the digits of the one with fewer, five or more over all. Runs with equal raw blocks
    have equal timings, and so are found.
    """
    found = np.zeros(len(frame), dtype=bool)
    ok = is_ok(frame).to_numpy()
    for keys in (["offline_id"], ["origin", "point_id"]):
        if all(name in frame for name in keys):
            places = np.flatnonzero(ok & frame[keys].notna().all(axis=1).to_numpy())
            found[places] |= frame[keys].iloc[places].duplicated().to_numpy()
    if "point_id" not in frame:
        return found
    keys = [name for name in ("point_id", "environment_id") if name in frame]
    places = np.flatnonzero(ok & ~found & frame["point_id"].notna().to_numpy())
    places = places[frame[keys].iloc[places].duplicated(keep=False).to_numpy()]
    timings = [
        frame.reindex(columns=list(names)).astype("float64").to_numpy() for names in _TIMINGS
    ]
    for _, same in pd.Series(places).groupby(
        frame[keys].iloc[places].groupby(keys, dropna=False).ngroup().to_numpy()
    ):
        first: list[int] = []
        for place in same:
            pairs = (
                [list(map(_shared, rows[place], rows[other])) for rows in timings]
                for other in first
            )
            found[place] = any(min(map(min, d)) >= 0 and sum(map(max, d)) >= _DIGITS for d in pairs)
            first += [] if found[place] else [place]
    return found


def _shared(one: float, other: float) -> float:
    """The digits in which two timings agree, all of the one with fewer; 0 where one is not known,
    -1 if they differ.
    """
    if not (math.isfinite(one) and math.isfinite(other)):
        return 0
    if abs(one - other) > 1e-3 * max(abs(one), abs(other)):
        return -1
    texts = (f"{each:.15g}" for each in (one, other))  # what a stored number has
    fewer = min(len(Decimal(text).normalize().as_tuple().digits) for text in texts)
    return fewer if f"{one:.{fewer}g}" == f"{other:.{fewer}g}" else -1


def _begins(frame: pd.DataFrame, name: str, word: str) -> np.ndarray:
    """Which rows say a word, truth values in words; none where the column is not there."""
    if name not in frame:
        return np.zeros(len(frame), dtype=bool)
    codes, words = pd.factorize(frame[name])
    return np.array([*(str(each).lower().startswith(word) for each in words), False])[codes]


def drop_implausible_intervals(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The frame without intervals that cannot be, and how many runs had one.

    Such an interval is wider than what it is of, to each side in the mean, does not hold it, or
    ends a tenth and more beyond the fastest or the slowest block that was measured. Runs stored
    before intervals ended at those have them.
    """
    names = [*_BLOCKS, "examples_per_second", *_ENDS[2:]]
    value, low, high, fastest, slowest, rate, least, most = (
        frame.reindex(columns=names).astype("float64").to_numpy().T
    )
    with np.errstate(invalid="ignore"):
        wild = (high - low > 2 * value) | (low < fastest / _BEYOND) | (high > slowest * _BEYOND)
        wild |= (
            (low > value * _SLACK)
            | (value > high * _SLACK)
            | (least > rate * _SLACK)
            | (rate > most * _SLACK)
        )
    if wild.any():
        frame = frame.assign(**{name: frame[name].mask(wild) for name in _ENDS if name in frame})
    return frame, int(wild.sum())


def _failed_beside_ok(frame: pd.DataFrame) -> tuple[int, dict[str, int]]:
    """(points with an ok replicate beside failed ones, outcome -> how many failed); what was
    repeated with success under the same replicate did not fail.
    """
    ok = is_ok(frame)
    keys = [name for name in ("point_id", "environment_id") if name in frame]
    if "point_id" not in frame or not (frame["outcome"].notna() & ~ok).any():
        return 0, {}
    point = frame.groupby(keys, dropna=False).ngroup()
    beside = frame["outcome"].notna() & ~ok & ok.groupby(point).transform("any")
    if "replicate" in frame:
        again = ok.groupby(frame.groupby([*keys, "replicate"], dropna=False).ngroup()).transform(
            "any"
        )
        beside &= ~(again & frame["replicate"].notna())
    counts = frame.loc[beside, "outcome"].astype("object").value_counts()
    return int(point[beside].nunique()), {
        str(outcome): int(count) for outcome, count in counts.items()
    }
