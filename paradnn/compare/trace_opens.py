"""Run a command, and list the files that its processes execute or open for reading.

    python trace_opens.py OUT COMMAND [ARGUMENT ...]

The file OUT will contain {"files": {path: whether it was executed}, "exit_code": code}, or
{"error": reason} if the kernel does not allow tracing. This program needs only the standard
library, because it runs separately from the package.

The command runs under ptrace. A seccomp filter stops it only at system calls that open or execute a
file, so all other system calls run at full speed. Requires Linux 4.8 or newer on x86-64 or AArch64.
Sources: ptrace(2), seccomp(2).
"""

import contextlib
import ctypes
import json
import os
import platform
import signal
import struct
import sys
from typing import NoReturn

_TRACEME = 0
_CONT = 7
_SYSCALL = 24
_SETOPTIONS = 0x4200
_GETEVENTMSG = 0x4201
_GET_SYSCALL_INFO = 0x420E
_EVENT_EXEC = 4
_EVENT_SECCOMP = 7
_SYSCALL_STOP = signal.SIGTRAP | 0x80
#: TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC, TRACESECCOMP, EXITKILL.
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
_WALL = 0x40000000
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_TRACE = 0x7FF00000
#: Machine -> its audit architecture, and the numbers of the system calls open (x86-64 only),
#: openat, openat2, execve and execveat.
_MACHINES = {
    "x86_64": (0xC000003E, (2, 257, 437, 59, 322)),
    "aarch64": (0xC00000B7, (56, 437, 221, 281)),
}
_ACCESS_MODE = 0o3
_WRITE_ONLY = 0o1
_OPENED_BY_PATH_ALONE = 0o10000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class _TraceError(OSError):
    """This machine or its kernel does not support tracing."""


def _ptrace(request: int, pid: int, address: int = 0, data: object = 0) -> None:
    """Make a request of ptrace(2).

    Args:
        request: Number of the request.
        pid: The traced process or thread.
        address: The request's argument `addr`.
        data: The request's argument `data`.

    Raises:
        OSError: If the request fails: ProcessLookupError if the process is gone.
    """
    if _libc.ptrace(request, pid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _filter() -> bytes:
    """Return a BPF program that stops at the system calls of `_MACHINES` and allows all others."""
    architecture, numbers = _MACHINES[platform.machine()]
    load_word, jump_equal, give_back = 0x20, 0x15, 0x06
    program = [
        (load_word, 0, 0, 4),
        (jump_equal, 1, 0, architecture),
        (give_back, 0, 0, _ALLOW),
        (load_word, 0, 0, 0),
    ]
    for index, number in enumerate(numbers):
        program.append((jump_equal, len(numbers) - index, 0, number))
    program += [(give_back, 0, 0, _ALLOW), (give_back, 0, 0, _TRACE)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _start(words: list[str]) -> NoReturn:
    """Replace the child process by the command, after the tracer is attached.

    Exits with code 126 if the filter cannot be installed, and 127 if the command cannot be started.

    Args:
        words: The program and its arguments.
    """
    status = 126
    try:
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        instructions = _filter()
        program = _FilterProgram(len(instructions) // 8, instructions)
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            installed = _libc.prctl(
                _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
            )
            if installed == 0:
                status = 127
                os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _opened_file(pid: int) -> str | None:
    """Return the file that a process has just opened for reading.

    Args:
        pid: A process that is stopped at the return of a system call.

    Returns:
        The path; None if the system call failed, or opened a file for another purpose.
    """
    info = ctypes.create_string_buffer(88)
    _ptrace(_GET_SYSCALL_INFO, pid, len(info), ctypes.addressof(info))
    descriptor, is_error = struct.unpack_from("<qB", info.raw, 24)
    if is_error:
        return None
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    if flags & _ACCESS_MODE == _WRITE_ONLY or flags & _OPENED_BY_PATH_ALONE:
        return None
    return os.readlink(f"/proc/{pid}/fd/{descriptor}")


def trace(words: list[str]) -> tuple[dict[str, bool], int]:
    """Run a command to its end under ptrace, and return the files that it loads.

    Args:
        words: The program and its arguments.

    Returns:
        The files and the exit code. The files are a mapping from the path to True if a process
        executed the file, and False if it was only opened for reading. The exit code is negative
        for a signal.

    Raises:
        OSError: If the kernel does not allow tracing, or the type of processor is not supported.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise _TraceError(
            "ParaDnn can record the files that a command loads only on "
            f"{' and '.join(_MACHINES)} processors, not on {machine}"
        )
    files: dict[str, bool] = {}
    root = os.fork()
    if root == 0:
        _start(words)
    _, status = os.waitpid(root, _WALL)
    if not os.WIFSTOPPED(status):
        raise _TraceError(
            "this system does not permit ptrace, with which ParaDnn records the files that a "
            "command loads; in a container, allow it with --cap-add SYS_PTRACE"
        )
    _ptrace(_SETOPTIONS, root, 0, _OPTIONS)
    _ptrace(_CONT, root)
    known = {root}
    while True:
        pid, status = os.waitpid(-1, _WALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if pid == root:
                code = os.waitstatus_to_exitcode(status)
                has_executed = any(files.values())
                if not has_executed and code == 126:
                    raise _TraceError(
                        "this system does not permit seccomp filters, with which ParaDnn records "
                        "the files that a command loads; compare on a system that permits them"
                    )
                return files, code
            continue
        request = _CONT
        delivered = 0
        # Errors are ignored: another thread may have closed the file, or the process was killed.
        with contextlib.suppress(OSError, StopIteration, ValueError):
            request, delivered = _record_stop(pid, status, files, is_new=pid not in known)
        known.add(pid)
        try:
            _ptrace(request, pid, 0, delivered)
        except ProcessLookupError:
            continue


def _record_stop(pid: int, status: int, files: dict[str, bool], *, is_new: bool) -> tuple[int, int]:
    """Record the file that a stopped process opened or executed.

    Args:
        pid: The stopped process or thread.
        status: The status that `waitpid` returned for it.
        files: The files so far. The new file is added to this mapping.
        is_new: Whether this is the first stop of the process or thread.

    Returns:
        The request that continues the process, and the signal to deliver; 0 for none.
    """
    stop = os.WSTOPSIG(status)
    event = status >> 16
    if event == _EVENT_SECCOMP:
        return _SYSCALL, 0
    if event == _EVENT_EXEC:
        files[os.readlink(f"/proc/{pid}/exe")] = True
        return _CONT, 0
    if stop == _SYSCALL_STOP:
        path = _opened_file(pid)
        if path:
            files.setdefault(path, False)
        return _CONT, 0
    begins = is_new and stop == signal.SIGSTOP  # a new process or thread begins with this stop
    if begins or event or stop in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN):
        return _CONT, 0
    return _CONT, stop


def main(arguments: list[str]) -> int:
    """Trace a command, write the list of its files, and return its exit code as a shell does.

    Args:
        arguments: The output file, and the words of the command.
    """
    out, *words = arguments
    content: dict[str, object]
    try:
        files, code = trace(words)
        content = {"files": files, "exit_code": code}
    except OSError as error:
        content = {"error": str(error)}
        code = 1
    with open(out, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(content, file)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
