"""`layers`: from the wall clock of a sweep, or of a launched job, to the layers of the stack that took it.

The layers of a stack: what of a session's wall clock each of them took, from the scheduler's queue to recording.

A session is one process that measures points one after the other: a task of a launched sweep, else a whole sweep, else
a single point. Its wall clock begins when it was submitted and ends when its last point was recorded. Layers divide it
without overlap, and what no layer took is a layer too: the sum is the wall clock.

Where the wall clock of sessions goes: a bar for each launcher or sweep, stacked by the layers of the stack.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from analysis.analyses.overhead import MEASURING_PHASES
from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import Paragraph, Result, pooled_within, require_runs
from analysis.statistics.quantiles import bootstrap_ratio
from paradnn.core.words import counted
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL, Estimate
from paradnn.store.metrics import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LARGEST = 4  # layers that are named


@dataclass(frozen=True, kw_only=True)
class LayersOptions(Options):
    """What the wall clock is divided for."""

    command = "layers"

    by: Literal["launcher", "sweep"] = option("launcher", "a bar for each launcher (the default), or for each sweep")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LayersResult(Result):
    """Seconds and share of every layer, by launcher or sweep."""

    layers: Layers

    @property
    def table(self) -> pd.DataFrame:
        return self.layers.shares

    def _figure(self) -> Figure:
        return draw_layers(self.layers)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of = self.layers
        for group in dict.fromkeys(of.sessions["group"]):
            yield _of_group(of, group)
        if of.restarted:
            yield Paragraph(
                f"{counted(of.restarted, 'run')} of restarted tasks are left out: how long these waited is not known."
            )
        if of.without:
            yield Paragraph(f"{counted(of.without, 'run')} without phases are left out.")


@analysis(
    LayersOptions,
    summary="the layers of the stack in a session's wall clock, from the queue to recording, by launcher",
    description="Divide the wall clock of each session (a task of a launched sweep, a sweep, a point alone) into\n"
    "the scheduler's queue, the task's start, the framework's import, build, compile, warm-up, communication,\n"
    "input, computation, recording, and the rest: they add up to it.",
    example="python -m analysis layers --tag source=measured --figure layers.png",
    gate="none",
    section="system",
    order=130,
    title="Layers of the stack",
    reading=(
        "Wall clock of a session by layer, from the scheduler's queue to recording. The rest is what no "
        "recorded point covers."
    ),
)
def layers(frame: pd.DataFrame, options: LayersOptions) -> LayersResult:
    """What of the wall clock each layer took, by launcher or sweep, with intervals over sessions, else over points.

    NotEnoughData without runs that report their phases, SchemaError for heterogeneous runs on a device.
    """
    require_runs(frame)
    found = divide_sessions(frame, options.by)
    used = frame[frame["run_id"].isin(found.run_ids)]
    return LayersResult(layers=found, sources=found.run_ids, pooled=pooled_within(used, ["device"], options.pool))


def _of_group(of: Layers, group: str) -> Paragraph:
    sessions = of.sessions[of.sessions["group"] == group]
    points, wall = int(sessions["points"].sum()), float(sessions["wall"].sum())
    each = f", {_seconds(wall / len(sessions))} a session" if len(sessions) > 1 else ""
    what = f"{counted(points, 'point')} in {counted(len(sessions), 'session')}"
    head = f"{group}: {what} took {_seconds(wall)} of wall clock{each}."
    shares = of.shares[of.shares["group"] == group].sort_values("share", ascending=False)
    largest = [
        f"{row['layer']}: {_share((row['share'], row['low'], row['high']))}, {_seconds(row['seconds'])} a session."
        for row in shares[shares["layer"] != "rest"].head(_LARGEST).to_dict("records")
    ]
    waits = [f"Scheduler ({' + '.join(SCHEDULER)}): {_share(share_of(of, SCHEDULER, group)[0])}."]
    rest = float(sessions["rest"].sum()) / wall
    told = f"Outside these layers: {short(rest, share=True)} (ceilings, points given back, waits for other drivers)."
    if rest < 0:
        told = f"The layers add up to {short(-rest, share=True)} more than it: these runs do not say when they began."
    return Paragraph(head, (*largest, *(waits if sessions["queue"].any() else ()), told))


def _share(found: Estimate | tuple[float, float, float]) -> str:
    value, low, high = found
    if math.isnan(low):
        return short(value, share=True)
    return f"{short(value, share=True)} (95% interval {short(low, share=True)} to {short(high, share=True)})"


def _seconds(value: float) -> str:
    return short(value, "s", digits=3) if value >= 0.1 else short(1000 * value, "ms", digits=3)


#: In the order in which a session passes through them.
LAYERS = (
    "queue",
    "task start",
    "import",
    "fork",
    "build",
    "compile",
    "warm-up",
    "communication",
    "input",
    "computation",
    "profile",
    "recording",
    "rest",
)
#: What a launcher adds to a sweep of one process.
SCHEDULER = ("queue", "task start")
#: What a session without a launcher is called.
LOCAL = "local"
By = Literal["launcher", "sweep"]

#: What distinguishes the sessions of a sweep whose runs name none.
_KEYS = ("launched_task", "job_id", "restarts", "host")
_FEWEST = 3  # sessions, for an interval over them
#: From so many points on a bootstrap draws less often, so many numbers in all, but so often at least.
_MANY, _DRAWN, _DRAWS = 2_000, 4_000_000, 200


@dataclass(frozen=True)
class Layers:
    """Where the wall clock of sessions went.

    `sessions` has a row each: group (the launcher, or the sweep), session, points, wall (s), and every layer (s), which
    add up to `wall`. `points` has a row a point: group, session, wall (s, the sum of its layers) and the layers that
    points have. `shares` has a row for each group and layer that took any time: group, layer, seconds (mean of a
    session), share (of the group's wall clock) with its 95% interval low, high (NaN where there is none), sample (what
    that is over). `without` runs say nothing of their phases, `restarted` ones are of tasks whose wait is not known.
    """

    sessions: pd.DataFrame
    points: pd.DataFrame
    shares: pd.DataFrame
    run_ids: tuple[str, ...]
    without: int
    restarted: int


def divide_sessions(frame: pd.DataFrame, by: By = "launcher") -> Layers:
    """The layers of every session of a frame, one row a run; every outcome counts, since a failed point costs time.

    queue, task start: `queue_seconds` and `task_start_seconds` of the session. import: the phase `start` of its first
    point, which waits for the framework; fork: that of the others. communication and input: of the measured steps the
    share that a profile (`category_share.communication`) and the pipeline (`infeed_fraction`) say, all of it with
    model=channel; input also the phase of that name; computation: the rest of the measured steps. recording: the phases
    `schedule` and `record`. rest: wall clock that no phase of a recorded point covers, such as ceilings. Wall clock:
    queue, task start, and `session_seconds` of the last point; of runs recorded before that was, the last end less the
    first start and the first point's schedule.

    NotEnoughData where no run reports its phases.
    """
    phases = [f"phase_{name}_seconds" for name in PHASES]
    has = frame.reindex(columns=phases).notna().any(axis=1)
    again = _number(frame, "restarts") > 0
    runs = frame[has & ~again]
    if "start_time" in runs:
        runs = runs.sort_values("start_time", kind="stable")
    if runs.empty:
        raise NotEnoughData("no run reports its phases; those that this tool measures do")
    points = _of_points(runs, by)
    sessions, ids = _of_sessions(runs, points), tuple(runs["run_id"])
    found = Layers(sessions, points, pd.DataFrame(), ids, int((~has).sum()), int((has & again).sum()))
    shares = [_shares(found, group) for group in dict.fromkeys(sessions["group"])]
    return replace(found, shares=pd.concat(shares, ignore_index=True))


def share_of(
    found: Layers, names: Collection[str], group: str | None = None, level: float = LEVEL
) -> tuple[Estimate, str]:
    """The share of the wall clock of a group, or of all, that some layers took together, and what its interval is over.

    That is sessions where there are three or more; else points, where these layers are of points alone; else nothing,
    and the ends are NaN.
    """
    sessions, points = found.sessions, found.points
    if group is not None:
        sessions, points = (table[table["group"] == group] for table in (sessions, points))
    wall = float(sessions["wall"].sum())
    if len(sessions) >= _FEWEST:
        return _ratio(sessions[[*names]].sum(axis=1), sessions["wall"], level), "sessions"
    value = float(sessions[[*names]].to_numpy().sum()) / wall
    # A point alone waits for the import.
    if not set(names) <= set(points.columns) - {"import"} or len(points) < _FEWEST:
        return Estimate(value, np.nan, np.nan), ""
    # The points' part of the wall clock is taken as given: how it divides is what varies with the points.
    part = float(points["wall"].sum()) / wall
    found_share = _ratio(points[[*names]].sum(axis=1), points["wall"], level)
    return Estimate(value, found_share.low * part, found_share.high * part), "points"


def _of_points(runs: pd.DataFrame, by: By) -> pd.DataFrame:
    """A row a run, with its group, its session, and the layers that a point has (s)."""
    phase = {name: _number(runs, f"phase_{name}_seconds") for name in PHASES}
    measured = sum((phase[name] for name in MEASURING_PHASES), pd.Series(0.0, index=runs.index))
    talking = _number(runs, "category_share.communication").clip(0.0, 1.0)
    if "model.transport" in runs:  # model=channel: its steps are messages
        talking = talking.where(runs["model.transport"].isna(), 1.0)
    fed = _number(runs, "infeed_fraction").clip(0.0, 1.0 - talking)
    launcher = runs["launcher"].fillna(LOCAL).astype(str) if "launcher" in runs else pd.Series(LOCAL, index=runs.index)
    session = _sessions(runs)
    started = phase["start"] > 0
    first = started & ~session.where(started, runs["run_id"]).duplicated()
    parts = {
        "import": phase["start"].where(first, 0.0),
        "fork": phase["start"].where(~first, 0.0),
        "build": phase["build"],
        "compile": phase["compile"],
        "warm-up": phase["warmup"],
        "communication": measured * talking,
        "input": phase["input"] + measured * fed,
        "computation": measured * (1.0 - talking - fed),
        "profile": phase["profile"] + phase["balance"],
        "recording": phase["schedule"] + phase["record"],
    }
    table = pd.DataFrame(parts, index=runs.index)
    if by == "sweep" and "sweep_id" in runs:
        group = launcher.where(runs["sweep_id"].isna(), launcher + " " + runs["sweep_id"].astype(str))
    else:
        group = launcher
    table.insert(0, "wall", table.sum(axis=1))
    table.insert(0, "session", session)
    table.insert(0, "group", group)
    return table


def _sessions(runs: pd.DataFrame) -> pd.Series:
    """The session of each run, as text: the one it names; else one for each task of its sweep; else it is alone."""
    session = runs["run_id"].astype(str)
    if "sweep_id" in runs:
        named = runs["sweep_id"].astype("object").fillna("").astype(str)
        for name in _KEYS:
            if name in runs:
                named = named + "/" + runs[name].astype("object").fillna("").astype(str)
        session = session.where(runs["sweep_id"].isna(), named)
    if "session_id" in runs:
        session = session.where(runs["session_id"].isna(), runs["session_id"].astype("object").astype(str))
    return session


def _of_sessions(runs: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """A row a session: its layers (s), the rest among them, add up to its wall clock."""
    own = [name for name in points if name in LAYERS]
    waits = {"queue": _number(runs, "queue_seconds"), "task start": _number(runs, "task_start_seconds")}
    schedule = _number(runs, "phase_schedule_seconds")
    given = runs["session_seconds"] if "session_seconds" in runs else pd.Series(np.nan, index=runs.index)
    begin, end = (_time(runs, name) for name in ("start_time", "end_time"))
    grouped = points.groupby("session", sort=False)
    table = grouped[own].sum()
    for name, values in waits.items():
        table[name] = values.groupby(points["session"], sort=False).first()
    by_session = points["session"]
    span = (end.groupby(by_session, sort=False).max() - begin.groupby(by_session, sort=False).min()).dt.total_seconds()
    span += schedule.groupby(by_session, sort=False).first()
    elapsed = given.groupby(by_session, sort=False).max().fillna(span).fillna(grouped["wall"].sum())
    table["wall"] = elapsed + table["queue"] + table["task start"]
    table["rest"] = table["wall"] - table[[name for name in LAYERS if name != "rest"]].sum(axis=1)
    table.insert(0, "points", grouped.size())
    table.insert(0, "group", grouped["group"].first())
    return table.reset_index()[["group", "session", "points", "wall", *LAYERS]]


def _shares(found: Layers, group: str) -> pd.DataFrame:
    own = found.sessions[found.sessions["group"] == group]
    rows = []
    for layer in LAYERS:
        if own[layer].any():
            share, sample = share_of(found, (layer,), group)
            rows.append([group, layer, float(own[layer].mean()), *share, sample])
    return pd.DataFrame(rows, columns=["group", "layer", "seconds", "share", "low", "high", "sample"])


def _ratio(part: pd.Series, whole: pd.Series, level: float) -> Estimate:
    """The share of sums; a part of a whole is never beyond 0 and 1, whatever the bootstrap says."""
    draws = max(_DRAWS, _DRAWN // len(part)) if len(part) > _MANY else None
    return Estimate(*(float(np.clip(end, 0.0, 1.0)) for end in bootstrap_ratio(part, whole, level, draws)))


def _time(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column of times; NaT where runs have none."""
    return pd.to_datetime(runs[name] if name in runs else pd.Series(pd.NaT, index=runs.index), utc=True)


