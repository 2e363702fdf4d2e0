"""A published time of a message or a collective, with the params and metrics of one's own runs of `model=channel`."""

from __future__ import annotations

from dataclasses import dataclass

from paradnn.config.families.communication import COLLECTIVES, bus_factor

__all__ = ["Transfer"]

#: What one's own runs say of a message that is one buffer, sent as it is.
_PLAIN = {"model.payload": "equal", "model.buffers": "1", "model.serialized": "false"}
_ALIKE = {"model.name": "channel", "batch_size": "1", "mode": "inference", "platform.name": "gpu"}


@dataclass(frozen=True)
class Transfer:
    """`seconds` of a message or a collective of `size` bytes between `processes`, which are on so many `hosts`."""

    transport: str
    pattern: str
    size: int
    processes: int
    hosts: int
    precision: str
    seconds: float

    @property
    def params(self) -> dict[str, str]:
        """As a run holds them. One's own runs have no `model.hosts`: all their processes are of one."""
        own = {
            "model.transport": self.transport,
            "model.pattern": self.pattern,
            "model.bytes": str(self.size),
            "model.processes": str(self.processes),
            "model.hosts": str(self.hosts),
            "precision": self.precision,
        }
        return {**_ALIKE, **_PLAIN, **own}

    @property
    def metrics(self) -> dict[str, float]:
        """Time and rates, as docs/communication.md defines them."""
        rate = self.size / self.seconds
        found = {
            "step_time_ms": 1e3 * self.seconds,
            "transfer_us": 1e6 * self.seconds,
            "messages_per_second": 1 / self.seconds,
            "sent_bytes_per_second": rate,
        }
        if self.pattern in COLLECTIVES:
            found["bus_bytes_per_second"] = rate * bus_factor(self.pattern, self.processes)
        return found

    @property
    def name(self) -> str:
        """Short description of what is sent."""
        hosts = f" on {self.hosts} hosts" if self.hosts > 1 else ""
        return f"{self.transport} {self.pattern} x{self.processes}{hosts} {self.size} B"
