"""Traffic and memory of small attention models, worked out by hand; the presets' range of parameters."""

from dataclasses import replace

import pytest

from paradnn.families import Model, model_of
from paradnn.families.attention import LanguageModel, Llama, Transformer, VisionTransformer

STEP = {"batch_size": 2, "precision": "float32", "mode": "train", "optimizer": "sgd"}
#: 3 tokens of width 4, two heads, 11 words: a normalisation has 8 numbers, a block 2 x 8 + (4 + 1) x 12 + (4 + 1) x 4
#: + (4 + 1) x 16 + (16 + 1) x 4.
GPT = {"name": "gpt", "layers": 1, "width": 4, "heads": 2, "sequence_length": 3, "vocab_size": 11}


def test_a_language_model_by_hand() -> None:
    table, positions, norm = 44, 12, 8
    block = [60, 20, 80, 68]  # query, key and value; attended; hidden; output
    parameters = table + positions + 3 * norm + sum(block)
    x, logits, tokens = 2 * 12, 2 * 33, 2 * 3
    costs = model_of(GPT).costs(**STEP)
    assert costs.parameters == parameters
    macs = 2 * 3 * (48 + 16 + 64 + 64 + 44) + 2 * 2 * 3 * 3 * 4
    assert costs.forward_flops == 2 * macs
    assert costs.backward_flops == 2 * costs.forward_flops
    forward = (
        (24 + tokens + x)  # six rows of the table
        + positions
        + (norm + x + x)  # the first normalisation adds nothing
        + (60 + x + 3 * x)
        + (3 * x + x + 2 * 6)  # attention, with a sum for each query and head
        + (20 + x + x)
        + (norm + 2 * x + 2 * x)  # adds, hands the sum on
        + (80 + x + 4 * x)
        + (68 + 4 * x + x)
        + (norm + 2 * x + x)  # adds
        + (table + x + logits)
    )
    loss = logits + tokens + logits
    backward = (
        (logits + x + table + x)  # logits' gradient, input, table; input's gradient
        + (x + 2 * x + 4 + 2 * x)  # output's gradient, both inputs, scales; gradients of both
        + (x + 4 * x + 64 + 4 * x)
        + (4 * x + x + 64 + x)
        + (2 * x + x + 4 + 2 * x)  # gradients of both outputs, the sum
        + (x + x + 16 + x)
        + (x + 3 * x + x + 2 * 6 + 3 * x)  # output's gradient, inputs, its output again, sums
        + (3 * x + x + 48 + x)
        + (x + x + 4 + x)
        + (2 * x + tokens + 2 * 24)  # gradients from both readers; six rows are added to what the logits wrote
        + parameters  # every gradient written
    )
    update = 3 * parameters
    assert costs.bytes_per_step == 4 * (forward + loss + backward + update)
    kept = x + (3 * x + x + x) + (4 * x + x) + logits
    assert costs.memory_lower_bound_bytes == 4 * (parameters + 2 * tokens + kept)
    inference = model_of(GPT).costs(**{**STEP, "mode": "inference"})
    assert inference.bytes_per_step == 4 * (forward - 2 * 6)
    assert inference.memory_lower_bound_bytes == 4 * (parameters + tokens + 5 * x)


