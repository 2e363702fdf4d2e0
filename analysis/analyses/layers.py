"""`layers`: what of a session's wall clock each layer of the stack took, from the scheduler's queue to recording.

A session is one process that measures points one after the other: a task of a launched sweep, else a whole sweep, else
a single point. Its wall clock begins when it was submitted and ends when its last point was recorded. Layers divide it
without overlap, and what no layer took is a layer too: the sum is the wall clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from analysis.analyses.overhead import MEASURING_PHASES
from analysis.format import seconds, short, with_interval
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import Answer, Paragraph, pooled_within, require_runs
from analysis.statistics.quantiles import bootstrap_ratio
from paradnn.core.words import counted
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL, Estimate
from paradnn.store.metrics import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

By = Literal["launcher", "sweep"]

#: In the order in which a session passes through them. What belongs together, the launcher, the framework, the model,
#: the steps, has one colour (a place in `drawing.COLOURS`) and differs in hatch.
_LOOKS = {
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
LAYERS = tuple(_LOOKS)
#: What a launcher adds to a sweep of one process, and what a session without one is called.
SCHEDULER, LOCAL = ("queue", "task start"), "local"
#: What distinguishes the sessions of a sweep whose runs name none.
_KEYS = ("launched_task", "job_id", "restarts", "host")
_LARGEST = 4  # layers that are named
_WRITTEN = 0.05  # shares from here on have their number in the bar
_FEWEST = 3  # sessions, for an interval over them
#: From so many points on a bootstrap draws less often, so many numbers in all, but so often at least.
_MANY, _DRAWN, _DRAWS = 2_000, 4_000_000, 200


@dataclass(frozen=True, kw_only=True)
class LayersOptions(Options):
    """What the wall clock is divided for."""

    command = "layers"

    by: Literal["launcher", "sweep"] = option("launcher", "a bar for each launcher (the default), or for each sweep")


class Divided(NamedTuple):
    """`sessions` has a row each: group (the launcher, or the sweep), session, points, wall (s), and every layer (s),
    which add up to `wall`. `points` has a row a point: group, session, wall (s, the sum of its layers) and the layers
    that points have. `without` runs say nothing of their phases, `restarted` ones are of tasks whose wait is not known.
    """

    sessions: pd.DataFrame
    points: pd.DataFrame
    run_ids: tuple[str, ...]
    without: int
    restarted: int


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
    reading="Wall clock of a session by layer, from the scheduler's queue to recording. The rest is what no "
    "recorded point covers.",
)
def layers(frame: pd.DataFrame, options: LayersOptions) -> Answer:
    """What of the wall clock each layer took, by launcher or sweep, with intervals over sessions, else over points.

    NotEnoughData without runs that report their phases, SchemaError for heterogeneous runs on a device.
    """
    require_runs(frame)
    found = divide_sessions(frame, options.by)
    used = frame[frame["run_id"].isin(found.run_ids)]
    shares = shares_of(found)
    return Answer(
        numbers=shares,
        sentences=[*_sentences(found, shares)],
        picture=lambda: draw_layers(found, shares),
        sources=found.run_ids,
        pooled=pooled_within(used, ["device"], options.pool),
    )


def _sentences(found: Divided, shares: pd.DataFrame) -> Iterator[Paragraph]:
    for group, sessions in found.sessions.groupby("group", sort=False):
        points, wall = int(sessions["points"].sum()), float(sessions["wall"].sum())
        each = f", {seconds(wall / len(sessions))} a session" if len(sessions) > 1 else ""
        what = f"{counted(points, 'point')} in {counted(len(sessions), 'session')}"
        own = shares[(shares["group"] == group) & (shares["layer"] != "rest")]
        said = [
            f"{row['layer']}: {with_interval((row['share'], row['low'], row['high']))}, {seconds(row['seconds'])} a "
            "session."
            for row in own.sort_values("share", ascending=False, kind="stable").head(_LARGEST).to_dict("records")
        ]
        if sessions["queue"].any():
            waited = share_of(found, SCHEDULER, str(group))[0]
            said.append(f"Scheduler ({' + '.join(SCHEDULER)}): {with_interval(waited)}.")
        rest = short(abs(sessions["rest"].sum()) / wall, share=True)
        said.append(
            f"Outside these layers: {rest} (ceilings, points given back, waits for other drivers)."
            if sessions["rest"].sum() >= 0
            else f"The layers add up to {rest} more than it: these runs do not say when they began."
        )
        yield Paragraph(f"{group}: {what} took {seconds(wall)} of wall clock{each}.", tuple(said))
    if found.restarted:
        runs = counted(found.restarted, "run")
        yield Paragraph(f"{runs} of restarted tasks are left out: how long these waited is not known.")
    if found.without:
        yield Paragraph(f"{counted(found.without, 'run')} without phases are left out.")


def divide_sessions(frame: pd.DataFrame, by: By = "launcher") -> Divided:
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
    has = frame.reindex(columns=[f"phase_{name}_seconds" for name in PHASES]).notna().any(axis=1)
    again = _number(frame, "restarts") > 0
    runs = frame[has & ~again]
    if "start_time" in runs:
        runs = runs.sort_values("start_time", kind="stable")
    if runs.empty:
        raise NotEnoughData("no run reports its phases; those that this tool measures do")
    points = _of_points(runs, by)
    counts = int((~has).sum()), int((has & again).sum())
    return Divided(_of_sessions(runs, points), points, tuple(runs["run_id"]), *counts)


def share_of(
    found: Divided, names: Collection[str], group: str | None = None, level: float = LEVEL
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


def shares_of(found: Divided) -> pd.DataFrame:
    """A row for each group and layer that took any time: group, layer, seconds (mean of a session), share (of the
    group's wall clock) with its 95% interval low, high (NaN where there is none), sample (what that is over)."""
    rows: list[list[object]] = []
    for group, own in found.sessions.groupby("group", sort=False):
        for layer in LAYERS:
            if own[layer].any():
                share, sample = share_of(found, (layer,), str(group))
                rows.append([group, layer, float(own[layer].mean()), *share, sample])
    return pd.DataFrame(rows, columns=["group", "layer", "seconds", "share", "low", "high", "sample"])


def _of_points(runs: pd.DataFrame, by: By) -> pd.DataFrame:
    phase = {name: _number(runs, f"phase_{name}_seconds") for name in PHASES}
    measured = sum((phase[name] for name in MEASURING_PHASES), pd.Series(0.0, index=runs.index))
    talking = _number(runs, "category_share.communication").clip(0.0, 1.0)
    if "model.transport" in runs:  # model=channel: its steps are messages
        talking = talking.where(runs["model.transport"].isna(), 1.0)
    fed = _number(runs, "infeed_fraction").clip(0.0, 1.0 - talking)
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
    group = _column(runs, "launcher").fillna(LOCAL).astype(str)
    if by == "sweep":
        sweep = _column(runs, "sweep_id")
        group = group.where(sweep.isna(), group + " " + sweep.astype(str))
    table.insert(0, "wall", table.sum(axis=1))
    table.insert(0, "session", session)
    table.insert(0, "group", group)
    return table


def _sessions(runs: pd.DataFrame) -> pd.Series:
    """The session of each run, as text: the one it names; else one for each task of its sweep; else it is alone."""
    sweep, named = (_column(runs, name) for name in ("sweep_id", "session_id"))
    task = sweep.fillna("").astype(str)
    for name in _KEYS:
        task = task + "/" + _column(runs, name).fillna("").astype(str)
    return runs["run_id"].astype(str).where(sweep.isna(), task).where(named.isna(), named.astype(str))


def _of_sessions(runs: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    by_session = points["session"]
    grouped = points.groupby("session", sort=False)
    table = grouped[[name for name in points if name in LAYERS]].sum()

    def of_session(values: pd.Series, how: str) -> pd.Series:
        return values.groupby(by_session, sort=False).agg(how)

    for name, column in (("queue", "queue_seconds"), ("task start", "task_start_seconds")):
        table[name] = of_session(_number(runs, column), "first")
    begin, end = (pd.to_datetime(_column(runs, name), utc=True) for name in ("start_time", "end_time"))
    span = (of_session(end, "max") - of_session(begin, "min")).dt.total_seconds()
    span += of_session(_number(runs, "phase_schedule_seconds"), "first")
    given = pd.to_numeric(_column(runs, "session_seconds"))
    table["wall"] = of_session(given, "max").fillna(span).fillna(grouped["wall"].sum())
    table["wall"] += table["queue"] + table["task start"]
    table["rest"] = table["wall"] - table[[name for name in LAYERS if name != "rest"]].sum(axis=1)
    table.insert(0, "points", grouped.size())
    table.insert(0, "group", grouped["group"].first())
    return table.reset_index()[["group", "session", "points", "wall", *LAYERS]]


def _ratio(part: pd.Series, whole: pd.Series, level: float) -> Estimate:
    """The share of sums; a part of a whole is never beyond 0 and 1, whatever the bootstrap says."""
    draws = max(_DRAWS, _DRAWN // len(part)) if len(part) > _MANY else None
    return Estimate(*(float(np.clip(end, 0.0, 1.0)) for end in bootstrap_ratio(part, whole, level, draws)))


def _column(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column as objects, without any value where runs have none."""
    return (runs[name] if name in runs else pd.Series(None, index=runs.index)).astype("object")


def _number(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column as numbers, 0 where a run has none."""
    return pd.to_numeric(_column(runs, name), errors="coerce").astype("float64").fillna(0.0)


def draw_layers(found: Divided, table: pd.DataFrame) -> Figure:
    """Share of the wall clock by layer, groups below each other, a session's mean wall clock at the end of each bar."""
    groups = found.sessions.groupby("group", sort=False)
    means, counts = groups["wall"].mean(), groups["points"].agg(["size", "sum"])
    rows = {f"{name} ({counts['size'][name]}, {counts['sum'][name]})": f"{means[name]:.3g} s" for name in counts.index}
    shares = table.pivot(index="group", columns="layer", values="share").reindex(counts.index)
    shares = shares.fillna(0.0).clip(lower=0.0)
    parts = {layer: (layer, shares[layer]) for layer in LAYERS if layer in shares and shares[layer].any()}
    looks = {layer: (drawing.COLOURS[at], hatch) for layer, (at, hatch) in _LOOKS.items()}
    title = "Where the wall clock of a session goes (sessions, points)"
    return drawing.stacked(rows, parts, looks, title, "wall clock", _WRITTEN)
