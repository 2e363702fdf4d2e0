"""In which sessions two sides were measured, and whether their difference can be told from one of the sides.

A session, a sweep on one host without a long pause, shifts all that is measured in it: the machine's neighbours, its
temperature, its memory layout. Sides are comparable at the points that both measured within the same sessions, mixed
in time, since these cancel; else over several sessions each, in turn, whose scatter then widens every interval. One
session a side, or one host, cannot be told from the side, however many points and replicates it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from analysis.lazy import np, pd, stats
from analysis.statistics.dependence import MINIMUM_POINTS, Component

#: Sessions, or hosts, that each side needs where they share none.
FEWEST_SESSIONS = 3

#: What a session may do to a side as a whole, as a factor: claims about sides that are not comparable must hold with
#: all their ratios so much larger and smaller.
ALLOWANCE = 1.1

#: What makes two sides comparable.
REMEDY = (
    "measure both sides together, with python -m paradnn.compare, or in one sweep with replicates (replicate=0,1,2)"
)

_GAP = "30min"  # a longer pause ends a session
_MOST_PAIRS = 10**6  # of more runs the order of their starts says enough
# How far from even the order of A and B may be: P(a run of A stands before one of B) is 0.5 where they are mixed. It is
# what chance does to random orders in one of a hundred, within these limits.
_CHANCE, _LEAST_UNEVEN, _MOST_UNEVEN = 2.6, 0.1, 0.25


class Standing(StrEnum):
    """How two sides stand to each other in time."""

    TOGETHER = "measured together"
    REPEATED = "several sessions each"
    LEVELLED = "at one speed of the machine"
    ALONE = "too few sessions"
    HOSTS = "hosts of their own"
    APART = "at different times"
    PROTOCOLS = "different protocols"
    UNKNOWN = "time not recorded"


@dataclass(frozen=True)
class Design:
    """When the sides' runs of the same points were measured, in how many `sessions` (or hosts) of A and of B."""

    standing: Standing
    sessions: tuple[int, int] = (0, 0)

    @property
    def comparable(self) -> bool:
        """Whether a difference between the sides can be told from one between sessions."""
        return self.standing in (Standing.TOGETHER, Standing.REPEATED, Standing.LEVELLED)

    def text(self) -> str:
        """Why the sides are not comparable, and what to run; how they were measured where they are."""
        a, b = (f"{count} session{'s'[: count != 1]}" for count in self.sessions)
        reason = {
            Standing.TOGETHER: "both sides were measured in the same sessions",
            Standing.REPEATED: f"A was measured in {a}, B in {b}, in turn",
            Standing.LEVELLED: f"A was measured in {a}, B in {b}, with the machine's speed in each (measure.reference)",
            Standing.ALONE: (
                f"A was measured in {a} and B in {b} of their own: what a session does to all of its runs cannot be "
                f"told from the difference of the sides with fewer than {FEWEST_SESSIONS} of the same points each"
            ),
            Standing.HOSTS: (
                "each side was measured on hosts of its own: what a host does to all of its runs cannot be told from "
                f"the difference of the sides with fewer than {FEWEST_SESSIONS} hosts each"
            ),
            Standing.APART: (
                "one side was measured before the other, or each in few blocks: a drift of the machine cannot be told "
                "from their difference"
            ),
            Standing.PROTOCOLS: "the sides were timed by different protocols (measure.*), whose results may differ",
            Standing.UNKNOWN: "when these were measured is not recorded: a session cannot be told from the sides",
        }[self.standing]
        return reason if self.comparable else f"{reason}; {REMEDY}"


class Arrangement(NamedTuple):
    """The design of two sides' runs (of A, then of B); the session or host of each that counts as one measurement, None
    where runs count by themselves; which runs have a counterpart in their session and stand in a comparison; and what
    the sessions of each side add to the variance of the mean log ratio."""

    design: Design
    units: np.ndarray
    used: np.ndarray
    between: tuple[Component, ...] = ()


def sessions_of(runs: pd.DataFrame) -> np.ndarray:
    """The session of each run (n,), None where it is not known.

    That of its sweep and host, another one after a pause of half an hour in which a new driver took over; runs of no
    sweep are of one session with those on their host up to such a pause. The start of an imported published run is that
    of its import, and says nothing.
    """

    def column(name: str) -> pd.Series:
        return runs[name].astype("object").where(runs[name].notna(), "") if name in runs else blank

    blank = pd.Series("", index=runs.index, dtype="object")
    named = pd.DataFrame({name: column(name) for name in ("sweep_id", "host", "session_id")}).reset_index(drop=True)
    named["time"] = runs["start_time"].to_numpy() if "start_time" in runs else pd.NaT
    published = runs["source"].eq("published").fillna(False).to_numpy(dtype=bool) if "source" in runs else False
    known = ((named["sweep_id"] != "") | named["time"].notna()) & ~np.asarray(published)
    named = named[known].sort_values(["sweep_id", "host", "time"], kind="stable")
    of_sweep = named.groupby(["sweep_id", "host"], sort=False)
    taken_over = of_sweep["session_id"].transform(lambda ids: ids != ids.shift()) | (named["sweep_id"] == "")
    part = ((of_sweep["time"].diff() > pd.Timedelta(_GAP)) & taken_over).groupby([named["sweep_id"], named["host"]])
    found = np.full(len(runs), None, dtype=object)
    labels = named["sweep_id"].astype(str) + " on " + named["host"].astype(str) + " " + part.cumsum().astype(str)
    found[named.index.to_numpy()] = labels.to_numpy()
    return found