def test_a_translation_model_by_hand() -> None:
    """One layer each, hidden 5; attention without bias; three layers read one table."""
    model = {
        "name": "transformer",
        "layers": 1,
        "width": 4,
        "heads": 2,
        "feed_forward": 5,
        "sequence_length": 3,
        "vocab_size": 11,
        "dropout": 0.1,
        "label_smoothing": 0.1,
    }
    costs = model_of(model).costs(**STEP)
    attention, feed, norm = 4 * 16, (4 + 1) * 5 + (5 + 1) * 4, 8
    parameters = 44 + (attention + feed + 2 * norm) + (2 * attention + feed + 3 * norm)
    assert costs.parameters == parameters
    scores = 2 * 3 * 3 * 4
    macs = (3 * 64 + scores + 3 * 40) + (2 * (3 * 64 + scores) + 3 * 40) + 3 * 44
    assert costs.forward_flops == 2 * 2 * macs
    assert costs.backward_flops == 2 * costs.forward_flops
    x, tokens, logits = 24, 6, 66
    kept = 2 * x + (5 * x + 30 + x) + (2 * 5 * x + 30 + x) + logits
    assert costs.memory_lower_bound_bytes == 4 * (parameters + 3 * tokens + kept)
    inference = model_of(model).costs(**{**STEP, "mode": "inference"})
    looking = 24 + tokens + x
    itself = attention + norm + (x + 3 * x + x + 2 * x) + (3 * x + x + x + x)
    other = attention + norm + (x + x + 3 * x + x + 2 * x) + (x + 2 * x + x + x + x)
    feeding = feed + norm + (x + 30 + 2 * x) + (30 + x + x)
    expected = (looking + itself + feeding) + (looking + itself + other + feeding) + (44 + x + logits)
    assert inference.bytes_per_step == 4 * expected


BASE = Transformer()
BIG = replace(BASE, width=1024, heads=16, feed_forward=4096)


def gpt(layers: int, width: int, heads: int) -> Model:
    return LanguageModel(layers=layers, width=width, heads=heads, sequence_length=1024, vocab_size=50257)


def llama(layers: int, width: int, key_heads: int, feed_forward: int, vocab_size: int) -> Model:
    sizes = {"feed_forward": feed_forward, "vocab_size": vocab_size}
    return Llama(layers=layers, width=width, heads=32, key_heads=key_heads, **sizes)


def vit(layers: int, width: int, heads: int, patch: int = 16) -> Model:
    return VisionTransformer(layers=layers, width=width, heads=heads, patch=patch)


#: Sources: metadata of the published weights of Llama 2 7B, Llama 3 8B and TinyLlama 1.1B;
#: torchvision's model pages (exact) and Table 1 of Touvron et al. 2021 (DeiT-S: 22M); the download script and
#: announcement of GPT-2 (124M, 355M, 774M, 1558M); Table 3 of Vaswani et al. 2017 (65M and 213M, whose own table gives
#: 213M - 65M to no vocabulary; 37,000 tokens give 3% less and 0.6% more).
@pytest.mark.parametrize(
    ("model", "published", "tolerance"),
    [
        (vit(12, 768, 12), 86_567_656, 0),
        (vit(12, 768, 12, 32), 88_224_232, 0),
        (vit(24, 1024, 16), 304_326_632, 0),
        (vit(24, 1024, 16, 32), 306_535_400, 0),
        (vit(12, 384, 6), 22e6, 0.005),
        (gpt(12, 768, 12), 124e6, 0.005),
        (gpt(24, 1024, 16), 355e6, 0.005),
        (gpt(36, 1280, 20), 774e6, 0.005),
        (gpt(48, 1600, 25), 1558e6, 0.005),
        (llama(32, 4096, 32, 11008, 32000), 6_738_415_616, 0),
        (llama(32, 4096, 8, 14336, 128256), 8_030_261_248, 0),
        (llama(22, 2048, 4, 5632, 32000), 1_100_048_384, 0),
        (replace(llama(32, 4096, 8, 14336, 32000), experts=8), 46_702_792_704, 0),
        (BASE, 65e6, 0.031),
        (BIG, 213e6, 0.006),
    ],
    ids=str,
)
def test_the_published_parameter_counts(model: Model, published: float, tolerance: float) -> None:
    assert model.costs(**STEP).parameters == pytest.approx(published, rel=tolerance, abs=0)


#: torchvision's model pages: multiply-accumulates of one image, in 10^9, to two digits.
@pytest.mark.parametrize(
    ("model", "published"),
    [
        (vit(12, 768, 12), 17.56),
        (vit(12, 768, 12, 32), 4.41),
        (vit(24, 1024, 16), 61.55),
        (vit(24, 1024, 16, 32), 15.38),
    ],
)
def test_the_published_work(model: Model, published: float) -> None:
    assert round(model.costs(**{**STEP, "batch_size": 1}).forward_flops / 2e9, 2) == published
