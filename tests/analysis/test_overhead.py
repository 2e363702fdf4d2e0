"""Overhead of measuring: time per phase, time per layer of a driver, and claims about it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.overhead import (
    MEASURING_PHASES,
    OVERHEAD_PHASES,
    OverheadOptions,
    overhead,
    phase_share,
)
from analysis.claims.evaluate import Data, judge
from analysis.claims.kinds import ClaimAnswer
from analysis.claims.load import load_claims, parse_claims
from paradnn.statistics.dependence import crossed_ratio, shared_levels
from paradnn.store.metrics import PHASES


def points(count: int = 40) -> pd.DataFrame:
    """Return runs of two families. Half of them were profiled, and runs 3 and 8 have no phases."""
    rng = np.random.default_rng(5)
    columns = {
        f"phase_{name}_seconds": rng.gamma(2, 1 + position, count)
        for position, name in enumerate(PHASES)
    }
    frame = pd.DataFrame(columns).assign(
        family=["rnn", "fc"] * (count // 2), outcome="ok", device="D"
    )
    frame.loc[: count // 2, "phase_profile_seconds"] = np.nan
    frame.loc[frame.index.intersection([3, 8]), list(columns)] = np.nan
    return frame.assign(run_id=[str(row) for row in range(count)])


def seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds per phase, one row per run that reports phases."""
    return (
        frame[[f"phase_{name}_seconds" for name in PHASES]]
        .set_axis(list(PHASES), axis=1)
        .dropna(how="all")
    )


def test_phase_statistics_equal_plain_numpy() -> None:
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
    measuring_phases = ("prefill", "requests", "measure", "latency", "load", "learn", "judge")

    assert measuring.value == pytest.approx(sum(parts[name] for name in measuring_phases))

    stack = phase_share(spent.fillna(0), OVERHEAD_PHASES).value
    assert stack == pytest.approx(parts["schedule"] + parts["start"] + parts["record"])
    assert measuring.low < measuring.value < measuring.high
    assert result.text().startswith(f"Measuring takes {100 * measuring.value:.1f}% (95% CI ")


