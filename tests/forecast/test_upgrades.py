"""The model of hardware upgrades, on planted times with known rates."""

import numpy as np
import pytest

from paradnn.forecast.generations import (
    DevicePair,
    built_pairs,
    changed_hardware,
    compared_with,
    pairs_without,
    upgrade_between,
)
from paradnn.forecast.upgrades import (
    OperationLimits,
    TimedWork,
    Upgrade,
    expected_speedups,
    fit_gains,
    limit_shares,
    predict_speedups,
)

FLOPS_RATE = 8e12
BYTES_RATE = 4e11
OVERHEAD = 2e-5
EXPONENT = 2.5
EXACT = Upgrade(gains=np.zeros(3), spreads=np.zeros(3), scatter=0.0)


def seconds_of(
    flops: np.ndarray, moved: np.ndarray, gains: tuple[float, float, float] = (1, 1, 1)
) -> np.ndarray:
    """Return times in seconds on a planted device.

    Args:
        flops: FLOPs of each operation.
        moved: Bytes of each operation.
        gains: Speedups of arithmetic, of memory and of the overhead.
    """
    terms = np.stack(
        [
            flops / FLOPS_RATE / gains[0],
            moved / BYTES_RATE / gains[1],
            np.full(len(flops), OVERHEAD / gains[2]),
        ]
    )
    return np.asarray((terms**EXPONENT).sum(axis=0) ** (1 / EXPONENT))


def planted_work(count: int = 300, noise: float = 0.0) -> TimedWork:
    """Return operations with each of the three limits, and their times on the planted device."""
    random = np.random.default_rng(5)
    flops = 10 ** random.uniform(6, 12, count)
    moved = 10 ** random.uniform(5, 10, count)
    seconds = seconds_of(flops, moved) * np.exp(noise * random.standard_normal(count))
    return TimedWork.single(flops, moved, seconds)


def test_fit_recovers_planted_rates() -> None:
    fit = OperationLimits.fit(planted_work(noise=0.05), peak=1.2e13, bandwidth=6e11)

    expected = np.log([FLOPS_RATE, BYTES_RATE, OVERHEAD, EXPONENT - 1])
    np.testing.assert_allclose(fit.logs[:3], expected[:3], atol=0.05)
    np.testing.assert_allclose(fit.logs[3], expected[3], atol=0.4)
    assert np.all(np.abs(fit.logs - expected) < 4 * np.sqrt(np.diag(fit.covariance)))
    assert 0.03 < fit.spread < 0.07


def test_fit_needs_no_peaks() -> None:
    fit = OperationLimits.fit(planted_work(noise=0.05))

    np.testing.assert_allclose(fit.logs[:3], np.log([FLOPS_RATE, BYTES_RATE, OVERHEAD]), atol=0.05)


@pytest.mark.parametrize(
    "gains",
    [
        pytest.param((1.0, 2.0, 1.0), id="bandwidth"),
        pytest.param((3.0, 1.0, 1.0), id="peak"),
        pytest.param((1.0, 1.0, 2.0), id="overhead"),
        pytest.param((2.3, 1.5, 1.3), id="all"),
    ],
)
def test_planted_upgrade_is_predicted_and_covered(gains: tuple[float, float, float]) -> None:
    work = planted_work(noise=0.1)
    fit = OperationLimits.fit(work)
    upgrade = Upgrade(gains=np.log(gains), spreads=np.zeros(3), scatter=0.02)

    prediction = predict_speedups(work, fit, upgrade)

    truth = np.log(seconds_of(work.flops, work.bytes) / seconds_of(work.flops, work.bytes, gains))
    low, middle, high = np.quantile(prediction.log_speedups, (0.025, 0.5, 0.975), axis=1)
    assert np.median(np.abs(np.expm1(middle - truth))) < 0.03
    assert np.mean((low <= truth) & (truth <= high)) > 0.9


