"""A standalone Spark cluster on this machine: a master and workers of one core each, on the loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pyspark

from tests.cluster.slurm import free_ports
from tests.processes import wait_for

_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")


class SparkCluster:
    """The cluster; `master` is its address."""

    def __init__(self, nodes: int = 2) -> None:
        assert shutil.which("java"), "Spark needs Java 17: apt-get install openjdk-17-jre-headless"
        self._folder = tempfile.TemporaryDirectory(prefix="spark-")
        [port] = free_ports(1)
        self.master = f"spark://127.0.0.1:{port}"
        self._daemons = [self._start("Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
        self.workers = [self.add_worker() for _ in range(nodes)]

    def add_worker(self) -> psutil.Popen:
        """One more node; its daemon."""
        place = tempfile.mkdtemp(dir=self._folder.name)
        given = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", place)
        daemon = self._start("Worker", *given, self.master)
        self._daemons.append(daemon)
        return daemon

    def power_off(self, worker: psutil.Popen) -> None:
        """Lose a node at once, with all that runs on it."""
        for process in [worker, *worker.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def stop(self) -> None:
        """End every process that was started here."""
        for daemon in self._daemons:
            with contextlib.suppress(psutil.Error):
                self.power_off(daemon)
            daemon.wait()
        self._folder.cleanup()

    def _start(self, what: str, *arguments: str) -> psutil.Popen:
        log = Path(self._folder.name) / f"{what}-{len(os.listdir(self._folder.name))}.log"
        with log.open("wb") as output:
            process = psutil.Popen(
                [_CLASS, f"org.apache.spark.deploy.{what.lower()}.{what}", *arguments],
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"},
                stdout=output,
                stderr=output,
            )
        ready = "I have been elected leader" if what == "Master" else "Successfully registered with master"
        assert wait_for(lambda: ready in log.read_text()), log.read_text()[-2000:]
        return process
