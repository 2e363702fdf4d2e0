"""`overhead`: divide the wall time of runs into measuring, the model's own work and overhead.

The result has quartiles of every phase of a point, and the share of the wall time that is spent on
measuring. A point is one measured combination of hyperparameter values, and its phases are start,
build, compile and so on. Overhead is the time of the tool itself. Runs of every outcome count,
since a failed point takes time as well.

With `--layers`, the wall time of drivers is divided by launcher and layer of the stack, from the
scheduler's queue to the timed steps. A driver is the process that plans and records a sweep.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.format import format_seconds, format_share, format_with_interval
from analysis.lazy import drawing, np, pd, special
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Result, pooled_within, require_runs
from analysis.sides import rare_event_caveat
from analysis.store.frame import families
from paradnn.core.results import ResultDescription
from paradnn.core.words import counted
from paradnn.core.workload import WORKLOADS
from paradnn.statistics.dependence import MINIMUM_POINTS, crossed_ratio, shared_levels
from paradnn.statistics.estimate import Estimate
from paradnn.store.metrics import PHASES

_WORKLOAD_PHASES = {
    name for work in WORKLOADS.values() for name in work.role(ResultDescription).phases
}
#: Phases that measure: the speed, the latency of single steps, and the additional measurements of
#: a kind of work.
MEASURING_PHASES = tuple(
    name for name in PHASES if name in ("measure", "latency") or name in _WORKLOAD_PHASES
)
#: Phases of the tool itself. Other phases belong to the model (build, compile, warm-up) or are
#: requested (profile).
OVERHEAD_PHASES = ("schedule", "start", "record")

_MEASURING_HATCHES = ("....", "", "////", "xxxx", "----", "oooo", "++++", "****")
#: Index of a color in `drawing.COLORS` -> phase -> hatch. Phases of one purpose share a color, and
#: their hatches differ.
_HATCHES = {
    1: {"schedule": "", "start": "////", "record": "xxxx"},
    5: {"build": "", "compile": "////", "warmup": "....", "input": "xxxx"},
    2: dict(zip(MEASURING_PHASES, _MEASURING_HATCHES, strict=False)),
    3: {"profile": "", "balance": "////"},
}
#: Minimum share of a bar that is labeled with its number.
_MIN_LABELED_SHARE = 0.08


#: Layer that a driver passes once, at its start -> the column with its seconds.
_START_LAYERS = {
    "queue": "queue_seconds",
    "launcher": "launcher_seconds",
    "driver": "task_start_seconds",
}
#: Layer that each point passes -> its phases. Their seconds are summed over the points of a driver.
#: The phase start of a worker's first point includes the import of the framework.
_POINT_LAYERS = {
    "import": ("start",),
    "store": ("schedule", "record"),
    "compile": ("build", "input", "compile"),
    "warm-up": ("warmup", "balance"),
    "measure": MEASURING_PHASES,
    "profile": ("profile",),
}
#: Layers that take time in addition to the model's own work.
STACK_LAYERS = (*_START_LAYERS, "import", "store")
#: Name of the launcher in the table if no launcher started a driver.
_BARE = "bare"
_LAYER_HATCHES = ("", "////", "....", "xxxx", "----", "", "////", "", "")


@dataclass(frozen=True, kw_only=True)
class OverheadOptions(Options):
    """Options of the command `overhead`: whether to divide the time into layers of the stack."""

    layers: bool = option(
        False,
        "divide the wall time of drivers into layers, from queue to steps, for each launcher",
    )


@analysis(
    OverheadOptions,
    summary="wall time of a sweep: measuring, the model's own work, and the overhead of this tool",
    example="python -m analysis overhead --tag source=measured --figure overhead.png",
    gate="none",
    section="system",
    order=120,
    title="Benchmarking overhead",
    reading="Wall time of a point by phase, in seconds. Schedule, start and record are the tool's "
    "own overhead.",
)
def overhead(frame: pd.DataFrame, options: OverheadOptions) -> Result:
    """Summarize the wall time of runs by phase, such as start, compile and measure.

    The wall time of a run is the sum of its `phase_<name>_seconds`. If a run lacks a phase, the
    phase counts as 0 seconds in sums and is excluded from quartiles.

    Args:
        frame: Runs of any outcome, one per row.
        options: Whether to divide the wall time of drivers (the processes that run sweeps) into
            layers instead.

    Returns:
        The result. Its table has a row per phase: phase, runs, q25, median, q75 and total in
        seconds, and share of the total. With the option `layers`, it is the table of `layer_table`
        instead.

    Raises:
        InsufficientData: If there are no runs.
        HeterogeneousError: If the runs of a device differ in their environment or timing protocol,
            and the option `pool` is not set.
    """
    require_runs(frame)
    timed, seconds = phase_seconds(frame)
    spent = seconds.fillna(0.0)
    if options.layers:
        return _layers(timed, spent, options)
    total = float(spent.to_numpy().sum())
    table = seconds.quantile([0.25, 0.5, 0.75]).T.set_axis(["q25", "median", "q75"], axis=1)
    table.insert(0, "runs", seconds.count())
    table["total"] = spent.sum()
    table["share"] = table["total"] / total if total else math.nan
    return Result(
        numbers=table.rename_axis("phase").reset_index(),
        answer=_answer(spent, untimed=len(frame) - len(timed)),
        sentences=[*_sentences(spent, untimed=len(frame) - len(timed))],
        picture=lambda: draw_phases(spent, timed),
        sources=tuple(timed["run_id"]),
        pooled=pooled_within(timed, ["device"], pool=options.pool) if len(timed) else "",
    )


def phase_seconds(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs that record phases, and the seconds of each of these runs by phase.

    Runs without phases, such as published ones, are dropped. They may differ from the remaining
    runs in environment or protocol.

    Args:
        frame: Runs, one per row.

    Returns:
        The runs (n rows), and their seconds (n rows, a column per phase). A value is NaN if a run
        lacks the phase.
    """
    columns = {f"phase_{name}_seconds": name for name in PHASES}
    seconds = frame.reindex(columns=list(columns)).rename(columns=columns).astype("float64")
    seconds = seconds.where(np.isfinite(seconds)).dropna(how="all").dropna(axis=1, how="all")
    return frame.loc[seconds.index], seconds


