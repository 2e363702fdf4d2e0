"""What the terminal shows while points are measured, and at the end. The last line is drawn only when something
happens: a refreshing thread would take time from the measurement."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from paradnn.cli.console import QUIET_SECONDS, Screen, fitting_table, si, standard_output
from paradnn.core.words import counted
from paradnn.core.workload import WORKLOADS, Words
from paradnn.record.headline import Column, headline, throughput

if TYPE_CHECKING:
    from paradnn.session.summary import Row, Summary


_COLOURS = {"ok": "green", "unavailable": "yellow"}
#: Longer sweeps end with counts instead of one row for each point.
_ROWS = 60
#: Columns that a narrow terminal does without, the first ones first.
_SPARE = ("FLOP/s", "memory", "steady", "± 95%")


class Reporter:
    """The progress of a session: points done, outcome counts, time left."""

    def __init__(self, total: int, title: str | None, *, at_most: bool = False) -> None:
        self.standing = ""  # what is known so far, for the progress line
        self._total = total
        self._left = "left at most" if at_most else "left"
        self._title = title
        self._console = Screen(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._counts: Counter[str] = Counter()
        self._begin = self._ended = time.monotonic()  # of the work; and of the latest process
        self._deadline = math.inf
        self._name = self._phase = ""
        self._skipped = 0
        self._said = self._begin  # the latest word, where there is no terminal
        self._known: set[str] = set()  # what was said once
        self._processes = self._processes_left = 0

    def start(self, skipped: Counter[str], processes: int) -> None:
        """The work begins: so many processes of points; `skipped` points need none."""
        self._begin = self._ended = time.monotonic()
        self._processes_left = processes
        self._skipped = sum(skipped.values())
        if self._title:
            known = f", {self._skipped} skipped: the store holds their outcome already" if self._skipped else ""
            self._console.print(f"{self._title}{known}", soft_wrap=True, markup=False)
        if self._console.is_terminal:
            self._live.start()

    def expect(self, left: int, processes: float, seconds: float = math.inf) -> None:
        """So many points are left, as it is known now, of so many processes each, and so many seconds at most."""
        self._deadline = time.monotonic() + seconds
        self._total = sum(self._counts.values()) + self._skipped + left
        self._processes_left = round(left * processes)

    def close(self) -> None:
        """The work ends, one way or another."""
        self._live.stop()

    def say(self, text: str) -> None:
        """Something the user must know now."""
        self._console.print(text, soft_wrap=True, markup=False, style="yellow")

    def say_once(self, text: str) -> None:
        """Something that would be said of every point, and is of the first."""
        if text not in self._known:
            self._known.add(text)
            self.say(text)

    def skipped(self, skipped: Counter[str], spared: int) -> None:
        """Another driver's outcome turned up for a point of ours, which spares so many processes."""
        self._skipped = sum(skipped.values())
        self._processes_left -= spared
        self._draw()

    def aside(self, seconds: float) -> None:
        """So long something was done once that no point will need again."""
        self._begin += seconds
        self._ended += seconds

    def spared(self, processes: int) -> None:
        """So many processes of a point were measured by an earlier driver."""
        self._processes_left -= processes

    def begin(self, name: str, process: int | None = None) -> None:
        """A point begins, or one of its processes."""
        self._name, self._phase = name if process is None else f"{name}, process {process}", "starting"
        self._draw()

    def process_ended(self) -> None:
        """A process of a point has ended."""
        self._ended = time.monotonic()
        self._processes += 1
        self._processes_left -= 1

    def phase(self, name: str) -> None:
        """The point enters a phase."""
        self._phase = name
        self._draw()

    def done(self, row: Row, spared: int) -> None:
        """The point has an outcome, after so many processes less than were planned."""
        self._processes_left -= spared
        self._counts[row.outcome] += 1
        if self._title:
            first, *rest = self._status()
            line = f"{first} {row.name}: {_verdict(row)}"
            shown = line if self._console.is_terminal else " | ".join([line, *rest])
            style = "" if row.outcome == "ok" else _COLOURS.get(row.outcome, "red")
            self._console.print(shown, soft_wrap=True, markup=False, style=style)
        self._draw()

    def _draw(self) -> None:
        if self._console.is_terminal:
            first, *rest = self._status()
            parts = [f"{first} {self._name}: {self._phase}", *rest]
            self._live.update(Text(" | ".join(parts), overflow="ellipsis", no_wrap=True), refresh=True)
        elif not self._title and time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
            self._console.print(f"{self._name}: {self._phase}", soft_wrap=True, markup=False)

    def _status(self) -> list[str]:
        """How many points are done; then, as far as there is something to say: outcomes, time left, what is known."""
        measured = sum(self._counts.values())
        done, left = measured + self._skipped, self._total - measured - self._skipped
        parts = [f"[{done}/{self._total}]"]
        if self._counts:
            parts.append(", ".join(f"{count} {name}" for name, count in self._counts.most_common()))
        if self._processes and left > 0:
            expected = (self._ended - self._begin) / self._processes * max(1, self._processes_left)
            now = time.monotonic()
            remaining = max(1.0, min(expected - (now - self._ended), self._deadline - now))
            parts.append(f"{_duration(remaining)} {self._left}")
        return [*parts, self.standing] if self.standing else parts


