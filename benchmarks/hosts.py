"""python -m benchmarks.hosts [--quota 0.5] [--folder FOLDER]

Steps over 1, 2 and 4 hosts, and what one host and a channel between two say of them. The hosts are control groups of
this machine, each with a share of one core and an address of its own on the loopback (root on Linux): as many as its
cores allow at that quota, so that no host takes time from another. Weak scaling: every host has the same batch.

A core's share comes in slices of a millisecond, so steps are chosen that take hundreds.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.scaling_hosts import Exchange, expect_measured
from analysis.store.load import load
from benchmarks.common import RESULTS, save, train
from paradnn.execution.hosts import HOSTS, start_server
from paradnn.worker.process_group import KEY

GROUPS = Path("/sys/fs/cgroup")
#: Microseconds in which a host gets its share.
PERIOD = 2000
COUNTS = (1, 2, 4)
#: The steps with the batch of one host.
STEPS = [
    ["model=fc", "model.layers=4", "model.nodes=512", "batch_size={}", "64"],
    ["model=fc", "model.layers=4", "model.nodes=1024", "batch_size={}", "128"],
    ["model=residual", "model.blocks=1", "model.filters=16", "model.image_size=64", "batch_size={}", "8"],
    ["model=residual", "model.blocks=1", "model.filters=32", "model.image_size=64", "batch_size={}", "8"],
]
SIZES = [4**power for power in range(6, 14)]
MEASURE = ["measure=quick", "measure.profile=false", "ceilings=false", "measure.timeout=300"]
#: As it is called beside that of four.
CHANNEL = "tensorflow all_reduce, 2 processes, 2 hosts"


@contextmanager
def host(number: int, quota: float) -> Iterator[Path]:
    """A control group with so much of one core."""
    version_2 = (GROUPS / "cgroup.controllers").is_file()
    group = (GROUPS if version_2 else GROUPS / "cpu") / f"paradnn-host-{number}"
    group.mkdir()
    most = int(quota * PERIOD)
    try:
        if version_2:
            (group / "cpu.max").write_text(f"{most} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(most))
        yield group
    finally:
        group.rmdir()


def inside(group: Path, core: int, log: Path) -> list[str]:
    """What to write in front of a command for it to run there."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec taskset -c {core} "$@" 2>> {log}', "sh"]


def measure(folder: Path, quota: float) -> None:
    """Every step on every number of hosts, and all-reduces of two and of four, by a session on the first host."""
    cores = sorted(os.sched_getaffinity(0))
    key = secrets.token_hex()
    with ExitStack() as stack:
        groups = [stack.enter_context(host(number, quota)) for number in range(max(COUNTS))]
        places = [(group, cores[number % len(cores)]) for number, group in enumerate(groups)]
        addresses = []
        for number, place in enumerate(places[1:], 2):
            server, address = start_server(f"127.0.0.{number}", key, inside(*place, folder / "servers.log"))
            addresses.append(address)
            stack.callback(server.wait)
            assert server.stdin
            stack.callback(server.stdin.close)
        os.environ |= {HOSTS: ",".join(addresses), KEY: key}
        own, core = places[0]
        before = Path("/proc/self/cgroup").read_text()
        (own / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setaffinity(0, {core})
        try:
            _sweeps(folder)
        finally:
            _back(before)


def _sweeps(folder: Path) -> None:
    for count in COUNTS:
        shared = [f"devices={count}", "transport=grpc", f"hosts={count}"] if count > 1 else []
        for *words, batch in STEPS:
            print(f"{words[0]} on {count} hosts", file=sys.stderr)
            at = [word.format(count * int(batch)) for word in words]
            train([*at, "platform.threads=1", "measure.processes=3", *shared, *MEASURE], folder)
    for count in COUNTS[1:]:
        print(f"all-reduce of {count}", file=sys.stderr)
        both = [f"model.processes={count}", f"hosts={count}", f"model.bytes={','.join(map(str, SIZES))}"]
        train(
            ["-m", "model=channel", "model.transport=tensorflow", "model.pattern=all_reduce", *both, *MEASURE], folder
        )


def _back(before: str) -> None:
    """This process where it was."""
    for row in before.splitlines():
        _, controllers, path = row.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            folder = GROUPS / controllers / path.strip("/")
            (folder / "cgroup.procs").write_text(str(os.getpid()))


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted milliseconds of every step on several hosts, the channel being that of two."""
    table = expect_measured(frame, Exchange(CHANNEL)).table
    kept = [
        "family",
        "batch_size",
        "devices",
        "alone_ms",
        "measured_ms",
        "predicted_ms",
        "predicted_ms_low",
        "predicted_ms_high",
    ]
    return table[kept].assign(ratio=table["predicted_ms"] / table["measured_ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quota", type=float, default=0.5, help="share of a core that a host has (default: 0.5)")
    parser.add_argument("--folder", type=Path, help="where the runs go, or are already (default: a temporary one)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        if not (folder / "mlflow.db").exists():
            measure(folder, given.quota)
        table = judged(load(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}"))
    shown = Table(*table.columns)
    for row in table.itertuples(index=False):
        shown.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
    Console().print(shown)
    save("hosts", table.to_dict("records"), RESULTS)


if __name__ == "__main__":
    main()
