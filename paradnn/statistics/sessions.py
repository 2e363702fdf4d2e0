"""In which sessions two sides were measured, and whether their difference can be told from one of
the sessions.

A session is a sweep on one host without a long pause. It shifts everything that is measured in it:
by the neighbors of the machine, its temperature, its memory layout. Sides are comparable at points
that both measured within the same sessions, mixed in time, since the shifts cancel. Otherwise they
are comparable if each was measured in several sessions, in turn. The scatter of these sessions then
widens every interval. One session or one host per side cannot be told from the side, however many
points and replicates it has.

Arrays of runs have the runs of A first and then those of B; n is the number of runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from paradnn.core.words import counted
from paradnn.statistics.dependence import MINIMUM_POINTS, Component, sum_components
from paradnn.statistics.lazy import np, pd, stats

#: Sessions, or hosts, that each side needs if they share none.
FEWEST_SESSIONS = 3
#: What a session may do to a side as a whole, as a factor. Claims about sides that are not
#: comparable must hold with all of their ratios larger and smaller by this factor.
ALLOWANCE = 1.1
#: How to make two sides comparable.
REMEDY = (
    "measure both sides together, with python -m paradnn.compare, or in one sweep with replicates "
    "(replicate=0,1,2)"
)
#: p below which an order, or the loss of replicates of one side, is not taken for chance.
BY_CHANCE = 0.01

#: A longer pause ends a session.
_LONGEST_PAUSE = "30min"
_DAY_NANOSECONDS = 24 * 3600 * 10**9
#: Part of a day. Sides that are at least so far apart on the clock, each being closer by itself,
#: differ by the time of day.
_TIME_OF_DAY_GAP = 1 / 8
#: p of chance, over all places, below which a step of the machine's speed is accepted.
_STEP_P = 0.01
#: Steps that are looked for in a session, and places at which one may be.
_MOST_STEPS = 8
_STEP_PLACES = 200
#: Degrees of freedom of a step whose place is estimated (Ninomiya, Statistics and Probability
#: Letters 72, 2005).
_STEP_FREEDOM = 3
#: Share of a side's runs that one host may measure more than of the other side's.
_HOST_IMBALANCE = 0.1
#: How far from even the order of A and B may be. P(a run of A precedes one of B) is 0.5 if they are
#: mixed. The limit is what chance does to one of a hundred random orders, in standard errors, and
#: lies within the two bounds.
_IMBALANCE_ERRORS = 2.6
_LEAST_IMBALANCE = 0.1
_MOST_IMBALANCE = 0.25
_TINY = 1e-300


class SessionOverlap(StrEnum):
    """How two sides overlap in time."""

    TOGETHER = "measured together"
    REPEATED = "several sessions each"
    LEVELLED = "at one speed of the machine"
    ALONE = "too few sessions"
    HOSTS = "hosts of their own"
    APART = "at different times"
    PROTOCOLS = "different protocols"
    LOST = "replicates of one side lost"
    UNKNOWN = "time not recorded"


_COMPARABLE = (SessionOverlap.TOGETHER, SessionOverlap.REPEATED, SessionOverlap.LEVELLED)
#: Why sides that overlap so are not comparable; {a} and {b} count the sessions of each.
_REASONS = {
    SessionOverlap.ALONE: (
        "A was measured in {a} and B in {b} of their own: what a session does to all of its runs "
        "cannot be told from the difference of the sides with fewer than "
        f"{FEWEST_SESSIONS} of the same points each"
    ),
    SessionOverlap.HOSTS: (
        "each side was measured on hosts of its own, or on shared ones in other parts: what a host "
        "does to all of its runs cannot be told from the difference of the sides with fewer than "
        f"{FEWEST_SESSIONS} hosts each"
    ),
    SessionOverlap.APART: (
        "one side was measured before the other, in few blocks or always right before it at the "
        "same point, or at a time of day of its own: a drift of the machine, or what the first "
        "left in its caches, cannot be told from their difference"
    ),
    SessionOverlap.PROTOCOLS: (
        "the sides were timed by different protocols (measure.*), whose results may differ"
    ),
    SessionOverlap.UNKNOWN: (
        "when these were measured is not recorded: a session cannot be told from the sides"
    ),
}


@dataclass(frozen=True)
class Design:
    """When the runs of two sides of the same points were measured.

    Attributes:
        overlap: How the sides overlap in time.
        sessions: Number of sessions (or hosts) of A and of B. For LOST, the lost replicates.
        speed_change: How much faster the machine was in the fastest part of the sessions than in
            the slowest (0.1: 10%), as found by `find_speed_steps`.
    """

    overlap: SessionOverlap
    sessions: tuple[int, int] = (0, 0)
    speed_change: float = 0.0

    @property
    def comparable(self) -> bool:
        """Whether a difference between the sides can be told from one between sessions."""
        return self.overlap in _COMPARABLE

    def text(self) -> str:
        """Say why the sides are not comparable, and what to run; empty if they are."""
        if self.comparable:
            return ""
        a, b = self.sessions
        if self.overlap is SessionOverlap.LOST:
            reason = (
                f"of the points that both measured, A lacks {counted(a, 'replicate')} and B {b}, "
                "which failed or are not in the store: the rest may be the fast ones"
            )
        else:
            reason = _REASONS[self.overlap].format(a=counted(a, "session"), b=counted(b, "session"))
        return f"{reason}; {REMEDY}"


@dataclass(frozen=True)
class Sampling:
    """What the comparison of a family rests on besides its points.

    Attributes:
        design: When the sides were measured.
        between: What the sessions of each side add to the variance of the mean log ratio.
        missing: Points that both sides tried and only A measured, and only B.
        outside: Numbers of the points whose runs have no counterpart in their session.
        variance_inflation: Factor by which looking for steps of the machine's speed made the
            variance of a point's runs too small.
        drifts: Whether the machine still drifts apart from the steps that were found.
    """

    design: Design = field(default_factory=lambda: Design(SessionOverlap.UNKNOWN))
    between: tuple[Component, ...] = ()
    missing: tuple[int, int] = (0, 0)
    outside: frozenset[int] = frozenset()
    variance_inflation: float = 1.0
    drifts: bool = False


def get_sampling(pairs: pd.DataFrame, family: str) -> Sampling:
    """Return how the pairs of a family were sampled.

    For another name, such as "all", the answer is about all families: a design that is not
    comparable if there is one, else the one whose sessions scatter most.

    Args:
        pairs: The result of `analysis.pairing.pair`.
        family: Name of a family.
    """
    known: Mapping[str, Sampling] = pairs.attrs.get("sampling", {})
    if family in known or not known:
        return known.get(family, Sampling())
    samplings = [known[name] for name in sorted(known)]
    widest = max(samplings, key=lambda each: sum_components(each.between).variance)
    chosen = next((each for each in samplings if not each.design.comparable), widest)
    missing_a = sum(each.missing[0] for each in samplings)
    missing_b = sum(each.missing[1] for each in samplings)
    return replace(chosen, missing=(missing_a, missing_b))


class MeasurementTimes(NamedTuple):
    """When each of n points was measured.

    Attributes:
        session: (n,) number of the session.
        place: (n,) position in the session, from -1/2 for the first to 1/2 for the last.
    """

    session: np.ndarray
    place: np.ndarray


def measurement_times(runs: pd.DataFrame, points: pd.Series) -> MeasurementTimes | None:
    """Return when the points were measured; None if that is unknown for a run.

    Args:
        runs: Runs with their `point_id`.
        points: (n,) the `point_id` of each point.
    """
    table = pd.DataFrame({"session": assign_sessions(runs), "time": runs.get("start_time", pd.NaT)})
    if table["session"].isna().any():
        return None
    table["time"] = table["time"].astype("int64").where(table["time"].notna())
    table["point"] = runs["point_id"].to_numpy()
    visits = table[["point", "session"]].drop_duplicates().sort_values("session")
    # Joining names is slow, so only points of several sessions take that way.
    is_shared = visits["point"].duplicated(keep=False)
    shared = visits[is_shared].groupby("point")["session"].agg(" and ".join)
    single = visits[~is_shared].set_index("point")["session"]
    names = pd.concat([single, shared]).reindex(points)
    times = table.groupby("point")["time"].mean().reindex(points)
    by_session = times.groupby(names.to_numpy())
    place = (by_session.rank(method="first") - 0.5) / by_session.transform("size") - 0.5
    return MeasurementTimes(pd.factorize(names)[0], place.fillna(0.0).to_numpy())


class Arrangement(NamedTuple):
    """How the runs of two sides are arranged in sessions.

    Attributes:
        design: When the sides were measured.
        units: (n,) the session or host that counts as one measurement; None for a run that counts
            by itself.
        used: (n,) whether a run has a counterpart in its session, and so takes part in a
            comparison.
        between: What the sessions of each side add to the variance of the mean log ratio.
    """

    design: Design
    units: np.ndarray
    used: np.ndarray
    between: tuple[Component, ...] = ()


def assign_sessions(runs: pd.DataFrame) -> np.ndarray:
    """Return the session of each run (n,); None where it is unknown.

    Runs of one sweep on one host share a session until a new driver takes over after a pause of
    half an hour. Runs without a sweep share one with the runs on their host up to such a pause. The
    start of an imported published run is that of its import, so its session is unknown.
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