def arrange(
    a: pd.DataFrame, b: pd.DataFrame, points: np.ndarray | None = None, logs: np.ndarray | None = None
) -> Arrangement:
    """How the runs of two sides, of the same `points` (runs of A, then of B), stand to each other in time, and with
    the `logs` of what they measured what their sessions add."""
    runs = pd.concat([a, b], ignore_index=True)
    side = np.repeat([0, 1], [len(a), len(b)])
    point = np.zeros(len(runs), dtype="int64") if points is None else points
    none, every = np.full(len(runs), None, dtype=object), np.ones(len(runs), dtype=bool)
    sessions = sessions_of(runs)
    if any(session is None for session in sessions) or not len(a) or not len(b):
        return Arrangement(Design(Standing.UNKNOWN), none, every)
    blocks = _blocks(runs, side, sessions)
    counts: tuple[int, int] = tuple(len(set(blocks[side == one])) for one in (0, 1))  # type: ignore[assignment]
    protocols = [set(one["protocol_id"].dropna()) if "protocol_id" in one else set() for one in (a, b)]
    if all(protocols) and not protocols[0] & protocols[1]:
        return Arrangement(Design(Standing.PROTOCOLS, counts), none, every)
    table = pd.DataFrame({"point": point, "block": blocks, "side": side})
    within = (table.groupby(["point", "block"])["side"].transform("nunique") == 2).to_numpy()
    inside, whole = len(set(point[within])), len(set(point))
    if inside >= min(MINIMUM_POINTS, whole) or 2 * inside >= whole:
        return Arrangement(Design(Standing.TOGETHER, counts), none, within)
    hosts = [set(one["host"].dropna()) if "host" in one else set() for one in (a, b)]
    middles = [np.zeros(0)] * 2  # of the blocks of each side, in time
    if "start_time" in runs:
        times = pd.Series(runs["start_time"].to_numpy(dtype="datetime64[ns]").astype("int64"))
        middles = [times[side == one].groupby(blocks[side == one]).mean().to_numpy() for one in (0, 1)]
    turns = _even(*middles)
    if all(hosts) and not hosts[0] & hosts[1]:
        counts, lacking = (len(hosts[0]), len(hosts[1])), Standing.HOSTS
        units = runs["host"].to_numpy(dtype=object)
    elif min(counts) < FEWEST_SESSIONS or set(blocks[side == 0]) & set(blocks[side == 1]):
        split = set(sessions[side == 0]) & set(sessions[side == 1])
        return Arrangement(Design(Standing.APART if split else Standing.ALONE, counts), none, every)
    else:
        units, lacking = blocks, Standing.APART
    design = Design(Standing.REPEATED if turns and min(counts) >= FEWEST_SESSIONS else lacking, counts)
    if logs is None or not design.comparable:
        return Arrangement(design, units, every)
    between = [session_component(logs[side == one], point[side == one], units[side == one]) for one in (0, 1)]
    known = tuple(component for component in between if component is not None)
    if len(known) < 2:
        return Arrangement(Design(Standing.ALONE, counts), units, every)
    return Arrangement(design, units, every, known)


def level(found: Arrangement, runs: pd.DataFrame, of_a: np.ndarray) -> Arrangement:
    """The arrangement of a family's runs (n,) in sessions of each side (`of_a`: A's) with values at one machine speed.

    What is left of the sessions is what the family's slope is not known by, as far as the speeds lay apart: an error
    that all points share. The runs of a side are one measurement of each point, of which the interval has its part.
    """
    speeds = np.log(runs["reference_speed"].to_numpy(dtype="float64"))
    apart = np.nanmedian(speeds[of_a]) - np.nanmedian(speeds[~of_a])
    component = Component((apart * family_slope(runs)[1]) ** 2, max(len(runs) - 1.0, 1.0))
    units = np.where(of_a, "A", "B").astype(object)
    return Arrangement(Design(Standing.LEVELLED, found.design.sessions), units, found.used, (component,))


