"""Frames with a known truth, in the columns that the store gives."""

from typing import Any

import numpy as np
import pandas as pd

from tests.analysis.conftest import TABLES

__all__ = ["BATCH", "POINTS", "ROW", "SIZE", "grid", "runs", "side"]


def grid(
    nodes: tuple[int, ...] = (64, 256, 1024, 4096),
    layers: tuple[int, ...] = (4, 8, 16, 32),
    batches: tuple[int, ...] = (64, 256, 1024, 4096),
) -> pd.DataFrame:
    """Hyperparameters of a factorial of fully connected models, one row a point."""
    index = pd.MultiIndex.from_product(
        [nodes, layers, batches], names=["model.nodes", "model.layers", "batch_size"]
    )
    return index.to_frame(index=False).astype("Int64")


#: The whole factorial, and two of its columns as numbers.
POINTS = grid()
SIZE, BATCH = (POINTS[name].to_numpy(dtype=float) for name in ("model.nodes", "batch_size"))


#: What every run has, where a test says nothing else.
ROW: dict[str, Any] = TABLES["row"]


def runs(points: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Points as ok runs of one environment; `columns` are added, or replace what is there by
    default.
    """
    count = len(points)
    frame = points.assign(**{**ROW, **columns})
    names = [
        name
        for name in frame
        if str(name).startswith("model.")
        or name in ("batch_size", "precision", "compile", "devices")
    ]
    label = frame[names].astype("string").agg("-".join, axis=1)
    prefix = frame["platform.name"].astype("string") + frame["device"].astype("string")
    frame["point_id"] = prefix + label
    frame["run_id"] = (
        prefix + label + frame["environment_id"].astype("string") + [str(i) for i in range(count)]
    )
    return frame.reset_index(drop=True)


def side(name: str, points: pd.DataFrame, speed: np.ndarray, **columns: Any) -> pd.DataFrame:
    """Runs of one platform, called `name`, at a given speed in examples per second; all sides in
    one sweep, in turn.
    """
    return runs(
        points,
        **{
            "platform.name": name,
            "device": f"Test {name}",
            "environment_id": f"env-{name}",
            "sweep_id": "sweep",
            "start_time": pd.to_datetime(np.arange(len(points)), unit="m", utc=True),
            "examples_per_second": speed,
            **columns,
        },
    )
