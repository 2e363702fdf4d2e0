"""Run programs that take turns: each is a process that waits on a pipe for its next block.

A program is a module with a `main` that ends in `take_part(prepare)`. It imports its framework
once and forks a process per model, as ParaDnn's worker does per point. Nothing here is part of
ParaDnn.
"""

import argparse
import contextlib
import gc
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Self

#: Runs the given number of steps, waits for the device, and returns the last loss.
Run = Callable[[int], float]
#: Steps whose losses are compared before timing.
COMPARED = 6


class Failed(Exception):
    """Raised if a program ends, or reports that it cannot continue."""


@dataclass(frozen=True)
class Step:
    """Step of a program: the function that runs it, and the shapes of the trained weights."""

    run: Run
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Ready:
    """Report of a program whose step is compiled."""

    shapes: tuple[tuple[int, ...], ...]
    losses: tuple[float, ...]

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(math.prod(shape) for shape in self.shapes)


class Program:
    """Program and its process for one model, as seen from the process that schedules turns."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self._connection = connection

    def ready(self) -> Ready:
        """Wait until the step is compiled. Raises Failed."""
        answer = self._receive()
        if not isinstance(answer, Ready):
            raise Failed(f"{self.name}: {answer}")
        return answer

    def block(self, steps: int, lead: int = 0) -> float:
        """Return the seconds of `steps` steps, after `lead` untimed steps that warm the caches.

        Raises:
            Failed: If the program ended.
        """
        self._connection.send((steps, lead))
        seconds = self._receive()
        if not isinstance(seconds, float):
            raise Failed(f"{self.name}: {seconds}")
        return seconds

    def close(self) -> None:
        """End the process for this model."""
        self._connection.close()

    def _receive(self) -> object:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise Failed(f"{self.name}: the process ended") from error


class Stage:
    """Set of started programs; `commands` maps their names to arguments of `python -m`.

    Each runs in a separate empty folder with `environ`. Output goes to files there and is shown
    if a program fails.
    """

    def __init__(
        self, commands: Mapping[str, Sequence[str]], environ: Mapping[str, str], root: Path
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="turns-")
        key = secrets.token_bytes(16)
        path = os.pathsep.join(filter(None, [str(root), environ.get("PYTHONPATH")]))
        self._listener = Listener(family="AF_UNIX", authkey=key)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._controls: dict[str, Connection] = {}
        own = {**environ, "PYTHONPATH": path, "TURNS_KEY": key.hex()}
        for name, command in commands.items():
            folder = Path(self._folder.name) / name
            folder.mkdir()
            words = [
                sys.executable,
                "-m",
                *command,
                "--address",
                str(self._listener.address),
                "--name",
                name,
            ]
            with (folder / "log").open("wb") as log:
                pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                self._processes[name] = subprocess.Popen(
                    words, cwd=folder, env=own, start_new_session=True, **pipes
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            # The forks share its process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._listener.close()
        self._folder.cleanup()

    def open(self, model: str) -> list[Program]:
        """Return every program with a process for `model`, which builds and compiles in the
        meantime.

        Raises:
            Failed: If a program cannot start.
        """
        self._accept(self._controls)
        for control in self._controls.values():
            control.send(model)
        opened: dict[str, Connection] = {}
        self._accept(opened)
        return [Program(name, opened[name]) for name in self._processes]

    def log(self, name: str) -> str:
        """Return the last lines that a program printed."""
        lines = (Path(self._folder.name) / name / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    def _accept(self, connections: dict[str, Connection]) -> None:
        """Wait for a connection of every program that is not in `connections`."""
        self._listener._listener._socket.settimeout(1.0)  # type: ignore[attr-defined]
        while missing := self._processes.keys() - connections.keys():
            try:
                connection = self._listener.accept()
                connections[connection.recv()] = connection
            except TimeoutError:
                for name in missing:
                    if self._processes[name].poll() is not None:
                        raise Failed(f"{name} ended:\n{self.log(name)}") from None


def take_part(
    prepare: Callable[[str], Step], parser: argparse.ArgumentParser | None = None
) -> None:
    """Serve the scheduling process until it is gone; `prepare(model)` runs in a fork per model."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--name", required=True)
    given, _ = parser.parse_known_args()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with _call(given.address, given.name) as control, contextlib.suppress(EOFError):
        while True:
            model = control.recv()
            if os.fork() == 0:
                control.close()
                # Wait for processes that the model's compiler started.
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _serve(_call(given.address, given.name), prepare, model)


def _call(address: str, name: str) -> Connection:
    connection = Client(address, authkey=bytes.fromhex(os.environ["TURNS_KEY"]))
    connection.send(name)
    return connection


def _serve(connection: Connection, prepare: Callable[[str], Step], model: str) -> None:
    """Build, compile, report, and run blocks until the caller is gone; never returns."""
    try:
        step = prepare(model)
        connection.send(Ready(step.shapes, tuple(step.run(1) for _ in range(COMPARED))))
        while True:
            steps, lead = connection.recv()
            if lead:
                step.run(lead)
            begin = time.perf_counter()
            loss = step.run(steps)
            seconds = time.perf_counter() - begin
            connection.send(seconds if math.isfinite(loss) else f"the loss is {loss}")
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            connection.send(f"{type(error).__name__}: {error}")
        os._exit(1)
