"""Parquet stores: they read like the exported store, append each run once, and survive kills."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.cli import COMMANDS, main
from analysis.store.load import load, load_tables
from benchmarks.common import Planted, fill
from paradnn.core.errors import ConfigError, DataError, NoStoreError, SchemaError
from paradnn.store.address import MARKER, address_of
from paradnn.store.columns import Records
from paradnn.store.parquet import ParquetReader, append_runs
from paradnn.store.reader import read_columns
from paradnn.store.runs import Query, Row, Run
from tests.conftest import ROOT

DAY = 86_400_000
START = 1_769_000_000_000  # 2026-01-21 12:53:20 UTC in ms
DEVICES = ("Test CPU, 2 cores", "GPU/8 @ 100%")


@pytest.fixture(scope="module")
def folder(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the whole store to a Parquet store and return its folder."""
    target = tmp_path_factory.mktemp("parquet") / "all runs"
    assert main(["export", "--parquet", str(target), "--store", store]) == 0
    return target


def planted() -> Iterator[Planted]:
    """Yield 96 points of two devices over three months, in three sessions per device."""
    draw = np.random.default_rng(0)
    for number in range(96):
        device = number % 2
        replicate = number // 2 % 3
        nodes = 32 * 2 ** (number // 6 % 4)
        batch = 16 * 2 ** (number // 24)
        speed = 100.0 * batch**0.6 / nodes**0.3 * (1.5, 1.0)[device] * draw.lognormal(0, 0.01)
        yield Planted(
            run_id=f"{number:032x}",
            start=START + number * DAY,
            params={"model.name": "fc", "model.nodes": nodes, "model.layers": 4}
            | {"batch_size": batch, "precision": "float32", "platform.name": "cpu"},
            tags={"kind": "point", "schema_version": "1", "source": "measured", "steady": "true"}
            | {"outcome": "oom_device" if number == 40 else "ok", "replicate": replicate}
            | {"device": DEVICES[device], "environment_id": f"env-{device}", "host": "n1"}
            | {"point_id": f"p{nodes}-{batch}", "protocol_id": "proto", "sweep_id": f"s{replicate}"}
            | {"session_id": f"{device}-{replicate}", "version.tensorflow": "2.21.0"},
            metrics={}
            if number == 40
            else {"examples_per_second": speed, "step_time_ms": 1e3 * batch / speed}
            | {"flops_per_second": speed * nodes * nodes * 2e3, "parameters": nodes * nodes * 4}
            | {"flops_per_step": 6 * batch * nodes * nodes, "bytes_per_step": 4e3 * nodes}
            | {"arithmetic_intensity": 1.5 * batch, "peak_memory_bytes": 1e6 * nodes}
            | {"phase_measure_seconds": 1.0, "phase_start_seconds": 0.2 + 0.01 * replicate}
            | {"infeed_fraction": 0.1, "energy_joules": float("inf"), "latency_p50_ms": 9e3 / speed}
            | {"op_share.MatMul": 0.7, "op_share.Add": 0.3, "category_share.matmul": 0.7},
        )


@pytest.fixture(scope="module")
def measured(
    blank_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """Return the URIs of a store of planted points and of its exported Parquet store."""
    target = tmp_path_factory.mktemp("measured")
    uri = blank_store(target / "mlflow.db")
    fill(target / "mlflow.db", planted())
    assert main(["export", "--parquet", str(target / "parquet"), "--store", uri]) == 0
    return uri, str(target / "parquet")


def row(number: int, **fields: object) -> Row:
    """Return the row of a finished point; `fields` override those of the row."""
    run = Run(f"run{number}", f"name {number}", "paradnn", "FINISHED", START + number, None, None)
    tags = {"kind": "point", "schema_version": "1", "outcome": "ok", "device": "D"}
    default = Row(run, {"model.name": "fc"}, tags, {"examples_per_second": float(number)})
    return default._replace(**fields)  # type: ignore[arg-type]


def parquet_files(target: Path) -> list[Path]:
    return sorted(target.rglob("*.parquet"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="all"),
        pytest.param({"kind": None, "unfinished": True}, id="every kind"),
        pytest.param({"family": "lstm", "tags": {"replicate": "1"}}, id="param and tag"),
        pytest.param({"tags": {"device": "Test CPU, 2 cores"}}, id="device"),
        pytest.param({"since": "2025-10-09T09:00", "until": "2025-10-09T09:10"}, id="time"),
        pytest.param({"outcome": ("oom_device", "nan")}, id="outcome"),
        pytest.param({"columns": ("batch_size", "parameters", "host")}, id="columns"),
        pytest.param({"family": "gru"}, id="nothing"),
    ],
)
def test_a_parquet_store_is_read_like_the_exported_store(
    store: str, folder: Path, options: dict[str, object]
) -> None:
    expected = load(store, **options)  # type: ignore[arg-type]

    found = load(str(folder), **options)  # type: ignore[arg-type]

    if options.get("unfinished"):  # a point without an outcome is not exported
        expected = expected[expected["outcome"].notna() | (expected["kind"] == "sweep")]
        expected = expected.reset_index(drop=True)

    pd.testing.assert_frame_equal(found, expected)


def test_tables_are_read_from_the_artifacts_of_the_original_store(store: str, folder: Path) -> None:
    tables, expected = (
        load_tables(load(uri, family="fc"), "operation_types.json", uri)
        for uri in (str(folder), store)
    )

    assert len(expected) > 0
    pd.testing.assert_frame_equal(tables, expected)


#: Required arguments of analyses.
ARGUMENTS = {
    "heatmap": ["--y", "nodes"],
    "compare": [f"device={DEVICES[0]}", f"device={DEVICES[1]}"],
    "speedup": ["--a", f"device={DEVICES[0]}", "--b", f"device={DEVICES[1]}"],
    "overhead": ["--layers"],
}


@pytest.mark.parametrize("name", [command.name for command in COMMANDS if command.analysis])
def test_every_analysis_gives_the_same_answer_from_parquet_and_sqlite(
    measured: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    answers = []
    for uri in measured:
        table = tmp_path / "table.csv"
        arguments = [name, *ARGUMENTS.get(name, []), "--store", uri]

        code = main([*arguments, "--csv", str(table)])

        printed = capsys.readouterr()
        text = (printed.out + printed.err).replace(uri, "STORE")
        answers.append((code, text, table.read_bytes() if table.exists() else b""))
        table.unlink(missing_ok=True)

    assert answers[0] == answers[1]
    assert answers[0][0] == 0 or name not in ("heatmap", "compare", "speedup", "overhead", "runs")


def test_runs_are_partitioned_by_experiment_month_and_device(measured: tuple[str, str]) -> None:
    target = Path(measured[1])
    months = ("2026-01", "2026-02", "2026-03", "2026-04")
    devices = ("GPU%2F8 %40 100%25", "Test CPU%2C 2 cores")

    parts = {path.parent.relative_to(target).as_posix() for path in parquet_files(target)}

    assert parts == {
        f"experiment=paradnn/month={month}/device={device}"
        for month in months
        for device in devices
    }


def test_programs_that_read_hive_partitions_get_the_same_values(
    measured: tuple[str, str],
) -> None:
    frame = pd.read_parquet(Path(measured[1]), partitioning="hive")

    assert set(frame["device"].astype(str)) == set(DEVICES)
    assert len(frame) == 96


def test_only_files_of_matching_partitions_are_opened(
    measured: tuple[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "store"
    subprocess.run(["cp", "-r", measured[1], str(target)], check=True)
    for path in parquet_files(target):
        if "month=2026-02" not in str(path) or "GPU" not in str(path):
            path.write_bytes(b"not a Parquet file")

    found = load(
        str(target), tags={"device": DEVICES[1]}, since="2026-02-03", until="2026-02-20T12:00"
    )

    assert set(found["device"]) == {DEVICES[1]}
    assert len(found) == 9
    with pytest.raises(DataError, match="a file of this store is damaged"):
        load(str(target))


def test_a_run_exported_twice_is_one_row(tmp_path: Path) -> None:
    rows = [row(number) for number in range(4)]

    counts = [
        append_runs(tmp_path / "store", Records.of(part))
        for part in (rows[:3], rows[:3], rows[1:], rows)
    ]

    assert counts == [3, 0, 1, 0]
    assert sum(len(pq.read_table(path)) for path in parquet_files(tmp_path / "store")) == 4


def test_a_run_in_two_copied_stores_is_read_once(tmp_path: Path) -> None:
    append_runs(tmp_path / "a", Records.of([row(1), row(2)]))
    append_runs(tmp_path / "b", Records.of([row(2), row(3)]))
    subprocess.run(["cp", "-r", f"{tmp_path}/b/.", f"{tmp_path}/a"], check=True)

    records, experiments = read_columns(address_of(str(tmp_path / "a")), Query(("paradnn",)))

    assert [run.run_id for run in records.runs] == ["run1", "run2", "run3"]
    assert experiments == ["paradnn"]


def test_appended_runs_may_have_different_keys(tmp_path: Path) -> None:
    append_runs(tmp_path, Records.of([row(1, params={"old": "1"}, metrics={})]))
    append_runs(tmp_path, Records.of([row(2, params={"new": "2"}), row(3)]))

    rows = ParquetReader(address_of(str(tmp_path))).read(Query(("paradnn",)))

    assert [found.params for found in rows] == [{"old": "1"}, {"new": "2"}, {"model.name": "fc"}]
    assert [found.metrics for found in rows] == [
        {},
        {"examples_per_second": 2.0},
        {"examples_per_second": 3.0},
    ]


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("NVIDIA H100/80 GB=x%20", id="special characters"),
        pytest.param("プロセッサ" * 40, id="long name"),
        pytest.param("", id="empty name"),
        pytest.param("..", id="parent folder"),
    ],
)
def test_runs_of_any_device_name_are_found(tmp_path: Path, device: str) -> None:
    named = row(1, tags={**row(1).tags, "device": device})
    append_runs(tmp_path / "store", Records.of([named, row(2)]))

    reader = ParquetReader(address_of(str(tmp_path / "store")))

    assert reader.read(Query(("paradnn",), tags={"device": (device,)})) == [named]
    assert {path.name for path in tmp_path.iterdir()} == {"store"}


def test_a_query_for_the_newest_runs_returns_them_first(tmp_path: Path) -> None:
    append_runs(tmp_path, Records.of([row(number) for number in (3, 1, 2)]))

    reader = ParquetReader(address_of(str(tmp_path)))

    newest = reader.read(Query(("paradnn",), newest=2))

    assert [found.run.run_id for found in newest] == ["run3", "run2"]


#: Program that appends runs of many partitions, slowly enough to be killed between files.
EXPORT = """
import sys
from pathlib import Path
from paradnn.store.columns import Records
from paradnn.store.parquet import append_runs
from tests.analysis.test_parquet import many_rows
records = Records.of(many_rows())
print("ready", flush=True)
print(append_runs(Path(sys.argv[1]), records), flush=True)
"""


def many_rows() -> list[Row]:
    """Return 400 runs in 40 partitions."""
    return [
        row(number, tags={**row(1).tags, "device": f"device {number % 40}"})
        for number in range(400)
    ]


@pytest.mark.parametrize(
    "files_before", [pytest.param(count, id=f"after {count} files") for count in (1, 15)]
)
def test_a_killed_export_leaves_complete_files_and_can_be_repeated(
    tmp_path: Path, files_before: int
) -> None:
    target = tmp_path / "store"
    command = [sys.executable, "-c", EXPORT, str(target)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while len(parquet_files(target)) < files_before and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    partition = target / "experiment=paradnn" / "month=2026-01" / "device=device 0"
    partition.mkdir(parents=True, exist_ok=True)
    unfinished = partition / ".runs-0123.tmp"
    unfinished.write_bytes(b"PAR1 half")

    partial = ParquetReader(address_of(str(target))).read(Query(("paradnn",)))
    missing = append_runs(target, Records.of(many_rows()))

    assert len(partial) == 10 * (len(partial) // 10)
    assert len(partial) >= 10 * files_before
    assert len(partial) + missing == 400
    assert ParquetReader(address_of(str(target))).read(Query(("paradnn",))) == many_rows()
    assert not unfinished.exists()


def test_a_folder_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()

    with pytest.raises(ConfigError, match="contains other files, such as notes"):
        append_runs(tmp_path, Records.of([row(1)]))

    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param("{", DataError, id="damaged"),
        pytest.param('{"format": "other", "schema_version": "1"}', DataError, id="other format"),
        pytest.param(
            '{"format": "paradnn-parquet-1", "schema_version": "9"}', SchemaError, id="other schema"
        ),
    ],
)
def test_a_store_of_an_unknown_version_is_rejected(
    tmp_path: Path, content: str, error: type[Exception]
) -> None:
    (tmp_path / MARKER).write_text(content)

    with pytest.raises(error):
        ParquetReader(address_of(str(tmp_path)))
    with pytest.raises(error):
        append_runs(tmp_path, Records.of([row(1)]))


def test_a_column_of_an_unexpected_type_is_rejected(tmp_path: Path) -> None:
    append_runs(tmp_path, Records.of([row(1)]))
    path = parquet_files(tmp_path)[0]
    table = pq.read_table(path, partitioning=None)
    name = "params.model.name"
    index = table.schema.get_field_index(name)
    pq.write_table(table.set_column(index, name, pa.array([1.5])), path)

    with pytest.raises(DataError, match="damaged"):
        ParquetReader(address_of(str(tmp_path))).columns(Query(("paradnn",)))


def test_a_file_written_by_another_program_is_read(tmp_path: Path) -> None:
    """Spark and other programs write text columns without dictionaries when they merge files."""
    append_runs(tmp_path, Records.of([row(1), row(2)]))
    path = parquet_files(tmp_path)[0]
    table = pq.read_table(path, partitioning=None)
    plain = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    merged = pa.table(dict(zip(table.column_names, plain, strict=True)))
    pq.write_table(merged, path.with_name("part-0.parquet"), store_schema=False)
    path.unlink()

    assert ParquetReader(address_of(str(tmp_path))).read(Query(("paradnn",))) == [row(1), row(2)]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param("export", "--parquet DIR", id="no target"),
        pytest.param(
            "export x.csv --parquet {folder}", "cannot be combined with --parquet", id="two targets"
        ),
        pytest.param("export --parquet {store}/mlflow.db/x", "cannot be written", id="unwritable"),
        pytest.param(
            "export {tmp}/x.zip --store {remote}", "export the bundle from that store", id="zip"
        ),
        pytest.param(
            "boxplot --log --store {folder}", "only python -m analysis export", id="log into it"
        ),
        pytest.param("runs --store parquet:{store}", "no Parquet store at", id="other folder"),
    ],
)
def test_invalid_uses_of_a_parquet_store_have_a_remedy(
    store: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    message: str,
) -> None:
    base = Path(store.removeprefix("sqlite:///")).parent
    remote = row(1)._replace(run=row(1).run._replace(artifact_uri="s3://bucket/run1/artifacts"))
    append_runs(tmp_path / "remote", Records.of([remote]))
    names = {"folder": folder, "store": base, "tmp": tmp_path, "remote": tmp_path / "remote"}
    words = [word.format(**names) for word in command.split()]
    if "--store" not in words:
        words += ["--store", store]

    assert main(words) == 2

    assert message in capsys.readouterr().err


def test_an_empty_folder_is_rejected_and_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError):
        ParquetReader(address_of(f"parquet:{tmp_path}"))
    assert not list(tmp_path.iterdir())
