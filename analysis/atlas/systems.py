"""System files of simulators, of what a device's timed kernels reach: measured ceilings in place of
a data sheet's.

Calculon (calculon-ai/calculon, systems/*.json), LLM-Viewer (hahnyuan/LLM-Viewer,
hardwares/hardware_params.py) and ASTRA-sim (astra-sim/astra-sim, inputs/system, the roofline's
keys). None of them has a place for an interval: the ends of every number's 95% interval are in a
file beside. Memory, and arithmetic outside of products, are specified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.atlas import Atlas, Group, operation
from analysis.atlas.kernels import Columns, collective, product
from analysis.lazy import np
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.platform.specifications import Hardware, find_hardware

#: Sides of square products, of square matrices that a vector is multiplied with; bytes of a long
#: and a short message.
_SIDES = (8192, 4096, 2048, 512)
_MATRICES = (16384, 4096, 1024)
_MESSAGE = 2**28
_LEAST = 128
#: Calculon's names of 16-bit numbers.
_NUMBERS = ("float16", "bfloat16")
#: Bytes of registers of a multiprocessor. LLM-Viewer wants the buffer of a whole device, and bounds
#: the rows of a block of attention by it, which the size of a head bounds further for all buffers
#: of 64 KiB and more.
_BUFFER = 2**18
#: Rates of a group's kernels (median, low, high) (3, n), by what they are of.
_Measured = Mapping[str, Any]


def system_file(name: str, atlas: Atlas, device: str) -> tuple[Any, Any]:
    """The file of a device for a simulator, and its intervals: key -> low and high ends.
    NotEnoughData where products were not timed there, ConfigError for a device without
    specifications.
    """
    part = find_hardware(device)
    gemm = atlas.find(device, "gemm", "bfloat16")
    if part is None or part.memory_bytes is None or "float32" not in part.peak_flops:
        raise ConfigError(
            "--device", device, "has no specifications, which such a file needs", "choose another"
        )
    if gemm is None:
        raise NotEnoughData(f"no products of 16-bit numbers were timed on {device}")
    measured = {
        "flops_per_second": _rates(
            gemm, "flops", [product(side, side, side, 2) for side in _SIDES]
        ),
        "bytes_per_second": _rates(
            gemm, "bytes", [product(1, side, side, 2) for side in _MATRICES]
        ),
    }
    group = atlas.find(device, "collective", "bfloat16")
    devices = 0
    if group is not None:
        devices = int(group.timings["m"].max())
        sent = [collective("all_reduce", devices, size) for size in (_MESSAGE, _LEAST)]
        measured["all_reduce_bytes_per_second"] = _rates(group, "bytes", sent, "all_reduce")
    ends = {key: rates[1:].T.tolist() for key, rates in measured.items()}
    made = SYSTEMS[name](device, part, {key: rates[0] for key, rates in measured.items()}, devices)
    return made, {"of": name, "source": gemm.told, "intervals": ends}


def _rates(group: Group, what: str, shapes: Sequence[Columns], variant: str = "") -> Any:
    """(3, n) FLOP/s or B/s of kernels of a group: medians, low and high ends."""
    found = group.predict([operation(group.kind, shape, variant) for shape in shapes])
    low, high = found.interval()
    return np.array([float(shape[what]) for shape in shapes]) / np.exp([found.mean, high, low])


def _calculon(device: str, part: Hardware, measured: _Measured, devices: int) -> dict[str, Any]:
    """Efficiencies are by GFLOP and MB of an operation, largest first."""
    rates = measured["flops_per_second"]
    moved = measured["bytes_per_second"]
    flops = [
        [2 * side**3 / 1e9, rate / max(rates)] for side, rate in zip(_SIDES, rates, strict=True)
    ]
    sizes = [
        [2 * side**2 / 1e6, rate / max(moved)] for side, rate in zip(_MATRICES, moved, strict=True)
    ]
    memory = {"GiB": (part.memory_bytes or 0) / 2**30, "GBps": max(moved) / 1e9}
    networks = []
    if devices:
        large, small = measured["all_reduce_bytes_per_second"]
        beat = float(collective("all_reduce", devices, _LEAST)["bytes"]) / small
        # Of n devices each sends (n - 1) / n of what is gathered or scattered, and in an all-reduce
        # does both.
        ops = {
            "p2p": [1.0, None],
            "reduce_scatter": [1.0, -1],
            "all_gather": [1.0, -1],
            "all_reduce": [2.0, -1],
        }
        network = {
            "bandwidth": large / 1e9,
            "efficiency": 1.0,
            "size": devices,
            "latency": beat,
            "ops": ops,
        }
        networks = [network | {"must_be_filled": True, "processor_usage": 0.0}]
    matrix = {"tflops": max(rates) / 1e12, "gflops_efficiency": [*flops, [0, flops[-1][1]]]}
    vector = {"tflops": part.peak_flops["float32"] / 1e12, "gflops_efficiency": [[0, 1.0]]}
    mem1 = memory | {"MB_efficiency": [*sizes, [0, sizes[-1][1]]]}
    mem2 = {"GiB": 0, "GBps": 1, "MB_efficiency": [[0, 1.0]]}
    units = {"matrix": dict.fromkeys(_NUMBERS, matrix), "vector": dict.fromkeys(_NUMBERS, vector)}
    return {
        **units,
        "mem1": mem1,
        "mem2": mem2,
        "processing_mode": "roofline",
        "networks": networks,
    }


def _llm_viewer(device: str, part: Hardware, measured: _Measured, devices: int) -> dict[str, Any]:
    rates = {
        "bandwidth": max(measured["bytes_per_second"]),
        "FP16": max(measured["flops_per_second"]),
    }
    return {device.replace(" ", "_"): {**rates, "onchip_buffer": _BUFFER}}


def _astra_sim(device: str, part: Hardware, measured: _Measured, devices: int) -> dict[str, Any]:
    rings = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    usual = {"scheduling-policy": "LIFO", "endpoint-delay": 1, "active-chunks-per-dimension": 1}
    usual |= {
        "preferred-dataset-splits": 1,
        "collective-optimization": "localBWAware",
        "roofline-enabled": 1,
    }
    rates = {
        "peak-perf": max(measured["flops_per_second"]) / 1e12,
        "local-mem-bw": max(measured["bytes_per_second"]) / 1e9,
    }
    return {**usual, **{f"{name}-implementation": ["ring"] for name in rings}, **rates}


#: Simulator -> what makes its file.
SYSTEMS: dict[str, Callable[[str, Hardware, _Measured, int], dict[str, Any]]] = {
    "calculon": _calculon,
    "llm-viewer": _llm_viewer,
    "astra-sim": _astra_sim,
}
