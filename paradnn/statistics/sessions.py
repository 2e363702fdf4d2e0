"""In which sessions two sides were measured, and whether their difference can be told from one of
the sides.

A session, a sweep on one host without a long pause, shifts all that is measured in it: the
machine's neighbours, its temperature, its memory layout. Sides are comparable at the points that
both measured within the same sessions, mixed in time, since these cancel; else over several
sessions each, in turn, whose scatter then widens every interval. One session a side, or one host,
cannot be told from the side, however many points and replicates it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from paradnn.statistics.dependence import MINIMUM_POINTS, Component, combined
from paradnn.statistics.lazy import np, pd, stats

#: Sessions, or hosts, that each side needs where they share none.
FEWEST_SESSIONS = 3

#: What a session may do to a side as a whole, as a factor: claims about sides that are not
#: comparable must hold with all their ratios so much larger and smaller.
ALLOWANCE = 1.1

#: What makes two sides comparable.
REMEDY = "measure both sides together, with python -m paradnn.compare, or in one sweep with replicates (replicate=0,1,2)"

_GAP = "30min"  # a longer pause ends a session
_DAY = 24 * 3600 * 10**9  # ns
_OF_DAY = (
    1 / 8
)  # of a day: sides that are at least so far apart, each by itself closer, are so by the time of day
_SURE = (
    0.01  # p of chance, over all places, below which a step of the machine's speed is taken for one
)
# that are looked for in a session, and places at which one may be
_MOST_STEPS = 8
_PLACES = 200
_OF_A_STEP = 3  # degrees of freedom of a step whose place is looked for (Ninomiya, Stat. Probability Letters 72, 2005)
_UNLIKE = 0.1  # of a side's runs that one host may measure more than of the other's
BY_CHANCE = 0.01  # p below which an order, or what is lost of one side, is not taken for chance
_TINY = 1e-300
# How far from even the order of A and B may be: P(a run of A stands before one of B) is 0.5 where
# they are mixed. It is what chance does to random orders in one of a hundred, within these limits.
_CHANCE = 2.6
_LEAST_UNEVEN = 0.1
_MOST_UNEVEN = 0.25


class SessionOverlap(StrEnum):
    """How two sides stand to each other in time."""

    TOGETHER = "measured together"
    REPEATED = "several sessions each"
    LEVELLED = "at one speed of the machine"
    ALONE = "too few sessions"
    HOSTS = "hosts of their own"
    APART = "at different times"
    PROTOCOLS = "different protocols"
    LOST = "replicates of one side lost"
    UNKNOWN = "time not recorded"


@dataclass(frozen=True)
class Design:
    """When the sides' runs of the same points were measured, in how many `sessions` (or hosts) of A
    and of B, and how much faster the machine was in the fastest part of them than in the slowest
    (`stepped`), 0 without `steps`.
    """

    standing: SessionOverlap
    sessions: tuple[int, int] = (0, 0)
    stepped: float = 0.0

    @property
    def comparable(self) -> bool:
        """Whether a difference between the sides can be told from one between sessions."""
        return self.standing in (
            SessionOverlap.TOGETHER,
            SessionOverlap.REPEATED,
            SessionOverlap.LEVELLED,
        )

    def text(self) -> str:
        """Why the sides are not comparable, and what to run; empty where they are."""
        if self.comparable:
            return ""
        a, b = (f"{count} session{'s'[: count != 1]}" for count in self.sessions)
        reason = {
            SessionOverlap.ALONE: (
                f"A was measured in {a} and B in {b} of their own: what a session does to all of its runs cannot be "
                f"told from the difference of the sides with fewer than {FEWEST_SESSIONS} of the same points each"
            ),
            SessionOverlap.HOSTS: (
                "each side was measured on hosts of its own, or on shared ones in other parts: what a host does to all "
                f"of its runs cannot be told from the difference of the sides with fewer than {FEWEST_SESSIONS} hosts "
                "each"
            ),
            SessionOverlap.APART: (
                "one side was measured before the other, in few blocks or always right before it at the same point, or "
                "at a time of day of its own: a drift of the machine, or what the first left in its caches, cannot be "
                "told from their difference"
            ),
            SessionOverlap.PROTOCOLS: "the sides were timed by different protocols (measure.*), whose results may differ",
            SessionOverlap.LOST: (
                f"of the points that both measured, A lacks {self.sessions[0]} replicates and B {self.sessions[1]}, "
                "which failed or are not in the store: those that are left may be the fast ones"
            ),
            SessionOverlap.UNKNOWN: "when these were measured is not recorded: a session cannot be told from the sides",
        }[self.standing]
        return f"{reason}; {REMEDY}"


@dataclass(frozen=True)
class Sampling:
    """What a family's comparison rests on beside its points: the `design` in time, what the
    sessions of each side add to the variance of the mean log ratio (`between`), how many points
    that both sides tried A alone measured, and B alone (`missing`), which of both, by their number,
    are `outside`, their runs having no counterpart in their session, by what factor looking for
    `steps` made the variance of a point's runs too small (`taken`), and whether the machine still
    `wanders` beside these.
    """

    design: Design = field(default_factory=lambda: Design(SessionOverlap.UNKNOWN))
    between: tuple[Component, ...] = ()
    missing: tuple[int, int] = (0, 0)
    outside: frozenset[int] = frozenset()
    taken: float = 1.0
    wanders: bool = False


def sampling(pairs: pd.DataFrame, family: str) -> Sampling:
    """How a family's pairs were sampled, as `pair` found it; for another word, such as "all", that
    of all families.
    """
    known: Mapping[str, Sampling] = pairs.attrs.get("sampling", {})
    if family in known or not known:
        return known.get(family, Sampling())
    every = [known[name] for name in sorted(known)]
    widest = max(every, key=lambda one: combined(one.between).variance)
    first = next((one for one in every if not one.design.comparable), widest)
    return replace(
        first, missing=(sum(one.missing[0] for one in every), sum(one.missing[1] for one in every))
    )


class When(NamedTuple):
    """When each of n points was measured: in which `session` (n,), numbered, and at which `place`
    (n,) of it, from -1/2 of the first to 1/2 of the last.
    """

    session: np.ndarray
    place: np.ndarray


def when_of(runs: pd.DataFrame, points: pd.Series) -> When | None:
    """When the points (n,) were measured, from runs with their `point_id`; None where that is
    unknown.
    """
    table = pd.DataFrame({"session": sessions_of(runs), "time": runs.get("start_time", pd.NaT)})
    if table["session"].isna().any():
        return None
    table["time"] = table["time"].astype("int64").where(table["time"].notna())
    table["point"] = runs["point_id"].to_numpy()
    once = table[["point", "session"]].drop_duplicates().sort_values("session")
    shared = once["point"].duplicated(
        keep=False
    )  # few are; to join the sessions of each takes long
    several = once[shared].groupby("point")["session"].agg(" and ".join)
    names = pd.concat([once[~shared].set_index("point")["session"], several]).reindex(points)
    time = table.groupby("point")["time"].mean().reindex(points)
    order = time.groupby(names.to_numpy())
    place = (order.rank(method="first") - 0.5) / order.transform("size") - 0.5
    return When(pd.factorize(names)[0], place.fillna(0.0).to_numpy())


class Arrangement(NamedTuple):
    """The design of two sides' runs (of A, then of B); the session or host of each that counts as
    one measurement, None where runs count by themselves; which runs have a counterpart in their
    session and stand in a comparison; and what the sessions of each side add to the variance of the
    mean log ratio.
    """

    design: Design
    units: np.ndarray
    used: np.ndarray
    between: tuple[Component, ...] = ()


def sessions_of(runs: pd.DataFrame) -> np.ndarray:
    """The session of each run (n,), None where it is not known.

    That of its sweep and host, another one after a pause of half an hour in which a new driver took
    over; runs of no sweep are of one session with those on their host up to such a pause. The start
    of an imported published run is that of its import, and says nothing.
    """
    named = (
        runs.reindex(columns=["sweep_id", "host", "session_id"])
        .astype("object")
        .fillna("")
        .reset_index(drop=True)
    )
    named["time"] = runs["start_time"].array if "start_time" in runs else pd.NaT
    if "source" in runs:
        published = runs["source"].eq("published").fillna(False).to_numpy(dtype=bool)
    else:
        published = False
    known = ((named["sweep_id"] != "") | named["time"].notna()) & ~np.asarray(published)
    named = named[known].sort_values(["sweep_id", "host", "time"], kind="stable")
    of_sweep = named.groupby(["sweep_id", "host"], sort=False)
    taken_over = of_sweep["session_id"].transform(lambda ids: ids != ids.shift()) | (
        named["sweep_id"] == ""
    )
    part = ((of_sweep["time"].diff() > pd.Timedelta(_GAP)) & taken_over).groupby(
        [named["sweep_id"], named["host"]]
    )
    found = np.full(len(runs), None, dtype=object)
    labels = (
        named["sweep_id"].astype(str)
        + " on "
        + named["host"].astype(str)
        + " "
        + part.cumsum().astype(str)
    )
    found[named.index.to_numpy()] = labels.to_numpy()
    return found


def arrange(
    a: pd.DataFrame,
    b: pd.DataFrame,
    points: np.ndarray | None = None,
    logs: np.ndarray | None = None,
) -> Arrangement:
    """How the runs of two sides, of the same `points` (runs of A, then of B), stand to each other
    in time, and with the `logs` of what they measured what their sessions add.
    """
    runs = pd.concat([a, b], ignore_index=True)
    side = np.repeat([0, 1], [len(a), len(b)])
    if points is None:
        point = np.zeros(len(runs), dtype="int64")
    else:
        point = points
    none = np.full(len(runs), None, dtype=object)
    every = np.ones(len(runs), dtype=bool)
    sessions = sessions_of(runs)
    if any(session is None for session in sessions) or not len(a) or not len(b):
        return Arrangement(Design(SessionOverlap.UNKNOWN), none, every)
    blocks = _blocks(runs, side, sessions)
    counts: tuple[int, int] = tuple(len(set(blocks[side == one])) for one in (0, 1))  # type: ignore[assignment]
    protocols = [
        set(one["protocol_id"].dropna().unique()) if "protocol_id" in one else set()
        for one in (a, b)
    ]
    if all(protocols) and not protocols[0] & protocols[1]:
        return Arrangement(Design(SessionOverlap.PROTOCOLS, counts), none, every)
    table = pd.DataFrame(
        {"point": point, "block": blocks, "side": side, "log": 0.0 if logs is None else logs}
    )
    within = (table.groupby(["point", "block"])["side"].transform("nunique") == 2).to_numpy()
    inside = len(set(point[within]))
    whole = len(set(point))
    if inside >= min(MINIMUM_POINTS, whole) or 2 * inside >= whole:
        if _follows(runs, point, side, sessions):
            return Arrangement(Design(SessionOverlap.APART, counts), none, every)
        # A side has a worker of its own in each session, whose luck shifts all of its runs there.
        means = table[within].groupby(["point", "block", "side"])["log"].mean().unstack("side")
        ratios = (means[0] - means[1]).reset_index(name="log")
        shared = session_component(*(ratios[name].to_numpy() for name in ("log", "point", "block")))
        return Arrangement(
            Design(SessionOverlap.TOGETHER, counts),
            none,
            within,
            () if shared is None else (shared,),
        )
    hosts = [set(one["host"].dropna().unique()) if "host" in one else set() for one in (a, b)]
    units = blocks
    turns = False
    if "start_time" in runs:
        units, turns = _turns(
            blocks, side, runs["start_time"].to_numpy(dtype="datetime64[ns]").astype("int64")
        )
    if all(hosts) and not hosts[0] & hosts[1]:
        counts = (len(hosts[0]), len(hosts[1]))
        lacking = SessionOverlap.HOSTS
        units = runs["host"].to_numpy(dtype=object)
    elif min(counts) < FEWEST_SESSIONS or set(blocks[side == 0]) & set(blocks[side == 1]):
        split = set(sessions[side == 0]) & set(sessions[side == 1])
        return Arrangement(
            Design(SessionOverlap.APART if split else SessionOverlap.ALONE, counts), none, every
        )
    elif (
        all(hosts)
        and np.ptp(pd.crosstab(runs["host"].to_numpy(), side, normalize="columns"), axis=1).max()
        > _UNLIKE
    ):
        return Arrangement(
            Design(SessionOverlap.HOSTS, counts), none, every
        )  # on other parts of one side than of the other
    else:
        # type: ignore
        counts = tuple(len(set(units[side == one])) for one in (0, 1))
        lacking = SessionOverlap.APART
    design = Design(
        SessionOverlap.REPEATED if turns and min(counts) >= FEWEST_SESSIONS else lacking, counts
    )
    if logs is None or not design.comparable:
        return Arrangement(design, units, every)
    between = [
        session_component(logs[side == one], point[side == one], units[side == one])
        for one in (0, 1)
    ]
    known = tuple(component for component in between if component is not None)
    if len(known) < 2:
        return Arrangement(Design(SessionOverlap.ALONE, counts), units, every)
    return Arrangement(design, units, every, known)


def steps(logs: np.ndarray, cells: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """(what lasting changes of the machine in one session moved each run by (n,), 0 on average; how
    much smaller the variance of what is left is for their having been looked for, a factor; whether
    runs are still like the one before), from the logarithms of the runs, the cell that each
    repeats, and its start (n,).

    Each cell has a mean of its own, so that a difference of sides or points is no change; in what
    is left the steady drift or the step is looked for that explains most, as long as its F has a
    Bonferroni p below _SURE (binary segmentation after Scott and Knott, Biometrics 30, 1974, but
    all changes fitted together). Since the cells' means are not fitted so, what a change took of
    the scatter by chance would make them differ.
    """
    count = len(logs)
    order = np.argsort(times, kind="stable")
    found = np.zeros(len(logs))
    cell = pd.factorize(cells[order])[0]
    places = np.unique(np.linspace(MINIMUM_POINTS, count - MINIMUM_POINTS, _PLACES, dtype=int))
    size = np.bincount(cell)
    freedom = count - int(cell.max()) - 1
    if places[0] < MINIMUM_POINTS or freedom <= MINIMUM_POINTS:
        return found, 1.0, False

    def within(values: np.ndarray) -> np.ndarray:
        return values - (np.bincount(cell, values) / size)[cell]

    run = np.arange(count)[:, None]
    shapes = np.column_stack([run >= places, run / count])
    design = np.column_stack([within(shape) for shape in shapes.T])
    response = within(logs[order])
    squares = (design**2).sum(axis=0)
    chosen = list[int]()

    def best(beside: list[int]) -> tuple[int, float, float]:
        """The step that explains most beside these, how much, and what is left."""
        left = (
            response
            - design[:, beside] @ np.linalg.lstsq(design[:, beside], response, rcond=None)[0]
        )
        gain = np.where(squares > 1, (left @ design) ** 2 / np.maximum(squares, 1), 0.0)
        return int(gain.argmax()), gain.max(), max(left @ left - gain.max(), _TINY)

    while len(chosen) < min(_MOST_STEPS, (freedom - MINIMUM_POINTS) // _OF_A_STEP):
        place, gain, left = best(chosen)
        rest = freedom - len(chosen) - 1
        if stats.f.sf(gain * rest / left, 1, rest) * len(squares) >= _SURE:
            break
        chosen.append(place)
        for number in range(len(chosen)):  # earlier ones were found before the later were known
            chosen[number] = best(chosen[:number] + chosen[number + 1 :])[0]
    sizes = np.linalg.lstsq(design[:, chosen], response, rcond=None)[0]
    found[order] = (shapes[:, chosen] - shapes[:, chosen].mean(axis=0)) @ sizes
    left = response - design[:, chosen] @ sizes
    alike = left[1:] @ left[:-1] * math.sqrt(count) > _CHANCE * (left @ left)
    return found, freedom / (freedom - _OF_A_STEP * len(chosen)), bool(alike)


def level(found: Arrangement, runs: pd.DataFrame, of_a: np.ndarray) -> Arrangement:
    """The arrangement of a family's runs (n,) in sessions of each side (`of_a`: A's) with values at
    one machine speed.

    What is left of the sessions is what the family's slope is not known by, as far as the speeds
    lay apart: an error that all points share. The runs of a side are one measurement of each point,
    of which the interval has its part.
    """
    speeds = np.log(runs["reference_speed"].to_numpy(dtype="float64"))
    apart = np.nanmedian(speeds[of_a]) - np.nanmedian(speeds[~of_a])
    component = Component((apart * family_slope(runs)[1]) ** 2, max(len(runs) - 1.0, 1.0))
    units = np.where(of_a, "A", "B").astype(object)
    return Arrangement(
        Design(SessionOverlap.LEVELLED, found.design.sessions), units, found.used, (component,)
    )


def family_slope(runs: pd.DataFrame) -> tuple[float, float]:
    """How steps of a family follow the machine's speed, from what its runs saw: the mean weighted
    by their standard errors, and its own, which has how far the runs lie apart (Paule and Mandel's
    factor, Birge 1932).
    """
    seen, error = (
        runs[f"reference_slope_{name}"].to_numpy(dtype="float64") for name in ("seen", "error")
    )
    known = np.isfinite(seen) & (error > 0)
    weights = 1 / error[known] ** 2
    if not known.any():
        return 0.0, 0.0
    mean = float(np.sum(weights * seen[known]) / weights.sum())
    spread = np.sum(weights * (seen[known] - mean) ** 2) / max(known.sum() - 1, 1)
    return min(max(mean, 0.0), 1.0), float(np.sqrt(max(spread, 1.0) / weights.sum()))


def session_component(
    logs: np.ndarray, points: np.ndarray, sessions: np.ndarray
) -> Component | None:
    """What the sessions of a side add to the variance of its mean, from the logarithms of its runs
    (n,).

    Over the points (n labels) that every session measured, the sample variance of the sessions'
    means over their number. None where there are no such points.
    """
    table = pd.DataFrame({"log": logs, "point": points, "session": sessions})
    means = table.groupby(["point", "session"])["log"].mean().unstack("session").dropna().mean()
    count = int(means.notna().sum())
    if count > 1:
        return Component(float(means.var(ddof=1)) / count, count - 1.0)
    return None


def _blocks(runs: pd.DataFrame, side: np.ndarray, sessions: np.ndarray) -> np.ndarray:
    """The sessions, those that hold both sides unmixed cut wherever the side changes."""
    found = sessions.copy()
    if "start_time" in runs:
        times = runs["start_time"].to_numpy(dtype="datetime64[ns]")
    else:
        times = None
    ordered = "sweep_order" in runs and bool(runs["sweep_order"].eq("random").all())
    for name, mine in pd.Series(sessions).groupby(sessions, sort=False).indices.items():
        if ordered or len(set(side[mine])) < 2:
            continue
        if times is None:
            found[mine] = [f"{name} of {'AB'[one]}" for one in side[mine]]
            continue
        # Runs that began together took turns.
        place = pd.Series(mine).groupby([times[mine], side[mine]]).cumcount().to_numpy()
        mine = np.asarray(mine)[np.lexsort((side[mine], place, times[mine]))]
        changes = np.concatenate([[0], np.cumsum(np.diff(side[mine]) != 0)])
        if not _in_turn(side[mine], changes[-1] + 1, times[mine]):
            found[mine] = [f"{name} block {change}" for change in changes]
    return found


def _follows(runs: pd.DataFrame, point: np.ndarray, side: np.ndarray, sessions: np.ndarray) -> bool:
    """Whether the same side comes second oftener than chance lets it (sign test) where a point is
    measured on both, one right after the other: it then finds what the first left in caches.
    """
    start = runs.get("start_time", pd.Series(pd.NaT, runs.index))
    table = pd.DataFrame(
        {"session": sessions, "start": start, "end": runs.get("end_time", start), "point": point}
    )
    table = (
        table.assign(side=side)
        .drop_duplicates(["session", "start"], keep=False)
        .sort_values(["session", "start"])
    )
    first = table.groupby("session").shift()
    after = (
        (first["point"] == table["point"])
        & (first["side"] != table["side"])
        & ~(first["end"] > table["start"])
    )
    drawn = "sweep_order" in runs and bool(runs["sweep_order"].eq("random").all())
    second = table["side"][after & (not drawn)]
    return len(second) > 0 and stats.binomtest(int(second.sum()), len(second)).pvalue < BY_CHANCE


def _turns(blocks: np.ndarray, side: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, bool]:
    """(the turn of each run: sessions of one side with none of the other between them are one,
    since what lies near in time is alike; whether the sides took turns, and at no times of day of
    their own).
    """
    table = (
        pd.DataFrame({"block": blocks, "side": side, "time": times})
        .groupby("block")
        .mean()
        .sort_values("time")
    )
    turn = (table["side"].diff() != 0).cumsum()
    middles = [table.loc[table["side"] == one, "time"].to_numpy() for one in (0, 1)]
    days = [np.exp(2j * np.pi * middle / _DAY) for middle in middles]  # on the clock's face
    far = [
        np.abs(np.angle(np.outer(one, other.conj()))) / (2 * np.pi)
        for one in days
        for other in days
    ]
    own = np.ptp(times) > _DAY and max(far[0].max(initial=0), far[3].max(initial=0)) < far[1].min(
        initial=1
    )
    return turn.reindex(blocks).to_numpy(), _even(*middles) and not (own and far[1].min() > _OF_DAY)


def _in_turn(side: np.ndarray, blocks: int, times: np.ndarray) -> bool:
    """Whether the order of the sides is one that chance makes: neither in few blocks nor one before
    the other.

    Wald and Wolfowitz' number of blocks (Annals of Mathematical Statistics 11, 1940), one-sided at
    1%; Mann and Whitney's statistic of the start times.
    """
    n, m = np.bincount(side)
    mean = 2 * n * m / (n + m) + 1
    if n + m > 2:
        error = np.sqrt((mean - 1) * (mean - 2) / (n + m - 1))
    else:
        error = 0.0
    few = blocks < min(4, n + m) or (blocks + 0.5 - mean) < stats.norm.ppf(0.01) * error
    return not few and _even(times[side == 0].astype("int64"), times[side == 1].astype("int64"))


def _even(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether neither side stands before the other (Mann and Whitney's statistic)."""
    if not len(a) or not len(b):
        return False
    above = stats.rankdata(np.concatenate([a, b]))[: len(a)].sum() - len(a) * (len(a) + 1) / 2
    chance = _CHANCE * np.sqrt((len(a) + len(b) + 1) / (12 * len(a) * len(b)))
    return bool(
        abs(above / (len(a) * len(b)) - 0.5) <= np.clip(chance, _LEAST_UNEVEN, _MOST_UNEVEN) + 1e-12
    )
