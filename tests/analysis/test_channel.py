"""Start-up time, bandwidth and breakpoints recovered from planted messages.

Intervals must cover the planted values.
"""

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.channel import channel
from analysis.published.source import load_shipped
from paradnn.core.errors import InsufficientData, SchemaError
from paradnn.statistics.transfers import fit_transfers
from tests.analysis.planted import POINTS, runs
from tests.analysis.rejected import assert_rejected
from tests.conftest import depth

SIZES = 2.0 ** np.arange(0, 23)
#: Start-up time in us and time per byte in us: 20 us and 2 GB/s.
ALPHA = 20.0
BETA = 5e-4


def planted(noise: float, seed: int, sizes: np.ndarray = SIZES) -> np.ndarray:
    return (ALPHA + BETA * sizes) * np.exp(np.random.default_rng(seed).normal(0, noise, len(sizes)))


@depth(80, 300)
def test_intervals_cover_the_planted_values_without_false_breaks(draws: int) -> None:
    """Null case: one line with 5% noise.

    Spurious breaks should occur in one of a hundred fits.
    """
    fits = [fit_transfers(SIZES, planted(0.05, seed)) for seed in range(draws)]
    straight = [fit for fit in fits if len(fit.pieces) == 1]
    assert len(straight) >= 0.97 * draws
    covered = [
        [
            low <= truth <= high
            for (_, low, high), truth in ((fit.latency, ALPHA), (fit.bandwidth, 1e6 / BETA))
        ]
        for fit in straight
    ]
    assert (np.abs(np.mean(covered, axis=0) - 0.95) < 0.52 / np.sqrt(draws)).all()


def test_a_protocol_switch_is_found_where_it_is() -> None:
    """From 64 KiB on, a handshake adds time and the remaining bytes move faster."""
    found = []
    for seed in range(50):
        times = planted(0.03, seed)
        times[SIZES >= 65536] *= (80 + 2e-4 * SIZES[SIZES >= 65536]) / (
            ALPHA + BETA * SIZES[SIZES >= 65536]
        )
        found.append(fit_transfers(SIZES, times))
    assert np.mean([fit.breaks == (65536.0,) for fit in found]) > 0.9
    covered = [
        fit.bandwidth.low <= 5e9 <= fit.bandwidth.high for fit in found if len(fit.pieces) == 2
    ]
    assert np.mean(covered) > 0.85
    assert all(np.median(fit.line_errors) > 2 * np.median(fit.errors) for fit in found)


def test_published_times_are_explained() -> None:
    """Two A100 GPUs joined by NVLink, with Vidur's measurements.

    Time is about 55 us at every size until the transfer at 200 GB/s takes longer. Small messages
    use other protocols.
    """
    nvlink = [
        run
        for run in load_shipped("vidur").runs
        if "a100_pairwise_nvlink/all_reduce" in run.tags["archive_label"]
    ]
    two = [run for run in nvlink if run.params["model.processes"] == "2"]
    timed = sorted((int(run.params["model.bytes"]), run.metrics["transfer_us"]) for run in two)
    apart = {
        int(np.log(size) / np.log(1.12)): (size, us) for size, us in timed
    }  # one time for all sizes, within 12%
    sizes, times = np.array([*apart.values()], float).T
    fit = fit_transfers(sizes, times)
    large = sizes >= 65536
    assert np.median(fit.errors[large]) < 0.1
    assert np.median(fit.errors[~large]) < 0.55 * np.median(fit.line_errors[~large])
    assert fit.breaks[0] < 65536
    assert 1.8e11 < fit.bandwidth.low < fit.bandwidth.high < 2.3e11


def test_time_that_does_not_grow_has_no_bandwidth_and_too_few_sizes_no_fit() -> None:
    fit = fit_transfers([1, 2, 4, 8], [9.0, 8.0, 7.0, 6.0])
    assert np.isinf(fit.bandwidth.value)
    assert fit_transfers([1e6, 2e6, 3e6, 4e6], [0.9, 2.1, 3.0, 4.1]).latency.value >= 0
    with pytest.raises(InsufficientData, match="3 message sizes; a fit needs 4"):
        fit_transfers([1, 2, 4, 4], [1, 2, 3, 4])


def frame(transport: str = "tcp", factor: float = 1.0, **columns: object) -> pd.DataFrame:
    points = pd.DataFrame({"model.bytes": SIZES.astype("int64")}).astype("Int64")
    times = factor * planted(0.02, len(transport))
    given = {
        "model.transport": transport,
        "model.pattern": "latency",
        "transfer_us": times,
        "family": "channel",
    }
    made = runs(points, **given, **columns)
    return made.assign(run_id=transport + made["run_id"])


def test_every_transport_has_its_line() -> None:
    both = pd.concat([frame(), frame("grpc", 5.0)], ignore_index=True)
    result = channel(both)
    text = result.text()
    assert "grpc latency: start-up 100 us" in text
    assert list(result.table["channel"]) == ["grpc latency", "tcp latency"]
    assert set(result.sources) == set(both["run_id"])
    assert result.figure().axes[0].get_ylabel() == "time (us)"


def test_runs_with_other_settings_form_another_channel() -> None:
    coded = [frame(**{"model.window": window}) for window in (16, 64)]
    coded[1]["run_id"] += "coded"
    result = channel(pd.concat([*coded, frame("jax").head(3)], ignore_index=True))
    assert list(result.table["channel"]) == ["tcp latency, window 16", "tcp latency, window 64"]
    assert "Too few sizes for a fit: jax latency." in result.text()


def test_other_machines_are_not_pooled() -> None:
    other = frame(environment_id="env-b")
    other["run_id"] += "b"
    with pytest.raises(SchemaError):
        channel(pd.concat([frame(), other], ignore_index=True))


def repeated(
    seed: int, count: int, own: float, session: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return message sizes, times and sessions: each size once in each of `count` sessions.

    Each size has an effect that all sessions share, with standard deviation `own`. Each session has
    an effect on all sizes, with standard deviation `session`. Noise adds 2%.
    """
    random = np.random.default_rng(seed)
    logs = random.normal(0, own, len(SIZES)) + random.normal(0, session, (count, 1))
    logs = logs + random.normal(0, 0.02, (count, len(SIZES)))
    sessions = np.repeat([f"sweep {number}" for number in range(count)], len(SIZES))
    return np.tile(SIZES, count), ((ALPHA + BETA * SIZES) * np.exp(logs)).ravel(), sessions


def test_no_messages_are_reported() -> None:
    assert_rejected("channel", runs(POINTS), "no run measured messages; measure some")


def test_a_size_that_is_measured_again_counts_once() -> None:
    """All runs of a size share its effect, so replicates must not create breaks.

    Replicates must not narrow an interval either.
    """
    fits = []
    for seed in range(150):
        sizes, times, _ = repeated(seed, 5, own=0.05, session=0.0)
        fits.append(fit_transfers(sizes, times))
    assert np.mean([len(fit.pieces) == 1 for fit in fits]) >= 0.95
    for truth, ends in (
        (ALPHA, [fit.latency for fit in fits]),
        (1e6 / BETA, [fit.bandwidth for fit in fits]),
    ):
        assert np.mean([low <= truth <= high for _, low, high in ends]) > 0.9
    assert {sum(piece.measurements for piece in fit.pieces) for fit in fits} == {5 * len(SIZES)}
