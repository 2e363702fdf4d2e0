"""Start-up times, bandwidths and breakpoints of planted message times.

Intervals must cover the planted values.
"""

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.channel import channel
from analysis.published.source import load_shipped
from paradnn.core.errors import InsufficientData, SchemaError
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.transfers import fit_transfers
from tests.analysis.planted import POINTS, runs
from tests.analysis.rejected import assert_rejected
from tests.conftest import depth

SIZES = 2.0 ** np.arange(0, 23)
#: Planted start-up time in us.
ALPHA = 20.0
#: Planted time per byte in us, which is 2 GB/s.
BETA = 5e-4
#: Planted bandwidth in bytes/s.
BANDWIDTH = 1e6 / BETA


def planted_times(noise: float, seed: int, sizes: np.ndarray = SIZES) -> np.ndarray:
    return (ALPHA + BETA * sizes) * np.exp(np.random.default_rng(seed).normal(0, noise, len(sizes)))


def coverage(intervals: list[Estimate], truth: float) -> float:
    """Return the share of the intervals that contain the true value."""
    return float(np.mean([interval.low <= truth <= interval.high for interval in intervals]))


@depth(80, 300)
def test_intervals_cover_the_planted_values_without_false_breaks(draws: int) -> None:
    """The planted times have no breakpoint and 5% noise.

    A false breakpoint may occur in about one fit of a hundred.
    """
    fits = [fit_transfers(SIZES, planted_times(0.05, seed)) for seed in range(draws)]
    fits_without_break = [fit for fit in fits if len(fit.pieces) == 1]

    assert len(fits_without_break) >= 0.97 * draws

    # 2.4 standard errors of a share of 95%, since 2.4 * sqrt(0.95 * 0.05) = 0.52.
    tolerance = 0.52 / np.sqrt(draws)
    latency_coverage = coverage([fit.latency for fit in fits_without_break], ALPHA)
    assert abs(latency_coverage - 0.95) < tolerance
    bandwidth_coverage = coverage([fit.bandwidth for fit in fits_without_break], BANDWIDTH)
    assert abs(bandwidth_coverage - 0.95) < tolerance


def test_a_planted_protocol_switch_is_found_at_its_size() -> None:
    """From 64 KiB on, a handshake raises the start-up time to 80 us and the rate to 5 GB/s."""
    found = []
    for seed in range(50):
        times = planted_times(0.03, seed)
        large = SIZES[SIZES >= 65536]
        times[SIZES >= 65536] *= (80 + 2e-4 * large) / (ALPHA + BETA * large)
        found.append(fit_transfers(SIZES, times))

    assert np.mean([fit.breaks == (65536.0,) for fit in found]) > 0.9

    bandwidths = [fit.bandwidth for fit in found if len(fit.pieces) == 2]
    assert coverage(bandwidths, 5e9) > 0.85
    assert all(np.median(fit.line_errors) > 2 * np.median(fit.errors) for fit in found)


def test_published_message_times_are_fitted_closely() -> None:
    """Fit Vidur's measurements of two A100 GPUs that NVLink connects.

    Small messages take about 55 us. For large messages, the transfer at 200 GB/s dominates. Small
    messages use different protocols from large ones.
    """
    nvlink = [
        run
        for run in load_shipped("vidur").runs
        if "a100_pairwise_nvlink/all_reduce" in run.tags["archive_label"]
    ]
    two_processes = [run for run in nvlink if run.params["model.processes"] == "2"]
    timed = sorted(
        (int(run.params["model.bytes"]), run.metrics["transfer_us"]) for run in two_processes
    )
    # Keep one time per group of sizes within 12% of each other.
    thinned = {int(np.log(size) / np.log(1.12)): (size, us) for size, us in timed}
    sizes, times = np.array([*thinned.values()], float).T
    fit = fit_transfers(sizes, times)
    large = sizes >= 65536

    assert np.median(fit.errors[large]) < 0.1
    assert np.median(fit.errors[~large]) < 0.55 * np.median(fit.line_errors[~large])
    assert fit.breaks[0] < 65536
    assert 1.8e11 < fit.bandwidth.low < fit.bandwidth.high < 2.3e11


