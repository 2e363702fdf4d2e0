"""A model of the time of operations on a platform, fitted to kernels that were timed there.

The model is the Gaussian process of `paradnn.forecast.process`. Its linear part is a linearized
roofline for operations:

    t = dispatch + calls x step + ((arithmetic)^p + (traffic)^p)^(1/p)

Dispatch is a separate term, because it dominates small kernels. A library divides a matrix product
into tiles and selects a tile size that suits the product. The arithmetic time is therefore a smooth
minimum over several tile sizes, and includes padding. The fit learns the speed of each tile size,
the speed of memory, the overlap of arithmetic and traffic (p), and the duration of dispatch. The
search for these coefficients begins at the highest rates that any of the operations reached. The
deviations from the roofline are a smooth function of the logarithms of the sizes, plus a nugget
(an independent deviation) for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradnn.families.operations import Operation
from paradnn.forecast.predict import Line, fit_line, replicate_noise
from paradnn.forecast.process import (
    Coordinates,
    Inputs,
    LeaveOneOutErrors,
    Process,
    number_groups,
)
from paradnn.statistics.robust_regression import Array, Prediction

#: Minimum number of operations for a fit. Callers must not fit fewer.
MIN_OPERATIONS = 5
#: Tile sizes (rows, columns) of the result of a product. A tile of 1 x 1 needs no padding.
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
#: Kinds of operations that are a single matrix product.
_PRODUCTS = ("gemm", "bmm", "linear")
#: Kinds of operations whose arithmetic consists of matrix products.
_TILED = (*_PRODUCTS, "conv2d", "rnn_kernel", "fc")
#: Numbers of queries that an attention kernel processes at once.
_QUERY_TILES = (64, 128, 256)
#: Numbers of tokens of one expert that a kernel processes at once.
_TOKEN_TILES = (16, 32, 64, 128)
#: If the number of rows is a multiple of this number, all memory loads are aligned.
_ALIGNED = 16
#: Time to start and end a tile, in units of the time of one step of the inner dimension k.
_TILE_OVERHEAD = 24
#: Prior of the dispatch time of a call, in seconds.
_DISPATCH = 1e-5
#: Prior of the additional time of each operation if a call contains several, in seconds.
_STEP = 3e-6
#: Exponent of the smooth minimum over tile sizes.
_TILE_SHARPNESS = 8.0
#: Prior of the exponent p of the roofline.
_POWER = 3.0
#: Prior of the cache size, in bytes.
_CACHE = 5e7
#: Steepness of the transition from cache to memory, per unit of the logarithm of the size.
_CACHE_STEEPNESS = 4.0
#: Prior standard deviations of the logarithms of the learned quantities.
_PRIORS: dict[Hashable, float] = {
    "arithmetic": 0.4,
    "traffic": 0.7,
    "power": 0.5,
    "dispatch": 1.5,
    "step": 1.5,
}
_CACHE_PRIORS: dict[Hashable, float] = {"cached": 0.7, "cache": 0.7}
#: Prior standard deviation of the speed of one tile size relative to the others.
_TILE_PRIOR = 0.35
#: Prior standard deviation of the speed of one variant relative to the others.
_VARIANT_PRIOR = 0.25
#: Length scale of the smooth part, in decades of a size. The distance of two variants is 1.
_LENGTH_SCALE = 0.7
#: Prior standard deviation of the coefficient with which the deviations of a similar device from
#: its roofline apply to this device. The expected coefficient is 1 minus this value.
_SIMILARITY_SPREAD = 0.5
_SIZES = ("m", "n", "k", "batch", "calls", "images", "window", "stride", "bytes")
#: Minimum duration of arithmetic and of traffic, in seconds, to keep logarithms finite.
_MIN_SECONDS = 1e-12


@dataclass(frozen=True)
class OperationTimes:
    """A model of the times of operations of one kind on one device, fitted to measured times.

    Attributes:
        kind: The kind of the operations, such as "gemm".
        peak: Highest observed FLOP/s; the coefficients are relative to this rate.
        bandwidth: Highest observed bytes/s; the coefficients are relative to this rate.
        line: Coefficients of the roofline by name, mostly logarithms of factors. With `like`, they
            are differences from the coefficients of the similar device.
        process: The Gaussian process of the deviations from the roofline.
        like: The fit of a similar device. This device is expected to have similar deviations from
            its roofline. None if no similar device is used.
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
        """Fit a model to the measured times of n operations of one kind.

        Args:
            operations: The operations; at least `MIN_OPERATIONS`.
            seconds: Durations (n,) of the operations in seconds.
            stated: Standard deviations (n,) of the logarithms of the durations, NaN where unknown;
                None if all are unknown.
            like: A fit of a similar device as prior knowledge, for devices with few timings; None
                for no prior knowledge.

        Raises:
            ValueError: If the operations have several kinds.
        """
        logs = np.log(seconds)
        (kind,) = {operation.kind for operation in operations}
        peak = _highest_rate(operations, "flops", seconds)
        bandwidth = _highest_rate(operations, "bytes", seconds)
        if like:
            # Scale the highest rates of the similar device by the ratio of the rates that both
            # devices reach on these operations.
            seconds_there = np.exp(like.predict(operations).mean)
            peak *= like.peak / _highest_rate(operations, "flops", seconds_there)
            bandwidth *= like.bandwidth / _highest_rate(operations, "bytes", seconds_there)
        line, inputs = fit_line(_linearize(operations, peak, bandwidth, like), logs)
        if stated is None:
            stated = np.full(len(logs), np.nan)
        noise = replicate_noise(logs, number_groups(inputs.steps), stated)
        run_noise = float(np.sqrt(np.median(noise**2)))
        process = Process.fit(inputs, logs, noise, run_noise)
        return cls(kind=kind, peak=peak, bandwidth=bandwidth, line=line, process=process, like=like)

    def select_better(
        self,
        like: OperationTimes,
        operations: Sequence[Operation],
        seconds: Array,
        stated: Array | None = None,
    ) -> OperationTimes:
        """Return the better of this fit and a fit that uses a similar device as prior knowledge.

        The fits are compared by how well they predict each operation from the others.

        Args:
            like: The fit of the similar device.
            operations: The n operations to which this model was fitted.
            seconds: Durations (n,) of the operations in seconds.
            stated: Standard deviations (n,) of the logarithms of the durations, NaN where unknown;
                None if all are unknown.
        """
        based = OperationTimes.fit(operations, seconds, stated, like)
        return max(self, based, key=lambda fit: fit.leave_one_out.score)

    def predict(self, operations: Sequence[Operation]) -> Prediction:
        """Predict the times of operations.

        Each operation is predicted as if it ran alone, as a separate kernel.

        Args:
            operations: The operations, which must all be of the kind of the fit.

        Returns:
            The joint distribution of the natural logarithms of the times in seconds.
        """
        return self.process.predict(self._inputs(operations))

    def predict_without_dispatch(self, operations: Sequence[Operation]) -> Prediction:
        """Predict the times of operations without the time of their dispatch by the framework.

        The roofline model splits the time of an operation into dispatch and other parts. Each time
        that `predict` returns is multiplied by the share of the other parts. This is more robust
        than subtracting the dispatch time, because the error of the dispatch time can exceed the
        time of a small operation.

        Args:
            operations: The operations, which must all be of the kind of the fit.

        Returns:
            The joint distribution of the natural logarithms of the remaining times in seconds.
        """
        inputs = self._inputs(operations)
        prediction = self.process.predict(inputs)
        dispatch_share, _ = inputs.columns["dispatch"]
        remaining = np.log1p(-np.minimum(dispatch_share, 1 - 1e-9))
        return replace(prediction, mean=prediction.mean + remaining)

    def _inputs(self, operations: Sequence[Operation]) -> Inputs:
        return _linearize(operations, self.peak, self.bandwidth, self.like)(self.line)

    def line_at(self, operations: Sequence[Operation]) -> Array:
        """Return the logarithms (n,) of the times in seconds that the roofline alone predicts.

        The deviations from the roofline, which `predict` adds, are not included.

        Args:
            operations: The n operations, which must all be of the kind of the fit.
        """
        inputs = self._inputs(operations)
        return inputs.base + sum(
            column * self.line.get(name, 0.0) for name, (column, _) in inputs.columns.items()
        )

    @property
    def coefficients(self) -> Line:
        """Coefficients of the roofline by name, including those of the similar device."""
        inherited = self.like.coefficients if self.like else {}
        return {
            name: self.line.get(name, 0.0) + inherited.get(name, 0.0)
            for name in {**inherited, **self.line}
        }

    @property
    def leave_one_out(self) -> LeaveOneOutErrors:
        """Error of each timed operation if it is predicted from the other operations.

        The errors are differences of natural logarithms of times.
        """
        return self.process.leave_one_out

    @property
    def dispatch(self) -> float:
        """Dispatch time: seconds of a call of an operation without any work."""
        return _DISPATCH * float(np.exp(self.coefficients.get("dispatch", 0.0)))

    @property
    def step(self) -> float:
        """Minimum duration in seconds of one operation in a call of several operations."""
        return _STEP * float(np.exp(self.coefficients.get("step", 0.0)))


