"""A Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, started by hand on loopback.

Everything lies in one folder and listens on free ports; `stop` ends what was started here and nothing else. Debian's
packages slurm-wlm and munge are enough; no accounting database is used.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

NODES = ("n1", "n2")
#: Seconds for what a daemon should do at once.
_LIMIT = 200.0
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody holds."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for entry in sockets:
            entry.bind(("127.0.0.1", 0))
        return [int(entry.getsockname()[1]) for entry in sockets]


class Slurm:
    """The cluster; `environ` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End jobs, daemons and whatever they left running."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self.run("scancel", "--user", getpass.getuser())
        for name in reversed(self._processes):
            process = self._processes[name]
            tree = _tree(process.pid)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            for entry in tree:
                with contextlib.suppress(psutil.Error):
                    entry.kill()
            process.wait()
        for entry in self._of_jobs():
            with contextlib.suppress(psutil.Error):
                entry.kill()

    def run(self, *command: str, check: bool = True) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(
            command, env={**os.environ, **self.environ}, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> dict[str, tuple[str, str, str]]:
        """Job id to state, node and reason, of all that the controller remembers."""
        rows = self.run("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%N|%r").splitlines()
        return {row.split("|")[0]: tuple(row.split("|")[1:]) for row in rows}  # type: ignore[misc]

    def requeue(self, job: str) -> None:
        """Put a running job back into the queue, to start as soon as the scheduler looks."""
        self.run("scontrol", "requeue", job)
        deadline = time.monotonic() + _LIMIT
        while time.monotonic() < deadline:
            state = self.jobs().get(job, ("",))[0]
            if state == "PENDING":  # by itself it would wait for two minutes
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
            elif state == "RUNNING" and "Restarts=0" not in self.run("scontrol", "show", "job", job):
                return
            time.sleep(1)
        raise RuntimeError(f"job {job} does not start again: {self.jobs().get(job)}")

    def power_off(self, node: str) -> None:
        """Lose a node at once, with all that runs on it, and have the controller know."""
        process = self._processes.pop(f"slurmd-{node}")
        lost = [psutil.Process(process.pid), *_tree(process.pid), *self._of_jobs(node)]
        for action in ("suspend", "kill"):  # all at once: none may tell of the others' end
            for entry in lost:
                with contextlib.suppress(psutil.Error):
                    getattr(entry, action)()
        process.wait()
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")

    def power_on(self, node: str) -> None:
        """Bring a lost node back."""
        self._daemon(f"slurmd-{node}", "slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"))
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        self._wait_for_nodes(NODES)

    def _start(self) -> None:
        for name in ("state", "log", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        controller, *nodes = free_ports(1 + len(NODES))
        self._start_munge()
        (self.folder / "slurm.conf").write_text(self._configuration(controller, nodes))
        self._daemon("slurmctld", "slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        for node in NODES:
            self._daemon(f"slurmd-{node}", "slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"))
        self._wait_for_nodes(NODES)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        self._daemon(
            "munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={files['socket']}",
            f"--pid-file={files['pid']}", f"--log-file={files['log']}", f"--seed-file={files['seed']}",
        )  # fmt: skip
        deadline = time.monotonic() + _LIMIT
        while not files["socket"].exists():
            if time.monotonic() > deadline or self._processes["munged"].poll() is not None:
                raise RuntimeError(f"munged does not start: {files['log'].read_text()[-500:]}")
            time.sleep(0.1)

    def _configuration(self, controller: int, nodes: list[int]) -> str:
        user, folder = getpass.getuser(), self.folder
        cores = os.cpu_count() or 1
        rows = [
            "ClusterName=paradnn", "SlurmctldHost=localhost(127.0.0.1)", f"SlurmctldPort={controller}",
            f"SlurmUser={user}", f"SlurmdUser={user}", "AuthType=auth/munge", "CredType=cred/munge",
            f"AuthInfo=socket={folder}/munge.socket", f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n", f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid", f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/slurmd-%n.log", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres", "MpiDefault=none", "SlurmdParameters=config_overrides", "ReturnToService=2",
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny", "KillWait=5", "MinJobAge=600", "SlurmdTimeout=10",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2", "SwitchType=switch/none",
        ]  # fmt: skip
        for node, port in zip(NODES, nodes, strict=True):
            rows.append(f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cores}")
        rows.append(f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP")
        return "\n".join(rows) + "\n"

    def _daemon(self, name: str, *command: str) -> None:
        program = shutil.which(command[0], path=_PATH)
        if program is None:
            raise RuntimeError(f"{command[0]} is not installed: make test-cluster does it")
        with (self.folder / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [program, *command[1:]], stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, **self.environ},
            )  # fmt: skip

    def _wait_for_nodes(self, nodes: tuple[str, ...]) -> None:
        deadline, seen = time.monotonic() + _LIMIT, ""
        while time.monotonic() < deadline:
            seen = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False)
            ready = [row.split()[0] for row in seen.splitlines() if row.split()[1].startswith(("idle", "mix", "alloc"))]
            if set(nodes) <= set(ready):
                return
            time.sleep(0.3)
        logs = "".join(path.read_text(errors="replace")[-800:] for path in (self.folder / "log").glob("*.log"))
        raise RuntimeError(f"the nodes are not ready: {seen}\n{logs}")

    def _of_jobs(self, node: str | None = None) -> list[psutil.Process]:
        """What jobs of this cluster run, of one node or of all, and the step daemons above, which outlive a slurmd."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                ours = "SLURM_JOB_ID" in environ and environ.get("SLURM_CONF") == self.environ["SLURM_CONF"]
                if ours and node in (None, environ.get("SLURMD_NODENAME")):
                    found[process.pid] = process
                    parent = process.parent()
                    if parent and "slurmstepd" in " ".join(parent.cmdline()):
                        found[parent.pid] = parent
        return list(found.values())


def _tree(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
