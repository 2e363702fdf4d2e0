"""DeepBench's timings that come with the package, and its spreadsheets: small ones of the same layout."""

from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from analysis.published.source import log_found, shipped
from analysis.roofs import place_models
from analysis.statistics.pairing import pair
from analysis.store.load import load
from benchmarks.published.deepbench import read_deepbench, read_workbook
from paradnn.config.identity import point_id, request_of, texts
from paradnn.config.point import Point
from paradnn.families import FAMILIES
from paradnn.platform.specifications import find_hardware
from paradnn.workloads.step import SingleStep
from tests.analysis.conftest import Writer
from tests.analysis.deepbench import folder_of
from tests.families.test_kernels import stated


def test_a_file_is_read_section_by_section(tmp_path: Path) -> None:
    platform, timings = read_workbook(folder_of(tmp_path) / "train" / "DeepBench_NV_V100.xlsx")
    assert (platform.device, platform.kind, platform.specs["CUDA Version"]) == ("NVIDIA V100", "gpu", "10.1")
    assert Counter((timing.kernel, timing.options.get("direction", "")) for timing in timings) == {
        ("gemm", ""): 2,
        ("conv2d", "forward"): 3,
        ("conv2d", "backward_input"): 2,  # one row has N/A*
        ("conv2d", "backward_weights"): 3,
        ("rnn_kernel", "forward"): 1,
        ("rnn_kernel", "backward_input"): 1,
        ("rnn_kernel", "backward_weights"): 1,
        ("channel", ""): 2,  # of one there is no time
    }
    second = timings[1]
    assert second.options == {"m": 512, "n": 48000, "k": 2816, "transpose_a": True, "transpose_b": False}
    assert (second.place, second.seconds) == ("Results FP32, row 5, time", 9.939e-3)
    convolution = timings[2]
    assert (convolution.options["kernel"], convolution.options["height"], convolution.batch_size) == ((5, 20), 161, 4)
    layer = timings[-4]
    assert (layer.options["hidden"], layer.options["steps"], layer.batch_size) == (512, 25, 16)


def test_each_section_has_the_precision_of_its_sheet(tmp_path: Path) -> None:
    _, timings = read_workbook(folder_of(tmp_path) / "inference" / "server" / "DeepBench_NV_TitanXp.xlsx")
    assert [(timing.kernel, timing.precision, timing.seconds) for timing in timings] == [
        ("gemm", "int8", 0.038e-3),
        ("gemm", "int8", 9.939e-3),
        ("sparse_gemm", "float32", 0.034e-3),
        ("gemm", "float32", 0.223e-3),
    ]
    assert timings[2].options["density"] == 0.05


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """The URI of a store that holds both files."""
    uri = blank_store(tmp_path_factory.mktemp("store") / "mlflow.db")
    log_found(read_deepbench(folder_of(tmp_path_factory.mktemp("results"))), uri)
    return uri


def test_runs_hold_the_params_of_ones_own(imported: str) -> None:
    frame = load(imported, family="gemm", tags={"device": "NVIDIA V100"})
    run = frame[frame["model.m"] == 1760].iloc[0]
    own = texts({"model": {"name": "gemm", "m": 1760, "n": 16, "k": 1760, "transpose_a": False, "transpose_b": False}})
    assert {key: str(run[key]).lower() for key in own if key != "model.name"} == {
        key: text for key, text in own.items() if key != "model.name"
    }
    assert (run["step_time_ms"], run["precision"], run["mode"], run["replicate"]) == (0.038, "float32", "inference", 0)
    assert run["flops_per_second"] == pytest.approx(2 * prod((1760, 16, 1760)) / 0.038e-3)
    assert run["flops_per_second"] == pytest.approx(2.6085052631578947e12)  # as the sheet prints it
    assert run["bytes_per_step"] == 4 * (1760 * 16 * 2 + 1760**2)
    assert (run["version.cuda"], run["protocol"], run["source"]) == ("10.1", "deepbench", "published")
    assert (
        load(imported, family="conv2d")["replicate"].tolist().count(1) == 3
    )  # a problem listed twice, in 3 directions


