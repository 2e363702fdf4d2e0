"""From a multirun to tasks in a launcher's hands, and back to what the store says became of every point.

With Hydra's basic launcher all points are one task of this process; any other gets tasks of a chunk of points each.
What it returns, or whether it raises because a job was killed, decides nothing: every task records for itself. An
adaptive sweep is launched in rounds, each chosen from what those before left in the store."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point, Settings
from paradnn.core.words import counted
from paradnn.designs.adaptive import AdaptiveSweep
from paradnn.errors import ConfigError
from paradnn.session.parent_run import ParentRun
from paradnn.session.progress import describe_sweep
from paradnn.session.summary import Row, Summary
from paradnn.store.address import locate, without_secrets
from paradnn.store.journal import Journal
from paradnn.store.runs import ResumePolicy, first_accepted
from paradnn.store.tracker import open_tracker
from paradnn.sweep.tasks import Launched, Sweep, default_chunk, hold, make_sweep, pack

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig


#: A launcher's `launch`: the overrides of every task to whatever they returned.
Launch = Callable[[Sequence[Sequence[str]]], Sequence[Any]]
BASIC = "basic"
#: A round has this share of the points measured before it: few rounds wait for their slowest task, and yet each is
#: chosen from much.
_SHARE = 0.5


def sweep_with(
    launch: Launch, loader: ConfigLoader, master: DictConfig, arguments: Sequence[str], params: Mapping[str, Any]
) -> list[Any]:
    """Plan a multirun and have it measured; what its tasks returned, which is nothing. Raises ParadnnError for what the
    user can mend; ends the process with a code that is not 0 where a launched sweep left points without an outcome."""
    sweep = make_sweep(loader, master, arguments, params, searches=True)
    launcher = launcher_of(master)
    if sweep.info.largest and (launcher != BASIC or sweep.settings.sweep.chunk):
        key, value = ("sweep.chunk", sweep.settings.sweep.chunk) if launcher == BASIC else ("hydra/launcher", launcher)
        raise ConfigError(key, value, "cannot search batch_size=largest, which one process does", "leave it out")
    if launcher == BASIC and sweep.settings.sweep.chunk is None:
        # Raises what the task raised.
        return [entry.return_value for entry in launch([[*sweep.overrides, hold(sweep)]])]
    code = Submitter(sweep, launcher, _processes(launcher, master)).run(launch)
    if code:
        sys.exit(code)
    return []


def chunk_of(master: DictConfig, settings: Settings, points: int) -> int | None:
    """Points of a task; None where all are measured in this process."""
    if launcher_of(master) == BASIC:
        return settings.sweep.chunk
    return settings.sweep.chunk or default_chunk(points)


def launcher_of(master: DictConfig) -> str:
    """The launcher that is chosen, `BASIC` for this process."""
    return str(master.hydra.runtime.choices.get("hydra/launcher", BASIC))


def plan_with(
    task: Callable[[DictConfig], Any],
    loader: ConfigLoader,
    master: DictConfig,
    arguments: Sequence[str],
    params: Mapping[str, Any],
) -> Any:
    """Call `task` here with a multirun's settings and its whole plan, whatever the launcher; what it returned."""
    config = copy.deepcopy(master)
    config.sweep.plan = hold(make_sweep(loader, master, arguments, params)).partition("=")[2].strip("'")
    return task(config)


