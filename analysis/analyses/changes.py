"""`changes`: find changes in the level of a metric, with their sizes and the commits around them.

E-divisive means (Matteson and James, J. American Statistical Association 109, 2014) find the change
points of the metric's logarithms. Permutation tests decide whether a change is significant. Their
p-values are corrected for the number of series by Holm's rule. All runs of a session count as one
value, because a session effect shifts all of them together and is noise here. With --history, the
values are the ratios of commits to their base, as paradnn gate recorded them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.format import format_with_interval
from analysis.labels import label
from analysis.lazy import np, pd
from analysis.options import Options, column_option, option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Result, require_runs
from analysis.store.frame import is_ok
from analysis.versions import sort_versions
from paradnn.core.errors import ConfigError, DataError, InsufficientData
from paradnn.statistics.decision import adjust_p_values
from paradnn.statistics.dependence import Component, sum_components
from paradnn.statistics.sessions import assign_sessions
from paradnn.store.files import read_json

#: Minimum number of sessions in a series.
_MINIMUM_SESSIONS = 8
#: Minimum number of sessions before and after a change.
_MINIMUM_SEGMENT = 3
#: Probability of at least one false change over all series.
_FALSE_ALARM_RATE = 0.05
_PERMUTATIONS = 999
#: Maximum number of array elements in a batch of permutations.
_BATCH_ELEMENTS = 4_000_000
#: Default columns for the label of a session; the first that has a value is used.
_LABEL_COLUMNS = ("mlflow.source.git.commit", "git_commit", "start_time")
#: Maximum number of bytes read from a history.
_MAXIMUM_HISTORY_BYTES = 32 * 2**20
_GATE_FIELDS = ("commit", "date", "machine", "command", "metric", "base")
_COLUMNS = ["series", "sessions", "before", "after", "ratio", "low", "high", "p"]


@dataclass(frozen=True, kw_only=True)
class ChangesOptions(Options):
    """Options of the command `changes`: the metric, the labels of sessions, and the history."""

    metric: str = column_option("examples_per_second", "metric with positive values", "M")
    by: str | None = column_option(
        None, "column that labels sessions, such as a version or start_time (default: the commit)"
    )
    history: str | None = option(
        None, "file of paradnn gate --history to read instead of runs", metavar="FILE"
    )


def _read_history(options: ChangesOptions) -> pd.DataFrame | None:
    """Read the gate results of the option --history as runs; return None if it is not set.

    A gate result is the ratio of a metric between a commit and its base, both measured by `paradnn
    gate` on one machine. Each gate result is one session. A series consists of the gates of the
    same command, metric and base. The machine may differ within a series: each gate runs both
    commits on one machine, so ratios from different machines are comparable.

    Args:
        options: The options of the command: the file, and the name of the metric's column.

    Raises:
        DataError: If a line is not from `paradnn gate --history`.
        InsufficientData: If the file has no line.
    """
    if options.history is None:
        return None
    with Path(options.history).open("rb") as file:
        lines = file.read(_MAXIMUM_HISTORY_BYTES).splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(_parse_gate(line, options.metric))
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{options.history}: line {number} is not a gate result; "
                "give a file that 'paradnn gate --history FILE' wrote"
            ) from None
    if not rows:
        raise InsufficientData(
            f"{options.history} has no gate results; "
            "'paradnn gate --history FILE' appends a result to a file"
        )
    frame = pd.DataFrame(rows).rename(columns={"commit": "git_commit"})
    series = frame["command"] + " against " + frame["base"] + ", " + frame["metric"]
    times = pd.to_datetime(frame["date"], utc=True, errors="coerce", format="ISO8601")
    gates = [f"gate {number}" for number in range(1, len(frame) + 1)]
    return frame.assign(
        run_name=series,
        point_id=series,
        start_time=times.dt.tz_localize(None),
        run_id=gates,
        sweep_id=gates,
    )


def _parse_gate(line: bytes, metric: str) -> dict[str, Any]:
    """Parse one line of a history file that `paradnn gate --history` writes.

    Args:
        line: The line, in JSON.
        metric: Name of the returned field that receives the ratio of the commit to its base.

    Returns:
        The fields of the gate. The ratio is NaN if the gate failed.
    """
    gate = read_json(line)
    fields: dict[str, Any] = {name: str(gate[name]) for name in _GATE_FIELDS}
    ratio = gate["ratio"]
    # A gate that failed has no ratio.
    fields[metric] = float(ratio) if ratio else math.nan
    return fields


@analysis(
    ChangesOptions,
    summary="changes in the level of a metric: when, by how much, and between which commits",
    example="python -m analysis changes --history gates.jsonl",
    load_frame=_read_history,
    has_figure=False,
)
def changes(frame: pd.DataFrame, options: ChangesOptions) -> Result:
    """Find where the level of a metric changed.

    A series is the sequence of values of one point on one device and host over time, one value per
    measurement session. A point is a combination of hyperparameter values.

    Args:
        frame: Runs, one per row, or the gate results of the option `history`.
        options: The metric, the column that labels sessions, and the history file.

    Returns:
        The result. Its table has a row per change:

        - `series`: the name of the series, and `sessions`: the number of its sessions.
        - `before`, `after`: the labels of the last session before the change and the first after
          it.
        - `ratio`: the level after the change over the level before it, with Welch's 95% interval
          `low` to `high`. The interval takes the position of the change as given.
        - `p`: the p-value, adjusted for the number of series by Holm's rule.

    Raises:
        InsufficientData: If there are no runs, or no series has at least 8 sessions.
        ConfigError: If the runs lack a column that an option names.
    """
    require_runs(frame)
    for flag, name in (("--metric", options.metric), ("--by", options.by)):
        if name is not None and name not in frame:
            raise ConfigError(
                flag,
                name,
                "these runs have no such column",
                "list all columns with python -m analysis export runs.csv",
            )
    label_column = options.by or _default_label_column(frame)
    every_series = list(_series(frame, options.metric, label_column))
    series = [(name, rows) for name, rows in every_series if len(rows) >= _MINIMUM_SESSIONS]
    if not series:
        longest = max((len(rows) for _, rows in every_series), default=0)
        if options.history is None:
            remedy = "measure the points again by repeating the sweep with resume=false"
        else:
            remedy = "append further results with 'paradnn gate --history FILE'"
        raise InsufficientData(
            f"a series needs {_MINIMUM_SESSIONS} sessions, but the longest series has {longest}",
            remedy=remedy,
        )
    rows = change_points(series)
    sentences = [_describe(row) for row in rows]
    scope = f"Examined: {options.metric} of {len(series)} series by {label_column}."
    short = len(every_series) - len(series)
    if short == 1:
        scope += " 1 more has too few sessions."
    elif short:
        scope += f" {short} more have too few sessions."
    sentences.append(scope)
    if options.history is not None and frame["machine"].nunique() > 1:
        sentences.append(
            f"The gates ran on {frame['machine'].nunique()} machines; each ratio compares both "
            "sides on one machine."
        )
    sources: tuple[str, ...] = ()
    if options.history is None:
        sources = tuple(frame["run_id"])
    return Result(
        numbers=pd.DataFrame(rows, columns=_COLUMNS),
        answer=_answer(rows, options.metric, len(series)),
        sentences=sentences,
        sources=sources,
    )


def _default_label_column(frame: pd.DataFrame) -> str:
    """Return the column that labels sessions by default: the commit, else the start time.

    A column without any value is skipped.

    Args:
        frame: Runs, one per row.
    """
    return next(name for name in _LABEL_COLUMNS if name in frame and frame[name].notna().any())


def change_points(series: Sequence[tuple[str, pd.DataFrame]]) -> list[dict[str, Any]]:
    """Find the change points of several series and test them together.

    Args:
        series: Pairs of the name of a series and its sessions in chronological order. A frame of
            sessions has the columns `value`, the mean logarithm of the metric, and `label`.

    Returns:
        The changes, one dictionary per row of the table that `changes` returns.
    """
    draws = max(_PERMUTATIONS, 40 * len(series))
    p_values = np.array([_best_split(rows["value"].to_numpy(), draws)[1] for _, rows in series])
    holm_factors = adjust_p_values(p_values) / p_values
    found: list[dict[str, Any]] = []
    for (name, rows), factor in zip(series, holm_factors, strict=True):
        logs = rows["value"].to_numpy()
        labels = list(rows["label"])
        splits = sorted(_splits(logs, 0, draws, factor))
        ends = [0, *(position for position, _ in splits), len(logs)]
        for (position, p), begin, end in zip(splits, ends, ends[2:], strict=False):
            row: dict[str, Any] = {
                "series": name,
                "sessions": len(logs),
                "before": labels[position - 1],
                "after": labels[position],
            }
            row |= _level_ratio(logs[begin:position], logs[position:end])
            row["p"] = p
            found.append(row)
    return found


def _answer(rows: Sequence[Mapping[str, Any]], metric: str, series: int) -> AnalysisAnswer:
    """State the largest change, and the number of changes.

    Args:
        rows: The changes that `change_points` returns.
        metric: Name of the metric.
        series: Number of series.
    """
    name = label(metric)
    scope = f"{series:,} series" if series > 1 else "the series"
    if not rows:
        sentence = f"No change of the {name} is shown in {scope}."
        return AnalysisAnswer(sentence=sentence, points=series)
    largest = max(rows, key=lambda row: abs(math.log(row["ratio"])))
    ends = (largest["ratio"], largest["low"], largest["high"])
    change = format_with_interval(ends, lambda ratio: f"{100 * (ratio - 1):+.2g}%")
    where = f"between {largest['before']} and {largest['after']} ({largest['series']})"
    text = f"The {name} changed by {change} {where}"
    if len(rows) > 1:
        text += f", the largest of {len(rows):,} changes in {scope}"
    return AnalysisAnswer(sentence=f"{text}.", points=series, basis="the scatter between sessions")


def _describe(row: Mapping[str, Any]) -> str:
    change, low, high = (f"{100 * (row[name] - 1):+.2g}%" for name in ("ratio", "low", "high"))
    where = f"between {row['before']} and {row['after']}"
    return f"{row['series']}: {change} (95% interval {low} to {high}) {where}, p = {row['p']:.2g}."


def _series(
    frame: pd.DataFrame, metric: str, label_column: str
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the sessions of each series.

    A series is the sequence of values of one point on one device and host.

    Args:
        frame: Runs, one per row.
        metric: Column of the metric. Runs without a positive finite value are ignored.
        label_column: Column whose values label the sessions.

    Yields:
        The name of a series, and a frame with a row per session: the mean logarithm of the metric
            (`value`), the `label` and the `start_time`. Sessions are in the order of their start
            or, if the label is a version, of their versions.
    """
    runs = frame.assign(
        session=assign_sessions(frame), label=frame[label_column].astype("string").fillna("unknown")
    )
    usable = runs[metric].between(0, math.inf, inclusive="neither") & runs["session"].notna()
    if "outcome" in runs:
        usable &= is_ok(runs)
    runs = runs[usable]
    runs = runs.assign(value=np.log(runs[metric].astype(float)))
    keys = [name for name in ("point_id", "device", "host") if name in runs]
    for _, rows in runs.groupby(keys, dropna=False, sort=False):
        sessions = rows.groupby("session", sort=False).agg(
            {"value": "mean", "label": "first", "start_time": "min"}
        )
        sessions = sessions.sort_values("start_time")
        if label_column.startswith("version."):
            versions = sort_versions(set(sessions["label"]))
            ranks = [versions.index(label) for label in sessions["label"]]
            sessions = sessions.iloc[np.argsort(ranks, kind="stable")]
        names = [str(rows[name].iloc[0]) for name in ("run_name", "device") if name in rows]
        yield " on ".join(names), sessions


