"""The products of a step as operations, against its costs and what others profiled; and that a family is one file."""

import dataclasses
from collections import Counter
from dataclasses import asdict

import pytest

from analysis import drawing as style
from paradnn.cli.help import known_keys
from paradnn.families import FAMILIES, Family, model_of
from paradnn.families.operations import elementwise_operation
from tests.conftest import ROOT

MODELS = [name for name, family in FAMILIES.items() if family.has_layers]
#: Operands of the products of CANDLE's P1B3 in one pass of batch 100, and how often each ran, as TensorFlow's profiler
#: printed them (Stevens, "Performance and benchmarking of deep learning", lecture; "P1B3 Matrix Sizes").
P1B3 = {
    ((100, 100), (100, 50)): 2,
    ((100, 29532), (100, 1000)): 1,
    ((100, 29532), (29532, 1000)): 1,
    ((100, 1), (50, 1)): 1,
    ((100, 100), (500, 100)): 1,
    ((100, 1000), (1000, 500)): 1,
    ((100, 1000), (100, 500)): 1,
    ((100, 50), (100, 1)): 1,
    ((100, 50), (100, 50)): 1,
    ((100, 50), (50, 1)): 1,
    ((100, 500), (1000, 500)): 1,
    ((100, 500), (100, 100)): 1,
    ((100, 500), (500, 100)): 1,
}


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_products_do_all_the_arithmetic_of_a_step(name: str, mode: str) -> None:
    model = asdict(FAMILIES[name].options(name=name))
    costs = model_of(model).costs(batch_size=3, precision="float32", mode=mode, optimizer="sgd")
    found = model_of(model).product_list(batch_size=3, precision="float32", mode=mode)
    flops = sum(each.count * each.operation.flops for each in found)
    if name == "mobilenet":  # depthwise convolutions are no products
        assert 0.9 < flops / costs.flops_per_step < 1
    else:
        assert flops == costs.flops_per_step
    assert all(each.count > 0 and each.operation.bytes > 0 for each in found)


def test_a_fully_connected_step_has_the_products_that_candle_profiled() -> None:
    """The first layer's input gradient, which the profile lists as run 0 times, is not among them."""
    model = {"name": "fc", "layers": 4, "nodes": [1000, 500, 100, 50], "input_size": 29532, "output_size": 1}
    found: Counter[tuple[tuple[int, int], tuple[int, int]]] = Counter()
    for each in model_of(model).product_list(batch_size=100, precision="float32", mode="train"):
        one = each.operation
        left = (one.k, one.m) if one.variant[0] == "t" else (one.m, one.k)
        right = (one.n, one.k) if one.variant[1] == "t" else (one.k, one.n)
        found[left, right] += each.count
    assert found == P1B3


def test_directions_of_a_convolution_are_products_of_the_same_arithmetic() -> None:
    options = {"channels": 8, "height": 10, "width": 12, "filters": 16, "kernel": (3, 3), "padding": (1, 1)}
    for direction in ("forward", "backward_input", "backward_weights"):
        model = asdict(FAMILIES["conv2d"].options(name="conv2d", direction=direction, **options))
        one = model_of(model).as_operation(4, "float32")
        m, n, k, calls = one.product
        assert 2 * m * n * k * calls == one.flops == 2 * 4 * 10 * 12 * 9 * 8 * 16
    assert (m, n, k) == (72, 16, 480)


def test_a_recurrent_kernel_is_products_one_after_the_other_and_its_weights_one() -> None:
    for direction, product in {
        "forward": (5, 32, 8, 3),
        "backward_input": (5, 8, 32, 3),
        "backward_weights": (8, 32, 15, 1),
    }.items():
        model = {"name": "rnn_kernel", "cell": "lstm", "hidden": 8, "steps": 3, "direction": direction}
        one = model_of(model).as_operation(5, "float32")
        assert sorted(one.product) == sorted(product)
        assert one.flops == 2 * 5 * 3 * 8 * 32


def test_an_elementwise_operation_moves_what_it_is_said_to() -> None:
    one = elementwise_operation(1.2e6, "float32")
    kernel = model_of({"name": "elementwise", "elements": one.m, "operations": 1}).as_operation(1, "float32")
    assert kernel == one
    chain = model_of({"name": "elementwise", "elements": one.m, "operations": 7}).as_operation(1, "bfloat16")
    assert (chain.calls, chain.bytes, chain.flops) == (7, 3.5 * one.bytes, 7 * one.flops)


def test_readme_names_every_family() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in readme] == []


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_an_entry_is_whole(family: Family) -> None:
    fields = {field.name: field for field in dataclasses.fields(family.options)}
    assert isinstance(family.options(name=family.name).size, str)
    assert family.data in ("vectors", "images", "tokens", "any")
    assert set(family.swept) <= set(fields)
    assert family.sweep or not family.swept
    keys = [word.partition("=")[0] for word in family.sweep.split()]
    assert set(keys) <= set(known_keys())
    assert family.sweep or family.is_real or family.options.is_counted


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_family_has_costs_and_a_look_of_its_own(family: Family) -> None:
    model = dataclasses.asdict(family.options(name=family.name))
    costs = model_of(model).costs(batch_size=2, precision="float32", mode="train", optimizer="rmsprop")
    assert (costs.parameters == 0) == (family.is_kernel or family.options.is_counted)
    assert (costs.flops_per_step == 0) == (family.is_communication or family.options.is_counted)
    others = [name for name in FAMILIES if name != family.name]
    assert style.look(family.name) not in [style.look(name) for name in others]
