"""System files of simulators, with measured rates of a device instead of its specified rates.

The simulators are Calculon (calculon-ai/calculon, systems/*.json), LLM-Viewer (hahnyuan/LLM-Viewer,
hardwares/hardware_params.py) and ASTRA-sim (astra-sim/astra-sim, inputs/system, the keys of its
roofline). Their formats have no field for an interval, so a second file holds the 95% interval of
every rate. Memory sizes, and the rate of arithmetic other than products, come from the
specifications.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.atlas import Atlas, TimingGroup, make_operation
from analysis.atlas.hardware import device_hardware
from analysis.atlas.kernels import Columns, collective, product
from analysis.lazy import np
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.platform.specifications import Hardware

#: Sides of square products.
_PRODUCT_SIDES = (8192, 4096, 2048, 512)
#: Sides of square matrices that are multiplied with a vector.
_MATRIX_SIDES = (16384, 4096, 1024)
#: Bytes of a long and of a short message.
_LONG_MESSAGE = 2**28
_SHORT_MESSAGE = 128
#: Calculon's names of 16-bit numbers.
_CALCULON_PRECISIONS = ("float16", "bfloat16")
#: Bytes of the registers of a multiprocessor. LLM-Viewer expects the buffer of the whole device,
#: which limits the rows of an attention block. From 64 KiB on, the size of a head is the tighter
#: limit, so the exact value has no effect.
_ONCHIP_BUFFER_BYTES = 2**18

#: Rates of a group's kernels: arrays (3, n) of the median, low end and high end.
_Rates = Mapping[str, Any]


def system_file(name: str, atlas: Atlas, device: str) -> tuple[Any, Any]:
    """Return the content of a simulator's system file for a device, with measured rates.

    Args:
        name: Name of the simulator: "calculon", "llm-viewer" or "astra-sim".
        atlas: Published timings.
        device: The atlas's name of the device.

    Returns:
        The content of the system file, and the content of the file of intervals: source, and low
            and high ends by name of the rate.

    Raises:
        ConfigError: If the device has no specifications.
        InsufficientData: If no products were timed on the device.
    """
    hardware = device_hardware(device)
    if hardware is None or hardware.memory_bytes is None or "float32" not in hardware.peak_flops:
        raise ConfigError(
            "--device",
            device,
            "has no specifications, which a system file needs",
            "choose a device with specifications, such as H200",
        )
    gemm = atlas.find_group(device, "gemm", "bfloat16")
    if gemm is None:
        raise InsufficientData(
            f"no matrix products in bfloat16 were timed on {device}, but a system file needs them; "
            "choose a different --device"
        )
    products = [product(side, side, side, 2) for side in _PRODUCT_SIDES]
    vector_products = [product(1, side, side, 2) for side in _MATRIX_SIDES]
    rates = {
        "flops_per_second": _predict_rates(gemm, "flops", products),
        "bytes_per_second": _predict_rates(gemm, "bytes", vector_products),
    }
    collectives = atlas.find_group(device, "collective", "bfloat16")
    devices = 0
    if collectives is not None:
        devices = int(collectives.timings["m"].max())
        messages = [
            collective("all_reduce", devices, size) for size in (_LONG_MESSAGE, _SHORT_MESSAGE)
        ]
        rates["all_reduce_bytes_per_second"] = _predict_rates(
            collectives, "bytes", messages, "all_reduce"
        )
    intervals = {key: values[1:].T.tolist() for key, values in rates.items()}
    medians = {key: values[0] for key, values in rates.items()}
    system = SYSTEMS[name](device, hardware, medians, devices)
    return system, {"of": name, "source": gemm.description, "intervals": intervals}


def _predict_rates(
    group: TimingGroup, quantity: str, shapes: Sequence[Columns], variant: str = ""
) -> Any:
    """Predict the rates that kernels of one kind reach on a device.

    Args:
        group: Timings of such kernels.
        quantity: "flops" for FLOP/s, or "bytes" for B/s.
        shapes: Sizes, FLOP and bytes of the n kernels.
        variant: Variant of the kernels; empty if there is only one.

    Returns:
        FLOP/s or B/s (3, n): medians, low ends and high ends.
    """
    operations = [make_operation(group.kind, shape, variant) for shape in shapes]
    prediction = group.predict(operations)
    low, high = prediction.interval()
    work = np.array([float(shape[quantity]) for shape in shapes])
    return work / np.exp([prediction.mean, high, low])


def _calculon(device: str, hardware: Hardware, rates: _Rates, devices: int) -> dict[str, Any]:
    """Return the content of Calculon's system file.

    Efficiencies are listed by the GFLOP or MB of an operation, the largest operation first.

    Args:
        device: Not used.
        hardware: Specification of the device.
        rates: Median rates of products, of memory-bound products and of all-reduces.
        devices: Number of devices of the network; 0 if it was not timed.
    """
    flops = rates["flops_per_second"]
    bandwidths = rates["bytes_per_second"]
    matrix_efficiency = [
        [2 * side**3 / 1e9, rate / max(flops)]
        for side, rate in zip(_PRODUCT_SIDES, flops, strict=True)
    ]
    memory_efficiency = [
        [2 * side**2 / 1e6, rate / max(bandwidths)]
        for side, rate in zip(_MATRIX_SIDES, bandwidths, strict=True)
    ]
    matrix = {
        "tflops": max(flops) / 1e12,
        "gflops_efficiency": [*matrix_efficiency, [0, matrix_efficiency[-1][1]]],
    }
    vector = {
        "tflops": hardware.peak_flops["float32"] / 1e12,
        "gflops_efficiency": [[0, 1.0]],
    }
    return {
        "matrix": dict.fromkeys(_CALCULON_PRECISIONS, matrix),
        "vector": dict.fromkeys(_CALCULON_PRECISIONS, vector),
        "mem1": {
            "GiB": (hardware.memory_bytes or 0) / 2**30,
            "GBps": max(bandwidths) / 1e9,
            "MB_efficiency": [*memory_efficiency, [0, memory_efficiency[-1][1]]],
        },
        "mem2": {"GiB": 0, "GBps": 1, "MB_efficiency": [[0, 1.0]]},
        "processing_mode": "roofline",
        "networks": _calculon_networks(rates, devices),
    }


def _calculon_networks(rates: _Rates, devices: int) -> list[dict[str, Any]]:
    """Return a list with the network between a machine's devices; empty if it was not timed.

    Args:
        rates: Median rates, in B/s, of a long and of a short all-reduce.
        devices: Number of devices of the network; 0 if it was not timed.
    """
    if not devices:
        return []
    long_rate, short_rate = rates["all_reduce_bytes_per_second"]
    short_bytes = float(collective("all_reduce", devices, _SHORT_MESSAGE)["bytes"])
    network = {
        "bandwidth": long_rate / 1e9,
        "efficiency": 1.0,
        "size": devices,
        "latency": short_bytes / short_rate,
        # To gather or scatter, each of n devices sends (n - 1) / n of the data. An all-reduce does
        # both.
        "ops": {
            "p2p": [1.0, None],
            "reduce_scatter": [1.0, -1],
            "all_gather": [1.0, -1],
            "all_reduce": [2.0, -1],
        },
        "must_be_filled": True,
        "processor_usage": 0.0,
    }
    return [network]


def _llm_viewer(device: str, hardware: Hardware, rates: _Rates, devices: int) -> dict[str, Any]:
    return {
        device.replace(" ", "_"): {
            "bandwidth": max(rates["bytes_per_second"]),
            "FP16": max(rates["flops_per_second"]),
            "onchip_buffer": _ONCHIP_BUFFER_BYTES,
        }
    }


def _astra_sim(device: str, hardware: Hardware, rates: _Rates, devices: int) -> dict[str, Any]:
    collectives = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    return {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "collective-optimization": "localBWAware",
        "roofline-enabled": 1,
        **{f"{name}-implementation": ["ring"] for name in collectives},
        "peak-perf": max(rates["flops_per_second"]) / 1e12,
        "local-mem-bw": max(rates["bytes_per_second"]) / 1e9,
    }


#: The function that makes the system file, by simulator.
SYSTEMS: dict[str, Callable[[str, Hardware, _Rates, int], dict[str, Any]]] = {
    "calculon": _calculon,
    "llm-viewer": _llm_viewer,
    "astra-sim": _astra_sim,
}
