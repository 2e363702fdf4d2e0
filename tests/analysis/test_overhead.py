from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.overhead import MEASURING_PHASES, OVERHEAD_PHASES, overhead, phase_share
from paradnn.statistics.dependence import crossed_ratio, shared_levels
from paradnn.store.metrics import PHASES


def points(count: int = 40) -> pd.DataFrame:
    """Return runs of two families; only some were profiled, and two have no phases at all."""
    rng = np.random.default_rng(5)
    columns = {
        f"phase_{name}_seconds": rng.gamma(2, 1 + place, count) for place, name in enumerate(PHASES)
    }
    frame = pd.DataFrame(columns).assign(
        family=["rnn", "fc"] * (count // 2), outcome="ok", device="D"
    )
    frame.loc[: count // 2, "phase_profile_seconds"] = np.nan
    frame.loc[frame.index.intersection([3, 8]), list(columns)] = np.nan
    return frame.assign(run_id=[str(row) for row in range(count)])


def seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds that runs spent in each phase."""
    return (
        frame[[f"phase_{name}_seconds" for name in PHASES]]
        .set_axis(list(PHASES), axis=1)
        .dropna(how="all")
    )


def test_phases_against_plain_numpy() -> None:
    spent = seconds(points())
    result = overhead(points())
    table = spent.to_numpy()
    phases = result.table
    total = np.nansum(table)
    assert f"\n38 points took {total:.0f} s of wall time, " in result.text()
    assert list(phases["phase"]) == list(PHASES)
    np.testing.assert_allclose(phases["median"], np.nanmedian(table, axis=0))
    np.testing.assert_allclose(phases["q25"], np.nanpercentile(table, 25, axis=0))
    np.testing.assert_allclose(phases["share"], np.nansum(table, axis=0) / total)
    assert phases.set_index("phase")["runs"]["profile"] == 19
    parts = dict(zip(PHASES, np.nansum(table, axis=0) / total, strict=True))
    measuring = phase_share(spent.fillna(0), MEASURING_PHASES)
    own = ("prefill", "requests", "measure", "latency", "load", "learn", "judge")
    assert measuring.value == pytest.approx(sum(parts[name] for name in own))
    stack = phase_share(spent.fillna(0), OVERHEAD_PHASES).value
    assert stack == pytest.approx(parts["schedule"] + parts["start"] + parts["record"])
    assert measuring.low < measuring.value < measuring.high
    assert result.text().startswith(f"Measuring takes {100 * measuring.value:.1f}% (95% CI ")


def test_no_interval_of_a_share_is_beyond_0_and_1() -> None:
    """Eight points that spend nearly all their time measuring.

    An interval that ignores the bounds of a share would exceed 1.
    """
    rng = np.random.default_rng(3)
    wall = rng.gamma(2, 3, 8)
    share = 1 - rng.beta(0.3, 6, 8)
    phases = {"phase_measure_seconds": wall * share, "phase_start_seconds": wall * (1 - share)}
    spent = pd.DataFrame(phases).set_axis(["measure", "start"], axis=1)
    assert crossed_ratio(wall * share, wall, shared_levels(spent, "point")).high > 1
    measuring, stack = (phase_share(spent, parts) for parts in (MEASURING_PHASES, OVERHEAD_PHASES))
    assert 0 < measuring.low < measuring.value < measuring.high < 1
    assert (stack.low, stack.high) == pytest.approx((1 - measuring.high, 1 - measuring.low))


def test_the_command_reports_and_draws_the_time_per_phase(tmp_path: Path) -> None:
    frame = points().assign(device="D", environment_id="e")
    result = overhead(frame)
    assert "the stack's own overhead (schedule + start + record) takes " in result.text()
    assert "Excluded: 2 runs without phases." in result.text()
    assert len(result.sources) == 38
    result.figure().savefig(tmp_path / "overhead.png")
    # With n points, an event that affects 1 - 0.05^(1/n) of all points is missing from 5% of
    # samples.
    assert (
        "fewer than 7.6% of points, such as a long wait, may have happened to none of these 38"
        in result.text()
    )
    assert pytest.approx(0.05, abs=1e-3) == (1 - 0.0758) ** 38
    many = pd.concat(
        [frame.assign(run_id=frame["run_id"] + f"-{i}") for i in range(10)], ignore_index=True
    )
    assert "may have happened" not in overhead(many).text()
    bars = {bar.get_label(): bar.patches[0] for bar in result.figure().axes[0].containers}
    looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in bars.values()}
    assert len(looks) == len(bars) == len(PHASES), "every phase has a look of its own"
    # Runs without phases, such as published ones, do not make other runs heterogeneous.
    frame.loc[[3, 8], "environment_id"] = "published"
    assert "pooled" not in overhead(frame).text()
    endless = points().assign(phase_build_seconds=np.inf)
    assert "build" not in list(overhead(endless).table["phase"])
    bare = overhead(frame.loc[[3, 8]])
    assert bare.text() == "None of these 2 runs reports phases; published runs do not."
    assert not bare.drawable
