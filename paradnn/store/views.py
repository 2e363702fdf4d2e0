"""How the MLflow UI shows an experiment: views with columns, kept as tags of the experiment and opened by a link.

The UI keeps what a user chose in the browser alone. What its "Share" button makes is a tag of the experiment,
`mlflow.sharedViewState.KEY`, with filter, order and columns, which `?viewStateShareKey=KEY` opens: so a view can be
given along. Written for MLflow 3.17; a version that knows more keys leaves them at their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

__all__ = ["VIEWS", "link", "view_tags"]

_PREFIX = "mlflow.sharedViewState."
_METRIC, _TAG, _ATTRIBUTE, _PARAM = ("metrics.`{}`", "tags.`{}`", "attributes.`{}`", "params.`{}`")
_NAME = _ATTRIBUTE.format("Run Name")

#: Columns with their widths in pixels: of a point, and of a sweep.
_POINT = {
    _TAG.format("outcome"): 90,
    _TAG.format("steady"): 75,
    _METRIC.format("examples_per_second"): 165,
    _METRIC.format("examples_per_second_low"): 190,
    _METRIC.format("examples_per_second_high"): 195,
    _METRIC.format("peak_memory_bytes"): 165,
    _PARAM.format("batch_size"): 95,
    _TAG.format("contended"): 95,
    _TAG.format("device"): 200,
}
_SWEEP = {
    _METRIC.format("points"): 80,
    _METRIC.format("points.ok"): 90,
    _ATTRIBUTE.format("Duration"): 90,
    _TAG.format("command"): 500,
}
#: Key of a view -> (what it shows, filter, order, columns). Sorted by time, runs stand below their parents; sorted by
#: anything else, each has a line of its own.
VIEWS = {
    "points": (
        "every measured point",
        "tags.kind = 'point' and tags.source = 'measured'",
        _METRIC.format("examples_per_second"),
        _POINT,
    ),
    "sweeps": ("sweeps, their points below them", "", "attributes.start_time", {**_SWEEP, **_POINT}),
    "imported": (
        "published measurements",
        "tags.kind = 'point' and tags.source = 'published'",
        _METRIC.format("examples_per_second"),
        _POINT,
    ),
}


def view_tags() -> Mapping[str, str]:
    """The tags of an experiment that hold its views."""
    return {f"{_PREFIX}{key}": json.dumps(_state(*view[1:])) for key, view in VIEWS.items()}


def link(server: str, experiment_id: str, view: str = "points") -> str:
    """The address of a view in the UI that answers at `server`."""
    return f"{server}/#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={view}"


def _state(chosen: str, order: str, columns: Mapping[str, int]) -> dict[str, object]:
    widths = {_NAME: 260, **columns}
    return {
        "searchFilter": chosen,
        "orderByKey": order,
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns),
        "columnOrder": list(widths),
        "columnWidths": widths,
    }