def arrange(
    a: pd.DataFrame,
    b: pd.DataFrame,
    points: np.ndarray | None = None,
    logs: np.ndarray | None = None,
) -> Arrangement:
    """Find out how the runs of two sides overlap in time, and what their sessions add.

    Args:
        a: Runs of A.
        b: Runs of B.
        points: (n,) the point of each run; None if all are of one point.
        logs: (n,) logarithms of what was measured; None to leave out what sessions add.
    """
    runs = pd.concat([a, b], ignore_index=True)
    side = np.repeat([0, 1], [len(a), len(b)])
    point = np.zeros(len(runs), dtype="int64") if points is None else points
    sessions = assign_sessions(runs)
    if any(session is None for session in sessions) or not len(a) or not len(b):
        return _without_units(runs, SessionOverlap.UNKNOWN)
    blocks = _unmixed_blocks(runs, side, sessions)
    counts = _count_by_side(blocks, side)
    if have_other_protocols(a, b):
        return _without_units(runs, SessionOverlap.PROTOCOLS, counts)
    shares_block = (
        pd.DataFrame({"point": point, "block": blocks, "side": side})
        .groupby(["point", "block"])["side"]
        .transform("nunique")
        .eq(2)
        .to_numpy()
    )
    points_together = len(set(point[shares_block]))
    all_points = len(set(point))
    if points_together >= min(MINIMUM_POINTS, all_points) or 2 * points_together >= all_points:
        if _follows(runs, point, side, sessions):
            return _without_units(runs, SessionOverlap.APART, counts)
        between = _ratio_component(point, blocks, side, logs, shares_block)
        arrangement = _without_units(runs, SessionOverlap.TOGETHER, counts)
        return arrangement._replace(used=shares_block, between=between)
    return _arrange_apart(runs, side, point, sessions, blocks, logs)


