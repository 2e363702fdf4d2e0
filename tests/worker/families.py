"""A small model of each family, and a short point, for tests that run real steps."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

BATCH = 8
RMSPROP = {"name": "rmsprop", "learning_rate": 0.01, "decay": 0.9, "momentum": 0.9, "epsilon": 1.0}
TABLES = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text())
MODELS, IMAGES, SMALL = (TABLES[key] for key in ("families", "images", "engines"))

#: A training step of one of them, measured for no longer than it takes.
PROTOCOL: dict[str, Any] = {
    "min_seconds": 0.0,
    "min_blocks": 10,
    "max_seconds": 5.0,
    "block_seconds": 0.0,
}
PROTOCOL |= {"warmup_seconds": 0.0, "profile": False, "keep_trace": False}
POINT: dict[str, Any] = {
    "model": MODELS["fc"],
    "framework": {"name": "tensorflow"},
    "batch_size": BATCH,
    "seed": 0,
}
POINT |= {"precision": "float32", "compile": "graph", "mode": "train", "measure": PROTOCOL}
POINT |= {
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "platform": {"name": "cpu", "threads": None, "index": 0},
}


def measure(
    pool: Any, point: dict[str, Any], framework: str = "tensorflow", seconds: float = 200
) -> Any:
    """The result of a point with these keys beside those of `POINT`; of its protocol too those
    alone that differ.
    """
    from paradnn.session.workers import Limits, WorkerKey

    protocol = POINT["measure"] | point.get("measure", {})
    key = WorkerKey(sys.executable, framework, None, "cpu", ())
    return pool.measure(
        key, POINT | point | {"measure": protocol}, Limits(seconds, None), lambda phase: None
    )


def run_module(module: str, framework: str, arguments: Sequence[str], folder: Path) -> str:
    """What a module of these tests prints as a process of its own, whose caches stay in `folder`."""
    from paradnn.session.workers import WorkerKey

    environ = {
        **WorkerKey(sys.executable, framework, None, "cpu", ()).environ(),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    command = [sys.executable, "-m", f"tests.worker.{module}", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
