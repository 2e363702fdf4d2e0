"""Views of an experiment in MLflow's UI: filter, columns of the table, and charts.

A view is a tag of the experiment. MLflow lists it by name in the menu "Views", and opens it from a
link. The menu shows a view as a table. The chart icon next to the search field shows its charts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paradnn.store.metrics import stored_name

_PREFIX = "mlflow.sharedViewState."
#: Unix milliseconds at which these views were last changed. Increase it with every change:
#: experiments with an older view then get the new one.
_CHANGED = 1_795_899_600_000
#: Maximum number of runs in a chart.
_RUNS_PER_CHART = 1_000
_SECTION = "paradnn"
_NAME_COLUMN = "attributes.`Run Name`"
#: Default width of a column in pixels, for a name of 24 characters.
_COLUMN_WIDTH = 230
#: Column -> its width in pixels, if it is not the default.
_COLUMN_WIDTHS = {
    _NAME_COLUMN: 290,
    "attributes.`Duration`": 110,
    "tags.`outcome`": 130,
    "tags.`steady`": 100,
    "tags.`command`": 330,
    "params.`batch_size`": 120,
    "metrics.`points`": 100,
    "metrics.`points.ok`": 110,
}


@dataclass(frozen=True)
class View:
    """A stored selection of runs, columns and charts in MLflow's page of an experiment.

    Attributes:
        name: Name in MLflow's menu.
        content: Description of the shown runs, for a list of links.
        filter: Condition on runs in MLflow's grammar; empty for all runs.
        order: Column by which the table is sorted. If it is the start time, the UI nests runs below
            their parents. Otherwise the UI lists all runs on one level.
        columns: Columns of the table.
        charts: Charts as MLflow stores them.
    """

    name: str
    content: str
    filter: str
    order: str
    columns: tuple[str, ...]
    charts: tuple[Mapping[str, Any], ...] = ()


def _metric_column(name: str) -> str:
    return f"metrics.`{stored_name(name)}`"


def _metric_axis(name: str) -> dict[str, str]:
    return {"key": stored_name(name), "type": "METRIC"}


def _param_axis(name: str) -> dict[str, str]:
    return {"key": name, "type": "PARAM"}


def _chart(kind: str, **settings: Any) -> dict[str, Any]:
    """Return a chart as MLflow's front end stores it; MLflow derives the title from the axes."""
    return {
        "type": kind,
        "runsCountToCompare": _RUNS_PER_CHART,
        "deleted": False,
        "isGenerated": False,
        **settings,
    }


def _scatter(x: Mapping[str, str], y: Mapping[str, str]) -> dict[str, Any]:
    """Return a scatter chart with one mark per run; MLflow offers no logarithmic axes for it.

    Args:
        x: The horizontal axis: `key` is the name of a metric or param, and `type` is "METRIC" or
            "PARAM".
        y: The vertical axis, in the same form.
    """
    return _chart("SCATTER", xaxis=x, yaxis=y)


def _parallel(params: list[str], metrics: list[str]) -> dict[str, Any]:
    """Return a parallel-coordinates chart of the runs that have all given params and metrics."""
    return _chart(
        "PARALLEL",
        selectedParams=params,
        selectedMetrics=[stored_name(name) for name in metrics],
        showAllRuns=False,
    )


_POINT_COLUMNS = (
    "tags.`outcome`",
    "tags.`steady`",
    _metric_column("examples_per_second"),
    _metric_column("examples_per_second_low"),
    _metric_column("examples_per_second_high"),
    _metric_column("peak_memory_bytes"),
    "params.`batch_size`",
    "tags.`device`",
)
_POINT_CHARTS = (
    _scatter(_metric_axis("arithmetic_intensity"), _metric_axis("flops_per_second")),
    _scatter(_param_axis("batch_size"), _metric_axis("examples_per_second")),
    _scatter(_param_axis("model.name"), _metric_axis("flops_utilization")),
    _scatter(_metric_axis("peak_memory_bytes"), _metric_axis("step_time_ms")),
    _parallel(
        ["model.name", "batch_size", "precision"],
        ["peak_memory_bytes", "flops_utilization", "examples_per_second"],
    ),
    _chart("BAR", metricKey=stored_name("examples_per_second")),
)
_MEASURED = "tags.kind = 'point' and tags.source = 'measured'"
_PUBLISHED = "tags.kind = 'point' and tags.source = 'published'"
#: All views, by the key in their links.
VIEWS: Mapping[str, View] = {
    "points": View(
        name="Measured points",
        content="every measured point",
        filter=_MEASURED,
        order=_metric_column("examples_per_second"),
        columns=_POINT_COLUMNS,
        charts=_POINT_CHARTS,
    ),
    "sweeps": View(
        name="Sweeps",
        content="sweeps, their points below them",
        filter="",
        order="attributes.start_time",
        columns=(
            "metrics.`points`",
            "metrics.`points.ok`",
            "attributes.`Duration`",
            "tags.`command`",
            *_POINT_COLUMNS,
        ),
    ),
    "imported": View(
        name="Published measurements",
        content="published measurements",
        filter=_PUBLISHED,
        order=_metric_column("examples_per_second"),
        columns=_POINT_COLUMNS,
        charts=_POINT_CHARTS,
    ),
}


