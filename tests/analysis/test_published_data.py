"""The shipped published measurements, compared with their sources."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.pairing import pair
from analysis.published.source import (
    ImportedFolder,
    PublishedRun,
    digest,
    load_shipped,
    log_published,
)
from analysis.roofs import place_models
from analysis.store.load import load, load_tables
from benchmarks.published import archive, layers
from paradnn.config.identity import as_params, point_id, point_request
from paradnn.config.point import Point
from paradnn.core.errors import StoreError
from paradnn.families import FAMILIES
from paradnn.platform.specifications import find_hardware
from paradnn.store.runs import DEEPBENCH, PUBLISHED, VIDUR
from paradnn.workloads.step import SingleStep
from tests.analysis.conftest import Writer
from tests.analysis.published import ARCHIVE, frame_of, raw, select_runs
from tests.families.test_kernels import stated

TABLE = Path(layers.__file__).with_suffix(".csv")
#: Percentages of the step time per layer type, as printed in the paper: AlexNet on the CPU of a
#: Jetson TK1, and VGG-16 on the GPU of a TX1.
PRINTED = {
    "alexnet b1 Jetson TK1 (CPU)": {
        "Convolution": 51.42,
        "Pooling": 0.99,
        "ReLU": 0.75,
        "Dense": 30.05,
    },
    "vgg16 b1 Jetson TX1 (GPU)": {
        "Convolution": 73.98,
        "Pooling": 1.84,
        "ReLU": 5.35,
        "Dense": 17.82,
    },
}


@pytest.fixture(scope="module")
def deepbench() -> ImportedFolder:
    return load_shipped("deepbench")


def test_shipped_files_equal_the_output_of_their_readers() -> None:
    raw("gpu_fc")  # skips the test if the published files are absent
    for name, read in (
        ("archive", archive.read_archive(ARCHIVE)),
        ("layers", layers.read_layers(TABLE)),
    ):
        assert json.dumps(asdict(load_shipped(name))["publications"]) == json.dumps(
            asdict(read)["publications"]
        )


@pytest.fixture(scope="module")
def archive_frame() -> pd.DataFrame:
    return frame_of(load_shipped("archive"))


def runs_of_archive(archive_frame: pd.DataFrame, device: str) -> pd.DataFrame:
    """Return the runs on a device, by their label in the archive."""
    return archive_frame[archive_frame["device"] == device].set_index("archive_label")


def successful_runs(
    archive_frame: pd.DataFrame, device: str, content: Mapping[str, Any]
) -> pd.DataFrame:
    """Return the successful runs on a device, in the order of the archive's labels."""
    runs = runs_of_archive(archive_frame, device)
    return runs[runs["outcome"] == "ok"].loc[content["labels"]]