def _highest_rate(operations: Sequence[Operation], metric: str, seconds: Array) -> float:
    """Return the highest FLOP/s or bytes/s that any of n operations reached.

    Args:
        operations: The operations.
        metric: "flops" or "bytes".
        seconds: Durations (n,) of the operations in seconds.
    """
    amounts = np.array([getattr(operation, metric) for operation in operations])
    return float(np.max(amounts / seconds))


def _round_up(sizes: Array, multiple: int) -> Array:
    return np.asarray(np.ceil(sizes / multiple) * multiple)


def _padding(operations: Sequence[Operation]) -> Array:
    """Return the factors by which the arithmetic of n operations grows if tiles are padded.

    A kernel divides a matrix product into tiles of fixed size. It pads sizes that are no multiples
    of the tile size.

    Returns:
        Factors (tiles, n), with one row per tile size. For matrix products, they include the time
        to start and end a tile. The first row is the arithmetic without padding, a factor of 1.
    """
    kind = operations[0].kind if operations else ""
    if kind.endswith("attention") or kind == "decode":
        queries = np.array([operation.m for operation in operations], dtype=float)
        padded = (_round_up(queries, rows) / queries for rows in _QUERY_TILES)
        return np.array([np.ones(len(queries)), *padded])
    if kind == "experts":  # the tokens of each expert form a separate product
        tokens = np.array([operation.m / operation.batch for operation in operations])
        padded = (_round_up(tokens, rows) / tokens for rows in _TOKEN_TILES)
        return np.array([np.ones(len(tokens)), *padded])
    if kind not in _TILED:
        return np.ones((1, len(operations)))
    m, n, k, _ = np.array([operation.product for operation in operations], dtype=float).T
    overhead = 1 + _TILE_OVERHEAD / k
    factors = []
    for rows, columns in _TILES:
        factor = np.ceil(m / rows) * rows * np.ceil(n / columns) * columns / (m * n)
        if (rows, columns) != (1, 1):
            factor = overhead * factor
        factors.append(factor)
    return np.array(factors)