def describe_point(row: Row, where: str) -> str:
    """The results of one point, in a few lines."""
    metrics = row.metrics
    lines = [f"{row.name}: {row.outcome}" + (f" ({row.reason})" if row.reason else "")]
    own = _own_words(row)
    if own:
        lines += [f"  {name:<12} {text}" for name, text in zip([own.heading] + [""] * 9, own.clauses, strict=False)]
    if "step_time_ms" in metrics and "steady" in row.tags:
        steady = "steady" if row.tags["steady"] == "true" else f"not steady ({row.tags['steady_reason']})"
        rate = throughput(metrics)
        if rate and not (own and own.replaces):
            ends = f"  (95% CI {rate.ends[0]:,.1f} .. {rate.ends[1]:,.1f}, {_processes(metrics)})" if rate.ends else ""
            lines.append(f"  {'throughput' if headline(metrics) == rate else 'steps alone':<12} {rate}{ends}")
        lines += [
            f"  step time    {metrics['step_time_ms']:.3f} ms, {counted(round(metrics['blocks']), 'block')} of "
            f"{counted(round(metrics['steps_per_block']), 'step')} in {_processes(metrics)}, {steady}"
        ]
        if "flops_per_second" in metrics:
            lines.append(
                f"  work         {si(metrics['flops_per_step'])}FLOP a step, {si(metrics['flops_per_second'])}FLOP/s, "
                f"{si(metrics['parameters'])}parameters"
            )
        lines += _limit_lines(row)
    if "peak_memory_bytes" in metrics:
        lines.append(f"  memory       {metrics['peak_memory_bytes'] / 2**30:.2f} GiB at the peak")
    if row.tags.get("checks", "").startswith("failed"):
        lines.append(f"  SELF-CHECK   {row.tags['checks']}: please report this")
    lines.append(f"  run          {row.run_id} in {where}")
    if row.known:
        lines.append("  Already in the store, not measured again; resume=false re-measures it.")
    return "\n".join(lines)


def _own_words(row: Row) -> Words | None:
    return next(filter(None, (work.words(row.metrics, row.tags) for work in WORKLOADS.values())), None)


def _limit_lines(row: Row) -> list[str]:
    """How far the point is from what the platform can do, where its time went, how long one step takes alone."""
    lines, metrics = [], row.metrics
    if "flops_utilization" in metrics:
        text = f"  utilisation  {metrics['flops_utilization']:.1%} of the measured matmul peak"
        if "flops_utilization_spec" in metrics:
            text += f", {metrics['flops_utilization_spec']:.1%} of the specified one"
        lines.append(text)
    if "infeed_gain" in metrics:
        lines.append(
            f"  input        waits {metrics['infeed_fraction']:.0%} of the step, "
            f"free input {metrics['infeed_gain']:+.0%}; alone {metrics['input_examples_per_second']:,.0f} examples/s, "
            f"{metrics['input_cpu_ms_per_example']:.2f} ms of a core each"
        )
    if "latency_p50_ms" in metrics:
        shares = [share for share in (50, 90, 99) if f"latency_p{share}_ms" in metrics]
        quantiles = ", ".join(f"p{share} {metrics[f'latency_p{share}_ms']:.3f} ms" for share in shares)
        lines.append(f"  latency      {quantiles}")
    leading = [f"{key.removeprefix('op_share.')} {metrics[key]:.0%}" for key in metrics if key.startswith("op_share.")]
    if leading:
        lines.append(f"  time goes to {', '.join(leading[:4])}")
    tags = row.tags
    if tags.get("profile", "ok") != "ok":
        lines.append(f"  profile      {tags['profile']}")
    notes = (
        tags.get("interval_reason"),
        "contended_reason" in tags and f"contended: {tags['contended_reason']}; python -m paradnn.check says more",
        tags.get("profile_note"),
        tags.get("emulation_note") or tags.get("precision_note"),
        tags.get("ceilings_contended"),
        "ceilings_note" in tags and f"{tags['ceilings_note']} Measure it again: {tags['ceilings_remedy']}",
    )
    lines += [f"  note         {note}" for note in notes if note]
    if "energy_per_step_joules" in metrics:
        lines.append(f"  energy       {metrics['energy_per_step_joules']:.3g} J a step")
    return lines


