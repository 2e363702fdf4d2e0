"""Reference kernels: fixed kernels that track the speed of the machine during a measurement.

They run between the timed blocks of steps, in the same framework and on the same device. Three
kernels take some milliseconds each: arithmetic (matrix products and tanh), memory traffic (the sum
of an array that exceeds every cache), and dispatch (a chain of operations on one number). They
consist of uncompiled Keras operations, so that every framework runs the same operations. Their
sizes depend only on the platform, so that their times are comparable between runs.
`paradnn.session.reference` evaluates the times.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

#: Rows of the matrices and elements of the array, on a CPU and on other devices.
_CPU_SIZES = (384, 2**23)
_DEVICE_SIZES = (4096, 2**26)
#: Longest sample of a kernel, in seconds. Samples are shorter if the reference kernels' share of
#: the time requires it.
_SECONDS = 0.005
#: All kernels run for this many seconds before the first sample. The first calls compile code and
#: allocate memory. After a period in which only one core was busy, products are up to a third
#: slower for half a second.
_WARMUP_SECONDS = 0.5
#: Number of samples before the model is built.
_SAMPLES_BEFORE = 12


@dataclass
class _Kernel:
    """A function that is applied to its own result `calls` times per sample.

    Attributes:
        function: The function of one array.
        state: The array to which the function is applied first.
        calls: Number of calls per sample.
    """

    function: Callable[[Any], Any]
    state: Any
    calls: int = 1

    def seconds(self) -> float:
        """Run one sample, and return the mean seconds of a call."""
        state = self.state
        start = time.perf_counter()
        for _ in range(self.calls):
            state = self.function(state)
        # Reading one number of the result waits for all work that the device has queued.
        ops.convert_to_numpy(state[0, 0] if len(state.shape) else state)
        return (time.perf_counter() - start) / self.calls


class Reference:
    """Fixed kernels on the open device, whose times show changes of the machine's speed.

    The three kernels are "arithmetic", "memory" and "dispatch".

    Args:
        platform: The kind of device: "cpu", "gpu" or "tpu".
        block_seconds: Shortest duration of the timed blocks of steps between which the kernels run.
        share: Fraction of the time for all three kernels together, from 0 to 1 (exclusive).

    Attributes:
        nbytes: Size of the kernels' arrays in bytes.
        before: Samples of the kernels, taken at construction, before the model is built. Each
            sample maps the name of a kernel to the seconds per call.
    """

    def __init__(self, platform: str, block_seconds: float, share: float) -> None:
        rows, elements = _CPU_SIZES if platform == "cpu" else _DEVICE_SIZES
        random = np.random.default_rng(0)
        scale = 1.5 / math.sqrt(rows)
        matrix = ops.convert_to_tensor(random.standard_normal((rows, rows), np.float32) * scale)
        array = ops.convert_to_tensor(np.ones(elements, np.float32))
        self.nbytes = 4 * (elements + 3 * rows**2)
        self._kernels = {
            "arithmetic": _Kernel(lambda state: ops.tanh(ops.matmul(state, matrix)), matrix),
            "memory": _Kernel(
                lambda state: state + 0.0 * ops.sum(array), ops.convert_to_tensor(np.float32(1))
            ),
            "dispatch": _Kernel(lambda state: state + 1.0, ops.convert_to_tensor(np.float32(0))),
        }
        share_seconds = block_seconds * share / (1 - share) / len(self._kernels)
        self._warm_up()
        self._calibrate(min(_SECONDS, share_seconds))
        self.before = [self() for _ in range(_SAMPLES_BEFORE)]

    def __call__(self) -> dict[str, float]:
        """Run a sample of each kernel, and return the seconds per call, by kernel name."""
        return {name: kernel.seconds() for name, kernel in self._kernels.items()}

    def _warm_up(self) -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < _WARMUP_SECONDS:
            self()

    def _calibrate(self, sample_seconds: float) -> None:
        """Set the calls per sample of each kernel so that a sample takes about `sample_seconds`."""
        for kernel in self._kernels.values():
            seconds = kernel.seconds()
            while seconds * kernel.calls < sample_seconds / 2:
                kernel.calls *= 2
                seconds = kernel.seconds()
            kernel.calls = max(1, round(sample_seconds / seconds))
