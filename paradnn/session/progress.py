"""Terminal output while points are measured, and at the end of a session.

The status line is redrawn only on an event, because a refresh thread would disturb measurements.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence

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
from paradnn.session.record import headline

_COLOURS = {"ok": "green", "unavailable": "yellow"}
_ROWS = 60  # longer sweeps end with counts instead of one row per point
_LONG_COMPILE = 3.0  # seconds of compilation above which it gets a line
_SPARE = (
    "FLOP/s",
    "memory",
    "steady",
    "± 95%",
    # columns that a narrow terminal drops, in this order
)


class Reporter:
    """Progress of a session: points done, counts of outcomes, and the estimated time left.

    Args:
        total: Number of points.
        title: First line of the output; None prints only phases.
        at_most: Whether the estimate of the remaining time is an upper bound.
    """

    def __init__(self, total: int, title: str | None, *, at_most: bool = False) -> None:
        self.known = ""  # intermediate result, shown at the end of the status line
        self._total = total
        self._title = title
        self._left = "left at most" if at_most else "left"
        self._console = SafeConsole(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._counts: Counter[str] = Counter()
        # Start of the work, end of the latest process, and latest message without a terminal.
        self._begin = self._ended = self._said = time.monotonic()
        self._deadline = math.inf
        self._name = self._phase = ""
        self._known: set[str] = set()  # messages that were printed already
        self._skipped = self._processes = self._processes_left = 0

    def start(self, skipped: int, processes: int) -> None:
        """Report that the work begins.

        Args:
            skipped: Number of points whose outcome is in the store already.
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
            processes: Mean number of processes per point.
            seconds: Upper bound of the remaining time in seconds.
        """
        self._deadline = time.monotonic() + seconds
        self._total = sum(self._counts.values()) + self._skipped + left
        self._processes_left = round(left * processes)

    def close(self) -> None:
        """Stop the status line, whether the work was completed or not."""
        self._live.stop()

    def say(self, text: str, *, once: bool = False) -> None:
        """Print a message that the user must see now.

        Args:
            text: The message.
            once: Whether to print the message only the first time, if it applies to every point.
        """
        if not (once and text in self._known):
            self._known.add(text)
            self._console.print(text, soft_wrap=True, markup=False, style="yellow")

    def skipped(self, processes: int) -> None:
        """Count a point that another driver has recorded, which saves `processes` processes."""
        self._skipped += 1
        self.spared(processes)
        self._draw()

    def aside(self, seconds: float) -> None:
        """Exclude a one-time activity of `seconds` seconds from the time estimate."""
        self._begin = self._begin + seconds
        self._ended = self._ended + seconds

    def spared(self, processes: int) -> None:
        """Subtract processes that a point does not need, or that an earlier driver has measured."""
        self._processes_left -= processes

    def begin(self, name: str, phase: str = "starting") -> None:
        """Report that a point, or one of its processes, begins in the given phase."""
        self._name = name
        self.phase(phase)

    def process_ended(self) -> None:
        """Report that a process of a point has ended."""
        self._ended = time.monotonic()
        self._processes += 1
        self.spared(1)

    def phase(self, name: str) -> None:
        """Report that the point enters a phase."""
        self._phase = name
        self._draw()

    def done(self, row: RecordedPoint) -> None:
        """Report the outcome of a point."""
        self._counts[row.outcome] += 1
        if self._title:
            first, *rest = self._status()
            shown = [
                f"{first} {row.name}: {_verdict(row)}",
                *([] if self._console.is_terminal else rest),
            ]
            if row.outcome == "ok":
                style = ""
            else:
                style = _COLOURS.get(row.outcome, "red")
            self._console.print(" | ".join(shown), soft_wrap=True, markup=False, style=style)
        self._draw()

    def _draw(self) -> None:
        if self._console.is_terminal:
            first, *rest = self._status()
            parts = [f"{first} {self._name}: {self._phase}", *rest]
            self._live.update(
                Text(" | ".join(parts), overflow="ellipsis", no_wrap=True), refresh=True
            )
        elif not self._title and time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
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
        parts += (
            [", ".join(f"{count} {name}" for name, count in self._counts.most_common())]
            if self._counts
            else []
        )
        if self._processes and left > 0:
            expected = (self._ended - self._begin) / self._processes * max(1, self._processes_left)
            now = time.monotonic()
            remaining = max(1.0, min(expected - (now - self._ended), self._deadline - now))
            parts.append(f"{_duration(remaining)} {self._left}")
        return [*parts, self.known] if self.known else parts


def describe_point(row: RecordedPoint, where: str) -> str:
    """Return the results of one point as a few lines of text; `where` names the store."""
    metrics = row.metrics
    tags = row.tags
    own = next(
        filter(
            None,
            (work.role(ResultDescription).describe(metrics, tags) for work in WORKLOADS.values()),
        ),
        None,
    )
    if own:
        lines = [
            (own.heading if place == 0 else "", text) for place, text in enumerate(own.clauses)
        ]
    else:
        lines = []
    if "step_time_ms" in metrics and "steady" in tags:
        lines += _step_lines(row, own)
    if "peak_memory_bytes" in metrics:
        lines.append(("memory", f"{metrics['peak_memory_bytes'] / 2**30:.2f} GiB at the peak"))
    if tags.get("checks", "").startswith("failed"):
        lines.append(("SELF-CHECK", f"{tags['checks']}: please report this"))
    lines.append(("run", f"{row.run_id} in {where}"))
    if row.known:
        lines.append(("", "Already in the store, not measured again; resume=false re-measures it."))
    first = f"{row.name}: {row.outcome}" + (f" ({row.reason})" if row.reason else "")
    return "\n".join([first, *(f"  {name:<12} {text}" for name, text in lines)])


def _step_lines(row: RecordedPoint, own: ResultText | None) -> Iterator[tuple[str, str]]:
    """Yield a heading and a text per line about the timed steps.

    The lines state the step time, the comparison with the platform's peaks, the profile, and
    caveats.
    """
    metrics = row.metrics
    tags = row.tags
    # The metric is absent in runs recorded before points could have several processes.
    count = metrics.get("processes", 1)
    if count == 1:
        processes = "a single process"
    else:
        processes = f"{count:.0f} processes"
    rate = headline(metrics, steps=True)
    if rate and not (own and own.replaces_steps):
        if rate.ends:
            ends = f"  (95% CI {rounded(rate.ends[0])} .. {rounded(rate.ends[1])}, {processes})"
        else:
            ends = ""
        yield "throughput" if headline(metrics) == rate else "steps alone", f"{rate}{ends}"
    blocks = f"{counted(round(metrics['blocks']), 'block')} of {counted(round(metrics['steps_per_block']), 'step')}"
    if tags["steady"] == "true":
        steady = "steady"
    else:
        steady = f"not steady ({tags['steady_reason']})"
    yield "step time", f"{metrics['step_time_ms']:.3f} ms, {blocks} in {processes}, {steady}"
    if metrics.get("compile_seconds", 0.0) >= _LONG_COMPILE:
        yield "compiled", f"in {metrics['compile_seconds']:.1f} s"
    if "flops_per_second" in metrics:
        work = (
            f"{si(metrics['flops_per_step'])}FLOP a step, {si(metrics['flops_per_second'])}FLOP/s"
        )
        yield "work", f"{work}, {si(metrics['parameters'])}parameters"
    if "reference_speed" in metrics:
        name = "examples_per_second_at_reference"
        low, high = (metrics.get(end) for end in interval_names(name))
        if low and high:
            ends = f" (95% CI {rounded(low)} .. {rounded(high)})"
        else:
            ends = ""
        best = f"{metrics['reference_speed']:.0%} of its best"
        yield "machine", f"at {best}, where it would be {rounded(metrics[name])} examples/s{ends}"
    if "flops_utilization" in metrics:
        yield "utilization", f"{metrics['flops_utilization']:.1%} of the measured matmul peak"
    if "infeed_gain" in metrics:
        waits = f"waits {metrics['infeed_fraction']:.0%} of the step, free input {metrics['infeed_gain']:+.0%}"
        yield "input", f"{waits}; alone {rounded(metrics['input_examples_per_second'])} examples/s"
    quantiles = {share: f"latency_p{share}_ms" for share in (50, 90, 99)}
    if quantiles[50] in metrics:
        known = (
            f"p{share} {metrics[name]:.3f} ms"
            for share, name in quantiles.items()
            if name in metrics
        )
        yield "latency", ", ".join(known)
    if "artefact_bytes" in metrics:
        made = f"{metrics['conversion_seconds']:.2f} s to {si(metrics['artefact_bytes'])}B"
        yield (
            "conversion",
            f"{made}, outputs within {metrics['conversion_error']:.2g} of the model's",
        )
    leading = [key for key in metrics if key.startswith("op_share.")][:4]
    if leading:
        shares = [f"{key.removeprefix('op_share.')} {metrics[key]:.0%}" for key in leading]
        idle = metrics.get("profile_unexplained_share")
        if idle is not None:
            shares.append(f"no operation {idle:.0%}")
        yield "time goes to", ", ".join(shares)
    if tags.get("profile", "ok") != "ok":
        yield "profile", tags["profile"]
    notes = [tags.get("interval_reason")]
    if "contended_reason" in tags:
        notes.append(f"contended: {tags['contended_reason']}; python -m paradnn.check has details")
    notes += [
        tags.get(name)
        for name in ("profile_note", "emulation_note", "precision_note", "ceilings_contended")
    ]
    if "ceilings_note" in tags:
        notes.append(f"{tags['ceilings_note']} Measure it again: {tags['ceilings_remedy']}")
    yield from (("note", note) for note in notes if note)
    if "energy_per_step_joules" in metrics:
        yield "energy", f"{metrics['energy_per_step_joules']:.3g} J a step"


def describe_sweep(summary: Summary) -> None:
    """Print the closing table on standard output."""
    console = standard_output()
    rows = summary.rows
    if rows and len(rows) <= _ROWS:
        _print_points(console, sorted(rows, key=_natural))
    elif rows:
        counts = Counter((row.family, row.outcome) for row in rows)
        console.print(
            "\n".join(
                f"{family}: {count} {outcome}"
                for (family, outcome), count in sorted(counts.items())
            )
        )
    done = f"{counted(summary.total, 'point')} in {_duration(summary.seconds)}: {summary.counts()}."
    lines = [f"{done} Runs are in {summary.where}", summary.conclusion]
    if summary.skipped and not rows:
        lines.append("python -m analysis report shows what it holds")
    for command in dict.fromkeys(
        row.tags["ceilings_remedy"] for row in rows if "ceilings_remedy" in row.tags
    ):
        ratios = [
            row.metrics["flops_utilization"]
            for row in rows
            if row.tags.get("ceilings_remedy") == command
        ]
        over = f"{counted(len(ratios), 'point')} ran at up to {max(ratios):.2f} times the measured matmul peak"
        lines.append(f"{over}, which is too low. Measure it again on a quiet machine: {command}")
    for line in filter(None, lines):
        console.print(line, soft_wrap=True, markup=False)


def _print_points(console: Console, rows: Sequence[RecordedPoint]) -> None:
    """Print a table of the measured points, then the reasons of the others.

    Reasons are printed as lines because they are too long for a column.
    """
    measured = [
        (row, rate) for row in rows if row.outcome == "ok" and (rate := headline(row.metrics))
    ]
    units = {rate.unit for _, rate in measured}
    headings = (*(units if len(units) == 1 else ("speed",)), "± 95%", "FLOP/s", "memory", "steady")
    cells = [
        (
            row.name,
            rate.number() if len(units) == 1 else str(rate),
            rate.relative(),
            si(row.metrics["flops_per_second"]) if "flops_per_second" in row.metrics else "-",
            f"{row.metrics.get('peak_memory_bytes', 0) / 2**30:.2f} GiB",
            {"true": "yes", "false": "no"}.get(row.tags.get("steady", ""), "-") + _contended(row),
        )
        for row, rate in measured
    ]
    if cells:
        numbers = [Column(heading, justify="right", no_wrap=True) for heading in headings]
        console.print(fitting_table(console, [Column("point"), *numbers], cells, _SPARE))
    for row in rows:
        if row.outcome != "ok":
            text = Text.assemble(f"{row.name}: ", (row.outcome, _COLOURS.get(row.outcome, "red")))
            console.print(text.append(f": {row.reason}" if row.reason else ""), soft_wrap=True)


def _verdict(row: RecordedPoint) -> str:
    if row.outcome != "ok":
        return f"{row.outcome}: {row.reason}" if row.reason else row.outcome
    words = (
        work.role(ResultDescription).describe(row.metrics, row.tags) for work in WORKLOADS.values()
    )
    own = next(filter(None, words), None)
    if own and own.verdict:
        return f"{own.verdict}{_contended(row)}"
    rate = headline(row.metrics)
    if rate and rate.ends:
        known = f" ± {rate.relative()}"
    else:
        known = ", no interval"
    return f"{rate}{known}{_contended(row)}" if rate else row.outcome


def _contended(row: RecordedPoint) -> str:
    return ", contended" if row.tags.get("contended") == "true" else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    if minutes:
        return f"{minutes} min {rest:02} s"
    return f"{rest} s"


def _natural(row: RecordedPoint) -> list[tuple[int, int, str]]:
    parts = re.findall(r"[0-9]+|[^0-9]", f"{row.name} ")
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
