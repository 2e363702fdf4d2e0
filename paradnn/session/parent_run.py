"""The parent run of a sweep: opened and closed where the sweep was started, and only joined by its launched tasks.

Its closing words, and the table it holds, come from a `Summary`; that of a launched sweep is read from the store,
since a launcher whose job was killed returns nothing of the others either.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection

from paradnn.core.words import counted
from paradnn.session.course import Conclusion
from paradnn.session.summary import Summary
from paradnn.session.sweep_results import TABLE, picture, table_file, table_text
from paradnn.store.address import without_secrets
from paradnn.store.tracker import Tracker
from paradnn.sweep.scheduler import job_tags
from paradnn.sweep.tasks import SweepInfo

__all__ = ["ParentRun"]

#: What `mlflow.log_table` notes, so that the UI shows the table as one and `mlflow.load_table` finds it.
_TABLES = json.dumps([{"path": TABLE, "type": "table"}])


class ParentRun:
    """The parent as one process sees it; without a sweep all of it does nothing."""

    def __init__(self, tracker: Tracker, sweep: SweepInfo | None) -> None:
        self._tracker = tracker
        self._sweep = sweep
        self._opened = False

    def enter(self) -> None:
        """Join the parent that the submitting process opened, if there is one."""
        if self._sweep and self._sweep.launched:
            self._tracker.enter_sweep(self._sweep.launched.parent, self._sweep.name, *self._beginning(self._sweep))

    def open(self, points: int | None = None) -> str:
        """Open the parent of so many points to measure, unless another process has; its run id."""
        if self._sweep is None or self._sweep.launched:
            return ""
        self._opened = True
        description, tags = self._beginning(self._sweep)
        planned = {"planned_points": str(points)} if points is not None else {}
        return self._tracker.open_sweep(self._sweep.name, description, tags | planned)

    def end(self, summary: Summary, environment_ids: Collection[str], conclusion: Conclusion | None = None) -> None:
        """Close what was opened here; a launched task reports what became of its points instead."""
        if self._sweep is None:
            return
        if self._sweep.launched:
            self._tracker.report_task(
                self._sweep.launched.task,
                {
                    "points": summary.total,
                    "outcomes": summary.outcomes,
                    "skipped": summary.skipped,
                    "environments": sorted(environment_ids),
                    "interrupted": summary.interrupted,
                    "ended": round(time.time(), 3),
                    **job_tags(),
                },
            )
        elif self._opened:
            self._close(self._sweep, summary, conclusion or Conclusion())

    def fail(self, problem: str) -> None:
        """Report that a launched task could not measure at all."""
        if self._sweep and self._sweep.launched:
            self._tracker.report_task(self._sweep.launched.task, {"problem": problem, **job_tags()})

    @staticmethod
    def _beginning(sweep: SweepInfo) -> tuple[str, dict[str, str]]:
        """Description and tags of a parent whose sweep is running."""
        command = without_secrets(sweep.command)
        return f"`{command}`\n\nrunning ...", {
            "sweep_id": sweep.sweep_id,
            "command": command,
            "mlflow.loggedArtifacts": _TABLES,
        }

    def _close(self, sweep: SweepInfo, summary: Summary, conclusion: Conclusion) -> None:
        state = "interrupted" if summary.interrupted else "finished"
        text = (
            f"A sweep of {counted(summary.total, 'point')}, {state} after {summary.seconds:.0f} s: {summary.counts()}."
        )
        text = "\n\n".join(filter(None, (f"`{without_secrets(sweep.command)}`", conclusion.text, text)))
        if summary.drift and summary.drift.matters:
            text += f"\n\nDrift: {summary.drift}."
        metrics = {"points": float(summary.total)}
        metrics |= {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
        metrics |= conclusion.metrics
        if drift := summary.drift:
            metrics |= {
                "drift_per_hour": drift.per_hour,
                "drift_per_hour_low": drift.low,
                "drift_per_hour_high": drift.high,
            }
        artifacts = {TABLE: table_file(summary.rows), **conclusion.artifacts}
        if not conclusion.replaces:
            text = "\n\n".join(filter(None, (text, table_text(summary.rows))))
            artifacts |= picture(sweep.name, summary.rows)
        status = "KILLED" if summary.interrupted else "FAILED" if summary.missing else "FINISHED"
        self._tracker.close_sweep(status, text, metrics, artifacts, conclusion.tags)
