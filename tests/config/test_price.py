"""Prices: no part of a point, found by device or host, refused where they are none."""

from dataclasses import replace

from paradnn.config.identity import point_id, request_of
from paradnn.config.point import Platform, Point, read_point
from paradnn.config.price import Prices, load_prices, price_tables
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
    assert point_id(read_point({"model": {"name": "fc"}})) == "57f7f9f40bab5f25"
    assert ceilings_identity(dear, ENVIRONMENT) == ceilings_identity(point(), ENVIRONMENT)
    assert request_of(dear)["platform"]["price_per_hour"] == 3.0


def test_the_points_own_price_comes_before_the_tables_and_the_device_before_its_host() -> None:
    assert priced(point(), TABLE, ENVIRONMENT)[0].platform.price_per_hour == 2.5
    assert priced(point(price_per_hour=3.0), TABLE, ENVIRONMENT)[0].platform.price_per_hour == 3.0
    other = replace(ENVIRONMENT, device="another")
    assert priced(point(), TABLE, other)[0].platform.price_per_hour == 1.0
    assert priced(point(), Prices(), ENVIRONMENT)[0] == point()


def test_every_chip_has_its_price_and_cores_of_a_host_have_none() -> None:
    two = replace(point(), devices=2)
    assert priced(two, TABLE, ENVIRONMENT)[0].platform.price_per_hour == 5.0
    assert priced(replace(two, platform=Platform()), TABLE, ENVIRONMENT)[0].platform.price_per_hour == 2.5


def test_a_run_says_what_its_price_is_in_and_where_it_is_from() -> None:
    given = point()
    assert priced(given, TABLE, ENVIRONMENT)[1] == {"price_currency": "USD", "price_source": "a page, 2019"}
    own = point(price_per_hour=3.0)
    assert priced(own, TABLE, ENVIRONMENT)[1] == {"price_currency": "USD"}
    assert priced(given, Prices(), ENVIRONMENT)[1] == {}


def test_the_price_of_a_host_is_that_of_all_its_devices() -> None:
    four = replace(point(), devices=4)
    assert priced(four, TABLE, replace(ENVIRONMENT, device="another"))[0].platform.price_per_hour == 1.0


def test_the_shipped_table_is_an_example_that_prices_nothing() -> None:
    assert price_tables() == ["example"]
    assert priced(point(), load_prices("example", "price"), ENVIRONMENT)[0] == point()