def test_intervals_of_shares_stay_between_0_and_1() -> None:
    """Eight points spend nearly all their time on measuring.

    An interval that ignores the bounds of a share would therefore exceed 1.
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
    # An event that affects a fraction 1 - 0.05^(1/n) of all points is absent from 5% of samples of
    # n points.
    assert (
        "fewer than 7.6% of points, such as a long wait, may be absent from these 38"
        in result.text()
    )
    assert pytest.approx(0.05, abs=1e-3) == (1 - 0.0758) ** 38

    many = pd.concat(
        [frame.assign(run_id=frame["run_id"] + f"-{i}") for i in range(10)], ignore_index=True
    )
    assert "may be absent from" not in overhead(many).text()

    bars = {bar.get_label(): bar.patches[0] for bar in result.figure().axes[0].containers}
    styles = {(bar.get_facecolor(), bar.get_hatch()) for bar in bars.values()}

    assert len(styles) == len(bars) == len(PHASES), "every phase needs a distinct color or hatch"

    # Runs without phases, such as published ones, do not make other runs heterogeneous.
    frame.loc[[3, 8], "environment_id"] = "published"
    assert "pooled" not in overhead(frame).text()

    infinite_build = points().assign(phase_build_seconds=np.inf)
    assert "build" not in list(overhead(infinite_build).table["phase"])

    without_phases = overhead(frame.loc[[3, 8]])
    assert (
        without_phases.text()
        == "None of these 2 runs reports phases; published runs have no phases."
    )
    assert not without_phases.drawable


def drivers() -> pd.DataFrame:
    """Return four runs each of six Slurm drivers, which queued, and of two without a launcher.

    Every run takes 1 s to start, 2 s to compile and 5 s to measure.
    """
    rows = []
    slurm = [("submitit_slurm", queue) for queue in (30.0, 60.0, 90.0) * 2]
    without_launcher = [(None, np.nan)] * 2
    for session, (launcher, queue) in enumerate([*slurm, *without_launcher]):
        row = {
            "session_id": str(session),
            "launcher": launcher,
            "queue_seconds": queue,
            "launcher_seconds": np.nan if launcher is None else 4.0,
            "task_start_seconds": 10.0,
            "phase_start_seconds": 1.0,
            "phase_compile_seconds": 2.0,
            "phase_measure_seconds": 5.0,
        }
        rows += [row] * 4
    frame = pd.DataFrame(rows).assign(family="fc", outcome="ok", device="D")
    return frame.assign(run_id=[str(row) for row in range(len(frame))])


def test_layers_of_drivers_are_reported_per_launcher(tmp_path: Path) -> None:
    result = overhead(drivers(), OverheadOptions(layers=True))

    table = result.table.set_index(["launcher", "layer"])

    assert set(table.index.get_level_values("launcher")) == {"submitit_slurm", "bare"}

    slurm = table.loc["submitit_slurm"]
    assert list(slurm.index) == [
        "queue",
        "launcher",
        "driver",
        "import",
        "store",
        "compile",
        "warm-up",
        "measure",
        "profile",
    ]

    expected = {"queue": 60, "launcher": 4, "driver": 10, "import": 4, "compile": 8, "measure": 20}
    for layer, seconds in expected.items():
        assert slurm.loc[layer, "seconds"] == pytest.approx(seconds)
        assert slurm.loc[layer, "share"] == pytest.approx(seconds / 106)

    assert slurm.loc["queue", "low"] < 60 / 106 < slurm.loc["queue", "high"]

    bare = table.loc["bare"]
    assert bare.loc["queue", "seconds"] == 0
    assert bare.loc["driver", "share"] == pytest.approx(10 / 42)
    assert set(table["drivers"]) == {6, 2}
    assert "bare 33.3% (no interval: fewer than 6 drivers)" in result.text()
    assert f"submitit_slurm {78 / 106:.1%} (" in result.text()

    result.figure().savefig(tmp_path / "layers.png")


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        pytest.param("at_most: 0.9", ClaimAnswer.SUPPORTED, id="bound above the share"),
        pytest.param("at_most: 0.3", ClaimAnswer.REFUTED, id="bound below the share"),
        pytest.param("at_most: 0.57", ClaimAnswer.UNDECIDED, id="bound at the share"),
    ],
)
def test_a_claim_bounds_the_share_of_a_layer(bound: str, expected: ClaimAnswer) -> None:
    check = f"{{kind: layers, layers: [queue], {bound}, where: {{launcher: submitit_slurm}}}}"
    claims = parse_claims(f"- id: x\n  says: s\n  checks: [{check}]", "test")

    [found] = judge(claims, Data(drivers()))

    assert found.answer == expected
    assert found.findings[0].value == pytest.approx(60 / 106)


def test_a_claim_about_too_few_drivers_is_undecided() -> None:
    """Two drivers ran without a launcher, and an interval needs six."""
    check = "{kind: layers, layers: [driver], at_most: 0.9, where: {launcher: 'null'}}"
    claims = parse_claims(f"- id: x\n  says: s\n  checks: [{check}]", "test")

    [found] = judge(claims, Data(drivers()))

    assert found.answer == ClaimAnswer.UNDECIDED


def test_an_unknown_layer_is_named() -> None:
    check = "{kind: layers, layers: [yarn], at_most: 0.9}"
    claims = parse_claims(f"- id: x\n  says: s\n  checks: [{check}]", "test")

    [found] = judge(claims, Data(drivers()))

    assert "layers=yarn: no such layer; choose from queue" in found.findings[0].missing


def test_the_shipped_claims_about_launchers_are_valid() -> None:
    claims = load_claims(Path("launchers.yaml"))

    assert {check.bound.high for claim in claims for check in claim.checks} == {0.155, 0.181}
