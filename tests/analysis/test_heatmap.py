"""Heat map cells compared with plain pandas, every kind of outcome, and the figure's texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.heatmap import HeatmapOptions, heatmap
from analysis.columns import settings
from analysis.heat_maps import HeatMaps, draw_heat_maps, make_heat_maps
from tests.analysis.planted import ROW
from tests.analysis.rejected import assert_rejected

CPU = "fc on Test CPU"


def points(rows: list[dict[str, Any]], **columns: Any) -> pd.DataFrame:
    """Return one successful fc run per row on one device; rows and columns override defaults."""
    base = ROW | {"environment_id": "e", "model.name": "fc"}
    frame = pd.DataFrame(
        [base | {"run_id": f"r{i}", "point_id": f"p{i}"} | row for i, row in enumerate(rows)]
    )
    return frame.assign(**columns)


def grid(seed: int = 0) -> pd.DataFrame:
    """Return a full factorial of nodes, batch sizes and layers, with 10% noise.

    Models with 512 nodes run out of memory at 4 layers or at batch size 1,024.
    """
    draw = np.random.default_rng(seed)
    rows = []
    for nodes in (32, 128, 512):
        for batch in (16, 64, 256, 1024):
            for layers in (1, 2, 4):
                is_out_of_memory = nodes * layers >= 2048 or (nodes == 512 and batch == 1024)
                if is_out_of_memory:
                    value = np.nan
                else:
                    value = batch * np.sqrt(nodes) / layers * draw.lognormal(0, 0.1)
                rows.append(
                    {
                        "model.nodes": nodes,
                        "batch_size": batch,
                        "model.layers": layers,
                        "outcome": "oom_device" if is_out_of_memory else "ok",
                        "examples_per_second": value,
                    }
                )
    return points(rows)


def test_cells_equal_medians_and_quartiles_of_pandas_and_count_failures() -> None:
    frame = grid()
    found = make_heat_maps(frame, "batch_size", "nodes")
    successful = frame[frame["outcome"] == "ok"].groupby(["model.nodes", "batch_size"])
    expected = successful["examples_per_second"].describe()
    cells = (
        found.cells[found.cells["value"].notna()].astype({"x": int, "y": int}).set_index(["y", "x"])
    )

    np.testing.assert_allclose(cells["value"], expected["50%"])
    np.testing.assert_allclose(cells[["q25", "q75"]], expected[["25%", "75%"]])
    assert list(cells["points"]) == list(expected["count"])
    assert found.notes == {CPU: "a cell is the median of 2 to 3 points over layers (3)"}

    widest = found.cells[found.cells["y"] == "512"].set_index("x")
    assert widest.loc["1024", ["outcome", "points", "failed", "memory"]].tolist() == [
        "oom_device",
        0,
        3,
        3,
    ]
    assert widest.loc["16", ["outcome", "points", "failed", "memory"]].tolist() == ["ok", 2, 1, 1]
    assert found.unmeasured(found.cells) == 0


def test_a_cell_of_one_point_has_an_interval_and_a_cell_of_several_has_none() -> None:
    rows = [
        {"batch_size": batch, "model.nodes": 64, "model.layers": layers}
        for batch, layers in ((1, 1), (2, 1), (2, 2))
    ]
    interval = {"examples_per_second_low": 37.0, "examples_per_second_high": 163.0}
    frame = points(rows, examples_per_second=100.0, **interval)
    table = heatmap(frame, HeatmapOptions(y="nodes")).table.set_index("batch_size")

    assert table.loc["1", ["q25", "q75", "low", "high"]].tolist() == [100.0, 100.0, 37.0, 163.0]
    assert table.loc["2", ["q25", "q75"]].tolist() == [100.0, 100.0]
    assert table.loc["2", ["low", "high"]].isna().all()


def test_outcomes_keep_their_names_and_unmeasured_points_are_omitted() -> None:
    endings = ["ok", "oom_predicted", "oom_host", "timeout", "nan"]
    frame = points(
        [
            {"batch_size": 2**i, "precision": "float32", "outcome": ending, "step_time_ms": 1.5}
            for i, ending in enumerate(endings)
        ]
        + [
            {"batch_size": 1, "precision": "bfloat16", "step_time_ms": np.nan, "outcome": "ok"},
            {"batch_size": 2, "precision": "bfloat16", "step_time_ms": 2.5, "outcome": None},
        ]
    )
    found = make_heat_maps(frame, "batch_size", "precision", "step_time_ms")

    assert found.cells.set_index("x")["outcome"].loc[["1", "2", "4", "8", "16"]].tolist() == endings
    assert found.cells["value"].notna().sum() == 1, "the metric of a failed run must not be shown"
    assert found.unmeasured(found.cells) == 5
    assert found.y.labels == ("bfloat16", "float32")
    assert figure_texts(found) >= {
        "1.5",
        "OOM\npred.",
        "OOM\nhost",
        "timeout",
        "nan",
        "not measured",
    }


def figure_texts(result: HeatMaps) -> set[str]:
    """Return every text of the figure, including its legend."""
    figure = draw_heat_maps(result)
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    return {*texts, *(text.get_text() for legend in figure.legends for text in legend.get_texts())}


@pytest.fixture
def maps_by_blocks() -> HeatMaps:
    """Return the map of three lists of blocks; [2, 2, 2, 2] was measured three times."""
    rows = [
        {
            "model.blocks": f"[{n}, {n}, {n}, {n}]",
            "batch_size": 8,
            "point_id": f"b{n}",
            "examples_per_second": value,
        }
        for n, value in ((10, 1.0), (2, 5.0), (2, 7.0), (2, 90.0), (1, 3.0))
    ]
    return make_heat_maps(points(rows), "batch_size", "blocks")


def test_lists_of_blocks_are_sorted_by_total(maps_by_blocks: HeatMaps) -> None:
    assert maps_by_blocks.y.labels == ("[1, 1, 1, 1]", "[2, 2, 2, 2]", "[10, 10, 10, 10]")


def test_replicates_are_one_point_with_their_median(maps_by_blocks: HeatMaps) -> None:
    assert list(maps_by_blocks.cells["value"]) == [3.0, 7.0, 1.0]
    assert list(maps_by_blocks.cells["points"]) == [1, 1, 1]


def test_many_values_are_binned_without_losing_points() -> None:
    draw = np.random.default_rng(1)
    nodes = draw.integers(16, 8192, 300)
    batch = draw.integers(1, 100, 300)
    frame = points(
        [
            {"model.nodes": int(a), "batch_size": int(b), "examples_per_second": 1.0}
            for a, b in zip(nodes, batch, strict=True)
        ]
    )
    found = make_heat_maps(frame, "nodes", "batch_size")
    expected = np.histogram(nodes, np.geomspace(nodes.min(), nodes.max(), 13))[0]

    assert list(found.cells.groupby("i")["points"].sum()) == list(expected[expected > 0])
    assert len(found.x.labels) == 12


def grid_on_two_devices() -> pd.DataFrame:
    """Return the grid on a CPU, and on a GPU without batch size 1,024."""
    gpu_runs = grid(1).assign(device="Test GPU", environment_id="f")
    return pd.concat([grid(), gpu_runs[gpu_runs["batch_size"] < 1024]], ignore_index=True)


def one_lstm_run(**columns: Any) -> pd.DataFrame:
    row = {
        "family": "lstm",
        "batch_size": 16,
        "examples_per_second": 1.0,
        "run_id": "x",
        "point_id": "x",
    }
    return points([row], **columns)


def test_each_device_has_a_map_on_the_same_axes() -> None:
    result = make_heat_maps(grid_on_two_devices(), "batch_size", "nodes")

    assert [(name, result.unmeasured(cells)) for name, cells in result.maps()] == [
        (CPU, 0),
        ("fc on Test GPU", 3),
    ]


def test_a_family_without_an_axis_is_omitted() -> None:
    frame = pd.concat([grid(), one_lstm_run()], ignore_index=True)

    result = make_heat_maps(frame, "batch_size", "nodes")

    omitted = [str(group) for group in result.omitted]
    assert omitted == ["lstm on Test CPU: no run has both batch_size and model.nodes"]
    assert "x" not in result.run_ids


def test_environments_of_one_device_can_be_pooled() -> None:
    one_device = grid_on_two_devices().assign(device="one")

    pooled = make_heat_maps(one_device, "batch_size", "nodes", pool=True)

    assert len(list(pooled.maps())) == 1


def test_families_on_an_axis_share_a_map() -> None:
    frame = pd.concat([grid(), one_lstm_run(**{"model.name": "lstm"})], ignore_index=True)

    families = make_heat_maps(frame, "batch_size", "model.name")

    assert {name: families.unmeasured(cells) for name, cells in families.maps()} == {
        "all on Test CPU": 3
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--x batch_size --y node",
            "--y=node: these runs have no such hyperparameter; did you mean nodes",
            id="--x batch_size --y node",
        ),
        pytest.param("--x batch --y nodes", "--x=batch: ", id="--x batch --y nodes"),
        pytest.param(
            "--x nodes --y model.nodes",
            "--y=model.nodes: is already on the x axis",
            id="--x nodes --y model.nodes",
        ),
        pytest.param(
            "--y nodes --metric speed",
            "--metric=speed: is not a metric of these runs; choose a metric that they have",
            id="--y nodes --metric speed",
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = grid()
    assert_rejected(f"heatmap {options}", frame, message)


@pytest.mark.parametrize(
    "outcomes",
    [
        pytest.param(("crash",), id="crashes"),
        pytest.param(("oom_device", "crash"), id="crashes and out of memory"),
    ],
)
def test_a_device_without_a_measurement_has_a_map_of_outcomes(
    outcomes: tuple[str, ...], tmp_path: Path
) -> None:
    failed = grid().assign(device="Broken", environment_id="f", examples_per_second=np.nan)
    failed["outcome"] = np.resize(outcomes, len(failed))
    two_devices = pd.concat([grid(), failed], ignore_index=True)
    for frame in (two_devices, failed, failed.drop(columns="examples_per_second")):
        result = heatmap(frame, HeatmapOptions(y="nodes"))
        cells = dict(make_heat_maps(frame, "batch_size", "nodes").maps())["fc on Broken"]
        assert cells["failed"].sum() == len(failed)
        assert cells["value"].isna().all()
        assert "without a measurement: crash." in result.text() or len(outcomes) > 1
        figure = result.figure()
        assert any("no point ran" in axes.get_title(loc="left") for axes in figure.axes)
        figure.savefig(tmp_path / "broken.png")


def test_keys_determined_by_the_choice_of_their_group_are_not_listed() -> None:
    names = {"data.name": ["synthetic", "images"], "data.width": [None, 512], "data.threads": 2}
    frame = pd.DataFrame(names)

    assert settings(frame) == ["data.name"]

    two_widths = pd.concat([frame, frame.assign(**{"data.width": [None, 640]})], ignore_index=True)
    assert settings(two_widths) == ["data.name", "data.width"]
