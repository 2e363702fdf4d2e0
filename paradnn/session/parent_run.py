"""The parent run of a sweep: opened and closed where the sweep was started, and only joined by its launched tasks."""

from __future__ import annotations

import time
from collections.abc import Collection

from paradnn.core.words import counted
from paradnn.session.course import Conclusion
from paradnn.session.summary import Summary
from paradnn.store.address import without_secrets
from paradnn.store.journal import Journal
from paradnn.store.runs import SweepRun
from paradnn.sweep.scheduler import job_tags
from paradnn.sweep.tasks import SweepInfo


class ParentRun:
    """The parent as one process sees it; without a sweep all of it does nothing."""

    def __init__(self, tracker: Journal, sweep: SweepInfo | None) -> None:
        self._tracker = tracker
        self._sweep = sweep
        self._opened = False

    def enter(self) -> None:
        """Join the parent that the submitting process opened, if there is one."""
        if self._sweep and self._sweep.launched:
            self._begin(self._sweep, parent=self._sweep.launched.parent)

    def open(self, points: int | None = None) -> str:
        """Open the parent of so many points to measure, unless another process has; its run id."""
        if self._sweep is None or self._sweep.launched:
            return ""
        self._opened = True
        return self._begin(self._sweep, {"planned_points": str(points)} if points is not None else None)

    def _begin(self, sweep: SweepInfo, tags: dict[str, str] | None = None, parent: str | None = None) -> str:
        command = without_secrets(sweep.command)
        own = {"sweep_id": sweep.sweep_id, "command": command} | (tags or {})
        return self._tracker.open_sweep(sweep.name, f"`{command}`\n\nrunning ...", own, parent)

    def end(self, summary: Summary, environment_ids: Collection[str], conclusion: Conclusion | None = None) -> None:
        """Close what was opened here; a launched task reports what became of its points instead."""
        if self._sweep and self._sweep.launched:
            report = {"points": summary.total, "outcomes": summary.outcomes, "skipped": summary.skipped}
            report |= {"environments": sorted(environment_ids), "interrupted": summary.interrupted}
            report |= {"ended": round(time.time(), 3), **job_tags()}
            self._tracker.report_task(self._sweep.launched.task, report)
        elif self._sweep and self._opened:
            what, found = counted(summary.total, "point"), conclusion or Conclusion()
            state = "interrupted" if summary.interrupted else "finished"
            closing = f"A sweep of {what}, {state} after {summary.seconds:.0f} s: {summary.counts()}."
            text = "\n\n".join(filter(None, (f"`{without_secrets(self._sweep.command)}`", found.text, closing)))
            metrics = {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
            metrics |= {"points": float(summary.total), **found.metrics}
            status = "KILLED" if summary.interrupted else "FAILED" if summary.missing else "FINISHED"
            self._tracker.close_sweep(SweepRun(status, text, metrics, found.artifacts, found.tags))

    def fail(self, problem: str) -> None:
        """Report that a launched task could not measure at all."""
        if self._sweep and self._sweep.launched:
            self._tracker.report_task(self._sweep.launched.task, {"problem": problem, **job_tags()})
