"""Pictures of a run: they show its numbers and escape markup; a failed picture loses no result."""

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from paradnn.config.outcome import PointResult
from paradnn.config.reading import read_point
from paradnn.core.messages import OperationTable, Profile, Trial
from paradnn.core.results import ResultDescription
from paradnn.core.workload import WORKLOADS
from paradnn.session import record
from paradnn.session.overview.drawing import Bar, BarChart, Chart, ChartAxis, page
from paradnn.store.metrics import stored_name
from paradnn.store.runs import Record
from paradnn.workloads.learn.messages import Epoch
from tests.session.records import answered, recorded, timing

POINT = read_point({"model": {"name": "fc"}})
PEAKS = {"peak_flops_per_second": 1.2e12, "peak_bytes_per_second": 2.2e10}
BLOCKS = [0.5, 0.52, 0.49, 0.51, 0.5, 0.5, 0.53, 0.5]
SVG = "{http://www.w3.org/2000/svg}"


def table(*rows: tuple[str, str, float]) -> OperationTable:
    return OperationTable(["type", "category", "share"], [[*row] for row in rows])


def measured_step() -> Record:
    operations = table(
        ("MatMul", "matmul", 0.75), ("Relu", "elementwise", 0.125), ("none", "none", 0.125)
    )
    profile = Profile(operations, operations, 0.5, 0.125, 0.0, {}, steps=3, slowdown=1.0)
    blocks = timing(BLOCKS, warmup=[2.0, 0.6], calibration=[Trial(1, 3.0), Trial(1, 2.0)])
    result = answered(blocks, profile=profile)
    return recorded(POINT, replace(result, phases={"build": 1.5, "measure": 4.0}), peaks=PEAKS)


def picture(run: Record) -> ElementTree.Element:
    return ElementTree.fromstring(run.artifacts["overview.svg"])


def titles(run: Record) -> list[str]:
    """Return the titles of the charts."""
    texts = picture(run).findall(f"{SVG}g/{SVG}text[@font-weight='bold']")
    return [text.text or "" for text in texts]


def dots_with_tip(run: Record, tip: str) -> list[tuple[float, float, re.Match[str]]]:
    """Return the dots whose tip matches a regular expression, as (left, top, match)."""
    matching_dots = []
    for circle in picture(run).iter(f"{SVG}circle"):
        match = re.fullmatch(tip, circle.findtext(f"{SVG}title") or "")
        if match:
            matching_dots.append((float(circle.get("cx", "")), float(circle.get("cy", "")), match))
    return matching_dots


def test_a_picture_shows_roofline_blocks_operations_and_phases() -> None:
    assert titles(measured_step()) == [
        "Roofline",
        "Step time of each block",
        "Share of the profiled step",
        "Wall time of the phases, 5.5 s in total",
    ]


def test_the_height_of_a_block_is_linear_in_its_time() -> None:
    shown = dots_with_tip(measured_step(), r"block (\d+): (.*) ms")
    assert [float(match[2]) for _, _, match in shown] == [1e3 * value for value in BLOCKS]
    lefts = [left for left, _, _ in shown]
    tops = [top for _, top, _ in shown]
    slope, start = np.polyfit(BLOCKS, tops, 1)
    np.testing.assert_allclose(start + slope * np.array(BLOCKS), tops, atol=0.1)
    assert slope < 0
    np.testing.assert_allclose(np.diff(lefts), np.diff(lefts)[0], atol=0.11)


def test_the_warmup_precedes_the_blocks_and_does_not_extend_their_axis() -> None:
    run = measured_step()
    warmup = dots_with_tip(run, r"warm-up (-\d+): (.*) ms")
    blocks = dots_with_tip(run, r"block .*")
    assert [(int(m[1]), float(m[2])) for _, _, m in warmup] == [(-3, 3e3), (-2, 2e3), (-1, 600)]
    assert max(left for left, _, _ in warmup) < min(left for left, _, _ in blocks)
    assert warmup[0][1] == warmup[1][1]
    assert warmup[1][1] < warmup[2][1]


