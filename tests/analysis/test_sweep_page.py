"""The page of a sweep: figures and table of planted points."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.ceilings import BANDWIDTH, PEAK
from analysis.sweep_page.figures import Figure, sweep_figures, sweep_points
from analysis.sweep_page.page import points_table, write_sweep_page
from tests.analysis.planted import ROW, grid, runs

RATE = "examples_per_second"


def planted(**columns: Any) -> pd.DataFrame:
    """Return nine points with the rate 10 x nodes x batch size; the largest ran out of memory."""
    points = grid(nodes=(64, 256, 1024), layers=(4,), batches=(16, 64, 256))
    rate = (
        10.0 * points["model.nodes"].to_numpy("float64") * points["batch_size"].to_numpy("float64")
    )
    frame = runs(
        points,
        examples_per_second=rate,
        examples_per_second_low=0.9 * rate,
        examples_per_second_high=1.2 * rate,
        flops_utilization=rate / rate.max(),
        arithmetic_intensity=points["batch_size"].astype("float64") / 4,
        flops_per_second=1e6 * rate,
        steady=True,
        **columns,
    )
    is_largest = (frame["model.nodes"] == 1024) & (frame["batch_size"] == 256)
    frame.loc[is_largest, "outcome"] = "oom_device"
    measured = [name for name in frame if str(name).startswith(("examples", "flops", "arithm"))]
    frame.loc[is_largest, measured] = np.nan
    return frame


def served() -> pd.DataFrame:
    """Return runs of two models behind an endpoint. Their costs are unknown."""
    points = pd.DataFrame({"endpoint.model": ["small", "large"], "batch_size": [1, 1]})
    frame = runs(points, family="endpoint", queries_per_second=[5.0, 3.0])
    return frame.assign(point_id=["small", "large"])


def messages() -> pd.DataFrame:
    """Return runs of messages of 1 and 64 bytes with windows of 1 and 8.

    A message takes 10 us per byte.
    """
    points = grid(nodes=(1, 64), layers=(1, 8), batches=(1,))
    points = points.rename(columns={"model.nodes": "model.bytes", "model.layers": "model.window"})
    return runs(points, family="channel", transfer_us=10.0 * points["model.bytes"])


def figures_by_title(frame: pd.DataFrame) -> dict[str, Figure]:
    return {figure.title: figure for figure in sweep_figures(sweep_points(frame))}


def test_a_point_is_drawn_with_its_interval_on_log_axes() -> None:
    figure = figures_by_title(planted())["Throughput over the swept axes"]

    trace = next(trace for trace in figure.traces if trace["visible"] and trace["name"] == "fc")
    index = trace["text"].index("fc 4x256 b64")

    assert trace["x"][index] == 64
    assert trace["y"][index] == pytest.approx(10 * 256 * 64)
    assert trace["error_y"]["array"][index] == pytest.approx(0.2 * 10 * 256 * 64)
    assert trace["error_y"]["arrayminus"][index] == pytest.approx(0.1 * 10 * 256 * 64)
    assert (figure.layout["xaxis"]["type"], figure.layout["yaxis"]["type"]) == ("log", "log")


def test_names_are_the_axis_if_no_number_is_swept() -> None:
    figure = figures_by_title(served())["Queries per second over the swept axes"]

    [trace] = figure.traces

    assert dict(zip(trace["x"], trace["y"], strict=True)) == {"small": 5.0, "large": 3.0}
    assert trace["mode"] == "markers"
    assert figure.layout["xaxis"]["type"] == "category"
    assert figure.layout["xaxis"]["title"]["text"] == "endpoint.model"


@pytest.mark.parametrize(
    ("rates", "has_fixed_ticks"),
    [
        # Neither 1, 2 nor 5 of a power of ten lies between 3 and 4.
        pytest.param([3.0, 4.0], False, id="narrow"),
        pytest.param([3.0, 40.0], True, id="wide"),
    ],
)
def test_a_narrow_range_of_rates_has_automatic_ticks(
    rates: list[float], has_fixed_ticks: bool
) -> None:
    frame = served().assign(queries_per_second=rates)

    figure = figures_by_title(frame)["Queries per second over the swept axes"]

    assert ("dtick" in figure.layout["yaxis"]) == has_fixed_ticks


def test_lines_connect_points_that_differ_only_in_the_axis() -> None:
    figure = figures_by_title(planted())["Throughput over the swept axes"]

    trace = next(trace for trace in figure.traces if trace["visible"] and trace["name"] == "fc")
    lines: list[list[str]] = [[]]
    for name, x in zip(trace["text"], trace["x"], strict=True):
        if x is None:
            lines.append([])
        else:
            lines[-1].append(name)

    assert sorted(line for line in lines if line) == [
        ["fc 4x1024 b16", "fc 4x1024 b64"],
        ["fc 4x256 b16", "fc 4x256 b64", "fc 4x256 b256"],
        ["fc 4x64 b16", "fc 4x64 b64", "fc 4x64 b256"],
    ]


def test_a_menu_selects_the_swept_key_of_the_axis() -> None:
    figure = figures_by_title(planted())["Throughput over the swept axes"]

    [menu] = figure.layout["updatemenus"]

    assert [button["label"] for button in menu["buttons"]] == ["batch size", "nodes"]

    shown = [button["args"][0]["visible"] for button in menu["buttons"]]
    assert [sum(flags) for flags in shown] == [
        2,
        2,
    ]  # the traces of the family and of points that did not run
    assert all(first != second for first, second in zip(*shown, strict=True))


def test_the_heat_map_has_a_cell_for_a_point_that_ran_out_of_memory() -> None:
    figure = figures_by_title(planted())["Heat map: fc on Test CPU"]

    failed, measured = figure.traces

    assert [measured["x"], measured["y"]] == [["16", "64", "256"], ["64", "256", "1024"]]
    assert failed["z"] == [[None] * 3, [None] * 3, [None, None, 1.0]]
    assert failed["text"][2][2] == "OOM"
    assert "oom_device" in failed["hovertext"][2][2]
    assert measured["z"][2][2] is None


@pytest.mark.parametrize(
    "title",
    [
        pytest.param("Throughput over the swept axes", id="throughput"),
        pytest.param("Heat map: fc on Test CPU", id="heat map"),
    ],
)
def test_a_caption_explains_points_that_did_not_run_only_if_some_exist(title: str) -> None:
    frame = planted()

    some_failed = figures_by_title(frame)[title]
    all_ran = figures_by_title(frame[frame["outcome"] == "ok"])[title]

    assert "did not run" in some_failed.caption
    assert "did not run" not in all_ran.caption


def test_the_roofline_shows_every_measured_point() -> None:
    frame = planted(**{PEAK: 4e12, BANDWIDTH: 1e11})
    [figure] = [
        entry for title, entry in figures_by_title(frame).items() if title.startswith("Roofline")
    ]

    points = figure.traces[-1]

    expected = {
        (row["arithmetic_intensity"], row["flops_per_second"])
        for row in frame[frame["outcome"] == "ok"].to_dict("records")
    }

    assert set(zip(points["x"], points["y"], strict=True)) == expected


def test_boxes_and_parallel_coordinates_show_every_measured_point() -> None:
    shown = figures_by_title(planted())

    boxes = next(entry for title, entry in shown.items() if title.endswith("by family"))
    lines = shown["The swept keys"]

    assert sum(len(trace["y"]) for trace in boxes.traces) == 8

    labels = {entry["label"]: entry for entry in lines.traces[0]["dimensions"]}
    assert list(labels) == ["batch size", "nodes", "throughput"]
    assert labels["nodes"]["ticktext"] == ["64", "256", "1024"]


@pytest.mark.parametrize(
    ("frame", "titles"),
    [
        pytest.param(
            planted().assign(outcome="oom_device").drop(columns=[RATE]),
            ["Heat map: fc on Test CPU"],
            id="nothing ran",
        ),
        pytest.param(
            planted()[lambda frame: frame["batch_size"] == 16].iloc[:1],
            ["Throughput over the swept axes"],
            id="one point",
        ),
        pytest.param(
            served(),
            [
                "Queries per second over the swept axes",
                "Queries per second by family",
                "The swept keys",
            ],
            id="served models",
        ),
        pytest.param(
            messages(),
            [
                "Transfer over the swept axes",
                "Heat map: channel on Test CPU",
                "Transfer by family",
                "The swept keys",
            ],
            id="messages",
        ),
        pytest.param(
            planted()[["model.nodes", "batch_size", "point_id", "run_id", *ROW]].assign(
                outcome="ok"
            ),
            [],
            id="no metric",
        ),
    ],
)
def test_a_sweep_has_the_figures_that_its_points_allow(
    frame: pd.DataFrame, titles: list[str]
) -> None:
    shown = [title for title in figures_by_title(frame) if not title.startswith("Roofline")]
    assert shown == titles


def test_the_table_is_strict_json_and_lists_the_fastest_point_first() -> None:
    table = points_table(sweep_points(planted()))

    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]

    assert len(rows) == 9

    rates = [row[RATE] for row in rows[:-1]]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 10.0 * 1024 * 64
    assert (rows[-1]["outcome"], rows[-1][RATE]) == ("oom_device", None)

    json.dumps(table, allow_nan=False)


def test_the_table_of_served_models_has_their_rates_and_names() -> None:
    table = points_table(sweep_points(served()))

    assert table["columns"][:3] == ["point", "outcome", "queries_per_second"]
    assert [row[0].split()[-1] for row in table["data"]] == ["small", "large"]
    assert [row[2] for row in table["data"]] == [5.0, 3.0]


def test_the_table_of_messages_lists_the_shortest_time_first() -> None:
    table = points_table(sweep_points(messages()))

    sizes = [row[table["columns"].index("model.bytes")] for row in table["data"]]

    assert sizes == [1, 1, 64, 64]


def test_no_text_of_a_store_becomes_markup(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    frame = planted(family=name, device=name)
    sweep = pd.DataFrame({"run_name": [name], "command": [name], "run_id": ["r"]})

    write_sweep_page(tmp_path, sweep, frame)

    page = (tmp_path / "sweep.html").read_text()
    markup = re.sub(r'<script type="application/octet-stream".*?</script>', "", page, flags=re.S)

    assert "<img" not in markup
    assert markup.count("<script") == markup.count("</script>") == 2

    [data] = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', markup)
    assert all("<" not in text for text in json.loads(data)[0]["traces"][0]["text"] if text)


def test_a_page_allows_no_connection(tmp_path: Path) -> None:
    sweep = pd.DataFrame({"run_name": ["s"], "command": ["c"], "run_id": ["r"]})

    write_sweep_page(tmp_path, sweep, planted())

    page = (tmp_path / "sweep.html").read_text()

    assert "Content-Security-Policy" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.search(r'(src|href)="(https?:)?//', page)
