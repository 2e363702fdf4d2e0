"""Hydra's launcher for Apache Spark: the tasks of a sweep as those of one Spark job, each in a process of its own.

Spark runs a task again, on another executor, when its executor is lost. For points on several hosts each task of the
sweep is a barrier stage: one of Spark's tasks measures, the others serve it with processes on their hosts."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from paradnn.execution.hosts import HOSTS, KEY, host_and_port, start_server
from paradnn.sweep.scheduler import ATTEMPT

#: What a measurement needs of Spark: no process that served another task before, no copy of a task that seems slow.
_MEASURING = {
    "spark.python.worker.reuse": "false",
    "spark.speculation": "false",
    "spark.locality.wait": "0",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Seconds between two looks whether there are executors enough for a barrier stage, and how many such looks.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "2",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "60",
}
#: A task of the sweep: its number and overrides.
Job = tuple[int, list[str]]


class SparkLauncher(Launcher):
    """`master` is Spark's address of a cluster, `cores` what a task takes of its executor, `conf` any other property. A
    task that fails, or whose executor is lost, is run again up to `retries` times. Points of a task may have as many
    `hosts`: executors that it takes `cores` of."""

    def __init__(self, master: str, cores: int, retries: int, hosts: int, conf: Mapping[str, Any]) -> None:
        self._hosts, self._retries = hosts, retries
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
        """Run one Spark job of as many tasks, or one for each; executors are given back at the end, whatever it is."""
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        jobs = [(initial_job_idx + place, list(overrides)) for place, overrides in enumerate(job_overrides)]
        run = partial(_run, self._context, self._task, self._config, Singleton.get_state())
        from pyspark import SparkConf, SparkContext  # an extra

        with SparkContext(conf=SparkConf().setAll(list(self._properties.items()))) as spark:
            spark.setLogLevel("ERROR")
            if self._hosts > 1:
                return self._run_together(spark, run, jobs)
            returned: list[JobReturn] = spark.parallelize(jobs, len(jobs)).map(run).collect()
        return returned

    def _run_together(self, spark: Any, run: Callable[[Job], JobReturn], jobs: Sequence[Job]) -> list[JobReturn]:
        """Each task on several hosts; as many at the same time as Spark finds room for."""
        from py4j.protocol import Py4JJavaError

        key = secrets.token_hex()

        def collect(job: Job) -> JobReturn:
            places = spark.parallelize(range(self._hosts), self._hosts).barrier()
            task = places.mapPartitions(partial(_run_on_first, run, job, key))
            for attempt in range(self._retries):  # Spark itself runs no barrier stage again that gives results
                spark.setLocalProperty(ATTEMPT, str(attempt))
                with contextlib.suppress(Py4JJavaError):
                    return _only(task)
            spark.setLocalProperty(ATTEMPT, str(self._retries))
            return _only(task)

        with ThreadPoolExecutor(len(jobs)) as threads:
            return list(threads.map(collect, jobs))


def _only(task: Any) -> JobReturn:
    [returned] = task.collect()
    return cast("JobReturn", returned)


def _run_on_first(run: Callable[[Job], JobReturn], job: Job, key: str, _: Iterable[int]) -> Iterator[JobReturn]:
    """On the first of its hosts a task of the sweep, on every other a server for it."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    place = context.partitionId()
    host = host_and_port(context.getTaskInfos()[place].address)[0]
    if place == 0:
        os.environ[HOSTS], os.environ[KEY] = ",".join(context.allGather("")[1:]), key
        yield run(job)
        context.barrier()
        return
    server, address = start_server(host, key)
    with server:
        context.allGather(address)
        context.barrier()


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
