"""The paper's figures from its published data, counted again by plain pandas from the files themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.summaries.model_operations import ModelOperationsResult
from analysis.summaries.roofline import RooflineOptions, RooflineResult, roofline
from paradnn.errors import ConfigError, StoreError
from tests.analysis.published import ARCHIVE, published_frame

pytestmark = pytest.mark.skipif(not ARCHIVE.is_dir(), reason="the published data are not there")


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return published_frame(ARCHIVE, tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def operations(frame: pd.DataFrame) -> ModelOperationsResult:
    result = roofline(frame, RooflineOptions(operations="all"))
    assert isinstance(result, ModelOperationsResult)
    return result


def plain() -> pd.DataFrame:
    """The file of operations, with the model and the type that its labels hold."""
    content = pd.DataFrame(json.loads((ARCHIVE / "fc_trace_10sec_opbreakdown.json").read_text()))
    return content.join(content["labels"].str.extract(r"(?P<model>layer_.*-bs_\d+)-(?P<type>.+)"))


def test_figure_3b_has_853_operations_and_only_output_fusions_are_compute_bound(
    operations: ModelOperationsResult, tmp_path: Path
) -> None:
    rows = plain()
    rows = rows[(rows["time_perc"] >= 1) & (rows["flops_perc"] > 0) & (rows["type"] != "while")]
    drawn = operations.found.operations[operations.found.operations["drawn"]]
    assert len(drawn) == len(rows) == 853
    assert drawn["run_id"].nunique() == 230
    assert drawn["type"].value_counts().to_dict() == rows["type"].value_counts().to_dict()
    compute = drawn[drawn["verdict"] == "compute-bound"]
    assert compute["type"].value_counts().to_dict() == {"output fusion": 112}
    assert ((rows["type"] == "output fusion") & (rows["intensity"] >= 75)).sum() == 112
    np.testing.assert_allclose(sorted(drawn["arithmetic_intensity"]), sorted(rows["intensity"]), rtol=1e-9)
    assert "output fusion, 226 operations at 12.1 to 771 FLOP/B: 112 compute-bound" in operations.text()
    operations.figure().savefig(tmp_path / "figure3b.png")


def test_sums_over_cores_are_told_apart_from_memory(operations: ModelOperationsResult) -> None:
    rows = plain()
    sums = rows[rows["type"] == "cross-replica-sum"]
    assert sums["intensity"].between(0.12, 0.126).all()
    assert sums["memory_bandwidth"].max() < 33  # percent: memory is not what limits them
    kinds = operations.types.set_index("type")
    assert kinds.loc["cross-replica-sum", "verdict"] == "between devices"
    assert kinds.loc["cross-replica-sum", "roof_share_best"] < 0.33
    assert (kinds.loc[["loop fusion", "non-fusion elementwise"], "verdict"] == "memory-bound").all()
    left = rows[(rows["intensity"] > 0) & (rows["intensity"] < 75) & (rows["type"] != "while")]
    models = rows["model"].unique()
    both = left.groupby("model")["time_perc"].sum().reindex(models, fill_value=0).median() / 100
    without = left[left["type"] != "cross-replica-sum"].groupby("model")["time_perc"].sum()
    memory = without.reindex(models, fill_value=0).median() / 100
    assert operations.time("memory-bound", "between devices").value == pytest.approx(both)
    assert operations.time("memory-bound").value == pytest.approx(memory)
    assert (round(both, 3), round(memory, 3)) == (0.425, 0.248)


def test_the_roofline_of_models_takes_any_colour(frame: pd.DataFrame, tmp_path: Path) -> None:
    for colour, column in (("nodes", "model.nodes"), ("parameters", "parameters"), ("outcome", "outcome")):
        result = roofline(frame, RooflineOptions(colour=colour))
        assert isinstance(result, RooflineResult)
        assert column in result.table
        assert result.table[column].notna().all()
        result.figure().savefig(tmp_path / f"{colour}.png")
    pictured = roofline(frame, RooflineOptions(operations="all", colour="batch_size")).figure()
    (legend,) = pictured.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{2**power:,}" for power in range(8, 15)]
    with pytest.raises(ConfigError, match="--colour=hue: these runs have no such hyperparameter"):
        roofline(frame, RooflineOptions(colour="hue"))
    with pytest.raises(ConfigError, match="differ in nothing but their type; leave it out, or choose --operations all"):
        roofline(frame, RooflineOptions(operations="abc", colour="nodes"))
    with pytest.raises(StoreError, match="none of the chosen runs was profiled"):
        roofline(frame[frame["device"] == "V100"], RooflineOptions(operations="all"))


def test_the_bars_of_traces_are_their_captures(frame: pd.DataFrame) -> None:
    result = roofline(frame, RooflineOptions())
    assert isinstance(result, RooflineResult)
    content = pd.DataFrame(json.loads((ARCHIVE / "fc_trace_10sec.json").read_text()))
    several = content[content["flops_trace"].map(len) > 1]
    assert result.table["rate_low"].notna().sum() == len(several) == 135
    lowest = several["flops_trace"].map(min) * 1.8e12
    np.testing.assert_allclose(sorted(result.table["rate_low"].dropna()), sorted(lowest))
    assert "135 runs have several, the lowest is 5.77% below the best in the median" in result.text()


def test_utilisation_of_published_runs_is_of_the_stated_peaks(frame: pd.DataFrame) -> None:
    best = frame.groupby("device")["flops_utilization_spec"].max()
    assert best.round(3).to_dict() == {"TPU v2": 0.643, "V100": 0.69}
