"""Random arrival times of queries: MLPerf LoadGen's schedule, query for query.

LoadGen draws with libstdc++'s std::exponential_distribution from a std::mt19937. Python's generator
is also a Mersenne Twister, but derives a different state from the seed. This module therefore sets
the state as C++ does.
"""

from __future__ import annotations

import math
import random
from array import array

#: `schedule_rng_seed` of mlperf.conf, 16159082839903944936, modulo 2**32, as std::mt19937 uses it.
LOADGEN_SEED = 2023080168
_WORD = 2**32
_STATE_WORDS = 624


def arrivals(rate: float, seed: int, seconds: float, queries: int) -> array[int]:
    """Return the arrival times of a Poisson process, in ns; the first is 0.

    Args:
        rate: Mean queries per second.
        seed: Seed of the random generator.
        seconds: Duration of the schedule. The last arrival time is at least this value.
        queries: Minimum number of arrival times.
    """
    draw = _mersenne_twister(seed).getrandbits
    duration = seconds * 1e9
    times = array("q", [0])
    now = 0
    while now < duration or len(times) < queries:
        low = draw(32)
        high = draw(32)
        uniform = (low + float(high) * _WORD) / 2.0**64
        now += int(-math.log(1 - min(uniform, 1 - 2**-53)) / rate * 1e9)
        times.append(now)
    return times


def _mersenne_twister(seed: int) -> random.Random:
    """Return a generator with the state of a std::mt19937 with this seed."""
    state = [seed % _WORD]
    for index in range(1, _STATE_WORDS):
        previous = state[-1]
        state.append((1812433253 * (previous ^ previous >> 30) + index) % _WORD)
    generator = random.Random()
    generator.setstate((3, (*state, _STATE_WORDS), None))
    return generator


def process_seed(seed: int, replicate: int, process: int) -> int:
    """Return the seed of one of the processes in which a configuration is measured.

    The increments per replicate and process are large, so neighboring values of `seed` in a sweep
    do not lead to the same process seeds.

    Args:
        seed: The seed in the configuration.
        replicate: Number of the replicate (a repetition of the whole measurement), from 0.
        process: Number of the process in the replicate, from 0.
    """
    return (seed + replicate * 0x85EBCA77 + process * 0x9E3779B1) % _WORD
