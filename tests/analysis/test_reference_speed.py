"""Sides of two sessions at one speed of the machine: planted machines, of which one session is 15% slower."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.compare import compare_points
from paradnn.session.measured import mean_interval
from paradnn.session.reference import at_reference
from tests.conftest import depth
from tests.session.test_reference import planted

SAME = "the same within the margin"


def side(
    random: np.random.Generator, name: str, faster: float = 1.0, host: str = "h", best: float = 0.0, **machine: float
) -> pd.DataFrame:
    rows = []
    for number in range(12):
        steps, kernels, before = planted(random, **machine)  # type: ignore[arg-type]
        found = at_reference(steps - math.log(faster), kernels, before, best, batch_size=64)
        found |= {"reference_kernel": "memory", "best_reference_memory_ms": 1e3 * math.exp(best)}  # type: ignore[dict-item]
        rates = (64 * faster / np.exp(np.median(steps, axis=0))).tolist()
        ends = dict(zip(("examples_per_second_low", "examples_per_second_high"), mean_interval(rates), strict=True))
        about = {"run_id": f"{name}{number}", "family": "fc", "outcome": "ok", "device": "cpu", "environment_id": host}
        about |= {"sweep_id": name, "session_id": name, "host": host, "source": "measured", "protocol_id": "p"}
        place = {"model.nodes": 2.0 ** (number % 6), "batch_size": 2.0 ** (number // 6), "processes": 5.0}
        rate = {"examples_per_second": float(np.exp(np.mean(np.log(rates))))} | ends
        time = {"start_time": pd.Timestamp("2026-01-01") + pd.Timedelta(days=int(name == "b"), minutes=number)}
        rows.append(about | place | rate | time | found)
    return pd.DataFrame(rows)


@depth(5, 100)
@pytest.mark.parametrize(
    ("first", "second", "verdict", "least"),
    [
        ({"slow": 0.15}, {}, SAME, 0.95),
        ({"slow": 0.15, "faster": 1.05}, {}, "A better", 0.8),
        ({"slow": 0.15, "slope": 0.4}, {"slope": 0.4}, SAME, 0.95),
        ({"own": 0.15}, {}, SAME, 0.95),  # what slows its own kernel does not win
        ({"best": 0.15}, {}, SAME, 0.95),  # its ceilings were measured on a busy minute
        ({"slow": 0.15}, {"host": "another"}, "no verdict", 0.95),
    ],
)
def test_sessions_are_compared_at_one_speed_of_one_machine(
    first: dict[str, float], second: dict[str, float], verdict: str, least: float, draws: int
) -> None:
    said = []
    for seed in range(draws):
        random = np.random.default_rng(seed)
        cells = compare_points(side(random, "a", **first), side(random, "b", **second))  # type: ignore[arg-type]
        said.append(cells.families["verdict"].iloc[0])
    assert said.count(verdict) >= math.floor(least * draws)
