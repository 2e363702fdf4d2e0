"""`compare` corrects sessions for the speed of the machine, such as 15% slower in one session."""

import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.worlds import Store, plant
from paradnn.session.measured import mean_interval
from paradnn.session.reference import at_reference
from paradnn.statistics.sessions import family_slope
from tests.conftest import depth
from tests.session.test_reference import planted

SAME = "are equally fast within"
FASTER = "^precision=bfloat16 is .* faster"
UNDECIDED = "^undecided"


def side(
    random: np.random.Generator,
    name: str,
    faster: float = 1.0,
    host: str = "h",
    best: float = 0.0,
    **machine: float,
) -> pd.DataFrame:
    """Return twelve points of five processes each, corrected for the speed of the machine.

    Args:
        random: Source of the noise.
        name: Name of the side and of its sweep, "A" or "B".
        faster: Factor on the speed of the model.
        host: Name of the host.
        best: Logarithm of the best time of the reference kernel in seconds.
        **machine: Parameters of the planted machine, such as its slowness.
    """
    rows = []
    for _ in range(12):
        steps, kernels, before = planted(random, **machine)  # type: ignore[arg-type]
        found = at_reference(steps - math.log(faster), kernels, before, best, batch_size=64)
        rates = (64 * faster / np.exp(np.median(steps, axis=0))).tolist()
        low, high = mean_interval(rates)
        ends = {"examples_per_second_low": low, "examples_per_second_high": high}
        rows.append(found | ends | {"examples_per_second": float(np.exp(np.mean(np.log(rates))))})
    identity: dict[str, Any] = {
        "device": host,
        "environment_id": host,
        "host": host,
        "sweep_id": name,
        "processes": 5.0,
    }
    identity |= {"reference_kernel": "memory", "best_reference_memory_ms": 1e3 * math.exp(best)}
    hours = 24.0 * (name == "B") + np.arange(12)[:, None] / 60
    measured: dict[str, Any] = {
        str(key): values.to_numpy() for key, values in pd.DataFrame(rows).items()
    }
    return plant(
        name, np.zeros((12, 1)), hours, {"model.nodes": 6, "batch_size": 2}, **identity, **measured
    )


@depth(2, 100)
@pytest.mark.parametrize(
    ("first", "second", "verdict", "least_share"),
    [
        pytest.param({"slow": 0.15}, {}, SAME, 0.95, id="slow machine"),
        pytest.param(
            {"slow": 0.15, "faster": 1.05}, {}, FASTER, 0.8, id="slow machine, faster model"
        ),
        pytest.param(
            {"slow": 0.15, "slope": 0.4}, {"slope": 0.4}, SAME, 0.95, id="model with a slope of 0.4"
        ),
        # A side gains nothing by slowing its own kernel.
        pytest.param({"own": 0.15}, {}, SAME, 0.95, id="model slows the kernel"),
        pytest.param({"best": 0.15}, {}, SAME, 0.95, id="ceilings of a busy machine"),
        pytest.param({"slow": 0.15}, {"host": "another"}, UNDECIDED, 0.95, id="different hosts"),
    ],
)
def test_sessions_on_one_machine_are_compared_at_the_same_machine_speed(
    first: dict[str, float],
    second: dict[str, float],
    verdict: str,
    least_share: float,
    draws: int,
    tmp_path: Path,
    empty_database: Path,
) -> None:
    path = tmp_path / "mlflow.db"
    matches = 0
    shutil.copy(empty_database, path)
    store = Store(path)
    for seed in range(draws):
        random = np.random.default_rng(seed)
        a = side(random, "A", **first)  # type: ignore[arg-type]
        b = side(random, "B", **second)  # type: ignore[arg-type]
        store.plant(pd.concat([a, b]))
        text = store.result("compare", "precision=bfloat16", "precision=float32").text()
        matches += bool(re.search(verdict, text, re.MULTILINE))

    assert matches >= math.floor(least_share * draws)


def test_the_slope_of_a_family_ignores_unknown_machine_speeds() -> None:
    unknown = pd.DataFrame({"reference_slope_seen": [np.nan], "reference_slope_error": [np.nan]})
    assert family_slope(unknown) == (0.0, 0.0)

    partly_known = pd.DataFrame(
        {"reference_slope_seen": [0.4, 0.6, np.nan], "reference_slope_error": [0.1, 0.1, 0.1]}
    )
    assert family_slope(partly_known) == pytest.approx((0.5, 0.1))
