"""What Slurm's queue says of our jobs, for submitit, which otherwise asks the accounting database. `squeue` answers
from the controller itself, at once and on every cluster; a job that it no longer knows is over."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection
from typing import Any

#: Seconds between two questions, at most; submitit begins with shorter waits.
_PAUSE = 20
_GONE = "GONE"
#: States that a job does not leave. A preempted one may go back into the queue; where not, it is gone after a while.
_ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", _GONE}


def queue_watcher() -> Any:
    """A watcher for `submitit.SlurmJob` that tells the states of its registered jobs by `squeue`."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class QueueWatcher(SlurmInfoWatcher):  # type: ignore[misc]
        def update(self) -> None:
            """Ask once for all jobs that are not over; without an answer everything stays as it was."""
            self._num_calls += 1
            self._last_status_check = time.time()
            waiting = self._registered - self._finished
            states = queue_states({job.split("_")[0] for job in waiting})
            if states is None:
                return
            for job in waiting:
                self._info_dict[job] = {"JobID": job, "State": states.get(job, _GONE)}
                if self.is_done(job, mode="cache"):
                    self._finished.add(job)

        def is_done(self, job_id: str, mode: str = "standard") -> bool:
            """Whether a job is over for good."""
            return self.get_state(job_id, mode=mode) in _ENDED

        def wait_for_all(self) -> None:
            """Return when every job is over."""
            while self._registered - self._finished:
                time.sleep(2.0)
                self.update()

    return QueueWatcher(delay_s=_PAUSE)


def queue_states(jobs: Collection[str]) -> dict[str, str] | None:
    """State of every job and array job of `jobs` that the controller knows; None where it does not answer."""
    if not jobs:
        return {}
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T", f"--jobs={','.join(sorted(jobs))}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    rows = (row.partition("|") for row in done.stdout.splitlines())
    return {job.strip(): state.strip() for job, _, state in rows if state}
