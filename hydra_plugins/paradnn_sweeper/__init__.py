"""Hydra's door to ParaDnn's sweeps. Hydra imports this at every start, so it stays light. The
sweeper expands the command line into a plan of points, all of which the task in this process gets
at once: it pays the framework's import once, and other drivers, on whichever hosts, may take points
of the same sweep meanwhile.
"""

from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

__all__ = ["ParadnnFamilies", "ParadnnSweeper"]


class ParadnnFamilies(SearchPathPlugin):
    """Every family is an option of `model`, without a file."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra's call before it looks for any configuration."""
        from paradnn.config.groups import store_options

        store_options()


class ParadnnSweeper(Sweeper):
    """Plans every point before the first is measured, so that a mistake costs nothing."""

    def __init__(self, params: dict[str, str] | None = None, searches: bool = True) -> None:
        self._params = params or {}
        self._searches = searches

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Hydra's call before `sweep`."""
        self._context = hydra_context
        self._task = task_function
        self._config = config

    def sweep(self, arguments: list[str]) -> Any:
        """Call the task once, with the sweep's settings and its whole plan; `searches`: of
        batch_size=largest.
        """
        from paradnn.config.tasks import plan_sweep

        loader = self._context.config_loader
        return self._task(plan_sweep(loader, self._config, arguments, self._params, self._searches))