def _answer(spent: pd.DataFrame, untimed: int) -> AnalysisAnswer:
    """State the shares of measuring and of the tool's own overhead in the wall time.

    Args:
        spent: Seconds of runs: a row per run, a column per phase.
        untimed: Number of runs without phases.
    """
    if spent.empty:
        runs = counted(untimed, "run")
        return AnalysisAnswer(
            sentence=f"None of these {runs} reports phases; published runs have no phases."
        )
    measuring = format_with_interval(phase_share(spent, MEASURING_PHASES), format_share)
    stack = format_with_interval(phase_share(spent, OVERHEAD_PHASES), format_share)
    return AnalysisAnswer(
        sentence=(
            f"Measuring takes {measuring} of the wall time of {counted(len(spent), 'point')}, the "
            f"stack's own overhead {stack}."
        ),
        points=len(spent),
        basis="the scatter between points",
    )


def _layers(runs: pd.DataFrame, spent: pd.DataFrame, options: OverheadOptions) -> Result:
    """Summarize the wall time of drivers by layer, for each launcher.

    A driver is the process that plans and records a sweep.

    Args:
        runs: The runs that record phases.
        spent: Seconds of these runs: a row per run, a column per phase.
        options: The options of `overhead`.
    """
    by_driver = layer_seconds(runs, spent)
    if by_driver.empty:
        require_runs(by_driver)
    table = layer_table(by_driver)
    return Result(
        numbers=table,
        answer=_layer_answer(by_driver),
        sentences=[*_layer_sentences(by_driver)],
        picture=lambda: draw_layers(by_driver),
        sources=tuple(runs["run_id"]),
        pooled=pooled_within(runs, ["device"], pool=options.pool),
    )


