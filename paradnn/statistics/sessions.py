"""Sessions of runs, the order of two sides in them, and changes of the machine's speed.

A session is a sweep on one host without a long pause. All measurements of a session share a shift,
caused by other tenants of the machine, its temperature or its memory layout.
`paradnn.statistics.effects` derives the effect of sessions on the difference of two sides.

Arrays of runs contain the runs of A first, then the runs of B; n is the number of runs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from paradnn.statistics.dependence import MINIMUM_POINTS, Component
from paradnn.statistics.lazy import np, pd, stats

#: Minimum number of sessions for a mean over session means.
MIN_SESSIONS = 3
#: p-value below which an order, or the loss of replicates of one side, is not attributed to chance.
BY_CHANCE = 0.01

#: Longest pause within a session.
_LONGEST_PAUSE = "30min"
_DAY_NANOSECONDS = 24 * 3600 * 10**9
#: Two sides were measured at different times of day if their sessions are further apart on the
#: clock than this share of a day. The sessions of a side must also be closer to each other than to
#: those of the other side.
_TIME_OF_DAY_GAP = 1 / 8
#: Significance level of a step of the machine's speed, corrected for the number of positions.
_STEP_P = 0.01
#: Maximum number of steps in a session.
_MAX_STEPS = 8
#: Number of positions at which a step is tried.
_STEP_POSITIONS = 200
#: Degrees of freedom of a step at an estimated position (Ninomiya, Statistics and Probability
#: Letters 72, 2005).
_STEP_FREEDOM = 3
#: Largest deviation of P(a run of A precedes a run of B) from 0.5, in standard errors, at which the
#: order of the sides counts as mixed. One of a hundred random orders exceeds it. As a probability,
#: the limit is clipped to the two bounds below.
_IMBALANCE_ERRORS = 2.6
_MIN_IMBALANCE = 0.1
_MAX_IMBALANCE = 0.25
_TINY = 1e-300


class MeasurementTimes(NamedTuple):
    """When n points (configurations) were measured.

    Attributes:
        session: (n,) number of the session, a series of measurements taken in one go.
        position: (n,) position in the session, from -1/2 for the first to 1/2 for the last.
        hours: (n,) mean start of the point's runs in hours since 1970; NaN if it is unknown.
    """

    session: np.ndarray
    position: np.ndarray
    hours: np.ndarray


def measurement_times(runs: pd.DataFrame, points: pd.Series) -> MeasurementTimes | None:
    """Return the measurement times of points; None if the session of any run is unknown.

    Args:
        runs: Runs of the points, one row per run, with the column `point_id`.
        points: (n,) the `point_id` of each point (configuration).
    """
    table = pd.DataFrame({"session": assign_sessions(runs), "time": runs.get("start_time", pd.NaT)})
    if table["session"].isna().any():
        return None
    is_known = table["time"].notna()
    nanoseconds = table["time"].to_numpy(dtype="datetime64[ns]").astype("int64")
    table["time"] = pd.Series(nanoseconds, dtype="float64").where(is_known)
    table["point"] = runs["point_id"].to_numpy()
    visits = table[["point", "session"]].drop_duplicates().sort_values("session")
    # Joining names is slow, so join them only for points with several sessions.
    is_shared = visits["point"].duplicated(keep=False)
    shared = visits[is_shared].groupby("point")["session"].agg(" and ".join)
    single = visits[~is_shared].set_index("point")["session"]
    names = pd.concat([single, shared]).reindex(points)
    times = table.groupby("point")["time"].mean().reindex(points)
    by_session = times.groupby(names.to_numpy())
    position = (by_session.rank(method="first") - 0.5) / by_session.transform("size") - 0.5
    return MeasurementTimes(
        session=pd.factorize(names)[0],
        position=position.fillna(0.0).to_numpy(),
        hours=times.to_numpy(dtype="float64", na_value=np.nan) / 3.6e12,
    )


def assign_sessions(runs: pd.DataFrame) -> np.ndarray:
    """Return the name of each run's session, as an array (n,); None if the session is unknown.

    Runs on different hosts or of different sweeps never share a session. The start of a new session
    depends on the run:

    - A run of a sweep starts a new session if it started more than half an hour after the previous
      run of the sweep on this host, and if the two runs have different drivers.
    - A run outside sweeps starts a new session if it started more than half an hour after the
      previous run outside sweeps on this host.

    The session of an imported published run is unknown, because the recorded start of such a run is
    the time of the import. The session is also unknown if a run has neither a sweep nor a start.

    Args:
        runs: The n runs. The columns `sweep_id`, `host`, `session_id`, `start_time` and `source`
            are used if present.
    """
    table = runs.reindex(columns=["sweep_id", "host", "session_id"])
    table = table.astype("object").fillna("").reset_index(drop=True)
    table["time"] = runs["start_time"].array if "start_time" in runs else pd.NaT
    is_known = (table["sweep_id"] != "") | table["time"].notna()
    if "source" in runs:
        is_known &= ~runs["source"].eq("published").fillna(False).to_numpy(dtype=bool)
    table = table[is_known].sort_values(["sweep_id", "host", "time"], kind="stable")
    by_sweep = table.groupby(["sweep_id", "host"], sort=False)
    follows_pause = by_sweep["time"].diff() > pd.Timedelta(_LONGEST_PAUSE)
    has_new_driver = by_sweep["session_id"].transform(lambda ids: ids != ids.shift())
    starts_session = follows_pause & (has_new_driver | (table["sweep_id"] == ""))
    number = starts_session.groupby([table["sweep_id"], table["host"]]).cumsum()
    names = (
        table["sweep_id"].astype(str)
        + " on "
        + table["host"].astype(str)
        + " "
        + number.astype(str)
    )
    sessions = np.full(len(runs), None, dtype=object)
    sessions[table.index.to_numpy()] = names.to_numpy()
    return sessions


def have_other_protocols(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Return whether the runs of two sides are known to have different timing protocols.

    A timing protocol is how runs are timed: minimum seconds, number of blocks and so on.

    Args:
        a: Runs of side A. The column `protocol_id` is used if present.
        b: Runs of side B, with the same columns.

    Returns:
        True if each side has at least one recorded protocol, and the sides share no protocol.
    """
    protocols_a, protocols_b = (
        set(side["protocol_id"].dropna()) if "protocol_id" in side else set() for side in (a, b)
    )
    return bool(protocols_a) and bool(protocols_b) and not protocols_a & protocols_b


