"""Program without a framework that takes turns.

The model "ends" exits at once, "diverges" has a loss of nan after six steps, and any other model
succeeds.
"""

import sys

from benchmarks.turns import Step, take_part


def prepare(model: str) -> Step:
    if model == "ends":
        sys.exit("nothing can be prepared")
    losses = iter(range(1, 10_000_000))

    def run(steps: int) -> float:
        for _ in range(steps):
            loss = float(next(losses))
        return float("nan") if model == "diverges" and loss > 6 else loss

    return Step(run, ((2, 3), (3,)))


if __name__ == "__main__":
    take_part(prepare)
