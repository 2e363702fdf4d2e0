"""Prices from the command line, tables and runs; costs compared with plain arithmetic."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.prices import PriceList, currency_of, read_prices, with_costs
from paradnn.core.errors import ConfigError


def run(**more: Any) -> pd.DataFrame:
    row = {"device": "V100", "host": "box", "outcome": "ok", "platform.name": "gpu", "devices": 1}
    return pd.DataFrame([row | more])


def test_prices_override_tables_and_later_ones_override_earlier(tmp_path: Path) -> None:
    page = tmp_path / "page.yaml"
    page.write_text(
        "{currency: USD, date: '2031', source: a page, per_hour: {V100: 2.5, TPU v2: 4}}"
    )
    prices = read_prices([str(page)], run())
    assert (dict(prices.per_hour), prices.currency, prices.origin) == (
        {"V100": 2.5},
        "USD",
        "a page, 2031",
    )
    assert read_prices([str(page), "V100=3"], run()).per_hour == {"V100": 3.0}
    own = tmp_path / "own.yaml"
    own.write_text("currency: EUR\nper_hour: {box: 0.5}\n")
    assert read_prices([str(own)], run()).per_hour == {"box": 0.5}
    with pytest.raises(ConfigError, match="are in EUR and USD; give tables of one currency"):
        read_prices([str(page), str(own)], run())
    for text, message in (
        (
            "per_hour: {box: -1}\n",
            "per_hour=box=-1: is not a positive price; write for example 'box: 2', the price of an hour",
        ),
        (
            "per_hours: {box: 1}\n",
            "per_hours={'box': 1}: no such key; did you mean per_hour? keys: currency, date",
        ),
        ("", "does not contain a table of prices; see conf/price/example.yaml"),
        ("- 1\n", "does not contain a table of prices; see conf/price/example.yaml"),
    ):
        own.write_text(text)
        with pytest.raises(ConfigError) as told:
            read_prices([str(own)], run())
        assert str(told.value).startswith(f"--price={own}: {message}"), told.value
    own.write_text("per_hour: [")
    with pytest.raises(ConfigError, match="is not a YAML file"):
        read_prices([str(own)], run())


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
    assert with_costs(run(**served), prices)["cost_per_million_queries"].iloc[0] == pytest.approx(
        10
    ), "of the peak"
    late = with_costs(
        run(outcome="overload", queries_per_second=100.0, seconds_to_target=1800.0), prices
    ).iloc[0]
    assert (pd.isna(late["cost_per_million_queries"]), late["cost_to_target"]) == (
        True,
        pytest.approx(3.6),
    )


def test_several_chips_cost_several_times_as_much_and_cores_do_not() -> None:
    frame = pd.concat(
        [run(devices=4), run(devices=4, **{"platform.name": "cpu"})], ignore_index=True
    )
    assert with_costs(frame, PriceList({"V100": 2.0}))["platform.price_per_hour"].tolist() == [
        8.0,
        2.0,
    ]
    assert with_costs(frame, PriceList({"box": 2.0}))["platform.price_per_hour"].tolist() == [
        2.0,
        2.0,
    ]


def test_a_given_currency_replaces_the_recorded_one() -> None:
    recorded = {"platform.price_per_hour": 1.0, "price_currency": "EUR"}
    frame = pd.concat([run(**recorded), run(**recorded, device="other")], ignore_index=True)
    assert currency_of(with_costs(frame, PriceList())) == "EUR"
    assert currency_of(with_costs(frame, PriceList({"V100": 2.0, "other": 1.0}, "USD"))) == "USD"
    with pytest.raises(
        ConfigError, match="price_currency=EUR, USD: prices of these runs cannot be compared"
    ):
        currency_of(with_costs(frame, PriceList({"V100": 2.0}, "USD")))
    assert currency_of(with_costs(run(), PriceList({"V100": 2.0}))) == ""
