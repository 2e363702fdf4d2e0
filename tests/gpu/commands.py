"""Commands of the project that record into files, and the runs that they recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
_OFFLINE = ("tracking=offline", "tracking.folder={}")


@dataclass(frozen=True)
class Run:
    """One recorded run."""

    name: str
    outcome: str
    reason: str | None
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    artifacts: dict[str, Any]

    @property
    def family(self) -> str:
        """Name of the model family; empty for ceilings."""
        return self.params.get("model.name", "")

    @property
    def operations(self) -> list[list[Any]]:
        """Rows of the operation table; empty without a profile."""
        return list(self.artifacts.get("operations.json", {}).get("data", []))


class Command:
    """Running command of the project.

    Args:
        arguments: Module and arguments of the command.
        log: File for the output.
        folder: Folder for the recorded runs.
    """

    def __init__(self, arguments: Sequence[str], log: Path, folder: Path) -> None:
        self._log = log
        self.folder = folder
        environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("MLFLOW_", "HYDRA_"))
        }
        command = [sys.executable, "-m", *arguments]
        with log.open("wb") as output:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environ, start_new_session=True, **pipes
            )

    def wait(self, seconds: float) -> int:
        """Wait for the command and return its exit code; interrupt it after `seconds`.

        An interrupted command keeps its results. It is killed after 20 more seconds.
        """
        for signal_number, patience in ((signal.SIGINT, seconds), (signal.SIGKILL, 20.0)):
            try:
                return self._process.wait(patience)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal_number)
        return self._process.wait()

    def end(self) -> None:
        """Interrupt the command if it still runs.

        Its workers, which run in separate sessions, end with their driver.
        """
        try:
            self.wait(0.0)
        except KeyboardInterrupt:  # the user pressed Ctrl-C a second time
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def output(self) -> str:
        """Output of the command so far."""
        return self._log.read_text(errors="replace")

    def last_line(self) -> str:
        """Return the last line of the output, which gives the reason for the end."""
        return (self.output.strip().splitlines() or ["no output"])[-1][:300]

    def runs(self) -> list[Run]:
        """Return the recorded runs."""
        recorded = []
        for file in sorted(self.folder.glob("*.json")):
            body = json.loads(json.loads(file.read_text())["body"])
            if "record" in body:
                fields = {key: body["record"].get(key) for key in Run.__dataclass_fields__}
                recorded.append(Run(**fields))
        return recorded


class Session:
    """Session on the machine under test.

    Args:
        platform: "gpu" or "cpu".
        frameworks: Installed frameworks.
        folder: Folder for the files of all commands.
        seconds: Time limit of the session.
    """

    def __init__(
        self, platform: str, frameworks: Sequence[str], folder: Path, seconds: float
    ) -> None:
        self.platform = platform
        self.frameworks = tuple(frameworks)
        #: Frameworks that see no device of the platform, according to the first check.
        self.blind: set[str] = set()
        self.folder = folder
        self._end = time.monotonic() + seconds
        self._commands: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._commands:
            command.end()

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self._end - time.monotonic()

    def gpu_only(self) -> None:
        """Skip the check if the platform is not a GPU."""
        if self.platform != "gpu":
            pytest.skip("needs a GPU")

    def need(self, framework: str) -> None:
        """Skip the check if the framework is not installed or sees no device."""
        if framework not in self.frameworks:
            pytest.skip(f"{framework} is not installed")
        if framework in self.blind:
            pytest.skip(f"{framework} sees no {self.platform.upper()}")

    def framework(self) -> str:
        """Return the framework for checks that need only one; skip if none sees a device."""
        for name in self.frameworks:
            if name not in self.blind:
                return name
        pytest.skip(f"no framework sees a {self.platform.upper()}")

    def train(self, *arguments: str) -> Command:
        """Start a sweep."""
        return self._start(
            ["paradnn.train", "-m", "resume=false", "ceilings=false", *arguments], *_OFFLINE
        )

    def ceilings(self, framework: str) -> Command:
        """Start measuring the ceilings of one framework."""
        return self._start(
            ["paradnn.ceilings", f"framework={framework}", f"platform={self.platform}"], *_OFFLINE
        )

    def fidelity(self, framework: str, families: Sequence[str]) -> Command:
        """Start a short comparison of the worker's step with plain loops."""
        selection = [
            "--frameworks",
            framework,
            "--families",
            ",".join(families),
            "--platform",
            self.platform,
        ]
        sizes = ["--rounds", "12", "--block", "0.05", "--starts", "1", "--settle", "0"]
        return self._start(["benchmarks.fidelity", *selection, *sizes], "--out={}")

    def measured(self, seconds: float, *arguments: str) -> list[Run]:
        """Return the runs of a sweep of at most `seconds`; skip the check at the time limit."""
        command = self.train(*arguments, f"platform={self.platform}")
        self.ended(command, seconds)
        runs = command.runs()
        assert runs, command.last_line()
        return runs

    def ended(self, command: Command, seconds: float) -> None:
        """Wait for a command for at most `seconds`.

        Skip the check if the command was interrupted by the time limit of the session.
        """
        if command.wait(max(1.0, min(seconds, self.left))) and self.left <= 0:
            pytest.skip(f"the time limit was reached: {command.last_line()}")

    def _start(self, arguments: Sequence[str], *folder_options: str) -> Command:
        """Start a command; `{}` in `folder_options` is replaced by the folder of its runs."""
        folder = self.folder / str(len(self._commands))
        folder.mkdir()
        command = Command(
            [*arguments, *(option.format(folder) for option in folder_options)],
            folder.with_suffix(".log"),
            folder,
        )
        self._commands.append(command)
        return command
