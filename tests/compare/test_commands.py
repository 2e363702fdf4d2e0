"""Interleaved runs of two commands: real processes that print a known speed."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paradnn.compare import __main__ as command
from paradnn.compare.commands import CommandComparison
from paradnn.compare.metric import OutputMetric
from paradnn.compare.processes import Command, CommandProtocol
from paradnn.statistics.paired_rounds import Rule, SpeedEstimate
from tests.compare.conftest import Call
from tests.conftest import ROOT
from tests.processes import PATIENCE, wait_for, with_default_signal_handlers

SPEED = ["--metric", "speed: ([0-9.]+)"]
SPEED_METRIC = OutputMetric("speed: ([0-9.]+)", higher=True)


class NeverEnough(Rule):
    """Rule that ends a comparison only after its largest number of rounds."""

    def is_enough(self, found: SpeedEstimate) -> bool:
        return False


def run_comparison(
    first: str, second: str, metric: OutputMetric | None = None, rule: Rule | None = None
) -> CommandComparison:
    """Run a comparison of two commands to its end."""
    comparison = CommandComparison(
        (Command(first, first), Command(second, second)),
        rule or Rule(most=20),
        CommandProtocol(60, metric or OutputMetric()),
        seed=1,
    )
    comparison.follow()
    return comparison


def echo(text: str) -> str:
    return f"sh -c 'echo {text}'"


def test_each_side_goes_first_in_half_of_the_rounds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = (f"sh -c 'echo {side} >>{log}; echo speed: 1'" for side in "ab")
    run_comparison(first, second, SPEED_METRIC, NeverEnough(most=20))
    sides = log.read_text().split()
    warm_up = sides[:2]
    order = sides[2:]
    rounds = ["".join(order[index : index + 2]) for index in range(0, 40, 2)]

    assert sorted(warm_up) == ["a", "b"]
    assert len(order) == 40
    assert all({rounds[index], rounds[index + 1]} == {"ab", "ba"} for index in range(0, 20, 2))
    assert set(rounds[::2]) == {"ab", "ba"}, "the first round of a pair has a random order"


def test_the_slower_side_determines_the_number_of_runs_per_visit() -> None:
    comparison = run_comparison("true", "sleep 0.2", rule=NeverEnough(most=1))
    # A visit consists of the consecutive runs of one side in a round. Alone, "true" would run up to
    # 50 times per visit.
    assert [len(visits[0]) for visits in comparison.visits] == [1, 1]


def test_rounds_in_which_a_side_fails_are_excluded(tmp_path: Path) -> None:
    count = tmp_path / "count"
    fails_once = f"echo >>{count}; [ $(wc -l <{count}) != 5 ] || exit 3; echo speed: 2"
    comparison = run_comparison(fails_once, echo("speed: 1"), SPEED_METRIC, NeverEnough(most=20))

    assert comparison.problem is None
    assert comparison.failures(0) == ["exit code 3"]
    assert comparison.failures(1) == []
    assert [math.exp(value) for value in comparison.logs] == pytest.approx(
        [2.0] * comparison.rounds
    )
    assert comparison.rounds == len(comparison.visits[0]) - 1
    assert "failed in 1 of" in comparison.notes()[0]


def test_a_side_that_always_fails_ends_the_comparison() -> None:
    comparison = run_comparison("true", "sh -c 'echo no memory >&2; exit 7'")
    assert comparison.problem == (
        "sh -c 'echo no memory >&2; exit 7' failed: exit code 7 (no memory)"
    )
    assert comparison.failed_side == 1
    assert not comparison.rounds


def test_a_failing_program_before_a_pipe_is_a_failure(call: Call) -> None:
    outcome = call(command.main, ["python3 missing.py | cat", "echo | cat"])
    assert outcome.code == 1
    assert outcome.output.startswith("undecided: python3 missing.py | cat failed: exit code 2")


def test_the_output_and_the_json_file_agree(tmp_path: Path, call: Call) -> None:
    sides = [echo("speed: 110"), echo("speed: 100")]
    outcome = call(command.main, [*SPEED, "--json", tmp_path / "f.json", *sides])
    content = json.loads((tmp_path / "f.json").read_text())

    assert outcome.code == 0
    assert content["ratio"] == pytest.approx(1.1)
    assert {"low", "high", "rounds", "seconds"} <= set(content)
    assert (content["verdict"], content["rounds"]) == ("faster", 5)
    assert outcome.output.startswith(
        f"{sides[0]} is 1.1000 times as fast as {sides[1]} (95% interval"
    )
    assert "a larger number is faster" in outcome.errors


def test_an_option_overrides_the_direction_that_a_name_states(call: Call) -> None:
    sides = [echo("speed: 110"), echo("speed: 100")]
    outcome = call(command.main, [*SPEED, "--lower", *sides])

    assert outcome.output.startswith(f"{sides[1]} is 1.1000 times as fast as {sides[0]}")


COMPARE = ["-m", "paradnn", "compare", "--rounds", "5", "--most", "5"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(
            [*COMPARE, "--json", "a.json", "--metric", "([0-9]+)", "--lower", "echo 2", "echo 3"],
            0,
            id="output through the console",
        ),
        pytest.param(
            [
                "-c",
                # Print, then return exit code 3, since print() returns None.
                "from paradnn.cli.program import program; "
                "raise SystemExit(program(lambda: print('x') or 3)())",
            ],
            3,
            id="output through print",
        ),
    ],
)
def test_a_closed_pipe_changes_neither_files_nor_the_exit_code(
    tmp_path: Path, words: list[str], code: int
) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does after some lines
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, stdout=write, env=environ, check=False
    )
    os.close(write)

    assert done.returncode == code

    if "--json" in words:
        content = json.loads((tmp_path / "a.json").read_text())
        assert content["ratio"] == pytest.approx(1.5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_every_signal_ends_the_measured_command(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    measured = f"sleep 1000 & echo $! >{pids}; setsid sleep 1000 & echo $! $$ >>{pids}; wait"
    words = [sys.executable, "-m", "paradnn", "compare", measured, "true"]
    with subprocess.Popen(
        with_default_signal_handlers(words),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 3)
        started = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        driver.send_signal(number)
        _, errors = driver.communicate(timeout=PATIENCE)
    if number is signal.SIGKILL:
        assert driver.returncode == -signal.SIGKILL
    else:
        assert driver.returncode == 130
        assert errors.endswith("interrupted\n")

    assert wait_for(lambda: not any(process.is_running() for process in started))
