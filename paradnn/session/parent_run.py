"""The parent run of a sweep."""

from __future__ import annotations

from paradnn.core.words import counted
from paradnn.session.course import Conclusion
from paradnn.session.summary import Summary
from paradnn.store.address import without_secrets
from paradnn.store.journal import Journal
from paradnn.store.runs import SweepRun
from paradnn.sweep.tasks import SweepInfo


class ParentRun:
    """The parent as this process sees it; without a sweep all of it does nothing."""

    def __init__(self, tracker: Journal, sweep: SweepInfo | None) -> None:
        self._tracker = tracker
        self._sweep = sweep
        self._opened = False

    def open(self, points: int | None = None) -> str:
        """Open the parent of so many points to measure; its run id."""
        if self._sweep is None:
            return ""
        self._opened = True
        command = without_secrets(self._sweep.command)
        tags = {"sweep_id": self._sweep.sweep_id, "command": command}
        tags |= {"planned_points": str(points)} if points is not None else {}
        return self._tracker.open_sweep(self._sweep.name, f"`{command}`\n\nrunning ...", tags)

    def end(self, summary: Summary, conclusion: Conclusion) -> None:
        """Close what was opened here."""
        if self._sweep is None or not self._opened:
            return
        what = counted(summary.total, "point")
        state = "interrupted" if summary.interrupted else "finished"
        closing = f"A sweep of {what}, {state} after {summary.seconds:.0f} s: {summary.counts()}."
        text = "\n\n".join(filter(None, (f"`{without_secrets(self._sweep.command)}`", conclusion.text, closing)))
        metrics = {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
        metrics |= {"points": float(summary.total), **conclusion.metrics}
        status = "KILLED" if summary.interrupted else "FAILED" if summary.missing else "FINISHED"
        self._tracker.close_sweep(SweepRun(status, text, metrics, conclusion.artifacts, conclusion.tags))
