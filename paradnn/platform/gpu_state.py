"""What nvidia-smi says of NVIDIA boards that matters to a measurement: clocks, persistence, slow-downs, users."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence

from paradnn.platform.findings import Finding

__all__ = ["gpu_findings"]

#: What is asked of each board, in this order.
QUERY = (
    "index",
    "name",
    "persistence_mode",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_throttle_reasons.active",
    "utilization.gpu",
    "temperature.gpu",
)
#: Bits of the reasons for which a board runs below its clock (NVML, nvmlClocksThrottleReasons).
#: Idle (1), the clocks that were asked for (2) and the display's (0x100) are no harm.
_REASONS = {
    0x4: "power limit",
    0x8: "hardware slow-down",
    0x10: "synchronised boost",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
Ask = Callable[[Sequence[str]], str]


def gpu_findings(ask: Ask | None = None) -> list[Finding]:
    """Findings of every board; none where there is no nvidia-smi. `ask` returns what it prints, given its options."""
    ask = ask or _nvidia_smi
    rows = _rows(ask([f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]))
    boards = [dict(zip(QUERY, row, strict=True)) for row in rows if len(row) == len(QUERY)]
    found = [finding for board in boards for finding in _board(board)]
    if found:
        users = _rows(ask(["--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"]))
        value = "; ".join(f"{row[1]} ({row[0]})" for row in users if len(row) > 1) or "none"
        why = "a board that two processes share gives each turns: kernels of one wait for those of the other"
        remedy = f"end them: {' '.join(row[0] for row in users)}" if users else ""
        found.append(Finding("gpu_processes", "processes on the GPUs", value, bool(users), why, remedy))
    return found


def _board(state: dict[str, str]) -> Iterator[Finding]:
    number, name = state["index"], f"GPU {state['index']}"
    off = state["persistence_mode"] == "Disabled"
    why = "without it the driver unloads between processes: opening the device takes a second and more"
    remedy = f"sudo nvidia-smi -i {number} -pm 1" if off else ""
    yield Finding("gpu_persistence", f"{name} persistence", state["persistence_mode"], False, why, remedy)
    now, most = state["clocks.sm"], state["clocks.max.sm"]
    why = "an idle board clocks down; unless its clocks are locked they follow temperature and power"
    remedy = f"sudo nvidia-smi -i {number} -lgc MHZ,MHZ, with one that it holds under load" if most.isdigit() else ""
    yield Finding("gpu_clock", f"{name} clock", f"{now} of at most {most} MHz", False, why, remedy)
    try:
        bits = int(state["clocks_throttle_reasons.active"], 16)
    except ValueError:
        return
    reasons = [text for bit, text in _REASONS.items() if bits & bit]
    value = ", ".join(reasons) or "none"
    why = "the board runs below the clock that it was asked for"
    remedy = "let it cool, or see nvidia-smi -q -d PERFORMANCE,POWER" if reasons else ""
    yield Finding("gpu_throttling", f"{name} slow-downs", value, bool(reasons), why, remedy)
    busy = state["utilization.gpu"]
    harms = busy.isdigit() and int(busy) > 5
    yield Finding("gpu_load", f"{name} load", f"{busy}%", harms, "work of others on the board now")


def _rows(text: str) -> list[list[str]]:
    return [[part.strip() for part in line.split(",")] for line in text.strip().splitlines() if line.strip()]


def _nvidia_smi(options: Sequence[str]) -> str:
    """What nvidia-smi prints; nothing where it is not there or does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