class Submitter:
    """The process that hands a sweep to a launcher as tasks of a chunk of points each, and keeps its parent run.
    `processes` is how many tasks one host measures at the same time."""

    def __init__(self, sweep: Sweep, launcher: str, processes: int) -> None:
        self._sweep = sweep
        self._launcher = launcher
        self._processes = processes
        self._tracker: Journal = open_tracker(sweep.settings.tracking, _say)
        self._parent = ParentRun(self._tracker, sweep.info)
        self._problems: list[str] = []
        self._points: list[Point] = []  # what was asked for
        self._design: AdaptiveSweep | None = None

    def run(self, launch: Launch) -> int:
        """Launch the tasks, wait, close the parent; the exit code."""
        begin = time.monotonic()
        self._tracker.close_abandoned()
        sweep = self._sweep
        adaptive = sweep.settings.sweep.design == "adaptive"
        parent = self._parent.open(None if adaptive else len(sweep.points))
        if adaptive:
            self._design = AdaptiveSweep(sweep.points, sweep.settings, sweep.info, anywhere=True)
        if self._processes > 1:
            _say(
                f"{self._processes} processes measure on this host at the same time and take cores, caches and memory "
                "from each other: use these runs to see what works, not to compare speeds"
            )
        interrupted = self._launch_rounds(launch, parent)
        if not interrupted:
            self._tracker.close_abandoned(sweep.info.sweep_id)
        summary = self._summary(interrupted)
        summary.seconds = time.monotonic() - begin
        if self._design:
            conclusion = self._design.conclusion()
            summary.conclusion = conclusion.text
            self._parent.end(summary, (), conclusion)
        elif summary.measured or summary.missing:
            self._parent.end(summary, ())
        else:  # everything was known: no sweep took place
            self._tracker.drop_sweep()
        describe_sweep(summary)
        self._explain(summary)
        return summary.exit_code

    @property
    def _chunk(self) -> int:
        return self._sweep.settings.sweep.chunk or default_chunk(len(self._sweep.points))

    def _launch_rounds(self, launch: Launch, parent: str) -> bool:
        """Launch round after round, each once the one before has ended; whether the user ended it. What went wrong is
        kept in a line each."""
        number, name, most = 0, self._sweep.info.name, counted(self._chunk, "point")
        try:
            for indices, excluded in self._rounds():
                self._points += [self._sweep.points[index] for index in indices]
                tasks = self._tasks(parent, indices, excluded, number)
                standing = f" ({self._design.standing})" if self._design else ""
                _say(f"{name}: {counted(len(tasks), 'task')} of up to {most} for {self._launcher}{standing}")
                number += len(tasks)
                try:
                    returned = launch(tasks)
                except Exception as error:
                    self._problems.append(f"{self._launcher}: {_first_line(error)}")
                    continue
                for entry in returned:
                    try:
                        entry.return_value  # noqa: B018 - raises what the task raised
                    except Exception as error:
                        self._problems.append(f"a task: {_first_line(error)}")
        except KeyboardInterrupt:
            return True
        return False

    def _rounds(self) -> Iterator[tuple[Sequence[int], Sequence[str]]]:
        """Points by index that are measured at the same time, and why each is not tried, where they are not: all at
        once; of an adaptive sweep those that are chosen after each round, and at last the excluded."""
        if not (design := self._design):
            yield range(len(self._sweep.points)), ()
            return
        places, known = design.knowledge.candidates.places, -1
        while len(design.knowledge.ended) > known:
            known = len(design.knowledge.ended)
            largest = max(self._chunk, int(_SHARE * known), 0 if known else len(places))
            chosen = design.next(largest, self._environments())
            if not chosen:
                break
            yield [places[index] for index in chosen], ()
            design.knowledge.look(self._environments())
        else:
            design.reason = "tasks that measured nothing"
        if design.excluded:
            yield [places[index] for index in design.excluded], [*design.excluded.values()]

    def _tasks(self, parent: str, indices: Sequence[int], excluded: Sequence[str], number: int) -> list[list[str]]:
        overrides = [*self._sweep.overrides, *_addresses(self._sweep.settings)]
        tasks: list[list[str]] = []
        for first in range(0, len(indices), self._chunk):
            part = slice(first, first + self._chunk)
            launched = Launched(
                self._launcher, parent, number + len(tasks), time.time(), self._processes, tuple(excluded[part])
            )
            info = replace(self._sweep.info, launched=launched)
            tasks.append([*overrides, pack(info, self._sweep.plan.part(indices[part]))])
        return tasks

    def _environments(self) -> set[str]:
        reports = self._tracker.task_reports().values()
        found = {name for report in reports for name in report.get("environments", ())}
        return found | {row["environment_id"] for row in self._tracker.sweep_rows(self._sweep.info.sweep_id)}

    def _summary(self, interrupted: bool) -> Summary:
        found = self._tracker.sweep_rows(self._sweep.info.sweep_id)
        rows = {(str(row["point_id"]), str(row["replicate"])): row for row in found}
        families = {(point_id(point), str(point.replicate)): point.model.name for point in self._points}
        shown = [Row.of(families[key], row) for key, row in rows.items()]
        summary = Summary(len(self._points), shown, interrupted=interrupted, where=self._tracker.where)
        for number, report in sorted(self._tracker.task_reports().items()):
            if "problem" in report:
                self._problems.append(f"task {number} on {report.get('node', 'its host')}: {report['problem']}")
        environments = self._environments()
        known = self._tracker.finished(environments)
        resume = ResumePolicy(self._sweep.settings.resume, self._sweep.settings.retry)
        seen = set()
        for point in self._points:
            key = (point_id(point), str(point.replicate))
            if key in seen:
                summary.repeated += 1
            elif key not in rows and resume.looks:
                places = [Identity(key[0], environment, point.replicate) for environment in environments]
                runs = [run for place in places for run in known.get(place, ())]
                if done := first_accepted(point, runs, resume):
                    summary.skipped[done.tags["outcome"]] += 1
            seen.add(key)
        return summary

    def _explain(self, summary: Summary) -> None:
        for problem in self._problems:
            _say(problem)
        if summary.interrupted and self._launcher != BASIC:
            _say(f"interrupted; tasks that {self._launcher} has begun or queued may continue")
        if summary.missing:
            # With resume=false a repeated command measures everything once more.
            again = "without resume=false " if self._sweep.settings.resume is False else ""
            _say(
                f"{summary.missing} of {counted(summary.total, 'point')} {'has' if summary.missing == 1 else 'have'} "
                f"no outcome; the same command {again}measures them:\n"
                f"  {without_secrets(self._sweep.info.command)}"
            )


def _processes(launcher: str, master: DictConfig) -> int:
    """How many tasks one host measures at the same time, as far as the launcher's configuration tells."""
    if launcher == BASIC or "n_jobs" not in master.hydra.launcher:
        return 1
    count = int(master.hydra.launcher.n_jobs or 1)
    return count if count > 0 else max(1, (os.cpu_count() or 1) + 1 + count)


def _addresses(settings: Settings) -> list[str]:
    """Where to record, for tasks that see neither this directory nor these variables. An address with a password in it
    stays out of the launcher's files: give such tasks the variable themselves."""
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
