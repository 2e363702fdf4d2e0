"""What an hour costs: prices of the command line, of a table, or as runs recorded them; and what they make of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.options import option
from paradnn.config.price import load_prices, positive_price
from paradnn.errors import ConfigError
from paradnn.store.metrics import COSTS

if TYPE_CHECKING:
    import pandas as pd

#: The column of what an hour costs.
PRICE = "platform.price_per_hour"


def price_option(adds: str, **how: Any) -> Any:
    """The option of every command that knows prices; `adds` is what it does with them."""
    return option(
        (),
        f"what an hour costs: 'V100=2', a device or host, or the name of a table in conf/price; repeatable: {adds}. "
        "It wins over what runs recorded",
        metavar="DEVICE=PRICE",
        several="repeat",
        **how,
    )


@dataclass(frozen=True)
class PriceList:
    """Prices of an hour by device or host, later ones over earlier ones; what they are in and where they are from.

    given: the words of the command line.
    """

    per_hour: Mapping[str, float] = field(default_factory=dict)
    currency: str | None = None
    origin: str = ""
    given: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.per_hour)


def read_prices(given: Sequence[str], frame: pd.DataFrame) -> PriceList:
    """Prices by device or host; ConfigError for what is no price, for a device that no run has, and for tables in
    different currencies. What a table has of other devices is passed over."""
    prices: dict[str, float] = {}
    tables = []
    known = sorted(set(frame["device"].dropna()))
    hosts = set(frame["host"].dropna()) if "host" in frame else set()
    for words in given:
        name, sign, price = words.rpartition("=")
        if not sign:
            tables.append((words, load_prices(words, "--price")))
            prices |= {place: float(text) for place, text in tables[-1][1].per_hour.items()}
            continue
        if name not in known and name not in hosts:
            raise ConfigError("--price", name, "no run is of that device", f"name one of {', '.join(known)}")
        prices[name] = positive_price("--price", words, price)
    currencies = {table.currency for _, table in tables if table.currency}
    if len(currencies) > 1:
        named = ", ".join(name for name, _ in tables)
        raise ConfigError("--price", named, f"are in {' and '.join(sorted(currencies))}", "give tables of one currency")
    usable = {name: price for name, price in prices.items() if name in known or name in hosts}
    if tables and not usable:
        devices = "; ".join(", ".join(table.per_hour) for _, table in tables)
        raise ConfigError(
            "--price", tables[0][0], f"has prices of {devices or 'nothing'}", f"runs are of {', '.join(known)}"
        )
    origin = "; ".join(table.origin for _, table in tables if table.origin)
    return PriceList(usable, next(iter(currencies), None), origin, tuple(given))


def _given(frame: pd.DataFrame, prices: PriceList) -> pd.Series:
    """What an hour of each run costs by `prices`, NaN where they do not say."""
    given = frame["device"].map(prices.per_hour).astype("float64")
    if "devices" in frame and "platform.name" in frame:
        # Devices of a CPU are cores of its hosts; others are chips, and each has its price.
        hosts = frame["hosts"].astype("float64") if "hosts" in frame else 1.0
        chips = frame["devices"].astype("float64").where(frame["platform.name"].ne("cpu"), hosts).fillna(1.0)
        given = given * chips
    # A host's price is that of all its devices.
    return given.fillna(frame["host"].map(prices.per_hour).astype("float64")) if "host" in frame else given


def currency_of(frame: pd.DataFrame) -> str:
    """What the costs of priced runs are in; empty where nothing says so, ConfigError where they disagree."""
    known = sorted(set(frame.loc[frame[PRICE].notna(), "price_currency"].dropna()))
    if len(known) > 1:
        remedy = "choose runs with --tag price_currency=..., or give prices of all devices with --price"
        raise ConfigError("price_currency", ", ".join(known), "prices of these runs cannot be compared", remedy)
    return str(known[0]) if known else ""


def priced(frame: pd.DataFrame, prices: PriceList) -> pd.DataFrame:
    """The frame with what its runs cost, by `paradnn.store.metrics`: the metrics of COSTS, with their intervals where
    those of what they follow from are known, PRICE, and `price_currency`. A given price wins over that of a run."""
    import numpy as np
    import pandas as pd

    def column(name: str) -> pd.Series:
        values = frame[name] if name in frame else pd.Series(np.nan, index=frame.index)
        return values.astype("float64")

    given = _given(frame, prices)
    price = given.fillna(column(PRICE))
    recorded = frame.get("price_currency", pd.Series(None, frame.index)).astype("object")
    found = {PRICE: price, "price_currency": recorded.where(given.isna(), prices.currency)}
    ok = frame["outcome"].eq("ok").fillna(False).astype(bool)
    for cost in COSTS:
        amount = column(cost.of[0])
        for name in cost.of[1:]:
            amount = amount.fillna(column(name))
        usable = price.where(ok | cost.learning)
        found[cost.name] = cost.value(usable, amount.where(amount > 0))
        for end, source in (("low", cost.low), ("high", cost.high)):
            if source:
                found[f"{cost.name}_{end}"] = cost.value(usable, column(source).where(column(source) > 0))
    result = frame.drop(columns=[name for name in found if name in frame]).assign(**found)
    result.attrs = dict(frame.attrs)
    return result