def test_the_fit_uses_step_times_of_several_operations() -> None:
    random = np.random.default_rng(6)
    owner = np.repeat(np.arange(80), 4)
    flops = 10 ** random.uniform(7, 12, 320)
    moved = 10 ** random.uniform(6, 10, 320)
    calls = np.tile([1.0, 2.0, 8.0, 30.0], 80)
    steps = np.asarray(np.bincount(owner, calls * seconds_of(flops, moved)), dtype=float)
    work = TimedWork(flops=flops, bytes=moved, calls=calls, owner=owner, seconds=steps)
    gains = (1.0, 2.0, 1.0)

    fit = OperationLimits.fit(work)
    speedups = expected_speedups(work, fit, np.log(gains))

    new_steps = np.bincount(owner, calls * seconds_of(flops, moved, gains))
    np.testing.assert_allclose(speedups, steps / new_steps, rtol=0.03)


def test_a_slow_operation_keeps_the_speedup_of_its_limit() -> None:
    work = planted_work()
    fit = OperationLimits.fit(work)
    shares = limit_shares(work, fit.logs)
    slow = TimedWork.single(work.flops, work.bytes, 2 * work.seconds)
    is_memory = shares[1] > 0.99

    speedups = expected_speedups(slow, fit, np.log([1.0, 2.0, 1.0]))

    assert is_memory.sum() > 20
    np.testing.assert_allclose(speedups[is_memory], 2.0, rtol=0.03)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)


def test_unchanged_hardware_has_no_speedup() -> None:
    work = planted_work(noise=0.1)
    upgrade = changed_hardware(peak=1.0, bandwidth=1.0, overhead=1.0, pairs=built_pairs())

    prediction = predict_speedups(work, OperationLimits.fit(work), upgrade)

    np.testing.assert_allclose(prediction.log_speedups, 0.0, atol=1e-12)
    np.testing.assert_allclose(prediction.before.sum(axis=0), 1.0)
    np.testing.assert_allclose(prediction.after.sum(axis=0), 1.0)


def test_only_changed_rates_are_uncertain() -> None:
    upgrade = changed_hardware(peak=1.0, bandwidth=2.0, overhead=1.0, pairs=built_pairs())

    assert list(upgrade.gains[[0, 2]]) == [0, 0]
    assert list(upgrade.spreads > 0) == [False, True, False]
    assert 0.3 < upgrade.gains[1] < 0.75


def test_the_scatter_of_a_change_is_that_of_equal_devices() -> None:
    doubled = changed_hardware(peak=1.0, bandwidth=2.0, overhead=1.0, pairs=built_pairs())
    tiny = changed_hardware(peak=1.0, bandwidth=1.01, overhead=1.0, pairs=built_pairs())
    equal = upgrade_between(np.zeros(3), built_pairs())

    assert doubled.scatter == equal.scatter
    assert tiny.scatter == pytest.approx(np.log(1.01))


def test_gains_of_a_pair_are_recovered() -> None:
    work = planted_work(noise=0.02)
    gains = (2.5, 1.4, 0.8)
    new_seconds = seconds_of(work.flops, work.bytes, gains)

    fitted_gains, scatter = fit_gains(
        work, OperationLimits.fit(work), new_seconds, np.zeros(3), np.array([0.5, 0.5, 0.5])
    )

    np.testing.assert_allclose(np.exp(fitted_gains), gains, rtol=0.04)
    assert scatter < 0.05


def planted_pairs(slope: float) -> list[DevicePair]:
    """Return pairs whose log gains are `slope` times their log ratios, with noise."""
    random = np.random.default_rng(7)
    pairs = []
    for place in range(40):
        ratios = random.uniform(-1, 1, 3)
        pairs.append(
            DevicePair(
                older=f"A{place}",
                newer=f"B{place}",
                ratios=ratios,
                gains=slope * ratios + 0.05 * random.standard_normal(3),
                shares=np.full(3, 1 / 3),
                scatter=0.1,
            )
        )
    return pairs


