"""Profiles of a command: executed instructions, or lines of Python, by call stack."""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paradnn.compare.counters import Counter
from paradnn.compare.processes import Command, CommandProtocol, command_line
from paradnn.core.scratch import Scratch
from paradnn.platform.process_guard import ProcessGuard

#: Folder with a sitecustomize.py that counts the executed lines of a Python program.
_INJECTED = Path(__file__).with_name("injected")
#: A reconstructed stack is not divided further below this share of all instructions.
_MIN_SHARE = 0.001
#: Maximum number of functions in a reconstructed stack.
_MAX_DEPTH = 60

#: Call stack: names of functions, outermost first.
Stack = tuple[str, ...]


@dataclass(frozen=True)
class WorkProfile:
    """The work of one run, by function and by call stack.

    Attributes:
        unit: Unit of the work, such as "instructions".
        own: Function -> its work, without the work of the functions that it calls.
        stacks: Call stack -> work of its innermost function, without callees.
        is_reconstructed: Whether the stacks are estimated from a call graph.
    """

    unit: str
    own: Mapping[str, int]
    stacks: Mapping[Stack, float]
    is_reconstructed: bool = False

    @property
    def total(self) -> int:
        """Total work of the run."""
        return sum(self.own.values())


@dataclass
class CallGraph:
    """Instructions of one run by function and by caller, read from valgrind's callgrind.

    Attributes:
        own: Function -> its instructions, without those of the functions that it calls.
        calls: Caller -> callee -> number of instructions of the callee in calls by this caller. It
            includes the functions that the callee calls.
    """

    own: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def add_file(self, lines: Iterator[str]) -> None:
        """Add the counts in an output file of callgrind. A run has one file per process.

        Valgrind's manual describes the format ("Callgrind Format Specification").

        Args:
            lines: The lines of the file.
        """
        names: dict[str, str] = {}
        objects: dict[str, str] = {}
        own_object = ""
        callee_object = ""
        caller = ""
        callee = ""
        for line in lines:
            if line.startswith("ob="):
                own_object = _full_name(line[3:], objects)
            elif line.startswith("fn="):
                caller = _function_name(line[3:], names, own_object)
                callee_object = own_object
            elif line.startswith("cob="):
                callee_object = _full_name(line[4:], objects)
            elif line.startswith("cfn="):
                callee = _function_name(line[4:], names, callee_object)
            elif line.startswith("calls="):
                # The next line contains the inclusive cost of these calls.
                cost = int(next(lines).split()[1])
                self.calls[caller][callee] = self.calls[caller].get(callee, 0) + cost
                callee_object = own_object
            elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
                fields = line.split()
                if len(fields) > 1:
                    self.own[caller] += int(fields[1])

    def stacks(self) -> dict[Stack, float]:
        """Reconstruct the call stacks of the run.

        Callgrind counts calls between pairs of functions, not whole stacks. The reconstruction
        assumes that a function divides its instructions among its callees in the same proportions
        for every caller. The instructions of a recursive call count for the outermost call of the
        function.

        Returns:
            Call stack, outermost function first -> instructions of its innermost function, without
            callees.
        """
        called = {callee for caller in self.calls for callee in self.calls[caller]}
        # A process or a thread begins with a function without callers.
        starts = {
            name: self.own[name] + sum(self.calls.get(name, {}).values())
            for name in list(self.own)
            if name not in called
        }
        total = sum(self.own.values())
        scale = total / max(sum(starts.values()), 1)
        stacks: dict[Stack, float] = defaultdict(float)
        for name, weight in starts.items():
            self._add_stacks(stacks, (name,), weight * scale, total)
        return stacks

    def _add_stacks(
        self, stacks: dict[Stack, float], stack: Stack, weight: float, total: int
    ) -> None:
        """Divide the instructions of a stack between its innermost function and the callees.

        Args:
            stacks: Stack -> instructions. The result is added to this mapping.
            stack: The stack, outermost function first.
            weight: Instructions of its innermost function in this stack, including callees.
            total: Instructions of the whole run.
        """
        name = stack[-1]
        calls = {
            callee: cost for callee, cost in self.calls.get(name, {}).items() if callee not in stack
        }
        inclusive = self.own.get(name, 0) + sum(calls.values())
        is_small = weight < _MIN_SHARE * total
        if is_small or len(stack) > _MAX_DEPTH or not calls or not inclusive:
            stacks[stack] += weight
            return
        stacks[stack] += weight * self.own.get(name, 0) / inclusive
        for callee, cost in calls.items():
            self._add_stacks(stacks, (*stack, callee), weight * cost / inclusive, total)


