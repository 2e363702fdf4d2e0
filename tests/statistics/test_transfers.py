"""Lines of transfer times against weighted least squares of statsmodels and planted sessions."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from paradnn.statistics.transfers import fit_transfers, predicted_times

SIZES = 2.0 ** np.arange(4, 20)
#: Start-up in us, and us per byte.
ALPHA = 20.0
BETA = 5e-4
LINE = ALPHA + BETA * SIZES


def reweighted_fit(sizes: np.ndarray, times: np.ndarray) -> object:
    """Return the fit of relative errors: weights from the times, then three times from the fit."""
    design = sm.add_constant(sizes)
    fit = sm.WLS(times, design, weights=times**-2.0).fit()
    for _ in range(3):
        fit = sm.WLS(times, design, weights=fit.fittedvalues**-2.0).fit()
    return fit


def test_a_line_is_that_of_reweighted_least_squares() -> None:
    times = LINE * np.exp(np.random.default_rng(1).normal(0, 0.03, len(SIZES)))

    found = fit_transfers(SIZES, times)

    expected = reweighted_fit(SIZES, times)
    alpha, beta = expected.params  # type: ignore[attr-defined]
    ends = expected.conf_int(0.05)  # type: ignore[attr-defined]
    assert len(found.pieces) == 1
    assert found.latency == pytest.approx((alpha, *ends[0]))
    assert found.pieces[0].per_byte == pytest.approx((beta, *ends[1]))
    assert found.bandwidth == pytest.approx((1e6 / beta, 1e6 / ends[1][1], 1e6 / ends[1][0]))
    assert found.line.at(SIZES) == pytest.approx(alpha + beta * SIZES)
    assert found.errors == pytest.approx(np.abs(times / (alpha + beta * SIZES) - 1))


@pytest.mark.parametrize(
    ("sessions", "shifts"),
    [
        pytest.param(2, [-0.02, 0.02], id="two sessions"),
        pytest.param(3, [-0.03, 0.0, 0.03], id="three sessions"),
    ],
)
def test_sessions_that_shift_all_sizes_widen_every_interval(
    sessions: int, shifts: list[float]
) -> None:
    """Without other noise, the relative error is that of a mean over sessions."""
    times = LINE * np.exp(shifts)[:, None]
    labels = np.repeat(np.arange(sessions), len(SIZES))

    found = fit_transfers(np.tile(SIZES, sessions), times.ravel(), labels)

    error = np.std(shifts, ddof=1) / np.sqrt(sessions)
    reach = stats.t.ppf(0.975, sessions - 1) * error
    assert found.pieces[0].per_byte == pytest.approx((BETA, BETA * (1 - reach), BETA * (1 + reach)))
    assert found.latency == pytest.approx((ALPHA, ALPHA * (1 - reach), ALPHA * (1 + reach)))
    assert found.line.measurements == sessions * len(SIZES)


def test_scatter_within_sessions_is_not_counted_twice() -> None:
    """Sessions whose means differ no more than their sizes scatter add nothing."""
    random = np.random.default_rng(2)
    noise = random.normal(0, 0.03, (3, len(SIZES)))
    noise -= noise.mean(axis=1, keepdims=True)
    times = (LINE * np.exp(noise)).ravel()
    labels = np.repeat(["a", "b", "c"], len(SIZES))

    found = fit_transfers(np.tile(SIZES, 3), times, labels)
    once = fit_transfers(np.tile(SIZES, 3), times)

    assert found.latency == pytest.approx(once.latency)


def test_runs_without_a_label_share_a_session() -> None:
    times = np.tile(LINE, 2) * np.repeat([0.98, 1.02], len(SIZES))
    sizes = np.tile(SIZES, 2)
    labels = np.repeat([None, "s"], len(SIZES))

    found = fit_transfers(sizes, times, labels)

    named = fit_transfers(sizes, times, np.repeat(["r", "s"], len(SIZES)))
    assert found.latency == pytest.approx(named.latency)


@pytest.mark.parametrize(
    ("times", "start_up", "per_byte"),
    [
        pytest.param(np.full(4, 7.0), 7.0, 0.0, id="constant"),
        pytest.param([9.0, 8.0, 7.0, 6.0], None, 0.0, id="falling"),
        pytest.param([2.0, 4.0, 6.0, 8.0], 0.0, 2.0, id="proportional"),
        pytest.param([0.9, 2.1, 3.2, 4.3], 0.0, None, id="below zero at no bytes"),
    ],
)
def test_start_up_and_slope_are_not_negative(
    times: list[float], start_up: float | None, per_byte: float | None
) -> None:
    sizes = np.arange(1.0, 5.0)

    piece = fit_transfers(sizes, times).pieces[0]

    if start_up is None:  # the mean of relative errors
        weights = 1 / np.square(times)
        start_up = np.average(times, weights=weights)
        assert piece.start_up.value == pytest.approx(start_up, rel=0.05)
    else:
        assert piece.start_up.value == pytest.approx(start_up, abs=1e-9)
    if per_byte is None:
        assert piece.per_byte.value == pytest.approx(np.mean(np.divide(times, sizes)), rel=0.05)
    else:
        assert piece.per_byte.value == pytest.approx(per_byte, abs=1e-9)
    assert piece.start_up.low >= 0
    assert piece.per_byte.low >= 0


def test_exact_pieces_are_recovered_with_their_breaks() -> None:
    """A handshake from 1 KiB on and another from 64 KiB on; each piece has its own line."""
    lines = [(5.0, 4e-3), (40.0, 1e-3), (90.0, 2e-4)]
    which = np.searchsorted([1024, 65536], SIZES, side="right")
    times = np.array(
        [lines[n][0] + lines[n][1] * size for n, size in zip(which, SIZES, strict=True)]
    )

    found = fit_transfers(SIZES, times)

    assert found.breaks == (1024.0, 65536.0)
    assert [piece.start_up.value for piece in found.pieces] == pytest.approx([5.0, 40.0, 90.0])
    assert [piece.measurements for piece in found.pieces] == [6, 6, 4]
    assert predicted_times(found.pieces, SIZES) == pytest.approx(times)
    assert found.bandwidth.value == pytest.approx(5e9)


def test_many_sizes_may_break_at_some_of_them() -> None:
    """The change lies between two of the sizes that are tried, so both may be breaks."""
    sizes = np.arange(1.0, 201.0)
    times = np.where(sizes < 100, 10 + 0.1 * sizes, 50 + 0.05 * sizes)

    found = fit_transfers(sizes, times)

    assert 1 <= len(found.breaks) <= 2
    assert found.breaks == pytest.approx([100] * len(found.breaks), rel=0.1)