def _number(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column as numbers, 0 where a run has none."""
    if name not in runs:
        return pd.Series(0.0, index=runs.index)
    return pd.to_numeric(runs[name], errors="coerce").astype("float64").fillna(0.0)


#: What belongs together shares a colour (a place in `drawing.COLOURS`) and differs in hatch: the launcher, the
#: framework, the model, the steps.
_LOOK = {
    "queue": (4, ""),
    "task start": (4, "////"),
    "import": (3, ""),
    "fork": (3, "////"),
    "build": (5, ""),
    "compile": (5, "////"),
    "warm-up": (5, "...."),
    "communication": (0, ""),
    "input": (0, "////"),
    "computation": (2, ""),
    "profile": (6, ""),
    "recording": (1, ""),
    "rest": (-1, ""),
}
_WRITTEN = 0.05  # shares from here on have their number in the bar


def draw_layers(found: Layers) -> Figure:
    """Share of the wall clock by layer, groups below each other, a session's mean wall clock at the end of each bar."""
    sessions = found.sessions.groupby("group", sort=False)
    means, counts = sessions["wall"].mean(), sessions["points"].agg(["size", "sum"])
    rows = {f"{name} ({counts['size'][name]}, {counts['sum'][name]})": f"{means[name]:.3g} s" for name in counts.index}
    shares = found.shares.pivot(index="group", columns="layer", values="share").reindex(counts.index)
    shares = shares.fillna(0.0).clip(lower=0.0)
    parts = {layer: (layer, shares[layer]) for layer in LAYERS if layer in shares and shares[layer].any()}
    looks = {layer: (drawing.COLOURS[at], hatch) for layer, (at, hatch) in _LOOK.items()}
    title = "Where the wall clock of a session goes (sessions, points)"
    return drawing.stacked(rows, parts, looks, title, "wall clock", _WRITTEN)
