"""Latency over rate, of planted queues."""

from typing import Any

import numpy as np
import pandas as pd

from analysis import latency


def queue(rate: float, most: float = 1000.0, width: float = 1.01, batch: int = 1, **more: Any) -> dict[str, Any]:
    """One server with exponential times, M/M/1: all quantiles are proportional to 1 / (most - rate)."""
    latency = 1e3 * np.log(100) / (most - rate)
    return {
        "run_id": f"{batch}-{rate}",
        "family": "fc",
        "device": "A",
        "environment_id": "A",
        "mode": "inference",
        "scenario": "server",
        "server.rate": rate,
        "server.latency_ms": 15.0,
        "server.percentile": 99.0,
        "batch_size": batch,
        "outcome": "ok",
        "scheduled_queries_per_second": rate,
        "queries_per_second": rate,
        "latency_p50_ms": latency / 6.6,
        "latency_p99_ms": latency,
        "latency_p99_low_ms": latency / width,
        "latency_p99_high_ms": latency * width,
        **more,
    }


def test_policies_have_curves_of_their_own_and_it_is_said() -> None:
    rows = [
        queue(rate, most, batch=batch) for batch, most in ((1, 1000.0), (8, 4000.0)) for rate in (200.0, 500.0, 800.0)
    ]
    rows += [queue(990.0, batch=1, outcome="overload"), queue(3000.0, 4000.0, batch=8, peak_queries_per_second=3000.0)]
    rows += [queue(3500.0, 4000.0, batch=8, peak_queries_per_second=3500.0, **{"server.latency_ms": 30.0})]
    result = latency(pd.DataFrame(rows))
    text = result.text()
    assert "batch size 1: 5.76 ms at 200/s to 23 ms at 800/s; not served from 990/s on." in text
    assert "highest rate that held 15 ms at p99 3k/s; highest rate that held 30 ms at p99 3.5k/s." in text
    assert result.table["policy"].unique().tolist() == ["batch size 1", "batch size 8"]
    assert len(result.figure().axes) == 1
