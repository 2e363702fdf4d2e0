"""Scaling over devices and hosts: planted serial fractions, order of runs, communication."""

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike

from analysis.analyses.scaling import ScalingOptions, fit_scaling
from analysis.analyses.scaling import scaling as scaling_result
from paradnn.core.errors import InsufficientData
from tests.analysis.planted import POINTS, runs
from tests.analysis.rejected import assert_rejected

COUNTS = (2, 4, 8)


def planted(
    fraction: ArrayLike, noise: float = 0.0, family: str = "fc", seed: int = 0
) -> pd.DataFrame:
    """Return every point on 1, 2, 4 and 8 devices, with speeds that follow Amdahl's law.

    Args:
        fraction: Serial fraction, one number or one per point.
        noise: Standard deviation of the logarithm of the speed.
        family: Name of the family.
        seed: Seed of the speeds and of the noise.
    """
    generator = np.random.default_rng(seed)
    one_device_speed = 10 ** generator.uniform(2, 5, len(POINTS))
    parts = []
    for count in (1, *COUNTS):
        law = 1 / (np.asarray(fraction) + (1 - np.asarray(fraction)) / count)
        speed = one_device_speed * law * np.exp(noise * generator.standard_normal(len(POINTS)))
        parts.append(runs(POINTS, family=family, devices=count, examples_per_second=speed))
    return pd.concat(parts, ignore_index=True)


def test_the_fit_equals_plain_least_squares() -> None:
    frame = planted(0.2, noise=0.1)
    wide = frame.pivot_table(index=list(POINTS), columns="devices", values="examples_per_second")
    x = np.concatenate([np.full(len(wide), 1 - 1 / count) for count in COUNTS])
    y = np.concatenate([(wide[1] / wide[count] - 1 / count).to_numpy() for count in COUNTS])
    expected = np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]

    assert fit_scaling(frame).families[0].fraction.value == pytest.approx(expected)


def test_the_fit_is_exact_without_noise() -> None:
    exact = fit_scaling(planted(0.16)).families[0]

    assert exact.fraction.value == pytest.approx(0.16)
    assert (exact.points, exact.counts) == (64, COUNTS)
    assert exact.efficiency.value == pytest.approx(1 / (0.16 + 0.84 / 8) / 8)


@pytest.mark.long
def test_points_of_one_model_are_not_independent() -> None:
    """A model has the same serial fraction at every batch size, so intervals are over models.

    Each of sixty sweeps of 16 models at four batch sizes is a separate family.
    """
    frames = []
    for seed in range(60):
        # The offset makes the models independent of the noise, whose seed is `seed`.
        model = np.random.default_rng(seed + 2000).normal(0.3, 0.05, (4, 4, 1))
        fractions = np.broadcast_to(model, (4, 4, 4)).ravel()
        frames.append(planted(fractions, noise=0.02, seed=seed, family=f"f{seed}"))
    found = fit_scaling(pd.concat(frames, ignore_index=True)).families
    efficiency = 1 / (0.3 + 0.7 / 8) / 8
    for truth, intervals in (
        (0.3, [family.fraction for family in found]),
        (efficiency, [family.efficiency for family in found]),
    ):
        # Expect 57 of 60. The probability of fewer than 52 is one in 70; the seeds are fixed.
        assert sum(low <= truth <= high for _, low, high in intervals) >= 52


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--by device_count",
            "--by=device_count: these runs have no such column; name a column that counts devices",
            id="--by device_count",
        ),
        pytest.param(
            "--by family",
            "--by=family: is not a column of numbers; name a column that counts devices",
            id="--by family",
        ),
        pytest.param(
            "--metric step_time_ms", "--metric=step_time_ms: ", id="--metric step_time_ms"
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = planted(0.1)
    assert_rejected(f"scaling {options}", frame, message)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        pytest.param(
            planted(0.1).drop(columns="devices"),
            "devices: no measured run records this count",
            id="no devices",
        ),
        pytest.param(
            planted(0.1).query("devices == 1"),
            "all runs have devices=1, but scaling compares devices=1 with larger counts",
            id="one device",
        ),
        pytest.param(
            planted(0.1).query("devices > 1"),
            "all runs have devices=2,4,8, but scaling compares devices=1 with larger counts",
            id="several devices",
        ),
        pytest.param(
            planted(0.1).assign(outcome="oom_device"),
            "devices: no measured run records this count",
            id="all out of memory",
        ),
        pytest.param(
            planted(0.1).assign(batch_size=range(256)),
            "no point was measured both with devices=1 and with a larger count",
            id="no common point",
        ),
    ],
)
def test_runs_that_cannot_be_scaled_are_rejected(frame: pd.DataFrame, message: str) -> None:
    assert_rejected("scaling", frame, message)