def test_falling_times_have_an_infinite_bandwidth() -> None:
    fit = fit_transfers([1, 2, 4, 8], [9.0, 8.0, 7.0, 6.0])
    assert np.isinf(fit.bandwidth.value)


def test_a_fitted_latency_is_not_negative() -> None:
    # An unconstrained line of least squares has the value -0.1 us at 0 bytes.
    fit = fit_transfers([1e6, 2e6, 3e6, 4e6], [0.9, 2.1, 3.0, 4.1])
    assert fit.latency.value >= 0


def test_a_fit_of_three_sizes_is_rejected() -> None:
    with pytest.raises(
        InsufficientData, match="at least 4 message sizes, but the runs have only 3"
    ):
        fit_transfers([1, 2, 4, 4], [1, 2, 3, 4])


def channel_runs(
    transport: str = "tcp", factor: float = 1.0, seed: int = 3, **columns: object
) -> pd.DataFrame:
    """Return a latency run per size of one transport; `factor` multiplies the planted times."""
    points = pd.DataFrame({"model.bytes": SIZES.astype("int64")}).astype("Int64")
    times = factor * planted_times(0.02, seed)
    settings = {
        "model.transport": transport,
        "model.pattern": "latency",
        "transfer_us": times,
        "family": "channel",
    }
    frame = runs(points, **settings, **columns)
    return frame.assign(run_id=transport + frame["run_id"])


def test_each_transport_has_a_separate_fit() -> None:
    two_transports = pd.concat(
        [channel_runs(), channel_runs("grpc", 5.0, seed=4)], ignore_index=True
    )
    result = channel(two_transports)
    text = result.text()

    assert "grpc latency: start-up 100 us" in text
    assert list(result.table["channel"]) == ["grpc latency", "tcp latency"]
    assert set(result.sources) == set(two_transports["run_id"])
    assert result.figure().axes[0].get_ylabel() == "time (us)"


def test_runs_with_different_settings_are_separate_channels() -> None:
    two_windows = [channel_runs(**{"model.window": window}) for window in (16, 64)]
    two_windows[1]["run_id"] += "second"
    result = channel(pd.concat([*two_windows, channel_runs("jax").head(3)], ignore_index=True))

    assert list(result.table["channel"]) == ["tcp latency, window 16", "tcp latency, window 64"]
    assert "Too few sizes for a fit: jax latency." in result.text()


def test_different_machines_are_not_pooled() -> None:
    other_machine = channel_runs(environment_id="env-b")
    other_machine["run_id"] += "b"

    with pytest.raises(SchemaError):
        channel(pd.concat([channel_runs(), other_machine], ignore_index=True))


def replicated_times(
    seed: int, replicates: int, size_effect: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return message sizes and times in us, with the given number of replicates of every size.

    Each time also has 2% noise.

    Args:
        seed: Seed of the random numbers.
        replicates: Number of times per size.
        size_effect: Standard deviation of the effect of a size, which all its replicates share.
    """
    random = np.random.default_rng(seed)
    effects = random.normal(0, size_effect, len(SIZES))
    noise = random.normal(0, 0.02, (replicates, len(SIZES)))
    times = (ALPHA + BETA * SIZES) * np.exp(effects + noise)
    return np.tile(SIZES, replicates), times.ravel()


def test_runs_without_messages_are_rejected() -> None:
    assert_rejected(
        "channel", runs(POINTS), "no run timed messages between processes; measure some"
    )


def test_replicates_of_a_size_count_once() -> None:
    """All runs of a size share the effect of that size.

    Replicates must therefore neither create breakpoints nor narrow the intervals.
    """
    fits = []
    for seed in range(150):
        sizes, times = replicated_times(seed, replicates=5, size_effect=0.05)
        fits.append(fit_transfers(sizes, times))

    assert np.mean([len(fit.pieces) == 1 for fit in fits]) >= 0.95

    assert coverage([fit.latency for fit in fits], ALPHA) > 0.9
    assert coverage([fit.bandwidth for fit in fits], BANDWIDTH) > 0.9
    assert {sum(piece.measurements for piece in fit.pieces) for fit in fits} == {5 * len(SIZES)}
