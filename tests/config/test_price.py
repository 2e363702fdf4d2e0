"""Prices: no part of a point, found by device or host, refused where they are none."""

from dataclasses import replace

import pytest

from paradnn.config.identity import point_id, request_of
from paradnn.config.point import Platform, Point, read_point
from paradnn.config.price import Prices, load_prices
from paradnn.platform.environment import Environment
from paradnn.session.hardware_peaks import ceilings_identity
from paradnn.session.record import priced

ENVIRONMENT = Environment("V100", {}, {}, {"host": "box"})
TABLE = Prices("USD", "2019", "a page", {"V100": "2.5", "box": "1"})


def point(**platform: object) -> Point:
    return read_point({"model": {"name": "fc"}, "batch_size": 64, "platform": {"name": "gpu", **platform}})


def test_a_price_is_no_part_of_a_point_and_of_no_ceilings() -> None:
    dear = point(price_per_hour=3.0)
    assert point_id(dear) == point_id(point())
    former = {"min_seconds": 1.0, "block_seconds": 0.1}
    assert point_id(read_point({"model": {"name": "fc"}, "measure": former})) == "57f7f9f40bab5f25"
    assert ceilings_identity(dear, ENVIRONMENT) == ceilings_identity(point(), ENVIRONMENT)
    assert request_of(dear)["platform"]["price_per_hour"] == 3.0


TWO, OWN, OTHER = replace(point(), devices=2), point(price_per_hour=3.0), replace(ENVIRONMENT, device="another")
FROM = {"price_currency": "USD", "price_source": "a page, 2019"}


@pytest.mark.parametrize(
    ("given", "table", "environment", "price", "tags"),
    [
        (point(), TABLE, ENVIRONMENT, 2.5, FROM),
        (OWN, TABLE, ENVIRONMENT, 3.0, {"price_currency": "USD"}),
        (point(), TABLE, OTHER, 1.0, FROM),  # of the host
        (point(), Prices(), ENVIRONMENT, None, {}),
        (TWO, TABLE, ENVIRONMENT, 5.0, FROM),  # of each chip
        (replace(TWO, platform=Platform()), TABLE, ENVIRONMENT, 2.5, FROM),  # cores have none of their own
        (TWO, TABLE, OTHER, 1.0, FROM),  # nor have the devices of a host
        (point(), load_prices("example", "price"), ENVIRONMENT, None, {}),
    ],
)
def test_the_points_own_price_comes_first_and_the_device_before_its_host(
    given: Point, table: Prices, environment: Environment, price: float | None, tags: dict[str, str]
) -> None:
    found, said = priced(given, table, environment)
    assert (found.platform.price_per_hour, said) == (price, tags)
