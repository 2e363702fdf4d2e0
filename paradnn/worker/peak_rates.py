"""Measure the peak FLOP/s and memory bandwidth that a framework reaches on this machine.

The kernels use the framework and the threads that models use. The idle power is measured first,
before the kernels heat the machine.

There are two kernels. The matmul kernel multiplies square matrices, in each precision and compile
mode, over a range of sizes. The add kernel adds one array to a second array in place. Both arrays
exceed every cache. This is the add kernel of STREAM (McCalpin 1995) with two arrays instead of
three. The traffic is exactly two arrays read and one written, even if the processor reads a cache
line before it writes to the line.
"""

import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from paradnn.core.messages import ArrayRate, PeakRates, ProductRate
from paradnn.worker.energy import EnergyMeter, measure_idle_power
from paradnn.worker.frameworks import Framework
from paradnn.worker.measure import AttemptRecorder, Protocol, measure_steps

#: Number of additions in one call of the bandwidth kernel, so that dispatch does not dominate.
REPEATS = 32

_PRECISIONS = ("float32", "bfloat16", "float16")
_MATMUL_SIZES = (256, 512, 1024, 2048, 4096, 8192)
#: Upper bound of the memory of a product, in bytes per element of a matrix: four matrices, and four
#: bytes per element.
_MATMUL_BYTES_PER_ELEMENT = 4 * 4
#: Bytes of each of the two arrays.
ARRAY_BYTES = 2**28
_PROTOCOL = Protocol(
    min_seconds=0.25, min_blocks=5, max_seconds=2.0, block_seconds=0.03, warmup_seconds=0.3
)
#: Sizes whose single product would take longer than this, in seconds, are skipped.
_MAX_PRODUCT_SECONDS = 0.5
#: Number of runs of the reference kernels after the first samples.
_REFERENCES = 30
#: Share of the time for reference kernels. It determines how long each run takes.
_REFERENCE_SHARE = 0.35


@dataclass(frozen=True)
class _Rates:
    """Rates of a kernel over timed blocks of runs, in FLOP/s or bytes/s.

    Attributes:
        median: Median rate.
        low: Lower quartile of the rates.
        high: Upper quartile of the rates.
        blocks: Number of blocks.
        steady: Whether the rates show no relevant change over time.
        disturbed: What disturbed the blocks; None if they were undisturbed.
    """

    median: float
    low: float
    high: float
    blocks: int
    steady: bool
    disturbed: str | None


def measure_peak_rates(
    request: Mapping[str, Any],
    framework: Framework,
    phase: Callable[[str], Any],
    meter: EnergyMeter,
) -> PeakRates:
    """Measure the idle power, and the rates of matrix products and of memory traffic.

    Args:
        request: `platform` contains the settings of the device. `memory_bytes` is the size of the
            memory into which all arrays must fit. The optional `only` restricts the measurement to
            some rows of an earlier result; it has the keys `matmul` and `bandwidth`.
        framework: The framework, whose device is open.
        phase: Called with the name of a phase, such as "idle". Returns a context manager that is
            entered for the duration of the phase.
        meter: Measures the energy of the device.
    """
    from paradnn.worker.reference import Reference

    memory = request["memory_bytes"]
    only = request.get("only")
    with phase("idle"):
        idle = measure_idle_power(meter)
    with phase("matmul"):
        if only:
            matmul = [
                _measure_product(framework, row["precision"], row["size"], row["compile"])
                for row in only["matmul"]
            ]
        else:
            matmul = _measure_products(framework, memory)
    with phase("bandwidth"):
        measures_bandwidth = bool(only["bandwidth"]) if only else memory > 4 * ARRAY_BYTES
        bandwidth = [_measure_bandwidth(framework)] if measures_bandwidth else []
    # The times of reference kernels during points are compared with these times.
    reference = Reference(request["platform"]["name"], _PROTOCOL.block_seconds, _REFERENCE_SHARE)
    samples = [*reference.before, *(reference() for _ in range(_REFERENCES))]
    references = {
        name: statistics.median(sample[name] for sample in samples) for name in samples[0]
    }
    return PeakRates(matmul, bandwidth, references, idle)


def _measure_products(framework: Framework, memory: int) -> list[ProductRate]:
    """Return the rates of matrix products for all precisions, compile modes and sizes.

    Args:
        framework: The framework, whose device is open.
        memory: Bytes into which the matrices must fit.
    """
    rates = []
    for precision in _PRECISIONS:
        for compile in framework.compile_modes:
            rates += _measure_sizes(framework, precision, compile, memory)
    return rates


def _measure_sizes(
    framework: Framework, precision: str, compile: str, memory: int
) -> list[ProductRate]:
    """Return the rates of matrix products in ascending size, as far as memory and time allow.

    Args:
        framework: The framework, whose device is open.
        precision: Element type of the matrices.
        compile: The compile mode.
        memory: Bytes into which the matrices must fit.
    """
    rates: list[ProductRate] = []
    for size in _MATMUL_SIZES:
        if _MATMUL_BYTES_PER_ELEMENT * size**2 > memory:
            break
        # Estimate the time of a product at the rate of the previous size.
        if rates and _product_flops(size) / rates[-1].flops_per_second > _MAX_PRODUCT_SECONDS:
            break
        rates.append(_measure_product(framework, precision, size, compile))
    return rates


def _product_flops(size: int) -> float:
    return 2.0 * size**3


def _measure_product(framework: Framework, precision: str, size: int, compile: str) -> ProductRate:
    run = framework.make_kernel("matmul", size, precision, compile)
    run(1)
    rates = _measure_rates(run, _product_flops(size))
    return ProductRate(
        precision=precision,
        size=size,
        compile=compile,
        flops_per_second=rates.median,
        low=rates.low,
        high=rates.high,
        blocks=rates.blocks,
        steady=rates.steady,
        disturbed=rates.disturbed,
    )


def _measure_bandwidth(framework: Framework) -> ArrayRate:
    run = framework.make_kernel("add", ARRAY_BYTES // 4, "float32", "graph")
    run(1)
    rates = _measure_rates(run, 3.0 * ARRAY_BYTES * REPEATS)
    return ArrayRate(
        array_bytes=ARRAY_BYTES,
        bytes_per_second=rates.median,
        low=rates.low,
        high=rates.high,
        blocks=rates.blocks,
        steady=rates.steady,
        disturbed=rates.disturbed,
    )


def _measure_rates(run: Callable[[int], None], work: float) -> _Rates:
    """Time blocks of runs of a kernel, and return the rates.

    Args:
        run: Function that runs the kernel the given number of times.
        work: FLOPs or bytes of one run.
    """
    recorder = AttemptRecorder()
    timing = measure_steps(run, _PROTOCOL, lambda _: nullcontext(), recorder=recorder)
    rates = [work * timing.steps_per_block / seconds for seconds in timing.blocks]
    low = median = high = rates[0]
    if len(rates) > 1:
        low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
    contention = recorder.contention
    return _Rates(
        median=median,
        low=low,
        high=high,
        blocks=len(rates),
        steady=timing.steady,
        disturbed=contention.reason if contention else None,
    )
