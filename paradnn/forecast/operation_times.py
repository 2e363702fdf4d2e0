"""How long an operation takes on a platform, from kernels that were timed there.

The same process as of whole steps (`paradnn.forecast.process`), about a roofline made for
operations:

    t = dispatch + calls x step + ((arithmetic)^p + (traffic)^p)^(1/p)

Dispatch is a term of its own, since small kernels are nothing else. A library cuts a product into
tiles and takes those that suit the product: arithmetic is the least over several tiles of what it
would take with them, padding included. How fast it is with each tile, how fast memory is, how the
two overlap (p) and how long dispatch takes is learnt; peaks to begin with are the greatest rates
that any of the operations reached. What the line leaves is smooth in the logarithms of sizes, or a
shape's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.families.operations import Operation
from paradnn.forecast.predict import Line, fit_line, replicate_noise
from paradnn.forecast.process import Coordinates, Inputs, LeaveOneOutErrors, Process, number_groups
from paradnn.statistics.robust_regression import Array, Prediction

#: Operations without which nothing is fitted.
LEAST = 5
#: Tiles of a product's result; a product as it is, without padding, is one of 1 x 1.
_TILES = (
    (1, 1),
    (16, 16),
    (32, 32),
    (64, 32),
    (32, 64),
    (128, 32),
    (32, 128),
    (128, 64),
    (64, 128),
    (128, 128),
)
#: Kinds that are one product, and all whose arithmetic is products; queries that a kernel of
#: attention takes at once.
_PRODUCTS = ("gemm", "bmm", "linear")
_TILED = (*_PRODUCTS, "conv2d", "rnn_kernel", "fc")
_QUERIES = (64, 128, 256)
#: Rows of a product that suit all loads of memory are a multiple of this.
_ALIGNED = 16
#: Steps of a sum that a tile's beginning and end are worth.
_ENDS = 24
#: Seconds of dispatch of a call, and of each of several operations in one.
_DISPATCH = 1e-5
_STEP = 3e-6
#: How sharply the best tile is chosen, and how far arithmetic and traffic overlap before data.
_CHOICE = 8.0
_POWER = 3.0
_CACHE = 5e7
_EDGE = 4.0
#: Standard deviations of the logarithms of all these before data; of a tile's speed beside the
#: others', and of a variant's beside other variants'.
_PRIORS: dict[Hashable, float] = {
    "arithmetic": 0.4,
    "traffic": 0.7,
    "power": 0.5,
    "dispatch": 1.5,
    "step": 1.5,
}
_CACHE_PRIORS: dict[Hashable, float] = {"cached": 0.7, "cache": 0.7}
_TILE_PRIOR = 0.35
_VARIANT_PRIOR = 0.25
#: The distance at which operations have little in common but the line: most of a decade of a size,
#: another variant.
_REACH = 0.7
#: How much of another device's deviations from its line is expected here: one less this, and as
#: much more or less.
_LIKE = 0.5
_SIZES = ("m", "n", "k", "batch", "calls", "images", "window", "stride", "bytes")


@dataclass(frozen=True)
class OperationTimes:
    """A fit of operations of one kind. peak, bandwidth: FLOP/s and B/s at most. like: of another
    device, from which the `line` differs by what it says, and whose deviations from its own line
    are expected here too.
    """

    kind: str
    peak: float
    bandwidth: float
    line: Line
    process: Process
    like: OperationTimes | None = None

    @classmethod
    def fit(
        cls,
        operations: Sequence[Operation],
        seconds: Array,
        stated: Array | None = None,
        like: OperationTimes | None = None,
    ) -> OperationTimes:
        """From operations (n) of one kind, at least `LEAST`, with their seconds; `stated` (n,) is
        the standard deviation of each one's logarithm where that is known, NaN elsewhere. `like` is
        what is known before these: a fit of a similar device, for a few timings of one's own.
        """
        logs, (kind,) = np.log(seconds), {operation.kind for operation in operations}
        peak, bandwidth = (_greatest(operations, what, seconds) for what in ("flops", "bytes"))
        if like:  # its own greatest rates, as much greater or less as the same operations are here
            there = np.exp(like.predict(operations).mean)
            peak *= like.peak / _greatest(operations, "flops", there)
            bandwidth *= like.bandwidth / _greatest(operations, "bytes", there)
        line, inputs = fit_line(_inputs(operations, peak, bandwidth, like), logs)
        noise = replicate_noise(
            logs,
            number_groups(inputs.steps),
            np.full(len(logs), np.nan) if stated is None else stated,
        )
        run = float(np.sqrt(np.median(noise**2)))
        return cls(kind, peak, bandwidth, line, Process.fit(inputs, logs, noise, run), like)

    def or_like(
        self,
        like: OperationTimes,
        operations: Sequence[Operation],
        seconds: Array,
        stated: Array | None = None,
    ) -> OperationTimes:
        """This fit, or that of the operations beside a similar device: what predicts each from the
        others better.
        """
        beside = OperationTimes.fit(operations, seconds, stated, like)
        return max(self, beside, key=lambda fit: fit.leave_one_out.score)

    def predict(self, operations: Sequence[Operation]) -> Prediction:
        """The logarithms of their seconds, each as a kernel of its own; all must be of this kind."""
        return self.process.predict(self._inputs(operations))

    def predict_uncalled(self, operations: Sequence[Operation]) -> Prediction:
        """As `predict`, without the time of the call: the share that the line gives to the rest. To
        subtract the call would leave the noise of calls, which is more than a small operation
        takes.
        """
        inputs = self._inputs(operations)
        found, (called, _) = self.process.predict(inputs), inputs.columns["dispatch"]
        return replace(found, mean=found.mean + np.log1p(-np.minimum(called, 1 - 1e-9)))

    def _inputs(self, operations: Sequence[Operation]) -> Inputs:
        return _inputs(operations, self.peak, self.bandwidth, self.like)(self.line)

    def line_at(self, operations: Sequence[Operation]) -> Array:
        """(n,) logarithms of seconds that the line alone gives."""
        inputs = self._inputs(operations)
        return inputs.base + sum(
            column * self.line.get(name, 0.0) for name, (column, _) in inputs.columns.items()
        )

    @property
    def coefficients(self) -> Line:
        """Of the line, with those of the device that it is like."""
        before = self.like.coefficients if self.like else {}
        return {
            name: self.line.get(name, 0.0) + before.get(name, 0.0)
            for name in {**before, **self.line}
        }

    @property
    def leave_one_out(self) -> LeaveOneOutErrors:
        """Every operation that was timed, predicted from the others."""
        return self.process.leave_one_out

    @property
    def dispatch(self) -> float:
        """Seconds of a call that does nothing."""
        return _DISPATCH * float(np.exp(self.coefficients.get("dispatch", 0.0)))

    @property
    def step(self) -> float:
        """Seconds that an operation takes within a call, however little it does."""
        return _STEP * float(np.exp(self.coefficients.get("step", 0.0)))


def _greatest(operations: Sequence[Operation], what: str, seconds: Array) -> float:
    """The greatest rate of FLOPs or bytes that any of the operations reached."""
    return float(np.max(np.array([getattr(one, what) for one in operations]) / seconds))


def _padding(operations: Sequence[Operation]) -> Array:
    """(tiles, n) how many times more arithmetic it is in whole tiles, with what each takes to begin
    and end.
    """
    kind = operations[0].kind if operations else ""
    if kind.endswith("attention") or kind == "decode":
        m = np.array([one.m for one in operations], dtype=float)
        return np.array([np.ones(len(m)), *(np.ceil(m / rows) * rows / m for rows in _QUERIES)])
    if kind == "experts":  # each expert's tokens are a product of their own
        own = np.array([one.m / one.batch for one in operations])
        return np.array(
            [np.ones(len(own)), *(np.ceil(own / rows) * rows / own for rows in (16, 32, 64, 128))]
        )
    if kind not in _TILED:
        return np.ones((1, len(operations)))
    m, n, k, _ = np.array([one.product for one in operations], dtype=float).T
    ends = 1 + _ENDS / k
    whole = [
        np.ceil(m / rows) * rows * np.ceil(n / columns) * columns / (m * n)
        for rows, columns in _TILES
    ]
    return np.array(
        [ends * one if tile != (1, 1) else one for tile, one in zip(_TILES, whole, strict=True)]
    )


def _coordinates(operations: Sequence[Operation]) -> Coordinates:
    """Of a product also the power of two that holds its rows, by which libraries choose a kernel,
    and how well its rows are aligned: where they are not, some kernels are preceded by one that
    pads.
    """
    sizes = {
        name: np.array([getattr(one, name) for one in operations], dtype=float) for name in _SIZES
    }
    logs: dict[Hashable, Array] = {
        name: np.log10(np.maximum(values, 1.0)) for name, values in sizes.items()
    }
    logs["padding"] = np.log10(np.min(_padding(operations)[1:], axis=0, initial=1e9))
    if operations and operations[0].kind in _PRODUCTS:
        rows = np.array([one.m for one in operations])
        logs["bucket"] = np.log10(2.0) * np.ceil(np.log2(rows))
        logs["aligned"] = np.log2(np.gcd(rows, _ALIGNED)) / np.log2(_ALIGNED)
    return {**logs, "variant": np.array([one.variant for one in operations], dtype=str)}


def _inputs(
    operations: Sequence[Operation],
    peak: float,
    bandwidth: float,
    like: OperationTimes | None = None,
) -> Callable[[Line], Inputs]:
    """For a line the logarithm of t and its derivatives by the logarithms of what is learnt, taken
    there.
    """
    before = like.coefficients if like else {}
    if like:
        deviation = like.predict(operations).mean - like.line_at(operations)
    else:
        deviation = np.zeros(len(operations))
    arithmetic = np.log(
        np.maximum(_padding(operations) * [one.flops / peak for one in operations], 1e-12)
    )
    traffic = np.log(np.maximum([one.bytes / bandwidth for one in operations], 1e-12))
    size = np.log([max(one.bytes, 1.0) for one in operations])
    calls = np.array([one.product[-1] for one in operations], dtype=float)
    coordinates = _coordinates(operations)
    several = np.log(np.where(calls > 1, calls, 1e-12))
    is_decode = bool(operations) and operations[0].kind == "decode"
    if is_decode:
        several = np.log(1e-2 * np.array([one.batch for one in operations], dtype=float))
    variants = {name: np.array([one.variant == name for one in operations], dtype=float)
                for name in sorted({one.variant for one in operations})}  # fmt: skip
    priors: dict[Hashable, float] = {
        **_PRIORS,
        **{("variant", name): _VARIANT_PRIOR for name in variants},
    }
    priors |= _CACHE_PRIORS if is_decode else {}
    priors |= {
        ("tile", index): _TILE_PRIOR for index in range(len(arithmetic)) if len(arithmetic) > 1
    }

    def logs_at(change: Mapping[Hashable, complex]) -> NDArray[Any]:
        line = {name: value + before.get(name, 0.0) for name, value in change.items()}
        own = sum(
            (on * line[("variant", name)] for name, on in variants.items()),
            start=np.zeros(len(calls)),
        )
        speeds = np.array([line.get(("tile", index), 0.0) for index in range(len(arithmetic))])[
            :, None
        ]
        tiles = -_log_sum(-_CHOICE * (arithmetic + speeds + line["arithmetic"] + own)) / _CHOICE
        power = _POWER * np.exp(line["power"])
        cached = 1 / (1 + np.exp(_EDGE * (size - np.log(_CACHE) - line.get("cache", 0.0))))
        fetched = traffic + line["traffic"] + own - line.get("cached", 0.0) * cached
        work = _log_sum(power * np.stack([tiles, fetched])) / power
        dispatch = np.log(_DISPATCH) + line["dispatch"] + 0 * work
        step = np.log(_STEP) + line["step"] + several
        return _log_sum(np.stack([work, dispatch, step]))

    def inputs_at(line: Line) -> Inputs:
        at = {name: line.get(name, 0.0) for name in priors}
        # Derivatives by a complex step, exact to rounding (Squire and Trapp 1998).
        slopes = {
            name: logs_at({**at, name: value + 1e-20j}).imag / 1e-20 for name, value in at.items()
        }
        known = sum(
            (slope * at[name] for name, slope in slopes.items()), start=np.zeros(len(calls))
        )
        columns = {name: (slope, priors[name]) for name, slope in slopes.items()}
        if like:
            columns["like"] = (deviation, _LIKE)
        return Inputs(
            logs_at(at).real + (1 - _LIKE) * deviation - known,
            columns,
            coordinates,
            operations,
            _REACH,
        )

    return inputs_at


def _log_sum(logs: NDArray[Any]) -> NDArray[Any]:
    """The logarithm of a sum over the first axis, of numbers that may be complex."""
    most = logs.real.max(axis=0)
    return np.asarray(most + np.log(np.exp(logs - most).sum(axis=0)))