def test_the_distance_to_the_roofline_shows_the_share_of_it() -> None:
    run = measured_step()
    (point,) = dots_with_tip(run, r".*FLOP/byte, (\d+)% of the roof")
    lines = {line.findtext(f"{SVG}title"): line for line in picture(run).iter(f"{SVG}polyline")}
    (roof,) = [line for tip, line in lines.items() if (tip or "").startswith("measured peaks")]
    pairs = [pair.split(",") for pair in roof.get("points", "").split()]
    lefts = [float(left) for left, _ in pairs]
    tops = [float(top) for _, top in pairs]
    # On logarithmic axes the slope of the bandwidth is one decade per decade.
    ridge = PEAKS["peak_flops_per_second"] / PEAKS["peak_bytes_per_second"]
    first = min(ridge, run.metrics["arithmetic_intensity"]) / 6
    decade = (tops[0] - tops[1]) / math.log10(ridge / first)
    distance = point[1] - float(np.interp(point[0], lefts, tops))
    share = 10 ** (-distance / decade)
    assert share == pytest.approx(run.metrics["roofline_fraction"], rel=0.05)
    assert int(point[2][1]) == round(100 * run.metrics["roofline_fraction"])


def test_the_length_of_bars_is_proportional_to_their_values() -> None:
    widths = {}
    for group in picture(measured_step()).iter(f"{SVG}g"):
        tip = group.findtext(f"{SVG}title")
        if tip:
            bar = group.find(f"{SVG}rect")
            assert bar is not None
            widths[tip] = float(bar.get("width", ""))
    assert widths["MatMul: 75.0%"] == pytest.approx(6 * widths["Relu: 12.5%"], rel=0.01)
    assert widths["no operation: 12.5%"] == widths["Relu: 12.5%"]
    assert widths["measure: 4 s"] == pytest.approx(4 / 1.5 * widths["build: 1.5 s"], rel=0.01)


def inference_record() -> Record:
    point = read_point({"model": {"name": "fc"}, "mode": "inference"})
    singles = [0.001 * (1 + place) for place in range(100)]
    return recorded(point, answered(timing(BLOCKS), latencies=singles))


def learning_record() -> Record:
    sizes = {"layers": 1, "nodes": 64, "input_size": 64, "output_size": 10}
    config = {"model": {"name": "fc", **sizes}, "batch_size": 64, "task": "learn"}
    config |= {"data": {"name": "digits"}, "learn": {"target": 0.9, "epochs": 3}}
    point = read_point(config)
    epochs = [
        Epoch(
            number=number,
            steps=10,
            train_seconds=1.0,
            evaluation_seconds=0.1,
            accuracy=accuracy,
            heldout_loss=loss,
            train_loss=loss,
            ended=float(number),
            joules=None,
        )
        for number, accuracy, loss in ((1, 0.5, 1.0), (2, 0.8, math.inf), (3, 0.95, 0.1))
    ]
    return recorded(point, replace(answered(timing(BLOCKS)), news=[*epochs]))


def out_of_memory_record() -> Record:
    result = PointResult(
        "oom_host", "took 3 GiB", None, {"build": 1.0}, peak_memory_bytes=3 * 2**30
    )
    return recorded(POINT, result, memory_limit=2**31)


@pytest.mark.parametrize(
    ("make_record", "first"),
    [
        pytest.param(inference_record, "Latency of a single step", id="latency"),
        pytest.param(out_of_memory_record, "Memory against the limit", id="out of memory"),
        pytest.param(learning_record, "Held-out accuracy", id="learning"),
    ],
)
def test_each_kind_of_result_has_its_own_first_chart(make_record: Any, first: str) -> None:
    assert titles(make_record())[0] == first


@pytest.mark.parametrize(
    "make_record", [measured_step, inference_record, learning_record, out_of_memory_record]
)
def test_a_run_has_at_most_20_headline_metrics(make_record: Any) -> None:
    made_record = make_record()
    names = {
        *made_record.metrics,
        *(name for moment in made_record.history for name in moment.metrics),
    }
    assert 1 <= sum("/" not in stored_name(name) for name in names) <= 20


def test_the_metrics_that_summarize_a_run_are_headline_metrics() -> None:
    for work in WORKLOADS.values():
        described = work.role(ResultDescription)
        for name in (*described.headlines, *described.rates):
            assert stored_name(name) == name


