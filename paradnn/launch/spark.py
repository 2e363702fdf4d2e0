"""Hydra's launcher for Apache Spark: the tasks of a sweep as those of one Spark job, each in a process of its own.

Spark runs a task again, on another executor, when its executor is lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

#: What a measurement needs of Spark: no process that served another task before, no copy of a task that seems slow.
_MEASURING = {
    "spark.python.worker.reuse": "false",
    "spark.speculation": "false",
    "spark.locality.wait": "0",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: A task of the sweep: its number and overrides.
Job = tuple[int, list[str]]


class SparkLauncher(Launcher):
    """`master` is Spark's address of a cluster, `cores` what a task takes of its executor, `conf` any other property. A
    task that fails, or whose executor is lost, is run again up to `retries` times."""

    def __init__(self, master: str, cores: int, retries: int, conf: Mapping[str, Any]) -> None:
        self._properties = {
            **_MEASURING,
            "spark.master": master,
            "spark.app.name": "paradnn",
            "spark.task.cpus": str(cores),
            "spark.task.maxFailures": str(retries + 1),
            **{str(name): str(value) for name, value in conf.items()},
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `launch`."""
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one Spark job of as many tasks; executors are given back at the end, whatever it is."""
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        jobs = [(initial_job_idx + place, list(overrides)) for place, overrides in enumerate(job_overrides)]
        run = partial(_run, self._context, self._task, self._config, Singleton.get_state())
        from pyspark import SparkConf, SparkContext  # an extra

        with SparkContext(conf=SparkConf().setAll(list(self._properties.items()))) as spark:
            spark.setLogLevel("ERROR")
            returned: list[JobReturn] = spark.parallelize(jobs, len(jobs)).map(run).collect()
        return returned


def _run(context: HydraContext, task: TaskFunction, config: DictConfig, state: Any, job: Job) -> JobReturn:
    number, overrides = job
    setup_globals()
    Singleton.set_state(state)
    own = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(own):
        own.hydra.job.id = f"{own.hydra.job.name}_{number}"
        own.hydra.job.num = number
    HydraConfig.instance().set_config(own)
    Path(str(own.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    return run_job(task, own, "hydra.sweep.dir", "hydra.sweep.subdir", context)
