"""`paradnn gate` at planted commits of a program that prints a known speed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from paradnn.compare import gate
from paradnn.platform.commits import checkouts
from tests.compare.conftest import Call, Outcome, commit, git
from tests.processes import PATIENCE, wait_for, with_default_signal_handlers

SPEED = ["--metric", "speed: ([0-9.]+)"]
PROGRAM = ["--", "sh", "program.sh"]


def run_gate(call: Call, *words: str) -> Outcome:
    return call(gate.main, words)


def commit_tagged(repository: Path, name: str, program: str) -> None:
    """Commit a program and tag the commit."""
    (repository / "program.sh").write_text(program)
    commit(name)
    git("tag", name)


@pytest.mark.parametrize(
    ("base", "slower", "code", "verdict"),
    [
        pytest.param("main~1", "50%", 1, "REGRESSED", id="half as fast"),
        pytest.param("main", "59%", 1, "REGRESSED", id="threshold just below the difference"),
        pytest.param("main", "61%", 0, "passed", id="threshold just above the difference"),
    ],
)
def test_the_gate_fails_a_head_that_is_slower(
    repository: Path, call: Call, base: str, slower: str, code: int, verdict: str
) -> None:
    files = ["--junit", "j.xml", "--markdown", "c.md", "--json", "g.json"]
    outcome = run_gate(call, "--base", base, "--slower", slower, *SPEED, *files, *PROGRAM)
    case = ElementTree.parse(repository / "j.xml").getroot()

    assert outcome.code == code
    assert verdict in outcome.output
    assert case.get("failures") == str(code)

    content = json.loads((repository / "g.json").read_text())
    assert content["gate"] == ("regressed" if code else "passed")
    assert verdict in (repository / "c.md").read_text()


def test_a_passed_gate_has_one_verdict(repository: Path, call: Call) -> None:
    outcome = run_gate(call, "--base", "main", "--slower", "99%", *SPEED, *PROGRAM)
    assert outcome.output.count("passed") == 1
    assert "times as fast" not in outcome.output


def test_reports_contain_times_ratio_and_output(repository: Path, call: Call) -> None:
    files = ["--junit", "j.xml", "--markdown", "c.md"]
    outcome = run_gate(call, "--base", "main", *SPEED, *files, *PROGRAM)

    assert outcome.code == 1

    comment = (repository / "c.md").read_text()
    assert "Speed of the working tree over main: 0.625 (95% interval" in comment
    assert "| side | metric, median | smallest .. largest | processor time | runs |" in comment
    assert "| the working tree | 50 | 50 .. 50 |" in comment

    output = ElementTree.parse(repository / "j.xml").findtext(".//system-out")
    assert output is not None
    assert "REGRESSED" in output
    assert "main, 80, 80 .. 80" in output


def test_reports_survive_control_characters_and_markup(repository: Path, call: Call) -> None:
    commit_tagged(repository, "works", "exit 0")
    commit_tagged(repository, "broken", r"""printf 'a|b \033[31m<red> \001\n' >&2; exit 1""")
    files = ["--junit", "j.xml", "--markdown", "c.md"]
    words = ["--base", "works", "--head", "broken", *files, "--", "sh program.sh | cat"]
    outcome = run_gate(call, *words)

    assert outcome.code == 1

    failure = ElementTree.parse(repository / "j.xml").find(".//failure")
    assert failure is not None
    assert r"a|b \x1b[31m<red> \x01" in str(failure.get("message"))

    table = [
        line for line in (repository / "c.md").read_text().splitlines() if line.startswith("|")
    ]
    assert len({line.replace(r"\|", "").count("|") for line in table}) == 1
    assert "\x1b" not in (repository / "c.md").read_text()
    assert r"\<red\>" in (repository / "c.md").read_text()


def test_each_gate_appends_a_line_to_the_history(repository: Path, call: Call) -> None:
    words = ["--base", "main", *SPEED, "--history", "gates.jsonl", *PROGRAM]
    codes = [run_gate(call, "--head", head, *words).code for head in ("main~1", ".")]
    first, second = map(json.loads, Path("gates.jsonl").read_text().splitlines())

    assert codes == [0, 1]
    assert first["ratio"] == pytest.approx(1.25)
    assert second["ratio"] == pytest.approx(0.625)
    assert [first["gate"], second["gate"]] == ["passed", "regressed"]
    assert not first["commit"].endswith("-dirty")
    assert second["commit"].endswith("-dirty")
    assert {"date", "machine", "low", "high", "metric", "base", "command"} <= set(first)


def test_a_history_that_cannot_be_written_is_rejected(repository: Path, call: Call) -> None:
    words = ["--base", "main", *SPEED, "--history", "/dev/full", *PROGRAM]
    assert run_gate(call, *words).code == 2


def test_a_head_that_fails_although_the_base_runs_fails_the_gate(
    repository: Path, call: Call
) -> None:
    commit_tagged(repository, "works", "exit 0")
    commit_tagged(repository, "broken", "exit 1")
    words = ["--base", "works", "--head", "broken", "--minutes", "0.01", *PROGRAM]
    outcome = run_gate(call, *words)

    assert outcome.code == 1
    assert outcome.output.startswith("FAILED: broken failed: exit code 1")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--", "sh", "typo.sh"], id="missing script"),
        pytest.param(["--metric", "json:sped", "--lower", *PROGRAM], id="missing field"),
        pytest.param(["--metric", "sped: (.*)", "--lower", *PROGRAM], id="pattern never found"),
        pytest.param(["--prepare", "exit 3", *PROGRAM], id="prepare fails"),
        pytest.param(["--timeout", "0.001", "--", "sleep 10"], id="timeout"),
    ],
)
def test_a_command_that_fails_at_the_base_is_rejected(
    repository: Path, call: Call, words: list[str]
) -> None:
    outcome = run_gate(call, "--base", "main", *words)
    assert outcome.code == 2
    assert "fails at the base main (" in outcome.errors
    assert "), so there is nothing to compare with" in outcome.errors
    assert outcome.output == ""


def test_the_base_runs_first(repository: Path, call: Call, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (repository / "program.sh").write_text(f"echo head >>{log}")
    commit("head")
    git("tag", "head")
    (repository / "program.sh").write_text(f"echo base >>{log}")
    commit("base")
    git("tag", "base")
    words = ["--base", "base", "--head", "head", "--most", "5", "--minutes", "0.001", *PROGRAM]
    run_gate(call, *words)

    assert log.read_text().split()[:2] == ["base", "head"]


def test_a_regression_of_a_rate_is_found_without_an_option(repository: Path, call: Call) -> None:
    commit_tagged(repository, "fast", """echo '{"rate": 100}'""")
    commit_tagged(repository, "slow", """echo '{"rate": 50}'""")
    words = ["--base", "fast", "--head", "slow", "--metric", "json:rate", *PROGRAM]
    outcome = run_gate(call, *words)

    assert outcome.code == 1
    assert "REGRESSED" in outcome.output


def test_a_metric_of_unknown_direction_is_rejected(repository: Path, call: Call) -> None:
    words = ["--base", "main", "--metric", "json:score", *PROGRAM]
    outcome = run_gate(call, *words)

    assert outcome.code == 2
    assert "add --higher or --lower" in outcome.errors


def test_sides_with_the_same_code_pass_without_rounds(repository: Path, call: Call) -> None:
    commit_tagged(repository, "one", "echo speed: 1")
    (repository / "README").write_text("a text that the program does not load\n")
    commit("README")
    words = ["--base", "one", *SPEED, "--json", "g.json", *PROGRAM]
    outcome = run_gate(call, *words)

    assert outcome.code == 0
    assert outcome.output.startswith("passed: both sides ran the same code")

    sides = json.loads((repository / "g.json").read_text())["sides"]
    assert sides[0]["code_digest"] == sides[1]["code_digest"]


def test_sides_with_different_code_have_different_digests(repository: Path, call: Call) -> None:
    words = ["--base", "main", "--slower", "99%", *SPEED, "--json", "g.json", *PROGRAM]
    outcome = run_gate(call, *words)

    assert outcome.code == 0

    sides = json.loads((repository / "g.json").read_text())["sides"]
    assert None not in {side["code_digest"] for side in sides}
    assert sides[0]["code_digest"] != sides[1]["code_digest"]
    assert "same code" not in outcome.output


def test_the_worktree_of_a_killed_gate_is_removed_by_the_next_gate(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = [sys.executable, "-m", "paradnn", "gate", "--base", "main", "--", "sleep 1000"]
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(words, env=environ, stderr=subprocess.PIPE) as killed:
        assert wait_for(lambda: len(worktrees()) == 2)
        killed.kill()

    assert len(worktrees()) == 2

    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with checkouts(("main", ".")):
        assert len(worktrees()) == 2

    assert len(worktrees()) == 1
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_canceled_gate_leaves_no_process_and_no_worktree(
    repository: Path, tmp_path: Path, number: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    pids = tmp_path / "pids"
    start_process = f"setsid sleep 1000 & echo $! >>{pids}"
    options = ["--base", "main", "--setup", start_process, "--prepare", start_process]
    words = [
        sys.executable,
        "-m",
        "paradnn",
        "gate",
        *options,
        "--",
        f"{start_process}; sleep 1000",
    ]
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        with_default_signal_handlers(words), env=environ, stderr=subprocess.PIPE
    ) as canceled:
        assert wait_for(lambda: len(worktrees()) == 2)
        # The processes are of two setups, of the first preparation and of the first run.
        assert wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 4)
        started = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        canceled.send_signal(number)
        canceled.communicate(timeout=PATIENCE)

    assert canceled.returncode == 130
    assert wait_for(lambda: not any(process.is_running() for process in started))
    assert len(worktrees()) == 1
    assert not list(temporary.iterdir())


def worktrees() -> list[str]:
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()
