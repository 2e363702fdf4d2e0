"""Hydra plug-ins: the sweeper that plans ParaDnn's multiruns, and the search path of families.

Hydra imports this module at every start, so it imports nothing heavy. The sweeper expands the
command line into a plan of points. One task in this process gets the whole plan, so the
framework is imported once. With a launcher the task starts drivers, which share the points.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

__all__ = ["ParadnnFamilies", "ParadnnSweeper"]


class ParadnnFamilies(SearchPathPlugin):
    """Hydra plug-in that makes every model family an option of `model`, without a file."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Register the families; Hydra calls this before it looks for a configuration."""
        from paradnn.config.groups import register_options

        register_options()


class ParadnnSweeper(Sweeper):
    """Hydra sweeper that checks every point of a multirun before the first one is measured.

    A point is one combination of the values of the axes, which are the keys with several values.

    Args:
        params: Axes from a configuration file, as key -> values, as in Hydra's basic sweeper. The
            command line overrides them. None for no such axes.
        searches: Whether `batch_size=largest` starts a search. `paradnn.plan` rejects it.
        drops_invalid: Whether to drop invalid points instead of rejecting the sweep.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        searches: bool = True,
        drops_invalid: bool = False,
    ) -> None:
        self._params = params or {}
        self._searches = searches
        self._drops_invalid = drops_invalid

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Store the arguments for `sweep`. Hydra calls this method first."""
        self._context = hydra_context
        self._task = task_function
        self._config = config

    def sweep(self, arguments: list[str]) -> Any:
        """Plan all points of a multirun, and call the task once with the plan.

        Args:
            arguments: The overrides of the command line.

        Returns:
            The result of the task.

        Raises:
            ConfigError: If `hydra.sweeper.params` is not a mapping, or a point is invalid.
        """
        from paradnn.config.tasks import plan_sweep
        from paradnn.core.errors import ConfigError

        if not isinstance(self._params, Mapping):
            raise ConfigError(
                "hydra.sweeper.params",
                self._params,
                "is not a mapping of axes",
                "write hydra.sweeper.params={batch_size:'64,128'}",
            )
        launch = None
        if self._searches and self._launcher_name != "basic":
            launch = self._launch
        plan = plan_sweep(
            self._context.config_loader,
            self._config,
            arguments,
            self._params,
            allows_search=self._searches,
            drops_invalid=self._drops_invalid,
            launch=launch,
        )
        return self._task(plan)

    @property
    def _launcher_name(self) -> str:
        return str(self._config.hydra.runtime.choices["hydra/launcher"])

    def _launch(
        self, task: Callable[[DictConfig], Any], folder: Path, jobs: int
    ) -> Sequence[JobReturn]:
        """Call `task` in jobs of the configured launcher, and wait for their end.

        Args:
            task: The task, which must be picklable. Its argument is the configuration of the job,
                in which `hydra.job.num` is the number of the job.
            folder: Folder for files of the launcher, unless `hydra.sweep.dir` names another.
            jobs: Number of jobs.
        """
        config = copy.deepcopy(self._config)
        overrides = []
        if config.hydra.sweep.dir == ".":
            # Hydra composes the configuration of each job again, from its overrides.
            quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
            overrides.append(f"hydra.sweep.dir='{quoted}'")
            with open_dict(config):
                config.hydra.sweep.dir = str(folder)
        ray = config.hydra.launcher.get("ray")
        if ray is not None:
            with open_dict(config):
                if ray.init.get("address") or "RAY_ADDRESS" in os.environ:
                    # The plug-in sets the memory of a new instance, which a cluster rejects.
                    ray.init.setdefault("object_store_memory", None)
                else:
                    # Otherwise Ray looks for the last cluster of this host, even if it is gone.
                    ray.init.address = "local"
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self._context, task_function=task, config=config
        )
        returns: Sequence[JobReturn] = launcher.launch([overrides] * jobs, initial_job_idx=0)
        return returns
