"""A small model of each family, and a short point, for tests that run real steps."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BATCH = 8
RMSPROP = {"name": "rmsprop", "learning_rate": 0.01, "decay": 0.9, "momentum": 0.9, "epsilon": 1.0}

_CNN = {"blocks": [1, 1, 1, 1], "filters": 8, "image_size": 64, "output_size": 10}
_RNN = {"layers": 1, "embedding_size": 32, "sequence_length": 12, "vocab_size": 40}
#: One small model of each family.
MODELS: dict[str, dict[str, Any]] = {
    "fc": {"name": "fc", "layers": 2, "nodes": 64, "input_size": 50, "output_size": 10},
    "residual": {"name": "residual", **_CNN},
    "bottleneck": {"name": "bottleneck", **_CNN},
    "rnn": {"name": "rnn", **_RNN},
    "lstm": {"name": "lstm", **_RNN, "layers": 2},
    "gru": {"name": "gru", **_RNN},
    "transformer": {
        "name": "transformer",
        "layers": 1,
        "width": 32,
        "heads": 2,
        "feed_forward": 64,
        "sequence_length": 12,
        "vocab_size": 40,
        "dropout": 0.0,
        "label_smoothing": 0.1,
    },
    "gpt": {
        "name": "gpt",
        "layers": 2,
        "width": 32,
        "heads": 4,
        "sequence_length": 12,
        "vocab_size": 40,
    },
    "bert": {
        "name": "bert",
        "layers": 1,
        "width": 32,
        "heads": 2,
        "feed_forward": 48,
        "sequence_length": 12,
        "vocab_size": 40,
        "dropout": 0.0,
    },
    "vit": {
        "name": "vit",
        "layers": 2,
        "width": 32,
        "heads": 2,
        "patch": 8,
        "image_size": 32,
        "output_size": 10,
    },
}


def _image_model(name: str, image_size: int, **options: Any) -> dict[str, Any]:
    return {"name": name, "image_size": image_size, "output_size": 10, **options}


#: Image models by name. The residual models have even image sizes: if a stride of 2 does not divide
#: the size, the profiler only estimates a gradient.
IMAGES: dict[str, dict[str, Any]] = {
    "resnet50": _image_model("resnet50", 40),
    "densenet121": _image_model("densenet121", 44),
    "mobilenet": _image_model("mobilenet", 38, alpha=0.5),
    "squeezenet": _image_model("squeezenet", 40),
    "alexnet": _image_model("alexnet", 67),
    "vgg16": _image_model("vgg16", 32),
    "vgg19": _image_model("vgg19", 32),
    "inception_v3": _image_model("inception_v3", 75),
    "xception": _image_model("xception", 71),
    "googlenet": _image_model("googlenet", 40),
    "retinanet": _image_model("retinanet", 72, output_size=5),
    "residual": _image_model("residual", 64, blocks=[1, 2, 1, 1], filters=4, output_size=7),
    "bottleneck": _image_model("bottleneck", 64, blocks=[2, 1, 1, 2], filters=4, output_size=7),
    "resnet56": _image_model("residual", 32, blocks=[9, 9, 9], filters=16),
}

_TRANSFORMER = {"layers": 1, "width": 32, "heads": 2, "sequence_length": 8, "vocab_size": 50}
#: Options that make a model small for engines, by family. `vit` has an operation that ONNX lacks.
SMALL: dict[str, dict[str, Any]] = {
    "fc": {"layers": 2, "nodes": 256, "input_size": 64, "output_size": 10},
    "residual": {"filters": 4, "image_size": 32, "output_size": 10},
    "bottleneck": {"filters": 4, "image_size": 32, "output_size": 10},
    "rnn": {"embedding_size": 16},
    "lstm": {"embedding_size": 16},
    "gru": {"embedding_size": 16},
    "transformer": _TRANSFORMER,
    "gpt": _TRANSFORMER,
    "vit": {
        "layers": 1,
        "width": 32,
        "heads": 2,
        "image_size": 32,
        "patch": 8,
        "output_size": 10,
    },
}

#: Protocol of the shortest possible measurement of a training step.
PROTOCOL: dict[str, Any] = {
    "min_seconds": 0.0,
    "min_blocks": 10,
    "max_seconds": 5.0,
    "block_seconds": 0.0,
    "warmup_seconds": 0.0,
    "profile": False,
    "keep_trace": False,
}
POINT: dict[str, Any] = {
    "model": MODELS["fc"],
    "framework": {"name": "tensorflow"},
    "batch_size": BATCH,
    "seed": 0,
    "precision": "float32",
    "compile": "graph",
    "mode": "train",
    "measure": PROTOCOL,
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "platform": {"name": "cpu", "threads": None, "index": 0},
}


def measure(
    pool: Any, point: dict[str, Any], framework: str = "tensorflow", seconds: float = 200
) -> Any:
    """Measure a point.

    Args:
        pool: Worker pool that measures the point.
        point: Overrides of `POINT`; its `measure` overrides `PROTOCOL`.
        framework: Framework of the worker.
        seconds: Time limit of the point in seconds.
    """
    from paradnn.session.workers import Limits, WorkerKey

    protocol = POINT["measure"] | point.get("measure", {})
    key = WorkerKey(sys.executable, framework, None, "cpu", ())
    return pool.measure(
        key, POINT | point | {"measure": protocol}, Limits(seconds, None), lambda phase: None
    )


def run_module(module: str, framework: str, arguments: Sequence[str], folder: Path) -> str:
    """Run the module `tests.worker.MODULE` as a separate process and return its output.

    The process runs in `folder`, so its caches stay there. Fails the test if the process fails.
    """
    from paradnn.session.workers import WorkerKey

    environ = {
        **WorkerKey(sys.executable, framework, None, "cpu", ()).environ(),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    command = [sys.executable, "-m", f"tests.worker.{module}", *arguments]
    completed = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout
