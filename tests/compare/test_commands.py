"""Two commands, or commits, by turns: real processes whose truth is known, since they print it."""

import itertools
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import paradnn.compare
from paradnn.compare import __main__ as command
from paradnn.compare import gate
from paradnn.compare.arguments import COMMAND_MINUTES, read_arguments
from paradnn.compare.commands import (
    Command,
    CommandProtocol,
    OutputMetric,
    Turns,
    program_of,
    run_once,
)
from paradnn.core.errors import ConfigError
from paradnn.platform.commits import checkouts
from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, Rule, SpeedEstimate
from tests.conftest import ROOT

TABLES, REFUSED = (
    yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text())
    for name in ("tables", "refusals")
)
SPEED = ["--metric", "speed: ([0-9.]+)", "--higher"]
Call = Callable[[Any, Sequence[object]], tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """What a command with these words ends with, and prints on both streams."""

    def called(main: Any, words: Sequence[object]) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["paradnn", *map(str, words)])
        return int(main()), *capsys.readouterr()

    return called


class Forever(Rule):
    """Ends with the rounds alone."""

    def is_enough(self, found: SpeedEstimate) -> bool:
        return False


def turns_of(
    first: str, second: str, metric: OutputMetric | None = None, rule: Rule | None = None
) -> Turns:
    sides = Command(first, first), Command(second, second)
    turns = Turns(
        sides, rule or Rule(most=20), CommandProtocol(1, metric or OutputMetric()), seed=1
    )
    turns.follow()
    return turns


def says(text: str) -> str:
    return f"sh -c 'echo {text}'"


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits whose program prints 100 and 80; in the working tree it prints 50."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    for speed in (100, 80):
        (tmp_path / "program.sh").write_text(f"echo speed: {speed}\n")
        git("add", "program.sh")
        git("commit", "-q", "-m", str(speed))
    (tmp_path / "program.sh").write_text("echo speed: 50\n")
    return tmp_path


@pytest.mark.parametrize(("text", "words"), TABLES["programs"])
def test_a_shell_is_started_only_for_what_needs_one(text: str, words: list[str]) -> None:
    assert program_of(text) == words


@pytest.mark.parametrize(
    ("pattern", "printed", "value"), [*TABLES["metrics"], ("json:a", "{" * 100_000, None)]
)
def test_the_metric_is_what_was_printed_last(
    pattern: str, printed: str, value: float | None
) -> None:
    assert OutputMetric(pattern).value(printed) == value


def test_the_processor_time_is_a_metric() -> None:
    run = run_once(Command("a", "sleep 0.1"), CommandProtocol(metric=OutputMetric("cpu")))
    assert run.measured == run.cpu_seconds < 0.1  # a process that sleeps takes none


def test_each_side_goes_first_in_half_of_the_rounds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = (f"sh -c 'echo {side} >>{log}; echo speed: 1'" for side in "ab")
    turns_of(first, second, OutputMetric("speed: ([0-9.]+)"), Forever(most=20))
    order = log.read_text().split()[2:]  # after the warm-up
    rounds = [order[at] for at in range(0, 40, 2)]
    assert len(order) == 40
    assert all(set(rounds[at : at + 2]) == {"a", "b"} for at in range(0, 20, 2))
    assert {"".join(rounds[at : at + 2]) for at in range(0, 20, 2)} == {
        "ab",
        "ba",
    }  # and not always the same


def test_the_slower_side_says_how_many_runs_a_visit_has() -> None:
    turns = turns_of("true", "sleep 0.2", rule=Forever(most=1))
    assert [len(visits[0]) for visits in turns.visits] == [1, 1]


def test_a_side_that_fails_now_and_then_is_compared_without_these_rounds(tmp_path: Path) -> None:
    count = tmp_path / "count"
    now_and_then = f"echo >>{count}; [ $(wc -l <{count}) != 5 ] || exit 3; echo speed: 2"
    turns = turns_of(
        now_and_then, says("speed: 1"), OutputMetric("speed: ([0-9.]+)", True), Forever(most=20)
    )
    assert (turns.problem, turns.failures(0), turns.failures(1)) == (None, ["exit code 3"], [])
    assert [math.exp(value) for value in turns.logs] == pytest.approx([2.0] * turns.rounds)
    assert turns.rounds == len(turns.visits[0]) - 1


def test_a_side_that_always_fails_ends_it() -> None:
    turns = turns_of("true", "sh -c 'echo no memory >&2; exit 7'")
    assert turns.problem == "sh -c 'echo no memory >&2; exit 7' failed: exit code 7 (no memory)"
    assert turns.failed == 1
    assert not turns.rounds


