"""The Gaussian process: against the textbook's formulae written out, on planted surfaces, and with next to no data."""

from dataclasses import replace

import numpy as np
import pytest

from paradnn.forecast.process import JITTER, Inputs, Process
from paradnn.forecast.regression import Array


def inputs(points: Array, words: list[str] | None = None, steps: list[int] | None = None) -> Inputs:
    """Points (n, k) with a column for the level, one for the first coordinate, and a word."""
    count = len(points)
    columns = {"level": (np.ones(count), 2.0), "slope": (points[:, 0], 1.0)}
    coordinates = {**dict(enumerate(points.T)), "word": np.array(words or ["one"] * count)}
    return Inputs(np.full(count, 0.5), columns, coordinates, steps or list(range(count)))


def surface(points: Array) -> Array:
    return np.asarray(1.0 + 0.5 * points[:, 0] + 0.4 * np.sin(2 * points[:, 0]) * np.cos(1.5 * points[:, 1]))


def fitted(random: np.random.Generator, count: int, noise: float = 0.02) -> Process:
    points = random.uniform(-2, 2, (count, 2))
    values = surface(points) + noise * random.standard_normal(count)
    return Process.fit(inputs(points), values, np.full(count, noise), noise)


def textbook(process: Process, points: Inputs) -> tuple[Array, Array]:
    """Mean and variance without noise of a run, as Rasmussen and Williams have them (2.25, 2.26)."""
    known, scales = process.inputs, process.scales

    def prior(one: Inputs, other: Inputs) -> Array:
        line = np.zeros((len(one), len(other)))
        for name, (column, spread) in one.columns.items():
            line += spread**2 * np.outer(column, other.columns[name][0])
        squares = np.zeros((len(one), len(other)))
        for name, length in scales.lengths.items():
            apart = one.coordinates[name][:, None] - other.coordinates[name]
            squares += (apart / length) ** 2
        root = np.sqrt(3 * squares)
        return np.asarray(line + scales.smooth**2 * (1 + root) * np.exp(-root))

    own = scales.nugget_variance(known.coordinates) * process.disturbed
    inverse = np.linalg.inv(prior(known, known) + np.diag(own + process.noise) + 1e-12 * np.eye(len(known)))
    across = prior(points, known)
    mean = points.base + across @ inverse @ process.values
    variance = np.diag(prior(points, points) - across @ inverse @ across.T)
    return mean, process.allowance * (variance + scales.nugget_variance(points.coordinates))


def test_predictions_are_the_textbooks() -> None:
    random = np.random.default_rng(0)
    process = fitted(random, 40)
    new = replace(inputs(random.uniform(-2, 2, (30, 2))), steps=list(range(100, 130)))
    found, (mean, variance) = process.predict(new), textbook(process, new)
    assert found.mean == pytest.approx(mean, abs=1e-3)
    assert found.spread**2 - found.noise**2 == pytest.approx(variance, rel=0.02, abs=20 * JITTER)


def test_errors_left_out_are_those_of_leaving_each_out() -> None:
    process = fitted(np.random.default_rng(1), 25)
    for place in (0, 7, 24):
        others = np.delete(np.arange(25), place)
        without = replace(
            process,
            inputs=process.inputs.rows(others),
            values=process.values[others],
            noise=process.noise[others],
            disturbed=process.disturbed[others],
        )
        one = process.inputs.rows(np.array([place]))
        mean, _ = textbook(without, one)
        assert process.left_out.error[place] == pytest.approx(process.values[place] + 0.5 - mean[0], abs=2e-3)


@pytest.mark.parametrize("count", [25, 60])
def test_a_surface_is_learnt_and_intervals_hold_what_they_say(count: int) -> None:
    errors, inside, left_out = [], [], []
    for seed in range(12):
        random = np.random.default_rng(seed)
        process = fitted(random, count)
        points = random.uniform(-2, 2, (200, 2))
        found = process.predict(replace(inputs(points), steps=list(range(1000, 1200))))
        values = surface(points) + 0.02 * random.standard_normal(200)
        low, high = found.interval()
        errors.append(np.median(np.abs(found.mean - values)))
        inside.append(((low <= values) & (values <= high)).mean())
        left_out.append(process.left_out.median_error)
    assert np.mean(errors) < {25: 0.1, 60: 0.04}[count]
    assert 0.9 <= np.mean(inside) <= 0.995
    assert np.mean(left_out) == pytest.approx(np.mean(errors), rel=0.6)


def test_a_disturbed_run_does_not_bend_its_neighbours() -> None:
    random = np.random.default_rng(3)
    points = random.uniform(-2, 2, (80, 2))
    values = surface(points)
    values[5] += 2.0
    process = Process.fit(inputs(points), values, np.full(80, 0.02), 0.02)
    near = replace(inputs(points[5:6] + 0.15), steps=[999])
    assert process.predict(near).mean[0] == pytest.approx(surface(points[5:6] + 0.15)[0], abs=0.25)
    assert np.argmax(process.disturbed) == 5


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_next_to_no_data_gives_wide_intervals(count: int) -> None:
    points = np.linspace(-1, 1, 5)[:, None] * np.ones((1, 2))
    known = inputs(points).rows(np.arange(count))
    process = Process.fit(known, surface(points)[:count], np.full(count, 0.02), 0.02)
    found = process.predict(inputs(points))
    assert np.isfinite(found.spread).all()
    assert (found.spread[count:] > 0.1).all()
    assert len(process.left_out.error) == count


def test_many_observations_are_as_good_as_all_of_their_carriers() -> None:
    """Beyond so many observations the smooth part is that of a sample of them: near what the textbook gives."""
    random = np.random.default_rng(6)
    process = fitted(random, 700)
    points = random.uniform(-2, 2, (50, 2))
    found = process.predict(replace(inputs(points), steps=list(range(10_000, 10_050))))
    assert found.mean == pytest.approx(surface(points), abs=0.05)
