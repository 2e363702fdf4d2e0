"""The paper's figures, recomputed from its published data.

Plain pandas computes the expected values from the published files.
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
from analysis.analyses.speedup import Speedup, SpeedupOptions, pair_points, speedup
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
        # The frame has no store that could contain the artifacts.
        patch.setenv("PARADNN_ARTIFACTS", str(folder))
        yield published_frame(folder)


@pytest.fixture(scope="module")
def operations(frame: pd.DataFrame) -> OperationsResult:
    result = roofline(frame, RooflineOptions(operations="all"))
    assert isinstance(result, OperationsResult)
    return result


def published_operations() -> pd.DataFrame:
    """Return the published operations, with model and type parsed from the labels."""
    content = pd.DataFrame(raw("fc_trace_10sec_opbreakdown"))
    return content.join(content["labels"].str.extract(r"(?P<model>layer_.*-bs_\d+)-(?P<type>.+)"))


def published_pairs() -> pd.DataFrame:
    """Return the ratios of TPU over V100 in the published files, computed by plain pandas.

    The five sizes are parsed from the labels.
    """
    contents = {name: raw(f"{name}_fc") for name in ("tpu", "gpu")}
    rates = [
        pd.Series(content["example_per_sec"], index=content["labels"], name=name)
        for name, content in contents.items()
    ]
    pairs = pd.concat(rates, axis=1, join="inner")
    pairs[SHAPE] = [[int(number) for number in re.findall(r"\d+", label)] for label in pairs.index]
    return pairs.assign(speedup=pairs["tpu"] / pairs["gpu"])


def by_device(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs on the TPU and on the GPU."""
    return frame[frame["device"] == "TPU v2"], frame[frame["device"] == "V100"]


def test_speedups_of_pairs_equal_those_of_the_published_files(frame: pd.DataFrame) -> None:
    expected = published_pairs()

    pairs = pair(*by_device(frame))

    merged = pairs.merge(expected, on=SHAPE, suffixes=("", "_expected"), validate="one_to_one")
    assert len(pairs) == len(merged) == 176
    np.testing.assert_allclose(merged["speedup"], merged["speedup_expected"], rtol=1e-12)
    assert set(pairs["interval_source"]) == {"prior"}
    assert pairs.attrs["differ"]["precision"] == ("bfloat16", "float16")
    assert (pairs.attrs["unpaired_a"], pairs.attrs["unpaired_b"]) == (1548, 0)


@pytest.fixture(scope="module")
def compared_points(frame: pd.DataFrame) -> Speedup:
    return pair_points(*by_device(frame))


def test_share_and_mean_of_speedups_equal_those_of_the_published_files(
    compared_points: Speedup,
) -> None:
    expected = published_pairs()
    row = compared_points.families.iloc[0]

    assert (row["points"], row["wins"], round(row["share"], 3)) == (176, 136, 0.773)
    assert row["geometric_mean"] == pytest.approx(np.exp(np.log(expected["speedup"]).mean()))
    quartiles = expected["speedup"].quantile([0.25, 0.5, 0.75])
    np.testing.assert_allclose(row[["q25", "median", "q75"]].astype(float), quartiles)


def test_weights_of_speedups_equal_those_of_plain_least_squares(
    compared_points: Speedup,
) -> None:
    expected = published_pairs()
    weights = compared_points.fits[0].regression.weights["weight"]
    x = np.log2(expected[list(weights.index)].astype(float))
    y = np.log2(expected["speedup"])
    standardized = (x - x.mean()) / x.std()
    expected_weights = np.linalg.lstsq(
        standardized.to_numpy(), ((y - y.mean()) / y.std()).to_numpy(), rcond=None
    )[0]

    assert set(SHAPE) - set(weights.index) == {"model.input_size", "model.output_size"}, (
        "input and output sizes are the same for all pairs"
    )
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-8)


def test_intervals_of_share_and_mean_allow_for_shared_models_and_batch_sizes() -> None:
    expected = published_pairs()
    ratios = expected["speedup"].to_numpy()
    levels = shared_levels(expected.rename(columns=str))

    assert levels.description == "23 models and 9 batch sizes"
    np.testing.assert_allclose(crossed_share(ratios > 1, levels), (0.773, 0.544, 0.907), atol=0.002)
    np.testing.assert_allclose(geometric_mean(ratios, levels), (2.78, 1.37, 5.66), atol=0.01)


