"""The price of the hour in which a point is measured: its own, else that of its device or host in the user's table."""

from __future__ import annotations

from dataclasses import replace

from paradnn.config.point import Point
from paradnn.config.price import Prices
from paradnn.platform.environment import Environment


def priced(point: Point, prices: Prices, environment: Environment) -> Point:
    """The point with its price where one is known. Each of several devices costs as much as one, but for a CPU, whose
    devices are cores of its hosts."""
    if point.platform.price_per_hour is not None:
        return point
    chips = point.hosts if point.platform.name == "cpu" else point.devices
    price = prices.of(environment.device, str(environment.host["host"]), chips)
    return point if price is None else replace(point, platform=replace(point.platform, price_per_hour=price))


def price_tags(given: Point, point: Point, prices: Prices) -> dict[str, str]:
    """What the price of `point` is in, and where it is from if not from the point as it was `given`."""
    if point.platform.price_per_hour is None:
        return {}
    tags = {"price_currency": prices.currency} if prices.currency else {}
    from_table = given.platform.price_per_hour is None and prices.origin
    return tags | ({"price_source": prices.origin} if from_table else {})
