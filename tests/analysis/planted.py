"""Frames with planted effects and the columns of a loaded store."""

from typing import Any

import numpy as np
import pandas as pd

__all__ = ["BATCH", "POINTS", "ROW", "SIZE", "grid", "runs", "side"]


def grid(
    nodes: tuple[int, ...] = (64, 256, 1024, 4096),
    layers: tuple[int, ...] = (4, 8, 16, 32),
    batches: tuple[int, ...] = (64, 256, 1024, 4096),
) -> pd.DataFrame:
    """Return a full factorial of fully connected models, one point per row."""
    index = pd.MultiIndex.from_product(
        [nodes, layers, batches], names=["model.nodes", "model.layers", "batch_size"]
    )
    return index.to_frame(index=False).astype("Int64")


#: The full factorial with the default levels.
POINTS = grid()
#: Two columns of POINTS: nodes per layer and batch size.
SIZE, BATCH = (POINTS[name].to_numpy(dtype=float) for name in ("model.nodes", "batch_size"))


#: Columns of every run, unless a test overrides them.
ROW: dict[str, Any] = {
    "family": "fc",
    "device": "Test CPU",
    "outcome": "ok",
    "platform.name": "cpu",
    "precision": "float32",
    "compile": "graph",
    "mode": "train",
    "environment_id": "env-a",
    "protocol_id": "proto",
    "schema_version": "1",
}


def runs(points: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return the points as successful runs in one environment.

    `columns` extend and override the default columns in ROW.
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
    """Return runs of the platform `name` with a speed per point in examples per second.

    All sides belong to one sweep and alternate in time.
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
