"""Several processes of this host at once."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from tests.cluster.conftest import Sweep, settled
from tests.conftest import Store, children_of

Start = Callable[..., Sweep]
COMMAND = ("hydra/launcher=processes", "hydra.launcher.n_jobs=2", "model.nodes=range(8,16)", "sweep.chunk=4")


def test_two_processes_share_a_sweep_and_say_so(sweep: Start, store: Store) -> None:
    running = sweep(*COMMAND)
    assert running.wait() == 0, running.said
    settled(store, 8)
    assert running.said.count("take cores, caches and memory from each other") == 1
    assert {point["neighbours"] for point in store.runs()} == {"2 processes of one host measured at the same time"}
    assert {point["task"] for point in store.runs()} == {"0", "1"}


def test_a_killed_process_ends_the_sweep_and_the_same_command_finishes_it(sweep: Start, store: Store) -> None:
    running = sweep(*COMMAND)
    running.until(lambda: len(running.measured()) >= 2, "two points")
    drivers = [
        process
        for process in map(psutil.Process, children_of(running.pid))
        if "popen_loky" in " ".join(process.cmdline())
    ]
    drivers[0].kill()
    assert running.wait() in (0, 1)
    assert sweep(*COMMAND).wait() == 0
    settled(store, 8)