class SpeedSteps(NamedTuple):
    """Lasting changes of the machine's speed within a session.

    Attributes:
        shift: (n,) effect of the changes on the logarithm of each run's value; its mean is 0.
        variance_inflation: Factor by which to multiply the residual variance, which is too small
            because the fitted changes were selected.
        drifts: Whether successive residuals still correlate.
    """

    shift: np.ndarray
    variance_inflation: float
    drifts: bool


def find_speed_steps(logs: np.ndarray, cells: np.ndarray, times: np.ndarray) -> SpeedSteps:
    """Find lasting changes of the machine's speed in one session.

    The mean of each cell is subtracted first, so a difference between sides or points does not
    count as a change. Then the linear drift or the step that explains most of the residuals is
    added. This is repeated as long as the F test of the addition is significant at `_STEP_P` after
    Bonferroni's correction. The method is binary segmentation (Scott and Knott, Biometrics 30,
    1974), except that all changes are fitted together. The cell means are not fitted together with
    the changes. Otherwise, a change that fits scatter by chance would make the cells differ.

    Args:
        logs: (n,) logarithms of a metric of the runs, such as speed.
        cells: (n,) number of each run's cell; a cell is a point (configuration) on one side.
        times: (n,) the start of each run.
    """
    count = len(logs)
    order = np.argsort(times, kind="stable")
    cell = pd.factorize(cells[order])[0]
    positions = np.unique(
        np.linspace(MINIMUM_POINTS, count - MINIMUM_POINTS, _STEP_POSITIONS, dtype=int)
    )
    cell_sizes = np.bincount(cell)
    freedom = count - int(cell.max()) - 1
    if positions[0] < MINIMUM_POINTS or freedom <= MINIMUM_POINTS:
        return SpeedSteps(np.zeros(count), 1.0, False)

    def without_cell_means(values: np.ndarray) -> np.ndarray:
        return values - (np.bincount(cell, values) / cell_sizes)[cell]

    run = np.arange(count)[:, None]
    # A step at each position, and a drift.
    shapes = np.column_stack([run >= positions, run / count])
    design = np.column_stack([without_cell_means(shape) for shape in shapes.T])
    response = without_cell_means(logs[order])
    chosen = _choose_shapes(design, response, freedom)
    sizes = np.linalg.lstsq(design[:, chosen], response, rcond=None)[0]
    shift = np.zeros(count)
    shift[order] = (shapes[:, chosen] - shapes[:, chosen].mean(axis=0)) @ sizes
    rest = response - design[:, chosen] @ sizes
    drifts = rest[1:] @ rest[:-1] * math.sqrt(count) > _IMBALANCE_ERRORS * (rest @ rest)
    inflation = freedom / (freedom - _STEP_FREEDOM * len(chosen))
    return SpeedSteps(shift, inflation, bool(drifts))