def view_tags() -> Mapping[str, str]:
    """Return the tags of an experiment that define its views in MLflow's UI."""
    return {
        f"{_PREFIX}{key}": json.dumps(
            {
                "name": view.name,
                "createdAt": _CHANGED + position,
                "updatedAt": _CHANGED + position,
                "state": json.dumps(_state(view)),
            }
        )
        # MLflow lists the newest view first.
        for position, (key, view) in enumerate(reversed(list(VIEWS.items())))
    }


def is_outdated(stored: str | None, current: str) -> bool:
    """Return whether an experiment lacks a view or has an earlier version of it.

    A view that a user changed in MLflow has a later time, so it is not outdated.

    Args:
        stored: Value of the view's tag in the experiment; None if the tag is absent.
        current: Value of the tag in this version of ParaDnn.
    """
    try:
        changed = json.loads(stored or "")["updatedAt"]
        return bool(changed < json.loads(current)["updatedAt"])
    except (ValueError, TypeError, KeyError):  # absent, or written by a version without names
        return True


def _state(view: View) -> dict[str, Any]:
    """Convert a view to the format in which MLflow stores the state of its page of runs."""
    columns = [_NAME_COLUMN, *view.columns]
    state = {
        "searchFilter": view.filter,
        "orderByKey": view.order,
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(view.columns),
        "columnOrder": columns,
        "columnWidths": {name: _COLUMN_WIDTHS.get(name, _COLUMN_WIDTH) for name in columns},
    }
    if view.charts:
        charts = [
            {**chart, "uuid": f"{_SECTION}-{number}", "metricSectionId": _SECTION}
            for number, chart in enumerate(view.charts)
        ]
        state |= {
            "compareRunCharts": charts,
            "compareRunSections": _sections(),
            "isAccordionReordered": True,
            "runsHiddenMode": "SHOW_ALL",
            "runListHidden": True,
        }
    return state


def _sections() -> list[dict[str, Any]]:
    """Return the sections of a page of charts: one for the view's charts, and two collapsed.

    MLflow fills the collapsed sections with charts of all model metrics and system metrics.
    """
    names = {_SECTION: "Points", "model": "Model metrics", "system": "System metrics"}
    return [
        {
            "uuid": key,
            "name": name,
            "display": key == _SECTION,
            "isReordered": key == _SECTION,
            "columns": 2,
            "cardHeight": 400,
            "deleted": False,
            "isGenerated": key != _SECTION,
        }
        for key, name in names.items()
    ]


def view_link(server: str, experiment_id: str, view: str, *, charts: bool = False) -> str:
    """Return the address of a view in the UI of an MLflow server.

    Args:
        server: Address of the server, without a slash at the end.
        experiment_id: Id of the experiment.
        view: Key of the view in `VIEWS`.
        charts: Whether the page shows the charts instead of the table.
    """
    mode = "&compareRunsMode=CHART" if charts else ""
    query = f"workflowType=machine_learning&viewStateShareKey={view}{mode}"
    return f"{server}/#/experiments/{experiment_id}/runs?{query}"


def run_link(server: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the address of a run, or of one of its artifacts, in the UI of an MLflow server.

    The address selects MLflow's pages for model training. Otherwise a browser that has not chosen
    them before would show the pages for generative AI.

    Args:
        server: Address of the server, without a slash at the end.
        experiment_id: Id of the experiment.
        run_id: Id of the run.
        artifact: Path of the artifact within the run; empty for the run itself.
    """
    page = f"/artifacts/{artifact}" if artifact else ""
    path = f"experiments/{experiment_id}/runs/{run_id}{page}"
    return f"{server}/#/{path}?workflowType=machine_learning"
