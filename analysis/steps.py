"""A step as the sum of its operations, each predicted from kernels that were timed: for `extrapolate` and the atlas.

    part = Part("products", counted, fit.predict, ("products", 0.1))    # how often each runs, and the fit of its like
    found = summed([part, ...])                                         # joint draws of the sum, and a row an operation

Draws of all operations are joint, so that a sum is as uncertain as it must be: a fit errs in all its operations
together, and kernels that ran alone say of those within a step only so much (`Part.context`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.lazy import np, pd
from paradnn.core.errors import ConfigError
from paradnn.families import FAMILIES, Model, model_of
from paradnn.families.operations import Counted, Operation

if TYPE_CHECKING:
    from paradnn.forecast.regression import Prediction

#: Draws of a sum.
DRAWS, _SEED = 2000, 0
#: Standard deviations of logarithms: how far operations of a step are off together beside kernels of theirs that ran
#: alone, and beside others that they are taken for (other threads, caches that hold what the operation before wrote,
#: kernels that a library fuses); how far a step as a whole is off beside that: what the errors of 46 steps ask for,
#: each family's from the others'.
OF_KERNELS, OF_OTHERS, _WHOLE = 0.1, 0.35, 0.1


@dataclass(frozen=True)
class Part:
    """Operations of a step that one fit predicts. name: of the part. times: the fit. context: what they are off
    together, by a name that parts may share, and its standard deviation. begin: seconds of each beside its own."""

    name: str
    counted: Sequence[Counted]
    times: Callable[[Sequence[Operation]], Prediction]
    context: tuple[str, float]
    begin: Callable[[Operation], float] = lambda operation: 0.0


@dataclass(frozen=True)
class Sum:
    """total: (draws,) seconds. rows: part, layer (of several the first), kind, shape, count, seconds, low and high."""

    total: np.ndarray
    rows: pd.DataFrame

    def ends(self, is_whole: bool = False) -> tuple[float, float, float]:
        """Seconds of the step with the ends of its 95% interval; one that was timed `is_whole`."""
        off = 0.0 if is_whole else _WHOLE * np.random.default_rng(_SEED + 1).standard_normal(DRAWS)
        low, high = np.quantile(self.total * np.exp(off), (0.025, 0.975))
        return float(np.median(self.total)), float(low), float(high)


def summed(parts: Sequence[Part], start: float = 0.0) -> Sum:
    """All operations of a step, which takes `start` seconds beside; those that are the same are one row."""
    random = np.random.default_rng(_SEED)
    together: dict[str, np.ndarray] = {}
    total, rows = np.full(DRAWS, start), []
    for part in parts:
        merged: dict[Operation, tuple[str, float]] = {}
        for one in part.counted:
            first, before = merged.get(one.operation, (one.layer, 0.0))
            merged[one.operation] = first, before + one.count
        operations, counts = list(merged), np.array([count for _, count in merged.values()])
        name, spread = part.context
        if name not in together:
            together[name] = np.exp(spread * random.standard_normal(DRAWS))
        own = np.exp(part.times(operations).draws(DRAWS, random)) + np.array([[part.begin(one)] for one in operations])
        drawn = counts[:, None] * own * together[name]
        total = total + drawn.sum(axis=0)
        low, middle, high = np.quantile(drawn, (0.025, 0.5, 0.975), axis=1)
        columns = {"part": part.name, "layer": [first for first, _ in merged.values()]}
        columns |= {name: [getattr(one, name) for one in operations] for name in ("kind", "shape")}
        rows.append(pd.DataFrame({**columns, "count": counts, "seconds": middle, "low": low, "high": high}))
    table = pd.concat(rows).sort_values("seconds", ascending=False, kind="stable", ignore_index=True)
    return Sum(total, table)


def model_in(row: Mapping[Any, Any], option: str = "--run") -> Model:
    """The model of a frame's row; ConfigError, of the `option` that chose it, for a family that this version lacks."""
    name = str(row.get("family"))
    if name not in FAMILIES:
        raise ConfigError(option, name, "is no family that this version knows", "choose other runs")
    given = {str(key).removeprefix("model."): value for key, value in row.items() if str(key).startswith("model.")}
    known = FAMILIES[name].options.__dataclass_fields__
    kept = {key: _plain(value) for key, value in given.items() if key in known and not is_missing(value)}
    return model_of({**kept, "name": name})


def told(row: Mapping[Any, Any], name: str, otherwise: str) -> str:
    """A value as text, `otherwise` where the row has none."""
    return otherwise if is_missing(row.get(name)) else str(row[name])


def is_missing(value: Any) -> bool:
    """Whether a frame's cell holds nothing."""
    return value is None or (not isinstance(value, (list, tuple)) and bool(pd.isna(value)))


def _plain(value: Any) -> Any:
    """Of a frame's cell: text of a list or number as these; a count that others in its column made a float, whole."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    plain = value.item() if isinstance(value, np.generic) else value
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain
