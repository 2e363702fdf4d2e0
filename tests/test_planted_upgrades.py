"""Planted upgrades: predictions from simulated times of products, and a short real measurement."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.planted_upgrades import (
    PAIRS,
    PlantedPair,
    ceilings,
    frame_of,
    median_seconds,
    predicted,
    with_intervals,
)
from paradnn.worker.peak_rates import REPEATS
from tests.conftest import process

#: FLOP/s, bytes/s and seconds of overhead of each simulated condition.
RATES = {
    "one thread": (60e9, 20e9, 2e-5),
    "two threads": (120e9, 30e9, 2e-5),
    "memory hog": (60e9, 10e9, 2e-5),
    "half the time": (30e9, 10e9, 4e-5),
}
#: Kernel whose time consists only of overhead.
SMALLEST = json.dumps(
    {
        "model": {"name": "elementwise", "elements": 1000, "operations": 1},
        "batch_size": 1,
        "mode": "inference",
    }
)
SIZES = [*itertools.product((16, 128, 1024), (1, 64, 512), (128, 2048))]


def product_seconds(m: int, n: int, k: int, rates: tuple[float, float, float]) -> float:
    """Return the seconds of a float32 product whose three terms mostly overlap."""
    terms = [2 * m * n * k / rates[0], 4 * (m * n + m * k + n * k) / rates[1], rates[2]]
    return float(sum(term**4 for term in terms) ** 0.25)


def point_text(m: int, n: int, k: int) -> str:
    """Return the point of a product as JSON, as in the column `model`."""
    model = {"name": "gemm", "m": m, "n": n, "k": k}
    return json.dumps({"model": model, "batch_size": 1, "mode": "inference"})


def simulated_rows() -> pd.DataFrame:
    """Return eight rounds of simulated times with noise of 1%."""
    random = np.random.default_rng(0)
    rows = []
    for condition, rates in RATES.items():
        seconds = {point_text(m, n, k): product_seconds(m, n, k, rates) for m, n, k in SIZES}
        seconds[SMALLEST] = rates[2]
        seconds |= {f"matmul {size}": 2 * size**3 / rates[0] for size in (512, 1024, 2048)}
        seconds["add 16777216"] = 3 * 4 * 16777216 * REPEATS / rates[1]
        for model, value in seconds.items():
            for number in range(8):
                noisy = value * np.exp(0.01 * random.standard_normal())
                rows.append((model, condition, number, 1, noisy))
    return pd.DataFrame(rows, columns=["model", "condition", "round", "steps", "seconds"])


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.older} to {pair.newer}")
def test_a_simulated_upgrade_is_predicted(pair: PlantedPair) -> None:
    rows = simulated_rows()
    medians = median_seconds(rows)

    table = with_intervals(predicted(frame_of(medians), pair, ceilings(medians)), rows)

    table = table[table["family"].eq("gemm")]
    for model, measured in zip(table["model"], table["measured"], strict=True):
        sizes = [json.loads(model)["model"][name] for name in ("m", "n", "k")]
        true = product_seconds(*sizes, RATES[pair.older]) / product_seconds(
            *sizes, RATES[pair.newer]
        )
        assert measured == pytest.approx(true, rel=0.03)
    assert len(table) == 2 * len(SIZES)
    assert table["device_inside"].mean() >= 0.9
    error = (table["factor"] / table["measured"] - 1).abs()
    assert error.median() < 0.1
    known = table.dropna(subset=["measured_low"])
    assert len(known) >= 0.8 * len(table)
    assert known["measured"].between(known["measured_low"], known["measured_high"]).all()


def test_ceilings_follow_from_the_simulated_times() -> None:
    ceilings_by_condition = ceilings(median_seconds(simulated_rows()))

    assert list(ceilings_by_condition) == list(RATES)
    for condition, (peak, bandwidth, overhead) in RATES.items():
        assert ceilings_by_condition[condition].peak == pytest.approx(peak, rel=0.02)
        assert ceilings_by_condition[condition].bandwidth == pytest.approx(bandwidth, rel=0.02)
        assert ceilings_by_condition[condition].overhead == pytest.approx(overhead, rel=0.02)


def test_the_roofline_prediction_follows_from_both_ceilings() -> None:
    medians = median_seconds(simulated_rows())

    table = predicted(frame_of(medians), PAIRS[0], ceilings(medians))

    table = table[table["overhead"].eq("planted")].set_index("model")

    assert table.loc[point_text(1024, 1, 2048), "roofline"] == pytest.approx(1.5, rel=0.02)
    assert table.loc[point_text(1024, 512, 2048), "roofline"] == pytest.approx(2.0, rel=0.02)


@pytest.mark.long
@pytest.mark.framework
def test_conditions_are_measured_and_predicted(tmp_path: Path) -> None:
    program = "benchmarks.planted_upgrades"
    words = ["measure", "--rounds", "2", "--block", "0.01", "--every", "6"]

    measured = process([program, *words, "--out", str(tmp_path)])
    completed = process(
        [program, "predict", str(tmp_path), "--figure", str(tmp_path / "planted.png")]
    )

    assert measured.returncode == completed.returncode == 0, measured.stderr + completed.stderr
    rows = pd.read_csv(tmp_path / "planted_upgrades.csv")
    assert set(rows["condition"]) >= {"one thread", "two threads", "memory hog"}
    assert rows["seconds"].gt(0).all()
    assert (tmp_path / "planted.png").stat().st_size > 1000
