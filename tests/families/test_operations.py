"""Products of a step as operations, compared with its costs and with a published profile.

The module also checks the entry of every family.
"""

import csv
import dataclasses
from dataclasses import asdict
from pathlib import Path

import pytest

from analysis import drawing as style
from paradnn.cli.help import known_keys
from paradnn.families import FAMILIES, Family, make_model
from tests.conftest import ROOT

MODELS = [name for name, family in FAMILIES.items() if family.has_layers]


def p1b3() -> dict[tuple[int, int, int, str], float]:
    """Return the products of one pass of CANDLE's P1B3 from a published profile.

    Maps m, n, k and the letters of the transposition to a time in milliseconds.
    """
    lines = Path(__file__).with_name("p1b3.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {
        (int(m), int(n), int(k), letters): float(time)
        for m, n, k, letters, time in (row.values() for row in rows)
    }


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_products_have_all_the_flops_of_a_step(name: str, mode: str) -> None:
    model = asdict(FAMILIES[name].options(name=name))
    costs = make_model(model).costs(batch_size=3, precision="float32", mode=mode, optimizer="sgd")
    products = make_model(model).product_list(batch_size=3, precision="float32", mode=mode)
    flops = sum(each.count * each.operation.flops for each in products)
    if name in ("mobilenet", "xception"):
        # Depthwise convolutions are not products.
        assert 0.9 < flops / costs.flops_per_step < 1
    else:
        assert flops == costs.flops_per_step
    assert all(each.count > 0 and each.operation.bytes > 0 for each in products)


def test_a_fully_connected_step_has_the_products_of_candles_profile() -> None:
    """Compare all products except for the gradient of the inputs, which is never computed.

    The profile lists it with 0 executions.
    """
    model = {
        "name": "fc",
        "layers": 4,
        "nodes": [1000, 500, 100, 50],
        "input_size": 29532,
        "output_size": 1,
    }
    products = make_model(model).product_list(batch_size=100, precision="float32", mode="train")
    operations = [operation.operation for operation in products for _ in range(operation.count)]
    assert sorted(
        (operation.m, operation.n, operation.k, operation.variant) for operation in operations
    ) == sorted(p1b3())


def test_all_directions_of_a_kernel_have_the_same_flops() -> None:
    """A recurrent layer has one product per step, but only one for the gradient of its weights."""
    options = {
        "channels": 8,
        "height": 10,
        "width": 12,
        "filters": 16,
        "kernel": (3, 3),
        "padding": (1, 1),
    }
    recurrent = {
        "forward": (5, 32, 8, 3),
        "backward_input": (5, 8, 32, 3),
        "backward_weights": (8, 32, 15, 1),
    }
    for direction, product in recurrent.items():
        model = asdict(FAMILIES["conv2d"].options(name="conv2d", direction=direction, **options))
        operation = make_model(model).as_operation(4, "float32")
        m, n, k, calls = operation.product
        assert 2 * m * n * k * calls == operation.flops == 2 * 4 * 10 * 12 * 9 * 8 * 16
        cell = {
            "name": "rnn_kernel",
            "cell": "lstm",
            "hidden": 8,
            "steps": 3,
            "direction": direction,
        }
        recurrent_operation = make_model(cell).as_operation(5, "float32")
        assert sorted(recurrent_operation.product) == sorted(product)
        assert recurrent_operation.flops == 2 * 5 * 3 * 8 * 32
    assert (m, n, k) == (72, 16, 480)


each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)


@each_family
def test_a_family_names_its_data_and_its_size(family: Family) -> None:
    assert isinstance(family.options(name=family.name).size, str)
    assert family.data in ("vectors", "images", "tokens", "any")


@each_family
def test_a_family_sweeps_keys_that_exist(family: Family) -> None:
    assert set(family.swept) <= {field.name for field in dataclasses.fields(family.options)}
    assert {word.partition("=")[0] for word in family.sweep.split()} <= set(known_keys())
    assert family.sweep or (not family.swept and (family.is_real or family.options.is_counted))


@each_family
def test_a_family_has_the_costs_of_its_kind(family: Family) -> None:
    model = family.options(name=family.name)

    costs = model.costs(batch_size=2, precision="float32", mode="train", optimizer="rmsprop")

    assert (costs.parameters == 0) == (not family.has_layers)
    assert (costs.flops_per_step == 0) == (family.is_communication or family.options.is_counted)


@each_family
def test_a_family_has_a_unique_look_in_figures(family: Family) -> None:
    assert style.look(family.name) not in [
        style.look(name) for name in FAMILIES if name != family.name
    ]


@each_family
def test_a_family_is_documented(family: Family) -> None:
    assert f"`{family.name}`" in (ROOT / "docs/reference/configuration.md").read_text()
