"""What an hour of a device or of a host costs: a table that the user keeps, as a file of
`conf/price` or anywhere.
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


@dataclass(frozen=True)
class Prices:
    """Prices of an hour, by the name of a device or of a host, in one currency."""

    currency: str | None = option(None, "what prices are in, such as USD", longest=40)
    date: str | None = option(None, "of when they are", longest=40)
    source: str | None = option(None, "where they are from", longest=400)
    per_hour: Mapping[str, str] = option(
        {}, "device or host -> what an hour of it costs", prefixes=("",)
    )

    def of(self, device: str, host: str, count: int) -> float | None:
        """The price of so many devices, else of their host with all it has; None where neither is
        known.
        """
        if device in self.per_hour:
            return count * float(self.per_hour[device])
        return float(self.per_hour[host]) if host in self.per_hour else None

    @property
    def origin(self) -> str:
        """Where and of when the prices are, as far as that is known."""
        return ", ".join(filter(None, (self.source, self.date)))


def positive_price(key: str, shown: str, price: str, example: str = "V100=2") -> float:
    """A price that was written; ConfigError for what is none, with an `example` of how it is
    written.
    """
    try:
        number = float(price)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(key, shown, "is no price", f"write for example '{example}', an hour")
    return number


def check_prices(prices: Prices, key: str = "price") -> None:
    """ConfigError for the first price of a table that is none."""
    for name, price in prices.per_hour.items():
        positive_price(f"{key}.per_hour".lstrip("."), f"{name}={price}", price, f"{name}: 2")


def load_prices(name: str, key: str) -> Prices:
    """The table `name` of `conf/price`, or of a YAML file; ConfigError, naming `key`, where it is
    missing or wrong.
    """
    import yaml

    if name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
    else:
        path = CONFIG / "price" / f"{name}.yaml"
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        known = sorted(
            path.stem for path in (CONFIG / "price").glob("*.yaml") if path.stem != "none"
        )
        hint = (
            did_you_mean(name, known).strip()
            or f"write DEVICE=PRICE, a file.yaml, or one of {', '.join(known)}"
        )
        raise ConfigError(key, name, "is neither a price nor a table of prices", hint) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            key, name, f"is no YAML file ({reason})", "see conf/price/example.yaml"
        ) from None
    if not isinstance(content, Mapping):
        raise ConfigError(key, name, "holds no table of prices", "see conf/price/example.yaml")
    try:
        prices = read(Prices, content, "")
        check_prices(prices, "")
    except ConfigError as error:
        problem, _, remedy = str(error).rpartition("; ")
        raise ConfigError(key, name, problem, remedy) from None
    return prices
