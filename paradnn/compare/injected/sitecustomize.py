"""Count the executed lines of a Python program by call stack.

`paradnn gate --count` adds this folder to PYTHONPATH, so that Python imports this file at start-up.
The file needs only the standard library. At the end of the process, it writes a JSON file with a
list of `[[outermost function, ..., innermost function], lines]`. The environment variable
PARADNN_LINE_COUNTS names the folder for that file.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

_MAX_DEPTH = 100
#: Stacks have numbers; stack 0 is empty. (number of the caller's stack, code) -> number of a stack
_numbers: dict[tuple[int, CodeType], int] = {}
#: Lists indexed by the number of a stack: number of the caller's stack, innermost function, number
#: of lines that this function executed, and its trace function.
_callers = [0]
_functions: list[CodeType | None] = [None]
_lines = [0]
_tracers: list[Any] = [None]
_thread = threading.local()


def _function_name(code: CodeType) -> str:
    """Return the name of a function as `folder/file.py:Class.method`.

    The path is relative to the current folder. For files elsewhere, it is the last folder and the
    file name.
    """
    path = code.co_filename
    folder = os.getcwd() + os.sep
    if path.startswith(folder):
        path = path[len(folder) :]
    else:
        path = os.sep.join(path.split(os.sep)[-2:])
    return f"{path}:{getattr(code, 'co_qualname', code.co_name)}"


def _make_tracer(number: int) -> Any:
    def trace_lines(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            _lines[number] += 1
        elif event == "return":
            _thread.stack.pop()
        return trace_lines

    return trace_lines


def _trace_call(frame: FrameType, event: str, argument: object) -> Any:
    """Push a called function onto the stack of its thread, and return its line counter.

    This is a trace function for `sys.settrace`.
    """
    stack = getattr(_thread, "stack", None)
    if stack is None:
        stack = _thread.stack = [0]
    caller = stack[-1]
    if len(stack) > _MAX_DEPTH:
        number = caller
    else:
        key = (caller, frame.f_code)
        number = _numbers.get(key)
        if number is None:
            number = _numbers[key] = len(_callers)
            _callers.append(caller)
            _functions.append(frame.f_code)
            _lines.append(0)
            _tracers.append(_make_tracer(number))
    stack.append(number)
    return _tracers[number] or _make_tracer(number)


def _write(folder: str) -> None:
    sys.settrace(None)
    threading.settrace(None)
    rows = []
    for number, lines in enumerate(_lines):
        if not lines:
            continue
        names = []
        stack = number
        while stack:
            code = _functions[stack]
            assert code is not None
            names.append(_function_name(code))
            stack = _callers[stack]
        rows.append([names[::-1], lines])
    with open(os.path.join(folder, f"lines.{os.getpid()}.json"), "w", encoding="utf-8") as file:
        json.dump(rows, file)


def _import_hidden() -> None:
    """Import the environment's own sitecustomize module, if there is one, which this file hides."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own_folder]
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = this


if "PARADNN_LINE_COUNTS" in os.environ:
    _import_hidden()
    atexit.register(_write, os.environ["PARADNN_LINE_COUNTS"])
    threading.settrace(_trace_call)
    sys.settrace(_trace_call)
