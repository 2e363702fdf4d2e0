"""Which points can share a worker, and the environment variables that the worker is started with."""

from __future__ import annotations

import os
from dataclasses import dataclass

from paradnn.config.point import Point
from paradnn.platform.stack import interpreter_of

__all__ = ["WorkerKey"]

#: Variables that bound the threads of an operation, in one framework or another; NPROC is that of XLA's CPU client.
_THREADS = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NPROC",
)


@dataclass(frozen=True)
class WorkerKey:
    """What is read when a framework is imported: points that differ in it need different workers."""

    python: str
    framework: str
    threads: int | None
    platform: str
    env: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, point: Point) -> WorkerKey:
        """The key of the worker that can measure `point`."""
        return cls(
            python=interpreter_of(point.software),
            framework=point.framework.name,
            threads=point.platform.threads,
            platform=point.platform.name,
            env=tuple(sorted(point.framework.env.items())),
        )

    def environ(self) -> dict[str, str]:
        """The worker's environment: the driver's own, with what the key says, without what opens the store."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        return {"TF_CPP_MIN_LOG_LEVEL": "2", **own, **self.variables()}

    def variables(self) -> dict[str, str]:
        """What the key says, on any host."""
        environ = {"KERAS_BACKEND": self.framework, "PYTHONUNBUFFERED": "1"}
        if self.platform == "cpu":
            environ["CUDA_VISIBLE_DEVICES"] = "-1"
            environ |= {"JAX_PLATFORMS": "cpu", "KERAS_TORCH_DEVICE": "cpu"}
        else:
            # Without it JAX takes most of a device's memory at once, and no peak can be measured.
            environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if self.threads:
            environ |= dict.fromkeys(_THREADS, str(self.threads))
        return environ | dict(self.env)
