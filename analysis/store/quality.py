"""Quality checks before every analysis: unusable runs are excluded, doubtful runs are reported.

runs, quality = usable_runs(frame)
quality.text()  # "Excluded: 3 runs with failed checks, 12 copies of other runs; ..."
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from analysis.lazy import np, pd
from analysis.store.frame import is_ok, units
from paradnn.core.words import counted

#: Larger than any real quantity in any unit, such as the FLOPs of all computers in a century.
_MAX_PLAUSIBLE = 1e30
#: Metrics that distinguish two timings. The metrics of one tuple are functions of each other.
_TIMINGS = (
    ("step_time_ms", "examples_per_second", "flops_per_second"),
    ("step_time_low_ms", "examples_per_second_high"),
    ("step_time_high_ms", "examples_per_second_low"),
    ("step_time_cv",),
    ("compile_seconds",),
)
#: Smallest number of common significant digits, summed over `_TIMINGS`, for which two runs count as
#: copies. Two measurements with a spread of 1% agree in five digits with a probability of 1/3,000.
_MIN_COMMON_DIGITS = 5
#: Largest relative difference of two timings that rounding may explain.
_MAX_ROUNDING = 1e-3
#: Largest factor by which an interval may reach beyond the fastest and the slowest block.
_BLOCK_FACTOR = 1.1
#: Tolerance of comparisons between rounded metrics.
_ROUNDING_FACTOR = 1 + 1e-5
_STEP_TIMES = (
    "step_time_ms",
    "step_time_low_ms",
    "step_time_high_ms",
    "step_time_min_ms",
    "step_time_max_ms",
)
_RATES = ("examples_per_second", "examples_per_second_low", "examples_per_second_high")
_INTERVAL_ENDS = (
    "step_time_low_ms",
    "step_time_high_ms",
    "examples_per_second_low",
    "examples_per_second_high",
)


@dataclass(frozen=True)
class Quality:
    """Counts of the runs that the quality checks excluded, and of doubtful ones.

    Attributes:
        runs: Number of runs before the checks.
        failed_checks: Excluded runs whose recorded checks failed.
        copies: Excluded runs that are copies of other runs.
        impossible: Impossible values (`_MAX_PLAUSIBLE`), which were set to missing.
        wild: Runs with an implausible interval, which was set to missing.
        unsteady: Runs that did not reach a steady state; excluded with `steady_only`.
        contended: Runs on a machine with other work; excluded with `steady_only`.
        unknown_load: Runs that do not record whether their machine had other work; counted and
            excluded with `steady_only`.
        steady_only: Whether unsteady and contended runs are excluded.
        partly_failed: Configurations with both ok and failed replicates.
        failed: Number of failed replicates of these configurations, by outcome.
        scenarios: Runs that serve queries, but are used for the steps that they time.
    """

    runs: int = 0
    failed_checks: int = 0
    copies: int = 0
    impossible: int = 0
    wild: int = 0
    unsteady: int = 0
    contended: int = 0
    unknown_load: int = 0
    steady_only: bool = False
    partly_failed: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    scenarios: int = 0

    @property
    def excluded_runs(self) -> int:
        """Number of excluded runs."""
        excluded = self.failed_checks + self.copies
        if self.steady_only:
            excluded += self.unsteady + self.contended + self.unknown_load
        return excluded

    def as_json(self) -> dict[str, Any]:
        """Return the attributes by name, and `excluded_runs` under the key `out`."""
        return asdict(self) | {"out": self.excluded_runs}

    def text(self) -> str:
        """Return a line that counts the excluded and the doubtful runs.

        It is empty if no run is excluded or doubtful.
        """
        parts = []
        excluded = list(self._excluded())
        if excluded:
            parts.append(f"excluded: {', '.join(excluded)}")
        parts += self._doubtful()
        line = "; ".join(parts)
        if not line:
            return ""
        return f"{line[0].upper()}{line[1:]}."

    def _excluded(self) -> Iterator[str]:
        if self.failed_checks:
            yield f"{counted(self.failed_checks, 'run')} with failed checks"
        if self.copies:
            copies = "copies" if self.copies > 1 else "copy"
            yield f"{self.copies} {copies} of other runs"
        if self.unsteady and self.steady_only:
            yield f"{counted(self.unsteady, 'run')} without a steady state"
        if self.contended and self.steady_only:
            yield f"{counted(self.contended, 'run')} on a contended machine"
        if self.unknown_load:
            yield f"{counted(self.unknown_load, 'run')} with an unknown load of the machine"
        if self.impossible:
            yield counted(self.impossible, "infinite or impossible value")

    def _doubtful(self) -> Iterator[str]:
        if self.unsteady and not self.steady_only:
            verb = "are" if self.unsteady > 1 else "is"
            yield f"{counted(self.unsteady, 'run')} {verb} not steady"
        if self.contended and not self.steady_only:
            yield (
                f"{counted(self.contended, 'run')} shared the machine with other work "
                "(--steady-only excludes such runs)"
            )
        if self.wild:
            yield (
                f"{counted(self.wild, 'run')} whose interval is excluded, "
                "since it extends far beyond every block"
            )
        if self.partly_failed:
            failed = ", ".join(f"{count} {outcome}" for outcome, count in self.failed.items())
            verb = "use" if self.partly_failed > 1 else "uses"
            yield (
                f"{counted(self.partly_failed, 'point')} {verb} only the replicates that did not "
                f"fail (failed: {failed})"
            )
        if self.scenarios:
            yield (
                f"{counted(self.scenarios, 'run')} of scenarios count for the steps that they "
                "time, not for their queries (docs/how-to/serving.md)"
            )


def usable_runs(frame: pd.DataFrame, *, steady_only: bool = False) -> tuple[pd.DataFrame, Quality]:
    """Exclude unusable runs, and count excluded and doubtful runs.

    Args:
        frame: One row per run.
        steady_only: Whether to also exclude runs that did not reach a steady state, or whose
            machine did other work.

    Returns:
        The usable runs, and the counts of excluded and doubtful runs.
    """
    if "outcome" not in frame:
        # The rows are models, not measurements.
        return frame, Quality(runs=len(frame))
    has_failed_checks = _starts_with(frame, "checks", "failed")
    is_copy = ~has_failed_checks & find_copies(frame)
    is_valid = ~has_failed_checks & ~is_copy
    is_contended = is_valid & _starts_with(frame, "contended", "true")
    is_unsteady = (
        is_valid & ~is_contended & is_ok(frame).to_numpy() & _starts_with(frame, "steady", "false")
    )
    is_excluded = ~is_valid
    has_unknown_load = np.zeros(len(frame), dtype=bool)
    if steady_only:
        is_measured = is_valid & ~is_unsteady & is_ok(frame).to_numpy()
        has_unknown_load = is_measured & _has_unknown_load(frame)
        is_excluded = is_excluded | is_unsteady | is_contended | has_unknown_load
    kept = frame
    if is_excluded.any():
        kept = frame[~is_excluded].reset_index(drop=True)
    kept, impossible = _drop_impossible_values(kept)
    kept, implausible = drop_implausible_intervals(kept)
    partly_failed, failed = _partly_failed_points(kept)
    quality = Quality(
        runs=len(frame),
        failed_checks=int(has_failed_checks.sum()),
        copies=int(is_copy.sum()),
        impossible=impossible,
        wild=implausible,
        unsteady=int(is_unsteady.sum()),
        contended=int(is_contended.sum()),
        unknown_load=int(has_unknown_load.sum()),
        steady_only=steady_only,
        partly_failed=partly_failed,
        failed=failed,
    )
    return kept, quality


def _has_unknown_load(frame: pd.DataFrame) -> np.ndarray:
    """Return a mask (n,) of runs that do not record whether their machine had other work.

    Runs that do not record whether they were steady either are not included.
    """
    if "steady" not in frame:
        return np.zeros(len(frame), dtype=bool)
    is_judged = frame["steady"].notna().to_numpy(dtype=bool)
    if "contended" not in frame:
        return is_judged
    return is_judged & frame["contended"].isna().to_numpy(dtype=bool)


def _drop_impossible_values(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Set impossible values of metrics to missing.

    Returns:
        The frame, and the number of such values.
    """
    names = [name for name in units(frame.columns) if pd.api.types.is_float_dtype(frame[name])]
    numbers = frame[names]
    is_suspect = (numbers.max() > _MAX_PLAUSIBLE) | (numbers.min() < -_MAX_PLAUSIBLE)
    is_impossible = numbers.loc[:, is_suspect].abs() > _MAX_PLAUSIBLE
    if is_impossible.size:
        cleaned = {str(name): numbers[name].mask(mask) for name, mask in is_impossible.items()}
        frame = frame.assign(**cleaned)
    return frame, int(is_impossible.to_numpy().sum())


