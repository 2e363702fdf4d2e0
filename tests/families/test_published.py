"""Costs of models, compared with numbers from their papers and from projects that maintain them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.atlas.points import model_label
from paradnn.config.paths import CONFIG
from paradnn.families import make_model
from paradnn.families.retinanet import detector_layers

STEP = {"batch_size": 1, "precision": "float32", "mode": "train", "optimizer": "sgd"}
PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: str(row["model"]))
def test_parameters_and_flops_equal_the_published_numbers(row: dict[str, Any]) -> None:
    costs = make_model({"output_size": 1000, "image_size": 224} | row["model"]).costs(**STEP)
    if "parameters" in row:
        assert costs.parameters == pytest.approx(row["parameters"], rel=row.get("within", 0), abs=0)
    if "macs" in row:
        assert costs.forward_flops / 2 == pytest.approx(row["macs"], rel=row["rounding"])


def test_the_flops_of_the_detector_equal_those_of_detectron2() -> None:
    """Detectron2's own test expects 146 GMAC, rounded down, for all convolutions at 800 x 800."""
    assert int(sum(layer.macs for layer in detector_layers(800, 800, 80)) / 1e9) == 146


#: Parameters by preset. The exact numbers are the totals in the metadata of the published weights
#: (safetensors) of the named repositories, or those of torchvision's pages. A tied table counts
#: once.
PRESETS = [
    # openai-community/gpt2*: announced as 124M, 355M, 774M and 1558M.
    pytest.param("gpt2", 124_439_808, id="gpt2"),
    pytest.param("gpt2-medium", 354_823_168, id="gpt2-medium"),
    pytest.param("gpt2-large", 774_030_080, id="gpt2-large"),
    pytest.param("gpt2-xl", 1_557_611_200, id="gpt2-xl"),
    # meta-llama/Meta-Llama-3-8B, -70B, Llama-3.1-405B, Llama-3.2-1B, -3B.
    pytest.param("llama3-8b", 8_030_261_248, id="llama3-8b"),
    pytest.param("llama3-70b", 70_553_706_496, id="llama3-70b"),
    pytest.param("llama3-405b", 405_853_388_800, id="llama3-405b"),
    pytest.param("llama3-1b", 1_235_814_400, id="llama3-1b"),
    pytest.param("llama3-3b", 3_212_749_824, id="llama3-3b"),
    # Qwen/Qwen3-8B, -32B, -0.6B, -30B-A3B, -235B-A22B.
    pytest.param("qwen3-8b", 8_190_735_360, id="qwen3-8b"),
    pytest.param("qwen3-32b", 32_762_123_264, id="qwen3-32b"),
    pytest.param("qwen3-0.6b", 596_049_920, id="qwen3-0.6b"),
    pytest.param("qwen3-30b-a3b", 30_532_122_624, id="qwen3-30b-a3b"),
    pytest.param("qwen3-235b-a22b", 235_093_634_560, id="qwen3-235b-a22b"),
    # mistralai/Mistral-7B-v0.1, Mixtral-8x7B-v0.1.
    pytest.param("mistral-7b", 7_241_732_096, id="mistral-7b"),
    pytest.param("mixtral-8x7b", 46_702_792_704, id="mixtral-8x7b"),
    # Transformers' BertForMaskedLM of google-bert/bert-base-uncased and bert-large-uncased. It has
    # no pooler and no next-sentence head, which the paper's 110M and 340M include.
    pytest.param("bert-base", 109_514_298, id="bert-base"),
    pytest.param("bert-large", 335_174_458, id="bert-large"),
    # torchvision: vit_b_16, vit_b_32, vit_l_16; vit_h_14 with linear weights at 224 pixels.
    pytest.param("vit_b16", 86_567_656, id="vit_b16"),
    pytest.param("vit_b32", 88_224_232, id="vit_b32"),
    pytest.param("vit_l16", 304_326_632, id="vit_l16"),
    pytest.param("vit_h14", 632_045_800, id="vit_h14"),
]


@pytest.mark.parametrize(("name", "parameters"), PRESETS)
def test_presets_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    text = (CONFIG / "model" / f"{name}.yaml").read_text()
    model = make_model(yaml.safe_load(text))

    assert model.costs(**STEP).parameters == parameters
    assert f"{parameters:,} parameters" in text
    assert model_label(model) == name
