"""Commands as programs: help, interruption, errors and terminal control characters.

Also covers `paradnn check` on this machine and `paradnn ui`.
"""

import importlib.util
import io
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paradnn import check
from paradnn.cli.command import run_command
from paradnn.cli.commands import COMMANDS
from paradnn.cli.console import SafeConsole, Ticker, say, visible
from paradnn.cli.help import known_keys
from paradnn.cli.overrides import keys_of
from paradnn.cli.program import program
from paradnn.config.groups import option_names
from paradnn.config.settings import Tracking
from paradnn.core.errors import ParadnnError
from paradnn.platform.findings import Finding
from paradnn.store.mlflow_store import MlflowStore
from tests.cluster.postgres import free_port, is_well
from tests.conftest import ROOT, Store, environment, process, run
from tests.processes import started, wait_for, with_default_signal_handlers

#: Program that imports a package, as `python -m` does, and then sends Ctrl-C to itself.
_INTERRUPTED_IMPORT = (
    "import os, signal, sys; sys.argv[0] = '-m'; import {}; "
    "os.kill(os.getpid(), signal.SIGINT); import hydra"
)


@pytest.mark.parametrize("package", ["paradnn", "analysis"])
def test_ctrl_c_during_an_import_prints_one_line(package: str) -> None:
    command = with_default_signal_handlers(
        [sys.executable, "-c", _INTERRUPTED_IMPORT.format(package)]
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_importing_the_package_keeps_the_handler_of_ctrl_c() -> None:
    code = "import signal, paradnn; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    command = with_default_signal_handlers([sys.executable, "-c", code])

    assert (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        == "True\n"
    )


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        pytest.param(
            ParadnnError("key=1\n\x1b[31m: wrong"),
            2,
            "error: key=1 \\x1b[31m: wrong",
            id="control characters",
        ),
        pytest.param(ParadnnError("x" * 9_000), 2, f"error: {'x' * 247}...", id="long message"),
        pytest.param(
            OSError(36, "File name too long", "a" * 300),
            2,
            f"error: {'a' * 247}... File name too long",
            id="system error",
        ),
        pytest.param(
            UnicodeEncodeError("utf-8", "\udc80", 0, 1, "no"),
            2,
            "error: \\udc80: contains bytes that are not valid utf-8",
            id="invalid text",
        ),
        pytest.param(KeyboardInterrupt(), 130, "interrupted", id="Ctrl-C"),
    ],
)
def test_an_expected_error_prints_one_line(
    fault: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise fault

    before = signal.getsignal(signal.SIGINT)

    assert program(main)() == code
    assert capsys.readouterr().err == f"{line}\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train"])
    with pytest.raises(ZeroDivisionError):
        run_command(lambda _: 1 // 0)


def test_control_characters_from_a_store_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = "fc\x1b]0;owned\x07\x9b2J\r\u202e\udc80 Ω\tx\nrow"
    assert visible(hostile) == "fc\\x1b]0;owned\\x07\\x9b2J\\r\\u202e\\udc80 Ω\tx\nrow"

    say(hostile)
    out = io.StringIO()
    SafeConsole(file=out, force_terminal=True, width=200).print(
        hostile, style="red", soft_wrap=True, markup=False
    )

    assert capsys.readouterr().out == f"{visible(hostile)}\n"
    assert "fc\\x1b]0;owned\\x9b2J\\u202e\\udc80 Ω" in out.getvalue()
    assert "\x1b[31m" in out.getvalue()  # written by the console itself


def test_every_command_has_a_help_page() -> None:
    for command in COMMANDS:
        page = run(["paradnn.__main__", "help", command])
        assert (page.returncode, len(page.stdout.splitlines()) > 4) == (0, True), command


def test_check_prints_the_version() -> None:
    done = run(["paradnn.__main__", "check", "--version"])

    assert (done.returncode, done.stdout) == (0, "paradnn 0.2.0\n")


def test_long_work_reports_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    report_progress = Ticker("runs", clock=lambda: now[0])
    for done in range(1, 101):
        now[0] = done / 2
        report_progress(done, 2_000)

    assert capsys.readouterr().err == "30 of 2,000 runs\n60 of 2,000 runs\n90 of 2,000 runs\n"


@pytest.fixture(scope="module")
def help_of_train() -> str:
    return run(["paradnn.train", "--help"]).stdout


def test_help_explains_every_key(help_of_train: str) -> None:
    groups = {path.name for path in (ROOT / "conf").iterdir()} | {"sweep.plan", "sweep.grids"}
    names = [key for key in known_keys() if not key.endswith(".name") and key not in groups]
    keys = [key for key in names if not any(other.startswith(f"{key}.") for other in names)]

    missing = [key for key in keys if not re.search(rf"^\s+{re.escape(key)}=", help_of_train, re.M)]

    assert missing == []


def test_keys_of_every_model_are_known() -> None:
    model_keys = {
        f"model.{key}" for name in option_names("model") for key in keys_of("model", name)
    }

    assert model_keys <= set(known_keys())


def test_help_names_every_option_of_a_group(help_of_train: str) -> None:
    options = [
        path.stem for path in (ROOT / "conf").glob("*/*.yaml") if path.parent.name != "hydra"
    ]

    assert [name for name in options if name not in help_of_train] == []


def test_every_configuration_file_begins_with_its_command() -> None:
    for path in (ROOT / "conf").rglob("*.yaml"):
        lines = path.read_text().splitlines()[:2]
        commands = [line for line in lines if re.search(r"python -m paradnn(\.| ask )", line)]
        assert commands, path
        assert commands[0].startswith("# ")


def test_an_interpreter_without_the_framework_is_named(tmp_path: Path) -> None:
    """Try an empty environment, and this interpreter if it lacks JAX."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    bare = str(tmp_path / "bare" / "bin" / "python")
    for python, package in ((bare, "jax"), (sys.executable, "'paradnn[jax]'")):
        if python == bare or importlib.util.find_spec("jax") is None:
            done = run(
                ["paradnn.train", f"software.python={python}", "framework=jax"], Store(tmp_path)
            )
            remedy = f"run {python} -m pip install {package}, or set software.python"
            expected = f"error: framework.name=jax: jax is not installed in {python}; {remedy}\n"
            assert (done.returncode, done.stderr) == (2, expected)

    assert not (tmp_path / "mlflow.db").exists()


HARMFUL = Finding("governor", "clock governor", "powersave", True, "why", "echo performance")
HARMLESS = Finding("clock_source", "clock source", "tsc", False, "why")


def test_the_first_line_of_check_is_the_verdict() -> None:
    done = process(["paradnn", "check"])
    assert done.returncode == 0, done.stderr
    assert re.match(
        r"(No known|\d+) noise sources? found(: (it|they) will widen intervals)?\.$",
        done.stdout.splitlines()[0],
    )
    assert "clock source" in done.stdout


def test_check_prints_findings_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_findings", lambda: [HARMLESS, HARMFUL])

    assert check.main(["--json", "--strict"]) == 1

    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "1 noise source found: it will widen intervals."
    assert [finding["name"] for finding in document["findings"]] == ["clock_source", "governor"]


def test_check_prints_findings_with_their_remedies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_findings", lambda: [HARMLESS, HARMFUL])

    assert check.main([]) == 0

    text = capsys.readouterr().out
    assert "harms  clock governor" in text
    assert "clock governor\n  echo performance" in text


def test_a_strict_check_passes_without_harmful_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_findings", lambda: [HARMLESS])

    assert check.main(["--strict"]) == 0


def test_a_taken_port_is_reported_with_an_alternative(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(["paradnn.ui", "--port", str(port)], store)
        assert done.returncode == 2
        assert done.stderr.startswith(
            f"error: --port={port}: is not available (Address already in use); choose "
        )
        assert f"make ui PORT={port % 65535 + 1}" in done.stderr


@pytest.mark.slow
def test_ui_serves_the_store(store: Store) -> None:
    port = free_port()
    silent = subprocess.DEVNULL
    MlflowStore(Tracking(uri=store.uri))
    command = [sys.executable, "-m", "paradnn.ui", "--port", str(port)]
    with started(
        command, cwd=ROOT, env=environment(store, MLFLOW_WORKERS="1"), stdout=silent, stderr=silent
    ):
        assert wait_for(lambda: is_well(f"http://127.0.0.1:{port}"))
