"""Where a planted speedup crosses 1, beside where its law says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.speedup import SpeedupOptions, equal_at, speedup
from paradnn.errors import ConfigError
from tests.analysis.test_pairing import side

DENSITY = np.array([0.01, 0.04, 0.16, 0.64])


def pairs(law: np.ndarray, spread: float = 0.1, x: np.ndarray = DENSITY) -> pd.DataFrame:
    """Speedups with intervals of a width."""
    ends = {"speedup_low": law * np.exp(-spread), "speedup_high": law * np.exp(spread)}
    return pd.DataFrame({"model.density": x, "speedup": law, **ends})


def test_a_power_law_crosses_where_it_is_one() -> None:
    # speedup = (density / 0.1)^-1.5: the ends are where it is exp(0.1) and exp(-0.1).
    row = equal_at(pairs((DENSITY / 0.1) ** -1.5), "model.density", []).iloc[0]
    assert (row["ahead"], row["crossings"], row["points"]) == ("A", 1, 4)
    assert row[["value", "low", "high"]].tolist() == pytest.approx(
        [0.1, 0.1 * np.exp(-0.1 / 1.5), 0.1 * np.exp(0.1 / 1.5)]
    )
    rising = equal_at(pairs((DENSITY / 0.1) ** 1.5), "model.density", []).iloc[0]
    assert rising["ahead"] == "B"
    assert rising[["value", "low", "high"]].tolist() == pytest.approx(row[["value", "low", "high"]].tolist())


def test_a_point_on_one_is_the_crossing_and_a_line_through_zero_is_linear() -> None:
    assert equal_at(pairs(np.array([4.0, 2.0, 1.0, 0.5])), "model.density", []).iloc[0]["value"] == pytest.approx(0.16)
    x = np.array([0.0, 1.0])
    assert equal_at(pairs(np.array([2.0, 0.5]), x=x), "model.density", []).iloc[0]["value"] == pytest.approx(0.5)


def test_ends_beyond_what_was_measured_and_no_or_several_crossings() -> None:
    row = equal_at(pairs(np.array([1.05, 1.04, 1.03, 0.98])), "model.density", []).iloc[0]
    assert (row["low"], row["high"]) == (-np.inf, np.inf)
    none = equal_at(pairs(np.full(4, 2.0)), "model.density", []).iloc[0]
    assert (none["crossings"], none["ahead"]) == (0, "A")
    assert np.isnan(none["value"])
    several = equal_at(pairs(np.array([2.0, 0.5, 2.0, 0.5])), "model.density", []).iloc[0]
    assert several["crossings"] == 3
    assert np.isnan(several["value"])
    unknown = equal_at(pairs((DENSITY / 0.1) ** -1.5, np.nan), "model.density", []).iloc[0]
    assert unknown["value"] == pytest.approx(0.1)
    assert np.isnan(unknown["low"])


def test_groups_are_apart_and_columns_that_say_nothing_are_a_line() -> None:
    two = pd.concat([pairs((DENSITY / at) ** -1.0).assign(batch_size=size) for at, size in ((0.1, 1), (0.02, 64))])
    found = equal_at(two, "model.density", ["batch_size"])
    assert dict(zip(found["batch_size"], found["value"].round(6), strict=True)) == {1: 0.1, 64: 0.02}
    with pytest.raises(ConfigError, match="has one value in all pairs that differ in nothing else; sweep it"):
        equal_at(two, "batch_size", ["model.density", "speedup"])
    with pytest.raises(ConfigError, match="is no number"):
        equal_at(two.assign(cell="lstm"), "cell", [])


def test_the_command_says_where() -> None:
    density, batch = (axis.ravel() for axis in np.meshgrid(DENSITY, [1, 64]))
    law = (density / np.where(batch == 1, 0.1, 0.02)) ** -1.0
    scatter = np.array([0.99, 1.0, 1.01])
    columns = {"model.density": np.repeat(density, 3), "batch_size": np.repeat(batch, 3), "model.layers": 1}
    sides = [
        side(rate[:, None] * scatter, storage, **{"model.storage": storage}, **columns)
        for storage, rate in (("sparse", 100 * law), ("dense", np.full(8, 100.0)))
    ]
    frame = pd.concat(sides, ignore_index=True)
    options = SpeedupOptions(a=("model.storage=sparse",), b=("model.storage=dense",), equal="density")
    text = str(speedup(frame, options))
    assert "Where model.storage=sparse and model.storage=dense are equal in model.density:" in text
    ahead = "model.storage=sparse is ahead below, model.storage=dense above."
    assert f"batch_size 1: equal at 0.1 (0.0978 to 0.102); {ahead}" in text
    assert "batch_size 64: equal at 0.02 (" in text
