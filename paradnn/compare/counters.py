"""Count instructions, cache misses or heap use of a command, which other processes do not disturb.

Instructions are counted by the processor (`perf stat`) if the kernel allows it, else by valgrind's
cachegrind. Cache misses (simulated) and heap use are always counted by valgrind. Child processes
and threads are included. Hash seeds and the layout of the address space are fixed.

Under cachegrind, a forked child starts with the counts of its parent, so the work before the fork
would count twice. Commands that fork without starting another program are therefore counted by
callgrind, which writes and clears its counts before each fork, but takes twice as long.

The counts exclude the work of a GPU, waiting, and instructions of the operating system's kernel.
The counts of a program that runs for a fixed time, or that compiles code in background threads, are
not repeatable.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paradnn.compare.processes import Command, CommandProtocol, command_line, failure_reason
from paradnn.core.errors import ConfigError
from paradnn.core.scratch import Scratch
from paradnn.platform.process_guard import ProcessGuard

#: Quantities that can be counted -> their units in sentences.
QUANTITIES = {
    "instructions": "instructions",
    "cache-misses": "simulated last-level cache misses",
    "memory": "bytes of heap at the peak",
}
#: Events of valgrind's cache simulation. Their sum is the number of last-level cache misses.
_CACHE_MISSES = ("ILmr", "DLmr", "DLmw")
#: Environment variables with which two runs of a program execute the same instructions. Python must
#: cache bytecode: otherwise it compiles each module in every run, so that even a changed comment
#: changes the count. For memory, Python must use malloc: its own allocator hides allocations from
#: valgrind's DHAT.
_FIXED = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""}
_FIXED_FOR_MEMORY = {**_FIXED, "PYTHONMALLOC": "malloc"}
#: Functions of the C library that fork.
_FORKS = ("fork", "__libc_fork", "_Fork")
_PEAK = re.compile(r"At t-gmax: ([\d,]+) bytes")
_PROCESS = re.compile(r"==(\d+)== Command: (.*)\n==\d+== Parent PID: (\d+)")
_ALLOCATIONS = re.compile(r"Total: +[\d,]+ bytes in ([\d,]+) blocks")


@dataclass(frozen=True)
class Count:
    """Instructions, cache misses or peak heap use, counted in one run of a command.

    Attributes:
        value: Number of instructions, of cache misses, or of bytes of heap at the peak.
        allocations: Number of heap allocations; None unless memory was counted.
        counts_twice: Whether the value includes the work of a parent again for each forked child.
        failure: Why the run failed; None if it succeeded.
    """

    value: float = 0.0
    allocations: int | None = None
    counts_twice: bool = False
    failure: str | None = None


class Counter:
    """Counts instructions, cache misses or heap use in runs of a command.

    Args:
        quantity: `instructions`, `cache-misses` or `memory`.
        program: Name of the counting program: `perf`, `cachegrind`, `callgrind` or `dhat`. None for
            an installed program that can count the quantity.

    Raises:
        ConfigError: If no program on this machine can count the quantity.
    """

    def __init__(self, quantity: str, program: str | None = None) -> None:
        self.quantity = quantity
        self.program = program or _find_program(quantity)

    def count(
        self,
        command: Command,
        protocol: CommandProtocol,
        guard: ProcessGuard,
        profile: Path | None = None,
    ) -> Count:
        """Run a command once, and return its count.

        Args:
            command: The command, and the folder in which it runs.
            protocol: Timeout of a run, and exit codes that count as success.
            guard: Starts the process, and kills it if this process ends.
            profile: Folder in which to keep the output files of the counting program; None to
                discard them.
        """
        with Scratch() as scratch:
            folder = profile or scratch
            failure = self._run(self._prefix(folder), command, protocol, guard)
            if failure:
                return Count(failure=f"{failure}, under {self.program}")
            return self._read(folder)

    def warm_up(self, command: Command, protocol: CommandProtocol, guard: ProcessGuard) -> None:
        """Run a command once without counting, to fill caches such as Python's bytecode.

        A failure is ignored, because the first counted run will report it.

        Args:
            command: The command, and the folder in which it runs.
            protocol: Timeout of the run.
            guard: Starts the process, and kills it if this process ends.
        """
        self._run([], command, protocol, guard)

    def _run(
        self,
        prefix: Sequence[str],
        command: Command,
        protocol: CommandProtocol,
        guard: ProcessGuard,
    ) -> str | None:
        """Run a command, and return why it failed; None if it succeeded.

        Args:
            prefix: Words of the counting program, which precede the command; empty to count
                nothing.
            command: The command, and the folder in which it runs.
            protocol: Timeout of a run, and exit codes that count as success.
            guard: Starts the process, and kills it if this process ends.
        """
        fixed = _FIXED_FOR_MEMORY if self.quantity == "memory" else _FIXED
        with tempfile.TemporaryFile() as errors:
            with guard.running(
                [*prefix, *command_line(command.text, command.folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=command.folder,
                env={**os.environ, **fixed},
            ) as process:
                try:
                    code = process.wait(protocol.timeout)
                except subprocess.TimeoutExpired:
                    guard.kill(process)
                    return f"took longer than {protocol.timeout:g} s"
            return failure_reason(code, protocol.exit_codes, errors)

    def _prefix(self, folder: Path) -> list[str]:
        """Return the words of the counting program, which precede the command.

        Args:
            folder: Folder for the output files of the counting program.
        """
        if self.program == "perf":
            output = str(folder / "perf.csv")
            fixed_layout = ["setarch", "-R"] if shutil.which("setarch") else []
            return [*fixed_layout, *_perf_words(output)]
        valgrind = ["valgrind", "--trace-children=yes", f"--log-file={folder}/log.%p"]
        if self.program == "dhat":
            return [*valgrind, "--tool=dhat", f"--dhat-out-file={folder}/dhat.%p"]
        simulates_caches = "yes" if self.quantity == "cache-misses" else "no"
        words = [
            *valgrind,
            f"--tool={self.program}",
            f"--{self.program}-out-file={folder}/counts.%p",
            f"--cache-sim={simulates_caches}",
        ]
        if self.program == "callgrind":
            words += [f"--dump-before={function}" for function in _FORKS]
        return words

    def _read(self, folder: Path) -> Count:
        """Return the count in the output files of the counting program."""
        if self.program == "perf":
            value = _perf_value((folder / "perf.csv").read_text())
            if value is None:
                return Count(failure="perf reported no count of instructions")
            return Count(value)
        logs = [path.read_text(errors="replace") for path in sorted(folder.glob("log.*"))]
        if self.program == "dhat":
            peaks = _numbers(_PEAK, logs)
            if not peaks:
                return Count(failure="valgrind wrote no summary of heap use")
            # Processes may reach their peaks at different times, so peaks are not summed.
            return Count(float(max(peaks)), allocations=sum(_numbers(_ALLOCATIONS, logs)))
        totals = [_totals(path) for path in sorted(folder.glob("counts.*"))]
        if not totals:
            return Count(failure="valgrind wrote no counts")
        events = _CACHE_MISSES if self.quantity == "cache-misses" else ("Ir",)
        value = float(sum(total.get(event, 0) for total in totals for event in events))
        return Count(value, counts_twice=self.program == "cachegrind" and _has_fork(logs))


def _find_program(quantity: str) -> str:
    """Return the program that can count a quantity on this machine.

    Args:
        quantity: `instructions`, `cache-misses` or `memory`.

    Returns:
        `perf`, `cachegrind` or `dhat`.

    Raises:
        ConfigError: If no installed program can count the quantity.
    """
    if quantity == "instructions" and _has_instruction_counter():
        return "perf"
    if shutil.which("valgrind"):
        return "dhat" if quantity == "memory" else "cachegrind"
    if quantity == "instructions":
        reason = "perf cannot count instructions on this machine, and valgrind is not installed"
    else:
        reason = "valgrind is not installed"
    raise ConfigError(
        "--count", quantity, reason, "install valgrind (apt-get install valgrind), or omit --count"
    )


@functools.cache
def _has_instruction_counter() -> bool:
    """Return whether `perf stat` can count instructions of user code on this machine."""
    if not shutil.which("perf"):
        return False
    with tempfile.NamedTemporaryFile("r") as file:
        words = [*_perf_words(file.name), "true"]
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        return done.returncode == 0 and _perf_value(file.read()) is not None


def _perf_words(output: str) -> list[str]:
    return ["perf", "stat", "--event=instructions:u", "--field-separator=,", f"--output={output}"]


def _perf_value(text: str) -> float | None:
    """Return the number of instructions that `perf stat` counted; None if it is unknown.

    If perf could use a hardware counter only for part of the time, it extrapolates the number. The
    result is then None. The fifth field of a line is this part of the time in percent.

    Args:
        text: Output of `perf stat` in its format of comma-separated values.
    """
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 4 and fields[2].startswith("instructions") and fields[0].isdigit():
            return float(fields[0]) if float(fields[4]) > 99.9 else None
    return None


def _has_fork(logs: Sequence[str]) -> bool:
    """Return whether any process has the same command as its parent, which indicates a fork.

    Args:
        logs: Valgrind's log of each process.
    """
    processes = {}
    for log in logs:
        match = _PROCESS.search(log)
        if match:
            processes[match[1]] = (match[2], match[3])
    return any(processes.get(parent, ("",))[0] == command for command, parent in processes.values())


def _numbers(pattern: "re.Pattern[str]", texts: Sequence[str]) -> list[int]:
    """Return the number that a pattern first finds in each text; skip texts without a match.

    Args:
        pattern: Pattern whose first group is an integer, with or without commas.
        texts: The texts to search.
    """
    found = [pattern.search(text) for text in texts]
    return [int(match[1].replace(",", "")) for match in found if match]


def _totals(path: Path) -> dict[str, int]:
    """Return the total count of each event in an output file of cachegrind or callgrind."""
    events: list[str] = []
    totals: list[int] = []
    with path.open(errors="replace") as lines:
        for line in lines:
            if line.startswith("events:"):
                events = line.split()[1:]
            elif line.startswith(("summary:", "totals:")):
                totals = [int(word) for word in line.split()[1:]]
    return dict(zip(events, totals, strict=False))
