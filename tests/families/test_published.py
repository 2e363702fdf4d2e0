"""Costs of models against what their papers and the projects that maintain them publish."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from paradnn.families import make_model
from paradnn.families.retinanet import detector_layers

STEP = {"batch_size": 1, "precision": "float32", "mode": "train", "optimizer": "sgd"}
PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: str(row["model"]))
def test_parameters_and_work_are_the_published_ones(row: dict[str, Any]) -> None:
    costs = make_model({"output_size": 1000, "image_size": 224} | row["model"]).costs(**STEP)
    if "parameters" in row:
        assert costs.parameters == pytest.approx(row["parameters"], rel=row.get("within", 0), abs=0)
    if "macs" in row:
        assert costs.forward_flops / 2 == pytest.approx(row["macs"], rel=row["rounding"])


def test_the_detectors_work_is_detectron2s() -> None:
    """Its test of the analysis expects 146 (cut to whole) for all convolutions at 800 x 800."""
    assert int(sum(layer.macs for layer in detector_layers(800, 800, 80)) / 1e9) == 146
