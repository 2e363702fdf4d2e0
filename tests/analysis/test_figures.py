"""Legibility of figures of planted runs: on a screen, in a column and across a printed page."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import analysis
from analysis.analyses.breakdown import breakdown
from analysis.analyses.claims import draw_claims
from analysis.analyses.roofline import draw_roofline
from analysis.analyses.software import SoftwareOptions, software
from analysis.claims.evaluate import Data, judge
from analysis.claims.load import load_claims
from analysis.drawing import page
from analysis.operation_speedup import draw_operations as draw_operation_speedups
from analysis.operation_speedup import operation_speedup
from analysis.operations import make_result, place_operations
from analysis.roofs import Roof, place_models
from paradnn.families import FAMILIES
from paradnn.statistics.dependence import shared_levels
from tests.analysis import (
    test_infeed,
    test_overhead,
    test_roofline,
    test_scaling,
    test_software,
    test_speedup,
)
from tests.analysis.legible import faults
from tests.analysis.planted import BATCH, POINTS, SIZE, runs

LONG_DEVICE = "NVIDIA H100 80GB HBM3 MIG 3g.40gb, $2.99 an hour, $1.20 spot"

CLAIMS = Path(__file__).with_name("claims_drawn.yaml")


def _software() -> Figure:
    version = test_software.version
    old = version("2.9")
    new = version("2.16", 2 * test_software.SPREAD)
    slow = version("2.21", 0.5)
    frame = test_software.with_unique_ids(
        old, new, slow, version("2.9", family="lstm"), version("2.16", 3.0, family="lstm")
    )
    return software(frame.assign(device=LONG_DEVICE), SoftwareOptions()).picture()


def _claims() -> Figure:
    sides = [
        runs(POINTS, device=name, environment_id=name, examples_per_second=rate)
        for name, rate in (("A", BATCH**0.7 / SIZE * 1e4), ("B", BATCH**0.5 / SIZE * 1e4))
    ]
    frame = pd.concat(sides, ignore_index=True).assign(
        run_id=lambda table: table.index.astype("str")
    )
    return draw_claims(judge(load_claims(CLAIMS), Data(frame)))


def _breakdown() -> Figure:
    random = np.random.default_rng(4)
    parts = []
    for family in ("fc", "gpt", LONG_DEVICE):
        shares = random.dirichlet(np.arange(1, 15), len(POINTS))
        columns = {
            f"op_share.{'a rather long type of operation ' * (n == 13)}{n}": shares[:, n]
            for n in range(14)
        }
        parts.append(runs(POINTS, family=family, platform__name=family, **columns))
    frame = pd.concat(parts, ignore_index=True)
    frame["point_id"] += frame["family"]
    return breakdown(frame).picture()


def _parameters() -> Figure:
    names = [*FAMILIES, "resnet50", "a_real_model_with_a_name"]
    frame = pd.DataFrame(
        {"family": names * 3, "parameters": np.geomspace(1e4, 1e9, 3 * len(names)), "outcome": "ok"}
    )
    return analysis.parameters(frame).picture()


def _infeed() -> Figure:
    frame = pd.concat(
        [
            test_infeed.measured_balance(family=family, device=LONG_DEVICE)
            for family in ("fc", "lstm")
        ]
    )
    frame = frame.assign(point_id=frame["point_id"] + frame["family"]).reset_index(drop=True)
    return analysis.infeed(frame).picture()


def _operations() -> Figure:
    roof = Roof(LONG_DEVICE, "float32", 8e12, 4e11, "measured", "measured")
    table = test_roofline.operations().assign(run_id="r", device=LONG_DEVICE, precision="float32")
    found, models = place_operations(table, [roof])
    levels = shared_levels(models)
    return make_result([roof], found, models, levels=levels, single_run="fc", sources=()).picture()


def _operation_speedups() -> Figure:
    a, types_a = test_speedup.profiled("A")
    b, types_b = test_speedup.profiled("B")
    found = operation_speedup(a, b, pd.concat([types_a, types_b]), (75.0, 117.0))
    return draw_operation_speedups(found, (75.0, 117.0), LONG_DEVICE, "B")


def _roofline(rows: slice) -> Figure:
    """Draw the selected rows of the planted models under two roofs of a device."""
    sides = [
        test_roofline.planted(precision=precision).iloc[rows]
        for precision in ("float32", "bfloat16")
    ]
    placed = place_models(pd.concat(sides, ignore_index=True), test_roofline.SHEETS.get)
    return draw_roofline(placed.points, placed.roofs)


FIGURES: dict[str, Callable[[], Figure]] = {
    "software": _software,
    "claims": _claims,
    "breakdown": _breakdown,
    "parameters": _parameters,
    "infeed": _infeed,
    "operations": _operations,
    "operation speedups": _operation_speedups,
    "roofline": lambda: _roofline(slice(None)),
    "near the ridge": lambda: _roofline(slice(12, 16)),
    "scaling": lambda: analysis.scaling(test_scaling.planted(0.1, 0.05)).picture(),
    "overhead": lambda: analysis.overhead(test_overhead.points()).picture(),
}


@pytest.mark.parametrize("width", [None, 3.3, pytest.param(7.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_cut_off_or_overlaps_another(name: str, width: float | None) -> None:
    with page(width):
        figure = FIGURES[name]()
        figure.draw_without_rendering()
    assert faults(figure) == []
    assert width is None or figure.get_size_inches()[0] == width