def test_what_takes_too_long_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    late = tmp_path / "late"
    text = f"sleep 2; touch {late}"
    run = run_once(Command("x", text), CommandProtocol(timeout=0.05))
    assert run.failure == "took longer than 0.05 s"
    assert run.measured < 1.5
    assert not late.exists()


def test_commits_stand_in_worktrees_that_are_gone_afterwards(repository: Path) -> None:
    with checkouts(("main~1", "."), setup="echo ready > set_up") as places:
        speeds = [(folder / "program.sh").read_text() for folder in places]
        assert speeds == ["echo speed: 100\n", "echo speed: 50\n"]
        assert all((folder / "set_up").exists() for folder in places)
        assert places[0] != repository
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


@pytest.mark.parametrize(("references", "setup", "message"), TABLES["commits"])
def test_bad_commits_are_told(
    repository: Path, references: list[str], setup: str | None, message: str
) -> None:
    with (
        pytest.raises(ConfigError, match=message),
        checkouts((references[0], references[1]), setup),
    ):
        pass


def test_the_screen_and_the_file_say_the_same(tmp_path: Path, call: Call) -> None:
    sides = says("speed: 110"), says("speed: 100")
    code, said, _ = call(command.main, [*SPEED, "--json", tmp_path / "f.json", *sides])
    assert code == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["ratio"] == pytest.approx(1.1)
    assert {"low", "high", "rounds", "seconds"} <= set(found)
    assert (found["verdict"], found["rounds"]) == ("faster", 5)
    assert said.startswith(f"{sides[0]} is 1.1000 times as fast as {sides[1]} (95% interval")


def test_the_file_is_written_though_nobody_reads_the_words(tmp_path: Path) -> None:
    """And the exit code stays that of the answer, by whichever way a command prints."""
    words = [
        "compare",
        "--json",
        "a.json",
        "--metric",
        "([0-9]+)",
        "--rounds",
        "5",
        "--most",
        "5",
        "echo 2",
        "echo 3",
    ]
    printed = "from paradnn.cli.program import program; raise SystemExit(program(lambda: print('x') or 3)())"
    read, write = os.pipe()
    os.close(read)  # as that of `| head` is after some lines
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    for asked, code in ((["-m", "paradnn", *words], 0), (["-c", printed], 3)):
        ended = subprocess.run(
            [sys.executable, *asked], cwd=tmp_path, stdout=write, env=environ, check=False
        )
        assert ended.returncode == code
    os.close(write)
    assert json.loads((tmp_path / "a.json").read_text())["ratio"] == pytest.approx(1.5)


def test_one_command_at_two_commits(repository: Path, call: Call) -> None:
    code, said, _ = call(
        command.main, [*SPEED, "--commits", "main", "main~1", "--", "sh", "program.sh"]
    )
    assert code == 0
    assert "main~1 is 1.2500 times as fast as main" in said


@pytest.mark.parametrize(
    ("base", "slower", "code", "word"),
    [
        ("main~1", "50%", 1, "REGRESSED"),
        ("main", "59%", 1, "REGRESSED"),
        ("main", "61%", 0, "passed"),
    ],
)
def test_gates_fail_what_is_slower(
    repository: Path, call: Call, base: str, slower: str, code: int, word: str
) -> None:
    # 80 / 50 is just 1.6.
    words = [
        "--base",
        base,
        "--slower",
        slower,
        *SPEED,
        "--junit",
        "j.xml",
        "--markdown",
        "c.md",
        "--json",
        "g.json",
    ]
    ended, said, _ = call(gate.main, [*words, "--", "sh", "program.sh"])
    assert ended == code
    assert word in said
    assert ElementTree.parse(repository / "j.xml").getroot().get("failures") == str(code)
    assert json.loads((repository / "g.json").read_text())["gate"] == (
        "regressed" if code else "passed"
    )
    assert word in (repository / "c.md").read_text()


def test_each_gate_is_a_line_of_its_history(repository: Path, call: Call) -> None:
    words = ["--base", "main", *SPEED, "--history", "gates.jsonl", "--", "sh", "program.sh"]
    for head in ("main~1", "."):
        assert call(gate.main, ["--head", head, *words])[0] == (head == ".")
    first, second = map(json.loads, Path("gates.jsonl").read_text().splitlines())
    assert (first["ratio"], second["ratio"]) == (pytest.approx(1.25), pytest.approx(0.625))
    assert [line["gate"] for line in (first, second)] == ["passed", "regressed"]
    assert not first["commit"].endswith("-dirty")
    assert second["commit"].endswith("-dirty")
    assert {"date", "machine", "low", "high", "metric", "base", "command"} <= set(first)
    bad = ["--base", "main", *SPEED, "--history", "/dev/full", "--", "sh", "program.sh"]
    assert call(gate.main, bad)[0] == 2


