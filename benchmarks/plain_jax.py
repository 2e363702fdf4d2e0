"""A training loop as a careful JAX user writes it by hand, the update rule too: imports nothing of ParaDnn.

    python benchmarks/plain_jax.py fc-small

prints the median step time of the named model as JSON. Used by `benchmarks.fidelity` as the other side of the ratio.
"""

from __future__ import annotations

import functools
import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
from plain_models import measure, prepare


def main() -> None:
    model, *arrays = prepare()
    x, y = (jax.device_put(array) for array in arrays)

    def loss_of(weights, others, x, y):
        logits, others = model.stateless_call(weights, others, x, training=True)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
        return -chosen.mean(), others

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2, 3))
    def step(weights, others, squares, momenta, x, y):
        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, others, x, y)
        squares = [0.9 * s + 0.1 * g * g for s, g in zip(squares, gradients, strict=True)]
        momenta = [0.9 * m + 0.1 * g / jnp.sqrt(s + 1.0) for m, g, s in zip(momenta, gradients, squares, strict=True)]
        return [w - m for w, m in zip(weights, momenta, strict=True)], others, squares, momenta, loss

    weights = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    state = [weights, others, *([jnp.zeros_like(w) for w in weights] for _ in range(2))]

    def run(steps):
        nonlocal state
        for _ in range(steps):
            *state, loss = step(*state, x, y)
        loss.block_until_ready()

    measure(run)


if __name__ == "__main__":
    main()
