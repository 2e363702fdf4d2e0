"""How fast the machine is beside a point's blocks: fixed kernels, run between them in the same
framework and device.

Three kernels, each some milliseconds: of arithmetic (products and tanh), of memory traffic (the sum
of an array that no cache holds) and of dispatch (a chain of operations on one number). They are
Keras' own operations, uncompiled, so that they are the same in every framework, and their sizes are
the platform's, so that their times are the same quantity in every run. What the record makes of
them is in `paradnn.session.reference`.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

#: Rows of the products, and elements of the array that is summed: on a CPU, and on a device of its
#: own.
_SIZES = {"cpu": (384, 2**23)}
_DEVICE_SIZES = (4096, 2**26)
#: Seconds that a kernel lasts each time, where the share of the time allows it.
_SECONDS = 0.005
#: Seconds for which all run before the first counts, and how often they then do: the first calls
#: are compiled or fetch memory, and for half a second after one core worked alone the products are
#: up to a third slower.
_WARM_SECONDS = 0.5
_BEFORE = 12


class Reference:
    """The kernels on the device that is open; `nbytes` is what they hold, `before` what they took
    without a model.
    """

    def __init__(self, platform: str, block_seconds: float, share: float) -> None:
        rows, elements = _SIZES.get(platform, _DEVICE_SIZES)
        random = np.random.default_rng(0)
        factor = ops.convert_to_tensor(
            random.standard_normal((rows, rows), np.float32) * (1.5 / math.sqrt(rows))
        )
        values = ops.convert_to_tensor(np.ones(elements, np.float32))
        self.nbytes = 4 * (elements + 3 * rows**2)
        self._kernels: dict[str, tuple[Callable[[Any], Any], Any]] = {
            "arithmetic": (lambda state: ops.tanh(ops.matmul(state, factor)), factor),
            "memory": (
                lambda state: state + 0.0 * ops.sum(values),
                ops.convert_to_tensor(np.float32(1)),
            ),
            "dispatch": (lambda state: state + 1.0, ops.convert_to_tensor(np.float32(0))),
        }
        # All three within their share of the time that a block and they take.
        seconds = min(_SECONDS, block_seconds * share / (1 - share) / len(self._kernels))
        self._times = dict.fromkeys(self._kernels, 1)
        start = time.perf_counter()
        while time.perf_counter() - start < _WARM_SECONDS:
            self()
        for name in self._kernels:
            while (taken := self._seconds(name)) * self._times[name] < seconds / 2:
                self._times[name] *= 2
            self._times[name] = max(1, round(seconds / taken))
        self.before = [self() for _ in range(_BEFORE)]

    def __call__(self) -> dict[str, float]:
        """Seconds that one call of each kernel takes now."""
        return {name: self._seconds(name) for name in self._kernels}

    def _seconds(self, name: str) -> float:
        call, state = self._kernels[name]
        times = self._times[name]
        start = time.perf_counter()
        for _ in range(times):
            state = call(state)
        # A number of the result: reading it waits for all that the device has queued.
        ops.convert_to_numpy(state[0, 0] if len(state.shape) else state)
        return (time.perf_counter() - start) / times