@pytest.mark.parametrize(("head", "base", "code"), [("broken", "works", 1), ("works", "broken", 3)])
def test_a_head_that_fails_is_a_failure_and_a_base_that_fails_says_nothing(
    repository: Path, call: Call, head: str, base: str, code: int
) -> None:
    for name, text in (("works", "exit 0"), ("broken", "exit 1")):
        (repository / "program.sh").write_text(text)
        git("commit", "-qam", name)
        git("tag", name)
    words = ["--base", base, "--head", head, "--minutes", "0.01", "--", "sh", "program.sh"]
    assert call(gate.main, words)[0] == code


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [(name, *row) for name, rows in REFUSED.items() for row in rows.items()],
)
def test_wrong_input_is_one_line(call: Call, name: str, words: str, message: str) -> None:
    code, _, said = call({"gate": gate.main, "compare": command.main}[name], shlex.split(words))
    assert code == 2
    [line] = said.splitlines()
    assert message in line


#: A program with a clock of its own, which each function moves by a known time; each call is noted.
CLOCK = """
import os, time
now = [0.0]
time.perf_counter = lambda: now[0]
def _spend(name, seconds):
    now[0] += seconds
    with open("log", "a") as log:
        log.write(f"{name} {os.getpid()}\\n")
def one(): _spend("one", 0.025)
def two(): _spend("two", 0.05)
def fails(): raise ValueError("no such thing")
def leaves(): os._exit(5)
"""


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clock.py").write_text(CLOCK)
    return tmp_path


def test_functions_are_called_block_by_block_in_processes_of_their_own(clock: Path) -> None:
    answer = paradnn.compare("clock.py:one", "clock.py:two")
    assert (answer.ratio, answer.verdict, answer.rounds) == (pytest.approx(2.0), "faster", 5)
    assert (answer.rule, answer.terms.minutes) == (Rule(most=COMMAND_ROUNDS), 2)
    assert str(answer).startswith("clock.py:one is 2.0000 times as fast as clock.py:two")
    calls = [line.split() for line in (clock / "log").read_text().splitlines()]
    processes = {
        name: {process for who, process in calls if who == name} for name in ("one", "two")
    }
    assert {name: len(found) for name, found in processes.items()} == {
        "one": 6,
        "two": 6,
    }  # with the warm-up
    assert answer.values(0) == [pytest.approx(0.025)] * 50
    ends = {
        name: next(process for who, process in reversed(calls) if who == name) for name in processes
    }
    names = [name for name, process in calls if process == ends[name]]
    turns = sum(one != two for one, two in itertools.pairwise(names))
    assert turns > 10  # not one after the other


@pytest.mark.parametrize(
    ("name", "reason"),
    [("fails", "exit code 1 (ValueError: no such thing)"), ("leaves", "exit code 5")],
)
def test_a_function_that_fails_has_no_verdict(clock: Path, name: str, reason: str) -> None:
    answer = paradnn.compare("clock.py:one", f"clock.py:{name}")
    assert (answer.verdict, answer.problem) == ("undecided", f"clock.py:{name} failed: {reason}")


@pytest.mark.parametrize("word", ["nowhere.py:f", "clock.py:three", "no.such.module:f"])
def test_a_function_that_is_not_there_is_wrong_input(clock: Path, word: str) -> None:
    with pytest.raises(ConfigError, match=r"^function="):
        paradnn.compare("clock.py:one", word)


def test_what_no_other_process_can_import_is_wrong_input() -> None:
    with pytest.raises(ConfigError, match="define it at the top level of a file"):
        paradnn.compare(lambda: None, "true")


@pytest.mark.parametrize("words", TABLES["typed"])
def test_the_first_two_words_are_the_sides_and_the_rest_is_common(words: list[str]) -> None:
    request = read_arguments(words)
    assert [label for label, _ in request.sides] == ["compile=graph", "compile=xla"]
    assert request.common == ["model=fc", "batch_size=16,64"]
    if "--rounds" in words:
        assert (request.rule.least, request.rule.most) == (7, 9)


def test_a_side_of_several_overrides_is_one_quoted_word() -> None:
    first, second = read_arguments(
        ["framework=jax '+framework.env.JAX_X=a b'", "framework=tensorflow"]
    ).sides
    assert first[1] == ["framework=jax", "+framework.env.JAX_X=a b"]
    assert second[1] == ["framework=tensorflow"]
    for words, most, minutes in (
        (["a=1", "a=2"], Rule.most, 0),
        (["one", "other"], COMMAND_ROUNDS, COMMAND_MINUTES),
    ):
        request = read_arguments(words)
        assert (request.rule, request.minutes or 0) == (Rule(most=most), minutes)
    for words in ([], ["one"], ["one", "one"]):
        assert read_arguments(["--null", *words]).words == words[:1]
