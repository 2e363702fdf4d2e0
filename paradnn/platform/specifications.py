"""Manufacturers' specifications: peak arithmetic rates by precision, memory bandwidth, memory size.

The table `specifications.csv` has one row per part. Rates are in TFLOP/s, bandwidth in GB/s,
memory in GiB, and the clock in MHz. The rate of float32 applies outside the tensor cores. Those of
float16 and bfloat16 apply inside them if the part has any. The clock of a GPU is its highest boost
clock; other data sheets and the whitepapers of the architectures state it.

Rates are those of dense products without structured sparsity, at boost clock. Those of CPUs are
cores x base clock x float32 FLOP per cycle: 64 with two 512-bit FMA units, 32 with two 256-bit
units. All values are per device (a package, a board or a socket) unless the name says otherwise.

A part or a precision that the table lacks is unknown. It is never inferred from a similar part.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paradnn.core.tables import rows


@dataclass(frozen=True)
class Hardware:
    """Specification of one part; None means that no source states the value.

    Attributes:
        name: Name of the part.
        kind: Kind of platform, such as "cpu" or "gpu".
        peak_flops: Precision -> FLOP/s; precisions without a source are absent.
        bandwidth: Memory bandwidth in B/s.
        memory_bytes: Memory size in bytes.
        source: Publication of the numbers.
        aliases: Lower-case substrings of the names that frameworks and systems report. The longest
            alias that occurs in a name decides.
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


HARDWARE = tuple(map(_part, rows(__file__)))

#: Suffixes that denote a different part, with other clocks, other memory or another board.
_VARIANT = r"(?![ -](?:pcie|nvl|sxm\d?-32gb|sxm-64gb|ti|super|d\b|laptop|max-q|mobile))"


def find_hardware(device: str, cores: int | None = None) -> Hardware | None:
    """Return the part with the given device name; None if it is unknown.

    A CPU matches only if the host has all cores of one socket. A virtual machine with some of the
    cores has a lower peak, which no data sheet states.

    Args:
        device: Name of a device, such as "NVIDIA H200" or "TPU v2".
        cores: Number of cores of the host. By default it is read from the end of the name, where
            stored runs have it: "..., 24 cores".
    """
    text = device.lower()
    if re.search(r"\bmig\b", text):  # a slice of a board
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
