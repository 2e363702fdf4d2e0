"""Latency as a function of the rate: planted queues with a known knee, and batching policies."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import latency
from analysis.analyses.latency import latency_curves
from tests.analysis.planted import ROW
from tests.analysis.rejected import assert_rejected


def queue(
    rate: float, most: float = 1000.0, width: float = 1.01, batch: int = 1, **more: Any
) -> dict[str, Any]:
    """Return a run of an M/M/1 queue with the capacity `most`, in queries per second.

    Its latency quantiles are proportional to 1 / (most - rate). `width` is the ratio of the upper
    end of the latency's interval to the latency.
    """
    latency = 1e3 * np.log(100) / (most - rate)
    settings = {"mode": "inference", "scenario": "server", "server.rate": rate, "batch_size": batch}
    bound = {"server.latency_ms": 15.0, "server.percentile": 99.0}
    rates = {
        "scheduled_queries_per_second": rate,
        "queries_per_second": rate,
        "latency_p50_ms": latency / 6.6,
    }
    times = {
        "latency_p99_ms": latency,
        "latency_p99_low_ms": latency / width,
        "latency_p99_high_ms": latency * width,
    }
    return {**ROW, "run_id": f"{batch}-{rate}", **settings, **bound, **rates, **times, **more}


def test_the_knee_of_a_queue_is_at_half_of_its_capacity() -> None:
    rates = np.arange(100.0, 1000, 100)
    (curve,) = latency_curves(pd.DataFrame([queue(rate) for rate in rates]))

    # The power, rate / latency, is proportional to rate x (1000 - rate). Relative to 1000^2 it is
    # 0.24 at 400 and 600, and 0.25 at 500. An interval of 1% separates these values.
    assert curve.knee == (500.0, 500.0, 500.0)

    rows = pd.DataFrame([queue(rate, width=1.03) for rate in rates])
    (wide,) = latency_curves(rows)

    assert wide.knee == (500.0, 400.0, 600.0)

    rows.loc[rows["server.rate"] == 500, "latency_p99_high_ms"] = np.nan
    assert latency_curves(rows)[0].knee == (500.0, 100.0, 900.0), (
        "without an upper end of its latency, the knee may be at any rate"
    )
    assert latency_curves(pd.DataFrame(map(queue, (50.0, 100.0, 200.0))))[0].knee is None, (
        "a knee needs rates on both sides"
    )


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        pytest.param(
            pd.DataFrame([queue(1.0)]).drop(columns="scheduled_queries_per_second"),
            "scenario=server",
            id="different scenario",
        ),
        pytest.param(
            pd.DataFrame([queue(1.0)])[["run_id", "outcome"]].assign(family=None),
            "no run with scenario=server has",
            id="no scheduled queries",
        ),
    ],
)
def test_runs_without_scheduled_queries_are_rejected(frame: pd.DataFrame, message: str) -> None:
    assert_rejected("latency", frame, message)


def test_each_batching_policy_has_a_separate_curve() -> None:
    rows = [
        queue(rate, most, batch=batch)
        for batch, most in ((1, 1000.0), (8, 4000.0))
        for rate in (200.0, 500.0, 800.0)
    ]
    rows += [
        queue(990.0, batch=1, outcome="overload"),
        queue(3000.0, 4000.0, batch=8, peak_queries_per_second=3000.0),
    ]
    rows += [
        queue(
            3500.0, 4000.0, batch=8, peak_queries_per_second=3500.0, **{"server.latency_ms": 30.0}
        )
    ]
    result = latency(pd.DataFrame(rows))
    text = result.text()

    assert (
        "5.76 ms at 200/s to 23 ms at 800/s; knee at 500/s (500/s to 500/s); not served from 990/s on."
        in text
    )
    assert (
        "highest rate that met 15 ms at p99: 3k/s; highest rate that met 30 ms at p99: 3.5k/s."
        in text
    )
    assert result.table["policy"].unique().tolist() == ["batch size 1", "batch size 8"]
    assert len(result.figure().axes) == 1
