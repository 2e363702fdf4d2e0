(
    """Hydra's launchers for Slurm, Ray and joblib as ParaDnn's sweeps need them. Hydra imports this at every start.

Each is the published plugin, and adds two things: when `launch` returns or raises, none of its tasks runs any more; and
a plugin that is not installed is named with the command that installs it."""
    ""
)

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

__all__ = ["Joblib", "Ray", "Slurm"]


class _Published(Launcher):
    """A published launcher, imported when it is used."""

    _preset = _extra = _module = _name = ""

    def __init__(self, **params: Any) -> None:
        self._params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `launch`."""
        from paradnn.errors import ConfigError

        try:
            module = importlib.import_module(self._module)
        except ImportError as error:
            remedy = f"run python -m pip install 'paradnn[{self._extra}]'"
            raise ConfigError("hydra/launcher", self._preset, f"{error.name} is not installed", remedy) from None
        self._launcher: Launcher = getattr(module, self._name)(**self._params)
        self._launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        """Have every task measured."""
        try:
            return self._launcher.launch(job_overrides, initial_job_idx)
        except Exception:
            self._settle()
            raise

    def _settle(self) -> None:
        """Wait for the tasks that are left, or end them."""


class Slurm(_Published):
    """hydra-submitit-launcher. It gives up at the first job that was killed; this waits for the others."""

    _preset = _extra = "slurm"
    _module = "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
    _name = "SlurmLauncher"

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        """Submit one job array, wait for all of its jobs."""
        from submitit.slurm.slurm import SlurmJob

        from paradnn.launch.slurm import queue_watcher

        # submitit asks `sacct`, which tells nothing on a cluster without accounting and much later on others.
        SlurmJob.watcher = self._watcher = queue_watcher()
        return super().launch(job_overrides, initial_job_idx)

    def _settle(self) -> None:
        self._watcher.wait_for_all()


class Ray(_Published):
    """hydra-ray-launcher. Where one task is lost for good, those that still run are killed."""

    _preset, _extra = "ray_cluster", "ray"
    _module = "hydra_plugins.hydra_ray_launcher.ray_launcher"
    _name = "RayLauncher"

    def _settle(self) -> None:
        import ray

        ray.shutdown()


class Joblib(_Published):
    """hydra-joblib-launcher. A process that dies takes the others' pool with it."""

    _preset, _extra = "processes", "joblib"
    _module = "hydra_plugins.hydra_joblib_launcher.joblib_launcher"
    _name = "JoblibLauncher"

    def _settle(self) -> None:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(kill_workers=True)
