"""Requests to an endpoint and their outcomes, as the worker sends them to the driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import ClassVar

from paradnn.core.channel import pack_bytes, unpack_bytes
from paradnn.core.messages import WorkloadMessage
from paradnn.worker.peak_search import Probe

#: Shortest plausible mean time between tokens, in ns. If tokens arrive faster, the server or a
#: proxy buffered them: 10,000 tokens/s per request is several times the rate of any model.
_MIN_TOKEN_NS = 100_000


@dataclass(frozen=True)
class EndpointRequest:
    """One request and its outcome.

    All times are ns of `time.monotonic_ns()`.

    Attributes:
        due: Scheduled time of sending. In a closed loop, this is when a thread begins the request.
        sent: When the request was sent.
        first: When the first token arrived, or when the request failed.
        last: When the last token arrived, or when the request failed.
        prompt: Tokens of the prompt, as reported by the server; 0 if unknown.
        tokens: Tokens of the answer.
        problem: Why the request failed; "" if it succeeded.
        has_usage: Whether the server counted the tokens. If it did not, `tokens` is the number of
            chunks with text.
    """

    due: int
    sent: int
    first: int
    last: int
    prompt: int = 0
    tokens: int = 0
    problem: str = ""
    has_usage: bool = True

    @property
    def latency(self) -> int:
        """Time from the scheduled sending of the request to its last token, in ns."""
        return self.last - self.due

    @property
    def time_to_first_token(self) -> int:
        """Time from the scheduled sending of the request to its first token, in ns."""
        return self.first - self.due

    @property
    def is_at_once(self) -> bool:
        """Whether the tokens arrived faster than plausible, so that their times are unknown."""
        return self.tokens > 1 and self.last - self.first < _MIN_TOKEN_NS * (self.tokens - 1)

    @property
    def time_per_output_token(self) -> float | None:
        """Mean time between successive tokens, in ns.

        None if the answer has fewer than two tokens, or if they arrived at once.
        """
        if self.tokens < 2 or self.is_at_once:
            return None
        return (self.last - self.first) / (self.tokens - 1)


@dataclass(frozen=True)
class Requests(WorkloadMessage):
    """The message that reports the requests of one process to the driver.

    Attributes:
        rows: The requests as text, packed by `Requests.packed`.
        model: Name of the served model.
        rate: Scheduled requests per second of an open loop; None for a closed loop.
        probes: Results of all rates that a search for the highest rate tried; empty if there was no
            search.
    """

    wire_name: ClassVar[str] = "requests"

    rows: str
    model: str = ""
    rate: float | None = None
    probes: list[Probe] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise ValueError if the rows cannot be unpacked."""
        self.requests()

    def requests(self) -> list[EndpointRequest]:
        """Return the unpacked requests in the order in which they were due.

        Raises:
            ValueError: If `rows` is not a packed list of requests.
        """
        try:
            return [EndpointRequest(*row) for row in json.loads(unpack_bytes(self.rows))]
        except TypeError as error:
            raise ValueError(f"the requests cannot be read: {error}") from error

    @classmethod
    def packed(
        cls,
        requests: Sequence[EndpointRequest],
        model: str = "",
        rate: float | None = None,
        probes: Sequence[Probe] = (),
    ) -> Requests:
        """Return the message with the given requests, sorted by the time at which they were due.

        Args:
            requests: The requests, in any order.
            model: Name of the served model.
            rate: Scheduled requests per second of an open loop; None for a closed loop.
            probes: Results of all rates that a search for the highest rate tried.
        """
        rows = [astuple(request) for request in sorted(requests, key=lambda entry: entry.due)]
        return cls(pack_bytes(json.dumps(rows).encode()), model, rate, list(probes))


def window_seconds(requests: Sequence[EndpointRequest]) -> float:
    """Return the seconds from the scheduled sending of the first request to the end of the last.

    Failed requests count too. If a server stops answering halfway, its rate is therefore still an
    average over the whole time.

    Args:
        requests: The requests of one process, at least one.
    """
    begin = min(request.due for request in requests)
    end = max(request.last for request in requests)
    return (end - begin) / 1e9
