"""What the parent run of a sweep shows: its table in words, as a file, and as a picture."""

from __future__ import annotations

from paradnn.session.parent_run import table_file
from paradnn.session.summary import Row


def row(number: int, outcome: str = "ok") -> Row:
    metrics = {
        "examples_per_second": 1000.0 + number,
        "examples_per_second_low": 900.0,
        "examples_per_second_high": 1100.5,
        "peak_memory_bytes": 1.5 * 2**30,
    }
    tags = {"steady": "true", "contended": "true", "mlflow.paradnn.owner": "{}", "kind": "point"}
    ok = outcome == "ok"
    return Row(f"id{number}", f"fc 4x{number}", "fc", outcome, None, metrics if ok else {}, tags if ok else {})


def test_the_file_has_every_row_without_bookkeeping() -> None:
    table = table_file([row(1), row(2, "crash")])
    assert table["columns"][:3] == ["name", "outcome", "examples_per_second"]
    assert {"steady", "run_id", "reason"} <= set(table["columns"])
    assert not {"kind", "mlflow.paradnn.owner"} & set(table["columns"])
    assert [len(values) for values in table["data"]] == [len(table["columns"])] * 2
