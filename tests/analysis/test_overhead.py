from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.overhead import OverheadOptions, OverheadResult
from analysis.analyses.overhead import overhead as analyse
from analysis.statistics.quantiles import bootstrap_ratio
from paradnn.core.errors import SchemaError
from paradnn.store.metrics import PHASES


def points(count: int = 40) -> pd.DataFrame:
    """Runs of two families; only some were profiled, two have no phases at all."""
    rng = np.random.default_rng(5)
    columns = {f"phase_{name}_seconds": rng.gamma(2, 1 + place, count) for place, name in enumerate(PHASES)}
    frame = pd.DataFrame(columns).assign(family=["rnn", "fc"] * (count // 2), outcome="ok", device="D")
    frame.loc[: count // 2, "phase_profile_seconds"] = np.nan
    frame.loc[frame.index.intersection([3, 8]), list(columns)] = np.nan
    return frame.assign(run_id=[str(row) for row in range(count)])


def overhead(frame: pd.DataFrame, **options: Any) -> OverheadResult:
    result = analyse(frame, OverheadOptions(**options))
    assert isinstance(result, OverheadResult)
    return result


def test_phases_against_plain_numpy() -> None:
    frame = points()
    found = overhead(frame)
    table = frame[[f"phase_{name}_seconds" for name in PHASES]].to_numpy()
    total = np.nansum(table)
    assert (found.wall, found.runs, found.without) == (pytest.approx(total), 38, 2)
    assert list(found.phases["phase"]) == list(PHASES)
    np.testing.assert_allclose(found.phases["median"], np.nanmedian(table, axis=0))
    np.testing.assert_allclose(found.phases["q25"], np.nanpercentile(table, 25, axis=0))
    np.testing.assert_allclose(found.phases["share"], np.nansum(table, axis=0) / total)
    assert found.phases["share"].sum() == pytest.approx(1)
    assert found.phases.set_index("phase")["runs"]["profile"] == 19
    parts = dict(zip(PHASES, np.nansum(table, axis=0) / total, strict=True))
    measuring = ("prefill", "requests", "measure", "latency", "load", "learn")
    assert found.measuring.value == pytest.approx(sum(parts[name] for name in measuring))
    assert found.stack.value == pytest.approx(parts["schedule"] + parts["start"] + parts["record"])
    assert found.measuring.low < found.measuring.value < found.measuring.high


def test_families_stack_up_to_the_mean_time_of_a_point() -> None:
    frame = points()
    found = overhead(frame)
    assert list(dict.fromkeys(found.families["family"])) == ["fc", "rnn"]
    for family, group in found.families.groupby("family"):
        mine = frame[frame["family"] == family].filter(like="phase_").dropna(how="all")
        assert group["seconds"].sum() == pytest.approx(np.nansum(mine) / len(mine))
        assert group["share"].sum() == pytest.approx(1)


def test_no_interval_of_a_share_is_beyond_0_and_1() -> None:
    """Eight points, nearly all of whose time is measured: a bootstrap that knows numbers alone goes above 1."""
    rng = np.random.default_rng(3)
    wall, share = rng.gamma(2, 3, 8), 1 - rng.beta(0.3, 6, 8)
    assert bootstrap_ratio(wall * share, wall).high > 1
    assert bootstrap_ratio(wall * (1 - share), wall).low < 0
    phases = {"phase_measure_seconds": wall * share, "phase_start_seconds": wall * (1 - share)}
    found = overhead(pd.DataFrame(phases).assign(family="fc", device="D", run_id=range(8)))
    assert (found.measuring.high, found.stack.low) == (1.0, 0.0)
    assert 0 < found.measuring.low < found.measuring.value < 1


def test_the_command_says_and_draws_where_time_goes(tmp_path: Path) -> None:
    frame = points().assign(device="D", environment_id="e")
    result = overhead(frame)
    assert result.text().startswith(f"38 points took {result.wall:.0f} s of wall time, ")
    assert f"{100 * result.measuring.value:.0f}% (95% interval " in result.text()
    assert "is the stack's own overhead (schedule + start + record), " in result.text()
    assert "2 runs report no phases and are left out." in result.text()
    assert list(result.table["phase"]) == list(PHASES)
    assert len(result.sources) == 38
    result.figure().savefig(tmp_path / "overhead.png")
    bars = {bar.get_label(): bar.patches[0] for bar in result.figure().axes[0].containers}
    looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in bars.values()}
    assert len(looks) == len(bars) == len(PHASES), "every phase has a look of its own"
    # Runs without phases, such as published ones, make no others heterogeneous.
    frame.loc[[3, 8], "environment_id"] = "published"
    assert "pooled" not in overhead(frame).text()
    frame.loc[5, "environment_id"] = "other"
    with pytest.raises(SchemaError, match="environment_id"):
        overhead(frame)
    assert "Heterogeneous runs were pooled" in overhead(frame, pool=True).text()
    endless = points().assign(phase_build_seconds=np.inf)
    assert "build" not in list(overhead(endless).phases["phase"])
    bare = overhead(frame.loc[[3, 8]])
    assert bare.text() == "None of these 2 runs reports its phases; published ones do not."
    assert not bare.drawable


def test_few_points_may_miss_rare_waits() -> None:
    """With n points, what occurs in 1 - 0.05^(1/n) of them is missing from all of them in 5% of samples."""
    frame = points().assign(device="D", environment_id="e")
    assert (
        "waits that occur in fewer than 7.6% of the points may be missing from 38 of them (95%)"
        in overhead(frame).text()
    )
    assert pytest.approx(0.05, abs=1e-3) == (1 - 0.0758) ** 38
    many = pd.concat([frame.assign(run_id=frame["run_id"] + f"-{i}") for i in range(10)], ignore_index=True)
    assert "may be missing" not in overhead(many).text()