def test_the_distribution_shows_the_quantiles() -> None:
    shown = dots_with_tip(inference_record(), r"(.*)% within (.*) ms")
    for _, _, match in shown:
        slower = round(100 * (1 - float(match[1]) / 100))
        # Of 100 latencies of 1 to 100 ms, `slower` are at least as long as this one.
        assert float(match[2]) == pytest.approx(101 - slower)
    assert float(shown[-1][2][2]) == pytest.approx(100)


def test_memory_is_shown_against_the_limit() -> None:
    run = out_of_memory_record()
    texts = " ".join(element.text or "" for element in picture(run).iter(f"{SVG}title"))
    assert "peak until the end: 3.22 GB" in texts
    assert "limit: 2.15 GB" in texts
    assert run.metrics["memory_limit_bytes"] == 2**31


def test_the_page_allows_only_its_own_script_and_loads_no_resources() -> None:
    html = measured_step().artifacts["overview.html"]
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html
    assert re.findall(r"https?://[^\s\"']+", html) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\{\{\w+\}\}", html)


def test_texts_are_escaped() -> None:
    unsteady = timing(BLOCKS, steady=False, steady_reason="<script>alert('a & b')</script>")
    run = recorded(POINT, answered(unsteady))
    assert not [element for element in picture(run).iter() if "script" in element.tag]
    texts = [element.text or "" for element in picture(run).iter(f"{SVG}text")]
    assert any("<script>alert('a & b')</script>" in text for text in texts)


def test_a_long_reason_is_wrapped_and_not_cut() -> None:
    reason = " ".join(f"word{number}" for number in range(100))
    run = recorded(POINT, answered(timing(BLOCKS, steady=False, steady_reason=reason)))
    texts = [element.text or "" for element in picture(run).findall(f"{SVG}text")]
    assert reason in " ".join(texts)
    assert max(map(len, texts)) < 190


def test_a_failing_picture_does_not_change_the_other_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_to_draw(*_: object) -> dict[str, str]:
        raise ValueError("no room")

    with_picture = measured_step()
    monkeypatch.setattr(record, "overview_files", fail_to_draw)
    run = measured_step()
    assert run.tags["overview"] == "not drawn: ValueError no room"
    assert run.metrics == with_picture.metrics
    assert {*with_picture.artifacts} - {*run.artifacts} == {"overview.svg", "overview.html"}


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="none"),
        pytest.param([1.0], id="one"),
        pytest.param([0.0, 0.0], id="zeros"),
        pytest.param([5.0] * 3, id="equal"),
        pytest.param([1e-300, 1e300], id="far apart"),
        pytest.param([-1.0, math.inf, math.nan, 2.0], id="not finite"),
        pytest.param([1.0, 1.0000001], id="close"),
    ],
)
@pytest.mark.parametrize("make", [ChartAxis.linear, ChartAxis.log])
def test_an_axis_has_at_most_8_ticks_within_its_ends(make: Any, values: Sequence[float]) -> None:
    axis = make("label", values)
    ticks = axis.ticks()
    assert axis.low < axis.high
    assert len(ticks) <= 8
    assert all(axis.low <= tick <= axis.high * (1 + 1e-9) for tick in ticks)
    assert [axis.share(axis.low), axis.share(axis.high)] == [0, 1]
    chart = Chart("", axis, axis)
    chart.dots([(value, value) for value in values], "red", [""] * len(values))


def test_a_page_places_charts_in_two_columns() -> None:
    charts = [BarChart(f"chart {number}", [Bar("one", 0.0, "0")]) for number in range(3)]
    drawn = ElementTree.fromstring(page("title", ["a line"], charts))
    places = [group.get("transform") for group in drawn.findall(f"{SVG}g[@class='chart']")]
    assert places == ["translate(20 63)", "translate(600 63)", "translate(20 383)"]


def test_the_description_has_the_roofline_position_and_the_top_operations() -> None:
    run = measured_step()
    paragraphs = run.description.split("\n\n")
    share = run.metrics["roofline_fraction"]
    (roofline,) = [text for text in paragraphs if text.startswith("Roofline")]
    assert f"**{share:.0%}** of the limit set by memory bandwidth (22 GB/s)" in roofline
    assert "the ridge is at 54.5 FLOP/byte" in roofline
    assert paragraphs[-1] == "Time goes to MatMul 75%, Relu 12%, no operation 12%."
