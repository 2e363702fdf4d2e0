"""Analytic costs of small models, compared with hand calculations."""

import itertools

import pytest

from paradnn.core.layers import sum_costs
from paradnn.families import FAMILIES, make_model

STEP = {"batch_size": 32, "precision": "float32", "mode": "train", "optimizer": "rmsprop"}


def fc(layers: int, nodes: int, input_size: int, output_size: int) -> dict:
    return {
        "name": "fc",
        "layers": layers,
        "nodes": nodes,
        "input_size": input_size,
        "output_size": output_size,
    }


def test_hidden_layers_of_different_widths_have_the_published_parameters() -> None:
    """Compare with CANDLE's P1B3, which has 30,088,701 parameters.

    See Pilot1/P1B3 of github.com/ECP-CANDLE/Benchmarks.
    """
    model = {
        "name": "fc",
        "layers": 4,
        "nodes": [1000, 500, 100, 50],
        "input_size": 29532,
        "output_size": 1,
    }
    costs = make_model(model).costs(**STEP)
    assert costs.parameters == 30_088_701
    assert costs.forward_flops == 2 * 32 * (29532 * 1000 + 1000 * 500 + 500 * 100 + 100 * 50 + 50)
    equal_widths = make_model({**model, "nodes": [64] * 4}).costs(**STEP)
    assert equal_widths == make_model({**model, "nodes": 64}).costs(**STEP)


FC = fc(layers=1, nodes=3, input_size=5, output_size=2)


@pytest.mark.parametrize("name", ["fc", "bottleneck", "gru", "gpt", "mobilenet"])
def test_costs_of_a_step_are_the_sum_over_its_layers(name: str) -> None:
    model = FAMILIES[name].options()
    for batch, mode, precision in itertools.product(
        (1, 2, 37, 10_000), ("train", "inference"), ("float32", "float16")
    ):
        expected = sum_costs(model.layer_list(), batch, precision, mode, slots=2)
        assert (
            model.costs(**{**STEP, "batch_size": batch, "mode": mode, "precision": precision})
            == expected
        )


def test_bytes_of_a_fully_connected_step_agree_with_hand_calculations() -> None:
    """Use a batch of 4, with 20 inputs, 12 hidden units and 8 logits in total.

    The layers have 5 x 3 + 3 = 18 and 3 x 2 + 2 = 8 parameters, so the model has 26.
    """
    forward = (18 + 20 + 12) + (8 + 12 + 8)
    loss = 8 + 4 + 8
    # Reads: gradient of the logits, hidden units, weights without bias. Writes: gradients of the
    # hidden units and of the parameters.
    last = 8 + 12 + 6 + 12 + 8
    # Reads: gradient of the hidden units, inputs. Writes: gradient of the parameters.
    first = 12 + 20 + 18
    update = 26 + 26 + 26 + 2 * (26 + 26)
    train = make_model(FC).costs(**{**STEP, "batch_size": 4})
    assert train.bytes_per_step == 4 * (forward + loss + last + first + update) == 1504
    inference = make_model(FC).costs(**{**STEP, "batch_size": 4, "mode": "inference"})
    assert inference.bytes_per_step == 4 * forward == 312


def test_costs_of_softmax_regression_agree_with_hand_calculations() -> None:
    """Use the sizes of MNIST and a batch of 4.

    There are 4 x 784 inputs, 4 x 10 logits and 784 x 10 + 10 = 7,850 parameters.
    """
    model = make_model(fc(layers=0, nodes=64, input_size=784, output_size=10))
    inference = model.costs(**{**STEP, "batch_size": 4, "mode": "inference"})
    train = model.costs(**{**STEP, "batch_size": 4, "optimizer": "sgd"})

    assert model == make_model(fc(layers=0, nodes=1, input_size=784, output_size=10))
    assert inference.parameters == 7_850
    assert inference.forward_flops == 2 * 4 * 7_840
    assert inference.bytes_per_step == 4 * (7_850 + 3_136 + 40)
    # The gradient of the weights costs as much as the forward pass; inputs have no gradient.
    assert train.backward_flops == inference.forward_flops
    loss = 40 + 4 + 40
    # Reads: gradient of the logits, inputs. Writes: gradient of the parameters.
    backward = 40 + 3_136 + 7_850
    update = 3 * 7_850
    assert train.bytes_per_step == inference.bytes_per_step + 4 * (loss + backward + update)


