"""What the parent run of a sweep shows: its table in words, as a file, and as a picture."""

from __future__ import annotations

import struct

from paradnn.session.parent_run import PICTURE, picture, table_file, table_text
from paradnn.session.summary import Row
from paradnn.store.files import file_content


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


def test_the_description_has_a_line_for_each_point_the_fastest_first() -> None:
    lines = table_text([row(1), row(2), row(3, "oom_host")]).splitlines()
    assert lines[0] == "| point | outcome | examples/s | 95% CI | memory | steady |"
    assert lines[2:] == [
        "| fc 4x2 | ok | 1,002.0 | 900.0 to 1,100.5 | 1.50 GiB | yes, contended |",
        "| fc 4x1 | ok | 1,001.0 | 900.0 to 1,100.5 | 1.50 GiB | yes, contended |",
        "| fc 4x3 | oom_host |  |  |  |  |",
    ]
    assert table_text([]) == ""


def test_other_units_stand_beside_the_numbers() -> None:
    generated = row(2)
    generated.metrics.update(tokens_per_second=50.0, tokens_per_second_low=40.0, tokens_per_second_high=60.0)
    lines = table_text([row(1), generated]).splitlines()
    assert lines[0].startswith("| point | outcome | speed | 95% CI |")
    assert {line.split("|")[3].strip() for line in lines[2:]} == {"1,001.0 examples/s", "50.0 tokens/s"}
    assert table_text([generated]).startswith("| point | outcome | tokens/s | 95% CI |")


def test_a_long_table_is_cut_where_a_description_ends_and_says_so() -> None:
    text = table_text([row(number) for number in range(2000)])
    assert len(text) < 4000
    shown = text.count("\n| fc")
    assert f"{2000 - shown:,} more points in the artifact `sweep.json`." in text


def test_the_file_has_every_row_without_bookkeeping() -> None:
    table = table_file([row(1), row(2, "crash")])
    assert table["columns"][:3] == ["name", "outcome", "examples_per_second"]
    assert {"steady", "run_id", "reason"} <= set(table["columns"])
    assert not {"kind", "mlflow.paradnn.owner"} & set(table["columns"])
    assert [len(values) for values in table["data"]] == [len(table["columns"])] * 2


def test_the_picture_is_one_and_is_only_made_of_what_was_measured() -> None:
    content = file_content(picture("a sweep", [row(1), row(2, "oom_host")])[PICTURE])
    assert content.startswith(b"\x89PNG")
    assert min(struct.unpack(">II", content[16:24])) > 100
    assert picture("a sweep", [row(1, "crash")]) == {}
