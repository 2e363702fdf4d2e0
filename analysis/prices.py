"""Prices per hour from the command line, from tables or from runs, and the resulting costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.lazy import pd
from analysis.options import option
from paradnn.config.price import Prices, load_prices, positive_price
from paradnn.core.errors import ConfigError
from paradnn.store.metrics import COSTS

#: The column with the price of an hour.
PRICE = "platform.price_per_hour"
_CURRENCY = "price_currency"


def price_option(benefit: str, **attributes: Any) -> Any:
    """Return a dataclass field for the option --price of a command.

    Args:
        benefit: The effect of the option on the command, for the help text, such as "adds the cost
            of a million examples".
        **attributes: Further arguments of `option`.
    """
    return option(
        (),
        "price of an hour of a device or host, such as 'V100=2', or the name of a table in "
        f"conf/price; repeatable: {benefit}. It overrides prices that runs recorded",
        metavar="DEVICE=PRICE",
        several="repeat",
        **attributes,
    )


@dataclass(frozen=True)
class PriceList:
    """Prices per hour of devices and hosts.

    Attributes:
        per_hour: Price by name of the device or host.
        currency: Currency of the prices; None if no table states one.
        origin: Sources of the tables, as text; empty if they state none.
        given: The values of --price from which the prices were read.
    """

    per_hour: Mapping[str, float] = field(default_factory=dict)
    currency: str | None = None
    origin: str = ""
    given: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.per_hour)


def read_prices(given: Sequence[str], frame: pd.DataFrame) -> PriceList:
    """Read prices per hour from the values of --price.

    Later values override earlier ones. Entries of a table for devices that no run used are ignored.

    Args:
        given: The values, each DEVICE=PRICE or the name of a table.
        frame: The runs, whose devices and hosts may have prices.

    Raises:
        ConfigError: If a price is not a positive number, if no run used a given device or host, or
            if tables have different currencies.
    """
    devices = sorted(frame["device"].dropna().unique())
    known = {*devices}
    if "host" in frame:
        known |= {*frame["host"].dropna().unique()}
    prices: dict[str, float] = {}
    tables: dict[str, Prices] = {}
    for text in given:
        name, sign, price = text.rpartition("=")
        if not sign:
            tables[text] = load_prices(text, "--price")
            prices |= {key: float(value) for key, value in tables[text].per_hour.items()}
            continue
        if name not in known:
            remedy = f"name one of {', '.join(devices)}"
            raise ConfigError("--price", name, "no run used that device", remedy)
        prices[name] = positive_price("--price", text, price)
    usable = {name: price for name, price in prices.items() if name in known}
    if tables and not usable:
        raise _unused_tables_error(tables, devices)
    return PriceList(
        per_hour=usable,
        currency=_common_currency(tables),
        origin="; ".join(table.origin for table in tables.values() if table.origin),
        given=tuple(given),
    )


def _common_currency(tables: Mapping[str, Prices]) -> str | None:
    """Return the currency of price tables; None if no table states one.

    Args:
        tables: The tables by name.

    Raises:
        ConfigError: If the tables have several currencies.
    """
    currencies = sorted({table.currency for table in tables.values() if table.currency})
    if len(currencies) > 1:
        problem = f"these tables are in different currencies ({', '.join(currencies)})"
        raise ConfigError("--price", ", ".join(tables), problem, "give tables of one currency")
    return currencies[0] if currencies else None


def _unused_tables_error(tables: Mapping[str, Prices], devices: Collection[str]) -> ConfigError:
    """Return the error for price tables without a price of any device of the runs.

    Args:
        tables: The tables by name.
        devices: Names of the devices.
    """
    entries = [", ".join(table.per_hour) for table in tables.values()]
    contents = "; ".join(entries) or "nothing"
    remedy = f"name a table with prices of {', '.join(devices)}"
    return ConfigError("--price", next(iter(tables)), f"has prices of {contents}", remedy)


def currency_of(frame: pd.DataFrame) -> str:
    """Return the currency of the prices of runs; empty if none is recorded.

    Args:
        frame: One row per run.

    Raises:
        ConfigError: If the runs have several currencies.
    """
    currencies = sorted(set(frame.loc[frame[PRICE].notna(), _CURRENCY].dropna()))
    if len(currencies) > 1:
        problem = "prices in different currencies cannot be compared"
        remedy = (
            "choose runs with --tag price_currency=..., or give prices of all devices with --price"
        )
        raise ConfigError(_CURRENCY, ", ".join(currencies), problem, remedy)
    return str(currencies[0]) if currencies else ""


def with_costs(frame: pd.DataFrame, prices: PriceList) -> pd.DataFrame:
    """Add the costs of runs to a frame.

    Args:
        frame: One row per run.
        prices: Prices per hour, which override those that runs recorded.

    Returns:
        The frame with the cost metrics `paradnn.store.metrics.COSTS`, the price per hour (`PRICE`)
        and `price_currency`. A cost has an interval if the metric from which it is computed has
        one.
    """
    given = _given_prices(frame, prices)
    price = given.fillna(_numbers(frame, PRICE))
    recorded = frame.get(_CURRENCY, pd.Series(None, frame.index)).astype("object")
    columns = {PRICE: price, _CURRENCY: recorded.where(given.isna(), prices.currency)}
    is_ok = frame["outcome"].eq("ok").fillna(False).astype(bool)
    for cost in COSTS:
        amount = _numbers(frame, cost.of[0])
        for name in cost.of[1:]:
            amount = amount.fillna(_numbers(frame, name))
        amounts = {"": amount}
        for suffix, name in zip(("_low", "_high"), cost.ends, strict=False):
            amounts[suffix] = _numbers(frame, name)
        usable_price = price.where(is_ok | cost.learning)
        for suffix, values in amounts.items():
            columns[f"{cost.name}{suffix}"] = cost.value(usable_price, values.where(values > 0))
    return frame.drop(columns=[name for name in columns if name in frame]).assign(**columns)


def _given_prices(frame: pd.DataFrame, prices: PriceList) -> pd.Series:
    """Return the price per hour of the devices or host of each run.

    Args:
        frame: One row per run.
        prices: Prices from --price.

    Returns:
        One price per run; NaN if `prices` has neither the device nor the host.
    """
    per_device = frame["device"].map(prices.per_hour).astype("float64")
    if "devices" in frame and "platform.name" in frame:
        # CPU devices are cores, so their price counts per host. Other devices are chips, each of
        # which has the price.
        is_cpu = frame["platform.name"].eq("cpu")
        hosts = _numbers(frame, "hosts", default=1.0)
        per_device *= _numbers(frame, "devices").where(~is_cpu, hosts).fillna(1.0)
    if "host" not in frame:
        return per_device
    # The price of a host includes all its devices.
    return per_device.fillna(frame["host"].map(prices.per_hour).astype("float64"))


def _numbers(frame: pd.DataFrame, name: str, default: float = math.nan) -> pd.Series:
    """Return a column as float64; `default` in every row if the frame lacks the column."""
    if name not in frame:
        return pd.Series(default, index=frame.index, dtype="float64")
    return frame[name].astype("float64")
