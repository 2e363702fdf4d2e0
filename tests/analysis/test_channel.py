"""Start-up time and bandwidth from planted messages: found again, covered by their intervals, broken where they are."""

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.channel import channel
from analysis.statistics.transfers import fit_transfers
from paradnn.core.errors import NotEnoughData, SchemaError
from tests.analysis.planted import runs
from tests.conftest import depth

SIZES = 2.0 ** np.arange(0, 23)
#: us, and us a byte: 20 us and 2 GB/s.
ALPHA, BETA = 20.0, 5e-4
#: All-reduce of two A100 joined by NVLink, bytes and us, rows of rank 0 12% apart: microsoft/vidur (MIT License, (c)
#: Microsoft Corporation), data/profiling/network/a100_pairwise_nvlink/all_reduce.csv, time_stats.all_reduce.median.
VIDUR = np.fromstring(
    """
    2048 7 10240 45 18432 59 26624 62 34816 61 43008 54 51200 47 59392 30 67584 60 75776 59 92160 10 108544 10
    124928 37 141312 11 165888 48 190464 57 215040 48 247808 42 280576 53 321536 48 362496 59 411648 66 468992 59
    526336 53 591872 36 665600 64 747520 54 837632 62 944128 48 1081344 56 1212416 63 1376256 62 1572864 63 1769472
    62 1998848 63 2260992 66 2555904 64 2883584 63 3244032 65 3637248 66 4096000 65 4587520 64 5144576 64 5767168 61
    6488064 65 7274496 70 8159232 72 9142272 76 10256384 82 11501568 88 12910592 100 14483456 108 16252928 116
    18219008 127 20447232 141 22937600 153 25821184 171 28966912 185 32505856 208 36438016 224 40894464 251 45875200
    279 51511296 310 57802752 341 64749568 376 72613888 414 81395712 456 91226112 507 102236160 576 114556928 637
    128319488 705 143986690 784 161353730 872 180891650 971 202600450 1095 227022850 1215 254701570 1350 285636610
    1504 320370690 1683 358903810 1870 402321410 2079 450623490 2318 504895490 2598
    """,
    sep=" ",
).reshape(-1, 2)


def planted(noise: float, seed: int, sizes: np.ndarray = SIZES) -> np.ndarray:
    return (ALPHA + BETA * sizes) * np.exp(np.random.default_rng(seed).normal(0, noise, len(sizes)))


@depth(80, 300)
def test_intervals_cover_what_was_planted_and_no_break_is_made_up(draws: int) -> None:
    """The null: one line, 5% of noise. Breaks by chance are to be one in a hundred."""
    fits = [fit_transfers(SIZES, planted(0.05, seed)) for seed in range(draws)]
    straight = [fit for fit in fits if len(fit.pieces) == 1]
    assert len(straight) >= 0.97 * draws
    covered = [
        [low <= truth <= high for (_, low, high), truth in ((fit.latency, ALPHA), (fit.bandwidth, 1e6 / BETA))]
        for fit in straight
    ]
    assert (np.abs(np.mean(covered, axis=0) - 0.95) < 0.52 / np.sqrt(draws)).all()


def test_a_protocol_switch_is_found_where_it_is() -> None:
    """From 64 KiB on a handshake is added, and the rest moves faster."""
    found = []
    for seed in range(50):
        times = planted(0.03, seed)
        times[SIZES >= 65536] *= (80 + 2e-4 * SIZES[SIZES >= 65536]) / (ALPHA + BETA * SIZES[SIZES >= 65536])
        found.append(fit_transfers(SIZES, times))
    assert np.mean([fit.breaks == (65536.0,) for fit in found]) > 0.9
    covered = [fit.bandwidth.low <= 5e9 <= fit.bandwidth.high for fit in found if len(fit.pieces) == 2]
    assert np.mean(covered) > 0.85
    assert all(np.median(fit.line_errors) > 2 * np.median(fit.errors) for fit in found)


def test_published_times_are_explained() -> None:
    """Some 55 us whatever the size, up to where 200 GB/s take longer; small messages by other protocols."""
    sizes, times = VIDUR.T
    fit = fit_transfers(sizes, times)
    large = sizes >= 65536
    assert np.median(fit.errors[large]) < 0.1
    assert np.median(fit.errors[~large]) < 0.5 * np.median(fit.line_errors[~large])
    assert fit.breaks[0] < 65536
    assert 1.8e11 < fit.bandwidth.low < fit.bandwidth.high < 2.3e11


def test_time_that_does_not_grow_has_no_bandwidth_and_too_few_sizes_no_fit() -> None:
    fit = fit_transfers([1, 2, 4, 8], [9.0, 8.0, 7.0, 6.0])
    assert np.isinf(fit.bandwidth.value)
    assert fit_transfers([1e6, 2e6, 3e6, 4e6], [0.9, 2.1, 3.0, 4.1]).latency.value >= 0
    with pytest.raises(NotEnoughData, match="3 sizes of messages; a fit takes 4"):
        fit_transfers([1, 2, 4, 4], [1, 2, 3, 4])


def frame(transport: str = "tcp", factor: float = 1.0, **columns: object) -> pd.DataFrame:
    points = pd.DataFrame({"model.bytes": SIZES.astype("int64")}).astype("Int64")
    times = factor * planted(0.02, len(transport))
    given = {"model.transport": transport, "model.pattern": "latency", "transfer_us": times, "family": "channel"}
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


def test_what_else_differs_makes_another_channel() -> None:
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


def repeated(seed: int, count: int, own: float, session: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes, times and sessions: each size once in each of `count` sessions, with an effect of the size in all of them
    and one of the session on all sizes, and 2% of noise."""
    random = np.random.default_rng(seed)
    logs = random.normal(0, own, len(SIZES)) + random.normal(0, session, (count, 1))
    logs = logs + random.normal(0, 0.02, (count, len(SIZES)))
    sessions = np.repeat([f"sweep {number}" for number in range(count)], len(SIZES))
    return np.tile(SIZES, count), ((ALPHA + BETA * SIZES) * np.exp(logs)).ravel(), sessions


def test_a_size_that_is_measured_again_counts_once() -> None:
    """What a size has of its own all of its runs have: repeating them makes no break, and no interval narrower."""
    fits = []
    for seed in range(150):
        sizes, times, _ = repeated(seed, 5, own=0.05, session=0.0)
        fits.append(fit_transfers(sizes, times))
    assert np.mean([len(fit.pieces) == 1 for fit in fits]) >= 0.95
    for truth, ends in ((ALPHA, [fit.latency for fit in fits]), (1e6 / BETA, [fit.bandwidth for fit in fits])):
        assert np.mean([low <= truth <= high for _, low, high in ends]) > 0.9
    assert {sum(piece.measurements for piece in fit.pieces) for fit in fits} == {5 * len(SIZES)}
