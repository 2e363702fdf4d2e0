"""Whether two sides may be compared at all: when and in which sessions they were measured.

A session shifts all that is measured in it: the machine's neighbours, its temperature, its memory layout. One session a
side cannot tell that from the sides, however many points and replicates it holds, and neither can any number of them if
one side was measured before the other. Sides are comparable where both were measured in the same sessions, mixed, or in
several sessions each that alternate.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from analysis.lazy import np, pd
from analysis.statistics.dependence import Component

#: Sessions that each side needs where they share none.
FEWEST_SESSIONS = 3

#: What a session may do to a side as a whole, as a factor: claims about sides that are not comparable must hold with
#: all their ratios so much larger and smaller.
ALLOWANCE = 1.1

#: What makes two sides comparable.
REMEDY = (
    "measure both sides together, with python -m paradnn.compare, or in one sweep with replicates (replicate=0,1,2)"
)

_GAP = "30min"  # a longer pause ends a session of runs that belong to no sweep
_SHARED = 0.8  # of both sides' runs that must lie in the same sessions, in the same proportions, for one design
# How far from even the order of A and B may be: P(a run of A stands before one of B) is 0.5 where they are mixed. It is
# what chance does to random orders in one of a hundred, within these limits.
_CHANCE, _LEAST_UNEVEN, _MOST_UNEVEN = 2.6, 0.1, 0.25
_MOST_PAIRS = 10**6  # of more runs the order of their starts says enough


class Standing(StrEnum):
    """How two sides stand to each other in time."""

    TOGETHER = "measured together"
    REPEATED = "several sessions each"
    ALONE = "too few sessions"
    APART = "at different times"
    UNKNOWN = "time not recorded"


@dataclass(frozen=True)
class Design:
    """When the sides' runs of the same points were measured: `sessions` of A and of B, and how many they share."""

    standing: Standing
    sessions: tuple[int, int] = (0, 0)
    shared: int = 0

    @property
    def comparable(self) -> bool:
        """Whether a difference between the sides can be told from one between sessions."""
        return self.standing in (Standing.TOGETHER, Standing.REPEATED)

    def text(self) -> str:
        """Why the sides are not comparable, and what to run; how they were measured where they are."""
        a, b = (f"{count} session{'s'[: count != 1]}" for count in self.sessions)
        reason = {
            Standing.TOGETHER: f"both sides were measured in {self._shared()}",
            Standing.REPEATED: f"A was measured in {a}, B in {b}, in turn",
            Standing.ALONE: (
                f"A was measured in {a} and B in {b} of their own: what a session does to all of its runs cannot be "
                f"told from the difference of the sides with fewer than {FEWEST_SESSIONS} of the same points each"
            ),
            Standing.APART: (
                "one side was measured before the other: a drift of the machine cannot be told from their difference"
            ),
            Standing.UNKNOWN: "when these were measured is not recorded: a session cannot be told from the sides",
        }[self.standing]
        return reason if self.comparable else f"{reason}; {REMEDY}"

    def _shared(self) -> str:
        return "one session" if self.shared == 1 else f"the same {self.shared} sessions"


def sessions_of(runs: pd.DataFrame) -> np.ndarray:
    """The session of each run (n,), None where it is not known.

    That of its sweep; runs of no sweep are of one session with those on their host up to a pause of half an hour. The
    start of an imported published run is that of its import, and says nothing.
    """
    found = np.full(len(runs), None, dtype=object)
    known, swept = np.ones(len(runs), dtype=bool), np.zeros(len(runs), dtype=bool)
    if "source" in runs:
        known = ~runs["source"].eq("published").fillna(False).to_numpy(dtype=bool)
    if "sweep_id" in runs:
        swept = known & runs["sweep_id"].notna().to_numpy()
        found[swept] = runs["sweep_id"].astype("str").to_numpy(dtype=object)[swept]
    if "start_time" in runs and not swept.all():
        host = runs["host"].astype("object").fillna("") if "host" in runs else pd.Series("", index=runs.index)
        table = pd.DataFrame({"host": host.to_numpy(), "time": runs["start_time"].to_numpy()})
        table = table[known & table["time"].notna().to_numpy()].sort_values(["host", "time"], kind="stable")
        begins = (table["time"].diff() > pd.Timedelta(_GAP)) | (table["host"] != table["host"].shift())
        by_pauses = np.full(len(runs), None, dtype=object)
        by_pauses[table.index.to_numpy()] = [f"by pauses {number}" for number in begins.cumsum()]
        found[~swept] = by_pauses[~swept]
    return found


