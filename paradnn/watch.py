"""`python -m paradnn.watch`: a sweep in progress, here or on a cluster, as the tracking store knows
it.

It reads the store alone, so it may run on any host that reaches the store, also when the terminal
of the sweep is gone. Ctrl-C ends it; the sweep goes on. `--once` prints what is known now, as does
a pipe.
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
from paradnn.store.claims import Entry, Owner, RunIndex
from paradnn.store.reader import Reader, open_reader
from paradnn.store.runs import OWNER, Query, Row, Values

#: What is read of each point.
_READ: Mapping[Values, Collection[str]] = {
    "params": (),
    "tags": ("outcome", OWNER, "reason"),
    "metrics": ("examples_per_second",),
}
_ROWS = 8  # of a table
_SHARE = 10  # looking takes at most one part in so many of the time
_COLOURS = {"ok": "green", "unavailable": "yellow"}


@dataclass(frozen=True)
class Progress:
    """A sweep as the store shows it at Unix second `now`; `planned` points, None where the sweep
    does not say.

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


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser("python -m paradnn.watch", __doc__)
    parser.add_store()
    parser.add_argument(
        "--sweep",
        metavar="ID",
        help="the sweep_id of a sweep (default: the newest that is running)",
    )
    parser.add_argument("--once", action="store_true", help="print what is known now, and exit")
    text = "seconds between looks (default: %(default)g)"
    parser.add_argument("--interval", type=number("--interval"), default=5.0, help=text)
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Show a sweep until it ends or Ctrl-C; 0, or 2 for wrong input and a store without a sweep."""
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
        ) as live:  # its last picture stays
            while True:
                begin = time.monotonic()
                progress = progress_of(reader, experiment, sweep)
                live.update(view(progress), refresh=True)
                if not progress.is_running:
                    break
                time.sleep(max(given.interval, _SHARE * (time.monotonic() - begin)))
    return 0


def _find(reader: Reader, experiment: str, sweep_id: str | None, where: str) -> Row:
    """The parent run of the sweep that is meant: the newest one that runs, if none is named."""
    if experiment not in reader.experiments():
        held = ", ".join(reader.experiments())
        raise StoreError(
            f"{where} has no experiment {experiment}, it has {held}: measure first, with paradnn train -m"
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
            f"no sweep is running in {where}; the newest ended {ended}: --sweep {newest} shows it"
        )
    gone = _abandoned(reader, experiment)
    return ([row for row in running if row.run.run_id not in gone] or running)[-1]


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
    """How a sweep stands now, given its parent run as it was at any time."""
    sweep = next(iter(reader.read(_query(experiment, {}, sweep.run.run_id))), sweep)
    tags = {"sweep_id": (sweep.tags["sweep_id"],), "kind": ("point",)}
    points = reader.read(Query((experiment,), tags=tags, unfinished=True, columns=_READ))
    done = sorted(
        (row for row in points if "outcome" in row.tags), key=lambda row: row.run.end_ms or 0
    )
    gone = _abandoned(reader, experiment)
    claimed = [row for row in points if row.run.status == "RUNNING" and "outcome" not in row.tags]
    running = [row for row in claimed if row.run.run_id not in gone]
    if "planned_points" in sweep.tags:
        planned = int(sweep.tags["planned_points"])
    else:
        planned = None
    return Progress(
        sweep, planned, done, running, not running and sweep.run.run_id in gone, time.time()
    )


def _abandoned(reader: Reader, experiment: str) -> set[str]:
    """The runs that no process will finish."""
    return {
        entry.run_id for entry in RunIndex(reader, experiment).running() if entry.is_abandoned()
    }


def view(progress: Progress) -> RenderableType:
    """All of it: the whole sweep, the points that run, and the newest."""
    done = progress.done
    running = progress.running
    planned = progress.planned
    counts = Counter(row.tags["outcome"] for row in done)
    state = [f"{count:,} {outcome}" for outcome, count in counts.most_common()]
    state += [f"{len(running):,} running"] if running else []
    if planned:
        points = f"{len(done):,} of {planned:,} points"
    else:
        points = counted(len(done), "point")
    title = f"{progress.sweep.run.run_name}: sweep {progress.sweep.tags['sweep_id']}, began {_clock(progress.begun)}"
    table = Table("point", "outcome", "examples/s", box=None, pad_edge=False, header_style="bold")
    table.columns[1].no_wrap = True
    for row in running[:_ROWS]:
        owner = Owner.read(Entry(row.run.run_id, "RUNNING", row.tags).owner)
        where = f"on {owner.host}, process {owner.pid}" if owner else ""
        passed = f"{_span(progress.now - (row.run.start_ms or 0) / 1e3)} {where}"
        table.add_row(_line(row.run.run_name or ""), Text("running", "cyan"), _line(passed))
    if len(running) > _ROWS:
        table.add_row(f"and {len(running) - _ROWS:,} more", "running")
    for row in done[: -_ROWS - 1 : -1]:  # with their speed, or why they have none
        outcome = row.tags["outcome"]
        speed = row.metrics.get("examples_per_second")
        if speed is None:
            said = _line(row.tags.get("reason", ""))
        else:
            said = Text(rounded(speed), justify="right")
        table.add_row(row.run.run_name, Text(outcome, _COLOURS.get(outcome, "red")), said)
    heads = [Text(title, style="bold"), Text(": ".join(filter(None, (points, ", ".join(state)))))]
    shown = Group(*heads, Text(_expectation(progress)))
    return Group(shown, Text(), table) if table.rows else shown


def _expectation(progress: Progress) -> str:
    """When it ends or how it ended, as a sentence."""
    if not progress.is_running:
        status = progress.sweep.run.status or ""
        end = (progress.sweep.run.end_ms or 0) / 1e3
        how = {"KILLED": "interrupted", "FAILED": "ended with points missing"}.get(
            status, "finished"
        )
        return f"{how} {_clock(end)}, after {_span(end - progress.begun)}"
    if progress.is_abandoned:
        return "its driver is gone: the same command goes on where it stopped"
    passed = f"running for {_span(progress.now - progress.begun)}"
    if not progress.done:
        return f"{passed}, no point has ended yet"
    left = progress.left
    if left is None:
        return passed
    return f"{passed}, expected end {_clock(progress.now + left)}, {_span(left)} from now"


def _line(text: str) -> Text:
    """A text that is cut where it has no room."""
    return Text(text, overflow="ellipsis", no_wrap=True)


_LAST = 2.5e11  # Unix seconds, in the year 9999: no clock shows later times, which a damaged store may hold


def _clock(seconds: float) -> str:
    """A time of day here, with the date where it is not today."""
    then = datetime.fromtimestamp(min(max(seconds, 0), _LAST))
    return then.strftime(
        "%H:%M:%S" if then.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S"
    )


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(min(max(seconds, 0), _LAST))))


if __name__ == "__main__":
    sys.exit(main())
