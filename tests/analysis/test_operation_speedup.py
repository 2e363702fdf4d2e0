import numpy as np
import pandas as pd
import pytest

from analysis.operation_speedup import Level, operation_speedup
from paradnn.core.errors import NotEnoughData
from tests.analysis.test_pairing import side
from tests.conftest import depth

PEAK, BANDWIDTH = 100e12, 1e12  # B's; A has 2.3 times the peak and 1.5 times the bandwidth
BATCH = 2.0  # A's batch is twice B's, and so is the intensity of its matrix products


def profiled(device: str, points: int = 40, noise: float = 0.0, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and their operation tables under a roof of the device: the paper's Figure 6 with known gains."""
    random = np.random.default_rng([seed, ord(device)])
    peak, bandwidth, scale = (2.3 * PEAK, 1.5 * BANDWIDTH, BATCH) if device == "A" else (PEAK, BANDWIDTH, 1.0)
    runs, rows = side(np.ones((points, 1)), device), []
    for run_id in runs["run_id"]:
        for kind, intensity in (("MatMul", 20 * scale), ("Conv2D", 500.0), ("Mul", 0.25), ("Odd", 130.0)):
            rate = min(peak, intensity * bandwidth) * random.lognormal(0, noise)
            rows.append([run_id, kind, 0.2, rate, intensity, 1e9, 1e9 / intensity])
        rows.append([run_id, "AllReduce", 0.1, 0.01 * bandwidth, 0.1, 1e6, 1e7])
        rows.append([run_id, "Small", 0.001, 0.25 * bandwidth, 0.25, 1e6, 4e6])
        rows.append([run_id, "Transpose", 0.1, 0.0, 0.0, 0.0, 1e9])
    columns = ["run_id", "type", "share", "flops_per_second", "arithmetic_intensity", "flops", "bytes"]
    return runs, pd.DataFrame(rows, columns=columns)


def test_planted_gains_are_recovered() -> None:
    (a, types_a), (b, types_b) = profiled("A", noise=0.02), profiled("B", noise=0.02)
    found = operation_speedup(a, b, pd.concat([types_a, types_b]), ridges=(100.0, 230 / 1.5))
    levels = found.levels.set_index("level")
    assert set(levels.index) == set(Level) - {Level.UNKNOWN}
    expected = {"compute-bound": 2.3, "memory-bound MatMul": 3.0, "memory-bound, other": 1.5}
    for level, speedup in expected.items():
        row = levels.loc[level]
        assert row["geometric_mean"] == pytest.approx(speedup, rel=0.02)
        assert (row["operations"], row["points"]) == (40, 40)
    assert levels.loc["memory-bound MatMul", "bandwidth_gain"] == pytest.approx(1.5, rel=0.02)
    assert found.gain[0] == pytest.approx(1.5, rel=0.02)
    assert found.gain[1] < found.gain[0] < found.gain[2]
    assert (found.gain_from, found.small) == ("memory-bound, other", 40)
    assert set(found.operations["operation_type"]) == {"MatMul", "Conv2D", "Mul", "Odd", "AllReduce"}


@depth(15, 50)
def test_the_gain_covers_at_its_rate(draws: int) -> None:
    covered = 0
    for seed in range(draws):
        (a, types_a), (b, types_b) = (profiled(name, 10, 0.1, seed) for name in "AB")
        low, high = operation_speedup(a, b, pd.concat([types_a, types_b]), ridges=(100.0,)).gain[1:]
        covered += low <= 1.5 <= high
    assert covered >= int(0.84 * draws)  # 95%, less three standard deviations


def test_without_a_ridge_nothing_is_said_to_be_bound() -> None:
    (a, types_a), (b, types_b) = profiled("A"), profiled("B")
    found = operation_speedup(a, b, pd.concat([types_a, types_b]))
    assert set(found.levels["level"]) == {"ridge unknown", "between devices"}
    assert np.isnan(found.gain).all()
    assert found.gain_from is None


def test_what_lacks_is_told() -> None:
    (a, types_a), (b, types_b) = profiled("A"), profiled("B")
    with pytest.raises(NotEnoughData, match="none of the 40 runs of B was profiled"):
        operation_speedup(a, b, types_a)
    other = types_b.assign(type=types_b["type"] + " fusion")
    with pytest.raises(NotEnoughData, match="A has AllReduce, Conv2D, MatMul, Mul, Odd, Small; B has AllReduce fusion"):
        operation_speedup(a, b, pd.concat([types_a, other]))
