"""Frames of runs: types of columns, defaults, homogeneity and replicates."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.store.frame import aggregate_replicates, build_frame, require_homogeneous
from analysis.store.load import load
from paradnn.core.errors import SchemaError
from paradnn.store.columns import Records, in_parts
from paradnn.store.runs import Run


def records_of(tags: dict[str, list[str]] | None = None, /, **params: list[str | None]) -> Records:
    """Return records of runs that started one millisecond apart.

    Run i has the i-th value of each param. It has the i-th value of each tag, if there is one.
    """
    count = len(next(iter(params.values())))
    records = Records(
        Run(f"r{i:04}", None, "paradnn", "FINISHED", i, None, None) for i in range(count)
    )
    for kind, columns in (("params", params), ("tags", tags or {})):
        rows = (
            (f"r{i:04}", name, value)
            for name in columns
            for i, value in enumerate(columns[name])
            if value is not None
        )
        records.add(kind, in_parts(kind, rows))
    return records


def test_an_invalid_option_value_is_missing_and_its_column_keeps_its_type() -> None:
    """Invalid values of one run leave the values of other runs unchanged.

    Covers text and an overflow instead of numbers, and a number instead of a Boolean.
    """
    params = {
        "batch_size": ["64", "<b>"],
        "measure.min_seconds": ["0.5", "-1e400"],
        "measure.keep_trace": ["true", "-1"],
    }
    frame = build_frame(
        records_of(**{"model.name": ["fc", "fc"], "model.blocks": ["[1, 2]", "x"], **params})
    )

    assert [str(frame[name].dtype) for name in params] == ["Int64", "float64", "boolean"]
    assert [frame[name].isna().tolist() for name in params] == [[False, True]] * 3
    assert frame["model.blocks"].tolist() == ["[1, 2]", "x"]


@pytest.mark.parametrize(
    ("texts", "dtype", "values"),
    [
        pytest.param(["1", "-20", None], "Int64", [1, -20, None], id="integers"),
        pytest.param(["1", "0.5"], "float64", [1.0, 0.5], id="decimals"),
        pytest.param(
            ["1e-07", "inf", "-.5", "2."],
            "float64",
            [1e-07, math.inf, -0.5, 2.0],
            id="floats in all notations",
        ),
        pytest.param(["true", "null", "false"], "boolean", [True, None, False], id="booleans"),
        pytest.param(["1", "auto"], "str", ["1", "auto"], id="number and word"),
        pytest.param(["007", "1_000"], "str", ["007", "1_000"], id="leading zero and underscore"),
        pytest.param(["9223372036854775807"], "Int64", [9223372036854775807], id="largest int64"),
        pytest.param(["9223372036854775808"], "float64", [9.223372036854776e18], id="above int64"),
        pytest.param(["[1, 1, 1, 1]", "null"], "str", ["[1, 1, 1, 1]", None], id="list"),
        pytest.param(["null", None], "str", [None, None], id="null as text"),
        pytest.param(["", "1"], "str", ["", "1"], id="empty text"),
    ],
)
def test_a_param_column_has_the_type_that_fits_all_values(
    texts: list[str | None], dtype: str, values: list[Any]
) -> None:
    column = build_frame(records_of(x=texts))["x"]
    pd.testing.assert_series_equal(column, pd.Series(values, dtype=dtype, name="x"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.none()).filter(any)
)
def test_numbers_survive_conversion_to_text_and_back(numbers: list[float | None]) -> None:
    column = build_frame(
        records_of(x=[None if number is None else str(number) for number in numbers])
    )["x"]
    expected = [number if number is None else float(number) for number in numbers]

    assert [None if pd.isna(value) else float(value) for value in column] == expected


def test_a_param_overrides_a_tag_in_each_run() -> None:
    # There are two runs, so the third tag value, 7, belongs to no run.
    records = records_of({"replicate": ["0", "1", "7"]}, replicate=["3", None])
    assert list(build_frame(records)["replicate"]) == [3, 1]


def test_runs_from_before_a_key_existed_have_its_default() -> None:
    """The runs: a measured one, one from before `devices`, a published one, and a parent."""
    sources = ["measured", "measured", "published", "measured"]
    params = {"devices": ["2", None, None, None]}
    records = records_of({"source": sources}, **params, **{"model.name": ["fc", "fc", "fc", None]})
    expected = pd.Series([2, 1, None, None], dtype="Int64", name="devices")

    pd.testing.assert_series_equal(build_frame(records)["devices"], expected)


def test_task_numbers_of_old_sweeps_do_not_make_runs_heterogeneous() -> None:
    """In old sweeps the tag `task` is the number of a launched task, and all runs time steps."""
    frame = build_frame(
        records_of({"source": ["measured"] * 2, "task": ["0", "1"]}, **{"model.name": ["fc", "fc"]})
    )
    assert frame["task"].tolist() == ["step", "step"]
    assert frame["launched_task"].tolist() == ["0", "1"]
    assert require_homogeneous(frame) is frame


def test_heterogeneous_runs_are_rejected_with_the_reason(store: str) -> None:
    frame = load(store)
    with pytest.raises(SchemaError) as caught:
        require_homogeneous(frame)
    assert str(caught.value) == (
        "these runs are heterogeneous: environment_id = env-a (30 runs), env-b (4 runs), differing in "
        "device (Test CPU, 2 cores / Test GPU), platform.name (cpu / gpu), version.tensorflow (2.21.0 / 2.20.0); "
        "choose runs with --tag environment_id=..., or pool them with --pool"
    )

    pooled = require_homogeneous(frame, pool=True)
    assert pooled.attrs["pooled"].startswith("environment_id = env-a (30 runs), env-b (4 runs)")
    assert "pooled" not in frame.attrs
    assert require_homogeneous(frame[frame["family"] == "fc"]) is not None


def test_replicates_become_their_median_with_count_and_spread() -> None:
    speeds = [10.0, 14.0, 12.0, 5.0, math.nan, math.nan]
    frame = pd.DataFrame(
        {
            "point_id": ["p", "p", "p", "q", "q", "o"],
            "environment_id": "e",
            "batch_size": [1, 1, 1, 2, 2, 3],
            "outcome": ["ok", "ok", "ok", "ok", "crash", "oom_host"],
            "replicate": [0, 1, 2, 0, 1, 0],
            "examples_per_second": speeds,
            "parameters": [7.0] * 6,
            "memory_note": "x",
        }
    )
    result = (
        aggregate_replicates(frame.sample(frac=1, random_state=1))
        .set_index("point_id")
        .loc[["p", "q", "o"]]
    )

    np.testing.assert_allclose(result["examples_per_second"], [12.0, 5.0, math.nan])
    np.testing.assert_allclose(
        result["examples_per_second_spread"], [np.std(speeds[:3], ddof=1) / 12, math.nan, math.nan]
    )
    assert list(result["replicates"]) == [3, 1, 0]
    assert list(result["replicates_failed"]) == [0, 1, 1]
    assert list(result["outcome"]) == ["ok", "ok", "oom_host"]
    assert list(result["batch_size"]) == [1, 2, 3]
    assert list(result["parameters"]) == [7.0] * 3, "an out-of-memory point keeps its known values"


def test_replicates_in_different_environments_are_not_aggregated(store: str) -> None:
    frame = load(store)
    two_environments = pd.concat([frame, frame.assign(environment_id="env-c")], ignore_index=True)

    assert len(aggregate_replicates(frame)) == 32, (
        "30 fc points and 2 lstm points with two replicates each"
    )
    assert len(aggregate_replicates(two_environments)) == 64
    with pytest.raises(SchemaError, match="these runs have no point_id"):
        aggregate_replicates(frame.drop(columns="point_id"))
