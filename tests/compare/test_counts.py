"""`paradnn gate --count`: instructions, cache misses and heap use of planted commits."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paradnn.compare import gate
from paradnn.compare.counters import Counter, _perf_value
from paradnn.compare.flame_graph import draw_flame_graph
from paradnn.compare.processes import Command, CommandProtocol
from paradnn.compare.profiles import CallGraph, WorkProfile, profile_command
from paradnn.core.errors import ConfigError
from paradnn.platform.process_guard import ProcessGuard
from tests.compare.conftest import Call, commit

needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
COUNT = ["--count", "instructions", "--fail-on", "count"]
PROGRAM = ["--", "sh", "program.sh"]

#: Program that works, and then forks the given number of children that do nothing.
FORKS = """
import os, sys
sum(range(300_000))
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
"""

PYTHON_PROGRAM = """
class Work:
    def square(self, count):
        total = 0
        for number in range(count):
            total += number * number
        return total

def main():
    for _ in range(3):
        Work().square(50)

main()
"""


def plant(repository: Path, base: str, head: str) -> None:
    """Commit the program `base` to main, and put the program `head` into the working tree."""
    (repository / "program.sh").write_text(base)
    commit("base")
    (repository / "program.sh").write_text(head)


@needs_valgrind
@pytest.mark.parametrize(
    ("head", "code", "verdict"),
    [
        pytest.param("seq 1 30600 >&2\n", 1, "REGRESSED: more than 1% more", id="2% more"),
        pytest.param("seq 1 30000 >&2 # same\n", 0, "equal within", id="equal"),
        pytest.param("seq 1 29000 >&2\n", 0, "less than main", id="3% fewer"),
    ],
)
def test_the_gate_decides_by_instructions(
    repository: Path, call: Call, head: str, code: int, verdict: str
) -> None:
    plant(repository, "seq 1 30000 >&2\n", head)
    outcome = call(gate.main, ["--base", "main", *COUNT, *PROGRAM])

    assert outcome.code == code
    assert verdict in outcome.output


@needs_valgrind
def test_a_difference_in_instructions_alone_does_not_fail_by_default(
    repository: Path, call: Call
) -> None:
    plant(repository, "seq 1 3000; echo speed: 5\n", "seq 1 3600; echo speed: 5\n")
    metric = ["--metric", "speed: ([0-9.]+)"]
    outcome = call(gate.main, ["--base", "main", *metric, "--count", "instructions", *PROGRAM])

    assert outcome.code == 0
    assert "The number of instructions changed, but the times show no difference." in outcome.output


@needs_valgrind
def test_null_compares_the_base_with_itself(repository: Path, call: Call) -> None:
    plant(repository, "seq 1 3000\n", "seq 1 9000\n")
    outcome = call(gate.main, ["--base", "main", "--null", *COUNT, *PROGRAM])

    assert outcome.code == 0
    assert "main and main are equal within" in outcome.output


@needs_valgrind
def test_memory_counts_the_peak_of_the_heap_and_allocations(repository: Path, call: Call) -> None:
    # dd allocates one buffer with the size of a block.
    copy = "dd if=/dev/zero of=/dev/null count=1 bs={size} status=none\n"
    plant(repository, copy.format(size=3_000_000), copy.format(size=5_000_000))
    words = ["--count", "memory", "--fail-on", "count", "--json", "g.json"]
    outcome = call(gate.main, ["--base", "main", *words, *PROGRAM])

    assert outcome.code == 1

    memory = json.loads((repository / "g.json").read_text())["counts"]["memory"]
    assert memory["head"][0] - memory["base"][0] == pytest.approx(2_000_000, abs=5_000)
    assert memory["allocations"]["head"] == pytest.approx(memory["allocations"]["base"], abs=20)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        pytest.param(["--fail-on", "count"], "--fail-on=count: needs --count", id="no count"),
        pytest.param(
            ["--count", "joules"], "--count=joules: is an unknown quantity", id="unknown quantity"
        ),
        pytest.param(["--flame-graph", "f.svg"], "--flame-graph=f.svg: shows", id="no profile"),
    ],
)
def test_options_that_contradict_each_other_are_rejected(
    repository: Path, call: Call, words: list[str], problem: str
) -> None:
    outcome = call(gate.main, ["--base", "main", *words, *PROGRAM])
    assert outcome.code == 2
    assert problem in outcome.errors


def test_functions_are_not_counted(repository: Path, call: Call) -> None:
    outcome = call(gate.main, ["--base", "main", "--count", "instructions", "--", "bench.py:work"])
    assert outcome.code == 2
    assert "--count=instructions: applies to commands, not to functions" in outcome.errors


def test_a_machine_without_valgrind_cannot_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="valgrind is not installed; install valgrind"):
        Counter("memory")


@needs_valgrind
def test_a_head_that_fails_is_a_regression(repository: Path, call: Call) -> None:
    plant(repository, "seq 1 30\n", 'test -z "$LD_PRELOAD" && seq 1 30\n')
    outcome = call(gate.main, ["--base", "main", *COUNT, *PROGRAM])

    assert outcome.code == 1
    assert "FAILED: the working tree failed: exit code 1, under cachegrind" in outcome.output


@needs_valgrind
def test_a_base_that_fails_under_the_counter_leaves_the_gate_undecided(
    repository: Path, call: Call
) -> None:
    plant(repository, 'test -z "$LD_PRELOAD" && seq 1 30\n', "seq 1 30\n")
    outcome = call(gate.main, ["--base", "main", *COUNT, *PROGRAM])

    assert outcome.code == 3
    assert "undecided: main failed: exit code 1, under cachegrind" in outcome.output


@needs_valgrind
def test_an_interrupted_count_leaves_the_gate_undecided(
    repository: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    plant(repository, "seq 1 30\n", "seq 1 3000\n")
    monkeypatch.setattr(Counter, "count", interrupt)
    outcome = call(gate.main, ["--base", "main", *COUNT, *PROGRAM])

    assert outcome.code == 130
    assert "undecided: interrupted before both sides were counted" in outcome.output


@needs_valgrind
def test_counted_runs_are_prepared(repository: Path, call: Call) -> None:
    plant(repository, "rm input && seq 1 30\n", "rm input && seq 1 3000\n")
    outcome = call(gate.main, ["--base", "main", *COUNT, "--prepare", "touch input", *PROGRAM])

    assert outcome.code == 1
    assert "REGRESSED: more than 1% more instructions" in outcome.output


@needs_valgrind
def test_work_before_a_fork_is_counted_once() -> None:
    commands = [
        Command(forks, shlex.join([sys.executable, "-S", "-c", FORKS, forks]))
        for forks in ("0", "2")
    ]
    counts = {}
    with ProcessGuard() as guard:
        for program in ("cachegrind", "callgrind"):
            counter = Counter("instructions", program=program)
            counts[program] = [
                counter.count(command, CommandProtocol(), guard) for command in commands
            ]

    assert [count.counts_twice for count in counts["cachegrind"]] == [False, True]

    without_forks, with_forks = (count.value for count in counts["callgrind"])
    assert with_forks / without_forks == pytest.approx(1, abs=0.05)


@needs_valgrind
def test_counted_python_programs_import_compiled_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    counter = Counter("instructions", program="cachegrind")
    protocol = CommandProtocol()
    values = []
    for name, comment in (("head", "#" * 300_000), ("base", "")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "work.py").write_text(f"def work():\n    pass\n{comment}\n")
        code = f"import sys; sys.path.insert(0, {str(folder)!r}); import work"
        command = Command(name, shlex.join([sys.executable, "-S", "-c", code]))
        with ProcessGuard() as guard:
            counter.warm_up(command, protocol, guard)
            values.append(counter.count(command, protocol, guard).value)

    # Compiling the comment takes more than 1% of all instructions.
    assert values[0] / values[1] == pytest.approx(1, abs=0.002)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("\n1234,,instructions:u,5678,100.00,,\n", 1234.0, id="counted"),
        pytest.param("<not supported>,,instructions:u,0,100.00,,", None, id="not supported"),
        pytest.param("1234,,instructions:u,5678,61.00,,", None, id="extrapolated"),
    ],
)
def test_the_output_of_perf_is_read(text: str, value: float | None) -> None:
    assert _perf_value(text) == value


@needs_valgrind
def test_instructions_per_function_equal_those_of_callgrind_annotate(tmp_path: Path) -> None:
    output = tmp_path / "callgrind.1"
    words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", "seq", "1", "500"]
    subprocess.run(words, check=True, capture_output=True)
    graph = CallGraph()
    with output.open() as lines:
        graph.add_file(iter(lines))
    annotated = subprocess.run(
        ["callgrind_annotate", "--threshold=100", "--auto=no", str(output)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    expected: dict[str, int] = defaultdict(int)
    for count, name in re.findall(r"^\s*([\d,]+) .*?:(\S+)(?: \[.*\])?$", annotated, re.MULTILINE):
        expected[name] += int(count.replace(",", ""))
    own: dict[str, int] = defaultdict(int)
    for name, count in graph.own.items():
        own[name.partition(" in ")[0]] += count
    named = {name for name in expected if expected[name] > 100 and name in own}

    assert len(named) > 30
    assert {name: own[name] for name in named} == {name: expected[name] for name in named}
    assert sum(graph.stacks().values()) == pytest.approx(sum(graph.own.values()))


def test_counted_lines_of_python_equal_those_of_the_trace_module(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PYTHON_PROGRAM)
    command = Command("head", f"{sys.executable} {program}")
    with ProcessGuard() as guard:
        profile = profile_command(command, CommandProtocol(), guard)

    assert profile is not None

    subprocess.run(
        [sys.executable, "-m", "trace", "--count", f"--coverdir={tmp_path}", str(program)],
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    covered = re.findall(r"^ *(\d+): (.*)", (tmp_path / "program.cover").read_text(), re.MULTILINE)
    lines_of_square = ("total = 0", "for number", "total +=", "return total")
    expected = sum(
        int(count) for count, line in covered if line.strip().startswith(lines_of_square)
    )
    (name,) = [name for name in profile.own if name.endswith("program.py:Work.square")]

    assert profile.own[name] == expected

    (stack,) = [stack for stack in profile.stacks if stack[-1] == name]
    assert [frame.partition(":")[2] for frame in stack] == ["<module>", "main", "Work.square"]


def test_a_flame_graph_shows_the_share_and_the_change_of_each_function() -> None:
    base = WorkProfile("lines", {"a": 60, "b": 40}, {("a",): 60, ("a", "b"): 40})
    head = WorkProfile("lines", {"a": 60, "b": 140}, {("a",): 60, ("a", "b"): 140})
    root = ElementTree.fromstring(draw_flame_graph(head, base, ("new <1>", "old")))
    boxes = {}
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        title = group.findtext("{http://www.w3.org/2000/svg}title")
        if title:
            rectangle = group.find("{http://www.w3.org/2000/svg}rect")
            assert rectangle is not None
            boxes[title.partition(":")[0]] = rectangle
    widths = {name: float(box.get("width", "nan")) for name, box in boxes.items()}

    assert widths["b"] / widths["a"] == pytest.approx(140 / 200, abs=0.001)
    assert boxes["b"].get("fill") == "rgb(240,95,95)"
    assert "new <1> against old: +100.00% lines" in "".join(root.itertext())
