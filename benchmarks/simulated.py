"""Interpreter under test whose points sleep instead of computing.

The driver, its claims, its records and the fork server are the real ones. A point takes
`measure.min_seconds` and almost no processor time. One machine can therefore run many drivers.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from paradnn.core.channel import EventWriter  # noqa: E402
from paradnn.core.messages import (  # noqa: E402
    PROTOCOL_VERSION,
    Answer,
    Compilation,
    Measurement,
    Ready,
    Timing,
)
from paradnn.worker.fork_server import Report, die_with_parent, serve  # noqa: E402

_BLOCKS = 6
#: Shell script that runs this file as the worker, and every other command in the real interpreter.
_SCRIPT = """#!/bin/sh
case " $* " in
*" paradnn.worker "*) shift 2; exec {python} {worker} "$@" ;;
*) exec {python} "$@" ;;
esac
"""


def interpreter(folder: Path) -> Path:
    """Write the interpreter into a folder and return its path, for `software.python`."""
    path = folder / "python"
    path.write_text(_SCRIPT.format(python=sys.executable, worker=Path(__file__).resolve()))
    path.chmod(0o755)
    return path


def answer(point: Mapping[str, Any], report: Report) -> Answer:
    """Sleep, and return a step whose time is that of a block."""
    seconds = float(point["measure"]["min_seconds"])
    report("measure", None)
    time.sleep(seconds)
    timing = Timing(1, [], [], [seconds / _BLOCKS] * _BLOCKS, True, "simulated", 1.0)
    measurement = Measurement(
        parameters=1,
        compilation=Compilation([0.001], [1], None),
        product_types={},
        first_loss=1.0,
        timing=timing,
        energy_joules=None,
        energy_source="unavailable: simulated",
    )
    return Answer(
        "ok",
        None,
        {"measure": seconds},
        peak_memory_bytes=2**20,
        measurement=measurement,
    )


if __name__ == "__main__":
    die_with_parent(driver=int(sys.argv[sys.argv.index("--driver") + 1]))
    channel = EventWriter(os.dup(1))
    os.dup2(2, 1)
    channel.send(Ready(PROTOCOL_VERSION))
    serve(channel, answer)