def test_observations_with_published_data_have_verdicts(frame: pd.DataFrame) -> None:
    verdicts = {
        verdict.claim.id: verdict
        for verdict in judge(observations(), Data(frame, lambda runs: load_types(runs)))
    }
    assert {verdicts[str(name)].answer for name in (*range(4, 7), *range(9, 15))} == {"no data"}
    assert (
        verdicts["6"].findings[0].missing
        == "no run satisfies family=fc, mode=train, platform.name=cpu"
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

    expected = published_pairs()
    for finding, batch in ((large, 16384), (small, 64)):
        wins = expected.loc[expected["batch_size"] == batch, "speedup"] > 1
        assert (finding.points, finding.value) == (len(wins), pytest.approx(wins.mean()))


def test_figure_3b_has_853_operations_and_compute_bound_fusions(
    operations: OperationsResult, tmp_path: Path
) -> None:
    rows = published_operations()
    rows = rows[(rows["time_perc"] >= 1) & (rows["flops_perc"] > 0) & (rows["type"] != "while")]
    drawn_operations = operations.operations[operations.operations["drawn"]]

    assert len(drawn_operations) == len(rows) == 853
    assert drawn_operations["run_id"].nunique() == 230
    assert (
        drawn_operations["type"].value_counts().to_dict() == rows["type"].value_counts().to_dict()
    )

    compute_bound = drawn_operations[drawn_operations["verdict"] == "compute-bound"]
    assert compute_bound["type"].value_counts().to_dict() == {"output fusion": 112}
    assert ((rows["type"] == "output fusion") & (rows["intensity"] >= 75)).sum() == 112
    np.testing.assert_allclose(
        sorted(drawn_operations["arithmetic_intensity"]), sorted(rows["intensity"]), rtol=1e-9
    )
    assert (
        "output fusion, 226 operations at 12.1 to 771 FLOP/B: 112 compute-bound"
        in operations.text()
    )

    operations.figure().savefig(tmp_path / "figure3b.png")


def test_sums_across_cores_are_separate_from_memory_bound_operations(
    operations: OperationsResult,
) -> None:
    rows = published_operations()
    sums = rows[rows["type"] == "cross-replica-sum"]

    assert sums["intensity"].between(0.12, 0.126).all()
    assert sums["memory_bandwidth"].max() < 33  # percent: memory does not limit them

    kinds = summarize_types(operations.operations).set_index("type")
    assert kinds.index[kinds["between_devices"]].tolist() == ["cross-replica-sum"]
    assert kinds.loc["cross-replica-sum", "roof_share_best"] < 0.33

    below_ridge = rows[
        (rows["intensity"] > 0) & (rows["intensity"] < 75) & (rows["type"] != "while")
    ]
    models = rows["model"].unique()
    total_time = below_ridge.groupby("model")["time_perc"].sum()
    with_sums = total_time.reindex(models, fill_value=0).median() / 100
    memory_time = (
        below_ridge[below_ridge["type"] != "cross-replica-sum"].groupby("model")["time_perc"].sum()
    )
    without_sums = memory_time.reindex(models, fill_value=0).median() / 100
    found_with_sums = median_time(
        operations.models, operations.levels, "memory-bound", "between devices"
    )
    found_without_sums = median_time(operations.models, operations.levels, "memory-bound")

    assert found_with_sums.value == pytest.approx(with_sums)
    assert found_without_sums.value == pytest.approx(without_sums)
    assert (round(with_sums, 3), round(without_sums, 3)) == (0.425, 0.248)


def test_the_error_bars_of_traces_span_their_captures(frame: pd.DataFrame) -> None:
    result = roofline(frame, RooflineOptions())
    content = pd.DataFrame(raw("fc_trace_10sec"))
    several = content[content["flops_trace"].map(len) > 1]

    assert result.table["rate_low"].notna().sum() == len(several) == 135

    lowest = several["flops_trace"].map(min) * 1.8e12
    np.testing.assert_allclose(sorted(result.table["rate_low"].dropna()), sorted(lowest))


def test_the_62_percent_of_the_paper_concern_models_with_at_least_256_nodes(
    frame: pd.DataFrame,
) -> None:
    # The notebook of the artifact draws Figure 8 only from models with 256 to 8,192 nodes.
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
def test_every_figure_is_legible_on_a_screen_in_a_column_and_on_a_page(
    frame: pd.DataFrame, name: str
) -> None:
    # Matplotlib takes text between two dollar signs for a formula. The name has the length of a
    # name that a driver reports.
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
    raw_names = [text for text in texts if re.search(r"[a-z]_[a-z]|model\.|(?<!/)\b[AB]\b", text)]

    assert not raw_names, "figures must show names of columns and sides, not keys or letters"


def test_legibility_problems_are_found() -> None:
    figure = Figure(figsize=(2, 2))
    figure.text(0.1, 0.5, "one name")
    figure.text(0.2, 0.5, "another name")
    figure.text(0.9, 0.1, "too far right", fontsize=5)

    assert [fault.partition(" is ")[2].partition(" ")[0] for fault in faults(figure)] == [
        "5.0",
        "cut",
        "over",
    ]
