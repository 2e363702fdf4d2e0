"""A training loop as a careful PyTorch user writes it; imports nothing of ParaDnn.

Loss and update are written by hand, or with `--keras` are Keras'. Runs in turn in
`benchmarks.fidelity`. `torch.optim.RMSprop` adds epsilon to the root of the mean square, so the
update is written out, and compiled like the forward and backward pass.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import torch
import torch._inductor.compile_fx  # takes seconds, and is therefore imported once, before the forks

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


def by_hand(model, weights):
    squares, momenta = ([torch.zeros_like(w) for w in weights] for _ in range(2))

    @torch.compile(dynamic=False)
    def loss_of(x, y):
        logits = model(x, training=True)
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())

    @torch.compile(dynamic=False)
    def update(gradients):
        for w, g, s, m in zip(weights, gradients, squares, momenta, strict=True):
            s.mul_(DECAY).add_(g * g, alpha=1 - DECAY)
            m.mul_(MOMENTUM).add_(g / torch.sqrt(s + EPSILON), alpha=RATE)
            w.sub_(m)

    return loss_of, update


def with_keras(model, weights):
    keras_loss, optimizer = keras_parts(model)

    @torch.compile(dynamic=False)
    def loss_of(x, y):
        return keras_loss(y, model(x, training=True))

    @torch.compile(dynamic=False)
    def update(gradients):
        optimizer.apply(gradients, model.trainable_variables)

    return loss_of, update


def make(name, keras):
    model, *arrays = prepare(name)
    weights = [variable.value for variable in model.trainable_variables]
    x, y = (torch.as_tensor(array).to(weights[0].device) for array in arrays)
    if not keras:
        y = y.long()
    loss_of, update = with_keras(model, weights) if keras else by_hand(model, weights)

    def run(steps):
        for _ in range(steps):
            for weight in weights:
                weight.grad = None
            loss = loss_of(x, y)
            loss.backward()
            with torch.no_grad():
                update([weight.grad for weight in weights])
        return float(loss.detach())

    return Step(run, shapes(model))


if __name__ == "__main__":
    enter(make)
