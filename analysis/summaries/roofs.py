"""A roof in words, and shares as rooflines give them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from analysis.format import short

if TYPE_CHECKING:
    from analysis.methods.roofline import Roof

__all__ = ["percent", "roof_in_words"]


def roof_in_words(roof: Roof) -> str:
    """The ceilings with their sources and the ridge point, or what is not known of them."""
    name = f"{roof.device} in {roof.precision}"
    if roof.ridge is None:
        known = [f"peak {_si(roof.peak, 'FLOP/s')} ({roof.peak_source})"] if roof.peak else []
        known += [f"bandwidth {_si(roof.bandwidth, 'B/s')} ({roof.bandwidth_source})"] if roof.bandwidth else []
        extent = f"only its {known[0]} is known" if known else "neither ceiling is known"
        return f"{name}: no roof, {extent}; measure the ceilings with python -m paradnn.ceilings."
    same = roof.peak_source == roof.bandwidth_source
    source = f"{roof.peak_source} ceilings" if same else f"ceilings, {roof.source}"
    spread = ""
    if roof.ridge_low != roof.ridge_high:
        spread = f" ({roof.ridge_low:.3g} to {roof.ridge_high:.3g} over its runs)"
    return (
        f"{name}: {source}, {_si(roof.peak or 0, 'FLOP/s')} and {_si(roof.bandwidth or 0, 'B/s')}; "
        f"the ridge point is at {roof.ridge:.3g} FLOP/B{spread}."
    )


def percent(value: float) -> str:
    """A share to three digits, "unknown" where it is NaN."""
    return "unknown" if math.isnan(value) else short(value, share=True, digits=3)


def _si(value: float, unit: str) -> str:
    return short(value, unit, digits=3)
