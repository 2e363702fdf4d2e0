"""Bundles of results: they are read like a store, imported once, and checked for damage."""

import hashlib
import json
import os
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.cli import main
from analysis.columns import parse_blocks
from analysis.store.load import (
    _parse_table,
    load,
    load_files,
    load_table,
    load_tables,
    read_environment,
)
from paradnn.core.errors import ConfigError, DataError, ParadnnError
from paradnn.designs.adaptive import _number
from paradnn.families import Model
from paradnn.forecast.table import call_with_model
from paradnn.store.bundle import FORMAT
from paradnn.store.files import inside, unpack, whole_file
from paradnn.store.runs import OWNER
from tests.analysis.conftest import Writer, fc

CreateStore = Callable[[Path], str]


@pytest.fixture(scope="module")
def bundle(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the whole store to a bundle and return its path."""
    path = tmp_path_factory.mktemp("bundle") / "all results.zip"
    assert main(["export", str(path), "--store", store]) == 0
    return path


def assert_same(left: pd.DataFrame, right: pd.DataFrame, ignored: tuple[str, ...]) -> None:
    """Assert that two frames are equal except for the ignored columns and the column order."""
    left = left.drop(columns=list(ignored), errors="ignore")
    right = right.drop(columns=list(ignored), errors="ignore")
    pd.testing.assert_frame_equal(left[sorted(left)], right[sorted(right)])


def test_a_bundle_is_read_like_its_store(store: str, bundle: Path) -> None:
    assert_same(load(str(bundle)), load(store), ("artifact_uri",))

    bundled, original = (
        load(uri, family="lstm", tags={"replicate": "1"}) for uri in (str(bundle), store)
    )
    assert_same(bundled, original, ("artifact_uri",))
    assert len(load(str(bundle), kind="sweep", unfinished=True)) == 1, (
        "a bundle contains the sweeps of its runs"
    )

    tables, expected = (
        load_tables(load(uri, family="fc"), "operation_types.json", uri)
        for uri in (str(bundle), store)
    )
    pd.testing.assert_frame_equal(tables, expected)

    run_id = expected["run_id"].iloc[0]
    assert load_table(run_id, "operation_types.json", str(bundle))["type"].tolist() == [
        "MatMul",
        "Add",
    ]


def test_commands_read_a_bundle_but_cannot_log_into_it(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["heatmap", "--y", "layers", "--family", "fc", "--store", str(bundle)]) == 0
    assert "fc on Test CPU, 2 cores" in capsys.readouterr().out
    assert main(["runs", "--store", str(bundle), "--csv", str(tmp_path / "runs.csv")]) == 0
    assert main(["boxplot", "--log", "--store", str(bundle)]) == 2
    assert "a bundle is read-only" in capsys.readouterr().err


def test_a_bundle_imported_twice_is_logged_once(bundle: Path, store: str, blank: str) -> None:
    for _ in range(2):
        assert main(["import", str(bundle), "--store", blank]) == 0
        assert len(load(blank, kind=None, unfinished=True)) == 35
    bundled = load(blank)
    original = load(store)
    bundled["run_id"] = bundled["origin"]
    bundled["parent_run_id"] = original["parent_run_id"]
    order = ["start_time", "run_id"]
    bundled, original = (
        frame.sort_values(order, ignore_index=True) for frame in (bundled, original)
    )

    assert_same(bundled, original, ("artifact_uri", "origin"))

    [sweep] = load(blank, kind="sweep", unfinished=True)["run_id"]
    assert set(load(blank, tags={"sweep_id": "s1"})["parent_run_id"]) == {sweep}
    assert len(load_tables(load(blank), "operation_types.json", blank)) == 10


def test_two_stores_are_sides_of_a_comparison(
    tmp_path: Path, blank_store: CreateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    uris = []
    for name, factor in (("mine", 2.0), ("other", 1.0)):
        uri = blank_store(tmp_path / name / "mlflow.db")
        writer = Writer(uri, "paradnn", tmp_path / name / "artifacts")
        for batch in range(16, 129, 16):
            writer.run(fc(2, batch), {"examples_per_second": factor * batch}, environment_id=name)
        uris.append(uri)
    other = tmp_path / "other.zip"

    assert main(["export", str(other), "--store", str(tmp_path / "other")]) == 0

    stores = ["--store", uris[0], "--store", str(other)]
    capsys.readouterr()

    assert main(["compare", f"store={uris[0]}", f"store={other}", "--csv", "-", *stores]) == 0

    table = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + 8
    assert main(["boxplot", "--log", *stores]) == 2
    assert "--store=" in capsys.readouterr().err


def test_runs_of_a_store_and_its_bundle_are_loaded_once(store: str, bundle: Path) -> None:
    assert len(load([store, str(bundle)])) == len(load(store))
    assert set(load([store, str(bundle)])["store"]) == {str(bundle)}


def altered_copy(bundle: Path, target: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """Copy a bundle to `target`; `change` maps each name and content to the new content."""
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


NOT_A_BUNDLE = "is not a bundle of results, or is damaged"


def with_manifest(**entries: object) -> Callable[[str, bytes], bytes]:
    """Return a change of a bundle's files that replaces entries of the manifest."""
    return lambda name, text: (
        json.dumps(json.loads(text) | entries).encode() if name == "manifest.json" else text
    )


def assert_not_imported(
    path: Path, message: str, blank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that an import fails with one line that contains `message`, and logs nothing."""
    assert main(["import", str(path), "--store", blank]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    with pytest.raises(ParadnnError, match="no such experiment"):
        load(blank)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda name, text: b"[]" if name == "manifest.json" else text,
            NOT_A_BUNDLE,
            id="a list as the manifest",
        ),
        pytest.param(
            lambda name, text: text + b" " * name.endswith("types.json"),
            "is damaged: its checksum",
            id="a longer file",
        ),
        pytest.param(
            with_manifest(schema_version="9"),
            "has schema_version=9, but this release reads 1",
            id="another version",
        ),
        pytest.param(
            with_manifest(format="x"),
            f"has the format 'x', but this release reads '{FORMAT}'",
            id="another format",
        ),
        pytest.param(
            with_manifest(sha256={"artifacts/../../x": ""}),
            "would be written outside its",
            id="a file outside the folder",
        ),
        pytest.param(with_manifest(sha256="x"), NOT_A_BUNDLE, id="text as checksums"),
        pytest.param(with_manifest(sha256=[["a", "b"]]), NOT_A_BUNDLE, id="a list as checksums"),
        pytest.param(with_manifest(sha256=None), NOT_A_BUNDLE, id="no checksums"),
    ],
)
def test_a_damaged_bundle_is_not_logged(
    bundle: Path,
    tmp_path: Path,
    blank: str,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[str, bytes], bytes],
    message: str,
) -> None:
    damaged = altered_copy(bundle, tmp_path / "damaged.zip", change)

    assert_not_imported(damaged, message, blank, capsys)


def test_a_torn_bundle_is_neither_logged_nor_read(
    bundle: Path, tmp_path: Path, blank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = tmp_path / "torn.zip"
    torn.write_bytes(bundle.read_bytes()[: bundle.stat().st_size // 2])

    assert_not_imported(torn, NOT_A_BUNDLE, blank, capsys)
    with pytest.raises(ParadnnError, match="is not a bundle of results, or is damaged"):
        load(str(torn))


def test_a_missing_bundle_is_not_logged(
    tmp_path: Path, blank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_not_imported(tmp_path / "none.zip", "no bundle of results at", blank, capsys)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_text("old")

    def write(then: Callable[[], object]) -> None:
        with whole_file(path, "--figure") as unfinished:
            assert unfinished.suffix == ".png"
            unfinished.write_text("new")
            then()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(ConfigError) as caught:
        write(lambda: Path("/dev/full").write_text("x" * 10))
    assert (
        str(caught.value)
        == f"--figure={path}: cannot be written (No space left on device); give a writable path"
    )
    with pytest.raises(KeyboardInterrupt):
        write(interrupt)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("figure.png", "old")]

    write(lambda: None)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("figure.png", "new")]


def test_writing_to_a_link_or_a_device_does_not_replace_it(tmp_path: Path) -> None:
    path = tmp_path / "real.csv"
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    for target in (link, Path(os.devnull)):
        with whole_file(target, "--csv") as unfinished:
            unfinished.write_text("1")

    assert link.is_symlink()
    assert path.read_text() == "1"
    assert not Path(os.devnull).is_file()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.csv", "real.csv"]


UNSAFE_NAMES = [
    "/tmp/x",
    "//tmp/x",
    "../x",
    "a/../../x",
    "a//x",
    "./x",
    "a\x00b",
    "a\nb",
    "..\\x",
    "x" * 300,
    "",
]


@pytest.mark.parametrize("name", UNSAFE_NAMES)
def test_a_name_outside_its_folder_is_rejected(tmp_path: Path, name: str) -> None:
    bundle = write_bundle(
        tmp_path / "b.zip", {f"artifacts/r1/{name}": b"x"} if name else {"artifacts/r1/": b""}
    )
    with pytest.raises(DataError, match="would be written outside"):
        load(str(bundle))


def test_a_link_inside_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "trace").symlink_to("/etc")
    for name in ("trace", "trace/passwd"):
        with pytest.raises(DataError, match="is a symbolic link in"):
            inside(tmp_path, name)

    assert inside(tmp_path, "a/b.json") == tmp_path / "a" / "b.json"


def write_bundle(
    path: Path, files: dict[str, bytes], line: object = None, compress: int = zipfile.ZIP_STORED
) -> Path:
    """Write a bundle with correct checksums, as a third party might, and return its path.

    Args:
        path: File to write.
        files: Content of further files by name.
        line: Content of runs.jsonl: a text, an object to be written as JSON, or None for RUN.
        compress: Compression method of the zip file.
    """
    if line is None:
        line = RUN
    runs = line if isinstance(line, str) else json.dumps(line)
    files = {"runs.jsonl": runs.encode(), **files}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    manifest = {"format": FORMAT, "schema_version": "1", "runs": 1, "sha256": sums}
    with zipfile.ZipFile(path, "w", compress) as target:
        for name, content in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
            target.writestr(name, content)
    return path


RUN: dict[str, Any] = {
    "run_id": "r1",
    "run_name": "r",
    "experiment": "paradnn",
    "artifact_uri": None,
    "status": "FINISHED",
    "start_ms": 1,
    "end_ms": 2,
    "params": {"batch_size": "4"},
    "metrics": {"m": 1.0},
    "tags": {"kind": "point", "schema_version": "1", "outcome": "ok"},
}
#: Invalid contents of runs.jsonl.
LINES = {
    "a list": [],
    "not JSON": "{",
    "deeply nested": "[" * 100_000,
    "a missing key": {key: RUN[key] for key in RUN if key != "metrics"},
    "a number as an id": RUN | {"run_id": 7},
    "an id outside the folder": RUN | {"run_id": "../x"},
    "a huge time": RUN | {"start_ms": 10**400},
    "a huge number": json.dumps(RUN).replace('"m": 1.0', f'"m": 1{"0" * 400}'),
    "a number of 5,000 digits": json.dumps(RUN).replace('"m": 1.0', f'"m": {"1" * 5000}'),
    "text as a metric": RUN | {"metrics": {"m": "1"}},
    "a long param": RUN | {"params": {"model.name": "x" * 100_000}},
    "nested params": RUN | {"params": {"a": {"b": "c"}}},
    "one run on two lines": f"{json.dumps(RUN)}\n{json.dumps(RUN)}",
}


def test_deeply_nested_values_do_not_crash_a_reader(tmp_path: Path) -> None:
    deep = "[" * 3900 + "]" * 3900
    assert parse_blocks(deep) is None
    assert [_number(text) for text in (deep, f"1{'0' * 400}", '["a"]', "[3, 4]")] == [
        None,
        None,
        None,
        7,
    ]

    for packed in (deep.encode() * 20, b"[]", b'{"a": {"base64": 1}}'):
        with pytest.raises(DataError, match=r"files\.json is damaged"):
            unpack(packed)
    assert call_with_model((("model.name", "fc"), ("model.nodes", deep)), Model.layer_count, 7) == 7

    run = RUN | {"params": {"model.name": "fc", "model.nodes": deep, "batch_size": "4"}}
    store = str(
        write_bundle(tmp_path / "b.zip", {"artifacts/r1/environment.json": deep.encode() * 20}, run)
    )

    assert main(["compare-published", "--store", store]) in (0, 2)
    assert read_environment(load(store).iloc[0], store) == {}
    with pytest.raises(
        DataError, match=r"operations\.json of run r1 is damaged \(nested too deeply"
    ):
        _parse_table(deep.encode() * 20, "operations.json", "r1")


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_the_error_of_an_invalid_run_names_its_line(
    tmp_path: Path, line: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--store", str(write_bundle(tmp_path / "b.zip", {}, line))]) == 2

    [error] = capsys.readouterr().err.splitlines()
    assert " of runs.jsonl is not a run: " in error
    assert len(error) < 600


def test_a_decompression_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = write_bundle(
        tmp_path / "b.zip", {"artifacts/r1/x": bytes(80 * 2**20)}, compress=zipfile.ZIP_DEFLATED
    )
    with pytest.raises(
        DataError,
        match=r"3 files of 83,88\d,\d{3} bytes in an archive of 8\d,\d{3} bytes, but at most",
    ):
        load(str(bomb))


@pytest.mark.parametrize("location", ["link", "other folder"])
def test_artifacts_outside_the_store_need_paradnn_artifacts(
    store: str,
    tmp_path: Path,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = tmp_path / "mine" / "mlflow.db"
    other = tmp_path / "other"
    database.parent.mkdir()
    (other / "artifacts").mkdir(parents=True)
    (other / "artifacts" / "secret.json").write_text("{}")
    shutil.copy(store.removeprefix("sqlite:///"), database)
    (database.parent / "link").symlink_to(other)
    target = database.parent / "link" if location == "link" else other
    artifacts = target / "artifacts"
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE runs SET artifact_uri = ?", (artifacts.as_uri(),))
    connection.close()
    command = ["export", str(tmp_path / "out.zip"), "--store", str(database), "--family", "fc"]

    assert main(command) == 2
    assert f"outside {database.parent}, the folder of its store" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="files of 30 runs are not read"):
        assert load_files(load(str(database), family="fc"), "secret.json", str(database)) == {}

    monkeypatch.setenv("PARADNN_ARTIFACTS", str(other))
    assert main(command) == 0


def test_a_killed_import_is_marked_and_repeated(bundle: Path, tmp_path: Path, blank: str) -> None:
    assert main(["import", str(bundle), "--store", blank]) == 0

    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        [[run_id, owner]] = database.execute(
            "SELECT run_uuid, value FROM tags WHERE key = ? AND run_uuid IN "
            "(SELECT run_uuid FROM params WHERE value = 'lstm') LIMIT 1",
            (OWNER,),
        ).fetchall()
        dead_owner = json.dumps(json.loads(owner) | {"started": 1.0})
        database.execute(
            "UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE run_uuid = ?", (run_id,)
        )
        database.execute(
            "UPDATE tags SET value = ? WHERE key = 'mlflow.paradnn.owner' AND run_uuid = ?",
            (dead_owner, run_id),
        )
        database.execute(
            "DELETE FROM tags WHERE key IN ('outcome', 'origin') AND run_uuid = ?", (run_id,)
        )
    assert main(["import", str(bundle), "--store", blank]) == 0
    assert database.execute("SELECT status FROM runs WHERE run_uuid = ?", (run_id,)).fetchall() == [
        ("KILLED",)
    ]
    assert database.execute("SELECT count(*) FROM runs WHERE status = 'RUNNING'").fetchall() == [
        (0,)
    ]

    database.close()
    assert len(load(blank, kind=None, unfinished=True)) == 36
