"""FLOPs, bytes and memory of small attention models, compared with hand calculations.

The tests cover training, inference and generation.
"""

import pandas as pd
import pytest

from analysis.store.step_inputs import WORK_METRICS, analytic_costs, points_from_words
from paradnn.core.errors import ParadnnError
from paradnn.families import make_model

STEP = {"batch_size": 2, "precision": "float32", "mode": "train", "optimizer": "sgd"}
#: 3 tokens of width 4, two heads and 11 words. A normalization has 8 parameters. A block has
#: 2 x 8 + (4 + 1) x 12 + (4 + 1) x 4 + (4 + 1) x 16 + (16 + 1) x 4.
GPT = {"name": "gpt", "layers": 1, "width": 4, "heads": 2, "sequence_length": 3, "vocab_size": 11}


def test_costs_of_a_language_model_agree_with_hand_calculations() -> None:
    table = 44
    positions = 12
    norm = 8
    # Query, key and value; projection of the attended values; hidden layer; output of the block.
    block = [60, 20, 80, 68]
    parameters = table + positions + 3 * norm + sum(block)
    x = 2 * 12
    logits = 2 * 33
    tokens = 2 * 3
    costs = make_model(GPT).costs(**STEP)
    assert costs.parameters == parameters
    macs = 2 * 3 * (48 + 16 + 64 + 64 + 44) + 2 * 2 * 3 * 3 * 4
    assert costs.forward_flops == 2 * macs
    assert costs.backward_flops == 2 * costs.forward_flops
    forward = (
        (24 + tokens + x)  # embedding: six rows of the table
        + positions
        + (norm + x + x)  # the first normalization has no addition
        + (60 + x + 3 * x)
        + (3 * x + x + 2 * 6)  # attention, with one softmax sum per query and head
        + (20 + x + x)
        + (norm + 2 * x + 2 * x)  # normalization with an addition, whose sum is written, too
        + (80 + x + 4 * x)
        + (68 + 4 * x + x)
        + (norm + 2 * x + x)  # the last normalization with an addition
        + (table + x + logits)
    )
    loss = logits + tokens + logits
    backward = (
        (logits + x + table + x)  # reads: gradient of logits, input, table; writes: input gradient
        # Reads: output gradient, both inputs, scales. Writes: gradients of both inputs.
        + (x + 2 * x + 4 + 2 * x)
        + (x + 4 * x + 64 + 4 * x)
        + (4 * x + x + 64 + x)
        + (2 * x + x + 4 + 2 * x)  # reads: gradients of both outputs and the sum
        + (x + x + 16 + x)
        # Attention reads: output gradient, inputs, output and softmax sums.
        + (x + 3 * x + x + 2 * 6 + 3 * x)
        + (3 * x + x + 48 + x)
        + (x + x + 4 + x)
        # The embedding adds six rows to the table's gradient, which the logits wrote.
        + (2 * x + tokens + 2 * 24)
        + parameters  # writes: every gradient of a parameter
    )
    update = 3 * parameters
    assert costs.bytes_per_step == 4 * (forward + loss + backward + update)
    kept = x + (3 * x + x + x) + (4 * x + x) + logits
    assert costs.memory_lower_bound_bytes == 4 * (parameters + 2 * tokens + kept)
    inference = make_model(GPT).costs(**{**STEP, "mode": "inference"})
    assert inference.bytes_per_step == 4 * (forward - 2 * 6)
    assert inference.memory_lower_bound_bytes == 4 * (parameters + tokens + 5 * x)


