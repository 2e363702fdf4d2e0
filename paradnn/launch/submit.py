"""From a multirun to tasks in a launcher's hands, and back to what the store says became of every point.

With Hydra's basic launcher all points are one task of this very process. Any other launcher gets tasks of a chunk of
points each; this process opens the sweep's parent run before, and closes it afterwards. What the launcher returns, or
whether it raises because a job was killed, decides nothing: every task records for itself.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point, Settings
from paradnn.config.words import counted
from paradnn.session.parent_run import ParentRun
from paradnn.session.progress import describe_sweep
from paradnn.session.summary import Row, Summary
from paradnn.store.address import locate, without_secrets
from paradnn.sweep.space import Plan
from paradnn.sweep.tasks import Launched, Sweep, default_chunk, make_sweep, pack
from paradnn.tracking.base import Tracker
from paradnn.tracking.fallback import open_tracker
from paradnn.tracking.resume import ResumePolicy

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

__all__ = ["chunk_of", "plan_with", "submit", "sweep_with"]

#: A launcher's `launch`: the overrides of every task to whatever they returned.
Launch = Callable[[Sequence[Sequence[str]]], Sequence[Any]]
_BASIC = "basic"


def sweep_with(
    launch: Launch, loader: ConfigLoader, master: DictConfig, arguments: Sequence[str], params: Mapping[str, Any]
) -> list[Any]:
    """Plan a multirun and have it measured; what its tasks returned, which is nothing.

    Raises ParadnnError for what the user can mend; ends the process with a code that is not 0 where a launched sweep
    left points without an outcome.
    """
    sweep = make_sweep(loader, master, arguments, params)
    launcher = _launcher(master)
    if launcher == _BASIC and sweep.settings.sweep.chunk is None:
        with tempfile.TemporaryDirectory(prefix="paradnn-sweep-") as folder:
            task = [*sweep.overrides, pack(sweep.info, sweep.plan, Path(folder) / "plan.json")]
            # Raises what the task raised.
            return [entry.return_value for entry in launch([task])]
    code = submit(sweep, launcher, _processes(launcher, master), launch)
    if code:
        sys.exit(code)
    return []


def chunk_of(master: DictConfig, settings: Settings, points: int) -> int | None:
    """Points of a task; None where all are measured in this process."""
    if _launcher(master) == _BASIC:
        return settings.sweep.chunk
    return settings.sweep.chunk or default_chunk(points)


def _launcher(master: DictConfig) -> str:
    return str(master.hydra.runtime.choices.get("hydra/launcher", _BASIC))


def plan_with(
    task: Callable[[DictConfig], Any],
    loader: ConfigLoader,
    master: DictConfig,
    arguments: Sequence[str],
    params: Mapping[str, Any],
) -> Any:
    """Call `task` here with a multirun's settings and its whole plan, whatever the launcher; what it returned."""
    sweep = make_sweep(loader, master, arguments, params)
    with tempfile.TemporaryDirectory(prefix="paradnn-plan-") as folder:
        path = Path(folder) / "plan.json"
        pack(sweep.info, sweep.plan, path)
        config = copy.deepcopy(master)
        config.sweep.plan = str(path)
        return task(config)


def submit(sweep: Sweep, launcher: str, processes: int, launch: Launch) -> int:
    """Give a sweep to a launcher as tasks of a chunk of points each, and wait for it; the exit code.

    `processes` is how many tasks one host measures at the same time.
    """
    return _Submitter(sweep, launcher, processes).run(launch)