def shapes_of(content: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers in the label of each successful entry of the archive.

    The columns are layers, nodes, input size, output size and batch size.
    """
    return np.array(
        [[int(number) for number in re.findall(r"\d+", label)] for label in content["labels"]]
    )


sides_of_archive = pytest.mark.parametrize(
    ("name", "device"),
    [pytest.param("tpu_fc", "TPU v2", id="TPU v2"), pytest.param("gpu_fc", "V100", id="V100")],
)


@sides_of_archive
def test_every_failed_entry_of_the_archive_is_a_failed_run(
    archive_frame: pd.DataFrame, name: str, device: str
) -> None:
    content = raw(name)
    runs = runs_of_archive(archive_frame, device)
    failed = runs[runs["outcome"] != "ok"]

    assert sorted(failed.index) == sorted(content["err_jobs"])
    assert (failed["outcome"] == "oom_device").sum() == content["states"].count("OOM")


@sides_of_archive
def test_every_entry_of_the_archive_is_a_run_of_its_shape(
    archive_frame: pd.DataFrame, name: str, device: str
) -> None:
    content = raw(name)
    runs = successful_runs(archive_frame, device, content)
    columns = [
        "model.layers",
        "model.nodes",
        "model.input_size",
        "model.output_size",
        "batch_size",
    ]

    np.testing.assert_array_equal(runs[columns].to_numpy(int), shapes_of(content))


@pytest.mark.parametrize(
    ("name", "device", "cores", "peak"),
    [
        # Table 3 of the paper: 180 TFLOP/s of the board, 125 TFLOP/s of the V100's tensor cores.
        pytest.param("tpu_fc", "TPU v2", 8, 22.5e3, id="TPU v2"),
        pytest.param("gpu_fc", "V100", 1, 125e3, id="V100"),
    ],
)
def test_metrics_of_the_archive_have_the_units_of_this_package(
    archive_frame: pd.DataFrame, name: str, device: str, cores: int, peak: float
) -> None:
    content = raw(name)
    expected = pd.DataFrame(
        {key: content[key] for key in content if len(content[key]) == len(content["labels"])}
    )
    runs = successful_runs(archive_frame, device, content)

    for column, values in {
        "examples_per_second": expected["example_per_sec"],
        "step_time_ms": 1000 / expected["step_per_sec"],
        "flops_per_second": expected["flops"] * 1e9 * cores,
        "flops_per_step": expected["fl"] * 1e9 * cores,
        "published_flops_per_second": expected["flops"] * 1e9,
        "parameters": expected["params"],
        "published_intensity": expected["intensity"],
        "flops_utilization_spec": expected["flops"] / peak,
    }.items():
        np.testing.assert_allclose(runs[column], values, rtol=1e-12, err_msg=column)


@sides_of_archive
def test_the_work_of_an_archived_step_is_that_of_the_whole_board(
    archive_frame: pd.DataFrame, name: str, device: str
) -> None:
    """Compare with a count that is independent of the file.

    There are three products of the batch with each weight, with two operations each.
    """
    content = raw(name)
    shape = shapes_of(content)
    runs = successful_runs(archive_frame, device, content)
    weights = (
        shape[:, 2] * shape[:, 1] + (shape[:, 0] - 1) * shape[:, 1] ** 2 + shape[:, 1] * shape[:, 3]
    )

    ratio = runs["flops_per_step"] / (6 * shape[:, 4] * weights)

    assert ratio.between(0.98, 1.15).all(), (
        "the work must be that of the whole board, not of one core"
    )


@pytest.fixture(scope="module")
def traced_runs() -> dict[str, PublishedRun]:
    """Return the runs of the archive with tables, by their label in the archive."""
    return {run.tags["archive_label"]: run for run in load_shipped("archive").runs if run.tables}


def test_traces_belong_to_their_point(traced_runs: dict[str, PublishedRun]) -> None:
    traces = raw("fc_trace_10sec")

    assert set(traced_runs) == set(traces["labels"])
    for index, label in enumerate(traces["labels"]):
        captures = traces["flops_trace"][index]
        run = traced_runs[label]

        assert run.metrics["trace_flops_utilization"] == pytest.approx(
            traces["flops_perc"][index] / 100
        )
        assert run.metrics["trace_bandwidth_utilization"] == pytest.approx(
            traces["memory_bandwidth"][index] / 100
        )
        assert run.metrics["infeed_fraction"] == pytest.approx(traces["infeed"][index] / 100)
        assert run.metrics["trace_flops_utilization_median"] == pytest.approx(
            np.median(captures) / 100
        )

        columns, rows = run.tables["traces.json"]
        shares = pd.DataFrame(rows, columns=columns)["flops_utilization"]
        assert shares.tolist() == pytest.approx([capture / 100 for capture in captures])


def test_operations_belong_to_their_point(traced_runs: dict[str, PublishedRun]) -> None:
    operations = raw("fc_trace_10sec_opbreakdown")
    found = {}
    for label, run in traced_runs.items():
        columns, rows = run.tables["operation_types.json"]
        found |= {
            f"{label}-{row['type']}": row
            for row in pd.DataFrame(rows, columns=columns).to_dict("records")
        }
    table = pd.DataFrame.from_dict(found, orient="index").loc[operations["labels"]]

    assert len(found) == len(table)
    np.testing.assert_allclose(table["share"], np.array(operations["time_perc"]) / 100)
    np.testing.assert_allclose(table["bytes"], np.array(operations["rawMB"]) * 1e6)

    is_loop = table["type"] == "while"
    rates = np.array(operations["flops_perc"])[~is_loop] * 1.8e12
    np.testing.assert_allclose(table.loc[~is_loop, "flops_per_second"].astype(float), rates)
    assert table.loc[is_loop, "flops_per_second"].isna().all(), (
        "the rate of a loop is that of the operations inside it"
    )


def test_all_timings_of_deepbench_are_shipped(deepbench: ImportedFolder) -> None:
    """V100 problems equal a copy of the spreadsheet that other code read."""
    counts = Counter(run.params["model.name"] for run in deepbench.runs)
    assert counts == {
        "gemm": 2675,
        "conv2d": 4314,
        "rnn_kernel": 1797,
        "sparse_gemm": 96,
        "channel": 203,
    }

    source = "training/DeepBench_NV_V100.xlsx, Results FP32,"
    keys = {name: options for name, _, options, _ in stated()}
    problems = Counter(
        (
            name,
            int(run.params["batch_size"]),
            *sorted((key, run.params[f"model.{key}"]) for key in keys[name]),
        )
        for run in deepbench.runs
        if run.tags["archive_label"].startswith(source)
        and run.params.get("model.direction", "forward") == "forward"
        for name in [run.params["model.name"]]
    )
    known = Counter(
        (
            name,
            batch,
            *sorted(
                (key, str([*size] if isinstance(size, tuple) else size))
                for key, size in sizes.items()
            ),
        )
        for name, batch, sizes, _ in stated()
    )

    assert problems == known


def test_rates_of_deepbench_equal_the_published_ones(
    deepbench: ImportedFolder,
) -> None:
    runs_by_label = {
        run.tags["archive_label"].partition("/DeepBench_NV_")[2]: run for run in deepbench.runs
    }
    product = runs_by_label["V100.xlsx, Results FP32, row 5, time"].metrics

    assert product["flops_per_second"] == pytest.approx(2.6085052631578947e12)
    assert product["flops_per_second"] == pytest.approx(2 * math.prod((1760, 16, 1760)) / 0.038e-3)
    assert product["bytes_per_step"] == 4 * (1760 * 16 * 2 + 1760**2)
    assert product["step_time_ms"] == 0.038

    for run in deepbench.runs:
        # The bus bandwidth is defined by NCCL's tests: bytes on the busiest link.
        if run.params["model.name"] == "channel":
            ranks = int(run.params["model.processes"])
            sent = int(run.params["model.bytes"])
            seconds = run.metrics["transfer_us"] / 1e6
            assert run.metrics["sent_bytes_per_second"] == pytest.approx(sent / seconds)
            assert run.metrics["bus_bytes_per_second"] == pytest.approx(
                2 * (ranks - 1) / ranks * sent / seconds
            )


def test_all_timings_of_vidur_are_shipped() -> None:
    vidur = load_shipped("vidur").runs

    assert len({run.point_id for run in vidur}) == len(vidur) == 24_376

    [run] = [
        run for run in vidur if run.tags["archive_label"] == "a100_dgx/all_reduce.csv, line 5002"
    ]
    assert (
        run.params["model.processes"],
        run.params["model.bytes"],
        run.metrics["transfer_us"],
    ) == ("8", "247808", 61)
    assert run.metrics["bus_bytes_per_second"] == pytest.approx(2 * 7 / 8 * 247_808 / 61e-6)


def test_all_results_of_mlperf_tiny_are_shipped() -> None:
    tiny = load_shipped("tiny").runs

    assert len({run.point_id for run in tiny}) == len(tiny) == 43
    assert all(
        run.metrics["step_time_ms"] * run.metrics["examples_per_second"] == pytest.approx(1e3)
        for run in tiny
    )


def test_all_tables_of_layers_are_shipped() -> None:
    runs = {run.name: run for run in load_shipped("layers").runs}

    assert len(runs) == 8
    for name, shares in PRINTED.items():
        found = runs[name].metrics
        # Shares are relative to the sum over all layers. The paper's last table adds up to 99%.
        assert {kind: 100 * found[f"op_share.{kind}"] for kind in shares} == pytest.approx(
            shares, rel=0.02
        )
    assert runs["alexnet b1 Jetson TK1 (CPU)"].metrics["flops_per_step"] == pytest.approx(
        2 * 725e6, rel=0.001
    )


def test_protocol_identities_are_digests_of_their_descriptions() -> None:
    assert digest("best logged rate") == PUBLISHED
    assert digest("mean of many calls after one") == DEEPBENCH
    assert digest("median of the kernels of three repetitions") == VIDUR


def test_an_interrupted_import_is_completed_without_duplicates(blank: str) -> None:
    """Import traced, untraced and failed runs; the first import stops after four runs.

    All runs belong to one parent and are dated before any run of a user.
    """
    archive_folder = load_shipped("archive")
    kinds = [
        [
            run
            for run in archive_folder.runs
            if bool(run.tables) == is_traced and (run.outcome == "ok") == is_ok
        ]
        for is_traced, is_ok in ((True, True), (False, True), (False, False))
    ]
    chosen = {run.point_id for kind in kinds for run in kind[:3]}
    found = select_runs(archive_folder, lambda run: run.point_id in chosen)

    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log_published(found, blank, progress=interrupt)
    assert [log_published(found, blank) for _ in range(2)] == [(5, 4), (0, 9)]

    [parent] = load(blank, kind="import", unfinished=True)["run_id"]
    frame = load(blank).set_index("point_id")
    expected = frame_of(found).set_index("point_id")

    assert sorted(frame.index) == sorted(expected.index)
    assert set(frame["parent_run_id"]) == {parent}
    assert set(frame["start_time"].dt.strftime("%Y-%m")) == {"2020-03"}
    assert set(frame["status"]) == {"FINISHED", "FAILED"}

    shared = sorted({*expected} & {*frame} - {"run_id"})
    assert {
        "outcome",
        "examples_per_second",
        "model.nodes",
        "device",
        "trace_flops_utilization",
    } <= {*shared}
    pd.testing.assert_frame_equal(
        frame.loc[expected.index, shared], expected[shared], check_dtype=False
    )

    tables = load_tables(frame.reset_index(), "operation_types.json", blank)
    assert tables["run_id"].nunique() == 3
    with pytest.raises(StoreError, match="cannot write to nonsense://x"):
        log_published(found, "nonsense://x")


def test_a_users_run_is_paired_with_the_published_run_of_the_same_point(
    writer: Writer, deepbench: ImportedFolder
) -> None:
    for size in ((1760, 16, 1760), (64, 64, 64)):
        model = FAMILIES["gemm"].options(**dict(zip("mnk", size, strict=True)))
        user_point = Point(model=model, workload=SingleStep("inference"), batch_size=1)
        params = as_params(point_request(user_point))
        writer.run(
            params,
            {"step_time_ms": 0.076, "examples_per_second": 1 / 0.076e-3},
            point_id=point_id(user_point),
        )
    labels = tuple(
        f"training/DeepBench_NV_V100.xlsx, Results FP32, row {number}," for number in (5, 6)
    )
    log_published(
        select_runs(deepbench, lambda run: run.tags["archive_label"].startswith(labels)), writer.uri
    )
    frame = load(writer.uri, family="gemm")
    v100 = frame[frame["device"] == "NVIDIA V100"]
    pairs = pair(v100, frame[frame["source"] == "measured"])

    assert pairs["speedup"].tolist() == [pytest.approx(2.0)]
    assert pairs["model.n"].tolist() == [16]

    placed = place_models(v100, find_hardware)
    assert placed.roofs[0].peak == 15.7e12
    assert len(placed.points) == 2