def test_costs_of_a_translation_model_agree_with_hand_calculations() -> None:
    """Use one layer per stack and 5 hidden units.

    Attention has no bias. Both embeddings and the output share one table.
    """
    model = GPT | {"name": "transformer", "feed_forward": 5, "dropout": 0.1, "label_smoothing": 0.1}
    costs = make_model(model).costs(**STEP)
    attention = 4 * 16
    feed = (4 + 1) * 5 + (5 + 1) * 4
    norm = 8
    parameters = 44 + (attention + feed + 2 * norm) + (2 * attention + feed + 3 * norm)
    assert costs.parameters == parameters
    scores = 2 * 3 * 3 * 4
    macs = (3 * 64 + scores + 3 * 40) + (2 * (3 * 64 + scores) + 3 * 40) + 3 * 44
    assert costs.forward_flops == 2 * 2 * macs
    assert costs.backward_flops == 2 * costs.forward_flops
    x = 24
    tokens = 6
    logits = 66
    kept = 2 * x + (5 * x + 30 + x) + (2 * 5 * x + 30 + x) + logits
    assert costs.memory_lower_bound_bytes == 4 * (parameters + 3 * tokens + kept)
    inference = make_model(model).costs(**{**STEP, "mode": "inference"})
    embedding = 24 + tokens + x
    self_attention = attention + norm + (x + 3 * x + x + 2 * x) + (3 * x + x + x + x)
    cross_attention = attention + norm + (x + x + 3 * x + x + 2 * x) + (x + 2 * x + x + x + x)
    feed_forward = feed + norm + (x + 30 + 2 * x) + (30 + x + x)
    encoder = embedding + self_attention + feed_forward
    decoder = embedding + self_attention + cross_attention + feed_forward
    assert inference.bytes_per_step == 4 * (encoder + decoder + (44 + x + logits))


#: The same model with 9 positions. The layers of its block have 60, 20, 80 and 68 parameters.
NINE = GPT | {"sequence_length": 9}
LENGTHS = {"prompt": 5, "tokens": 3}
BATCH = 2
TABLE = 44
POSITIONS = 36
NORM = 8
PARAMETERS = TABLE + POSITIONS + 3 * NORM + 60 + 20 + 80 + 68
#: Elements of the cache: keys and values of 8 positions of width 4, for each of two prompts.
CACHE = BATCH * 2 * 8 * 4


def step(model: dict = NINE, **changes):
    """Return the costs of a step that generates a token."""
    settings = {
        "batch_size": BATCH,
        "precision": "float32",
        "mode": "generate",
        "optimizer": "sgd",
        **LENGTHS,
    }
    return make_model(model).costs(**{**settings, **changes})


def test_costs_of_a_generated_token_agree_with_hand_calculations() -> None:
    costs = step()
    assert costs.parameters == PARAMETERS
    assert costs.forward_flops == 2 * BATCH * ((48 + 16 + 64 + 64 + 44) + 2 * 8 * 4)
    assert (costs.flops_per_step, costs.backward_flops) == (costs.forward_flops, 0)
    x = BATCH * 4
    moved = (
        (x + BATCH + x)  # one row of the table per token
        + 4  # all tokens have the same position
        + (NORM + x + x)
        + (60 + x + 3 * x)
        + (2 * x + 2 * x)  # a key and a value are copied to the cache
        + (x + CACHE + x)  # the whole cache is read
        + (20 + x + x)
        + (NORM + 2 * x + 2 * x)
        + (80 + x + 4 * x)
        + (68 + 4 * x + x)
        + (NORM + 2 * x + x)
        + (TABLE + x + BATCH * 11)
    )
    assert costs.bytes_per_step == 4 * moved
    assert costs.cache_bytes == 4 * CACHE


def test_costs_of_a_prompt_agree_with_hand_calculations() -> None:
    costs = make_model(NINE).prefill_costs(batch_size=BATCH, precision="float32", **LENGTHS)
    assert costs.parameters == PARAMETERS
    assert costs.forward_flops == 2 * BATCH * (5 * (48 + 16 + 64 + 64) + 2 * 5 * 5 * 4 + 44)
    x = BATCH * 5 * 4
    last = BATCH * 4
    moved = (
        (x + BATCH * 5 + x)
        + 5 * 4
        + (NORM + x + x)
        + (60 + x + 3 * x)
        + (2 * x + 2 * x)
        + (3 * x + x)  # the prompt attends to itself
        + (20 + x + x)
        + (NORM + 2 * x + 2 * x)
        + (80 + x + 4 * x)
        + (68 + 4 * x + x)
        + (NORM + 2 * last + last)  # only for the last token
        + (TABLE + last + BATCH * 11)
    )
    # The lookup reads at most the whole table.
    assert costs.bytes_per_step == 4 * (moved + min(TABLE, x) - x)


