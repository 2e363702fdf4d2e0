"""Programs that take turns: each lives in a process of its own and sleeps on a pipe until it may
run a block of steps.

A program is a module with a `main` that ends in `take_part(prepare)`. It imports its framework
once, and then forks a process for each model, as ParaDnn's worker does for each point. Nothing here
is ParaDnn's.
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

#: Runs so many steps, waits for the device, and returns the last loss.
Run = Callable[[int], float]
#: Steps whose losses are compared before anything is timed.
COMPARED = 6


class Failed(Exception):
    """A program ended, or said that it cannot go on."""


@dataclass(frozen=True)
class Step:
    """What a program made of a model: how it runs, and the shapes of the weights that it trains."""

    run: Run
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Ready:
    """What a program says once its step is compiled."""

    shapes: tuple[tuple[int, ...], ...]
    losses: tuple[float, ...]

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(math.prod(shape) for shape in self.shapes)


class Program:
    """A program and its process for one model, as the one who gives the turns sees them."""

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
        """Seconds of `steps` steps, after `lead` that are not timed: others ran in between. Raises
        Failed.
        """
        self._connection.send((steps, lead))
        seconds = self._receive()
        if not isinstance(seconds, float):
            raise Failed(f"{self.name}: {seconds}")
        return seconds

    def close(self) -> None:
        """Let the process for this model end."""
        self._connection.close()

    def _receive(self) -> object:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise Failed(f"{self.name}: the process ended") from error


class Stage:
    """Where programs are started: `commands` are the arguments of `python -m` by the programs'
    names.

    They run in an empty folder each, with `environ`; their output is in files there, and is shown
    where one fails.
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
            # The forks are in its process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._listener.close()
        self._folder.cleanup()

    def open(self, model: str) -> list[Program]:
        """Every program with a process for `model`, which builds and compiles its step meanwhile.
        Raises Failed.
        """
        self._accept(self._controls)
        for control in self._controls.values():
            control.send(model)
        opened: dict[str, Connection] = {}
        self._accept(opened)
        return [Program(name, opened[name]) for name in self._processes]

    def log(self, name: str) -> str:
        """The last lines that a program printed."""
        lines = (Path(self._folder.name) / name / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    def _accept(self, connections: dict[str, Connection]) -> None:
        """Wait for a call of every program that is not in `connections`."""
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
    """Serve the one who started this program until it is gone: `prepare(model)` runs in a fork for
    each model.
    """
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
                # What the model's own compiler starts is waited for.
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