def find_copies(frame: pd.DataFrame) -> np.ndarray:
    """Return a mask of the successful runs that are copies of an earlier run.

    A point is one configuration to measure. A run is a copy if it has the same `offline_id`, or the
    same `origin` and point, as an earlier run. It is also a copy if it has the same point and
    environment, and its timings are equal up to rounding: every timing of both runs agrees in all
    digits of the shorter number, and the common digits are at least `_MIN_COMMON_DIGITS` in total.
    Runs with equal raw measurements have equal timings, so they are found as well.

    Args:
        frame: One row per run.

    Returns:
        A boolean array (n,), true for copies.
    """
    is_copy = np.zeros(len(frame), dtype=bool)
    ok = is_ok(frame).to_numpy()
    for keys in (["offline_id"], ["origin", "point_id"]):
        if all(name in frame for name in keys):
            positions = np.flatnonzero(ok & frame[keys].notna().all(axis=1).to_numpy())
            is_copy[positions] |= frame[keys].iloc[positions].duplicated().to_numpy()
    if "point_id" not in frame:
        return is_copy
    keys = [name for name in ("point_id", "environment_id") if name in frame]
    positions = np.flatnonzero(ok & ~is_copy & frame["point_id"].notna().to_numpy())
    positions = positions[frame[keys].iloc[positions].duplicated(keep=False).to_numpy()]
    timings = [
        frame.reindex(columns=list(names)).astype("float64").to_numpy() for names in _TIMINGS
    ]
    groups = frame[keys].iloc[positions].groupby(keys, dropna=False).ngroup().to_numpy()
    for _, group in pd.Series(positions).groupby(groups):
        rows = group.to_numpy()
        near = _near_rows(np.hstack([values[rows] for values in timings]))
        for number, position in enumerate(rows):
            is_copy[position] = any(
                not is_copy[rows[earlier]] and _have_equal_timings(timings, position, rows[earlier])
                for earlier in near[number]
            )
    return is_copy


