"""From events on several threads to time that adds up.

Operations overlap: threads run side by side, and an event may contain others. Two quantities follow. The self time of
an operation is how long it ran, less what ran within it on the same thread; summed over operations it may exceed the
step. Its share is the wall time it explains: every instant of the step is divided equally among the operations that
run in it, and what is left over belongs to none. Shares and the remainder sum to one by construction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Event", "Usage", "attribute"]


@dataclass(frozen=True)
class Event:
    """An operation that ran on a lane (a thread or a device's stream) from `start` to `end`; seconds.

    `continues`: it belongs to the execution that the event before it began, and is none of its own.
    """

    lane: str
    name: str
    kind: str
    start: float
    end: float
    continues: bool = False


@dataclass
class Usage:
    """One operation within the window: executions, self time and explained wall time; seconds."""

    count: int = 0
    self_seconds: float = 0.0
    wall_seconds: float = 0.0


@dataclass(order=True)
class _Edge:
    time: float
    opens: bool
    key: tuple[str, str] = field(compare=False)


def attribute(events: Iterable[Event], start: float, end: float) -> tuple[dict[tuple[str, str], Usage], float]:
    """Usage of every (name, kind), and the seconds of [start, end] in which nothing ran."""
    usage: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
    lanes: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.end > start and event.start < end:
            lanes[event.lane].append(event)
            # One that began before, and reaches in by its thread's delay, was no execution of these steps.
            usage[event.name, event.kind].count += event.start >= start and not event.continues
    edges = []
    for members in lanes.values():
        for key, begins, ends in _innermost(members):
            low, high = max(begins, start), min(ends, end)
            if high > low:
                usage[key].self_seconds += high - low
                edges += [_Edge(low, True, key), _Edge(high, False, key)]
    return dict(usage), _divide(sorted(edges), usage, start, end)


def _innermost(events: Sequence[Event]) -> list[tuple[tuple[str, str], float, float]]:
    """The stretches of a lane in which an event is the innermost one."""
    stretches: list[tuple[tuple[str, str], float, float]] = []
    stack: list[Event] = []
    since = 0.0

    def close(until: float) -> None:
        nonlocal since
        while stack and stack[-1].end <= until:
            event = stack.pop()
            if event.end > since:
                stretches.append(((event.name, event.kind), since, event.end))
                since = event.end

    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        close(event.start)
        if stack and event.start > since:
            stretches.append(((stack[-1].name, stack[-1].kind), since, event.start))
        since = max(since, event.start)
        stack.append(event)
    close(float("inf"))
    return stretches


def _divide(edges: Sequence[_Edge], usage: dict[tuple[str, str], Usage], start: float, end: float) -> float:
    """Divide every instant among the running operations; the seconds that none explains."""
    running: defaultdict[tuple[str, str], int] = defaultdict(int)
    active, idle, now = 0, 0.0, start
    for edge in edges:
        passed = edge.time - now
        if passed > 0:
            if active:
                for key, times in running.items():
                    usage[key].wall_seconds += passed * times / active
            else:
                idle += passed
            now = edge.time
        active += 1 if edge.opens else -1
        running[edge.key] += 1 if edge.opens else -1
        if not running[edge.key]:
            del running[edge.key]
    return idle + max(0.0, end - now)
