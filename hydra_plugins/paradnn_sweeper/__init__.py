"""Hydra plug-ins: the sweeper that plans ParaDnn's multiruns, and the search path of families.

Hydra imports this module at every start, so it imports nothing heavy. The sweeper expands the
command line into a plan of points. One task in this process gets the whole plan, so the
framework is imported once. Drivers on other hosts may measure points of the same sweep.
"""

from collections.abc import Mapping
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

__all__ = ["ParadnnFamilies", "ParadnnSweeper"]


class ParadnnFamilies(SearchPathPlugin):
    """Makes every model family an option of `model`, without a configuration file."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Register the families; Hydra calls this before it looks for a configuration."""
        from paradnn.config.groups import register_options

        register_options()


class ParadnnSweeper(Sweeper):
    """Checks every point of a multirun before the first one is measured.

    Args:
        params: Axes from a configuration file, as in Hydra's basic sweeper. The command line
            overrides them.
        searches: Whether `batch_size=largest` starts a search. `paradnn.plan` rejects it.
        drops_invalid: Whether to drop invalid points instead of rejecting the sweep.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        searches: bool = True,
        drops_invalid: bool = False,
    ) -> None:
        self._params = params or {}
        self._searches = searches
        self._drops_invalid = drops_invalid

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what `sweep` needs; Hydra calls this first."""
        self._context = hydra_context
        self._task = task_function
        self._config = config

    def sweep(self, arguments: list[str]) -> Any:
        """Plan all points of `arguments` and call the task once with the plan.

        Raises:
            ConfigError: `hydra.sweeper.params` is not a mapping, or a point is invalid.
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
        loader = self._context.config_loader
        plan = plan_sweep(
            loader,
            self._config,
            arguments,
            self._params,
            allows_search=self._searches,
            drops_invalid=self._drops_invalid,
        )
        return self._task(plan)