def _best_split(logs: np.ndarray, draws: int) -> tuple[int, float]:
    """Find the best position of a change in a series, and test it by permutations.

    Args:
        logs: (n,) logarithms of the metric, one per session.
        draws: Number of random permutations.

    Returns:
        The number of values before the change, and the p-value of the change.
    """
    random = np.random.default_rng(len(logs))
    (position,), (best,) = _divergence(logs[None])
    batch = max(1, _BATCH_ELEMENTS // len(logs) ** 2)
    at_least_as_large = 0
    for begin in range(0, draws, batch):
        rows = np.tile(logs, (min(batch, draws - begin), 1))
        _, divergences = _divergence(random.permuted(rows, axis=1))
        # The tolerance absorbs rounding: a permutation may repeat the observed order.
        at_least_as_large += int((divergences >= best * (1 - 1e-9)).sum())
    return int(position), (1 + at_least_as_large) / (1 + draws)


def _divergence(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the split of each row with the largest scaled energy distance.

    A split compares the first n values X of a row with the next m values Y. The scaled distance is
    n m / (n + m) (2 E|X - Y| - E|X - X'| - E|Y - Y'|), where X' and Y' are independent copies of X
    and Y. It is maximized over n and m.

    Args:
        rows: (rows, length) series of values, one per row.

    Returns:
        The position n of the split (rows,) and its distance (rows,).
    """
    sums = np.abs(rows[:, :, None] - rows[:, None, :]).cumsum(1).cumsum(2)
    first, last = np.triu_indices(rows.shape[1] - 2 * _MINIMUM_SEGMENT + 1)
    n = first + _MINIMUM_SEGMENT
    end = last + 2 * _MINIMUM_SEGMENT
    m = end - n
    inner = sums[:, n - 1, n - 1]
    both = sums[:, n - 1, end - 1]
    outer = sums[:, end - 1, end - 1]
    within_x = inner / (n * (n - 1))
    within_y = (outer - 2 * both + inner) / (m * (m - 1))
    between = 2 * (both - inner) / (n * m)
    distances = n * m / (n + m) * (between - (within_x + within_y))
    return n[distances.argmax(axis=1)], distances.max(axis=1)


def _splits(
    logs: np.ndarray, begin: int, draws: int, holm_factor: float
) -> Iterator[tuple[int, float]]:
    """Yield the significant changes of a segment, found by recursive bisection.

    Args:
        logs: (n,) logarithms of the metric in the segment, one per session.
        begin: Position of the first value of the segment in the series.
        draws: Number of random permutations of each test.
        holm_factor: Factor on the p-values that corrects for the number of series.

    Yields:
        The position of a change in the series, and its adjusted p-value.
    """
    if len(logs) < 2 * _MINIMUM_SEGMENT:
        return
    position, p = _best_split(logs, draws)
    if p * holm_factor > _FALSE_ALARM_RATE:
        return
    yield begin + position, p * holm_factor
    yield from _splits(logs[:position], begin, draws, holm_factor)
    yield from _splits(logs[position:], begin + position, draws, holm_factor)


def _level_ratio(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Return the ratio of the level after a change to the level before it.

    Args:
        before: (n,) logarithms of the values before the change.
        after: (m,) logarithms of the values after the change.

    Returns:
        `ratio`, with Welch's 95% interval from `low` to `high`.
    """
    mean = after.mean() - before.mean()
    variances = [Component(side.var(ddof=1) / len(side), len(side) - 1) for side in (before, after)]
    half = sum_components(variances).half_width
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}