def test_bytes_of_mixed_precision_agree_with_hand_calculations() -> None:
    """Use the same step in mixed precision.

    Inputs, logits with their gradient, and the weights and variables of the update have 4 bytes.
    """
    forward = 2 * (18 + 12 + 8 + 12) + 4 * (20 + 8)
    loss = 4 * (8 + 4 + 8)
    last = 4 * 8 + 2 * (12 + 6 + 12 + 8)
    first = 2 * 12 + 4 * 20 + 2 * 18
    update = 2 * 26 + 4 * (26 + 26 + 2 * (26 + 26))
    train = make_model(FC).costs(**{**STEP, "batch_size": 4, "precision": "bfloat16"})
    assert train.bytes_per_step == forward + loss + last + first + update == 1216
    assert train.memory_lower_bound_bytes == 4 * 3 * 26 + 4 * (20 + 4) + 2 * (12 + 8) == 448


def test_memory_of_a_fully_connected_step_agrees_with_hand_calculations() -> None:
    """Training needs three times the weights, inputs, classes, hidden units and logits.

    Inference needs the weights, inputs, hidden units and logits.
    """
    train = make_model(FC).costs(**{**STEP, "batch_size": 4})
    assert train.memory_lower_bound_bytes == 4 * (3 * 26 + 20 + 4 + 12 + 8) == 488
    inference = make_model(FC).costs(**{**STEP, "batch_size": 4, "mode": "inference"})
    assert inference.memory_lower_bound_bytes == 4 * (26 + 20 + 12 + 8) == 264
    # Two layers of 36 hidden units in total; 54, 90 and 10 parameters.
    wide = fc(layers=2, nodes=9, input_size=5, output_size=1)
    inference = make_model(wide).costs(**{**STEP, "batch_size": 4, "mode": "inference"})
    assert inference.memory_lower_bound_bytes == 4 * (154 + 20 + 36 + 36) == 984


def test_costs_of_a_residual_network_agree_with_hand_calculations() -> None:
    """Use one image of 16 x 16 x 3, one filter and two classes.

    The stem has 8 x 8 outputs, pooled to 4 x 4. The groups have 4 x 4 x 1, 2 x 2 x 2, 1 x 1 x 4 and
    1 x 1 x 8 outputs. Groups two to four begin with a projection; its normalization is part of the
    addition.
    """
    model = {
        "name": "residual",
        "blocks": [1, 1, 1, 1],
        "filters": 1,
        "image_size": 16,
        "output_size": 2,
    }
    costs = make_model(model).costs(**{**STEP, "batch_size": 1, "optimizer": "sgd"})
    products = (9 + 9) + (2 + 18 + 36) + (8 + 72 + 144) + (32 + 288 + 576)
    scales = 1 + (1 + 1) + (2 + 2 * 2) + (4 + 2 * 4) + (8 + 2 * 8)
    parameters = 147 + products + 2 * scales + (8 * 2 + 2)
    fixed = 2 * scales
    assert (costs.parameters, costs.non_trainable_parameters) == (parameters, fixed) == (1449, 90)
    read = (
        (64 + 64)  # normalization of the stem, pooling
        # Convolution, normalization, convolution, and normalization with addition.
        + (16 + 16 + 16 + (16 + 16))
        + (16 + 16 + 8 + 8 + (8 + 8))  # the same layers after a projection
        + (8 + 8 + 4 + 4 + (4 + 4))
        + (4 + 4 + 8 + 8 + (8 + 8))
        + (8 + 8)  # average, logits
    )
    written = (64 + 64 + 16) + 4 * 16 + 5 * 8 + 5 * 4 + 5 * 8 + (8 + 2)
    forward = parameters + 768 + read + written
    loss = 2 + 1 + 2
    backward = (2 + read) + (768 + read) + (products + 16 + scales) + read + parameters
    update = 3 * parameters + 2 * fixed
    assert costs.bytes_per_step == 4 * (forward + loss + backward + update) == 47924
    kept = (64 + 16) + 2 * 16 + 3 * 8 + 3 * 4 + 3 * 8 + (8 + 2)
    assert costs.memory_lower_bound_bytes == 4 * (parameters + fixed + 768 + 1 + kept) == 9960
    inference = make_model(model).costs(**{**STEP, "batch_size": 1, "mode": "inference"})
    assert inference.bytes_per_step == 4 * (forward + fixed) == 11940
    assert inference.memory_lower_bound_bytes == 4 * (parameters + fixed + 768 + 64) == 9484


