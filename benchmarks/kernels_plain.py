"""A loop over one matrix product as a careful user of each framework writes it: imports nothing of ParaDnn."""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.turns import Step, take_part


def tensorflow(left, right, compile_mode):
    import tensorflow as tf

    a, b = tf.identity(tf.constant(left)), tf.identity(tf.constant(right))
    product = tf.matmul if compile_mode == "eager" else tf.function(lambda a, b: tf.matmul(a, b))

    def run(steps):
        for _ in range(steps):
            output = product(a, b)
        return float(output.numpy()[0, 0])

    return run


def jax(left, right, compile_mode):
    import jax
    import jax.numpy as jnp

    a, b = (jax.device_put(array) for array in (left, right))
    product = jnp.matmul if compile_mode == "eager" else jax.jit(lambda a, b: jnp.matmul(a, b))

    def run(steps):
        for _ in range(steps):
            output = product(a, b)
        output.block_until_ready()
        return 0.0

    return run


def torch(left, right, compile_mode):
    import torch

    a, b = (torch.as_tensor(array) for array in (left, right))
    product = torch.mm if compile_mode == "eager" else torch.compile(torch.mm, dynamic=False)

    def run(steps):
        with torch.inference_mode():
            for _ in range(steps):
                output = product(a, b)
        return float(output[0, 0])

    return run


def numpy(left, right, compile_mode):
    """The library below, OpenBLAS in NumPy's wheels: no framework at all."""

    def run(steps):
        for _ in range(steps):
            output = left @ right
        return float(output[0, 0])

    return run


LOOPS = {"tensorflow": tensorflow, "jax": jax, "torch": torch, "numpy": numpy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=LOOPS)
    parser.add_argument("compile")
    given, _ = parser.parse_known_args()
    __import__(given.framework)  # once, before the forks

    def make(size: str) -> Step:
        m, n, k = map(int, size.split("x"))
        generator = np.random.default_rng(0)
        left, right = (generator.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
        return Step(LOOPS[given.framework](left, right, given.compile), ())

    take_part(make, parser)


if __name__ == "__main__":
    main()