def test_device_counts_measured_one_after_another_are_reported() -> None:
    """The machine slows down during the sweep.

    If all points run on one device before they run on more, the fitted fraction reflects the drift.
    If device counts alternate, it does not.
    """
    frame = planted(0.0).assign(sweep_id="sweep")
    begin = pd.Timestamp("2026-01-01", tz="UTC")
    count_index = frame.groupby(list(POINTS)).cumcount()
    point_index = frame.groupby("devices").cumcount()
    # Each point runs on all device counts, in ascending and descending order alternately.
    alternating = 4 * point_index + count_index.where(point_index % 2 == 0, 3 - count_index)
    for order, is_reported in ((np.arange(len(frame)), True), (alternating.to_numpy(), False)):
        timed = frame.assign(start_time=begin + pd.to_timedelta(order, unit="m"))
        slower = timed.assign(
            examples_per_second=timed["examples_per_second"] * np.exp(-0.001 * order)
        )
        found = scaling_result(slower)
        assert ("were measured in blocks" in found.text()) == is_reported
        assert (found.table["fraction"].iloc[0] > 0.01) == is_reported

    assert "The sessions are not recorded" in scaling_result(planted(0.1)).text()


@pytest.mark.parametrize(
    ("factor", "expected", "rejected"),
    [
        pytest.param(2.0, "which is superlinear", "includes 100%", id="superlinear"),
        pytest.param(1.005, "The interval includes 100%", "superlinear", id="above 1 by chance"),
        pytest.param(0.8, "of linear speedup", "100%, so", id="below 1"),
    ],
)
def test_an_efficiency_above_one_is_explained(factor: float, expected: str, rejected: str) -> None:
    """The planted efficiency on four devices is `factor`, in one sweep in random order."""
    frame = planted(0.0).query("devices in (1, 4)")
    speed = frame["examples_per_second"].where(
        frame["devices"].eq(1), frame["examples_per_second"] * factor
    )
    order = np.random.default_rng(0).permutation(len(frame))
    begin = pd.Timestamp("2026-01-01", tz="UTC")
    frame = frame.assign(
        examples_per_second=speed,
        sweep_id="s",
        sweep_order="random",
        start_time=begin + pd.to_timedelta(order, unit="m"),
    )
    found = scaling_result(frame)
    text = found.text()

    assert expected in text
    assert rejected not in text
    assert ("Measure the baseline again with devices=1 replicate=1,2" in text) == (factor == 2.0)
    assert ("Amdahl's fraction is not positive" in text) == (factor > 1)
    assert "95% CI" in found.opening()


def over_hosts(**columns: ArrayLike) -> pd.DataFrame:
    """Return every point on 1 and 2 hosts with 1 and 2 devices each; 10% of a step is serial."""
    parts = []
    for hosts in (1, 2):
        for devices in (1, 2):
            total = hosts * devices
            speed = np.linspace(100, 200, len(POINTS)) / (0.1 + 0.9 / total)
            parts.append(runs(POINTS, hosts=hosts, devices=devices, examples_per_second=speed))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(run_id=[f"run{index}" for index in range(len(frame))], **columns)


@pytest.mark.parametrize(
    ("by", "counts", "points"),
    [
        pytest.param("total_devices", (2, 4), 64, id="devices of all hosts"),
        pytest.param("hosts", (2,), 128, id="hosts"),
    ],
)
def test_scaling_is_fitted_over_hosts_or_over_all_devices(
    by: str, counts: tuple[int, ...], points: int
) -> None:
    [family] = fit_scaling(over_hosts(), by=by).families

    assert (family.counts, family.points) == (counts, points)

    if by == "total_devices":
        assert family.fraction.value == pytest.approx(0.1)


