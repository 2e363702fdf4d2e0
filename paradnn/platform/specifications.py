"""What manufacturers say their parts can do: peak arithmetic by precision, memory bandwidth, memory.

Dense products without structured sparsity, at boost clock, one device (a package or a board) unless the name says
otherwise. A part or a precision that is not here is unknown, and stays so: nothing is guessed from a similar one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """One part. `peak_flops`: precision -> FLOP/s; `bandwidth` in B/s; `memory_bytes`; None where no source says.

    `aliases` are lower-case parts of the names under which frameworks and systems report it; the longest that occurs
    in a name decides. `source` is where the numbers stand.
    """

    name: str
    kind: str
    peak_flops: Mapping[str, float]
    bandwidth: float | None
    memory_bytes: int | None
    source: str
    aliases: tuple[str, ...] = ()
    cores: int | None = None


_T, _G, _GIB = 1e12, 1e9, 2**30
_PAPER = "Wang, Wei, Brooks, MLSys 2020, Table 3"


def _cpu(name: str, cores: int, clock: float, per_cycle: int, channels: float, source: str, alias: str) -> Hardware:
    """A CPU socket: cores x base clock (GHz) x float32 FLOP a cycle and core, and its memory channels' GB/s."""
    peaks = {"float32": cores * clock * _G * per_cycle}
    return Hardware(name, "cpu", peaks, channels * _G, None, source, (alias,), cores)


def _gpu(name: str, peaks: tuple[float, ...], bandwidth: float, memory: int, source: str, *aliases: str) -> Hardware:
    """A GPU: float32 outside the tensor cores, float16 and bfloat16 inside them where it has those, in TFLOP/s; GB/s;
    GiB."""
    rates = dict(zip(("float32", "float16", "bfloat16"), (peak * _T for peak in peaks), strict=False))
    return Hardware(name, "gpu", rates, bandwidth * _G, memory * _GIB, source, aliases)


def _tpu(name: str, peak: float, bandwidth: float, memory: int, source: str, *aliases: str) -> Hardware:
    """A TPU: bfloat16 TFLOP/s, GB/s, GiB."""
    return Hardware(name, "tpu", {"bfloat16": peak * _T}, bandwidth * _G, memory * _GIB, source, aliases)