def _near_rows(timings: np.ndarray) -> list[list[int]]:
    """Return, for each row, the earlier rows that it may copy.

    Not all pairs of rows are compared, which keeps the search fast.

    Args:
        timings: Timings of the runs of one configuration (runs, metrics); NaN where a run has none.

    Returns:
        For each row, the earlier rows whose timings agree with its timings up to rounding.
    """
    count = len(timings)
    is_usable = (np.isfinite(timings) & (timings > 0)).all(axis=0)
    if is_usable.any():
        key = timings[:, np.flatnonzero(is_usable)[0]]
    else:
        key = np.ones(count)  # no timing orders the rows, so all pairs are compared
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    near: list[list[int]] = [[] for _ in range(count)]
    for distance in range(1, count):
        is_near = ordered[distance:] - ordered[:-distance] <= 2 * _MAX_ROUNDING * ordered[distance:]
        if not is_near.any():
            break
        pairs = np.stack([order[:-distance][is_near], order[distance:][is_near]])
        one = timings[pairs[0]]
        other = timings[pairs[1]]
        # Comparisons with NaN are false, so a missing timing never distinguishes two rows. Nor do
        # two infinite timings, whose difference is NaN.
        with np.errstate(invalid="ignore"):
            differs = np.abs(one - other) > _MAX_ROUNDING * np.maximum(np.abs(one), np.abs(other))
        for first, second in np.sort(pairs[:, ~differs.any(axis=1)], axis=0).T:
            near[second].append(int(first))
    return near


def _have_equal_timings(timings: list[np.ndarray], first: int, second: int) -> bool:
    """Return whether the timings of two runs are equal up to rounding, so that one is a copy.

    Args:
        timings: For each group of metrics, the timings (runs, metrics).
        first: Row of the first run.
        second: Row of the second run.
    """
    digits = [
        [_common_digits(one, other) for one, other in zip(rows[first], rows[second], strict=True)]
        for rows in timings
    ]
    if min(min(group) for group in digits) < 0:
        return False
    return sum(max(group) for group in digits) >= _MIN_COMMON_DIGITS


def _common_digits(one: float, other: float) -> int:
    """Return the number of digits of the shorter of two timings, if they agree in all of these.

    Returns:
        The number of digits; 0 if a timing is missing, -1 if the timings differ.
    """
    if not (math.isfinite(one) and math.isfinite(other)):
        return 0
    if abs(one - other) > _MAX_ROUNDING * max(abs(one), abs(other)):
        return -1
    # A stored number has at most 15 digits.
    texts = (f"{value:.15g}" for value in (one, other))
    digits = min(len(Decimal(text).normalize().as_tuple().digits) for text in texts)
    if f"{one:.{digits}g}" == f"{other:.{digits}g}":
        return digits
    return -1


def _starts_with(frame: pd.DataFrame, name: str, prefix: str) -> np.ndarray:
    """Return whether each value of a column starts with a prefix, ignoring case.

    Args:
        frame: The frame, with n rows.
        name: Name of the column. Booleans in it are compared as text.
        prefix: The prefix, in lower case.

    Returns:
        A boolean array (n,); false everywhere if the column is missing.
    """
    if name not in frame:
        return np.zeros(len(frame), dtype=bool)
    codes, distinct = pd.factorize(frame[name])
    # Missing values have code -1, which selects the last entry.
    matches = [str(value).lower().startswith(prefix) for value in distinct]
    return np.array([*matches, False])[codes]


def drop_implausible_intervals(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Set implausible intervals of times and rates to missing.

    An interval is implausible if its mean half width exceeds its estimate, or if it excludes its
    estimate. It is also implausible if an end lies more than a tenth beyond the fastest or the
    slowest measured block of steps. Only old runs have such intervals; newer versions limit an
    interval to the measured blocks.

    Args:
        frame: One row per run.

    Returns:
        The frame, and the number of runs with such an interval.
    """
    names = [*_STEP_TIMES, *_RATES]
    columns = frame.reindex(columns=names).astype("float64").to_numpy().T
    value, low, high, fastest, slowest, rate, rate_low, rate_high = columns
    with np.errstate(invalid="ignore"):
        is_too_wide = high - low > 2 * value
        is_beyond_blocks = (low < fastest / _BLOCK_FACTOR) | (high > slowest * _BLOCK_FACTOR)
        excludes_time = (low > value * _ROUNDING_FACTOR) | (value > high * _ROUNDING_FACTOR)
        excludes_rate = (rate_low > rate * _ROUNDING_FACTOR) | (rate > rate_high * _ROUNDING_FACTOR)
    is_implausible = is_too_wide | is_beyond_blocks | excludes_time | excludes_rate
    if is_implausible.any():
        ends = {name: frame[name].mask(is_implausible) for name in _INTERVAL_ENDS if name in frame}
        frame = frame.assign(**ends)
    return frame, int(is_implausible.sum())


def _partly_failed_points(frame: pd.DataFrame) -> tuple[int, dict[str, int]]:
    """Count the configurations with both ok and failed replicates.

    A failed replicate does not count if it was repeated successfully under the same number.

    Returns:
        The number of such configurations, and the number of failed replicates by outcome.
    """
    ok = is_ok(frame)
    has_failed = frame["outcome"].notna() & ~ok
    if "point_id" not in frame or not has_failed.any():
        return 0, {}
    keys = [name for name in ("point_id", "environment_id") if name in frame]
    point = frame.groupby(keys, dropna=False).ngroup()
    counts_as_failed = has_failed & ok.groupby(point).transform("any")
    if "replicate" in frame:
        replicate = frame.groupby([*keys, "replicate"], dropna=False).ngroup()
        was_repeated = ok.groupby(replicate).transform("any") & frame["replicate"].notna()
        counts_as_failed &= ~was_repeated
    outcomes = frame.loc[counts_as_failed, "outcome"].astype("object").value_counts()
    failed = {str(outcome): int(count) for outcome, count in outcomes.items()}
    return int(point[counts_as_failed].nunique()), failed
