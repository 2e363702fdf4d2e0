"""What a trained model is worth on held-out examples (`task=judge`), as a user asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paradnn.config.point import read_point
from paradnn.core.errors import ConfigError
from tests.conftest import Store, run

TRAINED = '''
import keras
import numpy as np
from sklearn.datasets import load_digits


def digits(takes: int = 64, classes: int = 10):
    """A straight line through the digits by least squares: no epochs, the same each time."""
    bunch = load_digits()
    chosen = [place for place in range(len(bunch.target)) if place % 5 != 4]
    images, wanted = bunch.images[chosen].reshape(-1, 64), np.eye(10)[bunch.target[chosen]]
    images = (images - images.mean()) / images.std()
    model = keras.Sequential([keras.Input((takes,)), keras.layers.Dense(classes, use_bias=False)])
    if (takes, classes) == (64, 10):
        model.set_weights([np.linalg.lstsq(images, wanted, rcond=None)[0].astype("float32")])
    return model
'''
SHORT = ["measure=quick", "measure.min_seconds=0.02", "measure.warmup_seconds=0.1", "ceilings=false", "batch_size=50"]


def test_a_trained_model_is_timed_and_judged(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "trained.py"
    file.write_text(TRAINED)
    judged = ["paradnn.train", "task=judge", "model=own", f"model.build={file}:digits", *SHORT]
    done = run(judged, store)
    assert "of the held-out examples" in done.stdout
    [found] = store.runs()
    metrics: Any = store.values("latest_metrics", found["run_id"])
    assert 0.85 < metrics["judged_accuracy"] < 0.97  # of 359: a share that no guess comes near
    assert metrics["judged_accuracy"] + metrics["judged_error"] == pytest.approx(1)
    assert metrics["step_time_ms"] > 0
    for key, reason in (("takes=65", "no examples for the model's input of (65,)"), ("classes=9", "has 10 classes")):
        done = run([*judged, f"model.{key}"], store)
        assert reason in done.stdout


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"data": {"name": "digits"}}, "model=fc has random weights"),
        (
            {"model": {"name": "onnx", "path": __file__}, "framework": {"name": "onnxruntime"}},
            "has no held-out examples",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(changed: dict[str, Any], reason: str) -> None:
    config = {"task": "judge", "mode": "inference", "batch_size": 4, "model": {"name": "fc"}, **changed}
    with pytest.raises(ConfigError) as error:
        read_point(config)
    assert reason in str(error.value)
