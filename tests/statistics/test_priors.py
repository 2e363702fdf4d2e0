"""Priors of scatter: updates by data, choice by device and source, and documented values."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from paradnn.statistics.priors import (
    DeviceClass,
    VariancePrior,
    classify_devices,
    priors_for,
    scatter_priors,
)

PRIOR = VariancePrior(scale=0.1, freedom=4, source="a test")
FLOOR = VariancePrior(scale=0.1, freedom=4, source="a test", is_floor=True)


@pytest.mark.parametrize("tail", [0.009, 0.011])
@pytest.mark.parametrize("is_small", [True, False])
def test_data_contradict_a_prior_in_one_percent_of_an_f_distribution(
    tail: float, is_small: bool
) -> None:
    distribution = stats.f(6, 4)
    ratio = distribution.ppf(tail) if is_small else distribution.isf(tail)

    assert PRIOR.contradicts(0.01 * ratio, 6) == (tail < 0.01)


@pytest.mark.parametrize(
    ("freedom", "contradicts"),
    [
        pytest.param(2, False, id="too few degrees of freedom"),
        pytest.param(3, True, id="just enough degrees of freedom"),
    ],
)
def test_few_measurements_contradict_nothing(freedom: float, contradicts: bool) -> None:
    assert PRIOR.contradicts(1e6, freedom) == contradicts


@pytest.mark.parametrize(
    ("variance", "contradicts"),
    [pytest.param(1e-9, False, id="less scatter"), pytest.param(10.0, True, id="more scatter")],
)
def test_less_scatter_never_contradicts_a_floor(variance: float, contradicts: bool) -> None:
    assert FLOOR.contradicts(variance, 20) == contradicts
    assert PRIOR.contradicts(variance, 20)


@pytest.mark.parametrize(
    ("variance", "freedom", "scale", "weight"),
    [
        pytest.param(0.02, 4.0, math.sqrt(0.015), 4.0, id="as much data as the prior"),
        pytest.param(
            0.02,
            100.0,
            math.sqrt((4 * 0.01 + 8 * 0.02) / 12),
            8.0,
            id="much more data than the prior",
        ),
        pytest.param(1e4, 100.0, 0.2, 8.0, id="at most twice the scale"),
        pytest.param(1e-9, 100.0, 0.05, 8.0, id="at least half the scale"),
    ],
)
def test_other_runs_update_a_prior_within_limits(
    variance: float, freedom: float, scale: float, weight: float
) -> None:
    found = PRIOR.learn(variance, freedom)

    assert found.scale == pytest.approx(scale)
    assert found.freedom == 4 + weight
    assert found.source.startswith("a test; ")


def test_a_prior_without_other_runs_is_unchanged() -> None:
    assert PRIOR.learn(0.5, 0.0) is PRIOR


def platform(*names: str | None) -> pd.DataFrame:
    return pd.DataFrame({"platform.name": names})


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        pytest.param([platform("gpu"), platform("tpu")], DeviceClass.ACCELERATOR, id="both sides"),
        pytest.param([platform("gpu"), platform("cpu")], DeviceClass.SHARED, id="one side"),
        pytest.param([platform("gpu", None)], DeviceClass.SHARED, id="one run unknown"),
        pytest.param([pd.DataFrame({"a": [1]})], DeviceClass.SHARED, id="no column"),
        pytest.param([], DeviceClass.SHARED, id="no side"),
    ],
)
def test_devices_are_accelerators_if_all_runs_used_one(
    sides: list[pd.DataFrame], expected: DeviceClass
) -> None:
    assert classify_devices(*sides) is expected


@pytest.mark.parametrize(
    ("sources", "has_prior"),
    [
        pytest.param([["published"], ["published"]], False, id="published"),
        pytest.param([["published"], ["measured"]], True, id="one side measured"),
        pytest.param([["published", None]], True, id="one run of unknown source"),
        pytest.param([], True, id="no side"),
    ],
)
def test_published_runs_get_no_prior_of_values_because_it_was_fitted_to_them(
    sources: list[list[str | None]], has_prior: bool
) -> None:
    sides = [pd.DataFrame({"source": side}) for side in sources]

    found = priors_for(*sides)

    assert (found.value is not None) == has_prior
    assert found.process == scatter_priors().process


def test_runs_without_a_source_get_the_prior_of_values() -> None:
    assert priors_for(pd.DataFrame({"family": ["fc"]})).value is not None


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "statistics.md"
#: Name of the prior per effect in the table of the page.
DOCUMENTED = {
    "process": "process",
    "session or host": "session",
    "order": "order",
    "position within a point": "position",
    "driver": "driver",
    "ratio between sessions": "interaction",
    "protocol": "protocol",
    "value of a hyperparameter": "value",
}


@pytest.mark.parametrize("effect", DOCUMENTED)
@pytest.mark.parametrize("device", DeviceClass)
def test_priors_equal_the_documented_values(effect: str, device: DeviceClass) -> None:
    rows = re.findall(
        rf"^\| {effect} \| ([\d.]+)(%?)[^|]*\| (\d+) \|", PAGE.read_text(), re.MULTILINE
    )

    priors = scatter_priors(device)

    # The second table contains only the priors that differ for accelerators.
    size, unit, freedom = rows[-1] if device is DeviceClass.ACCELERATOR else rows[0]
    scale = float(size) / 100 if unit else float(size)
    prior = getattr(priors, DOCUMENTED[effect])

    assert (prior.scale, prior.freedom) == pytest.approx((scale, float(freedom)))
    assert not prior.is_floor
    assert not priors.is_learned
