"""Recompute the paper's figures from its published data.

The expected values are counted from the files by plain pandas.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.analyses.boxplot import BoxplotOptions, boxplot
from analysis.analyses.compare import CompareOptions, compare
from analysis.analyses.heatmap import HeatmapOptions, heatmap
from analysis.analyses.roofline import RooflineOptions, roofline
from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.analyses.speedup import SpeedupOptions, pair_points, speedup
from analysis.claims.evaluate import Data, judge
from analysis.claims.load import observations
from analysis.operations import OperationsResult, median_time, summarize_types
from analysis.pairing import pair
from analysis.result import Result
from analysis.store.load import load_types
from paradnn.statistics.dependence import crossed_share, geometric_mean, shared_levels
from tests.analysis.legible import faults
from tests.analysis.published import published_frame, raw

SIDES: dict[str, Any] = {"a": ("device=TPU*",), "b": ("device=*V100*",)}
SHAPE = ["model.layers", "model.nodes", "model.input_size", "model.output_size", "batch_size"]


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    folder = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PARADNN_ARTIFACTS", str(folder)
        )  # the frame has no store that would contain the artifacts
        yield published_frame(folder)


@pytest.fixture(scope="module")
def operations(frame: pd.DataFrame) -> OperationsResult:
    result = roofline(frame, RooflineOptions(operations="all"))
    assert isinstance(result, OperationsResult)
    return result


def plain() -> pd.DataFrame:
    """Return the file of operations, with the model and the type parsed from its labels."""
    content = pd.DataFrame(raw("fc_trace_10sec_opbreakdown"))
    return content.join(content["labels"].str.extract(r"(?P<model>layer_.*-bs_\d+)-(?P<type>.+)"))


def plain_pairs() -> pd.DataFrame:
    """Return the ratios of TPU over V100 in the published files, computed by plain pandas.

    The five sizes are parsed from the labels.
    """
    contents = {name: raw(f"{name}_fc") for name in ("tpu", "gpu")}
    rates = [
        pd.Series(each["example_per_sec"], index=each["labels"], name=name)
        for name, each in contents.items()
    ]
    pairs = pd.concat(rates, axis=1, join="inner")
    pairs[SHAPE] = [[int(number) for number in re.findall(r"\d+", label)] for label in pairs.index]
    return pairs.assign(speedup=pairs["tpu"] / pairs["gpu"])


def test_pairs_and_their_weights_are_those_of_the_files(frame: pd.DataFrame) -> None:
    tpu = frame[frame["device"] == "TPU v2"]
    gpu = frame[frame["device"] == "V100"]
    plain = plain_pairs()
    pairs = pair(tpu, gpu)
    found = pair_points(tpu, gpu)
    merged = pairs.merge(plain, on=SHAPE, suffixes=("", "_plain"), validate="one_to_one")
    assert len(pairs) == len(merged) == 176
    np.testing.assert_allclose(merged["speedup"], merged["speedup_plain"], rtol=1e-12)
    assert set(pairs["interval_source"]) == {"prior"}
    assert pairs.attrs["differ"]["precision"] == ("bfloat16", "float16")
    assert (pairs.attrs["unpaired_a"], pairs.attrs["unpaired_b"]) == (1548, 0)
    row = found.families.iloc[0]
    assert (row["points"], row["wins"], round(row["share"], 3)) == (176, 136, 0.773)
    assert row["geometric_mean"] == pytest.approx(np.exp(np.log(plain["speedup"]).mean()))
    quartiles = plain["speedup"].quantile([0.25, 0.5, 0.75])
    np.testing.assert_allclose(row[["q25", "median", "q75"]].astype(float), quartiles)
    weights = found.fits[0].regression.weights["weight"]
    assert set(SHAPE) - set(weights.index) == {"model.input_size", "model.output_size"}, (
        "constant over the pairs"
    )
    x = np.log2(plain[list(weights.index)].astype(float))
    y = np.log2(plain["speedup"])
    standard = (x - x.mean()) / x.std()
    oracle = np.linalg.lstsq(
        standard.to_numpy(), ((y - y.mean()) / y.std()).to_numpy(), rcond=None
    )[0]
    np.testing.assert_allclose(weights, oracle, rtol=1e-8)
    ratios = plain["speedup"].to_numpy()
    where = shared_levels(plain.rename(columns=str))
    assert where.description == "23 models and 9 batch sizes"
    np.testing.assert_allclose(crossed_share(ratios > 1, where), (0.773, 0.544, 0.907), atol=0.002)
    np.testing.assert_allclose(geometric_mean(ratios, where), (2.78, 1.37, 5.66), atol=0.01)


def test_the_papers_observations_are_answered_as_far_as_its_data_go(frame: pd.DataFrame) -> None:
    verdicts = {
        each.claim.id: each
        for each in judge(observations(), Data(frame, lambda runs: load_types(runs)))
    }
    assert {verdicts[str(name)].answer for name in (*range(4, 7), *range(9, 15))} == {"no data"}
    assert (
        verdicts["6"].findings[0].missing == "no runs with family=fc, mode=train, platform.name=cpu"
    )
    assert {name for name, verdict in verdicts.items() if verdict.answer == "supported"} == {
        "1",
        "2",
        "3",
        "7",
    }
    assert all(verdict.answer != "refuted" for verdict in verdicts.values())
    large, small = verdicts["7"].findings[1:3]
    assert (large.answer, small.answer) == ("supported", "supported")
    plain = plain_pairs()
    for finding, batch in ((large, 16384), (small, 64)):
        wins = plain.loc[plain["batch_size"] == batch, "speedup"] > 1
        assert (finding.points, finding.value) == (len(wins), pytest.approx(wins.mean()))


def test_figure_3b_has_853_operations_and_compute_bound_fusions(
    operations: OperationsResult, tmp_path: Path
) -> None:
    rows = plain()
    rows = rows[(rows["time_perc"] >= 1) & (rows["flops_perc"] > 0) & (rows["type"] != "while")]
    drawn = operations.operations[operations.operations["drawn"]]
    assert len(drawn) == len(rows) == 853
    assert drawn["run_id"].nunique() == 230
    assert drawn["type"].value_counts().to_dict() == rows["type"].value_counts().to_dict()
    compute = drawn[drawn["verdict"] == "compute-bound"]
    assert compute["type"].value_counts().to_dict() == {"output fusion": 112}
    assert ((rows["type"] == "output fusion") & (rows["intensity"] >= 75)).sum() == 112
    np.testing.assert_allclose(
        sorted(drawn["arithmetic_intensity"]), sorted(rows["intensity"]), rtol=1e-9
    )
    assert (
        "output fusion, 226 operations at 12.1 to 771 FLOP/B: 112 compute-bound"
        in operations.text()
    )
    operations.figure().savefig(tmp_path / "figure3b.png")


def test_sums_over_cores_are_separate_from_memory_bound_operations(
    operations: OperationsResult,
) -> None:
    rows = plain()
    sums = rows[rows["type"] == "cross-replica-sum"]
    assert sums["intensity"].between(0.12, 0.126).all()
    assert sums["memory_bandwidth"].max() < 33  # percent: memory does not limit them
    kinds = summarize_types(operations.operations).set_index("type")
    assert kinds.index[kinds["between_devices"]].tolist() == ["cross-replica-sum"]
    assert kinds.loc["cross-replica-sum", "roof_share_best"] < 0.33
    left = rows[(rows["intensity"] > 0) & (rows["intensity"] < 75) & (rows["type"] != "while")]
    models = rows["model"].unique()
    both = left.groupby("model")["time_perc"].sum().reindex(models, fill_value=0).median() / 100
    without = left[left["type"] != "cross-replica-sum"].groupby("model")["time_perc"].sum()
    memory = without.reindex(models, fill_value=0).median() / 100
    found = operations.models, operations.levels
    assert median_time(*found, "memory-bound", "between devices").value == pytest.approx(both)
    assert median_time(*found, "memory-bound").value == pytest.approx(memory)
    assert (round(both, 3), round(memory, 3)) == (0.425, 0.248)


def test_the_bars_of_traces_are_their_captures(frame: pd.DataFrame) -> None:
    result = roofline(frame, RooflineOptions())
    content = pd.DataFrame(raw("fc_trace_10sec"))
    several = content[content["flops_trace"].map(len) > 1]
    assert result.table["rate_low"].notna().sum() == len(several) == 135
    lowest = several["flops_trace"].map(min) * 1.8e12
    np.testing.assert_allclose(sorted(result.table["rate_low"].dropna()), sorted(lowest))


def test_the_papers_62_percent_is_that_of_models_of_256_nodes_and_more(frame: pd.DataFrame) -> None:
    # The artifact's notebook draws the paper's Figure 8 from node counts of 256 to 8,192.
    shares = [
        speedup(frame[frame["model.nodes"] >= nodes], SpeedupOptions(**SIDES)).families.iloc[0]
        for nodes in (0, 256)
    ]
    assert [(row["wins"], row["points"]) for row in shares] == [(136, 176), (56, 90)]
    assert shares[1]["share"] == pytest.approx(0.62, abs=0.005)


#: Analyses for which test_figures.py has no planted runs.
ANALYSES: dict[str, Callable[[pd.DataFrame], Result]] = {
    "roofline, few colors": lambda frame: roofline(frame, RooflineOptions(color="nodes")),
    "roofline, color bar": lambda frame: roofline(frame, RooflineOptions(color="parameters")),
    "boxes": lambda frame: boxplot(frame, BoxplotOptions(by=("device",))),
    "boxes of speedups": lambda frame: boxplot(frame, BoxplotOptions(by=("batch_size",), **SIDES)),
    "heat map": lambda frame: heatmap(
        frame[frame["model.layers"] == 64], HeatmapOptions(y="nodes")
    ),
    "sensitivity": lambda frame: sensitivity(frame, SensitivityOptions(log_scale="both")),
    "speedup": lambda frame: speedup(frame, SpeedupOptions(color="batch_size", **SIDES)),
    "compare": lambda frame: compare(frame, CompareOptions(a="device=TPU*", b="device=*V100*")),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_every_figure_can_be_read_on_a_screen_in_a_column_and_on_a_page(
    frame: pd.DataFrame, name: str
) -> None:
    # Two dollar signs would be a formula. The name is as long as those that drivers report.
    renamed = frame.assign(
        device=frame["device"].replace(
            "V100", "NVIDIA V100-SXM2-16GB, $2.48 an hour, $1.74 reserved"
        )
    )
    result = ANALYSES[name](renamed.assign(start_time=pd.Timestamp("2019-01-01", tz="UTC")))
    for width in (None, 3.3, 7.0):
        figure = result.figure(width)
        assert faults(figure) == []
        assert width is None or figure.get_size_inches()[0] == width
    texts = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    keys = [text for text in texts if re.search(r"[a-z]_[a-z]|model\.|(?<!/)\b[AB]\b", text)]
    assert not keys, "they have names, and so have sides"


def test_faults_are_seen() -> None:
    figure = Figure(figsize=(2, 2))
    figure.text(0.1, 0.5, "one name")
    figure.text(0.2, 0.5, "another name")
    figure.text(0.9, 0.1, "too far right", fontsize=5)
    assert [fault.partition(" is ")[2].partition(" ")[0] for fault in faults(figure)] == [
        "5.0",
        "cut",
        "over",
    ]
