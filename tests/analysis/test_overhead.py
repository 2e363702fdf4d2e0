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
from analysis.result import Result
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


@pytest.fixture(scope="module")
def overhead_of_one_environment() -> Result:
    return overhead(points().assign(device="D", environment_id="e"))


def test_the_command_reports_the_overhead_of_the_stack(overhead_of_one_environment: Result) -> None:
    text = overhead_of_one_environment.text()

    assert "the stack's own overhead (schedule + start + record) takes " in text


def test_runs_without_phases_are_excluded(overhead_of_one_environment: Result) -> None:
    assert "Excluded: 2 runs without phases." in overhead_of_one_environment.text()
    assert len(overhead_of_one_environment.sources) == 38


def test_few_points_may_lack_rare_events(overhead_of_one_environment: Result) -> None:
    """An event in a fraction 1 - 0.05^(1/n) of all points is absent from 5% of samples of n."""
    assert (
        "fewer than 7.6% of points, such as a long wait, may be absent from these 38"
        in overhead_of_one_environment.text()
    )
    assert pytest.approx(0.05, abs=1e-3) == (1 - 0.0758) ** 38


def test_many_points_have_no_remark_about_rare_events() -> None:
    frame = points().assign(device="D", environment_id="e")
    many = pd.concat(
        [frame.assign(run_id=frame["run_id"] + f"-{i}") for i in range(10)], ignore_index=True
    )

    assert "may be absent from" not in overhead(many).text()


def test_every_phase_is_drawn_with_a_distinct_style(
    overhead_of_one_environment: Result, tmp_path: Path
) -> None:
    figure = overhead_of_one_environment.figure()
    bars = {bar.get_label(): bar.patches[0] for bar in figure.axes[0].containers}
    styles = {(bar.get_facecolor(), bar.get_hatch()) for bar in bars.values()}

    assert len(styles) == len(bars) == len(PHASES), "every phase needs a distinct color or hatch"
    figure.savefig(tmp_path / "overhead.png")


def test_runs_without_phases_do_not_make_other_runs_heterogeneous() -> None:
    frame = points().assign(device="D", environment_id="e")
    frame.loc[[3, 8], "environment_id"] = "published"

    assert "pooled" not in overhead(frame).text()


def test_a_phase_with_an_infinite_time_is_omitted() -> None:
    infinite_build = points().assign(phase_build_seconds=np.inf)

    assert "build" not in list(overhead(infinite_build).table["phase"])


def test_only_runs_without_phases_are_reported_and_not_drawn() -> None:
    without_phases = overhead(points().loc[[3, 8]])

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


@pytest.fixture(scope="module")
def layers_of_drivers() -> Result:
    return overhead(drivers(), OverheadOptions(layers=True))


def layers_of(result: Result, launcher: str) -> pd.DataFrame:
    """Return the rows of a launcher, indexed by layer."""
    is_selected = result.table["launcher"] == launcher
    return result.table[is_selected].set_index("layer")


def test_each_launcher_has_its_layers(layers_of_drivers: Result) -> None:
    assert set(layers_of_drivers.table["launcher"]) == {"submitit_slurm", "bare"}
    assert set(layers_of_drivers.table["drivers"]) == {6, 2}
    assert list(layers_of(layers_of_drivers, "submitit_slurm").index) == [
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


def test_layers_of_slurm_drivers_have_the_planted_times(layers_of_drivers: Result) -> None:
    slurm = layers_of(layers_of_drivers, "submitit_slurm")
    expected = {"queue": 60, "launcher": 4, "driver": 10, "import": 4, "compile": 8, "measure": 20}

    for layer, seconds in expected.items():
        assert slurm.loc[layer, "seconds"] == pytest.approx(seconds)
        assert slurm.loc[layer, "share"] == pytest.approx(seconds / 106)
    assert slurm.loc["queue", "low"] < 60 / 106 < slurm.loc["queue", "high"]
    assert f"submitit_slurm {78 / 106:.1%} (" in layers_of_drivers.text()


def test_drivers_without_a_launcher_do_not_queue(layers_of_drivers: Result) -> None:
    bare = layers_of(layers_of_drivers, "bare")

    assert bare.loc["queue", "seconds"] == 0
    assert bare.loc["driver", "share"] == pytest.approx(10 / 42)


def test_few_drivers_have_no_interval(layers_of_drivers: Result) -> None:
    assert "bare 33.3% (no interval: fewer than 6 drivers)" in layers_of_drivers.text()


def test_layers_of_drivers_are_drawn(layers_of_drivers: Result, tmp_path: Path) -> None:
    layers_of_drivers.figure().savefig(tmp_path / "layers.png")


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