class _Submitter:
    """The process that hands a sweep to a launcher and keeps its parent run."""

    def __init__(self, sweep: Sweep, launcher: str, processes: int) -> None:
        self._sweep = sweep
        self._launcher = launcher
        self._processes = processes
        self._tracker: Tracker = open_tracker(sweep.settings.tracking, _say)
        self._parent = ParentRun(self._tracker, sweep.info)
        self._problems: list[str] = []

    def run(self, launch: Launch) -> int:
        """Launch the tasks, wait, close the parent; the exit code."""
        begin = time.monotonic()
        self._tracker.close_abandoned()
        parent = self._parent.open(len(self._sweep.points))
        tasks = self._tasks(parent)
        total = len(self._sweep.points)
        most = counted(self._chunk, "point")
        _say(f"{self._sweep.info.name}: {counted(len(tasks), 'task')} of up to {most} for {self._launcher}")
        if self._processes > 1:
            _say(
                f"{self._processes} processes measure on this host at the same time and take cores, caches and memory "
                "from each other: use these runs to see what works, not to compare speeds"
            )
        interrupted = self._launch(launch, tasks)
        if not interrupted:
            self._tracker.release(self._sweep.info.sweep_id)
        summary = self._summary(total, interrupted)
        summary.seconds = time.monotonic() - begin
        if summary.measured or summary.missing:
            self._parent.end(summary, ())
        else:  # everything was known: no sweep took place
            self._tracker.drop_sweep()
        describe_sweep(summary)
        self._explain(summary)
        return summary.exit_code

    @property
    def _chunk(self) -> int:
        return self._sweep.settings.sweep.chunk or default_chunk(len(self._sweep.points))

    def _tasks(self, parent: str) -> list[list[str]]:
        overrides = [*self._sweep.overrides, *_addresses(self._sweep.settings)]
        tasks = []
        for number, plan in enumerate(self._sweep.chunks(self._chunk)):
            launched = Launched(self._launcher, parent, number, time.time(), self._processes)
            tasks.append([*overrides, self._packed(launched, plan)])
        return tasks

    def _packed(self, launched: Launched, plan: Plan) -> str:
        return pack(replace(self._sweep.info, launched=launched), plan)

    def _launch(self, launch: Launch, tasks: Sequence[Sequence[str]]) -> bool:
        """Whether the user ended it. What went wrong is kept in a line each."""
        try:
            returned = launch(tasks)
        except KeyboardInterrupt:
            return True
        except Exception as error:
            self._problems.append(f"{self._launcher}: {_first_line(error)}")
            return False
        for entry in returned:
            try:
                entry.return_value  # noqa: B018 - raises what the task raised
            except Exception as error:
                self._problems.append(f"a task: {_first_line(error)}")
        return False

    def _summary(self, total: int, interrupted: bool) -> Summary:
        """What the store says of every point of the plan."""
        rows = {_key(row): row for row in self._tracker.sweep_rows(self._sweep.info.sweep_id)}
        families = {(point_id(point), str(point.replicate)): point.model.name for point in self._sweep.points}
        shown = [Row.of(families[key], row) for key, row in rows.items()]
        summary = Summary(total, shown, interrupted=interrupted, where=self._tracker.where)
        reports = self._tracker.task_reports()
        for number, report in sorted(reports.items()):
            if "problem" in report:
                self._problems.append(f"task {number} on {report.get('node', 'its host')}: {report['problem']}")
        environments = {name for report in reports.values() for name in report.get("environments", ())}
        environments |= {row["environment_id"] for row in rows.values()}
        known = self._tracker.finished(environments)
        resume = ResumePolicy(self._sweep.settings.resume, self._sweep.settings.retry)
        seen = set()
        for point in self._sweep.points:
            key = (point_id(point), str(point.replicate))
            if key in seen:
                summary.repeated += 1
            elif key not in rows and (outcome := _known(point, key[0], environments, known, resume)):
                summary.skipped[outcome] += 1
            seen.add(key)
        return summary

    def _explain(self, summary: Summary) -> None:
        for problem in self._problems:
            _say(problem)
        if summary.interrupted and self._launcher != _BASIC:
            _say(f"interrupted; tasks that {self._launcher} has begun or queued may continue")
        if summary.missing:
            _say(
                f"{summary.missing} of {counted(summary.total, 'point')} {'has' if summary.missing == 1 else 'have'} "
                f"no outcome; the same command {_again(self._sweep.settings)}measures them:\n"
                f"  {without_secrets(self._sweep.info.command)}"
            )


def _again(settings: Settings) -> str:
    """With resume=false a repeated command measures everything once more."""
    return "" if settings.resume is not False else "without resume=false "


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row["point_id"]), str(row["replicate"])


def _known(
    point: Point, name: str, environments: set[str], known: Mapping[Identity, Sequence[Any]], resume: ResumePolicy
) -> str | None:
    """The outcome that the store holds of a point from before, in an environment where this sweep's tasks ran."""
    if not resume.looks:
        return None
    for environment in environments:
        for run in known.get(Identity(name, environment, point.replicate), ()):
            if resume.accepts(point, run.tags):
                return str(run.tags["outcome"])
    return None


def _processes(launcher: str, master: DictConfig) -> int:
    """How many tasks one host measures at the same time, as far as the launcher's configuration tells."""
    if launcher == _BASIC or "n_jobs" not in master.hydra.launcher:
        return 1
    count = int(master.hydra.launcher.n_jobs or 1)
    return count if count > 0 else max(1, (os.cpu_count() or 1) + 1 + count)


def _addresses(settings: Settings) -> list[str]:
    """Where to record, for tasks that see neither this directory nor these variables.

    An address with a password in it stays out of the launcher's files: give such tasks the variable themselves.
    """
    tracking = settings.tracking
    if tracking.name == "offline":
        return [f"tracking.folder='{Path(tracking.folder).expanduser().absolute()}'"] if tracking.folder else []
    uri = locate(tracking.uri).uri
    return [f"tracking.uri='{uri}'"] if without_secrets(uri) == uri else []


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
