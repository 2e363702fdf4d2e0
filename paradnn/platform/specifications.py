"""What manufacturers say their parts can do: peak arithmetic by precision, memory bandwidth,
memory.

The table `specifications.csv` has a row a part: rates in TFLOP/s, of float32 outside the tensor
cores, of float16 and bfloat16 inside them where it has those, bandwidth in GB/s, memory in GiB.
They are of dense products without structured sparsity, at boost clock (CPUs: cores x base clock x
float32 FLOP a cycle, 64 with two FMA units of 512 bits, 32 with two of 256 bits), of one device (a
package, a board or a socket) unless the name says otherwise. A part or a precision that is not
there is unknown, and stays so: nothing is guessed from a similar one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paradnn.core.tables import rows


@dataclass(frozen=True)
class Hardware:
    """One part. `peak_flops`: precision -> FLOP/s; `bandwidth` in B/s; `memory_bytes`; None where
    no source says.

    `aliases` are lower-case parts of the names under which frameworks and systems report it; the
    longest that occurs in a name decides. `source` names the publication of the numbers.
    """

    name: str
    kind: str
    peak_flops: Mapping[str, float]
    bandwidth: float | None
    memory_bytes: int | None
    source: str
    aliases: tuple[str, ...] = ()
    cores: int | None = None


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
    return Hardware(
        row["name"], row["kind"], peaks, bandwidth, memory, row["source"], aliases, cores
    )


HARDWARE = tuple(map(_part, rows(__file__)))

#: What follows the name of a part that is another one: other clocks, other memory, another board.
_VARIANT = r"(?![ -](?:pcie|nvl|sxm\d?-32gb|sxm-64gb|ti|super|d\b|laptop|max-q|mobile))"


def find_hardware(device: str, cores: int | None = None) -> Hardware | None:
    """The part that a device's name speaks of, such as "NVIDIA H200" or "TPU v2"; None where it is
    not known.

    A CPU is found only with all cores of one socket: a virtual machine with some of them has
    another peak, which is not specified. `cores` is how many the host has; without it the device's
    name must end in them, as in stored runs.
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