def test_an_all_reduce_is_a_channel_of_the_library_that_was_fastest(imported: str) -> None:
    """Beside its time stands the rate that the sheet prints, devices x bytes / time; ours are of the bytes alone."""
    frame = load(imported, family="channel").sort_values("model.processes")
    assert frame["model.transport"].tolist() == ["nccl", "mpi"]
    assert frame["model.hosts"].tolist() == [1, 2]
    assert frame["model.bytes"].tolist() == [400_000, 400_000]
    assert frame["transfer_us"].tolist() == pytest.approx([102, 464])
    assert frame["sent_bytes_per_second"].tolist() == pytest.approx([7.84e9 / 2, 13.8e9 / 16], rel=1e-3)
    assert frame["bus_bytes_per_second"].tolist() == pytest.approx([7.84e9 / 2, 2 * 15 / 16 * 13.8e9 / 16], rel=1e-3)


def test_parents_are_one_a_file_and_a_second_import_logs_nothing(imported: str, tmp_path: Path) -> None:
    before = load(imported, kind=None, unfinished=True)
    names = before.loc[before["kind"] == "import", "run_name"]
    assert sorted(names) == [
        "published, DeepBench inference NVIDIA Titan Xp",
        "published, DeepBench training NVIDIA V100",
    ]
    assert before.loc[before["kind"] == "point", "parent_run_id"].value_counts().tolist() == [15, 4]
    assert log_found(read_deepbench(folder_of(tmp_path)), imported) == (0, 19)
    assert len(load(imported, kind=None, unfinished=True)) == len(before)


def test_ones_own_run_of_the_same_point_is_compared_and_placed(
    tmp_path: Path, blank_store: Callable[[Path], str]
) -> None:
    uri = blank_store(tmp_path / "mlflow.db")
    writer = Writer(uri, "paradnn", tmp_path / "artifacts")
    for size in ((1760, 16, 1760), (64, 64, 64)):
        model = FAMILIES["gemm"].options(**dict(zip("mnk", size, strict=True)))
        own = Point(model=model, workload=SingleStep("inference"), batch_size=1)
        params = texts(request_of(own))
        writer.run(params, {"step_time_ms": 0.076, "examples_per_second": 1 / 0.076e-3}, point_id=point_id(own))
    log_found(read_deepbench(folder_of(tmp_path / "results")), uri)
    frame = load(uri, family="gemm")
    v100 = frame[frame["device"] == "NVIDIA V100"]
    pairs = pair(v100, frame[frame["source"] == "measured"])
    assert pairs["speedup"].tolist() == [pytest.approx(2.0)]
    assert pairs["model.n"].tolist() == [16]
    placed = place_models(v100, find_hardware)
    assert placed.roofs[0].peak == 15.7e12
    assert len(placed.points) == 2


def test_all_timings_of_the_published_files_come_with_the_package() -> None:
    """V100's problems beside a copy of its spreadsheet that tests of costs hold, which was read without this code."""
    found = shipped("deepbench")
    assert len(found.publications) == 18
    counts = Counter(run.params["model.name"] for run in found.runs)
    assert counts == {"gemm": 2675, "conv2d": 4314, "rnn_kernel": 1797, "sparse_gemm": 96, "channel": 203}
    places = "training/DeepBench_NV_V100.xlsx, Results FP32,"
    problems = Counter(
        (name, int(run.params["batch_size"]), *sorted((key, run.params[f"model.{key}"]) for key in options))
        for run in found.runs
        if run.tags["archive_label"].startswith(places) and run.params.get("model.direction", "forward") == "forward"
        for name, options in [next((each[0], each[2]) for each in stated() if each[0] == run.params["model.name"])]
    )
    known = [
        (name, batch, {key: str(list(value) if isinstance(value, tuple) else value) for key, value in options.items()})
        for name, batch, options, _ in stated()
    ]
    assert problems == Counter((name, batch, *sorted(each.items())) for name, batch, each in known)