def design_of(a: pd.DataFrame, b: pd.DataFrame) -> Design:
    """How the runs of two sides, all of points that both measured, stand to each other in time."""
    both = sessions_of(pd.concat([a, b], ignore_index=True))
    one, two = both[: len(a)], both[len(a) :]
    if any(session is None for session in both) or not len(a) or not len(b):
        return Design(Standing.UNKNOWN)
    counts = tuple(len(set(side)) for side in (one, two))
    shared = set(one) & set(two)
    alike = sum(min(float((side == name).mean()) for side in (one, two)) for name in shared)
    times = [side["start_time"].to_numpy(dtype="datetime64[ns]") if "start_time" in side else None for side in (a, b)]
    if alike >= _SHARED:
        together = _in_random_order(a, b) or _mixed(times[0], times[1]) or _by_turns(a, b)
        standing = Standing.TOGETHER if together else Standing.APART
    elif min(counts) < FEWEST_SESSIONS or shared:
        standing = Standing.ALONE
    else:
        middles = [_middles(side, time) for side, time in zip((one, two), times, strict=True)]
        standing = Standing.REPEATED if _mixed(*middles) else Standing.APART
    return Design(standing, (counts[0], counts[1]), len(shared))


def session_component(logs: np.ndarray, points: np.ndarray, sessions: np.ndarray) -> Component | None:
    """What the sessions of a side add to the variance of its mean, from the logarithms of its runs (n,).

    Over the points (n labels) that every session measured, the sample variance of the sessions' means over their
    number. None where there are no such points.
    """
    table = pd.DataFrame({"log": logs, "point": points, "session": sessions})
    cells = table.groupby(["point", "session"])["log"].mean().unstack("session").dropna()
    if cells.empty:
        return None
    means = cells.mean()
    return Component(float(means.var(ddof=1)) / len(means), len(means) - 1.0)


def _middles(sessions: np.ndarray, times: np.ndarray | None) -> np.ndarray | None:
    if times is None:
        return None
    stamps = pd.Series(times.astype("int64")).groupby(sessions).mean()
    middles: np.ndarray = stamps.to_numpy()
    return middles


def _in_random_order(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Whether chance alone decided what was measured before what: a drift is then noise, whichever order came out."""
    return all("sweep_order" in side and bool(side["sweep_order"].eq("random").all()) for side in (a, b))


def _by_turns(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Whether processes of both sides took turns on one host: of most runs, half of the time is that of a run of the
    other side, and both have several processes."""
    if not all(name in side for name in ("processes", "host", "start_time", "end_time") for side in (a, b)):
        return False
    several = [side[(side["processes"] > 1) & side["end_time"].notna()] for side in (a, b)]
    if not 0 < len(several[0]) * len(several[1]) <= _MOST_PAIRS:
        return False
    (starts, ends), others = (
        [side[name].to_numpy(dtype="datetime64[ns]").astype("int64") for name in ("start_time", "end_time")]
        for side in several
    )
    common = np.minimum.outer(ends, others[1]) - np.maximum.outer(starts, others[0])
    longer = np.maximum.outer(ends - starts, others[1] - others[0])
    hosts = several[0]["host"].to_numpy(dtype=object)[:, None] == several[1]["host"].to_numpy(dtype=object)
    turns = hosts & (2 * common >= longer)
    return bool(min(turns.any(axis=1).sum() / len(a), turns.any(axis=0).sum() / len(b)) >= _SHARED)


def _mixed(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether neither side stands before the other (Mann and Whitney's statistic of their start times)."""
    if a is None or b is None:
        return False
    ordered = np.sort(b)
    before = np.searchsorted(ordered, a, side="left") + np.searchsorted(ordered, a, side="right")
    probability = 1 - before.sum() / (2 * len(a) * len(b))
    chance = _CHANCE * np.sqrt((len(a) + len(b) + 1) / (12 * len(a) * len(b)))
    return bool(abs(probability - 0.5) <= np.clip(chance, _LEAST_UNEVEN, _MOST_UNEVEN) + 1e-12)
