"""Terminal output while points are measured, and at the end of a session.

A point is one configuration to measure, and a session measures the points of one command. The
status line is redrawn only on an event, because a refresh thread would disturb measurements.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Column
from rich.text import Text

from paradnn.cli.console import QUIET_SECONDS, SafeConsole, fitting_table, si, standard_output
from paradnn.core.metric import interval_names
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.words import counted, rounded
from paradnn.core.workload import WORKLOADS
from paradnn.session.design import RecordedPoint, Summary
from paradnn.session.record import Headline, energy_text, headline

_COLORS = {"ok": "green", "unavailable": "yellow"}
_MAX_ROWS = 60  # larger sweeps end with counts instead of one row per point
_LEADING_OPERATIONS = 4  # number of operation types that a profile line names
_LONG_COMPILE = 3.0  # seconds above which the compile time gets a line
#: Columns that a narrow terminal drops, in this order.
_DROPPED_COLUMNS = ("FLOP/s", "memory", "steady", "± 95%")


class Reporter:
    """Shows the progress of a session: finished points, outcomes, and the estimated time left.

    Args:
        total: Number of points, which are the configurations to measure.
        title: Name of the sweep, which is the first line of the output. None if a single point is
            measured; only its phases are then printed.
        at_most: Whether the estimate of the remaining time is an upper bound.
    """

    def __init__(self, total: int, title: str | None, *, at_most: bool = False) -> None:
        self.known = ""  # intermediate result, shown at the end of the status line
        self._total = total
        self._title = title
        self._time_left_suffix = "left at most" if at_most else "left"
        self._console = SafeConsole(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._counts: Counter[str] = Counter()
        now = time.monotonic()
        self._begin = now  # start of the work
        self._ended = now  # end of the latest process
        self._printed_at = now  # latest phase that was printed without a terminal
        self._deadline = math.inf
        self._name = ""
        self._phase = ""
        self._printed_messages: set[str] = set()
        self._skipped = 0
        self._processes = 0
        self._processes_left = 0

    def start(self, skipped: int, processes: int) -> None:
        """Print the title and start the status line.

        Args:
            skipped: Number of points whose outcome is already in the store.
            processes: Number of processes that the remaining points need.
        """
        self._begin = self._ended = time.monotonic()
        self._processes_left = processes
        self._skipped = skipped
        if self._title:
            if self._skipped:
                known = f", {self._skipped} skipped: the store holds their outcome already"
            else:
                known = ""
            self._console.print(f"{self._title}{known}", soft_wrap=True, markup=False)
        if self._console.is_terminal:
            self._live.start()

    def expect(self, left: int, processes: float, seconds: float = math.inf) -> None:
        """Update the estimate of the remaining work.

        Args:
            left: Number of remaining points.
            processes: Mean number of processes per remaining point.
            seconds: Upper bound of the remaining time in seconds; infinite if unknown.
        """
        self._deadline = time.monotonic() + seconds
        self._total = sum(self._counts.values()) + self._skipped + left
        self._processes_left = round(left * processes)

    def close(self) -> None:
        """Remove the status line."""
        self._live.stop()

    def say(self, text: str, *, once: bool = False) -> None:
        """Print a message that the user must see now.

        Args:
            text: The message.
            once: Whether to print the message only the first time that it occurs.
        """
        if not (once and text in self._printed_messages):
            self._printed_messages.add(text)
            self._console.print(text, soft_wrap=True, markup=False, style="yellow")

    def skipped(self, processes: int) -> None:
        """Count a point that another driver has recorded.

        Args:
            processes: Number of processes that the point would have needed.
        """
        self._skipped += 1
        self.subtract_processes(processes)
        self._draw()

    def exclude_from_estimate(self, seconds: float) -> None:
        """Exclude a one-time activity of `seconds` seconds from the mean time per process.

        The estimate of the remaining time is based on that mean.
        """
        self._begin = self._begin + seconds
        self._ended = self._ended + seconds

    def subtract_processes(self, processes: int) -> None:
        """Reduce the number of remaining processes by `processes`."""
        self._processes_left -= processes

    def begin(self, name: str, phase: str = "starting") -> None:
        """Show the name and the phase of an activity that begins.

        Args:
            name: Name of a point, of one of its processes, or of another activity.
            phase: Name of its first phase.
        """
        self._name = name
        self.phase(phase)

    def process_ended(self) -> None:
        """Count a process of a point as ended, for the estimate of the remaining time."""
        self._ended = time.monotonic()
        self._processes += 1
        self.subtract_processes(1)

    def phase(self, name: str) -> None:
        """Show the phase that the current activity enters.

        Args:
            name: Name of the phase, such as "compile".
        """
        self._phase = name
        self._draw()

    def done(self, row: RecordedPoint) -> None:
        """Count the outcome of a point and, in a sweep, print its result in one line.

        Args:
            row: Outcome, metrics and tags of the point's run.
        """
        self._counts[row.outcome] += 1
        if self._title:
            first, *rest = self._status()
            shown = [f"{first} {row.name}: {_verdict(row)}"]
            if not self._console.is_terminal:
                # On a terminal the status line shows the rest.
                shown += rest
            if row.outcome == "ok":
                style = ""
            else:
                style = _COLORS.get(row.outcome, "red")
            self._console.print(" | ".join(shown), soft_wrap=True, markup=False, style=style)
        self._draw()

    def _draw(self) -> None:
        if self._console.is_terminal:
            first, *rest = self._status()
            parts = [f"{first} {self._name}: {self._phase}", *rest]
            self._live.update(
                Text(" | ".join(parts), overflow="ellipsis", no_wrap=True), refresh=True
            )
        elif not self._title and time.monotonic() - self._printed_at >= QUIET_SECONDS:
            self._printed_at = time.monotonic()
            self._console.print(f"{self._name}: {self._phase}", soft_wrap=True, markup=False)

    def _status(self) -> list[str]:
        """Return the parts of the status line.

        The first part is the number of completed points. Counts of outcomes, the remaining time and
        the intermediate result follow if they are known.
        """
        measured = sum(self._counts.values())
        done = measured + self._skipped
        left = self._total - measured - self._skipped
        parts = [f"[{done}/{self._total}]"]
        if self._counts:
            parts.append(", ".join(f"{count} {name}" for name, count in self._counts.most_common()))
        if self._processes and left > 0:
            expected = (self._ended - self._begin) / self._processes * max(1, self._processes_left)
            now = time.monotonic()
            remaining = max(1.0, min(expected - (now - self._ended), self._deadline - now))
            parts.append(f"{_duration(remaining)} {self._time_left_suffix}")
        if self.known:
            parts.append(self.known)
        return parts


def describe_point(row: RecordedPoint, where: str) -> str:
    """Return the results of one measured configuration (point) as a few lines of text.

    Args:
        row: Outcome, metrics and tags of the point's run.
        where: Location of the run's store, as text.
    """
    metrics = row.metrics
    tags = row.tags
    workload_text = _workload_text(row)
    lines: list[tuple[str, str]] = []
    if workload_text:
        headings = [workload_text.heading, *[""] * len(workload_text.clauses)]
        lines += zip(headings, workload_text.clauses, strict=False)
    if "step_time_ms" in metrics and "steady" in tags:
        lines += _step_lines(row, workload_text)
    if "peak_memory_bytes" in metrics:
        lines.append(("memory", f"{metrics['peak_memory_bytes'] / 2**30:.2f} GiB at the peak"))
    if tags.get("checks", "").startswith("failed"):
        lines.append(("SELF-CHECK", f"{tags['checks']}: please report this"))
    lines.append(("run", f"{row.run_id} in {where}"))
    if row.known:
        lines.append(("", "Already in the store, not measured again; resume=false re-measures it."))
    first = f"{row.name}: {row.outcome}"
    if row.reason:
        first += f" ({row.reason})"
    return "\n".join([first, *(f"  {name:<12} {text}" for name, text in lines)])


def _step_lines(row: RecordedPoint, workload_text: ResultText | None) -> Iterator[tuple[str, str]]:
    """Yield a heading and a text per line about the timed steps.

    The lines state the step time, the comparison with the platform's peaks, the profile, and
    caveats.

    Args:
        row: Metrics and tags of the point's run.
        workload_text: Description by the point's kind of work; None if it has none.
    """
    metrics = row.metrics
    yield from _time_lines(row, workload_text)
    yield from _work_lines(metrics)
    yield from _input_and_latency_lines(metrics)
    if "artefact_bytes" in metrics:
        seconds = f"{metrics['conversion_seconds']:.2f} s"
        size = f"{si(metrics['artefact_bytes'])}B"
        error = f"outputs within {metrics['conversion_error']:.2g} of the model's"
        yield "conversion", f"{seconds} to {size}, {error}"
    yield from _profile_lines(row)
    yield from (("note", note) for note in _notes(row.tags))
    if "energy_per_example_joules" in metrics:
        yield "energy", energy_text(metrics)


def _time_lines(row: RecordedPoint, workload_text: ResultText | None) -> Iterator[tuple[str, str]]:
    """Yield lines with the throughput, the step time and, if it is long, the compile time."""
    metrics = row.metrics
    tags = row.tags
    # The metric is absent in runs recorded before points could have several processes.
    count = metrics.get("processes", 1)
    if count == 1:
        processes = "a single process"
    else:
        processes = f"{count:.0f} processes"
    rate = headline(metrics, steps=True)
    if rate and not (workload_text and workload_text.replaces_steps):
        text = str(rate)
        if rate.ends:
            low, high = rate.ends
            text += f"  (95% CI {rounded(low)} .. {rounded(high)}, {processes})"
        if headline(metrics) == rate:
            yield "throughput", text
        else:
            yield "steps alone", text
    blocks = counted(round(metrics["blocks"]), "block")
    steps = counted(round(metrics["steps_per_block"]), "step")
    if tags["steady"] == "true":
        steady = "steady"
    else:
        steady = f"not steady ({tags['steady_reason']})"
    step_time = f"{metrics['step_time_ms']:.3f} ms"
    yield "step time", f"{step_time}, {blocks} of {steps} in {processes}, {steady}"
    if metrics.get("compile_seconds", 0.0) >= _LONG_COMPILE:
        yield "compiled", f"in {metrics['compile_seconds']:.1f} s"


def _work_lines(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield lines with the arithmetic of a step, the machine's speed, and the utilization."""
    if "flops_per_second" in metrics:
        flops = f"{si(metrics['flops_per_step'])}FLOP a step"
        rate = f"{si(metrics['flops_per_second'])}FLOP/s"
        yield "work", f"{flops}, {rate}, {si(metrics['parameters'])}parameters"
    if "reference_speed" in metrics:
        name = "examples_per_second_at_reference"
        speed = f"at {metrics['reference_speed']:.0%} of its best speed"
        text = f"{speed}; at 100% this point would reach {rounded(metrics[name])} examples/s"
        low, high = (metrics.get(end) for end in interval_names(name))
        if low and high:
            text += f" (95% CI {rounded(low)} .. {rounded(high)})"
        yield "machine", text
    if "flops_utilization" in metrics:
        yield "utilization", f"{metrics['flops_utilization']:.1%} of the measured matmul peak"


def _input_and_latency_lines(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield lines with the wait for input and the latency percentiles, if they were measured."""
    if "infeed_gain" in metrics:
        wait = f"the step waits {metrics['infeed_fraction']:.0%} of its time"
        gain = f"free input would change the rate by {metrics['infeed_gain']:+.0%}"
        alone = (
            f"the pipeline alone reaches {rounded(metrics['input_examples_per_second'])} examples/s"
        )
        yield "input", f"{wait}; {gain}; {alone}"
    if "latency_p50_ms" in metrics:
        percentiles = [
            f"p{percent} {metrics[f'latency_p{percent}_ms']:.3f} ms"
            for percent in (50, 90, 99)
            if f"latency_p{percent}_ms" in metrics
        ]
        yield "latency", ", ".join(percentiles)


def _profile_lines(row: RecordedPoint) -> Iterator[tuple[str, str]]:
    """Yield lines with the operations that take most time, or the reason for a missing profile."""
    leading = [key for key in row.metrics if key.startswith("op_share.")][:_LEADING_OPERATIONS]
    if leading:
        shares = [f"{key.removeprefix('op_share.')} {row.metrics[key]:.0%}" for key in leading]
        idle = row.metrics.get("profile_unexplained_share")
        if idle is not None:
            shares.append(f"no operation {idle:.0%}")
        yield "time goes to", ", ".join(shares)
    if row.tags.get("profile", "ok") != "ok":
        yield "profile", row.tags["profile"]


def _notes(tags: Mapping[str, str]) -> Iterator[str]:
    """Yield the caveats in the tags of a run, such as contention or emulated precision."""
    if tags.get("interval_reason"):
        yield tags["interval_reason"]
    if "contended_reason" in tags:
        yield f"contended: {tags['contended_reason']}; python -m paradnn.check has details"
    names = (
        "profile_note",
        "emulation_note",
        "precision_note",
        "ceilings_contended",
        "idle_power_note",
    )
    for name in names:
        if tags.get(name):
            yield tags[name]
    if "ceilings_note" in tags:
        yield f"{tags['ceilings_note']} Measure it again: {tags['ceilings_remedy']}"


def describe_sweep(summary: Summary) -> None:
    """Print the results of a session on standard output.

    The output is a table of the points, or counts of outcomes if there are more than `_MAX_ROWS`
    points. Totals and remedies follow.

    Args:
        summary: Recorded points and counts of the session.
    """
    console = standard_output()
    rows = summary.rows
    if rows and len(rows) <= _MAX_ROWS:
        _print_points(console, sorted(rows, key=_natural_sort_key))
    elif rows:
        counts = Counter((row.family, row.outcome) for row in rows)
        for (family, outcome), count in sorted(counts.items()):
            console.print(f"{family}: {count} {outcome}")
    done = f"{counted(summary.total, 'point')} in {_duration(summary.seconds)}: {summary.counts()}."
    lines = [f"{done} Runs are in {summary.where}", summary.conclusion]
    if summary.skipped and not rows:
        lines.append("python -m analysis report shows the runs")
    utilization_by_remedy: dict[str, list[float]] = {}
    for row in rows:
        if "ceilings_remedy" in row.tags:
            utilizations = utilization_by_remedy.setdefault(row.tags["ceilings_remedy"], [])
            utilizations.append(row.metrics["flops_utilization"])
    for command, utilizations in utilization_by_remedy.items():
        points = counted(len(utilizations), "point")
        highest = f"{max(utilizations):.2f} times the measured matmul peak"
        lines.append(
            f"{points} ran at up to {highest}, which is too low. "
            f"Measure it again on a quiet machine: {command}"
        )
    for line in filter(None, lines):
        console.print(line, soft_wrap=True, markup=False)


def _print_points(console: Console, rows: Sequence[RecordedPoint]) -> None:
    """Print a table of the measured points, and a line with the reason per other point.

    Reasons are too long for a column of the table.
    """
    measured: list[tuple[RecordedPoint, Headline]] = []
    for row in rows:
        rate = headline(row.metrics)
        if row.outcome == "ok" and rate:
            measured.append((row, rate))
    units = {rate.unit for _, rate in measured}
    speed_heading = "speed"
    if len(units) == 1:
        (speed_heading,) = units
    cells = []
    for row, rate in measured:
        if len(units) == 1:
            speed = rate.number()
        else:
            speed = str(rate)
        flops = "-"
        if "flops_per_second" in row.metrics:
            flops = si(row.metrics["flops_per_second"])
        memory = f"{row.metrics.get('peak_memory_bytes', 0) / 2**30:.2f} GiB"
        steady = {"true": "yes", "false": "no"}.get(row.tags.get("steady", ""), "-")
        cells.append(
            (row.name, speed, rate.relative(), flops, memory, f"{steady}{_contended(row)}")
        )
    if cells:
        headings = (speed_heading, "± 95%", "FLOP/s", "memory", "steady")
        numbers = [Column(heading, justify="right", no_wrap=True) for heading in headings]
        console.print(fitting_table(console, [Column("point"), *numbers], cells, _DROPPED_COLUMNS))
    for row in rows:
        if row.outcome != "ok":
            text = Text.assemble(f"{row.name}: ", (row.outcome, _COLORS.get(row.outcome, "red")))
            if row.reason:
                text.append(f": {row.reason}")
            console.print(text, soft_wrap=True)


def _workload_text(row: RecordedPoint) -> ResultText | None:
    """Return the description of the first kind of work that describes the point, or None."""
    for work in WORKLOADS.values():
        text = work.role(ResultDescription).describe(row.metrics, row.tags)
        if text:
            return text
    return None


def _verdict(row: RecordedPoint) -> str:
    if row.outcome != "ok":
        if row.reason:
            return f"{row.outcome}: {row.reason}"
        return row.outcome
    workload_text = _workload_text(row)
    if workload_text and workload_text.verdict:
        return f"{workload_text.verdict}{_contended(row)}"
    rate = headline(row.metrics)
    if rate is None:
        return row.outcome
    if rate.ends:
        interval = f" ± {rate.relative()}"
    else:
        interval = ", no interval"
    return f"{rate}{interval}{_contended(row)}"


def _contended(row: RecordedPoint) -> str:
    if row.tags.get("contended") == "true":
        return ", contended"
    return ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    if minutes:
        return f"{minutes} min {rest:02} s"
    return f"{rest} s"


def _natural_sort_key(row: RecordedPoint) -> list[tuple[int, int, str]]:
    """Return a sort key that orders the numbers in names by value."""
    parts = re.findall(r"[0-9]+|[^0-9]", f"{row.name} ")
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
