"""The programs beside `model=channel`, and what their ratios amount to."""

import contextlib
import csv
import math
import os
import statistics
from pathlib import Path

import psutil
import pytest
from scipy import stats

from benchmarks.channel import Cell
from benchmarks.turns import Stage
from tests.conftest import ROOT, process
from tests.processes import wait_for


def in_group(group: int) -> set[int]:
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                found.add(pid)
    return found


def test_bare_loops_run_in_processes_that_end_with_them() -> None:
    with Stage({"plain": ["benchmarks.channel_plain", "none"]}, os.environ, ROOT) as stage:
        for model in ("tcp latency 1000", "grpc latency 1000", "grpc bandwidth 10"):
            (program,) = stage.open(model)
            program.ready()
            assert program.block(5, lead=1) > 0
            program.close()
        group = stage._processes["plain"].pid
        assert wait_for(lambda: in_group(group) == {group})


def test_ratios_are_of_messages_a_second_and_intervals_of_starts() -> None:
    """Of each start the median round; over starts the geometric mean, with Student's interval as SciPy has it."""
    starts = [
        {"ours": [10.0, 10.0, 5.0], "plain": [9.0 * luck, 9.0 * luck, 90.0], "copy": [9.0 * luck, 9.0 * luck, 90.0]}
        for luck in (0.97, 1.0, 1.05)
    ]
    ratio = Cell("tcp", 64, starts).ratio(["ours"], ["plain", "copy"])
    logs = [math.log(0.9 * luck) for luck in (0.97, 1.0, 1.05)]
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert ratio.value == pytest.approx(math.exp(statistics.fmean(logs)))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-4)
    assert Cell("tcp", 64, starts).row()["plain / copy"].value == 1.0


def test_a_message_is_what_ours_records() -> None:
    """Half of a round trip, a 64th of a window, an all-reduce."""
    cases = {"grpc": 500, "grpc_bandwidth": 1000 / 64, "tcp": 500, "iperf3": 1000 / 64, "gloo": 1000}
    assert {case: Cell(case, 64).us(1e-3) for case in cases} == pytest.approx(cases)


@pytest.mark.long
@pytest.mark.framework
def test_ours_takes_turns_with_the_bare_program(tmp_path: Path) -> None:
    sizes = ["--bytes", "64", "--starts", "2", "--rounds", "2", "--block", "0.001", "--settle", "0"]
    done = process(["benchmarks.channel", "--cases", "tcp", *sizes, "--out", str(tmp_path)])
    lines = [line for line in done.stdout.splitlines() if line.startswith("start ")]
    assert [line.partition(":")[0] for line in lines] == ["start 1 of 2", "start 2 of 2"], done.stderr
    with (tmp_path / "channel.csv").open() as table:
        (row,) = csv.DictReader(table)
    assert (row["case"], row["bytes"]) == ("tcp", "64")
    assert 0 < float(row["ours / other"].split()[0]) < math.inf
