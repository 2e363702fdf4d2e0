"""Quantities by which two commands are compared: wall time, processor time, or a printed number."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from paradnn.core.errors import ConfigError
from paradnn.core.words import counted

#: Value of --metric for the processor time of a run and its child processes, in seconds.
CPU = "cpu"
_JSON_PREFIX = "json:"
#: Words in the name of a metric from which its direction is inferred.
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
#: Pattern of a rate, such as images/s, MB/sec or per_second.
_PER_TIME = re.compile(r"(?:/|\bper[ _-]?|_per_)(?:s|sec|second|min|minute|h|hour)(?![a-z])", re.I)

#: Pattern of a time with its unit, such as time/s, which is not a rate.
_TIME_IN_UNIT = re.compile(r"(?:time|latency|duration|elapsed|wall)\s*/", re.I)


@dataclass(frozen=True)
class OutputMetric:
    """Quantity of a comparison: wall time, processor time, or a number that the command prints.

    Attributes:
        pattern: None for the wall time, and `CPU` for the processor time. `json:a.b` selects the
            field `a.b` of the last JSON object in the output. Any other text is a regular
            expression with one group; the group of its last match is the number.
        higher: Whether a larger value is faster.

    Raises:
        ConfigError: If the pattern is not a regular expression with one group.
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
                f"is not a regular expression ({error})",
                "correct it, or write json:FIELD",
            ) from None
        if groups != 1:
            raise ConfigError(
                "--metric",
                self.pattern,
                f"has {counted(groups, 'group')}, but needs exactly one",
                "put the number, and only the number, in parentheses",
            )

    @property
    def is_printed(self) -> bool:
        """Whether the value is a number that the command prints."""
        return self.pattern not in (None, CPU)

    def value(self, text: str) -> float | None:
        """Return the number in the output of a command; None if no positive number is found.

        Args:
            text: The output of the command.
        """
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
    """Return a field of the last JSON object in the output of a command.

    Args:
        text: The output.
        path: Names of fields and indices of lists, separated by dots, such as `rows.0.speed`.

    Raises:
        ValueError: If the object is not valid JSON, or an index is not a number.
        LookupError: If the field does not exist.
        TypeError: If a part of the path refers to a value without fields.
    """
    last_object = text.rfind("\n{") + 1
    if not last_object and not text.startswith("{"):
        last_object = text.find("{")
    found: Any = json.loads(text[last_object:])
    for name in path.split("."):
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def is_higher_faster(pattern: str | None) -> bool | None:
    """Infer from a metric's name whether larger values are faster; None if the name is unclear.

    Args:
        pattern: The name of the metric: a regular expression, or `json:` and a field. For None
            (wall time) and `CPU` (processor time), the result is False.
    """
    if pattern in (None, CPU):
        return False
    name = pattern.removeprefix(_JSON_PREFIX)
    name = re.sub(r"\\[A-Za-z]", " ", name)  # classes of a regular expression, such as \s
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)  # examplesPerSecond
    if _PER_TIME.search(name) and not _TIME_IN_UNIT.search(name):
        return True
    # The last word has precedence: rates.seconds is a time.
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", name)]
    for word in reversed(words):
        if word in _LARGER_IS_FASTER:
            return True
        if word in _SMALLER_IS_FASTER:
            return False
    return None
