"""The page of a sweep in its MLflow run, drawn when the sweep ends.

The analyses draw it in a separate process, as the driver must not import them. Whatever happens
there, the sweep ends as it would without a page.
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

#: Points below which a sweep has no page.
_MIN_POINTS = 2
#: Seconds that a sweep must have taken, and most points that it may have, for a report. A report
#: takes about ten seconds.
_REPORT_SECONDS = 120.0
_MAX_REPORT_POINTS = 2_000
#: Seconds after which drawing is given up.
_PATIENCE = 120.0
_TABLE = "points.json"
#: Paragraph of the description of a sweep with a page.
_CONTENTS = (
    "The artifact `sweep.html` has interactive figures of the points, `points.json` a table."
)


@dataclass
class SweepPage:
    """The page, the table of points and the report of a sweep.

    A sweep in files, an interrupted one and one of a single point have none.

    Attributes:
        tracking: The store.
        sweep: The sweep.
        notify: Receives a line if the page cannot be drawn.
    """

    tracking: Tracking
    sweep: SweepInfo
    notify: Callable[[str], None]

    def add_to(self, end: SweepRun, summary: Summary) -> SweepRun:
        """Return the end of the sweep with the page and the table as artifacts.

        The description then names them.

        Args:
            end: The end of the sweep.
            summary: Counts of its points.
        """
        if not self._is_wanted(summary):
            return end
        with Scratch() as folder:
            problem = self._run("--only", "page", "--out", str(folder))
            if problem:
                self.notify(
                    f"the page of this sweep is not drawn ({problem}); "
                    f"python -m analysis sweep-page {self.sweep.sweep_id} --log draws it"
                )
                return end
            files = {path.name: _content(path) for path in sorted(folder.iterdir())}
        return replace(
            end,
            description=f"{end.description}\n\n{_CONTENTS}",
            artifacts={**end.artifacts, **files},
            tags={**end.tags, LOGGED_TABLES: tables_tag([_TABLE])},
        )

    def log_report(self, summary: Summary) -> None:
        """Add the report to the closed run of a long sweep; a failure is ignored."""
        is_long = summary.seconds >= _REPORT_SECONDS and summary.total <= _MAX_REPORT_POINTS
        if is_long and self._is_wanted(summary):
            with Scratch() as folder:
                self._run("--only", "report", "--log", "--out", str(folder))

    def _is_wanted(self, summary: Summary) -> bool:
        if not self.tracking.draws_page or summary.interrupted:
            return False
        return summary.total >= _MIN_POINTS

    def _run(self, *options: str) -> str:
        """Run the analysis that draws; return the problem, empty without one."""
        command = [sys.executable, "-m", "analysis", "sweep-page", self.sweep.sweep_id, *options]
        # Credentials in an address belong into the environment: `ps` shows arguments.
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
    """Run a command; return why it failed, empty if it did not."""
    try:
        done = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it takes longer than {_PATIENCE:.0f} s"
    except OSError as error:
        return str(error.strerror)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].removeprefix("error: ")


def _content(path: Path) -> Any:
    """Return a file as the content of an artifact."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else text
