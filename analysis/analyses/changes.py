"""`changes`: where the level of a metric changed from session to session, by how much, and between
which commits.

Change points are those of E-divisive means (Matteson and James, J. American Statistical Association
109, 2014) in the logarithm, with permutation tests and Holm over all series. A session is one
value: what it does to all of its runs is its noise. With --history of paradnn gate it is about the
ratio to the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.analyses.software import order
from analysis.lazy import np, pd
from analysis.options import Options, column_option, option
from analysis.registry import analysis
from analysis.result import Result, require_runs
from analysis.store.frame import is_ok
from paradnn.core.errors import ConfigError, DataError, NotEnoughData
from paradnn.statistics.contrast import adjusted
from paradnn.statistics.dependence import Component, combined
from paradnn.statistics.sessions import sessions_of
from paradnn.store.files import read_json

# sessions of a series at least, and on each side of a change
_FEWEST = 8
_SIDE = 3
_LEVEL = 0.05
_PERMUTATIONS = 999
_COMMITS = ("mlflow.source.git.commit", "git_commit", "start_time")
_LARGEST = 32 * 2**20  # bytes of a history that are read
_COLUMNS = ["series", "sessions", "before", "after", "ratio", "low", "high", "p"]


@dataclass(frozen=True, kw_only=True)
class ChangesOptions(Options):
    """Which level, and what it may change with."""

    metric: str = column_option("examples_per_second", "any metric above 0", "M")
    by: str | None = column_option(
        None, "a commit, version or start_time that names sessions (default: commit)"
    )
    history: str | None = option(
        None, "lines of paradnn gate --history in place of runs", metavar="FILE"
    )


def _history(options: ChangesOptions) -> pd.DataFrame | None:
    """The gates of --history as runs, each a session; None without it."""
    if options.history is None:
        return None
    rows: list[dict[str, Any]] = []
    with Path(options.history).open("rb") as file:
        for number, line in enumerate(file.read(_LARGEST).splitlines(), start=1):
            try:
                gate = read_json(line)
                said = {
                    name: str(gate[name])
                    for name in ("commit", "date", "machine", "command", "metric", "base")
                }
                rows.append(
                    said
                    | {options.metric: float(gate["ratio"] or math.nan), "run_id": f"gate {number}"}
                )
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{options.history}, line {number}: is not of paradnn gate --history"
                ) from None
    if not rows:
        raise NotEnoughData(f"{options.history} holds no gate")
    frame = pd.DataFrame(rows).rename(columns={"commit": "git_commit", "machine": "device"})
    name = frame["command"] + " against " + frame["base"] + ", " + frame["metric"]
    time = pd.to_datetime(
        frame["date"], utc=True, errors="coerce", format="ISO8601"
    ).dt.tz_localize(None)
    return frame.assign(run_name=name, point_id=name, start_time=time, sweep_id=frame["run_id"])


@analysis(
    ChangesOptions,
    summary="where the level of a metric changed, by how much, between which commits",
    example="python -m analysis changes --history gates.jsonl",
    load_frame=_history,
    has_figure=False,
)
def changes(frame: pd.DataFrame, options: ChangesOptions) -> Result:
    """A row for each change: `series`, `sessions` of it, names of those `before` and `after`,
    `ratio` of their levels with its 95% interval (`low`, `high`: Welch's, of this place), and `p`,
    held over all series (Holm).

    NotEnoughData where no series has enough sessions; ConfigError for a column that is not there.
    """
    require_runs(frame)
    for flag, name in (("--metric", options.metric), ("--by", options.by)):
        if name is not None and name not in frame:
            raise ConfigError(
                flag, name, "these runs have no such column", "see python -m analysis export"
            )
    by = options.by or next(
        name for name in _COMMITS if name in frame and frame[name].notna().any()
    )
    every = list(_series(frame, options.metric, by))
    series = [(name, rows) for name, rows in every if len(rows) >= _FEWEST]
    if not series:
        most = max((len(rows) for _, rows in every), default=0)
        raise NotEnoughData(
            f"no series has {_FEWEST} sessions, the longest has {most}; measure the same points again"
        )
    found = change_points(series)
    said = f"Looked at: {options.metric} of {len(series)} series by {by}; {len(every) - len(series)} have few sessions."
    return Result(
        numbers=pd.DataFrame(found, columns=_COLUMNS),
        sentences=[
            *(map(_describe, found) if found else ["No change of the level is shown."]),
            said,
        ],
        sources=tuple(frame["run_id"]) if options.history is None else (),
    )


def change_points(series: Sequence[tuple[str, pd.DataFrame]]) -> list[dict[str, Any]]:
    """The rows of `changes`, of series by name: frames of sessions with their log `value` and
    `label`.
    """
    draws = max(_PERMUTATIONS, 40 * len(series))
    alone = np.array([_split(rows["value"].to_numpy(), draws)[1] for _, rows in series])
    found: list[dict[str, Any]] = []
    for (name, rows), factor in zip(series, adjusted(alone) / alone, strict=True):
        logs = rows["value"].to_numpy()
        labels = list(rows["label"])
        places = sorted(_places(logs, 0, draws, factor))
        ends = [0, *(place for place, _ in places), len(logs)]
        for (place, p), begin, end in zip(places, ends, ends[2:], strict=False):
            row = {
                "series": name,
                "sessions": len(logs),
                "before": labels[place - 1],
                "after": labels[place],
            }
            found.append(row | _ratio(logs[begin:place], logs[place:end]) | {"p": p})
    return found


def _describe(row: Mapping[str, Any]) -> str:
    change, low, high = (f"{100 * (row[name] - 1):+.2g}%" for name in ("ratio", "low", "high"))
    where = f"between {row['before']} and {row['after']}"
    return f"{row['series']}: {change} (95% interval {low} to {high}) {where}, p = {row['p']:.2g}."


def _series(frame: pd.DataFrame, metric: str, by: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name and sessions of each series in their order, a row each: the mean log `value` and the
    `label`.
    """
    own = frame.assign(
        session=sessions_of(frame), label=frame[by].astype("string").fillna("unknown")
    )
    usable = own[metric].between(0, math.inf, inclusive="neither") & own["session"].notna()
    own = own[usable & (is_ok(own) if "outcome" in own else True)]
    keys = [name for name in ("point_id", "device", "host") if name in own]
    for _, rows in own.groupby(keys, dropna=False, sort=False):
        sessions = rows.assign(value=np.log(rows[metric].astype(float))).groupby(
            "session", sort=False
        )
        found = sessions.agg({"value": "mean", "label": "first", "start_time": "min"}).sort_values(
            "start_time"
        )
        if by.startswith("version."):
            known = order(set(found["label"]))
            found = found.iloc[np.argsort(list(map(known.index, found["label"])), kind="stable")]
        yield (
            " on ".join(str(rows[each].iloc[0]) for each in ("run_name", "device") if each in rows),
            found,
        )


def _split(logs: np.ndarray, draws: int) -> tuple[int, float]:
    """The place that divides values (n,) best, and its p among permutations of them."""
    random = np.random.default_rng(len(logs))
    above = 0
    (place,), (best,) = _divergence(logs[None])
    size = max(1, 4_000_000 // len(logs) ** 2)
    for begin in range(0, draws, size):
        rows = np.tile(logs, (min(size, draws - begin), 1))
        above += int((_divergence(random.permuted(rows, axis=1))[1] >= best * (1 - 1e-9)).sum())
    return int(place), (1 + above) / (1 + draws)


def _divergence(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row (rows, n) the place that divides it best, and the scaled energy distance of what
    lies before it, n values, and m values behind it, as many as differ most: n m / (n + m) (2 E|X -
    Y| - E|X - X'| - E|Y - Y'|).
    """
    sums = np.abs(rows[:, :, None] - rows[:, None, :]).cumsum(1).cumsum(2)
    n, end = np.triu_indices(rows.shape[1] - 2 * _SIDE + 1)
    n, end, m = n + _SIDE, end + 2 * _SIDE, end + _SIDE - n
    inner = sums[:, n - 1, n - 1]
    both = sums[:, n - 1, end - 1]
    within = inner / (n * (n - 1)) + (sums[:, end - 1, end - 1] - 2 * both + inner) / (m * (m - 1))
    found = n * m / (n + m) * (2 * (both - inner) / (n * m) - within)
    return n[found.argmax(axis=1)], found.max(axis=1)


def _places(logs: np.ndarray, begin: int, draws: int, factor: float) -> Iterator[tuple[int, float]]:
    """The places where the level of values changes, and p, which is `factor` times that of the
    series alone.
    """
    place, p = _split(logs, draws) if len(logs) >= 2 * _SIDE else (0, 1.0)
    if p * factor <= _LEVEL:
        yield begin + place, p * factor
        yield from _places(logs[:place], begin, draws, factor)
        yield from _places(logs[place:], begin + place, draws, factor)


def _ratio(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    mean = after.mean() - before.mean()
    half = combined(
        [Component(side.var(ddof=1) / len(side), len(side) - 1) for side in (before, after)]
    ).reach
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}