def _arrange_apart(
    runs: pd.DataFrame,
    side: np.ndarray,
    point: np.ndarray,
    sessions: np.ndarray,
    blocks: np.ndarray,
    logs: np.ndarray | None,
) -> Arrangement:
    """Arrange the runs of sides that were not measured together; see `arrange`."""
    counts = _count_by_side(blocks, side)
    hosts = [_values(runs[side == number], "host") for number in (0, 1)]
    units = blocks
    takes_turns = False
    if "start_time" in runs:
        times = runs["start_time"].to_numpy(dtype="datetime64[ns]").astype("int64")
        units, takes_turns = _turns(blocks, side, times)
    if all(hosts) and not hosts[0] & hosts[1]:
        counts = (len(hosts[0]), len(hosts[1]))
        otherwise = SessionOverlap.HOSTS
        units = runs["host"].to_numpy(dtype=object)
    elif min(counts) < FEWEST_SESSIONS or set(blocks[side == 0]) & set(blocks[side == 1]):
        shares_session = set(sessions[side == 0]) & set(sessions[side == 1])
        overlap = SessionOverlap.APART if shares_session else SessionOverlap.ALONE
        return _without_units(runs, overlap, counts)
    elif all(hosts) and _host_imbalance(runs, side) > _HOST_IMBALANCE:
        return _without_units(runs, SessionOverlap.HOSTS, counts)
    else:
        counts = _count_by_side(units, side)
        otherwise = SessionOverlap.APART
    used = np.ones(len(runs), dtype=bool)
    overlap = otherwise
    if takes_turns and min(counts) >= FEWEST_SESSIONS:
        overlap = SessionOverlap.REPEATED
    design = Design(overlap, counts)
    if logs is None or not design.comparable:
        return Arrangement(design, units, used)
    components = [
        session_component(logs[side == number], point[side == number], units[side == number])
        for number in (0, 1)
    ]
    between = tuple(component for component in components if component is not None)
    if len(between) < 2:
        return Arrangement(Design(SessionOverlap.ALONE, counts), units, used)
    return Arrangement(design, units, used, between)