def test_memory_includes_weights_cache_and_the_widest_layer_of_the_prompt() -> None:
    """The widest layer is the hidden layer, with 5 tokens x (4 + 16) elements per example."""
    assert step().memory_lower_bound_bytes == 4 * (PARAMETERS + CACHE + BATCH * 5 + BATCH * 5 * 20)
    longer = step(model=NINE | {"sequence_length": 1000}, tokens=995)
    assert longer.cache_bytes == 4 * BATCH * 2 * 1000 * 4
    assert longer.memory_lower_bound_bytes - step().memory_lower_bound_bytes == 4 * (
        BATCH * 2 * 992 * 4 + 991 * 4  # cache, positions
    )


def test_sixteen_bits_halve_memory_and_bytes() -> None:
    """Weights are stored in 16 bits, too; logits and tokens have 4 bytes in every precision."""
    full = step()
    half = step(precision="bfloat16")
    wide = 4 * BATCH * (1 + 11)
    assert half.bytes_per_step - wide == (full.bytes_per_step - wide) / 2
    assert half.cache_bytes == full.cache_bytes / 2
    prompts = 4 * BATCH * 5
    assert half.memory_lower_bound_bytes - prompts == (full.memory_lower_bound_bytes - prompts) / 2


def test_only_a_language_model_can_generate() -> None:
    with pytest.raises(ValueError, match="fc cannot generate tokens"):
        step(model={"name": "fc", "layers": 1, "nodes": 4, "input_size": 4, "output_size": 4})
    with pytest.raises(ValueError, match="has no list of operations"):
        make_model(NINE).product_list(batch_size=1, precision="float32", mode="generate")


def test_costs_from_the_keys_of_a_stored_run_equal_those_of_its_point() -> None:
    """Forecasts and plans recompute the costs of a run from its stored keys."""
    keys = {f"model.{name}": value for name, value in NINE.items() if name != "name"}
    keys |= {f"generate.{name}": value for name, value in LENGTHS.items()}
    frame = pd.DataFrame([{"family": "gpt", "batch_size": BATCH, "mode": "generate", **keys}])
    assert analytic_costs(frame).iloc[0].to_dict() == {
        name: getattr(step(), name) for name in WORK_METRICS
    }


def test_costs_of_a_token_of_a_mixture_agree_with_hand_calculations() -> None:
    """Compare a mixture of four experts, two of them per token, with a dense model.

    Both have one layer of width 4, with 6 hidden units per expert.
    """
    model = {"name": "llama", "layers": 1, "width": 4, "heads": 2, "key_heads": 1}
    model |= {"feed_forward": 6, "sequence_length": 9, "vocab_size": 11}
    mixture = model | {"experts": 4, "active_experts": 2}
    expert = 3 * 4 * 6
    router = 4 * 4

    dense = {batch: step(model, batch_size=batch) for batch in (1, 2, 3)}
    routed = {batch: step(mixture, batch_size=batch) for batch in (1, 2, 3)}

    added_parameters = {
        batch: routed[batch].parameters - dense[batch].parameters for batch in dense
    }
    assert set(added_parameters.values()) == {3 * expert + router}
    for batch in (1, 2, 3):
        macs = routed[batch].forward_flops - dense[batch].forward_flops
        assert macs == 2 * batch * (expert + router)
        chosen = min(4, 2 * batch)
        # One more expert reads and writes the tensors of an expert: 4 + 12 and 12 + 4 elements.
        activations = batch * (4 + 12 + 12 + 4 + 4 + 4)
        moved = routed[batch].bytes_per_step - dense[batch].bytes_per_step
        assert moved == 4 * ((chosen - 1) * expert + router + activations)


def test_generation_with_a_mixture_cannot_be_measured() -> None:
    words = ["model=llama", "model.experts=8", "mode=generate", "platform=cpu"]

    with pytest.raises(ParadnnError, match=r"set model\.experts=1"):
        points_from_words(words)
    assert len(points_from_words(words, is_measured=False)) == 1