#: Cells for two examples of 3 tokens, with width 2 and 11 words. There are 6 tokens, 12 embedded
#: values, 12 states and 66 logits in total. Columns are name, optimizer, parameters of the cell,
#: weights of its products, values that are stored only for the backward pass, states that the
#: backward pass reads, bytes of a step, and bytes of memory.
CELLS = [
    ("rnn", "rmsprop", 2 * (2 * 2 + 1), 2 * 4, 0, 12, 4076, 1188),
    ("lstm", "momentum", 4 * 2 * (2 * 2 + 1), 4 * 2 * 4, 2 * 2 * (3 * 3 + 2 * 2), 0, 4860, 1328),
    ("gru", "sgd", 3 * 2 * (2 * 2 + 2), 3 * 2 * 4, 2 * 2 * (3 * 3 + 2), 2 * 2 * 2, 3956, 932),
]


@pytest.mark.parametrize(
    ("name", "optimizer", "cell", "weights", "stored", "states", "traffic", "memory"), CELLS
)
def test_costs_of_recurrent_steps_agree_with_hand_calculations(
    name: str,
    optimizer: str,
    cell: int,
    weights: int,
    stored: int,
    states: int,
    traffic: int,
    memory: int,
) -> None:
    model = {"name": name, "layers": 1, "embedding_size": 2, "sequence_length": 3, "vocab_size": 11}
    slots = {"rmsprop": 2, "momentum": 1, "sgd": 0}[optimizer]
    parameters = 22 + cell + 33
    forward = (12 + 6 + 12) + (cell + 12 + 12 + stored) + (33 + 12 + 66)
    loss = 66 + 6 + 66
    logits_backward = 66 + 12 + 22 + 12 + 33
    cell_backward = 12 + 12 + stored + states + weights + 12 + cell
    embedding_backward = 12 + 6 + 22
    update = (3 + 2 * slots) * parameters
    costs = make_model(model).costs(**{**STEP, "batch_size": 2, "optimizer": optimizer})
    assert (
        costs.bytes_per_step
        == 4 * (forward + loss + logits_backward + cell_backward + embedding_backward + update)
        == traffic
    )
    kept = (1 + slots) * parameters + 6 + 6 + 12 + stored + states + 66
    assert costs.memory_lower_bound_bytes == 4 * kept == memory
    inference = make_model(model).costs(**{**STEP, "batch_size": 2, "mode": "inference"})
    assert inference.bytes_per_step == 4 * (forward - stored)
    assert inference.memory_lower_bound_bytes == 4 * (parameters + 6 + 12 + 66)


def test_an_embedding_reads_at_most_its_whole_table() -> None:
    model = {
        "name": "rnn",
        "layers": 1,
        "embedding_size": 2,
        "sequence_length": 3,
        "vocab_size": 11,
    }
    bytes_of_one, bytes_of_four = (
        make_model(model).costs(**{**STEP, "mode": "inference", "batch_size": batch}).bytes_per_step
        for batch in (1, 4)
    )
    rest = 10 + 33  # cell, logits
    assert bytes_of_one == 4 * (rest + 6 + (3 + 6 + 6 + 6 + 6 + 33))
    assert bytes_of_four == 4 * (rest + 22 + 4 * (3 + 6 + 6 + 6 + 6 + 33))


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        pytest.param("rmsprop", 1, id="rmsprop"),
        pytest.param("momentum", 0, id="momentum"),
        pytest.param("sgd", 0, id="sgd"),
    ],
)
def test_memory_without_momentum_includes_no_velocity(optimizer: str, slots: int) -> None:
    step = {**STEP, "batch_size": 4, "optimizer": optimizer}

    costs = make_model(FC).costs(**step, momentum=0.0)

    assert costs.memory_lower_bound_bytes == 4 * ((1 + slots) * 26 + 20 + 4 + 12 + 8)
