"""What EIE's file of claims says of its own measurements: Table IV of the paper, microseconds of an example."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.claims.evaluate import Data, judge
from analysis.claims.load import load_claims
from tests.analysis.planted import runs
from tests.conftest import ROOT

#: A Core i7-5930K: (batch, storage) -> the nine layers.
MICROSECONDS = {
    (1, "dense"): (7516.2, 6187.1, 1134.9, 35022.8, 5372.8, 774.2, 605.0, 1361.4, 470.5),
    (1, "sparse"): (3066.5, 1282.1, 890.5, 3774.3, 545.1, 777.3, 261.2, 437.4, 260.0),
    (64, "dense"): (318.4, 188.9, 45.8, 1056.0, 188.3, 45.7, 28.7, 69.0, 28.8),
    (64, "sparse"): (1417.6, 682.1, 407.7, 1780.3, 274.9, 363.1, 117.7, 176.4, 107.4),
}
INPUTS = (9216, 4096, 4096, 25088, 4096, 4096, 4096, 600, 1201)
NODES = (4096, 4096, 1000, 4096, 4096, 1000, 600, 8791, 2400)
DENSITIES = (0.09, 0.09, 0.25, 0.04, 0.04, 0.23, 0.10, 0.11, 0.10)


def measured(times: dict[tuple[int, str], tuple[float, ...]]) -> pd.DataFrame:
    points = [
        pd.DataFrame(
            {
                "batch_size": batch,
                "model.storage": storage,
                "model.input_size": INPUTS,
                "model.nodes": NODES,
                "model.density": DENSITIES,
                "speed": 1e6 / np.array(each),
            }
        )
        for (batch, storage), each in times.items()
    ]
    table = pd.concat(points, ignore_index=True)
    # In random order in one session, so that the sides are comparable.
    start = pd.to_datetime(np.arange(len(table)) // 2, unit="m", utc=True)
    shared = {
        "sweep_id": "sweep",
        "sweep_order": "random",
        "start_time": start,
        "mode": "inference",
        "family": "sparse_fc",
    }
    return runs(table.drop(columns="speed"), examples_per_second=table["speed"].to_numpy(), **shared)


def test_eie_counts_support_its_claims_and_the_contrary_refutes_them() -> None:
    claims = load_claims(ROOT / "analysis" / "claims" / "eie.yaml")
    verdicts = judge(claims, Data(measured(MICROSECONDS)))
    assert [verdict.answer for verdict in verdicts] == ["supported", "supported"]
    shares = [verdict.findings[0] for verdict in verdicts]
    assert [(round(found.value * 9), found.points) for found in shares] == [(8, 9), (0, 9)]
    exchanged = {(65 - batch, storage): times for (batch, storage), times in MICROSECONDS.items()}
    assert [verdict.answer for verdict in judge(claims, Data(measured(exchanged)))] == ["refuted", "refuted"]