def _full_name(text: str, names: dict[str, str]) -> str:
    """Return the full form of a name in an output file of callgrind.

    Callgrind writes `(12) name` at the first occurrence, and only `(12)` at later ones.

    Args:
        text: The name as written in the file.
        names: Abbreviation -> name. A new name is added to this mapping.
    """
    number, _, name = text.strip().partition(" ")
    if name:
        names[number] = name
    return names.get(number, number)


def _function_name(text: str, names: dict[str, str], file: str) -> str:
    """Return the full name of a function in an output file of callgrind.

    If the name is only an address, the name of the function's library or program is added.

    Args:
        text: The name as written in the file, which may be abbreviated (`_full_name`).
        names: Abbreviation -> name. A new name is added to this mapping.
        file: Path of the library or program that contains the function.
    """
    name = _full_name(text, names)
    if name.startswith("0x"):
        return f"{name} in {Path(file).name}"
    return name


def profile_command(
    command: Command, protocol: CommandProtocol, guard: ProcessGuard
) -> WorkProfile | None:
    """Profile one run of a command.

    The profile of a Python program counts executed lines, with exact stacks. The profile of any
    other program counts instructions, with reconstructed stacks.

    Args:
        command: The command, and the folder in which it runs.
        protocol: Timeout of a run, and exit codes that count as success.
        guard: Starts the process, and kills it if this process ends.

    Returns:
        The profile; None if the command failed under the profiler.
    """
    return _python_profile(command, protocol, guard) or _native_profile(command, protocol, guard)


def _python_profile(
    command: Command, protocol: CommandProtocol, guard: ProcessGuard
) -> WorkProfile | None:
    """Return a profile of the executed lines of a Python program.

    Returns:
        The profile; None if the program is not a Python program, or did not end in time.
    """
    with Scratch() as folder:
        paths = [str(_INJECTED), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PARADNN_LINE_COUNTS": str(folder),
        }
        with guard.running(
            command_line(command.text, command.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=command.folder,
            env=environment,
        ) as process:
            try:
                process.wait(protocol.timeout)
            except subprocess.TimeoutExpired:
                guard.kill(process)
                return None
        own: dict[str, int] = defaultdict(int)
        stacks: dict[Stack, float] = defaultdict(float)
        for path in sorted(folder.glob("lines.*.json")):
            for names, lines in json.loads(path.read_text(encoding="utf-8")):
                own[names[-1]] += lines
                stacks[tuple(names)] += lines
    return WorkProfile("lines of Python", own, stacks) if own else None


def _native_profile(
    command: Command, protocol: CommandProtocol, guard: ProcessGuard
) -> WorkProfile | None:
    """Return callgrind's profile of the instructions of a program; None if the run failed."""
    counter = Counter("instructions", program="callgrind")
    graph = CallGraph()
    with Scratch() as folder:
        if counter.count(command, protocol, guard, profile=folder).failure:
            return None
        for path in sorted(folder.glob("counts.*")):
            with path.open(errors="replace") as lines:
                graph.add_file(iter(lines))
    return WorkProfile("instructions", graph.own, graph.stacks(), is_reconstructed=True)
