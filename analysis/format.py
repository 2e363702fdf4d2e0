"""Numbers as people read them: few digits, SI prefixes, shares in percent. Used in sentences and in
figures.
"""

import math
from collections.abc import Iterable

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHARES = ("utilization", "fraction", "share", "_cv")


def is_share(metric: str, unit: str, values: Iterable[float] = ()) -> bool:
    """Whether a metric is read best in percent: one of the shares by its name, without a unit, and
    no huge value.
    """
    named = any(part in metric for part in _SHARES)
    return (
        named
        and unit in ("", "1")
        and all(abs(value) < 10 for value in values if math.isfinite(value))
    )


def short(value: float, unit: str = "", share: bool = False, digits: int = 2) -> str:
    """A number to so many significant digits at least, with its unit: "12 TFLOP/s", "0.4%", "1.5
    ms", "1.2k".

    Digits before the point are never dropped. A `share` (0.12 is 12%) is in percent. The unit "1"
    is none.
    """
    if not math.isfinite(value):
        if math.isnan(value):
            return "-"
        if value > 0:
            return "∞"
        return "-∞"
    if share:
        return f"{_rounded(100 * value, digits)}%"
    unit = "" if unit == "1" else unit
    size = 1.0
    prefix = ""
    # Prefixes stand for large numbers alone; milli-FLOP or kilo-milliseconds help no reader.
    if unit not in ("ms", "s"):
        # What rounds up to 1000 belongs to the next prefix.
        size, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= 0.9995 * s), (1.0, ""))
    gap = " " if unit and unit != "1/s" else ""
    ending = "/s" if unit == "1/s" else unit
    return f"{_rounded(value / size, digits)}{gap}{prefix}{ending}"


def format_distinct(*numbers: float) -> list[str]:
    """Numbers in three significant digits, or in as many more, five at most, as tell neighbours
    apart.
    """
    texts = (
        [f"{n:,.0f}" if 1e3 <= abs(n) < 1e9 else f"{n:.{digits}g}" for n in numbers]
        for digits in (3, 4, 5)
    )
    best: list[str] = []
    different = len({f"{number:.5g}" for number in numbers})
    while len(set(best)) < different and (more := next(texts, None)):
        best = more
    return best


def percent_interval(estimate: tuple[float, float, float]) -> str:
    """A share and the ends of its interval: "42.6% (36.1% to 49.3%)"; an end that is not known is
    "unknown".
    """
    value, *ends = estimate
    if not any(abs(end) < 1e6 for end in ends):
        return f"{short(value, share=True, digits=3)} (no interval)"
    low, high = (short(end, share=True, digits=3) if abs(end) < 1e6 else "unknown" for end in ends)
    return f"{short(value, share=True, digits=3)} ({low} to {high})"


def _rounded(value: float, digits: int) -> str:
    """Significant digits without an exponent, none before the point lost, no zeros after it."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{digits}g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds(value: float) -> str:
    """A time to three digits: "2.5 s", and "12.3 ms" below a tenth of a second."""
    if value >= 0.1:
        return short(value, "s", digits=3)
    return short(1000 * value, "ms", digits=3)
