"""`python -m paradnn.watch`: a sweep in progress, here or on a cluster, as the tracking store knows it.

It reads the store alone, so it may run on any host that reaches the store, also when the terminal of the sweep is gone.
Ctrl-C ends it; the sweep goes on. `--once` prints what is known now, as does a pipe.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paradnn.config.words import counted, did_you_mean
from paradnn.errors import ConfigError, ParadnnError, StoreError
from paradnn.session.console import standard_output
from paradnn.session.progress import si
from paradnn.store.address import address_of
from paradnn.store.query import Query, Values
from paradnn.store.reader import Reader, open_reader
from paradnn.store.records import Row
from paradnn.store.schema import OWNER
from paradnn.tracking.run_index import Entry, RunIndex

__all__ = ["Progress", "main", "progress_of", "view"]

#: What is read of each point.
_READ: Mapping[Values, Collection[str]] = {
    "tags": ("outcome", OWNER, "reason", "task"),
    "metrics": ("examples_per_second",),
}
_BAR = 60  # characters
_NEWEST, _RUNNING, _COLUMNS = 8, 8, 12  # rows and columns that are shown
_SHARE = 10  # looking takes at most one part in so many of the time
_COLOURS = {"ok": "green", "unavailable": "yellow"}


@dataclass(frozen=True)
class Progress:
    """A sweep as the store shows it at Unix second `now`; `planned` points, None where the sweep does not say.

    `is_abandoned`: no process measures it or would end it.
    """

    sweep: Row
    planned: int | None
    done: Sequence[Row]
    running: Sequence[Row]
    is_abandoned: bool
    now: float

    @property
    def begun(self) -> float:
        """When the sweep began, in Unix seconds."""
        return (self.sweep.run.start_ms or 0) / 1e3

    @property
    def is_running(self) -> bool:
        """Whether the sweep has not ended, as far as the store knows."""
        return self.sweep.run.status == "RUNNING"

    @property
    def left(self) -> float | None:
        """Seconds until its end at the mean rate so far; None while nothing is known of it."""
        if self.planned is None or not self.done or not self.is_running:
            return None
        return (self.now - self.begun) * max(self.planned - len(self.done), 0) / len(self.done)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a sweep until it ends or Ctrl-C; 0, or 2 for wrong input and a store without a sweep."""
    parser = argparse.ArgumentParser(prog="python -m paradnn.watch", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", help="tracking URI; default: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db")
    parser.add_argument("--experiment", default="paradnn", help="MLflow experiment (default: %(default)s)")
    parser.add_argument("--sweep", metavar="ID", help="the sweep_id of a sweep (default: the newest that is running)")
    parser.add_argument("--once", action="store_true", help="print what is known now, and exit")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between looks (default: %(default)g)")
    given = parser.parse_args(arguments)
    console = standard_output()
    try:
        if given.interval <= 0:
            raise ConfigError("--interval", given.interval, "is no time to wait", "give seconds above 0")
        reader = open_reader(address_of(given.store), pooled=True)
        sweep = _find(reader, given.experiment, given.sweep, address_of(given.store).public)
        if given.once or not console.is_terminal:
            console.print(view(progress_of(reader, given.experiment, sweep)))
        else:
            _follow(reader, given.experiment, sweep, console, given.interval)
    except ParadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        pass
    return 0


def _follow(reader: Reader, experiment: str, sweep: Row, console: Console, interval: float) -> None:
    """Draw the sweep again and again until it has ended; its last picture stays."""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            begin = time.monotonic()
            progress = progress_of(reader, experiment, sweep)
            live.update(view(progress), refresh=True)
            if not progress.is_running:
                return
            time.sleep(max(interval, _SHARE * (time.monotonic() - begin)))


def _find(reader: Reader, experiment: str, sweep_id: str | None, where: str) -> Row:
    """The parent run of the sweep that is meant: the newest one that runs, if none is named."""
    if experiment not in reader.experiments():
        held = ", ".join(reader.experiments())
        raise StoreError(f"{where} has no experiment {experiment}, it has {held}: measure first, with paradnn train -m")
    query = Query((experiment,), tags={"kind": ("sweep",)}, unfinished=True, columns={"params": (), "metrics": ()})
    sweeps = sorted(reader.read(query).rows(), key=lambda row: row.run.start_ms or 0)
    if not sweeps:
        raise StoreError(f"{where} has no sweep; start one, such as python -m paradnn.train -m experiment=quick")
    named = {row.tags.get("sweep_id", ""): row for row in sweeps}
    newest = sweeps[-1].tags.get("sweep_id", "")
    if sweep_id is not None:
        if sweep_id not in named:
            hint = did_you_mean(sweep_id, named)
            raise ConfigError("--sweep", sweep_id, f"{where} has no such sweep", f"{hint}the newest is {newest}")
        return named[sweep_id]
    running = [row for row in sweeps if row.run.status == "RUNNING"]
    if not running:
        ended = _clock((sweeps[-1].run.end_ms or 0) / 1e3)
        raise StoreError(f"no sweep is running in {where}; the newest ended {ended}: --sweep {newest} shows it")
    gone = _abandoned(reader, experiment)
    return ([row for row in running if row.run.run_id not in gone] or running)[-1]


def progress_of(reader: Reader, experiment: str, sweep: Row) -> Progress:
    """How a sweep stands now, given its parent run as it was at any time."""
    query = Query((experiment,), run_id=sweep.run.run_id, unfinished=True, columns={"params": (), "metrics": ()})
    sweep = next(reader.read(query).rows(), sweep)
    tags = {"sweep_id": (sweep.tags["sweep_id"],), "kind": ("point",)}
    points = list(reader.read(Query((experiment,), tags=tags, unfinished=True, columns=_READ)).rows())
    done = sorted((row for row in points if "outcome" in row.tags), key=lambda row: row.run.end_ms or 0)
    gone = _abandoned(reader, experiment)
    claimed = [row for row in points if row.run.status == "RUNNING" and "outcome" not in row.tags]
    running = [row for row in claimed if row.run.run_id not in gone]
    return Progress(sweep, _planned(sweep), done, running, not running and sweep.run.run_id in gone, time.time())


def _abandoned(reader: Reader, experiment: str) -> set[str]:
    """The runs that no process will finish."""
    return {entry.run_id for entry in RunIndex(reader, experiment).running() if entry.is_abandoned()}


def _planned(sweep: Row) -> int | None:
    """How many points are to be measured: those that the sweep names, less what its tasks found in the store."""
    if "planned_points" not in sweep.tags:
        return None
    reports = [json.loads(text) for name, text in sweep.tags.items() if name.startswith("task.")]
    return int(sweep.tags["planned_points"]) - sum(sum(report.get("skipped", {}).values()) for report in reports)


def view(progress: Progress) -> RenderableType:
    """All of it, from the whole sweep to the newest points."""
    parts: list[RenderableType] = [*_head(progress)]
    parts += [Text(), _running_table(progress)] if progress.running else []
    parts += [part for each in _maps(progress.done) for part in (Text(), each)]
    parts += [Text(), _newest(progress.done)] if progress.done else []
    return Group(*parts)


def _head(progress: Progress) -> list[RenderableType]:
    """What sweep it is, how far it is and when it will end."""
    done, planned = len(progress.done), progress.planned
    counts = Counter(row.tags["outcome"] for row in progress.done)
    state = [f"{count:,} {outcome}" for outcome, count in counts.most_common()]
    state += [f"{len(progress.running):,} running"] if progress.running else []
    begun = f"began {_clock(progress.begun)}"
    lines: list[RenderableType] = [
        Text(f"{progress.sweep.run.run_name}: sweep {progress.sweep.tags['sweep_id']}, {begun}", style="bold"),
        Text(f"{done:,} of {planned:,} points" if planned else counted(done, "point")),
    ]
    if state:
        lines[-1] = Text(f"{lines[-1]}: {', '.join(state)}")
    if planned:
        filled = min(_BAR, _BAR * done // planned)
        lines.append(Text("[" + "#" * filled + "." * (_BAR - filled) + "]"))
    lines.append(Text(_expectation(progress)))
    return lines


def _expectation(progress: Progress) -> str:
    """When it ends or how it ended, as a sentence."""
    if not progress.is_running:
        status, end = progress.sweep.run.status or "", progress.sweep.run.end_ms
        how = {"KILLED": "interrupted", "FAILED": "ended with points missing"}.get(status, "finished")
        return f"{how} {_clock((end or 0) / 1e3)}, after {_span((end or 0) / 1e3 - progress.begun)}"
    if progress.is_abandoned:
        return "its driver is gone: the same command goes on where it stopped"
    passed = f"running for {_span(progress.now - progress.begun)}"
    if progress.left is None:
        return f"{passed}, no point has ended yet" if not progress.done else passed
    return f"{passed}, expected end {_clock(progress.now + progress.left)}, {_span(progress.left)} from now"


def _running_table(progress: Progress) -> Table:
    table = _table("running", "where", "for")
    for row in progress.running[:_RUNNING]:
        owner = json.loads(Entry(row.run.run_id, "RUNNING", row.tags).owner or "{}")
        where = f"{owner.get('host', '?')}, process {owner.get('pid', '?')}"
        where += f", task {row.tags['task']}" if "task" in row.tags else ""
        table.add_row(row.run.run_name, where, _span(progress.now - (row.run.start_ms or 0) / 1e3))
    if len(progress.running) > _RUNNING:
        table.add_row(f"and {len(progress.running) - _RUNNING:,} more")
    return table


def _newest(done: Sequence[Row]) -> Table:
    table = _table("newest points", "outcome", "examples/s")
    for row in reversed(done[-_NEWEST:]):
        outcome = row.tags["outcome"]
        speed = row.metrics.get("examples_per_second")
        said = (
            f"{speed:,.1f}"
            if speed is not None
            else Text(row.tags.get("reason", ""), overflow="ellipsis", no_wrap=True)
        )
        table.add_row(row.run.run_name, Text(outcome, _COLOURS.get(outcome, "red")), said)
    return table


def _maps(done: Sequence[Row]) -> list[Table]:
    """For each family examples/s over its two settings with the most values."""
    tables = []
    for family in dict.fromkeys(row.params.get("model.name", "") for row in done):
        rows = [row for row in done if row.params.get("model.name") == family]
        names = sorted({name for row in rows for name in row.params})
        values = {name: sorted({row.params[name] for row in rows if name in row.params}, key=_rank) for name in names}
        axes = sorted((name for name in names if len(values[name]) > 1), key=lambda name: -len(values[name]))[:2]
        if len(axes) == 2:
            across, down = sorted(axes, key=lambda name: name != "batch_size")
            tables.append(_map(family, rows, (across, values[across]), (down, values[down])))
    return tables


def _map(family: str, rows: Sequence[Row], across: tuple[str, list[str]], down: tuple[str, list[str]]) -> Table:
    """Medians of what was measured in each cell; where nothing was, the commonest outcome."""
    shown = across[1][-_COLUMNS:]
    table = _table(f"{family}, median examples/s: {down[0]}, {across[0]} across", *shown)
    for value in down[1]:
        cells = []
        for place in shown:
            here = [row for row in rows if (row.params.get(down[0]), row.params.get(across[0])) == (value, place)]
            speeds = [row.metrics["examples_per_second"] for row in here if "examples_per_second" in row.metrics]
            failed = Counter(row.tags["outcome"] for row in here).most_common(1)
            cells.append(si(statistics.median(speeds)).strip() if speeds else failed[0][0] if failed else "")
        table.add_row(value, *cells)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if name not in ("outcome", "where") else "left", overflow="ellipsis")
    return table


def _rank(text: str) -> tuple[float, str]:
    """Numbers in their order, before texts."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def _clock(seconds: float) -> str:
    """A time of day here, with the date where it is not today."""
    then = datetime.fromtimestamp(seconds)
    return then.strftime("%H:%M:%S" if then.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S")


def _span(seconds: float) -> str:
    return str(timedelta(seconds=max(round(seconds), 0)))


if __name__ == "__main__":
    sys.exit(main())