def _without_units(
    runs: pd.DataFrame, overlap: SessionOverlap, counts: tuple[int, int] = (0, 0)
) -> Arrangement:
    """Return an arrangement in which every run is used and counts by itself."""
    return Arrangement(
        design=Design(overlap, counts),
        units=np.full(len(runs), None, dtype=object),
        used=np.ones(len(runs), dtype=bool),
    )


def _count_by_side(labels: np.ndarray, side: np.ndarray) -> tuple[int, int]:
    return len(set(labels[side == 0])), len(set(labels[side == 1]))


def _values(runs: pd.DataFrame, column: str) -> set[str]:
    """Return the values of a column; empty if the runs lack it."""
    return set(runs[column].dropna().unique()) if column in runs else set()


def have_other_protocols(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Return whether both sides have protocols, and none in common."""
    protocols_a = _values(a, "protocol_id")
    protocols_b = _values(b, "protocol_id")
    return bool(protocols_a) and bool(protocols_b) and not protocols_a & protocols_b


def _host_imbalance(runs: pd.DataFrame, side: np.ndarray) -> float:
    """Return by how much the shares of a host differ most between the sides."""
    shares = pd.crosstab(runs["host"].to_numpy(), side, normalize="columns")
    return float(np.ptp(shares, axis=1).max())


def _ratio_component(
    point: np.ndarray,
    blocks: np.ndarray,
    side: np.ndarray,
    logs: np.ndarray | None,
    shares_block: np.ndarray,
) -> tuple[Component, ...]:
    """Return what blocks that hold both sides add to the variance of the mean log ratio.

    Each side has a worker of its own in each session, whose luck shifts all of its runs there.
    """
    table = pd.DataFrame(
        {"point": point, "block": blocks, "side": side, "log": 0.0 if logs is None else logs}
    )
    means = table[shares_block].groupby(["point", "block", "side"])["log"].mean().unstack("side")
    ratios = (means[0] - means[1]).reset_index(name="log")
    component = session_component(
        ratios["log"].to_numpy(), ratios["point"].to_numpy(), ratios["block"].to_numpy()
    )
    return () if component is None else (component,)


class SpeedSteps(NamedTuple):
    """Lasting changes of the machine's speed within a session.

    Attributes:
        shift: (n,) what they moved the logarithm of each run by, 0 on average.
        variance_inflation: Factor by which looking for them made the remaining variance too small.
        drifts: Whether runs still resemble the ones before them.
    """

    shift: np.ndarray
    variance_inflation: float
    drifts: bool


def find_speed_steps(logs: np.ndarray, cells: np.ndarray, times: np.ndarray) -> SpeedSteps:
    """Find lasting changes of the machine's speed in one session.

    Each cell has a mean of its own, so a difference of sides or points is no change. In the rest,
    the steady drift or the step that explains most is added as long as its F has a p, by
    Bonferroni, below _STEP_P. This is binary segmentation (Scott and Knott, Biometrics 30, 1974),
    but all changes are fitted together. The means of the cells are not fitted with them: what a
    change took of the scatter by chance would make them differ.

    Args:
        logs: (n,) logarithms of the runs.
        cells: (n,) the cell that each run repeats: a point on a side.
        times: (n,) the start of each run.
    """
    count = len(logs)
    order = np.argsort(times, kind="stable")
    cell = pd.factorize(cells[order])[0]
    places = np.unique(np.linspace(MINIMUM_POINTS, count - MINIMUM_POINTS, _STEP_PLACES, dtype=int))
    cell_sizes = np.bincount(cell)
    freedom = count - int(cell.max()) - 1
    if places[0] < MINIMUM_POINTS or freedom <= MINIMUM_POINTS:
        return SpeedSteps(np.zeros(count), 1.0, False)

    def without_cell_means(values: np.ndarray) -> np.ndarray:
        return values - (np.bincount(cell, values) / cell_sizes)[cell]

    run = np.arange(count)[:, None]
    # A step at each place, and a drift.
    shapes = np.column_stack([run >= places, run / count])
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
    """Choose the columns of a design (n, k) that explain more of a response (n,) than chance."""
    squares = (design**2).sum(axis=0)

    def best_besides(others: list[int]) -> tuple[int, float, float]:
        """Return the column that explains most besides others, how much, and what is left."""
        fitted = np.linalg.lstsq(design[:, others], response, rcond=None)[0]
        rest = response - design[:, others] @ fitted
        gains = np.where(squares > 1, (rest @ design) ** 2 / np.maximum(squares, 1), 0.0)
        gain = gains.max()
        return int(gains.argmax()), gain, max(rest @ rest - gain, _TINY)

    chosen = list[int]()
    most = min(_MOST_STEPS, (freedom - MINIMUM_POINTS) // _STEP_FREEDOM)
    while len(chosen) < most:
        place, gain, rest = best_besides(chosen)
        rest_freedom = freedom - len(chosen) - 1
        p = stats.f.sf(gain * rest_freedom / rest, 1, rest_freedom)
        if p * len(squares) >= _STEP_P:
            break
        chosen.append(place)
        # Earlier columns were chosen before the later ones were known.
        for number in range(len(chosen)):
            chosen[number] = best_besides(chosen[:number] + chosen[number + 1 :])[0]
    return chosen


def arrange_at_one_speed(
    arrangement: Arrangement, runs: pd.DataFrame, is_a: np.ndarray
) -> Arrangement:
    """Return the arrangement of a family's runs whose values are at one speed of the machine.

    The sessions leave only the uncertainty of the family's slope, as far as the speeds were apart.
    All points share this error. The runs of a side are one measurement of each point.

    Args:
        arrangement: The arrangement in sessions of each side.
        runs: (n,) runs with their `reference_speed`.
        is_a: (n,) whether a run is of A.
    """
    component = levelled_component(runs, is_a)
    return Arrangement(
        design=Design(SessionOverlap.LEVELLED, arrangement.design.sessions),
        units=np.where(is_a, "A", "B").astype(object),
        used=arrangement.used,
        between=(component,),
    )


def levelled_component(runs: pd.DataFrame, is_a: np.ndarray) -> Component:
    """Return the variance of a log ratio of speeds that were brought to one speed of the machine.

    It is the uncertainty of the family's slope, as far as the speeds of the machine were apart. All
    points share this error.

    Args:
        runs: (n,) runs of a family with their `reference_speed`.
        is_a: (n,) whether a run is of A.
    """
    speeds = np.log(runs["reference_speed"].to_numpy(dtype="float64"))
    distance = np.nanmedian(speeds[is_a]) - np.nanmedian(speeds[~is_a])
    _, slope_error = family_slope(runs)
    return Component((distance * slope_error) ** 2, max(len(runs) - 1.0, 1.0))


def family_slope(runs: pd.DataFrame) -> tuple[float, float]:
    """Return how steps of a family follow the machine's speed, and the standard error of that.

    The slope is the mean of what the runs saw, weighted by their standard errors, and lies from 0
    to 1. Its error includes how far the runs are apart (Birge's factor, 1932; Paule and Mandel).
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


def session_component(
    logs: np.ndarray, points: np.ndarray, sessions: np.ndarray
) -> Component | None:
    """Return what the sessions of a side add to the variance of its mean.

    Over the points that every session measured, this is the sample variance of the sessions' means
    over their number.

    Args:
        logs: (n,) logarithms of the runs.
        points: (n,) labels of the points.
        sessions: (n,) labels of the sessions.

    Returns:
        The component; None if there is one session, or no point that all measured.
    """
    table = pd.DataFrame({"log": logs, "point": points, "session": sessions})
    means = table.groupby(["point", "session"])["log"].mean().unstack("session").dropna().mean()
    count = int(means.notna().sum())
    if count > 1:
        return Component(float(means.var(ddof=1)) / count, count - 1.0)
    return None


def _unmixed_blocks(runs: pd.DataFrame, side: np.ndarray, sessions: np.ndarray) -> np.ndarray:
    """Return the sessions (n,); those that hold both sides unmixed are cut where the side changes."""
    blocks = sessions.copy()
    times = None
    if "start_time" in runs:
        times = runs["start_time"].to_numpy(dtype="datetime64[ns]")
    keeps_order = not is_randomized(runs)
    for name, indices in pd.Series(sessions).groupby(sessions, sort=False).indices.items():
        mine = np.asarray(indices)
        if not keeps_order or len(set(side[mine])) < 2:
            continue
        if times is None:
            blocks[mine] = [f"{name} of {'AB'[number]}" for number in side[mine]]
            continue
        # Runs that began together took turns.
        turn = pd.Series(mine).groupby([times[mine], side[mine]]).cumcount().to_numpy()
        mine = mine[np.lexsort((side[mine], turn, times[mine]))]
        changes = np.concatenate([[0], np.cumsum(np.diff(side[mine]) != 0)])
        if not _is_mixed(side[mine], int(changes[-1]) + 1, times[mine]):
            blocks[mine] = [f"{name} block {change}" for change in changes]
    return blocks


def is_randomized(runs: pd.DataFrame) -> bool:
    """Return whether the runs are known to have been measured in a random order."""
    return "sweep_order" in runs and bool(runs["sweep_order"].eq("random").all())


def _follows(runs: pd.DataFrame, point: np.ndarray, side: np.ndarray, sessions: np.ndarray) -> bool:
    """Return whether the same side comes second too often for chance."""
    return follow_share(runs, point, side, sessions) != 0


def follow_share(
    runs: pd.DataFrame, point: np.ndarray, side: np.ndarray, sessions: np.ndarray
) -> float:
    """Return by how much B comes second more often than A, from -1 to 1; 0 if it may be chance.

    This is about points that are measured on both sides, one right after the other: the second then
    finds what the first left in caches. Chance is excluded by a sign test.

    Args:
        runs: The n runs.
        point: (n,) number of the point.
        side: (n,) 0 for A, 1 for B.
        sessions: (n,) label of the session.
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
    """Return the turn of each run (n,): sessions of one side without one of the other between them.

    Args:
        session: (n,) number of the session.
        side: (n,) 0 for A, 1 for B.
        hours: (n,) start of each run.
    """
    table = pd.DataFrame({"session": session, "side": side, "hours": hours})
    table = table.groupby("session").mean().sort_values("hours", kind="stable")
    is_shared = ~table["side"].isin([0, 1])
    starts_turn = table["side"].ne(table["side"].shift()) | is_shared
    return np.asarray(starts_turn.cumsum().reindex(session).to_numpy())


def differ_by_time_of_day(session: np.ndarray, side: np.ndarray, hours: np.ndarray) -> bool:
    """Return whether the sides have sessions at different times of day.

    Args:
        session: (n,) number of the session.
        side: (n,) 0 for A, 1 for B.
        hours: (n,) start of each run.
    """
    table = pd.DataFrame({"session": session, "side": side, "hours": hours})
    table = table.groupby(["session", "side"])["hours"].mean().reset_index()
    nanoseconds = table["hours"].to_numpy() * 3600e9
    of_a = (table["side"] == 0).to_numpy()
    if of_a.sum() < 2 or (~of_a).sum() < 2:
        return False
    return _sides_differ_by_time_of_day(
        nanoseconds[of_a], nanoseconds[~of_a], float(np.ptp(hours)) * 3600e9
    )


def is_mixed(side: np.ndarray, hours: np.ndarray) -> bool:
    """Return whether chance may have made the order of the sides in a session.

    Runs that began together took turns.

    Args:
        side: (n,) 0 for A, 1 for B.
        hours: (n,) start of each run.
    """
    turn = pd.Series(side).groupby([hours, side]).cumcount().to_numpy()
    order = np.lexsort((side, turn, hours))
    blocks = int(np.count_nonzero(np.diff(side[order]))) + 1
    nanoseconds = np.rint(hours[order] * 3600e9).astype("int64")
    return _is_mixed(side[order], blocks, nanoseconds)


def _turns(blocks: np.ndarray, side: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the turn of each run (n,), and whether the sides took turns.

    Sessions of one side without one of the other between them are one turn, since runs that are
    near in time are similar. Sides that were measured at different times of day did not take turns.
    """
    table = pd.DataFrame({"block": blocks, "side": side, "time": times})
    table = table.groupby("block").mean().sort_values("time")
    turn = (table["side"].diff() != 0).cumsum()
    times_a = table.loc[table["side"] == 0, "time"].to_numpy()
    times_b = table.loc[table["side"] == 1, "time"].to_numpy()
    span = float(np.ptp(times))
    takes_turns = _is_even(times_a, times_b) and not _sides_differ_by_time_of_day(
        times_a, times_b, span
    )
    return turn.reindex(blocks).to_numpy(), takes_turns


def _sides_differ_by_time_of_day(a: np.ndarray, b: np.ndarray, span: float) -> bool:
    """Return whether two sides were measured at different times of day.

    Args:
        a: Times of A's sessions in ns.
        b: Times of B's sessions in ns.
        span: Time from the first run to the last in ns. Within a day there is no answer.
    """
    if span <= _DAY_NANOSECONDS:
        return False
    # Points on the face of a clock.
    clock_a, clock_b = (np.exp(2j * np.pi * times / _DAY_NANOSECONDS) for times in (a, b))

    def distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the distances of all pairs in days."""
        return np.asarray(np.abs(np.angle(np.outer(x, y.conj()))) / (2 * np.pi))

    within_a = distances(clock_a, clock_a).max(initial=0)
    within_b = distances(clock_b, clock_b).max(initial=0)
    between = distances(clock_a, clock_b).min(initial=1)
    return bool(max(within_a, within_b) < between and between > _TIME_OF_DAY_GAP)


def _is_mixed(side: np.ndarray, blocks: int, times: np.ndarray) -> bool:
    """Return whether chance may have made the order of the sides.

    Otherwise the sides lie in few blocks, or one lies before the other. The tests are Wald and
    Wolfowitz' of the number of blocks (Annals of Mathematical Statistics 11, 1940), one-sided at
    1%, and Mann and Whitney's of the start times.

    Args:
        side: (n,) the side of each run, in order.
        blocks: Number of blocks of one side.
        times: (n,) the start of each run.
    """
    n, m = np.bincount(side)
    expected = 2 * n * m / (n + m) + 1
    error = 0.0
    if n + m > 2:
        error = np.sqrt((expected - 1) * (expected - 2) / (n + m - 1))
    is_few = blocks < min(4, n + m) or (blocks + 0.5 - expected) < stats.norm.ppf(0.01) * error
    nanoseconds = times.astype("int64")
    return not is_few and _is_even(nanoseconds[side == 0], nanoseconds[side == 1])


def _is_even(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether neither side lies before the other (Mann and Whitney's statistic)."""
    if not len(a) or not len(b):
        return False
    ranks = stats.rankdata(np.concatenate([a, b]))[: len(a)]
    above = ranks.sum() - len(a) * (len(a) + 1) / 2
    error = np.sqrt((len(a) + len(b) + 1) / (12 * len(a) * len(b)))
    limit = np.clip(_IMBALANCE_ERRORS * error, _LEAST_IMBALANCE, _MOST_IMBALANCE)
    return bool(abs(above / (len(a) * len(b)) - 0.5) <= limit + 1e-12)
