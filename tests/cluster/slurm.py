"""A private Slurm cluster of two nodes on loopback, which tests start and stop.

    python -m tests.cluster.slurm COMMAND...

runs a command with such a cluster. Slurm needs root. Both nodes are this host. With
`has_separate_nodes`, each node has its own process namespace. Drivers on one node then see
processes of the other node as those of another host, and one kill ends all processes of a node.
"""

import contextlib
import getpass
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.cluster.postgres import free_port
from tests.processes import PATIENCE, wait_for

#: Words that run a command in its own process namespace; all its processes end with the command.
SEPARATE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

_CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SchedulerParameters=batch_sched_delay=0,sched_interval=2
ReturnToService=2
MpiDefault=none
SlurmdTimeout=30
InactiveLimit=0
KillWait=10
MinJobAge=300
Waittime=0
{nodes}
PartitionName=test Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@dataclass
class Slurm:
    """A controller, two nodes and their authentication service, with files in one folder."""

    folder: Path
    has_separate_nodes: bool = False
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables with which Slurm's commands use this cluster."""
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def start(self) -> None:
        """Start the cluster, and wait until both nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.folder / "state").mkdir()
        cores = os.cpu_count() or 1
        nodes = "\n".join(
            f"NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} "
            f"CPUs={cores} State=UNKNOWN"
            for number in (1, 2)
        )
        text = _CONFIGURATION.format(
            folder=self.folder, controller=free_port(), user=getpass.getuser(), nodes=nodes
        )
        (self.folder / "slurm.conf").write_text(text)
        socket = f"--socket={self.folder}/munge.socket"
        self._run("munged", "--foreground", "--force", f"--key-file={key}", socket,
                  f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/seed",
                  f"--log-file={self.folder}/munged.log")  # fmt: skip
        assert wait_for((self.folder / "munge.socket").exists)
        self._run("slurmctld", "-D")
        for number in (1, 2):
            (self.folder / f"spool-n{number}").mkdir()
            self.start_node(f"n{number}")
        assert wait_for(self._is_idle, PATIENCE), self.text("sinfo", "-N", "-l")

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        command = ["slurmd", "-D", "-N", name]
        if self.has_separate_nodes:
            command = [*SEPARATE, *command]
        self.nodes[name] = self._run(*command)

    def kill_node(self, name: str) -> None:
        """Kill a node with all its processes; needs `has_separate_nodes`."""
        self.nodes[name].kill()
        self.nodes[name].wait()

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.out").open("ab") as log:
            process = subprocess.Popen(
                command, env=os.environ | self.environ, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def _is_idle(self) -> bool:
        return self.text("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"]

    def text(self, *command: str) -> str:
        """Return standard output and standard error of one of Slurm's commands."""
        done = subprocess.run(
            command,
            env=os.environ | self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        """Cancel all jobs and end every process of the cluster."""
        self.text("scancel", "--state=RUNNING")
        self.text("scancel", "--state=PENDING")
        for process in reversed(self.processes):
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        child.kill()
            process.kill()
            process.wait()


@contextlib.contextmanager
def slurm(*, has_separate_nodes: bool = False) -> Iterator[Slurm]:
    """Yield a running cluster in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # munged rejects a folder that other users may write to
        cluster = Slurm(folder, has_separate_nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


if __name__ == "__main__":
    with slurm() as cluster:
        sys.exit(
            subprocess.run(sys.argv[1:], env=os.environ | cluster.environ, check=False).returncode
        )
