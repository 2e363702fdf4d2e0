"""What versions of an engine changed on a device that stayed the same: the paper's Figure 12 of
today's kernels.

Two versions were timed at other shapes, of which the atlas holds a few hundred each. At every shape
that one of them ran, the other's time is predicted; each version is the predicted one at half of
the shapes, so that a predictor that is too slow everywhere takes as much from one half as it adds
to the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from analysis.atlas import Atlas, Group, operations_of, order_of
from analysis.lazy import np

#: Changes below this are none, and those beyond the other are told apart by shape.
_NONE = 0.03
_MUCH = 0.10
_DRAWS = 1000


@dataclass(frozen=True)
class VersionChange:
    """A version against the one before. times: how many times as long its kernels take, the median
    over `shapes`, with the ends of the 95% interval. slower, faster: shares of shapes that changed
    by more than a tenth.
    """

    before: Group
    after: Group
    shapes: int
    times: float
    low: float
    high: float
    slower: float
    faster: float

    @property
    def verdict(self) -> str:
        """In words."""
        if self.low > 1 / (1 + _NONE) and self.high < 1 + _NONE:
            return f"the same within {_NONE:.0%}"
        if self.low > 1:
            return "slower"
        if self.high < 1:
            return "faster"
        return "not told apart"

    @property
    def told(self) -> dict[str, Any]:
        """For a file of JSON."""
        of_both = {
            name: getattr(self.after, name) for name in ("device", "engine", "kind", "precision")
        }
        versions = {side: vars(self)[side].version for side in ("before", "after")}
        kernels = {f"kernels_{side}": [*vars(self)[side].kernels] for side in versions}
        return {**of_both, **vars(self), **versions, **kernels, "verdict": self.verdict}

    def __str__(self) -> str:
        old = self.before
        new = self.after
        said = (
            f"{new.device}, {new.engine}, {new.kind} in {new.precision}: {new.version} takes {self.times:.3g} "
            f"({self.low:.3g} to {self.high:.3g}) times as long as {old.version}, {self.verdict}; of {self.shapes} "
            f"shapes {self.slower:.0%} take over a tenth longer, {self.faster:.0%} shorter"
        )
        if old.call != new.call:
            said += f"; {(old if old.call else new).version} was timed with its calls from Python, the other without"
        if [*old.kernels] == [*new.kernels]:
            return said
        return f"{said}; kernels: {', '.join(old.kernels)} before, {', '.join(new.kernels)} after"


def changes(atlas: Atlas, device: str, engine: str | None = None) -> Iterator[VersionChange]:
    """Each version that was timed on a device against the one before it, by engine, kind and
    precision.
    """

    about = attrgetter("engine", "kind", "precision")
    chosen = [one for one in atlas.groups if one.device == device and engine in (None, one.engine)]
    for _, same in itertools.groupby(sorted(chosen, key=about), key=about):
        for before, after in itertools.pairwise(
            sorted(same, key=lambda one: order_of(one.version))
        ):
            yield change(before, after)


def change(before: Group, after: Group) -> VersionChange:
    """One version against another."""
    logs = []
    weights = []
    common = 0.0
    for timed, other, sign in ((before, after, 1.0), (after, before, -1.0)):
        rows: Any = timed.timings
        there = other.predict(operations_of(rows, other.kind), as_timed=True)
        logs.append(sign * (there.mean - np.log(rows["seconds"].to_numpy(dtype=float))))
        common += (
            float((there.root.mean(axis=0) ** 2).sum()) / 4
        )  # each is predicted at half of the shapes
        weights += list(zip(rows["n"], rows["k"], strict=True))
    ratios = np.concatenate(logs)
    places = {weight: number for number, weight in enumerate(dict.fromkeys(weights))}
    # Shapes of one weight are alike: weights are drawn again, not shapes.
    of_weight = np.array([places[weight] for weight in weights])
    random = np.random.default_rng(0)
    order = np.argsort(ratios)
    drawn = random.multinomial(len(places), np.full(len(places), 1 / len(places)), _DRAWS)[
        :, of_weight[order]
    ]
    reached = np.cumsum(drawn, axis=1)
    medians = ratios[order][(reached >= reached[:, -1:] / 2).argmax(axis=1)]
    medians += np.sqrt(common) * random.standard_normal(_DRAWS)
    low, high = np.exp(np.quantile(medians, (0.025, 0.975)))
    shares = (float(np.mean(sign * ratios > np.log(1 + _MUCH))) for sign in (1, -1))
    return VersionChange(
        before,
        after,
        len(ratios),
        float(np.exp(np.median(ratios))),
        float(low),
        float(high),
        *shares,
    )