def layer_seconds(runs: pd.DataFrame, spent: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each driver by layer of the software stack.

    A driver is the process that plans and records a sweep. The layers are queue, launcher and so
    on, up to the timed steps.

    Args:
        runs: Runs with phases. `session_id` identifies the session of the driver, and `launcher`
            the program that started it. Runs without a session are omitted.
        spent: Seconds of these runs: a row per run, a column per phase.

    Returns:
        A row per session, indexed by launcher and session, with a column per layer, in the order in
        which a driver passes the layers.
    """
    runs = runs.reindex(columns=[*dict.fromkeys([*runs, "session_id", "launcher"])])
    runs = runs.reindex(columns=[*dict.fromkeys([*runs, *_START_LAYERS.values()])])
    has_session = runs["session_id"].notna() & (runs["session_id"].astype("string") != "")
    keys = [
        runs["launcher"].astype("string").fillna("").replace("", _BARE),
        runs["session_id"].astype("string"),
    ]
    layers = {name: runs[column].astype("float64") for name, column in _START_LAYERS.items()}
    starts = pd.DataFrame(layers)[has_session].groupby([key[has_session] for key in keys]).max()
    points = pd.DataFrame(
        {
            name: spent.reindex(columns=list(phases)).sum(axis=1)
            for name, phases in _POINT_LAYERS.items()
        }
    )
    sums = points[has_session].groupby([key[has_session] for key in keys]).sum()
    return starts.fillna(0.0).join(sums)


def layer_table(by_driver: pd.DataFrame) -> pd.DataFrame:
    """Return the mean seconds, and the share of the wall time, of each layer for each launcher.

    A driver is the process that plans and records a sweep.

    Args:
        by_driver: Seconds of each driver by layer, as `layer_seconds` returns them.

    Returns:
        A row per launcher and layer. Columns: `launcher`, `layer`, `drivers` (number of drivers),
        `seconds` (mean per driver), `share` (share of the layer in the wall time of these drivers),
        and `low` and `high` (ends of the 95% interval of the share, over drivers). With fewer than
        6 drivers, `low` and `high` are NaN.
    """
    rows = []
    for launcher, seconds in by_driver.groupby(level="launcher"):
        plain = seconds.reset_index(drop=True)
        for layer in map(str, plain):
            share = phase_share(plain, [layer])
            rows.append(
                {
                    "launcher": launcher,
                    "layer": layer,
                    "drivers": len(plain),
                    "seconds": plain[layer].mean(),
                    "share": share.value,
                    "low": share.low,
                    "high": share.high,
                }
            )
    return pd.DataFrame(rows)


def _layer_answer(by_driver: pd.DataFrame) -> AnalysisAnswer:
    """State, for each launcher, the share of a driver's wall time that the software stack uses.

    A driver is the process that plans and records a sweep. The software stack is everything around
    the model's own work: the layers queue, launcher, driver, import and store.

    Args:
        by_driver: Seconds of each driver by layer, as `layer_seconds` returns them.
    """
    shares = []
    for launcher, seconds in by_driver.groupby(level="launcher"):
        stack = phase_share(seconds.reset_index(drop=True), STACK_LAYERS)
        if math.isfinite(stack.low):
            share = format_with_interval(stack, format_share)
        else:
            share = (
                f"{format_share(stack.value)} (no interval: fewer than {MINIMUM_POINTS} drivers)"
            )
        shares.append(f"{launcher} {share}")
    return AnalysisAnswer(
        sentence=(
            f"Share of the stack's layers in a driver's wall time, by launcher: "
            f"{'; '.join(shares)}."
        ),
        points=len(by_driver),
        basis="the scatter between drivers",
    )


def _layer_sentences(by_driver: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the layers of the software stack, and one on each launcher's drivers.

    A driver is the process that plans and records a sweep. The sentence on a launcher states the
    number of its drivers and their mean wall time.

    Args:
        by_driver: Seconds of each driver by layer, as `layer_seconds` returns them.
    """
    yield f"The stack's layers are {', '.join(STACK_LAYERS)}."
    for launcher, seconds in by_driver.groupby(level="launcher"):
        mean = seconds.sum(axis=1).mean()
        drivers = counted(len(seconds), "driver")
        yield f"{launcher}: {drivers} took {format_seconds(mean)} each."


def draw_layers(by_driver: pd.DataFrame) -> drawing.Figure:
    """Draw the mean seconds of a driver by layer, as a stacked bar for each launcher.

    A driver is the process that plans and records a sweep.

    Args:
        by_driver: Seconds of each driver by layer, as `layer_seconds` returns them.
    """
    mean = by_driver.groupby(level="launcher").mean()
    counts = by_driver.groupby(level="launcher").size()
    figure, (axes,) = drawing.panels(1, 8.0, 1.4 + 0.5 * len(mean))
    left = np.zeros(len(mean))
    colors = [1, 1, 1, 1, 1, 5, 5, 2, 3]
    for index, (layer, column) in enumerate(mean.items()):
        axes.barh(
            range(len(mean)),
            column,
            left=left,
            label=f"{layer} (stack)" if layer in STACK_LAYERS else str(layer),
            color=drawing.COLORS[colors[index]],
            hatch=_LAYER_HATCHES[index],
            edgecolor="white",
            linewidth=0.6,
            height=0.6,
        )
        left += column.to_numpy()
    names = [f"{name} ({counts[name]})" for name in mean.index]
    drawing.names(axes.yaxis, names)
    axes.set(ylim=(len(mean) - 0.5, -0.5))
    title = "Where the time of a driver goes, by launcher (drivers)"
    drawing.finish(axes, title, "seconds per driver", grid="x")
    drawing.legend(figure)
    return figure


def _sentences(spent: pd.DataFrame, untimed: int) -> Iterator[str]:
    """Yield sentences on the wall time of the points, and on excluded runs.

    Args:
        spent: Seconds of runs: a row per run, a column per phase.
        untimed: Number of runs without phases.
    """
    if spent.empty:
        return
    mean = spent.sum(axis=1).mean()
    stack = phase_share(spent, OVERHEAD_PHASES)
    total = format_seconds(mean * len(spent))
    yield (
        f"{counted(len(spent), 'point')} took {total} of wall time, {format_seconds(mean)} each; "
        f"the stack's own overhead ({' + '.join(OVERHEAD_PHASES)}) takes "
        f"{format_seconds(stack.value * mean)} a point."
    )
    yield from rare_event_caveat(len(spent))
    if untimed:
        yield f"Excluded: {counted(untimed, 'run')} without phases."


def phase_share(spent: pd.DataFrame, phases: Collection[str]) -> Estimate:
    """Estimate the share of the wall time that some phases use together.

    Args:
        spent: Seconds of runs (or drivers), one per row, by phase (or layer), one per column.
        phases: Columns whose seconds are added.

    Returns:
        The share, from 0 to 1, with its 95% interval over the rows. The interval is symmetric in
        log odds, so that it lies between 0 and 1.
    """
    part = spent.reindex(columns=list(phases)).sum(axis=1)
    value, _, high = crossed_ratio(part, spent.sum(axis=1), shared_levels(spent, "point"))
    if not 0 < value < 1:
        return Estimate(value, value, value)
    # The derivative of the logit turns the half-width of the share into log odds.
    half_width = (high - value) / (value * (1 - value))
    center = special.logit(value)
    low_end = float(special.expit(center - half_width))
    high_end = float(special.expit(center + half_width))
    return Estimate(value, low_end, high_end)


class _Style(NamedTuple):
    """Color and hatch of a phase in a stacked bar."""

    color: str
    hatch: str


def draw_phases(spent: pd.DataFrame, runs: pd.DataFrame) -> drawing.Figure:
    """Draw the shares of the phases in the wall time, as a stacked bar for each family.

    Large shares are labeled with their numbers. The end of a bar states the mean seconds of a
    point.

    Args:
        spent: Seconds of runs: a row per run, a column per phase.
        runs: The runs, in the same order as the rows of `spent`.
    """
    family = runs["family"].fillna("(none)")
    counts = family.value_counts()
    mean = spent.groupby(family).mean()
    mean = mean.loc[[name for name in (*families(runs), "(none)") if name in mean.index]]
    total = mean.sum(axis=1)
    shares = mean.div(total.where(total > 0), axis=0).fillna(0.0)
    figure, (axes,) = drawing.panels(1, 8.0, 1.4 + 0.5 * len(mean))
    styles = _phase_styles()
    min_labeled = max(_MIN_LABELED_SHARE, 0.4 / figure.get_figwidth())
    left = np.zeros(len(mean))
    for name, column in shares.items():
        phase = str(name)
        axes.barh(
            range(len(mean)),
            column,
            left=left,
            label=f"{phase} (stack)" if phase in OVERHEAD_PHASES else phase,
            color=styles[phase].color,
            hatch=styles[phase].hatch,
            edgecolor="white",
            linewidth=0.6,
            height=0.6,
        )
        for position, share in enumerate(column):
            if share >= min_labeled:
                _write_share(axes, left[position] + share / 2, position, share)
        left += column.to_numpy()
    for position, seconds in enumerate(total):
        axes.text(1.01, position, f"{seconds:.3g} s a point", va="center", fontsize="small")
    drawing.names(axes.yaxis, [f"{name} ({counts[name]})" for name in mean.index])
    axes.set(ylim=(len(mean) - 0.5, -0.5), xlim=(0, 1.17), xticks=np.linspace(0, 1, 6))
    title = "Where the time of a point goes, by family (points)"
    drawing.finish(axes, title, "share of wall time", shares="x", grid="x")
    drawing.legend(figure)
    return figure


def _phase_styles() -> dict[str, _Style]:
    return {
        phase: _Style(drawing.COLORS[color], hatch)
        for color, hatches in _HATCHES.items()
        for phase, hatch in hatches.items()
    }


def _write_share(axes: drawing.Axes, x: float, y: float, share: float) -> None:
    """Write a share into a bar, on a pale background so that the hatch does not hide it.

    Args:
        axes: Axes of the figure.
        x: Horizontal center of the text.
        y: Vertical center of the text.
        share: The share, from 0 to 1.
    """
    box: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    axes.text(x, y, f"{share:.0%}", ha="center", va="center", fontsize="small", bbox=box)
