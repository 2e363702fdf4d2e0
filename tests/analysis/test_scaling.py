from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike

from analysis.analyses.scaling import amdahl_fraction, amdahl_speedup, fit_scaling
from analysis.analyses.scaling import scaling as summarised
from tests.analysis.planted import POINTS, runs

COUNTS = (2, 4, 8)


def planted(fraction: ArrayLike, noise: float = 0.0, family: str = "fc", seed: int = 0) -> pd.DataFrame:
    """Every point on 1, 2, 4 and 8 devices, by Amdahl's law with multiplicative noise."""
    generator = np.random.default_rng(seed)
    alone = 10 ** generator.uniform(2, 5, len(POINTS))
    parts = []
    for count in (1, *COUNTS):
        law = 1 / (np.asarray(fraction) + (1 - np.asarray(fraction)) / count)
        speed = alone * law * np.exp(noise * generator.standard_normal(len(POINTS)))
        parts.append(runs(POINTS, family=family, devices=count, examples_per_second=speed))
    return pd.concat(parts, ignore_index=True)


def test_law_and_fraction_are_inverse() -> None:
    assert amdahl_speedup(0.1, 8) == pytest.approx(1 / (0.1 + 0.9 / 8))
    assert amdahl_speedup(0, 8) == 8
    assert amdahl_speedup(1, 8) == 1
    for fraction in (0.0, 0.16, 0.6, 1.0):
        np.testing.assert_allclose(amdahl_fraction(amdahl_speedup(fraction, COUNTS), COUNTS), fraction, atol=1e-12)
    assert amdahl_fraction(9, 8) < 0
    assert amdahl_fraction(0.9, 8) > 1


def test_an_exact_law_gives_its_fraction() -> None:
    found = fit_scaling(planted(0.16))
    family = found.families[0]
    assert family.fraction.value == pytest.approx(0.16)
    assert (family.points, family.measurements, family.counts) == (64, 192, COUNTS)
    assert family.efficiency.value == pytest.approx(1 / (0.16 + 0.84 / 8) / 8)


def test_the_fit_is_plain_least_squares_over_all_pairs() -> None:
    frame = planted(0.2, noise=0.1)
    wide = frame.pivot_table(index=list(POINTS), columns="devices", values="examples_per_second")
    x = np.concatenate([np.full(len(wide), 1 - 1 / count) for count in COUNTS])
    y = np.concatenate([(wide[1] / wide[count] - 1 / count).to_numpy() for count in COUNTS])
    expected = np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]
    family = fit_scaling(frame).families[0]
    assert family.fraction.value == pytest.approx(expected)


@pytest.mark.long
def test_the_whole_method_covers_the_planted_fraction() -> None:
    """Forty sweeps, each as a family of its own."""
    own = [np.random.default_rng(seed + 1000).normal(0.3, 0.05, len(POINTS)) for seed in range(40)]
    frames = [planted(each, noise=0.02, seed=seed, family=f"f{seed}") for seed, each in enumerate(own)]
    found = fit_scaling(pd.concat(frames, ignore_index=True)).families
    assert len(found) == 40
    covered = sum(family.fraction.low <= 0.3 <= family.fraction.high for family in found)
    assert covered >= 34  # 38 are expected, fewer than 34 once in 70 such tests, were they drawn anew


def test_families_on_one_device_alone_are_told_and_no_hindrance() -> None:
    alone = runs(POINTS, family="lstm", devices=1, examples_per_second=9.0).drop(columns="model.nodes")
    alone["model.embedding_size"] = POINTS["model.nodes"]
    frame = pd.concat([planted(0.1), alone], ignore_index=True)
    result = summarised(frame)
    assert set(result.table["family"]) == {"fc"}
    assert "Not compared: lstm, of which no point was measured on 1 and on more." in result.text()


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    frame = pd.concat([planted(0.4, 0.1, "lstm"), planted(0.05, 0.1, "fc")], ignore_index=True)
    threads = fit_scaling(frame.rename(columns={"devices": "platform.threads"}), by="platform.threads")
    assert [family.family for family in threads.families] == ["fc", "lstm"]
    figure = summarised(frame).figure()
    rates, speedups = figure.axes
    assert rates.get_xlabel() == "throughput on one (examples/s)"
    assert [tick.get_text() for tick in speedups.get_xticklabels()] == ["1", "2", "4", "8"]
    figure.savefig(tmp_path / "scaling.png")


@pytest.mark.long
def test_points_of_one_model_are_no_independent_ones() -> None:
    """What a model loses it loses at every batch size: intervals are over models. Thirty sweeps of 16 models at four
    batch sizes, each as a family of its own."""
    frames = []
    for seed in range(60):
        model = np.random.default_rng(seed + 2000).normal(0.3, 0.05, (4, 4, 1))
        own = np.broadcast_to(model, (4, 4, 4)).ravel()
        frames.append(planted(own, noise=0.02, seed=seed, family=f"f{seed}"))
    found = fit_scaling(pd.concat(frames, ignore_index=True)).families
    efficiency = 1 / (0.3 + 0.7 / 8) / 8
    for truth, ends in (
        (0.3, [family.fraction for family in found]),
        (efficiency, [family.efficiency for family in found]),
    ):
        # 57 are expected, fewer than 52 once in 70 such tests, if other ones were drawn.
        assert sum(low <= truth <= high for _, low, high in ends) >= 52


def test_counts_that_follow_each_other_are_told() -> None:
    """A machine that gets slower, and every point on one device before those on more: the fraction is the drift's."""
    frame = planted(0.0).assign(sweep_id="sweep")
    begin = pd.Timestamp("2026-01-01", tz="UTC")
    in_turn = frame.groupby(list(POINTS)).cumcount() + 4 * frame.groupby("devices").cumcount()
    for order, told in ((np.arange(len(frame)), True), (in_turn.to_numpy(), False)):
        timed = frame.assign(start_time=begin + pd.to_timedelta(order, unit="m"))
        slower = timed.assign(examples_per_second=timed["examples_per_second"] * np.exp(-0.001 * order))
        found = summarised(slower)
        assert ("one side was measured before the other" in found.text()) == told
        assert (fit_scaling(slower).families[0].fraction.value > 0.01) == told
    assert "when these were measured is not recorded" in summarised(planted(0.1)).text()
