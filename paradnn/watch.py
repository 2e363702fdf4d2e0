"""`python -m paradnn.watch`: show the progress of a running sweep, from the tracking store alone.

The command works on any host that can reach the store, even if the sweep's terminal is closed.
Ctrl-C ends the display, and the sweep continues. With `--once`, or if the output is not a terminal,
the command prints the current state and exits.
"""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paradnn.cli.console import standard_output
from paradnn.cli.parser import Parser, number
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError, StoreError
from paradnn.core.words import counted, did_you_mean, rounded
from paradnn.store.address import address_of
from paradnn.store.claims import Entry, RunIndex, leases_in
from paradnn.store.leases import Owner, no_point_is_left, planned_points
from paradnn.store.reader import Reader, open_reader
from paradnn.store.runs import OWNER, Query, Row, Values

#: Values to read per point.
_COLUMNS: Mapping[Values, Collection[str]] = {
    "params": (),
    "tags": ("outcome", OWNER, "reason"),
    "metrics": ("examples_per_second",),
}
_MAX_ROWS = 8  # maximum number of rows per section of the table
_PAUSE_FACTOR = 10  # minimum pause between two reads, as a multiple of the duration of a read
_COLORS = {"ok": "green", "unavailable": "yellow"}


@dataclass(frozen=True)
class Progress:
    """State of a sweep at one time, according to the tracking store.

    A point is one configuration of the sweep; each point is a run below the sweep's parent run.

    Attributes:
        sweep: Parent run of the sweep.
        planned: Number of planned points; None if the sweep does not record it.
        done: Points with an outcome, in the order in which they ended.
        running: Points that a process is measuring.
        is_abandoned: Whether the sweep can make no progress: no process measures its points, and no
            driver is left to end the sweep.
        now: Time at which the state was read, in Unix seconds.
    """

    sweep: Row
    planned: int | None
    done: Sequence[Row]
    running: Sequence[Row]
    is_abandoned: bool
    now: float

    @property
    def begun(self) -> float:
        """Start of the sweep in Unix seconds."""
        return (self.sweep.run.start_ms or 0) / 1e3

    @property
    def is_running(self) -> bool:
        """Whether the parent run has not ended."""
        return self.sweep.run.status == "RUNNING"

    @property
    def left(self) -> float | None:
        """Expected seconds until the end of the sweep, from its mean rate; None if unknown."""
        if self.planned is None or not self.done or not self.is_running:
            return None
        return (self.now - self.begun) * max(self.planned - len(self.done), 0) / len(self.done)


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn watch`."""
    parser = Parser("python -m paradnn.watch", __doc__)
    parser.add_store()
    parser.add_argument(
        "--sweep",
        metavar="ID",
        help="the sweep_id of a sweep (default: the newest running one)",
    )
    parser.add_argument("--once", action="store_true", help="print the current state and exit")
    text = "seconds between updates (default: %(default)g)"
    parser.add_argument("--interval", type=number("--interval"), default=5.0, help=text)
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Show the progress of a sweep until it ends or Ctrl-C is pressed.

    Args:
        arguments: The words of the command line; None for those of this process.

    Returns:
        The exit code: 0, or 2 for invalid input or a store without a sweep.
    """
    given = make_parser().parse_args(arguments)
    console = standard_output()
    experiment = given.experiment
    address = address_of(given.store)
    with contextlib.suppress(KeyboardInterrupt):
        reader = open_reader(address, pooled=True)
        sweep = _find(reader, experiment, given.sweep, address.public)
        if given.once or not console.is_terminal:
            console.print(view(progress_of(reader, experiment, sweep)))
            return 0
        with Live(
            console=console, auto_refresh=False, vertical_overflow="crop"
        ) as live:  # keeps its last display
            while True:
                begin = time.monotonic()
                progress = progress_of(reader, experiment, sweep)
                live.update(view(progress), refresh=True)
                if not progress.is_running:
                    break
                time.sleep(max(given.interval, _PAUSE_FACTOR * (time.monotonic() - begin)))
    return 0


def _find(reader: Reader, experiment: str, sweep_id: str | None, where: str) -> Row:
    """Return the parent run of a sweep.

    Args:
        reader: Reads the store.
        experiment: Name of the MLflow experiment of the sweep.
        sweep_id: Id of the sweep; None for the newest running sweep.
        where: Address of the store, for error messages.

    Raises:
        StoreError: If the store has no such experiment or no running sweep.
        ConfigError: If the named sweep does not exist.
    """
    if experiment not in reader.experiments():
        names = ", ".join(reader.experiments()) or "none"
        raise StoreError(
            f"{where} has no experiment {experiment} (existing: {names}); "
            "name one with --experiment, or measure first, with paradnn train -m"
        )
    sweeps = sorted(
        reader.read(_query(experiment, {"kind": ("sweep",)})), key=lambda row: row.run.start_ms or 0
    )
    if not sweeps:
        raise StoreError(
            f"{where} has no sweep; start one, such as python -m paradnn.train -m experiment=quick"
        )
    named = {row.tags.get("sweep_id", ""): row for row in sweeps}
    newest = sweeps[-1].tags.get("sweep_id", "")
    if sweep_id is not None:
        if sweep_id not in named:
            hint = did_you_mean(sweep_id, named)
            raise ConfigError(
                "--sweep", sweep_id, f"{where} has no such sweep", f"{hint}the newest is {newest}"
            )
        return named[sweep_id]
    running = [row for row in sweeps if row.run.status == "RUNNING"]
    if not running:
        ended = _clock((sweeps[-1].run.end_ms or 0) / 1e3)
        raise StoreError(
            f"no sweep is running in {where}, and the newest ended {ended}; "
            f"show it with --sweep {newest}"
        )
    abandoned = _abandoned_ids(reader, experiment)
    return ([row for row in running if row.run.run_id not in abandoned] or running)[-1]


def _query(
    experiment: str, tags: Mapping[str, Collection[str]], run_id: str | None = None
) -> Query:
    return Query(
        (experiment,),
        tags=tags,
        run_id=run_id,
        unfinished=True,
        columns={"params": (), "metrics": ()},
    )


def progress_of(reader: Reader, experiment: str, sweep: Row) -> Progress:
    """Read the current state of a sweep from the tracking store.

    Args:
        reader: Reads the store.
        experiment: Name of the MLflow experiment of the sweep.
        sweep: The parent run of the sweep. It is read again.
    """
    sweep = next(iter(reader.read(_query(experiment, {}, sweep.run.run_id))), sweep)
    tags = {"sweep_id": (sweep.tags["sweep_id"],), "kind": ("point",)}
    points = reader.read(Query((experiment,), tags=tags, unfinished=True, columns=_COLUMNS))
    done = sorted(
        (row for row in points if "outcome" in row.tags), key=lambda row: row.run.end_ms or 0
    )
    abandoned = _abandoned_ids(reader, experiment)
    claimed = [row for row in points if row.run.status == "RUNNING" and "outcome" not in row.tags]
    running = [row for row in claimed if row.run.run_id not in abandoned]
    leases = leases_in(sweep.tags)
    planned = planned_points(leases)
    if no_point_is_left(leases):
        planned = len(done)
    if "planned_points" in sweep.tags:
        planned = int(sweep.tags["planned_points"])
    return Progress(
        sweep=sweep,
        planned=planned,
        done=done,
        running=running,
        is_abandoned=not running and sweep.run.run_id in abandoned,
        now=time.time(),
    )


def _abandoned_ids(reader: Reader, experiment: str) -> set[str]:
    """Return the ids of unfinished runs whose processes have ended."""
    return {
        entry.run_id for entry in RunIndex(reader, experiment).running() if entry.is_abandoned()
    }


def view(progress: Progress) -> RenderableType:
    """Return the text and table that show a sweep, its running points and its newest results."""
    done = progress.done
    running = progress.running
    planned = progress.planned
    counts = Counter(row.tags["outcome"] for row in done)
    state = [f"{count:,} {outcome}" for outcome, count in counts.most_common()]
    if running:
        state.append(f"{len(running):,} running")
    if planned:
        points = f"{len(done):,} of {planned:,} points"
    else:
        points = counted(len(done), "point")
    sweep_id = progress.sweep.tags["sweep_id"]
    title = f"{progress.sweep.run.run_name}: sweep {sweep_id}, began {_clock(progress.begun)}"
    table = Table("point", "outcome", "examples/s", box=None, pad_edge=False, header_style="bold")
    table.columns[1].no_wrap = True
    for row in running[:_MAX_ROWS]:
        owner = Owner.read(Entry(row.run.run_id, "RUNNING", row.tags).owner)
        where = f"on {owner.host}, process {owner.pid}" if owner else ""
        passed = f"{_span(progress.now - (row.run.start_ms or 0) / 1e3)} {where}"
        table.add_row(_line(row.run.run_name or ""), Text("running", "cyan"), _line(passed))
    if len(running) > _MAX_ROWS:
        table.add_row(f"and {len(running) - _MAX_ROWS:,} more", "running")
    newest = list(reversed(done))[:_MAX_ROWS]
    for row in newest:
        outcome = row.tags["outcome"]
        speed = row.metrics.get("examples_per_second")
        if speed is None:
            result = _line(row.tags.get("reason", ""))
        else:
            result = Text(rounded(speed), justify="right")
        table.add_row(row.run.run_name, Text(outcome, _COLORS.get(outcome, "red")), result)
    if state:
        points = f"{points}: {', '.join(state)}"
    header = Group(Text(title, style="bold"), Text(points), Text(_expectation(progress)))
    if not table.rows:
        return header
    return Group(header, Text(), table)


def _expectation(progress: Progress) -> str:
    """Return a text that says when a sweep is expected to end, or how it ended."""
    if not progress.is_running:
        status = progress.sweep.run.status or ""
        end = (progress.sweep.run.end_ms or 0) / 1e3
        how = {"KILLED": "interrupted", "FAILED": "ended with points missing"}.get(
            status, "finished"
        )
        return f"{how} {_clock(end)}, after {_span(end - progress.begun)}"
    if progress.is_abandoned:
        return "the driver of the sweep has exited: repeat its command to continue the sweep"
    passed = f"running for {_span(progress.now - progress.begun)}"
    if not progress.done:
        return f"{passed}, no point has ended yet"
    left = progress.left
    if left is None:
        return passed
    return f"{passed}, expected end {_clock(progress.now + left)}, {_span(left)} from now"


def _line(text: str) -> Text:
    """Return text on one line, truncated with an ellipsis to the available width."""
    return Text(text, overflow="ellipsis", no_wrap=True)


#: Unix seconds in the year 9999. A damaged store may have later times, which Python cannot format.
_MAX_TIME = 2.5e11


def _clock(seconds: float) -> str:
    """Return a Unix time as the local time of day, with the date if it is not today."""
    then = datetime.fromtimestamp(min(max(seconds, 0), _MAX_TIME))
    return then.strftime(
        "%H:%M:%S" if then.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S"
    )


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(min(max(seconds, 0), _MAX_TIME))))


if __name__ == "__main__":
    sys.exit(main())
