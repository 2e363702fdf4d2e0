"""What an hour costs: prices of the command line, of a table, or as runs recorded them; and what
they make of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.lazy import np, pd
from analysis.options import option
from paradnn.config.price import load_prices, positive_price
from paradnn.core.errors import ConfigError
from paradnn.store.metrics import COSTS

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
    """Prices of an hour by device or host, later ones over earlier ones; what they are in and where
    they are from.

    given: the words of the command line.
    """

    per_hour: Mapping[str, float] = field(default_factory=dict)
    currency: str | None = None
    origin: str = ""
    given: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.per_hour)


def read_prices(given: Sequence[str], frame: pd.DataFrame) -> PriceList:
    """Prices by device or host; ConfigError for what is no price, for a device that no run has, and
    for tables in different currencies. What a table has of other devices is passed over.
    """
    prices: dict[str, float] = {}
    tables = {}
    devices = sorted(frame["device"].dropna().unique())
    known = {*devices, *(frame["host"].dropna().unique() if "host" in frame else ())}
    for words in given:
        name, sign, price = words.rpartition("=")
        if not sign:
            tables[words] = load_prices(words, "--price")
            prices |= {place: float(text) for place, text in tables[words].per_hour.items()}
            continue
        if name not in known:
            raise ConfigError(
                "--price", name, "no run is of that device", f"name one of {', '.join(devices)}"
            )
        prices[name] = positive_price("--price", words, price)
    currencies = sorted({table.currency for table in tables.values() if table.currency})
    if len(currencies) > 1:
        listed = ", ".join(tables)
        raise ConfigError(
            "--price", listed, f"are in {' and '.join(currencies)}", "give tables of one currency"
        )
    usable = {name: price for name, price in prices.items() if name in known}
    if tables and not usable:
        held = "; ".join(", ".join(table.per_hour) for table in tables.values()) or "nothing"
        raise ConfigError(
            "--price",
            next(iter(tables)),
            f"has prices of {held}",
            f"runs are of {', '.join(devices)}",
        )
    origin = "; ".join(table.origin for table in tables.values() if table.origin)
    return PriceList(usable, next(iter(currencies), None), origin, tuple(given))


def currency_of(frame: pd.DataFrame) -> str:
    """What the costs of priced runs are in; empty where nothing says so, ConfigError where they
    disagree.
    """
    known = sorted(set(frame.loc[frame[PRICE].notna(), "price_currency"].dropna()))
    if len(known) > 1:
        remedy = (
            "choose runs with --tag price_currency=..., or give prices of all devices with --price"
        )
        raise ConfigError(
            "price_currency", ", ".join(known), "prices of these runs cannot be compared", remedy
        )
    return str(known[0]) if known else ""


def priced(frame: pd.DataFrame, prices: PriceList) -> pd.DataFrame:
    """The frame with what its runs cost, by `paradnn.store.metrics`: the metrics of COSTS, with
    their intervals where those of what they follow from are known, PRICE, and `price_currency`. A
    given price wins over that of a run.
    """

    def column(name: str, lacking: float = np.nan) -> pd.Series:
        if name in frame:
            values = frame[name]
        else:
            values = pd.Series(lacking, index=frame.index)
        return values.astype("float64")

    given = frame["device"].map(prices.per_hour).astype("float64")
    if "devices" in frame and "platform.name" in frame:
        # Devices of a CPU are cores of its hosts; others are chips, and each has its price.
        given *= (
            column("devices")
            .where(frame["platform.name"].ne("cpu"), column("hosts", 1.0))
            .fillna(1.0)
        )
    if "host" in frame:  # a host's price is that of all its devices
        given = given.fillna(frame["host"].map(prices.per_hour).astype("float64"))
    price = given.fillna(column(PRICE))
    recorded = frame.get("price_currency", pd.Series(None, frame.index)).astype("object")
    found = {PRICE: price, "price_currency": recorded.where(given.isna(), prices.currency)}
    ok = frame["outcome"].eq("ok").fillna(False).astype(bool)
    for cost in COSTS:
        amount = column(cost.of[0])
        for name in cost.of[1:]:
            amount = amount.fillna(column(name))
        usable = price.where(ok | cost.learning)
        amounts = zip(("", "_low", "_high"), (amount, *map(column, cost.ends)), strict=False)
        found |= {
            f"{cost.name}{end}": cost.value(usable, each.where(each > 0)) for end, each in amounts
        }
    return frame.drop(columns=[name for name in found if name in frame]).assign(**found)
