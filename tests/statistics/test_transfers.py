"""Lines through transfer times, compared with statsmodels and planted sessions."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import optimize, stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from paradnn.core.errors import InsufficientData
from paradnn.statistics.transfers import fit_transfers, predicted_times

SIZES = 2.0 ** np.arange(4, 20)
#: Planted start-up time in us.
ALPHA = 20.0
#: Planted time per byte in us.
BETA = 5e-4
LINE = ALPHA + BETA * SIZES


def reweighted_fit(sizes: np.ndarray, times: np.ndarray) -> object:
    """Fit relative errors with weights from the times, and then three times from the last fit."""
    design = sm.add_constant(sizes)
    fit = sm.WLS(times, design, weights=times**-2.0).fit()
    for _ in range(3):
        fit = sm.WLS(times, design, weights=fit.fittedvalues**-2.0).fit()
    return fit


def test_a_line_equals_reweighted_least_squares() -> None:
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
    half_width = stats.t.ppf(0.975, sessions - 1) * error

    assert found.pieces[0].per_byte == pytest.approx(
        (BETA, BETA * (1 - half_width), BETA * (1 + half_width))
    )
    assert found.latency == pytest.approx(
        (ALPHA, ALPHA * (1 - half_width), ALPHA * (1 + half_width))
    )
    assert found.line.measurements == sessions * len(SIZES)


def test_scatter_within_sessions_is_not_counted_twice() -> None:
    """Sessions add no variance if their means differ only by the scatter of the sizes."""
    random = np.random.default_rng(2)
    noise = random.normal(0, 0.03, (3, len(SIZES)))
    noise -= noise.mean(axis=1, keepdims=True)
    times = (LINE * np.exp(noise)).ravel()
    labels = np.repeat(["a", "b", "c"], len(SIZES))

    found = fit_transfers(np.tile(SIZES, 3), times, labels)
    without_labels = fit_transfers(np.tile(SIZES, 3), times)

    assert found.latency == pytest.approx(without_labels.latency)


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
        pytest.param([7.0, 7.0, 7.0, 7.0], 7.0, 0.0, id="constant"),
        # All fitted times are equal, so all weights are equal.
        pytest.param([9.0, 8.0, 7.0, 6.0], 7.5, 0.0, id="falling"),
        pytest.param([2.0, 4.0, 6.0, 8.0], 0.0, 2.0, id="proportional"),
        # A line through 0 has relative errors with the sum 0 at the mean time per byte.
        pytest.param(
            [0.9, 2.1, 3.2, 4.3],
            0.0,
            (0.9 + 2.1 / 2 + 3.2 / 3 + 4.3 / 4) / 4,
            id="negative start-up",
        ),
    ],
)
def test_start_up_and_slope_are_not_negative(
    times: list[float], start_up: float, per_byte: float
) -> None:
    sizes = np.arange(1.0, 5.0)

    piece = fit_transfers(sizes, times).pieces[0]

    assert piece.start_up.value == pytest.approx(start_up, abs=1e-9)
    assert piece.per_byte.value == pytest.approx(per_byte, abs=1e-9)
    assert piece.start_up.low >= 0
    assert piece.per_byte.low >= 0


def test_a_time_that_does_not_grow_has_an_infinite_bandwidth() -> None:
    bandwidth = fit_transfers(np.arange(1.0, 5.0), [9.0, 8.0, 7.0, 6.0]).bandwidth

    assert (bandwidth.value, bandwidth.high) == (np.inf, np.inf)


def test_a_later_piece_may_have_a_negative_start_up() -> None:
    """From 1 KiB on a byte takes longer, so the second line has a negative time at 0 bytes."""
    times = np.where(SIZES < 1024, 5 + 1e-3 * SIZES, 4e-2 * SIZES - 30)

    found = fit_transfers(SIZES, times)

    assert found.breaks == (1024.0,)
    assert found.pieces[1].start_up.value == pytest.approx(-30.0)
    assert found.pieces[1].start_up.low < 0


def test_messages_without_bytes_are_fitted() -> None:
    sizes = np.append(0.0, SIZES)

    found = fit_transfers(sizes, ALPHA + BETA * sizes)

    assert found.latency.value == pytest.approx(ALPHA)
    assert found.pieces[0].first == 0.0


def test_three_sizes_are_too_few() -> None:
    with pytest.raises(
        InsufficientData, match="at least 4 message sizes, but the runs have only 3"
    ):
        fit_transfers([1.0, 2.0, 4.0, 4.0], [1.0, 2.0, 3.0, 3.1])


def test_variances_of_sessions_and_sizes_add_up() -> None:
    """An analysis of variance over sizes and sessions gives the variance of a session mean."""
    random = np.random.default_rng(7)
    logs = random.normal(0, 0.02, (3, len(SIZES))) + np.array([[-0.04], [0.01], [0.03]])
    times = LINE * np.exp(logs)
    labels = np.repeat(["a", "b", "c"], len(SIZES))
    geometric_means = np.exp(np.log(times).mean(axis=0))

    found = fit_transfers(np.tile(SIZES, 3), times.ravel(), labels).pieces[0].per_byte

    fit = reweighted_fit(SIZES, geometric_means)
    slope = fit.params[1]  # type: ignore[attr-defined]
    variance_of_fit = fit.bse[1] ** 2  # type: ignore[attr-defined]
    table = pd.DataFrame({"log": np.log(times).ravel(), "session": labels})
    table["size"] = np.tile(np.arange(len(SIZES)), 3)
    anova = anova_lm(ols("log ~ C(session) + C(size)", table).fit())
    mean_squares = anova["mean_sq"] / (
        3 * len(SIZES)
    )  # variances of the mean over all measurements
    between = slope**2 * mean_squares["C(session)"]
    within = slope**2 * mean_squares["Residual"]
    variance = variance_of_fit + between - within
    freedom = variance**2 / (variance_of_fit**2 / (len(SIZES) - 2) + between**2 / 2)
    half_width = stats.t.ppf(0.975, freedom) * np.sqrt(variance)

    assert found == pytest.approx((slope, slope - half_width, slope + half_width))


def test_sessions_with_one_common_size_are_compared_at_it() -> None:
    sizes = np.append(SIZES, SIZES[-1])
    times = np.append(LINE, LINE[-1] * 1.02)
    labels = ["a"] * len(SIZES) + ["b"]

    found = fit_transfers(sizes, times, labels)

    assert found.latency.high - found.latency.value > 0.01 * ALPHA

    unlabeled = fit_transfers(sizes, times)
    assert found.latency.value == pytest.approx(unlabeled.latency.value)


def test_sessions_without_a_common_size_add_no_variance() -> None:
    times = LINE * np.exp(np.random.default_rng(9).normal(0, 0.03, len(SIZES)))
    labels = np.repeat(["a", "b"], len(SIZES) // 2)

    found = fit_transfers(SIZES, times, labels)

    assert found.line == fit_transfers(SIZES, times).line


@pytest.mark.parametrize(
    ("times", "start_up", "per_byte"),
    [
        pytest.param(
            np.linspace(1.02, 0.98, 16) * 20.0, lambda t: t.mean(), lambda _: 0.0, id="falling"
        ),
        pytest.param(
            np.linspace(0.98, 1.02, 16) * BETA * SIZES,
            lambda _: 0.0,
            lambda t: (t / SIZES).mean(),
            id="negative start-up",
        ),
    ],
)
def test_noise_that_makes_a_parameter_negative_causes_no_break(
    times: np.ndarray,
    start_up: Callable[[np.ndarray], float],
    per_byte: Callable[[np.ndarray], float],
) -> None:
    random = np.random.default_rng(10)
    noisy = times * np.exp(random.normal(0, 0.02, 16))

    found = fit_transfers(SIZES, noisy)

    assert found.breaks == ()
    assert found.latency.value == pytest.approx(start_up(noisy))
    assert found.pieces[0].per_byte.value == pytest.approx(per_byte(noisy))


def test_a_falling_piece_ends_at_a_jump() -> None:
    times = np.append(np.linspace(20.4, 19.6, 8), 100 + 1e-3 * SIZES[8:])

    found = fit_transfers(SIZES, times)

    assert found.breaks == (SIZES[8],)
    assert found.latency.value == pytest.approx(20.0)


def test_the_first_piece_has_no_negative_start_up() -> None:
    sizes = np.geomspace(1000.0, 1e5, 40)

    found = fit_transfers(sizes, 0.04 * sizes - 30)

    assert len(found.pieces) > 1
    assert found.pieces[0].start_up.value >= 0
    assert found.pieces[-1].start_up.value < 0


def relative_cost(x: np.ndarray, y: np.ndarray) -> float:
    line = np.polyfit(x, y, 1, w=1 / y)
    return float(np.sum((np.polyval(line, x) / y - 1) ** 2))


@pytest.mark.parametrize(
    ("level", "breaks"),
    [pytest.param(0.0019, 1, id="below 0.2%"), pytest.param(0.0021, 0, id="above 0.2%")],
)
def test_a_break_is_found_by_an_f_test_at_a_fifth_of_one_percent(level: float, breaks: int) -> None:
    """A second piece adds three parameters, and its break may be at any of 16 sizes."""
    noise = np.exp(np.random.default_rng(11).normal(0, 0.05, 16))

    def times_with_jump(jump: float) -> np.ndarray:
        return np.asarray(noise * np.where(SIZES < 4096, LINE, LINE + jump))

    def excess(jump: float) -> float:
        y = times_with_jump(jump)
        cost_of_one = relative_cost(SIZES, y)
        cost_of_two = min(
            relative_cost(SIZES[:k], y[:k]) + relative_cost(SIZES[k:], y[k:]) for k in range(4, 13)
        )
        ratio = (cost_of_one - cost_of_two) / 3 / (cost_of_two / (16 - 5))
        return float(16 * stats.f.sf(ratio, 3, 11)) - level

    jump = optimize.brentq(excess, 0.0, 40.0)

    assert len(fit_transfers(SIZES, times_with_jump(jump)).breaks) == breaks


def test_noise_has_no_break() -> None:
    """A break is tested at 1% over all positions and numbers of pieces."""
    random = np.random.default_rng(8)
    breaks = 0
    for _ in range(30):
        found = fit_transfers(SIZES, LINE * np.exp(random.normal(0, 0.05, len(SIZES))))
        breaks += len(found.breaks) > 0

    assert breaks <= 2


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_up_to_six_exact_pieces_are_recovered(count: int) -> None:
    sizes = np.arange(1.0, 6.0 * count + 1)
    piece = (sizes - 1).astype(int) // 6
    times = 10.0 + 100 * piece + (0.1 + 0.02 * piece) * sizes

    found = fit_transfers(sizes, times)

    assert found.breaks == tuple(range(7, 6 * count, 6))
    assert [part.first for part in found.pieces] == [1.0, *found.breaks]
    assert [part.last for part in found.pieces] == [
        *(position - 1 for position in found.breaks),
        sizes[-1],
    ]
    assert found.errors == pytest.approx(np.zeros(len(sizes)), abs=1e-9)


def test_each_of_48_sizes_may_be_a_break() -> None:
    sizes = np.arange(1.0, 49.0)
    times = np.where(sizes < 42, 10 + 0.1 * sizes, 50 + 0.05 * sizes)

    assert fit_transfers(sizes, times).breaks == (42.0,)


def test_a_break_among_100_sizes_from_zero_bytes_is_found_nearby() -> None:
    sizes = np.arange(100.0)
    times = np.where(sizes < 16, 10 + 0.1 * sizes, 50 + 0.05 * sizes)

    assert fit_transfers(sizes, times).breaks == pytest.approx([16.0], rel=0.15)


def test_three_exact_pieces_are_recovered_with_their_breaks() -> None:
    """Handshakes begin at 1 KiB and at 64 KiB, and each of the three pieces has its own line."""
    lines = [(5.0, 4e-3), (40.0, 1e-3), (90.0, 2e-4)]
    piece_index = np.searchsorted([1024, 65536], SIZES, side="right")
    times = np.array(
        [lines[n][0] + lines[n][1] * size for n, size in zip(piece_index, SIZES, strict=True)]
    )

    found = fit_transfers(SIZES, times)

    assert found.breaks == (1024.0, 65536.0)
    assert [piece.start_up.value for piece in found.pieces] == pytest.approx([5.0, 40.0, 90.0])
    assert [piece.measurements for piece in found.pieces] == [6, 6, 4]
    assert predicted_times(found.pieces, SIZES) == pytest.approx(times)
    assert found.bandwidth.value == pytest.approx(5e9)


def test_a_break_among_200_sizes_is_found_nearby() -> None:
    """The change lies between two of the tried sizes, and both may be found as breaks."""
    sizes = np.arange(1.0, 201.0)
    times = np.where(sizes < 100, 10 + 0.1 * sizes, 50 + 0.05 * sizes)

    found = fit_transfers(sizes, times)

    assert 1 <= len(found.breaks) <= 2
    assert found.breaks == pytest.approx([100] * len(found.breaks), rel=0.1)