def family_slope(runs: pd.DataFrame) -> tuple[float, float]:
    """How steps of a family follow the machine's speed, from what its runs saw: the mean weighted by their standard
    errors, and its own, which has how far the runs lie apart (Paule and Mandel's factor, Birge 1932)."""
    seen, error = (runs[f"reference_slope_{name}"].to_numpy(dtype="float64") for name in ("seen", "error"))
    known = np.isfinite(seen) & (error > 0)
    weights = 1 / error[known] ** 2
    if not known.any():
        return 0.0, 0.0
    mean = float(np.sum(weights * seen[known]) / weights.sum())
    spread = np.sum(weights * (seen[known] - mean) ** 2) / max(known.sum() - 1, 1)
    return min(max(mean, 0.0), 1.0), float(np.sqrt(max(spread, 1.0) / weights.sum()))


def session_component(logs: np.ndarray, points: np.ndarray, sessions: np.ndarray) -> Component | None:
    """What the sessions of a side add to the variance of its mean, from the logarithms of its runs (n,).

    Over the points (n labels) that every session measured, the sample variance of the sessions' means over their
    number. None where there are no such points.
    """
    table = pd.DataFrame({"log": logs, "point": points, "session": sessions})
    means = table.groupby(["point", "session"])["log"].mean().unstack("session").dropna().mean()
    count = int(means.notna().sum())
    return Component(float(means.var(ddof=1)) / count, count - 1.0) if count > 1 else None


def _blocks(runs: pd.DataFrame, side: np.ndarray, sessions: np.ndarray) -> np.ndarray:
    """The sessions, those that hold both sides unmixed cut wherever the side changes."""
    found = sessions.copy()
    times = runs["start_time"].to_numpy(dtype="datetime64[ns]") if "start_time" in runs else None
    ordered = "sweep_order" in runs and bool(runs["sweep_order"].eq("random").all())
    for name in dict.fromkeys(sessions):
        mine = np.flatnonzero(sessions == name)
        if ordered or len(set(side[mine])) < 2:
            continue
        if times is None:
            found[mine] = [f"{name} of {'AB'[one]}" for one in side[mine]]
            continue
        # Runs that began together took turns.
        place = pd.Series(mine).groupby([times[mine], side[mine]]).cumcount().to_numpy()
        mine = mine[np.lexsort((side[mine], place, times[mine]))]
        changes = np.concatenate([[0], np.cumsum(np.diff(side[mine]) != 0)])
        if not (_in_turn(side[mine], changes[-1] + 1, times[mine]) or _overlapping(runs.iloc[mine], side[mine])):
            found[mine] = [f"{name} block {change}" for change in changes]
    return found


def _in_turn(side: np.ndarray, blocks: int, times: np.ndarray) -> bool:
    """Whether the order of the sides is one that chance makes: neither in few blocks nor one before the other.

    Wald and Wolfowitz' number of blocks (Annals of Mathematical Statistics 11, 1940), one-sided at 1%; Mann and
    Whitney's statistic of the start times.
    """
    n, m = np.bincount(side)
    mean = 2 * n * m / (n + m) + 1
    error = np.sqrt((mean - 1) * (mean - 2) / (n + m - 1)) if n + m > 2 else 0.0
    few = blocks < min(4, n + m) or (blocks + 0.5 - mean) < stats.norm.ppf(0.01) * error
    return not few and _even(times[side == 0].astype("int64"), times[side == 1].astype("int64"))


def _overlapping(runs: pd.DataFrame, side: np.ndarray) -> bool:
    """Whether processes of both sides took turns: of most runs, half of the time is that of a run of the other side,
    and both have several processes."""
    if not {"processes", "end_time"} <= set(runs.columns) or len(runs) ** 2 > _MOST_PAIRS:
        return False
    start, end = (
        runs[name].to_numpy(dtype="datetime64[ns]").astype("int64").astype(float) for name in ("start_time", "end_time")
    )
    several = (runs["processes"].fillna(1) > 1).to_numpy() & runs["end_time"].notna().to_numpy()
    common = np.minimum.outer(end, end) - np.maximum.outer(start, start)
    turns = 2 * common >= np.maximum.outer(end - start, end - start)
    turns &= several[:, None] & several & (side[:, None] != side)
    return bool(min(turns.any(axis=1)[side == one].mean() for one in (0, 1)) >= 0.8)


def _even(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether neither side stands before the other (Mann and Whitney's statistic)."""
    if not len(a) or not len(b):
        return False
    ordered = np.sort(b)
    before = np.searchsorted(ordered, a, side="left") + np.searchsorted(ordered, a, side="right")
    probability = 1 - before.sum() / (2 * len(a) * len(b))
    chance = _CHANCE * np.sqrt((len(a) + len(b) + 1) / (12 * len(a) * len(b)))
    return bool(abs(probability - 0.5) <= np.clip(chance, _LEAST_UNEVEN, _MOST_UNEVEN) + 1e-12)
