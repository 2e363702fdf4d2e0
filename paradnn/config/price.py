"""Prices per hour of devices and hosts.

A table of prices is a file in `conf/price`, or another YAML file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradnn.config.paths import CONFIG
from paradnn.core.errors import ConfigError
from paradnn.core.schema import option, read
from paradnn.core.words import did_you_mean

_EXAMPLE = "see conf/price/example.yaml"


@dataclass(frozen=True)
class Prices:
    """A table of prices per hour, by name of device or host, in one currency."""

    currency: str | None = option(None, "currency of the prices, such as USD", longest=40)
    date: str | None = option(None, "date of the prices", longest=40)
    source: str | None = option(None, "source of the prices", longest=400)
    per_hour: Mapping[str, str] = option(
        {}, "price of an hour by name of device or host", prefixes=("",)
    )

    def hourly_price(self, device: str, host: str, count: int) -> float | None:
        """Return the price of one hour of several devices, in the currency of the table.

        A price of the device has precedence over a price of the host, which includes all devices of
        the host.

        Args:
            device: Name of the device.
            host: Name of the host.
            count: Number of devices.

        Returns:
            The price; None if the table has neither the device nor the host.
        """
        if device in self.per_hour:
            return count * float(self.per_hour[device])
        if host in self.per_hour:
            return float(self.per_hour[host])
        return None

    @property
    def origin(self) -> str:
        """Source and date of the prices as text; unknown parts are omitted."""
        return ", ".join(text for text in (self.source, self.date) if text)


def positive_price(key: str, shown: str, price: str, example: str = "V100=2") -> float:
    """Convert a price, which the user wrote as text, to a number.

    Args:
        key: The configuration key that contains the price, for the error message.
        shown: Value of this key as the user wrote it, for the error message.
        price: The price as text.
        example: A valid value of the key, for the error message.

    Raises:
        ConfigError: If the price is not a positive number.
    """
    try:
        number = float(price)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        remedy = f"for example, write '{example}', the price of an hour"
        raise ConfigError(key, shown, "is not a positive price", remedy)
    return number


def check_prices(prices: Prices, key: str = "price") -> None:
    """Check that all prices of a table are positive numbers.

    Args:
        prices: The table.
        key: The configuration key of the table, for the error message; empty for a table in a file.

    Raises:
        ConfigError: For the first price that is not a positive number.
    """
    dotted_key = f"{key}.per_hour".lstrip(".")
    for name, price in prices.per_hour.items():
        positive_price(dotted_key, f"{name}={price}", price, f"{name}: 2")


def load_prices(name: str, key: str) -> Prices:
    """Load a table of prices.

    Args:
        name: Name of a table in `conf/price`, or path of a YAML file.
        key: The configuration key whose value is `name`, for error messages.

    Raises:
        ConfigError: If the table does not exist or is invalid.
    """
    import yaml

    if name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
    else:
        path = CONFIG / "price" / f"{name}.yaml"
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        reason = "is neither a price nor a table of prices"
        raise ConfigError(key, name, reason, _missing_table_remedy(name)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(key, name, f"is not a YAML file ({problem})", _EXAMPLE) from None
    if not isinstance(content, Mapping):
        raise ConfigError(key, name, "does not contain a table of prices", _EXAMPLE)
    try:
        prices = read(Prices, content, "")
        check_prices(prices, "")
    except ConfigError as error:
        problem, _, remedy = str(error).rpartition("; ")
        raise ConfigError(key, name, problem, remedy) from None
    return prices


def _missing_table_remedy(name: str) -> str:
    tables = sorted(path.stem for path in (CONFIG / "price").glob("*.yaml"))
    tables.remove("none")
    suggestion = did_you_mean(name, tables).strip()
    return suggestion or f"write DEVICE=PRICE, a file.yaml, or one of {', '.join(tables)}"
