"""Prices from the command line, from tables and from runs; costs by plain arithmetic."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.prices import PriceList, currency_of, read_prices, with_costs
from paradnn.core.errors import ConfigError


def run(**more: Any) -> pd.DataFrame:
    """Return a frame with one run on a V100; `more` overrides its columns."""
    row = {"device": "V100", "host": "box", "outcome": "ok", "platform.name": "gpu", "devices": 1}
    return pd.DataFrame([row | more])


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Return a table of prices in US dollars."""
    path = tmp_path / "page.yaml"
    path.write_text(
        "{currency: USD, date: '2031', source: a page, per_hour: {V100: 2.5, TPU v2: 4}}"
    )
    return path


def test_prices_of_a_table_keep_its_currency_and_source(page: Path) -> None:
    prices = read_prices([str(page)], run())

    assert (dict(prices.per_hour), prices.currency, prices.origin) == (
        {"V100": 2.5},
        "USD",
        "a page, 2031",
    )


def test_later_prices_override_earlier_ones(page: Path) -> None:
    assert read_prices([str(page), "V100=3"], run()).per_hour == {"V100": 3.0}


def test_a_price_may_belong_to_a_host(tmp_path: Path) -> None:
    table = tmp_path / "own.yaml"
    table.write_text("currency: EUR\nper_hour: {box: 0.5}\n")

    assert read_prices([str(table)], run()).per_hour == {"box": 0.5}


def test_tables_in_different_currencies_are_rejected(page: Path, tmp_path: Path) -> None:
    second_table = tmp_path / "own.yaml"
    second_table.write_text("currency: EUR\nper_hour: {box: 0.5}\n")

    with pytest.raises(
        ConfigError,
        match=r"these tables are in different currencies \(EUR, USD\); give tables of one",
    ):
        read_prices([str(page), str(second_table)], run())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "per_hour: {box: -1}\n",
            "per_hour=box=-1: is not a positive price; for example, write 'box: 2', the price of an hour",
            id="negative price",
        ),
        pytest.param(
            "per_hours: {box: 1}\n",
            "per_hours={'box': 1}: no such key; did you mean per_hour? keys: currency, date",
            id="unknown key",
        ),
        pytest.param(
            "", "does not contain a table of prices; see conf/price/example.yaml", id="empty"
        ),
        pytest.param(
            "- 1\n", "does not contain a table of prices; see conf/price/example.yaml", id="list"
        ),
    ],
)
def test_an_invalid_table_of_prices_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    table = tmp_path / "own.yaml"
    table.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_prices([str(table)], run())

    assert str(caught.value).startswith(f"--price={table}: {message}"), caught.value


def test_a_table_of_prices_that_is_not_yaml_is_rejected(tmp_path: Path) -> None:
    table = tmp_path / "own.yaml"
    table.write_text("per_hour: [")

    with pytest.raises(ConfigError, match="is not a YAML file"):
        read_prices([str(table)], run())


def test_costs_are_price_times_time() -> None:
    prices = PriceList({"V100": 7.2})
    rates = {
        "examples_per_second": 100.0,
        "examples_per_second_low": 80.0,
        "examples_per_second_high": 125.0,
    }
    found = with_costs(
        run(**rates, seconds_to_target=1800.0, learning_seconds=3600.0), prices
    ).iloc[0]

    assert found["cost_per_million_examples"] == pytest.approx(10_000 * 7.2 / 3600)
    assert found["cost_per_million_examples_low"] == pytest.approx(8_000 * 7.2 / 3600)
    assert found["cost_per_million_examples_high"] == pytest.approx(12_500 * 7.2 / 3600)
    assert (found["cost_to_target"], found["cost_of_learning"]) == pytest.approx((3.6, 7.2))
    assert pd.isna(found["cost_per_million_queries"])

    served = {"peak_queries_per_second": 200.0, "queries_per_second": 150.0}
    cost_at_peak = with_costs(run(**served), prices)["cost_per_million_queries"].iloc[0]

    assert cost_at_peak == pytest.approx(10), "the peak rate determines the cost"

    overloaded = with_costs(
        run(outcome="overload", queries_per_second=100.0, seconds_to_target=1800.0), prices
    ).iloc[0]
    assert pd.isna(overloaded["cost_per_million_queries"])
    assert overloaded["cost_to_target"] == pytest.approx(3.6)


def test_the_price_of_a_device_is_per_chip_but_not_per_core() -> None:
    frame = pd.concat(
        [run(devices=4), run(devices=4, **{"platform.name": "cpu"})], ignore_index=True
    )
    device_price = with_costs(frame, PriceList({"V100": 2.0}))["platform.price_per_hour"]
    host_price = with_costs(frame, PriceList({"box": 2.0}))["platform.price_per_hour"]

    assert device_price.tolist() == [8.0, 2.0]
    assert host_price.tolist() == [2.0, 2.0]


def test_a_given_currency_replaces_the_recorded_one() -> None:
    recorded = {"platform.price_per_hour": 1.0, "price_currency": "EUR"}
    frame = pd.concat([run(**recorded), run(**recorded, device="other")], ignore_index=True)

    assert currency_of(with_costs(frame, PriceList())) == "EUR"
    assert currency_of(with_costs(frame, PriceList({"V100": 2.0, "other": 1.0}, "USD"))) == "USD"
    with pytest.raises(
        ConfigError,
        match="price_currency=EUR, USD: prices in different currencies cannot be compared",
    ):
        currency_of(with_costs(frame, PriceList({"V100": 2.0}, "USD")))
    assert currency_of(with_costs(run(), PriceList({"V100": 2.0}))) == ""