@pytest.mark.parametrize(
    "by",
    [
        pytest.param("devices", id="devices"),
        pytest.param("total_devices", id="devices of all hosts"),
    ],
)
def test_model_parallel_points_are_a_separate_family(by: str) -> None:
    """The serial fraction is 10% of a data-parallel step and 60% of a model-parallel step."""
    rate = np.linspace(100, 200, len(POINTS))
    parts = [runs(POINTS, devices=1, parallel="data", examples_per_second=rate)]
    for parallel, fraction in (("data", 0.1), ("model", 0.6)):
        speed = rate / (fraction + (1 - fraction) / 2)
        parts.append(runs(POINTS, devices=2, parallel=parallel, examples_per_second=speed))
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.assign(run_id=[f"run{index}" for index in range(len(frame))])

    found = fit_scaling(frame, by=by)

    fractions = {family.family: family.fraction.value for family in found.families}

    assert fractions == pytest.approx({"fc": 0.1, "fc, model parallel": 0.6})
    assert [family.points for family in found.families] == [len(POINTS)] * 2

    result = scaling_result(frame, ScalingOptions(by=by))
    assert len(result.sources) == len(frame)


def test_weak_scaling_excludes_devices_that_get_the_whole_batch() -> None:
    frame = pd.concat(
        [
            runs(POINTS, devices=count, parallel=parallel, examples_per_second=100.0)
            for count, parallel in ((1, "data"), (2, "model"))
        ],
        ignore_index=True,
    )
    with pytest.raises(InsufficientData, match="all runs have devices=1"):
        fit_scaling(frame, weak=True)


def test_weak_scaling_compares_equal_batches_per_device() -> None:
    """By Gustafson's law, n devices with n times the batch have n - 0.2 (n - 1) times the rate."""
    rate = np.linspace(100, 200, len(POINTS))
    parts = []
    for count in (1, *COUNTS):
        larger_batches = POINTS.assign(batch_size=POINTS["batch_size"] * count)
        speed = rate * (count - 0.2 * (count - 1))
        parts.append(runs(larger_batches, devices=count, examples_per_second=speed))

    [family] = fit_scaling(pd.concat(parts, ignore_index=True), weak=True).families

    assert (family.counts, family.points) == (COUNTS, len(POINTS))
    assert family.fraction.value == pytest.approx(0.2)
    assert family.efficiency.value == pytest.approx((8 - 0.2 * 7) / 8)


def test_communication_is_shown_next_to_an_all_reduce_alone() -> None:
    """The all-reduce takes 100 us plus 1 us per 1,000 bytes; the gradients have 5,000,000 bytes."""
    sizes = np.array([1e3, 1e4, 1e5, 1e6, 1e7, 1e8])
    channel = pd.DataFrame(
        {
            "run_id": [f"channel{index}" for index in range(len(sizes))],
            "family": "channel",
            "device": "Test CPU",
            "outcome": "ok",
            "model.transport": "tensorflow",
            "model.pattern": "all_reduce",
            "model.processes": 2,
            "model.bytes": sizes,
            "transfer_us": 100 + sizes / 1e3,
            "hosts": 1,
        }
    )
    frame = over_hosts(gradient_bytes=5e6, communication_ms=8.0, communication_share=0.4)
    frame.loc[frame["hosts"] == 1, ["communication_ms", "communication_share"]] = np.nan

    found = scaling_result(
        pd.concat([frame, channel], ignore_index=True), ScalingOptions(by="hosts")
    )

    all_reduce_ms = found.numbers.groupby("devices_per_host")["all_reduce_ms"]

    assert all_reduce_ms.min()[1] == pytest.approx(5.1, rel=1e-3)
    assert all_reduce_ms.max()[1] == pytest.approx(5.1, rel=1e-3)
    assert all_reduce_ms.count()[2] == 0  # no all-reduce had four processes
    assert "40% of a step (8 ms) is communication" in found.text()
    assert "an all-reduce of the gradients alone takes 5.1 ms" in found.text()

    without_channel = scaling_result(frame, ScalingOptions(by="hosts"))
    assert "no model=channel run has the same transport" in without_channel.text()
