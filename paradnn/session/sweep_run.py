"""The parent run of a sweep, opened before its first point and closed with counts of its points.

The runs of the sweep's points are stored below the parent run. A driver is a process of
`python -m paradnn.train`, which measures the points. If several drivers share a sweep, its points
are counted in the store. The process that launched the drivers closes the parent run. If no process
launched them, the last driver closes it.
"""

import time
from collections.abc import Mapping, Sequence

from paradnn.config.identity import point_id
from paradnn.config.point import Point
from paradnn.config.scheduler import driver_start
from paradnn.config.tasks import SweepInfo
from paradnn.core.errors import StoreError
from paradnn.core.words import counted, without_secrets
from paradnn.session.design import DesignResult, RecordedPoint, Summary
from paradnn.session.sweep_page import SweepPage
from paradnn.store.journal import Journal
from paradnn.store.leases import no_point_is_left, planned_points
from paradnn.store.runs import Finished, SweepRun

#: Maximum number of points of a shared sweep whose metrics are read for its closing table.
_MAX_ROWS = 40


def open_parent(
    tracker: Journal,
    sweep: SweepInfo,
    *,
    planned_points: int | None = None,
    own_tags: Mapping[str, str] | None = None,
) -> str:
    """Open the parent run of a sweep, or join the one that another driver opened.

    Args:
        tracker: Records the runs.
        sweep: Id, name and command of the sweep.
        planned_points: Number of points to measure; None if an adaptive design chooses them.
        own_tags: The user's tags; None means no tags.

    Returns:
        The id of the parent run.
    """
    command = without_secrets(sweep.command)
    tags = {**(own_tags or {}), "sweep_id": sweep.sweep_id, "command": command}
    description = f"`{command}`\n\nrunning ..."
    if sweep.driver is not None:
        is_launched = driver_start() is not None
        return tracker.join_sweep(sweep.name, description, tags, is_launched=is_launched)
    if planned_points is not None:
        tags["planned_points"] = str(planned_points)
    return tracker.open_sweep(sweep.name, description, tags)


def end_parent(
    tracker: Journal,
    sweep: SweepInfo,
    summary: Summary,
    conclusion: DesignResult,
    page: SweepPage,
) -> None:
    """Close the parent run of a sweep with counts, an HTML page, and the result of its design.

    Args:
        tracker: Records the runs.
        sweep: Id, name and command of the sweep.
        summary: Counts of the sweep's points.
        conclusion: Result of the sweep's adaptive design; empty for a grid.
        page: Draws the sweep's HTML page.
    """
    state = "interrupted" if summary.interrupted else "finished"
    points = counted(summary.total, "point")
    paragraphs = [
        f"`{without_secrets(sweep.command)}`",
        conclusion.text,
        f"A sweep of {points}, {state} after {summary.seconds:.0f} s: {summary.counts()}.",
    ]
    metrics = {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
    metrics["points"] = float(summary.total)
    if summary.interrupted:
        status = "KILLED"
    elif summary.missing:
        status = "FAILED"
    else:
        status = "FINISHED"
    end = SweepRun(
        status=status,
        description="\n\n".join(filter(None, paragraphs)),
        metrics={**metrics, **conclusion.metrics},
        artifacts=conclusion.artifacts,
        tags=conclusion.tags,
    )
    tracker.close_sweep(page.add_to(end, summary))
    page.log_report(summary)


def shared_summary(tracker: Journal, sweep: SweepInfo, points: Sequence[Point]) -> Summary:
    """Summarize a sweep that several drivers share, from the runs that are in the store now.

    Args:
        tracker: Reads the runs.
        sweep: Id, name and command of the sweep.
        points: The sweep's configurations, from which the names of model families are taken.

    Returns:
        The summary. Its rows have metrics only if the sweep has at most `_MAX_ROWS` points.
    """
    leases = tracker.leases_of_sweep()
    found = {
        identity: run
        for identity, runs in tracker.finished((), sweep.sweep_id).items()
        for run in runs
        if run.tags.get("sweep_id") == sweep.sweep_id and run.tags.get("kind") == "point"
    }
    families = {point_id(point): point.model.name for point in points}
    has_metrics = len(found) <= _MAX_ROWS
    total = len(found)
    if not no_point_is_left(leases):
        total = max(total, planned_points(leases) or 0)
    summary = Summary(total=total)
    for identity, run in found.items():
        family = families.get(identity.point_id, "")
        summary.rows.append(shared_row(tracker, run, family, has_metrics=has_metrics))
    ended = [lease for lease in leases.values() if lease.ended and lease.conclusion]
    if ended:
        summary.conclusion = max(ended, key=lambda lease: lease.ended).conclusion
    summary.where = tracker.where
    return summary


def shared_row(tracker: Journal, run: Finished, family: str, *, has_metrics: bool) -> RecordedPoint:
    """Return the result of a point that a driver of a shared sweep measured.

    Args:
        tracker: Reads the run.
        run: The run of the point.
        family: Model family of the point, such as "fc".
        has_metrics: Whether to read the metrics, the name and all tags of the run from the store.
            If False, only the tags in `run` are used, and the family replaces a missing name.
    """
    metrics: Mapping[str, float] = {}
    tags = run.tags
    if has_metrics:
        metrics, tags = tracker.fetch(run.run_id)
    return RecordedPoint(
        run_id=run.run_id,
        name=tags.get("mlflow.runName") or tags.get("name") or family,
        family=family,
        outcome=run.tags["outcome"],
        reason=tags.get("reason"),
        metrics=metrics,
        tags=tags,
    )


def end_shared_sweep(
    tracker: Journal,
    sweep: SweepInfo,
    points: Sequence[Point],
    driver_summary: Summary,
    conclusion: DesignResult,
    page: SweepPage,
) -> None:
    """End this driver's part of a shared sweep; close the sweep if no other process is left.

    A driver is a process that measures points of the sweep.

    Args:
        tracker: Records the runs.
        sweep: Id, name and command of the sweep.
        points: The configurations of the sweep.
        driver_summary: Summary of this driver's session.
        conclusion: Result of the sweep's adaptive design; empty for a grid.
        page: Draws the sweep's HTML page.
    """
    if conclusion.metrics or conclusion.artifacts:
        tracker.annotate_sweep(
            SweepRun(
                status="RUNNING",
                description="",
                metrics=conclusion.metrics,
                artifacts=conclusion.artifacts,
                tags=conclusion.tags,
            )
        )
    is_complete = not driver_summary.interrupted and driver_summary.missing <= 0
    tracker.unregister(is_complete=is_complete, conclusion=conclusion.text)
    try:
        leases = tracker.leases_of_sweep()
        if any(lease.is_alive for lease in leases.values()):
            return
        whole = shared_summary(tracker, sweep, points)
    except StoreError:  # results are in files, and `paradnn.sync` works without an ended sweep
        return
    whole.interrupted = driver_summary.interrupted
    whole.seconds = time.time() - driver_summary.started
    end_parent(tracker, sweep, whole, DesignResult(whole.conclusion), page)
