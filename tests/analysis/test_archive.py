import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.published.source import log_found, shipped
from analysis.store.load import load, load_tables
from benchmarks.published.archive import read_archive
from paradnn.core.errors import StoreError
from tests.analysis.published import ARCHIVE

LABEL = "layer_{}-node_{}-input_2000-output_1000-bs_{}"


def measured(points: list[tuple[int, int, int]], states: dict[str, str], share: float) -> dict[str, list[Any]]:
    """A file like tpu_fc.json: `share` of a step's FLOPs are counted, ten steps a second."""
    weights = np.array([2000 * nodes + (layers - 1) * nodes**2 + 1000 * nodes for layers, nodes, _ in points], float)
    batches = np.array([batch for *_, batch in points], float)
    work = 6e-9 * share * weights * batches
    columns = {
        "params": weights,
        "fl": work,
        "flops": 10 * work,
        "step_per_sec": np.full(len(points), 10.0),
        "example_per_sec": 10 * batches,
        "intensity": work * 1e9 / (4 * weights),
    }
    return {
        "labels": [LABEL.format(*point) for point in points],
        "err_jobs": list(states),
        "states": list(states.values()),
        **{name: list(values) for name, values in columns.items()},
    }


def write(folder: Path, **files: Any) -> Path:
    """The files of an archive, in the published layout; returns the folder."""
    traced = LABEL.format(4, 32, 64)
    contents = {
        "tpu_fc": measured(
            [(4, 32, 64), (4, 32, 128), (8, 64, 64)],
            {LABEL.format(64, 8192, 64): "OOM", LABEL.format(64, 8192, 128): "NaN value"},
            1 / 8,
        ),
        "gpu_fc": measured([(4, 32, 64), (8, 64, 64)], {LABEL.format(4, 32, 128): "no error but not finished"}, 1),
        "fc_trace_10sec": {
            "labels": [traced],
            "flops_perc": [5.0],
            "memory_bandwidth": [50.0],
            "intensity": [7.5],
            "rawMB": [1000.0],
            "infeed": [25.0],
            "time_perc": [100],
            "flops_trace": [[4.0, 5.0, 2.0]],
            "infeed_trace": [[26.0, 25.0, 80.0]],
        },
        "fc_trace_10sec_opbreakdown": {
            "labels": [f"{traced}-{kind}" for kind in ("output fusion", "while", "after-all")],
            "flops_perc": [40.0, 900.0, 0.0],
            "memory_bandwidth": [60.0, 100, 0],
            "time_perc": [30.0, 0.5, 0.1],
            "intensity": [50.0, 7.0, float("nan")],
            "rawMB": [800.0, 10.0, 0.0],
        },
    } | files
    for name, content in contents.items():
        if content is not None:
            (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published files where PARADNN_ARCHIVE names their folder, else small ones of the same layout."""
    if "PARADNN_ARCHIVE" in os.environ:
        return Path(os.environ["PARADNN_ARCHIVE"])
    return write(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def imported(archive: Path, tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """The URI of a store that holds the archive, imported once."""
    uri = blank_store(tmp_path_factory.mktemp("imported") / "mlflow.db")
    log_found(read_archive(archive), uri)
    return uri


def raw(archive: Path, name: str) -> dict[str, list[Any]]:
    return json.loads((archive / f"{name}.json").read_text())


def test_every_entry_becomes_a_run_with_its_outcome(archive: Path, imported: str) -> None:
    tpu, gpu = raw(archive, "tpu_fc"), raw(archive, "gpu_fc")
    frame = load(imported)
    for device, platform, content in (("TPU v2", "tpu", tpu), ("V100", "gpu", gpu)):
        runs = frame[frame["device"] == device]
        assert (len(runs[runs["outcome"] == "ok"]), len(runs)) == (
            len(content["labels"]),
            len(content["labels"]) + len(content["err_jobs"]),
        )
        assert set(runs["platform.name"]) == {platform}
        failed = runs[runs["outcome"] != "ok"].set_index("archive_label")["reason"]
        assert failed.str.removesuffix(" (state in the archive)").to_dict() == dict(
            zip(content["err_jobs"], content["states"], strict=True)
        )
    assert (frame["outcome"] == "oom_device").sum() == tpu["states"].count("OOM")
    assert set(frame["source"]) == {"published"}
    assert set(frame["status"]) == {"FINISHED", "FAILED"}


def test_numbers_arrive_in_this_projects_units(archive: Path, imported: str) -> None:
    frame = load(imported, outcome="ok")
    for name, device, cores in (("tpu_fc", "TPU v2", 8), ("gpu_fc", "V100", 1)):
        content = raw(archive, name)
        expected = pd.DataFrame({key: content[key] for key in content if len(content[key]) == len(content["labels"])})
        runs = frame[frame["device"] == device].set_index("archive_label").loc[content["labels"]]
        shape = np.array([[int(number) for number in re.findall(r"\d+", label)] for label in content["labels"]])
        columns = ["model.layers", "model.nodes", "model.input_size", "model.output_size", "batch_size"]
        np.testing.assert_array_equal(runs[columns].to_numpy(int), shape)
        for column, values in {
            "examples_per_second": expected["example_per_sec"],
            "step_time_ms": 1000 / expected["step_per_sec"],
            "flops_per_second": expected["flops"] * 1e9 * cores,
            "flops_per_step": expected["fl"] * 1e9 * cores,
            "published_flops_per_second": expected["flops"] * 1e9,
            "parameters": expected["params"],
            "published_intensity": expected["intensity"],
            # Table 3 of the paper: 180 TFLOP/s of the board, 125 of the V100's tensor cores.
            "flops_utilization_spec": expected["flops"] / {"TPU v2": 22.5e3, "V100": 125e3}[device],
        }.items():
            np.testing.assert_allclose(runs[column], values, rtol=1e-12, err_msg=column)
        # Independent of the file's FLOPs: three products of a batch with each weight, two operations each.
        weights = shape[:, 2] * shape[:, 1] + (shape[:, 0] - 1) * shape[:, 1] ** 2 + shape[:, 1] * shape[:, 3]
        ratio = runs["flops_per_step"] / (6 * shape[:, 4] * weights)
        assert ratio.between(0.98, 1.15).all(), "the whole board's work, not one core's"


def test_traces_and_operations_stand_with_their_point(archive: Path, imported: str) -> None:
    traces, operations = raw(archive, "fc_trace_10sec"), raw(archive, "fc_trace_10sec_opbreakdown")
    frame = load(imported, platform="tpu").set_index("archive_label")
    traced = frame.loc[traces["labels"]]
    np.testing.assert_allclose(traced["trace_flops_utilization"], np.array(traces["flops_perc"]) / 100)
    np.testing.assert_allclose(traced["trace_bandwidth_utilization"], np.array(traces["memory_bandwidth"]) / 100)
    np.testing.assert_allclose(traced["infeed_fraction"], np.array(traces["infeed"]) / 100)
    assert frame["trace_bytes"].notna().sum() == len(traces["labels"])
    tables = load_tables(frame.reset_index(), "operation_types.json", imported)
    assert len(tables) == len(operations["labels"])
    names = tables["run_id"].map(frame.reset_index().set_index("run_id")["archive_label"]) + "-" + tables["type"]
    tables = tables.set_index(names).loc[operations["labels"]]
    np.testing.assert_allclose(tables["share"], np.array(operations["time_perc"]) / 100)
    np.testing.assert_allclose(tables["bytes"], np.array(operations["rawMB"]) * 1e6)
    loop = tables["type"] == "while"
    np.testing.assert_allclose(
        tables.loc[~loop, "flops_per_second"], np.array(operations["flops_perc"])[~loop] * 1.8e12
    )
    assert tables.loc[loop, "flops_per_second"].isna().all(), "the loop's rate is not its own"
    shares = traced[[name for name in traced if name.startswith("op_share.")]].sum(axis=1)
    np.testing.assert_allclose(shares, tables.groupby("run_id")["share"].sum().loc[traced["run_id"]])


def test_all_captures_of_a_traced_run_are_kept(archive: Path, imported: str) -> None:
    content = raw(archive, "fc_trace_10sec")
    frame = load(imported, platform="tpu").set_index("archive_label")
    traced = frame.loc[content["labels"]]
    captures = pd.Series(content["flops_trace"], index=traced["run_id"])
    np.testing.assert_array_equal(traced["trace_captures"], captures.map(len))
    np.testing.assert_allclose(traced["trace_flops_utilization_median"], captures.map(np.median) / 100)
    np.testing.assert_allclose(traced["trace_flops_utilization_lowest"], captures.map(min) / 100)
    assert (traced["trace_flops_utilization_median"] <= traced["trace_flops_utilization"]).all()
    tables = load_tables(frame.reset_index(), "traces.json", imported)
    assert len(tables) == captures.map(len).sum()
    for run, waits in zip(captures.index, content["infeed_trace"], strict=True):
        mine = tables[tables["run_id"] == run].sort_values("capture")
        np.testing.assert_allclose(mine["flops_utilization"] * 100, captures[run])
        np.testing.assert_allclose(mine["infeed_fraction"] * 100, waits)


def test_an_interrupted_import_is_finished(tmp_path: Path, blank_store: Callable[[Path], str]) -> None:
    folder, uri = write(tmp_path), blank_store(tmp_path / "mlflow.db")

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log_found(read_archive(folder), uri, progress=interrupt)
    assert log_found(read_archive(folder), uri) == (5, 3)
    assert load(uri)["point_id"].is_unique


def test_there_is_nowhere_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write to nonsense://x"):
        log_found(read_archive(write(tmp_path)), "nonsense://x")


def test_imported_runs_hang_below_a_parent_and_stand_behind_ones_own(
    archive: Path, tmp_path: Path, blank_store: Callable[[Path], str]
) -> None:
    """A second import makes no second parent."""
    uri = blank_store(tmp_path / "mlflow.db")
    log_found(read_archive(archive), uri)
    log_found(read_archive(archive), uri)
    [parent] = load(uri, kind="import", unfinished=True)["run_id"]
    frame = load(uri)
    assert set(frame["parent_run_id"]) == {parent}
    assert set(frame["start_time"].dt.strftime("%Y-%m")) == {"2020-03"}


@pytest.mark.skipif(not ARCHIVE.is_dir(), reason="the published data are not there")
def test_what_comes_with_the_package_is_what_is_read() -> None:
    found, read = shipped("archive"), read_archive(ARCHIVE)
    assert [(one.name, one.about, one.published_ms) for one in found.publications] == [
        (one.name, one.about, one.published_ms) for one in read.publications
    ]
    assert json.dumps([vars(run) for run in found.runs]) == json.dumps(
        [vars(run) for run in read_archive(ARCHIVE).runs]
    )
