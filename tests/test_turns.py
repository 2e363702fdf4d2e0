"""Programs that take turns, among them those for `model=channel`, and ratios of their rates."""

import contextlib
import csv
import math
import os
import statistics
from pathlib import Path

import numpy as np
import psutil
import pytest
from scipy import stats

from benchmarks import channel, fidelity
from benchmarks.ours import point
from benchmarks.turns import COMPARED, Failed, Ready, Stage
from paradnn.config.identity import point_request
from paradnn.families import build
from tests.conftest import ROOT, process
from tests.processes import wait_for

PROGRAMS = {name: ["tests.turning"] for name in ("one", "other")}
#: One start of a few short blocks.
SHORT = ["--block", "0.01", "--settle", "0"]


def test_programs_alternate_per_model_and_failures_are_reported() -> None:
    with Stage(PROGRAMS, os.environ, ROOT) as stage:
        for model in ("first", "second"):
            programs = stage.open(model)
            assert [program.name for program in programs] == ["one", "other"]
            for program in programs:
                ready = program.ready()
                assert (ready.losses, ready.parameters) == (
                    tuple(map(float, range(1, COMPARED + 1))),
                    9,
                )
                assert program.block(1000, lead=10) > 0

        with pytest.raises(Failed, match=r"one: SystemExit: nothing can be prepared"):
            stage.open("ends")[0].ready()

        diverging, _ = stage.open("diverges")
        assert len(diverging.ready().losses) == COMPARED
        with pytest.raises(Failed, match="one: the loss is nan"):
            diverging.block(1)


def test_a_missing_program_is_reported() -> None:
    with (
        Stage({"one": ["tests.no_such_program"]}, os.environ, ROOT) as stage,
        pytest.raises(Failed, match="No module"),
    ):
        stage.open("first")


def processes_in_group(group: int) -> set[int]:
    processes = set()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                processes.add(pid)
    return processes


def test_plain_channel_programs_end_all_their_processes() -> None:
    with Stage({"plain": ["benchmarks.channel_plain", "none"]}, os.environ, ROOT) as stage:
        for model in ("tcp latency 1000", "grpc latency 1000", "grpc bandwidth 10"):
            (program,) = stage.open(model)
            program.ready()
            assert program.block(5, lead=1) > 0
            program.close()
        group = stage._processes["plain"].pid
        assert wait_for(lambda: processes_in_group(group) == {group})


def test_ratios_are_those_of_median_rounds() -> None:
    start = {"ours": [0.8] * 8, "plain": [1.0] * 8, "copy": [1.0] * 8, "keras": [2.0] * 8}

    row = fidelity.Cell("jax", "fc", [start, start]).row()

    assert [ratio.value for ratio in row.values()] == pytest.approx([1.25, 2.5, 0.5, 1.0])


def test_intervals_of_ratios_equal_students_interval_over_starts() -> None:
    """Combine the median round of each start by the geometric mean over starts."""
    starts = [
        {
            "ours": [10.0, 10.0, 5.0],
            "plain": [9.0 * luck, 9.0 * luck, 90.0],
            "copy": [9.0 * luck, 9.0 * luck, 90.0],
        }
        for luck in (0.97, 1.0, 1.05)
    ]

    messages = channel.Cell("tcp", 64, starts).ratio(["ours"], ["plain", "copy"])

    logs = [math.log(0.9 * luck) for luck in (0.97, 1.0, 1.05)]
    expected = [statistics.fmean(logs), *stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)]
    assert [messages.value, messages.low, messages.high] == pytest.approx(
        np.exp(expected), rel=1e-4
    )


def test_intervals_of_ratios_have_nominal_coverage() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        drawn = 0.99 * np.exp(
            0.01 * generator.standard_normal((3, 1)) + 0.03 * generator.standard_normal((3, 36))
        )
        ratio = fidelity.combine(drawn.tolist())
        covered += ratio.low <= 0.99 <= ratio.high

    assert covered / 400 >= 0.93


def test_the_ratio_of_a_single_start_has_an_unbounded_interval() -> None:
    single_start = fidelity.combine([[1.0, 1.01, 0.99]])

    assert (single_start.low, single_start.high, single_start.sound) == (0.0, math.inf, False)


def test_step_time_is_converted_to_time_per_message() -> None:
    """A step consists of a round trip (two messages), 64 messages, or one all-reduce."""
    cases = {
        "grpc": 500,
        "grpc_bandwidth": 1000 / 64,
        "tcp": 500,
        "iperf3": 1000 / 64,
        "gloo": 1000,
    }
    assert {case: channel.Cell(case, 64).us(1e-3) for case in cases} == pytest.approx(cases)


@pytest.mark.framework
@pytest.mark.parametrize("name", fidelity.FAMILIES)
def test_plain_models_have_weights_of_the_same_shapes_and_order(name: str) -> None:
    from benchmarks.plain_models import MODELS, shapes

    assert shapes(MODELS[name][0]()[0]) == shapes(build(point_request(point(name))["model"]).model)


def test_programs_with_different_results_are_detected() -> None:
    def ready(rate: float, shape: tuple[int, ...] = (2, 3)) -> Ready:
        return Ready((shape,), tuple(6.0 * math.exp(-rate * step) for step in range(COMPARED)))

    def differences_from(other: Ready) -> str:
        return str(fidelity.differences({"ours": ready(0.5), "plain": other}))

    assert differences_from(ready(0.5001)) == "None"
    assert "after 2 steps the loss of plain" in differences_from(ready(0.55))
    assert "other shapes" in differences_from(ready(0.5, (3, 2)))
    assert "the loss of plain is nan" in differences_from(ready(math.nan))


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.parametrize(
    ("words", "row"),
    [
        pytest.param(
            "fidelity --families gru --rounds 6 --starts 1", {"family": "gru"}, id="fidelity"
        ),
        pytest.param(
            "channel --cases tcp --bytes 64 --rounds 2 --starts 2",
            {"case": "tcp", "bytes": "64"},
            id="channel",
        ),
    ],
)
def test_the_worker_takes_turns_with_the_plain_programs(
    words: str, row: dict[str, str], tmp_path: Path
) -> None:
    completed = process([*f"benchmarks.{words}".split(), *SHORT, "--out", str(tmp_path)])
    table = tmp_path / f"{words.split()[0]}.csv"
    assert table.exists(), completed.stdout + completed.stderr
    with table.open() as handle:
        rows = [*csv.DictReader(handle)]
    assert rows
    assert all({name: one[name] for name in row} == row for one in rows)
    ratios = [
        float(value.split()[0]) for one in rows for name, value in one.items() if " / " in name
    ]
    assert all(0 < ratio < math.inf for ratio in ratios)
