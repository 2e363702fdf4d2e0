"""Write the page of a sweep and its table of measured configurations into a folder."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from analysis.ceilings import with_best_ceilings
from analysis.options import Selection
from analysis.page_texts import legible, to_plain_text
from analysis.point_names import POINT
from analysis.store.load import load, load_table
from analysis.store.write import writing
from analysis.sweep_page.figures import RATES, Figure, SweepPoints, sweep_figures, sweep_points
from paradnn.core.errors import StoreError
from paradnn.core.metric import interval_names
from paradnn.core.words import counted
from paradnn.store.address import address_of
from paradnn.store.client import client_of
from paradnn.store.files import whole_file
from paradnn.store.metrics import METRICS
from paradnn.store.runs import EARLIER_POINTS, LOGGED_TABLES, tables_tag

PAGE = "sweep.html"
TABLE = "points.json"
REPORT = "report.html"

_FOLDER = Path(__file__).parent
#: Columns of the table with metrics.
_METRICS = (
    *(name for rate in RATES for name in (rate, *interval_names(rate))),
    "flops_utilization",
    "arithmetic_intensity",
    "flops_per_second",
    "peak_memory_bytes",
)


def sweep_frame(
    store: str | None, experiment: str, sweep_id: str | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Load the run of a sweep, and the runs that it measured.

    If the sweep skipped configurations that an earlier sweep had measured, those earlier runs are
    included.

    Args:
        store: Address of the store; None for the default one.
        experiment: Name of the experiment.
        sweep_id: Id of the sweep; None for the newest one.

    Returns:
        The run of the sweep, as a frame of one row; and its measurements, one row per run.

    Raises:
        StoreError: If the experiment has no such sweep, or the sweep has no measurement yet.
    """
    tags = {"sweep_id": sweep_id} if sweep_id else {}
    sweeps = load(store, experiments=experiment, kind="sweep", tags=tags, unfinished=True)
    if sweeps.empty:
        which = f"sweep {sweep_id}" if sweep_id else "sweep"
        raise StoreError(
            f"experiment={experiment}: no {which} in this experiment; the id of a sweep is in the "
            "tag sweep_id of its runs"
        )
    sweep = sweeps.iloc[[-1]]
    chosen_id = str(sweep["sweep_id"].iloc[0])
    try:
        earlier = load_table(str(sweep["run_id"].iloc[0]), EARLIER_POINTS, store)["run_id"]
    except StoreError:  # most sweeps skip no points
        points = load(store, experiments=experiment, tags={"sweep_id": chosen_id})
    else:
        points = load(store, experiments=experiment)
        is_of_sweep = points["sweep_id"].eq(chosen_id) | points["run_id"].isin(earlier)
        points = points[is_of_sweep.fillna(False)].reset_index(drop=True)
    if points.empty:
        raise StoreError(f"sweep {chosen_id}: no point has finished; measure the sweep first")
    return sweep, with_best_ceilings(points, [store] if store else [])


def write_sweep_page(folder: Path, sweep: pd.DataFrame, frame: pd.DataFrame) -> list[Path]:
    """Write the page and the table of a sweep.

    Args:
        folder: Folder to write into.
        sweep: The run of the sweep, a frame of one row.
        frame: The measurements of the sweep, one row per run.

    Returns:
        The paths of both files.
    """
    points = sweep_points(legible(frame))
    _write(folder / PAGE, _render(sweep, points))
    _write(folder / TABLE, json.dumps(points_table(points)))
    return [folder / PAGE, folder / TABLE]


def write_sweep_report(folder: Path, frame: pd.DataFrame, selection: Selection) -> list[Path]:
    """Write the HTML report of a sweep.

    Args:
        folder: Folder to write into.
        frame: The measurements of the sweep, one row per run.
        selection: Options that select the runs; the report states them in its commands.

    Returns:
        The path of the file, in a list.
    """
    from analysis.report import make_report

    _write(folder / REPORT, make_report(frame, selection))
    return [folder / REPORT]


def log_files(files: Sequence[Path], run_id: str, store: str | None) -> None:
    """Store files as artifacts of a sweep's run.

    Args:
        files: The files.
        run_id: Id of the sweep's run in MLflow.
        store: Address of the store; None for the default one.

    Raises:
        StoreError: If the store does not accept the files.
    """
    address = address_of(store)
    with writing(address.uri):
        client = client_of(address)
        for path in files:
            client.log_artifact(run_id, str(path))
        client.set_tag(run_id, LOGGED_TABLES, tables_tag([TABLE]))


def points_table(points: SweepPoints) -> dict[str, Any]:
    """Return the configurations of a sweep in MLflow's format of tables.

    The fastest one comes first.

    Args:
        points: The configurations with their results.

    Returns:
        A mapping with the keys `columns` (names) and `data` (a list of values per row).
    """
    columns = [POINT, "outcome", *_METRICS, "steady", "family", *points.axes, "run_id"]
    columns = [name for name in dict.fromkeys(columns) if name in points.rows]
    rows = points.rows
    if points.rate is not None:
        is_time = METRICS[points.rate].better == "lower"
        rows = rows.sort_values(points.rate, ascending=is_time, kind="stable")
    table = rows[columns].astype("object")
    return {"columns": columns, "data": [list(map(_json_value, row)) for row in table.to_numpy()]}


def _json_value(value: Any) -> Any:
    if value is None or pd.isna(value):
        return None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bool | int | float):
        return value
    return str(value)


def _render(sweep: pd.DataFrame, points: SweepPoints) -> str:
    figures = list(sweep_figures(points))
    row = sweep.iloc[0]
    title = str(row["run_name"])
    outcomes = points.rows["outcome"].value_counts()
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
    command = row.get("command")
    script = (_FOLDER / "script.js").read_text(encoding="utf-8")
    return (
        _environment()
        .from_string((_FOLDER / "template.html").read_text(encoding="utf-8"))
        .render(
            # Plotly needs 'unsafe-eval' for its WebGL figures.
            policy=Markup(
                "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
                "style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; "
                "base-uri 'none'"
            ),
            title=title,
            counts=f"{counted(len(points.rows), 'point')}: {counts}.",
            command=command if isinstance(command, str) else "",
            notes=_notes(points),
            figures=figures,
            data=Markup(_figures_json(figures)),
            library=Markup(_packed_library()),
            script=Markup(script),
        )
    )


def _notes(points: SweepPoints) -> list[str]:
    """Return sentences on measurements that were not steady or shared their machine."""
    notes = []
    measured = points.measured
    for column, value, text in (
        ("steady", False, "did not reach a steady state"),
        ("contended", True, "shared the machine with other work"),
    ):
        if column in measured:
            count = int(measured[column].eq(value).fillna(False).sum())
            if count:
                notes.append(f"{count:,} of {counted(len(measured), 'measured point')} {text}.")
    return notes


def _figures_json(figures: Sequence[Figure]) -> str:
    """Return the figures as JSON that can be embedded in HTML, since "<" is escaped."""
    content = [{"traces": figure.traces, "layout": figure.layout} for figure in figures]
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _packed_library() -> str:
    """Return Plotly's script, compressed by gzip and in base64: 1.9 MB instead of 4.8 MB."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


@cache
def _environment() -> Environment:
    return Environment(
        autoescape=True, undefined=StrictUndefined, finalize=to_plain_text, trim_blocks=True
    )


def _write(path: Path, text: str) -> None:
    with whole_file(path, "--out") as temporary:
        temporary.write_bytes(text.encode(errors="replace"))
