"""Work, traffic and memory of a generation, worked out by hand for a tiny model, and beside the whole model's."""

import pandas as pd
import pytest

from analysis.store.past import WORK, costs_of
from paradnn.families import model_of

#: Width 4, two heads, 11 words, 9 positions: a block has 60, 20, 80 and 68 weights and biases, a normalisation 8.
GPT = {"name": "gpt", "layers": 1, "width": 4, "heads": 2, "sequence_length": 9, "vocab_size": 11}
LENGTHS = {"prompt": 5, "tokens": 3}
BATCH = 2
TABLE, POSITIONS, NORM = 44, 36, 8
PARAMETERS = TABLE + POSITIONS + 3 * NORM + 60 + 20 + 80 + 68
#: Keys and values of 8 places of width 4, for each of two prompts.
CACHE = BATCH * 2 * 8 * 4


def step(model: dict = GPT, **changes):
    given = {"batch_size": BATCH, "precision": "float32", "mode": "generate", "optimizer": "sgd", **LENGTHS}
    return model_of(model).costs(**{**given, **changes})


def test_a_token_by_hand() -> None:
    costs = step()
    assert costs.parameters == PARAMETERS
    assert costs.forward_flops == 2 * BATCH * ((48 + 16 + 64 + 64 + 44) + 2 * 8 * 4)
    assert (costs.flops_per_step, costs.backward_flops) == (costs.forward_flops, 0)
    x = BATCH * 4
    moved = (
        (x + BATCH + x)  # a row of the table for each token
        + 4  # one position for all of them
        + (NORM + x + x)
        + (60 + x + 3 * x)
        + (2 * x + 2 * x)  # a key and a value go into the cache
        + (x + CACHE + x)  # ... of which all is read
        + (20 + x + x)
        + (NORM + 2 * x + 2 * x)
        + (80 + x + 4 * x)
        + (68 + 4 * x + x)
        + (NORM + 2 * x + x)
        + (TABLE + x + BATCH * 11)
    )
    assert costs.bytes_per_step == 4 * moved
    assert costs.cache_bytes == 4 * CACHE


def test_a_prompt_by_hand() -> None:
    costs = model_of(GPT).prefill_costs(batch_size=BATCH, precision="float32", **LENGTHS)
    assert costs.parameters == PARAMETERS
    assert costs.forward_flops == 2 * BATCH * (5 * (48 + 16 + 64 + 64) + 2 * 5 * 5 * 4 + 44)
    x, last = BATCH * 5 * 4, BATCH * 4
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
        + (NORM + 2 * last + last)  # of the last token alone
        + (TABLE + last + BATCH * 11)
    )
    # More rows of the table than it has are the whole table.
    assert costs.bytes_per_step == 4 * (moved + min(TABLE, x) - x)


def test_memory_holds_weights_cache_and_the_widest_layer_of_the_prompt() -> None:
    """The hidden layer of the prompt's tokens and what it is made of: 5 x (4 + 16) numbers of each example."""
    assert step().memory_lower_bound_bytes == 4 * (PARAMETERS + CACHE + BATCH * 5 + BATCH * 5 * 20)
    longer = step(model=GPT | {"sequence_length": 1000}, tokens=995)
    assert longer.cache_bytes == 4 * BATCH * 2 * 1000 * 4
    assert longer.memory_lower_bound_bytes - step().memory_lower_bound_bytes == 4 * (
        BATCH * 2 * 992 * 4 + 991 * 4  # cache, positions
    )


def test_sixteen_bits_halve_what_is_stored_and_moved() -> None:
    """Weights too, which nothing trains; logits and tokens have 4 bytes in every precision."""
    full, half = step(), step(precision="bfloat16")
    wide = 4 * BATCH * (1 + 11)
    assert half.bytes_per_step - wide == (full.bytes_per_step - wide) / 2
    assert half.cache_bytes == full.cache_bytes / 2
    prompts = 4 * BATCH * 5
    assert half.memory_lower_bound_bytes - prompts == (full.memory_lower_bound_bytes - prompts) / 2


@pytest.mark.parametrize("batch", [1, 16])
def test_of_a_large_model_a_token_is_twice_its_weights_and_moves_them_once(batch: int) -> None:
    """GPT-2 small as Kaplan et al. and Pope et al. count it, with all that they leave out within 2%."""
    model = {"name": "gpt", "layers": 12, "width": 768, "heads": 12, "sequence_length": 1024, "vocab_size": 50257}
    costs = step(model=model, batch_size=batch, prompt=512, tokens=512)
    weights = 12 * 12 * 768**2 + 50257 * 768
    cache = 2 * 12 * 1024 * 768
    assert costs.flops_per_step == 2 * batch * (weights + cache)
    assert costs.bytes_per_step == pytest.approx(4 * (weights + batch * cache), rel=0.02)
    assert costs.cache_bytes == 4 * batch * cache


def test_only_a_language_model_generates() -> None:
    with pytest.raises(ValueError, match="fc generates no tokens"):
        step(model={"name": "fc", "layers": 1, "nodes": 4, "input_size": 4, "output_size": 4})
    with pytest.raises(ValueError, match="not told as a list of operations"):
        model_of(GPT).product_list(batch_size=1, precision="float32", mode="generate")


def test_stored_runs_cost_what_their_points_do() -> None:
    """Prediction and planning from a store count a run's work again, from its keys."""
    keys = {f"model.{name}": value for name, value in GPT.items() if name != "name"}
    keys |= {f"generate.{name}": value for name, value in LENGTHS.items()}
    frame = pd.DataFrame([{"family": "gpt", "batch_size": BATCH, "mode": "generate", **keys}])
    assert costs_of(frame).iloc[0].to_dict() == {name: getattr(step(), name) for name in WORK}
