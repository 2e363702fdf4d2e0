"""The HTML page of a sweep in its MLflow run, drawn when the sweep ends.

A separate process draws the page with the package `analysis`, which the driver must not import. If
that process fails, the sweep ends without a page.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paradnn.config.settings import Tracking
from paradnn.config.tasks import SweepInfo
from paradnn.core.scratch import Scratch
from paradnn.session.design import Summary
from paradnn.store.address import address_of
from paradnn.store.runs import LOGGED_TABLES, SweepRun, tables_tag

#: Minimum number of points of a sweep with a page.
_MIN_POINTS = 2
#: Minimum duration in seconds and maximum number of points of a sweep with a report. A report takes
#: about ten seconds.
_MIN_REPORT_SECONDS = 120.0
_MAX_REPORT_POINTS = 2_000
#: Time limit of the process that draws, in seconds.
_TIMEOUT = 120.0
_TABLE = "points.json"
#: Paragraph of a sweep's description that names its page and its table.
_DESCRIPTION = (
    "The artifact `sweep.html` has interactive figures of the points, `points.json` a table."
)


@dataclass
class SweepPage:
    """The HTML page, the table of points and the report of a sweep, stored in its parent run.

    Offline sweeps, interrupted sweeps and sweeps of a single point lack all three.

    Attributes:
        tracking: Settings with the address of the store.
        sweep: Name and id of the sweep.
        notify: Prints a line to the user if the page cannot be drawn.
    """

    tracking: Tracking
    sweep: SweepInfo
    notify: Callable[[str], None]

    def add_to(self, end: SweepRun, summary: Summary) -> SweepRun:
        """Add the page and the table of points to the content of a sweep's parent run.

        Args:
            end: Content with which the parent run is closed.
            summary: Counts of the sweep's points.

        Returns:
            `end` with the two files as artifacts, which the description names. If the sweep gets no
            page, `end` is returned unchanged.
        """
        if not self._has_page(summary):
            return end
        with Scratch() as folder:
            problem = self._run("--only", "page", "--out", str(folder))
            if problem:
                self.notify(
                    f"the page of this sweep was not drawn ({problem}); "
                    f"python -m analysis sweep-page {self.sweep.sweep_id} --log draws it"
                )
                return end
            files = {path.name: _content(path) for path in sorted(folder.iterdir())}
        return replace(
            end,
            description=f"{end.description}\n\n{_DESCRIPTION}",
            artifacts={**end.artifacts, **files},
            tags={**end.tags, LOGGED_TABLES: tables_tag([_TABLE])},
        )

    def log_report(self, summary: Summary) -> None:
        """Add the report to the closed parent run of a long sweep; ignore a failure.

        Args:
            summary: Duration and counts of the sweep.
        """
        is_long = summary.seconds >= _MIN_REPORT_SECONDS and summary.total <= _MAX_REPORT_POINTS
        if is_long and self._has_page(summary):
            with Scratch() as folder:
                self._run("--only", "report", "--log", "--out", str(folder))

    def _has_page(self, summary: Summary) -> bool:
        if not self.tracking.draws_page or summary.interrupted:
            return False
        return summary.total >= _MIN_POINTS

    def _run(self, *options: str) -> str:
        """Run `analysis sweep-page`; return why it failed, or an empty text if it succeeded."""
        command = [sys.executable, "-m", "analysis", "sweep-page", self.sweep.sweep_id, *options]
        # Pass the address in the environment: it may hold credentials, and `ps` shows arguments.
        variables = {
            **os.environ,
            "MLFLOW_TRACKING_URI": address_of(self.tracking.uri).uri,
            "MLFLOW_EXPERIMENT_NAME": self.tracking.experiment_name,
        }
        try:
            return _problem(command, variables)
        except KeyboardInterrupt:
            return "interrupted"


def _problem(command: Sequence[str], variables: dict[str, str]) -> str:
    """Run a command; return why it failed, or an empty text if it succeeded."""
    try:
        done = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"drawing takes longer than {_TIMEOUT:.0f} s"
    except OSError as error:
        return str(error.strerror)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].removeprefix("error: ")


def _content(path: Path) -> Any:
    """Return a file's content as an artifact: parsed JSON, or text."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else text
