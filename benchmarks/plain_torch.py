"""A training loop as a careful PyTorch user writes it by hand, with torch.optim: imports nothing of ParaDnn.

    python benchmarks/plain_torch.py fc-small

prints the median step time of the named model as JSON. Used by `benchmarks.fidelity` as the other side of the ratio.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import torch
from plain_models import measure, prepare


def main() -> None:
    model, *arrays = prepare()
    x, y = (torch.as_tensor(array) for array in arrays)
    y = y.long()
    parameters = [variable.value for variable in model.trainable_variables]
    # Another place for epsilon than the paper's rule has, and the same work.
    update = torch.optim.RMSprop(parameters, 0.1, alpha=0.9, eps=1.0, momentum=0.9, foreach=True)

    @torch.compile(dynamic=False)
    def loss_of(x, y):
        logits = model(x, training=True)
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())

    def run(steps):
        for _ in range(steps):
            update.zero_grad(set_to_none=True)
            loss = loss_of(x, y)
            loss.backward()
            update.step()
        loss.item()

    measure(run)


if __name__ == "__main__":
    main()