def _coordinates(operations: Sequence[Operation]) -> Coordinates:
    """Return the coordinates of operations in the smooth part of the model, by name.

    The smooth part describes deviations from the roofline. Its coordinates are decimal logarithms
    of sizes and of the padding, and the variant. A matrix product has two further coordinates.
    "bucket" is the logarithm of the number of rows, rounded up to a power of two, by which
    libraries choose a kernel. "aligned" is 1 if the number of rows is a multiple of `_ALIGNED`, and
    less otherwise. Unaligned rows may be padded by a separate kernel.
    """
    logs: dict[Hashable, Array] = {}
    for name in _SIZES:
        sizes = np.array([getattr(operation, name) for operation in operations], dtype=float)
        logs[name] = np.log10(np.maximum(sizes, 1.0))
    logs["padding"] = np.log10(np.min(_padding(operations)[1:], axis=0, initial=1e9))
    if operations and operations[0].kind in _PRODUCTS:
        rows = np.array([operation.m for operation in operations])
        logs["bucket"] = np.log10(2.0) * np.ceil(np.log2(rows))
        logs["aligned"] = np.log2(np.gcd(rows, _ALIGNED)) / np.log2(_ALIGNED)
    variants = np.array([operation.variant for operation in operations], dtype=str)
    return {**logs, "variant": variants}


@dataclass(frozen=True)
class _Roofline:
    """The roofline of n operations of one kind as a function of its coefficients.

    Attributes:
        arithmetic: Logarithms (tiles, n) of the seconds of arithmetic at the peak, by tile size.
        traffic: Logarithms (n,) of the seconds of memory traffic at the full bandwidth.
        size: Logarithms (n,) of the bytes that are moved.
        several: Logarithms (n,) of the number of operations in a call; a large negative number for
            a single operation.
        variants: Indicators (n,) by variant: 1 for operations of the variant, else 0.
        inherited: Coefficients of a similar device, to which the coefficients are added.
    """

    arithmetic: Array
    traffic: Array
    size: Array
    several: Array
    variants: Mapping[str, Array]
    inherited: Line

    def logs_at(self, change: Mapping[Hashable, complex]) -> NDArray[Any]:
        """Return the logarithms (n,) of the operations' times in seconds for given coefficients.

        Args:
            change: Coefficients by name, relative to `inherited`. They may be complex numbers.
        """
        line = {name: value + self.inherited.get(name, 0.0) for name, value in change.items()}
        variant_speed = sum(
            (indicator * line[("variant", name)] for name, indicator in self.variants.items()),
            start=np.zeros(len(self.traffic)),
        )
        tiles = range(len(self.arithmetic))
        speeds = np.array([line.get(("tile", index), 0.0) for index in tiles])[:, None]
        by_tile = self.arithmetic + speeds + line["arithmetic"] + variant_speed
        fastest = -_log_sum(-_TILE_SHARPNESS * by_tile) / _TILE_SHARPNESS
        power = _POWER * np.exp(line["power"])
        beyond_cache = self.size - np.log(_CACHE) - line.get("cache", 0.0)
        cached = 1 / (1 + np.exp(_CACHE_STEEPNESS * beyond_cache))
        fetched = self.traffic + line["traffic"] + variant_speed - line.get("cached", 0.0) * cached
        work = _log_sum(power * np.stack([fastest, fetched])) / power
        dispatch = np.log(_DISPATCH) + line["dispatch"] + 0 * work
        step = np.log(_STEP) + line["step"] + self.several
        return _log_sum(np.stack([work, dispatch, step]))


