"""When queries come: the Poisson arrivals of MLPerf's LoadGen, query for query, from the same seed.

LoadGen draws them in C++, by libstdc++'s std::exponential_distribution from a std::mt19937. Python's generator is the
same one seeded otherwise, so its state is set here as C++ seeds it.
"""

from __future__ import annotations

import math
import random
import struct
from array import array

#: When a query was to come, and when it was issued, as the process that issues them writes it.
RECORD = struct.Struct("<qq")

#: `schedule_rng_seed` of mlperf.conf, 16159082839903944936, as std::mt19937 takes it: modulo 2**32.
LOADGEN_SEED = 2023080168
_WORD = 2**32


def arrivals(rate: float, seed: int, seconds: float, queries: int) -> array[int]:
    """Nanoseconds at which queries come, the first at 0, at `rate` a second in the mean.

    There are so many `queries` or more, and the last comes `seconds` after the first or later.
    """
    draw, duration = _mersenne_twister(seed).getrandbits, seconds * 1e9
    times, now = array("q", [0]), 0
    while now < duration or len(times) < queries:
        low, high = draw(32), draw(32)
        uniform = (low + float(high) * _WORD) / 2.0**64
        now += int(-math.log(1 - min(uniform, 1 - 2**-53)) / rate * 1e9)
        times.append(now)
    return times


def _mersenne_twister(seed: int) -> random.Random:
    """Python's generator in the state that C++ gives std::mt19937 for `seed`."""
    state = [seed % _WORD]
    for index in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + index) % _WORD)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    return generator
