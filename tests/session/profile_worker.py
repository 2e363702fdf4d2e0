"""Worker for tests: the real fork server, with points whose profile fails.

It needs no framework, so a test covers only how the driver handles the answer. The key `profile`
of a point is "crashes", "grows" (in memory), "hangs" or "ends" (without a failure).
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from paradnn.core.channel import EventWriter
from paradnn.core.messages import (
    PROTOCOL_VERSION,
    Answer,
    Compilation,
    Measurement,
    NoProfile,
    Ready,
    Timing,
)
from paradnn.worker.fork_server import Report, serve


def answer(point: Mapping[str, Any], report: Report) -> Answer:
    report("measure", None)
    timing = Timing(1, [], [], [1.0, 1.0], True, "", None)
    measurement = Measurement(
        1, Compilation([1.0], [0], None), {}, None, timing, None, "unavailable: none here"
    )
    measured = Answer(
        "ok", None, {"measure": 0.5}, peak_memory_bytes=point["peak"], measurement=measurement
    )
    report("profile", measured)
    Path("trace-of-this-point").mkdir()
    print("the profiler's last words", file=sys.stderr, flush=True)
    if point["profile"] == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    ballast = b""
    if point["profile"] == "grows":
        ballast = b"x" * (600 * 2**20)
    while point["profile"] != "ends":
        time.sleep(0.2)
    return replace(measured, profile=NoProfile(f"none: {len(ballast)}"))


if __name__ == "__main__":
    channel = EventWriter(os.dup(1))
    os.dup2(2, 1)
    channel.send(Ready(PROTOCOL_VERSION))
    serve(channel, answer)