def _make_roofline(
    operations: Sequence[Operation], peak: float, bandwidth: float, inherited: Line
) -> _Roofline:
    arithmetic = _padding(operations) * [operation.flops / peak for operation in operations]
    traffic = [operation.bytes / bandwidth for operation in operations]
    if operations and operations[0].kind == "decode":
        batches = np.array([operation.batch for operation in operations], dtype=float)
        several = np.log(1e-2 * batches)
    else:
        calls = np.array([operation.product[-1] for operation in operations], dtype=float)
        several = np.log(np.where(calls > 1, calls, 1e-12))
    variants = {}
    for name in sorted({operation.variant for operation in operations}):
        indicator = [operation.variant == name for operation in operations]
        variants[name] = np.array(indicator, dtype=float)
    return _Roofline(
        arithmetic=np.log(np.maximum(arithmetic, _MIN_SECONDS)),
        traffic=np.log(np.maximum(traffic, _MIN_SECONDS)),
        size=np.log([max(operation.bytes, 1.0) for operation in operations]),
        several=several,
        variants=variants,
        inherited=inherited,
    )


def _linearize(
    operations: Sequence[Operation],
    peak: float,
    bandwidth: float,
    like: OperationTimes | None = None,
) -> Callable[[Line], Inputs]:
    """Return a function that linearizes the roofline around given coefficients.

    `fit_line` calls the function with its current coefficients. They are a `Line`: a mapping from
    the name of a coefficient to its value, where absent coefficients are 0. The function returns
    the inputs of a model of the logarithms of the operations' times that is linear in the
    coefficients.

    Args:
        operations: The operations to model, all of one kind.
        peak: Highest arithmetic rate of the device in FLOP/s.
        bandwidth: Highest memory bandwidth of the device in bytes/s.
        like: The fit of a similar device as prior knowledge; None for no prior knowledge.

    Returns:
        The function. The arrays of the `Inputs` that it returns have one value per operation.
    """
    inherited = like.coefficients if like else {}
    if like:
        deviation = like.predict(operations).mean - like.line_at(operations)
    else:
        deviation = np.zeros(len(operations))
    roofline = _make_roofline(operations, peak, bandwidth, inherited)
    coordinates = _coordinates(operations)
    priors = dict(_PRIORS)
    priors |= {("variant", name): _VARIANT_PRIOR for name in roofline.variants}
    if operations and operations[0].kind == "decode":
        priors |= _CACHE_PRIORS
    if len(roofline.arithmetic) > 1:
        priors |= {("tile", index): _TILE_PRIOR for index in range(len(roofline.arithmetic))}

    def inputs_at(line: Line) -> Inputs:
        at = {name: line.get(name, 0.0) for name in priors}
        # Complex-step derivatives are exact up to rounding (Squire and Trapp 1998).
        slopes = {
            name: roofline.logs_at({**at, name: value + 1e-20j}).imag / 1e-20
            for name, value in at.items()
        }
        linear = sum(
            (slope * at[name] for name, slope in slopes.items()),
            start=np.zeros(len(operations)),
        )
        columns = {name: (slope, priors[name]) for name, slope in slopes.items()}
        if like:
            columns["like"] = (deviation, _SIMILARITY_SPREAD)
        return Inputs(
            base=roofline.logs_at(at).real + (1 - _SIMILARITY_SPREAD) * deviation - linear,
            columns=columns,
            coordinates=coordinates,
            steps=operations,
            reach=_LENGTH_SCALE,
        )

    return inputs_at


def _log_sum(logs: NDArray[Any]) -> NDArray[Any]:
    """Return log(sum(exp(logs))) over the first axis; the numbers may be complex."""
    largest = logs.real.max(axis=0)
    return np.asarray(largest + np.log(np.exp(logs - largest).sum(axis=0)))