HARDWARE: tuple[Hardware, ...] = (
    # The paper's platforms
    Hardware("Skylake, n1-standard-32", "cpu", {"float32": 2 * _T}, 16.6 * _G, 120 * 10**9, _PAPER,
             ("n1-standard-32",)),
    Hardware("V100 (SXM2, 16 GB)", "gpu", {"float16": 125 * _T, "float32": 15.7 * _T}, 900 * _G, 16 * _GIB,
             f"{_PAPER}; float32: NVIDIA V100 datasheet (2020)", ("v100", "v100-sxm2-16gb")),
    Hardware("V100 (SXM2, 32 GB)", "gpu", {"float16": 125 * _T, "float32": 15.7 * _T}, 900 * _G, 32 * _GIB,
             "NVIDIA V100 datasheet (2020)", ("v100-sxm2-32gb",)),
    Hardware("TPU v2 (board, 8 cores)", "tpu", {"bfloat16": 180 * _T}, 2400 * _G, 64 * _GIB, _PAPER, ("tpu v2",)),
    Hardware("TPU v3 (board, 8 cores)", "tpu", {"bfloat16": 420 * _T}, 3600 * _G, 128 * _GIB,
             f"{_PAPER}, bandwidth estimated there", ("tpu v3",)),
    # TPUs, one chip
    _tpu("TPU v4", 275, 1228, 32, "Jouppi et al., TPU v4, ISCA 2023, Table 4", "tpu v4"),
    _tpu("TPU v5e", 197, 819, 16, "Google Cloud documentation, TPU v5e", "tpu v5e", "tpu v5 lite"),
    _tpu("TPU v5p", 459, 2765, 95, "Google Cloud documentation, TPU v5p", "tpu v5p", "tpu v5"),
    _tpu("TPU v6e (Trillium)", 918, 1640, 32, "Google Cloud documentation, TPU v6e", "tpu v6e", "tpu v6 lite"),
    # NVIDIA
    _gpu("P100 (SXM2)", (10.6,), 732, 16, "NVIDIA Tesla P100 datasheet (2016)", "p100", "p100-sxm2-16gb"),
    _gpu("Tesla M40", (7.0,), 288, 12, "NVIDIA Tesla M40 datasheet (2015)", "tesla m40"),
    _gpu("Titan X (Maxwell)", (6.6,), 336.5, 12, "NVIDIA product page: 3,072 cores, 1,075 MHz", "titan x (maxwell)"),
    _gpu("Titan X (Pascal)", (10.97,), 480, 12, "NVIDIA product page: 3,584 cores, 1,531 MHz", "titan x (pascal)"),
    _gpu("Titan Xp", (12.15,), 547.7, 12, "NVIDIA product page: 3,840 cores, 1,582 MHz", "titan xp"),
    _gpu("GeForce GTX 1080 Ti", (11.34,), 484, 11, "NVIDIA product page: 3,584 cores, 1,582 MHz", "gtx 1080 ti"),
    _gpu("T4", (8.1, 65), 320, 16, "NVIDIA T4 datasheet (2019)", "tesla t4", "nvidia t4"),
    _gpu("A10", (31.2, 125, 125), 600, 24, "NVIDIA A10 datasheet (2021)", "nvidia a10"),
    _gpu("A30", (10.3, 165, 165), 933, 24, "NVIDIA A30 datasheet (2021)", "nvidia a30"),
    _gpu("A100 (SXM, 40 GB)", (19.5, 312, 312), 1555, 40, "NVIDIA A100 datasheet (2021)", "a100", "a100-sxm4-40gb",
         "a100-pcie-40gb"),
    _gpu("A100 (SXM, 80 GB)", (19.5, 312, 312), 2039, 80, "NVIDIA A100 80GB datasheet (2021)", "a100-sxm4-80gb",
         "a100-sxm-80gb"),
    _gpu("A100 (PCIe, 80 GB)", (19.5, 312, 312), 1935, 80, "NVIDIA A100 80GB datasheet (2021)", "a100 80gb pcie"),
    _gpu("L4", (30.3, 121, 121), 300, 24, "NVIDIA L4 datasheet (2023)", "nvidia l4"),
    _gpu("L40S", (91.6, 362.05, 362.05), 864, 48, "NVIDIA L40S datasheet (2023)", "l40s"),
    _gpu("H100 (SXM)", (67, 989.4, 989.4), 3350, 80, "NVIDIA H100 datasheet (2023)", "h100", "h100 80gb hbm3"),
    _gpu("H100 (PCIe)", (51.2, 756, 756), 2000, 80, "NVIDIA H100 PCIe product brief (2022)", "h100 pcie"),
    _gpu("H200 (SXM)", (67, 989.4, 989.4), 4800, 141, "NVIDIA H200 datasheet (2024)", "h200"),
    _gpu("B200", (75, 2250, 2250), 7700, 180, "NVIDIA Blackwell datasheet (2025), HGX B200", "b200"),
    _gpu("GeForce RTX 3090", (35.6, 142, 71), 936, 24, "NVIDIA GA102 whitepaper (2020), FP16 accumulate", "rtx 3090"),
    _gpu("GeForce RTX 4090", (82.6, 330.3, 165.2), 1008, 24, "NVIDIA Ada whitepaper (2022), FP16 accumulate",
         "rtx 4090"),
    # AMD
    _gpu("MI25", (12.29, 24.6), 484, 16, "AMD Radeon Instinct MI25 datasheet (2017)", "mi25"),
    _gpu("Vega Frontier Edition", (13.1, 26.2), 483, 16, "AMD product page (2017)", "vega frontier edition"),
    _gpu("MI100", (23.1, 184.6, 92.3), 1229, 32, "AMD Instinct MI100 brochure (2020)", "mi100"),
    _gpu("MI250X", (47.9, 383, 383), 3277, 128, "AMD Instinct MI250X datasheet (2021), both dies", "mi250x"),
    _gpu("MI300X", (163.4, 1307.4, 1307.4), 5325, 192, "AMD Instinct MI300X datasheet (2023)", "mi300x"),
    _gpu("MI325X", (163.4, 1307.4, 1307.4), 6000, 256, "AMD Instinct MI325X datasheet (2024)", "mi325x"),
    # CPU sockets; float32 FLOP a cycle and core: two FMA units of 512 bits 64, two of 256 bits 32
    _cpu("Xeon Platinum 8180", 28, 2.5, 64, 128, "Intel ARK: 28 cores, 2.5 GHz, 6 x DDR4-2666", "platinum 8180"),
    _cpu("Xeon Platinum 8380", 40, 2.3, 64, 204.8, "Intel ARK: 40 cores, 2.3 GHz, 8 x DDR4-3200", "platinum 8380"),
    _cpu("Xeon Platinum 8480+", 56, 2.0, 64, 307.2, "Intel ARK: 56 cores, 2.0 GHz, 8 x DDR5-4800", "platinum 8480"),
    # Its 16 GB beside the cores are faster than its DDR4-2400 (115.2 GB/s), and by how much is not specified.
    Hardware("Xeon Phi 7250", "cpu", {"float32": 68 * 1.4 * _G * 64}, None, None,
             "Intel ARK: 68 cores, 1.4 GHz", ("xeon phi 7250", "xeon phi 7250f"), 68),
    _cpu("EPYC 7742", 64, 2.25, 32, 204.8, "AMD product page: 64 cores, 2.25 GHz, 8 x DDR4-3200", "epyc 7742"),
    _cpu("EPYC 7763", 64, 2.45, 32, 204.8, "AMD product page: 64 cores, 2.45 GHz, 8 x DDR4-3200", "epyc 7763"),
    _cpu("EPYC 9654", 96, 2.4, 32, 460.8, "AMD product page: 96 cores, 2.4 GHz, 12 x DDR5-4800", "epyc 9654"),
)  # fmt: skip


#: What follows the name of a part that is another one: other clocks, other memory, another board.
_VARIANT = r"(?![ -](?:pcie|nvl|sxm\d?-32gb|sxm-64gb|ti|super|d\b|laptop|max-q|mobile))"


def find_hardware(device: str, cores: int | None = None) -> Hardware | None:
    """The part that a device's name speaks of, such as "NVIDIA H200" or "TPU v2"; None where it is not known.

    A CPU is found only with all cores of one socket: a virtual machine with some of them has another peak, which is
    not specified. `cores` is how many the host has; without it the device's name must end in them, as in stored runs.
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
