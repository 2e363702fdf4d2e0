"""Hydra's door to ParaDnn's sweeps. Hydra imports this at every start, so it stays light. The sweeper expands the
command line into a plan of points and hands it to the launcher as tasks of many points each, so that a task pays the
framework's import once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

__all__ = ["ParadnnFamilies", "ParadnnPlanner", "ParadnnSweeper"]


class ParadnnFamilies(SearchPathPlugin):
    """Every family is an option of `model`, without a file."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra's call before it looks for any configuration."""
        from paradnn.config.groups import store_options

        store_options()


class ParadnnSweeper(Sweeper):
    """Plans every point before the first is measured, so that a mistake costs nothing."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self._params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `sweep`."""
        self._context = hydra_context
        self._config = config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Plan the points and have the launcher measure them."""
        from paradnn.launch.submit import sweep_with

        def launch(tasks: Sequence[Sequence[str]]) -> Sequence[Any]:
            return self._launcher.launch(tasks, initial_job_idx=0)

        return sweep_with(launch, self._context.config_loader, self._config, arguments, self._params)


class ParadnnPlanner(ParadnnSweeper):
    """Plans every point, and hands the whole plan to the task in this process: nothing is launched anywhere."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `sweep`."""
        self._context = hydra_context
        self._config = config
        self._task = task_function

    def sweep(self, arguments: list[str]) -> Any:
        """Call the task once, with the configuration of the sweep's settings."""
        from paradnn.launch.submit import plan_with

        return plan_with(self._task, self._context.config_loader, self._config, arguments, self._params)
