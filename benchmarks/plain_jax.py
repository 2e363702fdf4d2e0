"""A training loop as a careful JAX user writes it; imports nothing of ParaDnn.

Loss and update are written by hand, or with `--keras` are Keras'. Runs in turn in
`benchmarks.fidelity`.
"""

import functools
import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp

from benchmarks.plain_models import (
    DECAY,
    EPSILON,
    MOMENTUM,
    RATE,
    enter,
    keras_parts,
    prepare,
    shapes,
)
from benchmarks.turns import Step


def by_hand(model):
    def loss_of(weights, others, x, y):
        logits, others = model.stateless_call(weights, others, x, training=True)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
        return -chosen.mean(), others

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        weights, others, (squares, momenta) = state
        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, others, x, y)
        rows = zip(weights, gradients, squares, momenta, strict=True)
        new = [updated(*row) for row in rows]
        weights, squares, momenta = (list(column) for column in zip(*new, strict=True))
        return (weights, others, (squares, momenta)), loss

    def updated(w, g, s, m):
        s = DECAY * s + (1 - DECAY) * g * g
        m = MOMENTUM * m + RATE * g / jnp.sqrt(s + EPSILON)
        return w - m, s, m

    zeros = [
        [jnp.zeros(variable.shape) for variable in model.trainable_variables] for _ in range(2)
    ]
    return step, tuple(zeros)


def with_keras(model):
    loss_of, optimizer = keras_parts(model)

    def compute(weights, others, x, y):
        logits, others = model.stateless_call(weights, others, x, training=True)
        return loss_of(y, logits), others

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        weights, others, slots = state
        (loss, others), gradients = jax.value_and_grad(compute, has_aux=True)(weights, others, x, y)
        weights, slots = optimizer.stateless_apply(slots, gradients, weights)
        return (weights, others, slots), loss

    return step, [variable.value for variable in optimizer.variables]


def make(name, keras):
    model, *arrays = prepare(name)
    step, slots = with_keras(model) if keras else by_hand(model)
    weights = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]
    # Put where the results of a step will be, or the second step is compiled again.
    state, x, y = jax.device_put(((weights, others, slots), *arrays), jax.devices()[0])

    def run(steps):
        nonlocal state
        for _ in range(steps):
            state, loss = step(state, x, y)
        return float(loss)

    return Step(run, shapes(model))


if __name__ == "__main__":
    enter(make)
