"""Numbers as people read them, in sentences and figures: few digits, SI prefixes, percent."""

import math
from collections.abc import Callable, Iterable

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
#: A metric may be a share if its name contains one of these texts.
_SHARE_NAMES = ("utilization", "fraction", "share", "_cv")
#: Ends of intervals beyond this size are shown as unknown.
_MAX_KNOWN_END = 1e6


def is_share(metric: str, unit: str, values: Iterable[float] = ()) -> bool:
    """Return whether a metric is best read in percent.

    Args:
        metric: Name of the metric.
        unit: Its unit; a share has no unit, so "" or "1".
        values: Values to format. If the absolute value of any is 10 or more, the metric is not a
            share.
    """
    has_share_name = any(part in metric for part in _SHARE_NAMES)
    is_small = all(abs(value) < 10 for value in values if math.isfinite(value))
    return has_share_name and unit in ("", "1") and is_small


def format_number(value: float, unit: str = "", *, share: bool = False, digits: int = 2) -> str:
    """Format a number with its unit, such as "12 TFLOP/s", "0.4%", "1.5 ms" or "1.2k".

    Args:
        value: The number. NaN becomes "-".
        unit: Its unit; "1" means no unit.
        share: Whether to write it in percent, so that 0.12 becomes "12%".
        digits: Number of significant digits. Digits before the decimal point are never dropped.
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if share:
        return f"{_round_significant(100 * value, digits)}%"
    if unit == "1":
        unit = ""
    size = 1.0
    prefix = ""
    # There are no prefixes for small numbers and times: nobody reads milli-FLOP or
    # kilo-milliseconds.
    if unit not in ("ms", "s"):
        for prefix_size, name in _PREFIXES:
            # A number that rounds up to 1000 gets the next prefix.
            if abs(value) >= 0.9995 * prefix_size:
                size = prefix_size
                prefix = name
                break
    number = _round_significant(value / size, digits)
    if unit == "1/s":
        return f"{number}{prefix}/s"
    if not unit:
        return f"{number}{prefix}"
    return f"{number} {prefix}{unit}"


def format_setting(value: object) -> str:
    """Format the value of a setting, such as "64" for 64.0; texts stay as they are."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def format_distinct(*numbers: float) -> list[str]:
    """Format numbers with three digits, or with four or five if needed to distinguish them.

    Args:
        *numbers: The numbers.

    Returns:
        The texts in the same order.
    """
    distinct = len({f"{number:.5g}" for number in numbers})
    texts: list[str] = []
    for digits in (3, 4, 5):
        texts = [_format_plain(number, digits) for number in numbers]
        if len(set(texts)) >= distinct:
            break
    return texts


def _format_plain(number: float, digits: int) -> str:
    if 1e3 <= abs(number) < 1e9:
        return f"{number:,.0f}"
    return f"{number:.{digits}g}"


def format_with_interval(
    estimate: tuple[float, float, float], format_value: Callable[[float], str], note: str = ""
) -> str:
    """Format a value with its 95% interval, such as "5.3x (95% CI 3.9x to 7.2x)".

    Args:
        estimate: The value, and the lower and upper end of its interval. If an end is not finite,
            only the value is shown.
        format_value: Formats a number.
        note: Text inside the parentheses, after the interval.
    """
    value, low, high = estimate
    parts = []
    if math.isfinite(low) and math.isfinite(high):
        parts.append(f"95% CI {format_value(low)} to {format_value(high)}")
    if note:
        parts.append(note)
    text = format_value(value)
    if not parts:
        return text
    return f"{text} ({', '.join(parts)})"


def format_share(value: float) -> str:
    """Format a share as percent with three digits; "unknown" for NaN."""
    if math.isnan(value):
        return "unknown"
    return format_number(value, share=True, digits=3)


def format_percent_interval(estimate: tuple[float, float, float]) -> str:
    """Format a share with its interval, such as "42.6% (36.1% to 49.3%)".

    Args:
        estimate: The share, and the lower and upper end of its interval. An end that is not finite
            becomes "unknown".
    """
    value, low, high = estimate
    text = format_number(value, share=True, digits=3)
    if not any(abs(end) < _MAX_KNOWN_END for end in (low, high)):
        return f"{text} (no interval)"
    return f"{text} ({_format_end(low)} to {_format_end(high)})"


def _format_end(end: float) -> str:
    if abs(end) < _MAX_KNOWN_END:
        return format_number(end, share=True, digits=3)
    return "unknown"


def _round_significant(value: float, digits: int) -> str:
    """Return a number as text, rounded to significant digits.

    Digits before the decimal point are never dropped, and trailing zeros after it always are. Only
    numbers below 1e-4 have an exponent.
    """
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{digits}g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    if "." in text:
        return text.rstrip("0").rstrip(".")
    return text


def format_seconds(value: float) -> str:
    """Format a time in seconds with three digits: "2.5 s", or "12.3 ms" below 0.1 s."""
    if value >= 0.1:
        return format_number(value, "s", digits=3)
    return format_number(1000 * value, "ms", digits=3)
