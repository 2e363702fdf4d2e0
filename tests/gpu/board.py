"""The GPU board as `nvidia-smi` reports it.

This oracle shares no code with the package, which uses NVML.
"""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator

#: Names of the queried fields: that of current drivers, then those of older ones.
FIELDS = {
    "name": ("name",),
    "driver": ("driver_version",),
    "memory_total_mib": ("memory.total",),
    "memory_used_mib": ("memory.used",),
    "sm_mhz": ("clocks.sm",),
    "sm_max_mhz": ("clocks.max.sm",),
    "memory_mhz": ("clocks.mem",),
    "temperature_c": ("temperature.gpu",),
    "power_w": ("power.draw",),
    "power_limit_w": ("power.limit",),
    "persistence": ("persistence_mode",),
    "compute_mode": ("compute_mode",),
    "mig": ("mig.mode.current",),
    "ecc": ("ecc.mode.current",),
    "throttle_bits": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
#: Reasons for a lower clock by bit, except for idle (1) and clocks set by an application (2).
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def read_board() -> dict[str, str]:
    """Return the known fields of the first visible board; empty if `nvidia-smi` is missing."""
    fields = dict(zip(FIELDS, _query([names[0] for names in FIELDS.values()]), strict=False))
    if not fields:
        # A driver rejects a whole query because of a single unknown field. Separate queries take a
        # second each while the board sleeps.
        for key, names in FIELDS.items():
            fields[key] = next((value for name in names for value in _query([name]) if value), None)
    return {key: value for key, value in fields.items() if value}


def throttled(bits: str) -> list[str]:
    """Return the reasons for a lower clock that a mask such as 0x0000000000000004 contains."""
    mask = int(bits, 16)
    return [reason for bit, reason in REASONS.items() if mask & bit]


@contextlib.contextmanager
def sampled_power(seconds: float = 0.2) -> Iterator[list[float]]:
    """Sample the board's power every `seconds`; yield the list of watts, which grows."""
    samples: list[float] = []
    end = threading.Event()

    def sample() -> None:
        while not end.wait(seconds):
            samples.extend(float(value) for value in _query(["power.draw"]) if value)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        end.set()
        thread.join()


def above_idle(samples: list[float], idle: float) -> list[float]:
    """Return the upper half of the samples above `idle`, in watts; empty if no sample is above it."""
    busy = sorted(watts for watts in samples if watts > idle)
    return busy[len(busy) // 2 :]


def _query(names: list[str]) -> list[str | None]:
    """Return the value of every field, or None for a field that the board lacks.

    The list is empty if `nvidia-smi` is missing or the driver rejects the query.
    """
    # nvidia-smi sees every board of the host. A job queue selects one by its index or UUID.
    board = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    command = [
        "nvidia-smi",
        f"--id={board}",
        f"--query-gpu={','.join(names)}",
        "--format=csv,noheader,nounits",
    ]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    values = [value.strip() for value in completed.stdout.strip().split(",")]
    if completed.returncode or len(values) != len(names):
        return []
    return [
        None if not value or value.startswith("[") or "not" in value.lower() else value
        for value in values
    ]
