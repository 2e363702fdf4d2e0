"""Analytic costs: the paper's extremes and the arithmetic that needs no framework."""

from __future__ import annotations

import itertools

import pytest

from paradnn.costs import model_costs

STEP = {"batch_size": 32, "precision": "float32", "mode": "train", "optimizer": "rmsprop"}


def fc(layers: int, nodes: int, input_size: int, output_size: int) -> dict:
    return {"name": "fc", "layers": layers, "nodes": nodes, "input_size": input_size, "output_size": output_size}


def test_table_2_spans_ten_thousand_to_nearly_a_billion_parameters() -> None:
    counts = [
        model_costs(fc(layers, nodes, inputs, outputs), **STEP).parameters
        for layers, nodes, inputs, outputs in itertools.product((4, 128), (32, 8192), (2000, 8000), (200, 1000))
    ]
    counts += [
        model_costs({"name": name, "layers": layers, "embedding_size": width, "sequence_length": 10, "vocab_size": 2},
                    **STEP).parameters
        for name, layers, width in itertools.product(("rnn", "lstm", "gru"), (1, 13), (100, 900))
    ]  # fmt: skip
    assert 10_000 < min(counts) < 30_000
    assert max(counts) > 900_000_000


def test_flops_of_the_stated_example() -> None:
    costs = model_costs(fc(4, 1024, 2000, 1000), **{**STEP, "batch_size": 256})
    weights = 2000 * 1024 + 3 * 1024**2 + 1024 * 1000
    assert costs.flops_per_step == 6 * 256 * weights - 2 * 256 * 2000 * 1024
    # TensorFlow's profiler prints 8.55e9 for this step, biases, activations and the loss counted in.
    assert costs.flops_per_step == pytest.approx(8.55e9, rel=0.006)


@pytest.mark.parametrize("model", [
    fc(4, 64, 100, 10),
    {"name": "bottleneck", "blocks": [1, 2, 1, 1], "filters": 4, "image_size": 33, "output_size": 7},
    {"name": "gru", "layers": 2, "embedding_size": 8, "sequence_length": 5, "vocab_size": 9},
])  # fmt: skip
def test_costs_scale_as_they_must(model: dict) -> None:
    one, two = (model_costs(model, **{**STEP, "batch_size": batch}) for batch in (8, 16))
    assert two.flops_per_step == 2 * one.flops_per_step
    assert two.parameters == one.parameters
    inference = model_costs(model, **{**STEP, "mode": "inference"})
    training = model_costs(model, **STEP)
    assert inference.flops_per_step == training.forward_flops < training.flops_per_step
    assert inference.memory_lower_bound_bytes < training.memory_lower_bound_bytes
    half = model_costs(model, **{**STEP, "precision": "bfloat16"})
    assert half.flops_per_step == training.flops_per_step
    assert half.memory_lower_bound_bytes < training.memory_lower_bound_bytes
    by_optimizer = [model_costs(model, **{**STEP, "optimizer": name}) for name in ("sgd", "momentum", "rmsprop")]
    slots = [costs.memory_lower_bound_bytes - by_optimizer[0].memory_lower_bound_bytes for costs in by_optimizer]
    assert slots == [0, 4 * training.parameters, 8 * training.parameters]
