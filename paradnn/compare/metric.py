"""The quantity by which two commands are compared: time, processor time, or a printed number."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from paradnn.core.errors import ConfigError

#: The metric of the processor time that a run and its children take together, in seconds.
CPU = "cpu"
_JSON_PREFIX = "json:"
#: Words in the name of a metric that say in which direction it improves.
_LARGER_IS_FASTER = {
    "rate",
    "rates",
    "throughput",
    "speed",
    "speedup",
    "bandwidth",
    "fps",
    "qps",
    "rps",
    "tps",
    "iops",
    "ops",
    "flops",
    "gflops",
    "tflops",
    "mips",
    "mbps",
    "gbps",
    "hz",
    "mhz",
    "ghz",
    "persecond",
    "persec",
}
_SMALLER_IS_FASTER = {
    "time",
    "times",
    "seconds",
    "second",
    "secs",
    "sec",
    "s",
    "ms",
    "us",
    "ns",
    "minutes",
    "millis",
    "micros",
    "nanos",
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "elapsed",
    "duration",
    "latency",
    "latencies",
    "delay",
    "wall",
    "walltime",
    "runtime",
    "real",
    "user",
    "cycles",
    "instructions",
    "misses",
    "bytes",
    "memory",
    "rss",
    "overhead",
}
#: A unit per time, such as images/s, MB/sec, per_second.
_PER_TIME = re.compile(r"(?:/|\bper[ _-]?|_per_)(?:s|sec|second|min|minute|h|hour)(?![a-z])", re.I)

#: A quantity with its unit, such as time/s.
_TIME_IN_UNIT = re.compile(r"(?:time|latency|duration|elapsed|wall)\s*/", re.I)


@dataclass(frozen=True)
class OutputMetric:
    """Quantity of a comparison: wall time, processor time, or a number that the command prints.

    Attributes:
        pattern: A regular expression whose only group is the number; its last match
            counts; `json:a.b` for a field of the JSON object that is printed last; `CPU`; or None
            for the wall time.
        higher: Whether a larger value is faster.
    """

    pattern: str | None = None
    higher: bool = False

    def __post_init__(self) -> None:
        if self.pattern is None or not self.is_printed or self.pattern.startswith(_JSON_PREFIX):
            return
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ConfigError(
                "--metric",
                self.pattern,
                f"not a regular expression ({error})",
                "correct it, or write json:FIELD",
            ) from None
        if groups != 1:
            raise ConfigError(
                "--metric",
                self.pattern,
                f"has {groups} groups, not one",
                "put the number, and only the number, in parentheses",
            )

    @property
    def is_printed(self) -> bool:
        """Whether the value is a number that the command prints."""
        return self.pattern not in (None, CPU)

    def value(self, text: str) -> float | None:
        """The number in the output of a command; None if no match is above zero."""
        pattern = self.pattern or "()"
        try:
            if pattern.startswith(_JSON_PREFIX):
                found = _json_field(text, pattern.removeprefix(_JSON_PREFIX))
            else:
                found = re.findall(pattern, text)[-1]
            number = float(found)
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return number if math.isfinite(number) and number > 0 else None


def _json_field(text: str, path: str) -> Any:
    """The field `path` (`rows.0.speed`) of the JSON object that a command prints last."""
    last_object = text.rfind("\n{") + 1
    if not last_object and not text.startswith("{"):
        last_object = text.find("{")
    found: Any = json.loads(text[last_object:])
    for name in path.split("."):
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def is_higher_faster(pattern: str | None) -> bool | None:
    """Whether the name of a metric says that larger values are faster; None if it does not say.

    The wall time and the processor time are faster when smaller.
    """
    if pattern in (None, CPU):
        return False
    name = pattern.removeprefix(_JSON_PREFIX)
    name = re.sub(r"\\[A-Za-z]", " ", name)  # classes of a regular expression, such as \s
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)  # examplesPerSecond
    if _PER_TIME.search(name) and not _TIME_IN_UNIT.search(name):
        return True
    # Of a path such as rates.seconds the last part counts most.
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", name)]
    for word in reversed(words):
        if word in _LARGER_IS_FASTER:
            return True
        if word in _SMALLER_IS_FASTER:
            return False
    return None