def describe_sweep(summary: Summary) -> None:
    """The closing table on standard output."""
    console, rows = standard_output(), summary.rows
    if rows and len(rows) <= _ROWS:
        _print_points(console, sorted(rows, key=lambda entry: _natural(entry.name)))
    elif rows:
        console.print(_outcome_table(rows))
    spent = f"{counted(summary.total, 'point')} in {_duration(summary.seconds)}"
    text = f"{spent}: {summary.counts()}. Runs are in {summary.where}"
    console.print(text, soft_wrap=True, markup=False)
    if summary.conclusion:
        console.print(summary.conclusion, soft_wrap=True, markup=False)
    if summary.drift and summary.drift.matters:
        console.print(f"Drift: {summary.drift}.", soft_wrap=True, markup=False)
    for line in _low_peaks(rows):
        console.print(line, soft_wrap=True, markup=False)


def _low_peaks(rows: Sequence[Row]) -> list[str]:
    """How to correct ceilings that points exceeded, a line for each platform."""
    exceeded: dict[str, list[float]] = {}
    for row in rows:
        if "ceilings_remedy" in row.tags:
            exceeded.setdefault(row.tags["ceilings_remedy"], []).append(row.metrics["flops_utilization"])
    return [
        f"{counted(len(ratios), 'point')} ran at up to {max(ratios):.2f} times the measured "
        f"matmul peak, which is too low. Measure it again on a quiet machine: {command}"
        for command, ratios in exceeded.items()
    ]


def _print_points(console: Console, rows: Sequence[Row]) -> None:
    """A table of what was measured, and below it why the others were not: reasons are too long for a column."""
    measured = [(row, rate) for row in rows if row.outcome == "ok" and (rate := headline(row.metrics))]
    speed = Column(row.metrics for row, _ in measured)
    headings = (speed.heading, "± 95%", "FLOP/s", "memory", "steady")
    cells = [
        (
            row.name,
            speed.cell(row.metrics),
            rate.relative(),
            si(row.metrics["flops_per_second"]) if "flops_per_second" in row.metrics else "-",
            f"{row.metrics.get('peak_memory_bytes', 0) / 2**30:.2f} GiB",
            ("yes" if row.tags["steady"] == "true" else "no") + _contended(row),
        )
        for row, rate in measured
    ]
    if cells:
        numbers = [TableColumn(heading, justify="right", no_wrap=True) for heading in headings]
        console.print(fitting_table(console, [TableColumn("point"), *numbers], cells, _SPARE))
    for row in rows:
        if row.outcome != "ok":
            text = Text.assemble(f"{row.name}: ", (row.outcome, _COLOURS.get(row.outcome, "red")))
            console.print(text.append(f": {row.reason}" if row.reason else ""), soft_wrap=True)


def _outcome_table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    outcomes = [outcome for outcome, _ in Counter(row.outcome for row in rows).most_common()]
    table.add_column("family")
    for outcome in outcomes:
        table.add_column(Text(outcome, _COLOURS.get(outcome, "red")), justify="right")
    counts = Counter((row.family, row.outcome) for row in rows)
    for family in dict.fromkeys(family for family, _ in counts):
        table.add_row(family, *(str(counts[family, outcome] or "") for outcome in outcomes))
    return table


def _processes(metrics: Mapping[str, float]) -> str:
    """Runs that were recorded before points had several processes have one."""
    count = metrics.get("processes", 1)
    return "a single process" if count == 1 else f"{count:.0f} processes"


def _verdict(row: Row) -> str:
    if row.outcome != "ok":
        return f"{row.outcome}: {row.reason}" if row.reason else row.outcome
    busy = _contended(row)
    if (own := _own_words(row)) and own.verdict:
        return f"{own.verdict}{busy}"
    rate = headline(row.metrics)
    return f"{rate} ± {rate.relative()}{busy}" if rate else row.outcome


def _contended(row: Row) -> str:
    return ", contended" if row.tags.get("contended") == "true" else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"[0-9]+|[^0-9]", f"{name} ")
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
