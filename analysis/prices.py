"""What an hour of a device costs, as it is given on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_prices"]


def read_prices(given: Sequence[tuple[str, str]], frame: pd.DataFrame) -> dict[str, float]:
    """Prices of an hour by device; ConfigError for what is no price, and for a device that no run has."""
    prices = {}
    known = sorted(set(frame["device"].dropna()))
    for device, price in given:
        if device not in known:
            raise ConfigError("--price", device, "no run is of that device", f"name one of {', '.join(known)}")
        try:
            prices[device] = float(price)
        except ValueError:
            prices[device] = float("nan")
        if not 0 < prices[device] < float("inf"):
            raise ConfigError("--price", f"{device}={price}", "is no price", "write for example 'V100=2.48', an hour")
    return prices
