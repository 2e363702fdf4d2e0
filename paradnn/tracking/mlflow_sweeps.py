"""What the MLflow tracker does for sweeps of several tasks: one process opens the parent, the others join it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paradnn.errors import StoreError
from paradnn.store.address import StoreAddress
from paradnn.store.errors import raises_store_errors
from paradnn.store.files import read_json
from paradnn.tracking.run_index import Entry, RunIndex

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["LaunchedSweeps"]

#: How the tags of a parent begin that hold its tasks' reports; the task's number follows.
_TASK = "task."


class LaunchedSweeps:
    """Joins a parent that is there, and reads what its tasks left; see `paradnn.tracking.base.Tracker`."""

    _client: MlflowClient
    _index: RunIndex
    _address: StoreAddress
    _parent: str | None
    _close: Callable[[Entry], bool]

    @raises_store_errors
    def enter_sweep(self, parent: str, name: str, description: str, tags: Mapping[str, str]) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.get_run(parent)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise StoreError(
                f"{self._address.public}: does not hold the sweep {tags['sweep_id']}; give a store that every host sees"
            ) from error
        self._parent = parent

    @raises_store_errors
    def drop_sweep(self) -> None:
        if self._parent is not None:
            self._client.set_terminated(self._parent)
            self._client.delete_run(self._parent)
            self._parent = None

    @raises_store_errors
    def report_task(self, task: int, report: Mapping[str, Any]) -> None:
        if self._parent is not None:
            self._client.set_tag(self._parent, f"{_TASK}{task}", json.dumps(report))

    @raises_store_errors
    def task_reports(self) -> dict[int, dict[str, Any]]:
        if self._parent is None:
            return {}
        tags = self._client.get_run(self._parent).data.tags
        reports = {}
        for key in tags:
            with contextlib.suppress(ValueError):  # what is no report was written by others
                if key.startswith(_TASK) and isinstance(report := read_json(tags[key]), dict):
                    reports[int(key.removeprefix(_TASK))] = report
        return reports

    @raises_store_errors
    def sweep_rows(self, sweep_id: str) -> list[dict[str, Any]]:
        return self._index.sweep_rows(sweep_id)

    @raises_store_errors
    def release(self, sweep_id: str) -> int:
        left = [entry for entry in self._index.with_tag("sweep_id", sweep_id) if entry.tags.get("kind") != "sweep"]
        return sum(self._close(entry) for entry in left if entry.status == "RUNNING")
