"""Manufacturers' specifications: peak arithmetic rates by precision, memory bandwidth, memory size.

The table `specifications.csv` has one row per part. Arithmetic rates are in TFLOP/s, bandwidth is
in GB/s, memory in GiB, and the clock in MHz. All values are per device (a package, a board or a
socket) unless the name of the part says otherwise.

- Rates of GPUs and TPUs are for dense products without structured sparsity, at boost clock. The
  float32 rate is without tensor cores. The float16 and bfloat16 rates are with tensor cores if the
  part has any.
- The rate of a CPU is cores x base clock x float32 FLOPs per cycle: 64 with two 512-bit FMA units,
  32 with two 256-bit units.
- The clock of a GPU is its highest boost clock. Its source may differ from the source of the rates:
  a different data sheet, or the whitepaper of the architecture.

A part or a precision that the table lacks is unknown. Its values are never inferred from a similar
part.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paradnn.core.tables import rows


@dataclass(frozen=True)
class Hardware:
    """Data-sheet values of one processor or accelerator; None if no source states a value.

    Attributes:
        name: Name of the part, such as "NVIDIA H200".
        kind: Kind of platform, such as "cpu" or "gpu".
        peak_flops: FLOP/s by precision; precisions without a source are absent.
        bandwidth: Memory bandwidth in B/s.
        memory_bytes: Memory size in bytes.
        source: Publication of the numbers.
        aliases: Lower-case substrings of device names that frameworks and systems report. The part
            with the longest alias in a name matches.
        cores: Number of cores of a CPU.
        clock: Highest clock of a GPU or TPU in Hz.
    """

    name: str
    kind: str
    peak_flops: Mapping[str, float]
    bandwidth: float | None
    memory_bytes: int | None
    source: str
    aliases: tuple[str, ...] = ()
    cores: int | None = None
    clock: float | None = None


def _part(row: Mapping[str, str]) -> Hardware:
    peaks = {
        name: float(row[name]) * 1e12 for name in ("float32", "float16", "bfloat16") if row[name]
    }
    if row["bandwidth"]:
        bandwidth = float(row["bandwidth"]) * 1e9
    else:
        bandwidth = None
    memory = int(float(row["memory"]) * 2**30) if row["memory"] else None
    aliases = tuple(row["aliases"].split("; "))
    cores = int(row["cores"]) if row["cores"] else None
    clock = float(row["clock"]) * 1e6 if row["clock"] else None
    return Hardware(
        name=row["name"],
        kind=row["kind"],
        peak_flops=peaks,
        bandwidth=bandwidth,
        memory_bytes=memory,
        source=row["source"],
        aliases=aliases,
        cores=cores,
        clock=clock,
    )


#: All parts of the table.
HARDWARE = tuple(map(_part, rows(__file__)))

#: Rejects a name in which the alias is followed by the suffix of a different part, which has a
#: different clock, memory or board.
_VARIANT = r"(?![ -](?:pcie|nvl|sxm\d?-32gb|sxm-64gb|ti|super|d\b|laptop|max-q|mobile))"


def find_hardware(device: str, cores: int | None = None) -> Hardware | None:
    """Return the specification of the part with a given device name; None if it is unknown.

    A CPU matches only if the host has all cores of one socket. No data sheet states the peak of a
    virtual machine with some of the cores.

    Args:
        device: Name of a device, such as "NVIDIA H200" or "TPU v2".
        cores: Number of cores of the host. None to read it from the end of the name, such as
            "..., 24 cores" in stored runs.
    """
    text = device.lower()
    if re.search(r"\bmig\b", text):  # a slice of a GPU (multi-instance GPU)
        return None
    if cores is None and (named := re.search(r", (\d+) cores?$", text)):
        cores = int(named[1])
    found = [
        (len(alias), entry)
        for entry in HARDWARE
        for alias in entry.aliases
        if re.search(rf"(?<![a-z0-9]){re.escape(alias)}(?![a-z0-9]){_VARIANT}", text)
        and (entry.kind != "cpu" or entry.cores in (None, cores))
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None
