"""Metrics of messages and collectives from the time of a step: docs/communication.md says what each means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.config.families.communication import COLLECTIVES, Communication, bus_factor
from paradnn.config.point import Point

__all__ = ["communication_metrics", "communication_words"]


def communication_metrics(point: Point, metrics: Mapping[str, float]) -> dict[str, float]:
    """What follows from `step_time_ms` and its interval; nothing where the point does not communicate."""
    model: Any = point.model
    if not isinstance(model, Communication):
        return {}
    found: dict[str, float] = {}
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        seconds, longest = (metrics.get(f"step_time{side}_ms") for side in (end, other))
        if seconds is None or longest is None:
            continue
        found[f"transfer{end}_us"] = 1e3 * seconds / _in_turn(model)
        if model.pattern == "latency":
            found[f"round_trip{end}_us"] = 1e3 * seconds
        rate = 1e3 * _messages(model) / longest  # a rate is low where the time is high
        found[f"messages_per_second{end}"] = rate
        found[f"sent_bytes_per_second{end}"] = rate * model.bytes
        if model.pattern in COLLECTIVES:
            found[f"bus_bytes_per_second{end}"] = rate * model.bytes * bus_factor(model.pattern, model.processes)
    return found


def _in_turn(model: Communication) -> int:
    """Messages of a step that follow one another."""
    return {"latency": 2, "bandwidth": model.window}.get(model.pattern, 1)


def _messages(model: Communication) -> int:
    """Messages of a step, of all senders; a collective counts as one."""
    return model.workers * model.servers if model.pattern == "parameter_server" else _in_turn(model)


def communication_words(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """How it went, in a line for the time and one for the rates; nothing where there were no messages."""
    if "transfer_us" not in metrics:
        return ()
    interval = ""
    if "transfer_low_us" in metrics:
        interval = f" (95% CI {metrics['transfer_low_us']:,.2f} .. {metrics['transfer_high_us']:,.2f})"
    bus = f", bus {metrics['bus_bytes_per_second'] / 1e6:,.1f} MB/s" if "bus_bytes_per_second" in metrics else ""
    return (
        f"{metrics['transfer_us']:,.2f} us each{interval}",
        f"{metrics['sent_bytes_per_second'] / 1e6:,.1f} MB/s{bus}, {metrics['messages_per_second']:,.0f} a second",
    )
