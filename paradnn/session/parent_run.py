"""The parent run of a sweep: opened and closed where the sweep was started, and only joined by its launched tasks. Its
closing words, and the table it holds, come from a `Summary`; that of a launched sweep is read from the store, since a
launcher whose job was killed returns nothing of the others either."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from typing import Any

from paradnn.core.words import counted
from paradnn.session.course import Conclusion
from paradnn.session.summary import Row, Summary
from paradnn.store.address import without_secrets
from paradnn.store.journal import Journal
from paradnn.store.runs import SweepRun
from paradnn.sweep.scheduler import job_tags
from paradnn.sweep.tasks import SweepInfo

#: The artifact of the parent run; columns that stand first in it.
TABLE = "sweep.json"
_FIRST = (
    *("name", "outcome", "examples_per_second", "examples_per_second_low", "examples_per_second_high"),
    *("steady", "contended", "peak_memory_bytes"),
)
#: Tags that every run of a sweep shares or that say nothing to a person: not in its table.
_UNSHOWN = (
    *("mlflow.", "kind", "schema_version", "source", "sweep_id", "session_id", "owner", "claim_expires", "git_commit"),
)


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
        # What `mlflow.log_table` notes, so that the UI shows the table as one and `mlflow.load_table` finds it.
        noted = {"mlflow.loggedArtifacts": json.dumps([{"path": TABLE, "type": "table"}])}
        own = {"sweep_id": sweep.sweep_id, "command": command} | noted | (tags or {})
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
            artifacts = {TABLE: table_file(summary.rows), **found.artifacts}
            status = "KILLED" if summary.interrupted else "FAILED" if summary.missing else "FINISHED"
            self._tracker.close_sweep(SweepRun(status, text, metrics, artifacts, found.tags))

    def fail(self, problem: str) -> None:
        """Report that a launched task could not measure at all."""
        if self._sweep and self._sweep.launched:
            self._tracker.report_task(self._sweep.launched.task, {"problem": problem, **job_tags()})


def table_file(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Every row with all its metrics and tags, in the layout of mlflow.log_table."""
    first = ("run_id", "name", "outcome", "reason")
    cells = ({name: getattr(row, name) for name in first} | {**row.tags, **row.metrics} for row in rows)
    tables = [{key: value for key, value in row.items() if not key.startswith(_UNSHOWN)} for row in cells]
    held = dict.fromkeys(key for row in tables for key in row)
    columns = [key for key in _FIRST if key in held] + [key for key in held if key not in _FIRST]
    return {"columns": columns, "data": [[row.get(key) for key in columns] for row in tables]}
