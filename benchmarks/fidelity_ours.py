"""ParaDnn's side of `benchmarks.fidelity`: the worker's own step, made and run as `paradnn.worker.point` does."""

from __future__ import annotations

import argparse

from benchmarks.turns import Step, take_part
from paradnn.config.identity import request_of
from paradnn.config.point import read_point
from paradnn.core.versions import FRAMEWORKS
from paradnn.worker import frameworks

#: The points of the families, the same as `benchmarks.plain_models.MODELS`.
POINTS = {
    "fc": ({"layers": 4, "nodes": 512, "input_size": 2000, "output_size": 200}, 128),
    "residual": ({"blocks": 1, "filters": 16, "image_size": 64, "output_size": 500}, 16),
    "bottleneck": ({"blocks": 1, "filters": 16, "image_size": 64, "output_size": 500}, 16),
    "rnn": ({"embedding_size": 100}, 64),
    "lstm": ({"embedding_size": 200}, 64),
    "gru": ({"embedding_size": 200}, 64),
    "resnet50": ({}, 4),
}


def point(framework: str, platform: str, name: str):
    """The point of one cell, with every default that a user's would have."""
    model, batch = POINTS[name]
    return read_point(
        {
            "model": {"name": name, **model},
            "batch_size": batch,
            "framework": {"name": framework},
            "platform": {"name": platform},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("platform")
    given, _ = parser.parse_known_args()
    framework = frameworks.load(given.framework)
    from benchmarks.plain_models import first_weights, shapes
    from paradnn.families import build
    from paradnn.worker.step import synthetic_batch

    def make(name: str) -> Step:
        request = request_of(point(given.framework, given.platform, name))
        framework.open_device(request["platform"])
        with framework.scope():
            workload = build(request["model"])
        workload.model.set_weights(first_weights(workload.model))
        batch = synthetic_batch(workload, request["batch_size"], request["seed"])
        step = framework.make_step(workload, batch, request)
        return Step(step.run, shapes(workload.model))

    take_part(make, parser)


if __name__ == "__main__":
    main()