def _choose_shapes(design: np.ndarray, response: np.ndarray, freedom: int) -> list[int]:
    """Choose the steps and drifts that explain significantly more of the speeds in a session.

    Args:
        design: (n, k) one column per candidate: a step at some position, or a linear drift.
        response: (n,) logarithms of the runs' values without the means of their cells. A cell is a
            point on one side.
        freedom: Degrees of freedom of the response.

    Returns:
        The indices of the chosen columns.
    """
    squares = (design**2).sum(axis=0)

    def best_besides(others: list[int]) -> tuple[int, float, float]:
        """Find the column that explains most in addition to the columns `others`.

        Returns:
            The index of the column, the sum of squares that it explains, and the remaining sum of
            squares.
        """
        fitted = np.linalg.lstsq(design[:, others], response, rcond=None)[0]
        rest = response - design[:, others] @ fitted
        gains = np.where(squares > 1, (rest @ design) ** 2 / np.maximum(squares, 1), 0.0)
        gain = gains.max()
        return int(gains.argmax()), gain, max(rest @ rest - gain, _TINY)

    chosen = list[int]()
    max_chosen = min(_MAX_STEPS, (freedom - MINIMUM_POINTS) // _STEP_FREEDOM)
    while len(chosen) < max_chosen:
        position, gain, rest = best_besides(chosen)
        rest_freedom = freedom - len(chosen) - 1
        p = stats.f.sf(gain * rest_freedom / rest, 1, rest_freedom)
        if p * len(squares) >= _STEP_P:
            break
        chosen.append(position)
        # Choose each earlier column again, now that the later columns are known.
        for number in range(len(chosen)):
            chosen[number] = best_besides(chosen[:number] + chosen[number + 1 :])[0]
    return chosen


def leveled_component(runs: pd.DataFrame, is_a: np.ndarray) -> Component:
    """Return the variance that the correction to a common machine speed adds to a log ratio.

    A reference kernel, timed between the blocks of each run, measures the speed of the machine. The
    variance is the squared standard error of the family's slope (`family_slope`) times the squared
    difference of the machine's log speed between the sides A and B. All points share this error.

    Args:
        runs: The n runs of a model family, with the columns `reference_speed`,
            `reference_slope_seen` and `reference_slope_error`.
        is_a: (n,) whether a run belongs to side A.
    """
    speeds = np.log(runs["reference_speed"].to_numpy(dtype="float64"))
    distance = np.nanmedian(speeds[is_a]) - np.nanmedian(speeds[~is_a])
    _, slope_error = family_slope(runs)
    return Component((distance * slope_error) ** 2, max(len(runs) - 1.0, 1.0))


def family_slope(runs: pd.DataFrame) -> tuple[float, float]:
    """Estimate the slope of log step time over the log time of the reference kernel.

    The reference kernel is timed between the blocks of each run to measure the speed of the
    machine. The slope is the mean of the slopes of the runs, weighted by their inverse variances
    and clipped to [0, 1]. Its standard error includes the scatter between runs (Birge's factor,
    1932; Paule and Mandel).

    Args:
        runs: Runs of a model family, one row per run, with the columns `reference_slope_seen` and
            `reference_slope_error`.

    Returns:
        The slope and its standard error. Both are 0 if no run has a slope.
    """
    slopes = runs["reference_slope_seen"].to_numpy(dtype="float64")
    errors = runs["reference_slope_error"].to_numpy(dtype="float64")
    known = np.isfinite(slopes) & (errors > 0)
    if not known.any():
        return 0.0, 0.0
    slopes = slopes[known]
    weights = 1 / errors[known] ** 2
    mean = float(np.sum(weights * slopes) / weights.sum())
    spread = np.sum(weights * (slopes - mean) ** 2) / max(len(slopes) - 1, 1)
    return min(max(mean, 0.0), 1.0), float(np.sqrt(max(spread, 1.0) / weights.sum()))


def is_randomized(runs: pd.DataFrame) -> bool:
    """Return whether all runs are known to have been measured in a random order.

    Args:
        runs: The runs, one row per run. The column `sweep_order` says "random" for such an order.
    """
    return "sweep_order" in runs and bool(runs["sweep_order"].eq("random").all())


def follow_share(
    runs: pd.DataFrame, point: np.ndarray, side: np.ndarray, sessions: np.ndarray
) -> float:
    """Return how much more often B than A is measured second in pairs of successive runs.

    The result is P(B comes second) - P(A comes second). A pair is a run on one side directly
    followed by a run of the same point on the other side. The second run of a pair may profit from
    the caches that the first run filled.

    Args:
        runs: The n runs, first of side A, then of side B.
        point: (n,) number of the point (configuration) of each run.
        side: (n,) 0 for a run of A, 1 for a run of B.
        sessions: (n,) label of the session of each run.

    Returns:
        The difference, from -1 to 1. It is 0 if the order was random or a sign test does not
        exclude chance.
    """
    if is_randomized(runs):
        return 0.0
    start = runs.get("start_time", pd.Series(pd.NaT, runs.index))
    table = pd.DataFrame(
        {
            "session": sessions,
            "start": start,
            "end": runs.get("end_time", start),
            "point": point,
            "side": side,
        }
    )
    table = table.drop_duplicates(["session", "start"], keep=False)
    table = table.sort_values(["session", "start"])
    previous = table.groupby("session").shift()
    is_second = (
        (previous["point"] == table["point"])
        & (previous["side"] != table["side"])
        & ~(previous["end"] > table["start"])
    )
    second_sides = table["side"][is_second]
    if not len(second_sides):
        return 0.0
    p = stats.binomtest(int(second_sides.sum()), len(second_sides)).pvalue
    if p >= BY_CHANCE:
        return 0.0
    return float(2 * second_sides.mean() - 1)


def merge_into_turns(session: np.ndarray, side: np.ndarray, hours: np.ndarray) -> np.ndarray:
    """Merge the sessions of two alternating sides into turns, and number each run's turn.

    A turn is a series of successive sessions of one side, up to the next session of the other side.
    A session that measured both sides is a separate turn.

    Args:
        session: (n,) number of each run's session.
        side: (n,) 0 for a run of side A, 1 for a run of side B.
        hours: (n,) start of each run in hours since 1970.

    Returns:
        (n,) number of each run's turn.
    """
    table = pd.DataFrame({"session": session, "side": side, "hours": hours})
    table = table.groupby("session").mean().sort_values("hours", kind="stable")
    is_shared = ~table["side"].isin([0, 1])
    starts_turn = table["side"].ne(table["side"].shift()) | is_shared
    return np.asarray(starts_turn.cumsum().reindex(session).to_numpy())


def differ_by_time_of_day(session: np.ndarray, side: np.ndarray, hours: np.ndarray) -> bool:
    """Return whether two sides were measured at different times of day.

    The result is False if a side has fewer than three sessions.

    Args:
        session: (n,) number of each run's session.
        side: (n,) 0 for a run of side A, 1 for a run of side B.
        hours: (n,) start of each run in hours since 1970.
    """
    table = pd.DataFrame({"session": session, "side": side, "hours": hours})
    table = table.groupby(["session", "side"])["hours"].mean().reset_index()
    nanoseconds = table["hours"].to_numpy() * 3600e9
    is_a = (table["side"] == 0).to_numpy()
    # With two sessions per side, the sides are often apart on the clock by chance.
    if min(is_a.sum(), (~is_a).sum()) < MIN_SESSIONS:
        return False
    return _sides_differ_by_time_of_day(
        nanoseconds[is_a], nanoseconds[~is_a], float(np.ptp(hours)) * 3600e9
    )


def is_mixed(side: np.ndarray, hours: np.ndarray) -> bool:
    """Return whether the order of the sides in a session may be random.

    Runs of both sides that have the same start count as alternating.

    Args:
        side: (n,) 0 for a run of side A, 1 for a run of side B.
        hours: (n,) start of each run in hours.
    """
    turn = _repetition(hours, side)
    order = np.lexsort((side, turn, hours))
    blocks = int(np.count_nonzero(np.diff(side[order]))) + 1
    nanoseconds = np.rint(hours[order] * 3600e9).astype("int64")
    return _is_mixed(side[order], blocks, nanoseconds)


def _repetition(hours: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Number the runs of a side that have the same start: 0, 1, 2, ...

    The function uses NumPy instead of pandas, which needs a millisecond per call. A comparison of
    many sessions calls it thousands of times.

    Args:
        hours: (n,) start of each run.
        side: (n,) side of each run.
    """
    order = np.lexsort((side, hours))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(hours[order]) != 0) | (np.diff(side[order]) != 0)
    position = np.arange(len(order))
    repetition = np.empty(len(order), dtype="int64")
    repetition[order] = position - np.maximum.accumulate(np.where(is_first, position, 0))
    return repetition


def _sides_differ_by_time_of_day(a: np.ndarray, b: np.ndarray, span: float) -> bool:
    """Return whether two sets of sessions were measured at different times of day.

    Args:
        a: Times of A's sessions in ns since 1970.
        b: Times of B's sessions in ns since 1970.
        span: Time from the first to the last run in ns. If it is at most a day, the result is
            False.
    """
    if span <= _DAY_NANOSECONDS:
        return False
    # Represent times as angles in the complex plane, because the time of day is cyclic.
    clock_a, clock_b = (np.exp(2j * np.pi * times / _DAY_NANOSECONDS) for times in (a, b))

    def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the distances on the clock between all pairs of times, in days."""
        return np.asarray(np.abs(np.angle(np.outer(x, y.conj()))) / (2 * np.pi))

    within_a = distances(clock_a, clock_a).max(initial=0)
    within_b = distances(clock_b, clock_b).max(initial=0)
    between = distances(clock_a, clock_b).min(initial=1)
    return bool(max(within_a, within_b) < between and between > _TIME_OF_DAY_GAP)


def _is_mixed(side: np.ndarray, blocks: int, times: np.ndarray) -> bool:
    """Return whether the order of the sides may be random.

    The order is not random if the sides form few blocks, or if one side mostly precedes the other.
    The number of blocks is tested by the one-sided test of Wald and Wolfowitz at 1% (Annals of
    Mathematical Statistics 11, 1940). Start times are compared by Mann and Whitney's statistic.

    Args:
        side: (n,) the side of each run, in the order of time: 0 for A, 1 for B.
        blocks: Number of blocks, which are series of successive runs of one side.
        times: (n,) the start of each run in ns.
    """
    n, m = np.bincount(side)
    expected = 2 * n * m / (n + m) + 1
    error = 0.0
    if n + m > 2:
        error = np.sqrt((expected - 1) * (expected - 2) / (n + m - 1))
    fewest_blocks = expected - 0.5 + stats.norm.ppf(0.01) * error
    has_few_blocks = blocks < min(4, n + m) or blocks < fewest_blocks
    nanoseconds = times.astype("int64")
    return not has_few_blocks and _is_balanced(nanoseconds[side == 0], nanoseconds[side == 1])


def _is_balanced(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether neither side mostly precedes the other (Mann and Whitney's statistic).

    Args:
        a: Start times of the runs of A.
        b: Start times of the runs of B.
    """
    if not len(a) or not len(b):
        return False
    ranks = stats.rankdata(np.concatenate([a, b]))[: len(a)]
    above = ranks.sum() - len(a) * (len(a) + 1) / 2
    error = np.sqrt((len(a) + len(b) + 1) / (12 * len(a) * len(b)))
    limit = np.clip(_IMBALANCE_ERRORS * error, _MIN_IMBALANCE, _MAX_IMBALANCE)
    return bool(abs(above / (len(a) * len(b)) - 0.5) <= limit + 1e-12)