def test_the_prior_learns_gains_from_specifications() -> None:
    ratios = np.log([2.0, 3.0, 1.2])

    upgrade = upgrade_between(ratios, planted_pairs(0.7))

    np.testing.assert_allclose(upgrade.gains, 0.7 * ratios, atol=0.07)


def test_pairs_of_a_device_are_excluded_under_any_of_its_names() -> None:
    pairs = built_pairs()

    remaining = pairs_without("NVIDIA H100 80GB HBM3", pairs)

    assert any("H100" in (pair.older, pair.newer) for pair in pairs)
    assert not any("H100" in (pair.older, pair.newer) for pair in remaining)
    assert 0 < len(remaining) < len(pairs)


def planted_devices(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return log ratios and log gains, each of shape (3,), of 30 devices to a common one.

    The ratios are a random walk, and so are the deviations of the gains from the ratios. Therefore
    devices with similar ratios have similar deviations.
    """
    random = np.random.default_rng(seed)
    ratios = [np.zeros(3)]
    deviations = [np.zeros(3)]
    for _ in range(29):
        step = random.normal(0, 0.4, 3)
        ratios.append(ratios[-1] + step)
        spread = 0.3 * np.sqrt(np.linalg.norm(step))
        deviations.append(deviations[-1] + random.normal(0, spread, 3))
    gains = [each + own for each, own in zip(ratios, deviations, strict=True)]
    return ratios, gains


def pairs_of(ratios: list[np.ndarray], gains: list[np.ndarray], span: int) -> list[DevicePair]:
    """Return pairs of each device with those that are up to `span` positions later."""
    return [
        DevicePair(
            older=f"D{place}",
            newer=f"D{other}",
            ratios=ratios[other] - ratios[place],
            gains=gains[other] - gains[place],
            shares=np.full(3, 1 / 3),
            scatter=0.1,
        )
        for place in range(len(ratios))
        for other in range(place + 1, min(len(ratios), place + 1 + span))
    ]


def test_intervals_of_differences_cover_the_truth_and_are_narrower() -> None:
    inside = []
    widths = []
    for seed in range(8):
        ratios, gains = planted_devices(seed)
        # The last ten devices are unknown to the model.
        known = pairs_of(ratios[:20], gains[:20], span=4)
        for place in range(20, 29):
            to_first = ratios[place] - ratios[19]
            to_second = ratios[place + 1] - ratios[19]
            first = upgrade_between(to_first, known)
            second = compared_with(
                first, upgrade_between(to_second, known), to_second - to_first, known
            )
            difference = first.draws(400) - second.draws(400)
            alone = first.draws(400)
            low, high = np.quantile(difference, (0.025, 0.975), axis=0)
            true = gains[place] - gains[place + 1]
            inside += list((low <= true) & (true <= high))
            low_alone, high_alone = np.quantile(alone, (0.025, 0.975), axis=0)
            widths += list((high - low) / (high_alone - low_alone))

    assert 0.9 < np.mean(inside) < 0.995
    assert np.median(widths) < 0.9


def test_changes_of_different_rates_have_uncorrelated_errors() -> None:
    bandwidth = changed_hardware(peak=1.0, bandwidth=2.0, overhead=1.0, pairs=built_pairs())
    peak = changed_hardware(peak=2.0, bandwidth=1.0, overhead=1.0, pairs=built_pairs())
    difference = peak.gains - bandwidth.gains

    upgrade = compared_with(bandwidth, peak, difference, built_pairs())

    assert upgrade.correlations is not None
    assert list(upgrade.correlations) == [0, 0, 0]


def test_two_changes_of_one_rate_have_correlated_errors() -> None:
    smaller = changed_hardware(peak=1.0, bandwidth=2.0, overhead=1.0, pairs=built_pairs())
    larger = changed_hardware(peak=1.0, bandwidth=2.2, overhead=1.0, pairs=built_pairs())
    difference = np.log([1.0, 1.1, 1.0])

    upgrade = compared_with(smaller, larger, difference, built_pairs())

    assert upgrade.correlations is not None
    assert upgrade.correlations[1] > 0.7
