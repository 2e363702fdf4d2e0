"""What this machine can do at most, in the framework and with the threads that the models run in.

Two kernels: square matrix products in each precision over a range of sizes, compiled each way there
is, and the sum of two arrays in place that no cache holds (STREAM's add, McCalpin 1995, without its
third array: what is read and written is exactly three arrays, whether or not the processor reads a
line before writing it).
"""

import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from paradnn.core.messages import ArrayRate, PeakRates, ProductRate
from paradnn.worker.frameworks import Framework
from paradnn.worker.measure import AttemptRecorder, Protocol, measure_steps

#: How often the bandwidth kernel adds within one call, so that dispatch is not what small arrays
#: measure.
REPEATS = 32

_PRECISIONS = ("float32", "bfloat16", "float16")
_MATMUL_SIZES = (256, 512, 1024, 2048, 4096, 8192)
#: Bytes of one of the two arrays.
ARRAY_BYTES = 2**28
_PROTOCOL = Protocol(
    min_seconds=0.25, min_blocks=5, max_seconds=2.0, block_seconds=0.03, warmup_seconds=0.3
)
#: A size whose single product would take longer than this is left out.
_LONGEST = 0.5
#: How often the reference kernels are run, as long each as beside a standard point's blocks.
_REFERENCES = 30
_REFERENCE_SHARE = 0.35


def measure_peak_rates(
    request: Mapping[str, Any], framework: Framework, phase: Callable[[str], Any]
) -> PeakRates:
    """Matmul and bandwidth rates, with arrays that fit in the request's `memory_bytes`. With
    `only`, rows of an earlier answer, those kernels alone are measured, in another process.
    """
    from paradnn.worker.reference import Reference

    memory = request["memory_bytes"]
    only = request.get("only")
    with phase("matmul"):
        if only:
            matmul = [
                _product(framework, row["precision"], row["size"], row["compile"])
                for row in only["matmul"]
            ]
        else:
            ways = [
                (precision, compile)
                for precision in _PRECISIONS
                for compile in framework.compile_modes
            ]
            matmul = [row for way in ways for row in _matmul(framework, *way, memory)]
    with phase("bandwidth"):
        bandwidth = []
        if only["bandwidth"] if only else memory > 4 * ARRAY_BYTES:
            run = framework.make_kernel("add", ARRAY_BYTES // 4, "float32", "graph")
            run(1)
            bandwidth.append(ArrayRate(ARRAY_BYTES, *_rates(run, 3.0 * ARRAY_BYTES * REPEATS)))
    # What a point's reference kernels are compared with.
    reference = Reference(request["platform"]["name"], _PROTOCOL.block_seconds, _REFERENCE_SHARE)
    taken = [*reference.before, *(reference() for _ in range(_REFERENCES))]
    references = {name: statistics.median(each[name] for each in taken) for name in taken[0]}
    return PeakRates(matmul, bandwidth, references)


def _matmul(framework: Framework, precision: str, compile: str, memory: int) -> list[ProductRate]:
    rows: list[ProductRate] = []
    for size in _MATMUL_SIZES:
        # Each size has eight times the work of the one before.
        if 4 * 4 * size**2 > memory or (
            rows and 2.0 * size**3 / rows[-1].flops_per_second > _LONGEST
        ):
            break
        rows.append(_product(framework, precision, size, compile))
    return rows


def _product(framework: Framework, precision: str, size: int, compile: str) -> ProductRate:
    run = framework.make_kernel("matmul", size, precision, compile)
    run(1)
    return ProductRate(precision, size, compile, *_rates(run, 2.0 * size**3))


def _rates(
    run: Callable[[int], None], work: float
) -> tuple[float, float, float, int, bool, str | None]:
    """Rate of a kernel that does so much `work`: median over blocks, lower and upper quartile,
    number of blocks, whether they are steady, and what disturbed them.
    """
    watch = AttemptRecorder()
    timing = measure_steps(run, _PROTOCOL, lambda _: nullcontext(), recorder=watch)
    rates = [work * timing.steps_per_block / seconds for seconds in timing.blocks]
    low, middle, high = (
        statistics.quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
    )
    return (
        middle,
        low,
        high,
        len(rates),
        timing.steady,
        watch.contention.reason if watch.contention else None,
    )
