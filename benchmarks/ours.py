"""ParaDnn's program in comparisons of programs that take turns.

It builds and runs the worker's step as `paradnn.worker.point` does, for a family
(`benchmarks.fidelity`) or for messages such as "tcp latency 64" (`channel`).
"""

import argparse

from benchmarks.turns import Step, take_part
from paradnn.config.identity import point_request
from paradnn.config.point import Point
from paradnn.config.reading import read_point
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


def point(name: str, framework: str = "tensorflow", platform: str = "cpu") -> Point:
    """Return the point of a family or of messages, with all defaults.

    For messages, the transport determines the framework.
    """
    if name not in POINTS:
        transport, pattern, size = name.split()
        given = {"name": "channel", "transport": transport, "pattern": pattern, "bytes": int(size)}
        return read_point({"model": given, "batch_size": 1, "mode": "inference"})
    model, batch = POINTS[name]
    chosen = {"framework": {"name": framework}, "platform": {"name": platform}}
    return read_point({"model": {"name": name, **model}, "batch_size": batch, **chosen})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--platform", default="cpu")
    given, _ = parser.parse_known_args()
    framework = frameworks.load(given.framework)
    from paradnn.families import build
    from paradnn.worker.step import synthetic_batch
    from paradnn.workloads.channel.processes import Processes

    kept: list[Processes] = []  # the pipes to the other processes close when nothing refers to them

    def make(name: str) -> Step:
        request = point_request(point(name, given.framework, given.platform))
        if name not in POINTS:
            kept.append(Processes(request))
            step = kept[-1].step()
            return Step(lambda steps: step.run(steps) or 0.0, ())
        from benchmarks.plain_models import first_weights, shapes

        framework.open_device(request["platform"])
        with framework.scope():
            workload = build(request["model"])
        workload.model.set_weights(first_weights(workload.model))
        batch = synthetic_batch(workload, request["batch_size"], request["seed"])
        return Step(framework.make_step(workload, batch, request).run, shapes(workload.model))

    take_part(make, parser)


if __name__ == "__main__":
    main()
