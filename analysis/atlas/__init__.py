"""The atlas: published timings of kernels on other devices, as predictors in this package.

A kernel is a single operation on a device, such as a matrix product. The package holds a few
hundred timings of each published table, chosen at random, with their source. `python -m
benchmarks.published.atlas` makes the shipped files from the published tables. The error and the
coverage of a predictor were measured on held-out timings, whose weight matrices are not among the
kept timings. `scale` widens the intervals so that they contain 95% of one half of the held-out
timings; the stated coverage was measured on the other half.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.atlas.kernels import COLUMNS
from analysis.lazy import np, pd
from paradnn.core.errors import ConfigError
from paradnn.core.words import did_you_mean
from paradnn.families.operations import Operation

if TYPE_CHECKING:
    from paradnn.forecast.operation_times import OperationTimes
    from paradnn.statistics.robust_regression import Prediction

#: The shipped files: timings.parquet (a row per timing, with the number of its group) and
#: groups.json.
DATA = Path(__file__).with_name("data")

#: Largest number of timings that a predictor is fitted to. Rows are in random order.
_MAX_FITTED_TIMINGS = 300
#: Minimum seconds of a kernel within a step, for tables that timed calls instead of kernels.
_KERNEL_SECONDS = 2e-6
#: Sizes that exceed the largest timed one by more than this factor count as extrapolated.
_EXTRAPOLATION_FACTOR = 1.1
#: Engines by preference, so that devices are compared under the same engine where possible.
_ENGINES = ("vLLM", "SGLang", "TensorRT-LLM", "PyTorch", "TensorFlow", "NCCL", "oneCCL")
_SIZES = [name for name in COLUMNS if name not in ("flops", "bytes")]


@dataclass(frozen=True, kw_only=True, eq=False)
class TimingGroup:
    """Published timings of one kind of kernel on one device, with one version of a library.

    Attributes:
        number: Number of the group in the shipped files.
        source: Repository of the published table.
        commit: Commit of that repository.
        device: Device that ran the kernels.
        engine: Library or serving engine that launched them.
        version: Version of the engine.
        precision: Type of the operands, or of only the weights.
        kind: Kind of kernel, as `Operation.kind`.
        kernels: Names of the kernels that ran in at least a twentieth of the rows.
        rows: Number of rows of the published table.
        kept: Number of these rows that are in the atlas.
        held_out: Number of held-out rows on which the errors below were measured; 0 if they were
            not measured.
        median_error: Median relative error of predictions of held-out timings.
        mean_error: Mean relative error of predictions of held-out timings.
        coverage: Share of held-out timings within their 95% intervals.
        scale: Factor that widens the intervals.
        includes_call: Whether each timing includes work that an operation within a step does not
            do: the call from Python, or the search for an operand's scale.
        timings: The kept rows: columns of `kernels.COLUMNS`, `variant` and `seconds`.
        overhead_seconds: Fixed overhead of each operation within a step, in seconds.
        dispatch_seconds: Seconds to dispatch a step that runs as one call; 0 if unknown.
        fit: The fitted predictor; None to fit it at the first use.
        speed_ratios: Peak arithmetic rate and memory bandwidth of a device that lacks timings, each
            divided by that of `device`. The timings of `device`, scaled by these ratios, replace
            the missing timings. (1, 1) if the timings are used for `device` itself.
    """

    number: int = 0
    source: str
    commit: str
    device: str
    engine: str
    version: str
    precision: str
    kind: str
    kernels: Sequence[str] = ()
    rows: int = 0
    kept: int = 0
    held_out: int = 0
    median_error: float = math.nan
    mean_error: float = math.nan
    coverage: float = math.nan
    scale: float = 1.0
    includes_call: bool = False
    timings: pd.DataFrame = field(repr=False)
    overhead_seconds: float = 0.0
    dispatch_seconds: float = 0.0
    fit: OperationTimes | None = None
    speed_ratios: tuple[float, float] = (1.0, 1.0)

    @property
    def description(self) -> str:
        """Source of the timings and quality of the predictions, in one line."""
        details = [f"{self.kept:,} of {self.rows:,} timings"]
        if self.held_out:
            details.append(f"{self.median_error:.1%} median error")
            details.append(f"{self.coverage:.0%} in their intervals")
        quality = ", ".join(details)
        if self.includes_call:
            quality += "; the call that was timed with each kernel is subtracted"
        engine = f"{self.engine} {self.version}".strip()
        kernels = f"{self.kind} in {self.precision} on {self.device}"
        return f"{self.source}: {kernels}, {engine} ({quality})"

    @functools.cache  # noqa: B019  groups live as long as the process
    def predictor(self) -> OperationTimes:
        """Return the predictor of this group, which is fitted at the first call."""
        from paradnn.forecast.operation_times import OperationTimes

        fit = self.fit
        if fit is None:
            rows = self.timings.head(_MAX_FITTED_TIMINGS)
            seconds = rows["seconds"].to_numpy(dtype=float)
            fit = OperationTimes.fit(operations_from_rows(rows, self.kind), seconds)
        peak_ratio, bandwidth_ratio = self.speed_ratios
        return replace(fit, peak=fit.peak * peak_ratio, bandwidth=fit.bandwidth * bandwidth_ratio)

    def predict(self, operations: Sequence[Operation], *, as_timed: bool = False) -> Prediction:
        """Predict the times of operations of this group's kind.

        Args:
            operations: The n operations.
            as_timed: Whether the predictions include the call from Python if the timings do.

        Returns:
            Natural logarithms of seconds (n,), with intervals widened by `scale`.
        """
        predictor = self.predictor()
        if self.includes_call and not as_timed:
            prediction = predictor.predict_without_dispatch(operations)
        else:
            prediction = predictor.predict(operations)
        return replace(
            prediction,
            root=prediction.root * self.scale,
            own=prediction.own * self.scale**2,
            noise=prediction.noise * self.scale,
        )

    def extrapolation_factors(self, operations: Sequence[Operation]) -> dict[str, float]:
        """Return by which factor the sizes of operations exceed the largest timed sizes.

        Args:
            operations: Operations of this group's kind.

        Returns:
            Largest value / largest timed value by name of the size, such as "m" or "flops". Only
            sizes with a ratio above 1.1 are included.
        """
        factors = {}
        for name in ("m", "n", "k", "batch", "flops", "bytes"):
            values = np.array([getattr(operation, name) for operation in operations], dtype=float)
            factor = float((values / self.timings[name].max()).max())
            if factor > _EXTRAPOLATION_FACTOR:
                factors[name] = factor
        return factors


@dataclass(frozen=True)
class Atlas:
    """Collection of published timings, in groups of one kind of kernel on one device each.

    Attributes:
        groups: The groups of timings.
    """

    groups: tuple[TimingGroup, ...]

    @functools.cached_property
    def devices(self) -> dict[str, set[str]]:
        """Names of the devices in alphabetical order -> the words of each name, in lower case."""
        names = sorted({group.device for group in self.groups})
        return {name: _words(name) for name in names}

    def device_name(self, name: str, option: str = "--device") -> str:
        """Return the atlas's name of a device, given a name from a user or a device driver.

        Args:
            name: A name such as "NVIDIA H200" or "tpu v2".
            option: Option that an error message names.

        Raises:
            ConfigError: If no device, or more than one, matches the name.
        """
        matches = self.matching_devices(name)
        if len(matches) == 1:
            return matches[0]
        if matches:
            problem = f"matches {' and '.join(matches)}"
        else:
            problem = "has no published timings"
        hint = did_you_mean(name, self.devices)
        remedy = f"{hint}the devices are {', '.join(self.devices)}"
        raise ConfigError(option, name, problem, remedy)

    def matching_devices(self, name: str) -> list[str]:
        """Return the names of the devices that match a name best; empty if no device matches.

        A device matches if all words of the shorter name are in the longer name. The best matches
        have the most words in common with `name`. Among these, a device with exactly the same words
        is preferred.

        Args:
            name: A name such as "NVIDIA H200" or "tpu v2", in any case.
        """
        wanted = _words(name)
        scores = {}
        for device, words in self.devices.items():
            if wanted and (wanted <= words or words <= wanted):
                penalty = 0.0 if words == wanted else 0.5
                scores[device] = len(words & wanted) - penalty
        return [device for device, score in scores.items() if score == max(scores.values())]

    def find_group(
        self,
        device: str,
        kind: str,
        precision: str,
        engine: str | None = None,
        version: str | None = None,
    ) -> TimingGroup | None:
        """Return the timings of a kind of kernel on a device; None if there are no such timings.

        Args:
            device: The atlas's name of the device.
            kind: Kind of kernel, such as "gemm" or "conv2d".
            precision: Type of the operands, such as "bfloat16".
            engine: Library or serving engine that launched the kernels; None for the most preferred
                engine that has such timings.
            version: Version of the engine; None for the newest.
        """
        groups = [
            group
            for group in self.groups
            if (group.device, group.kind, group.precision) == (device, kind, precision)
            and engine in (None, group.engine)
            and version in (None, group.version)
        ]
        groups.sort(key=lambda group: version_key(group.version), reverse=True)
        return min(groups, key=_engine_rank, default=None)


def _engine_rank(group: TimingGroup) -> int:
    return (*_ENGINES, group.engine).index(group.engine)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def version_key(version: str) -> list[int]:
    """Return the numbers in a version as a sort key, such as [2, 21, 0] for "2.21.0"."""
    return [int(number) for number in re.findall(r"\d+", version)]


@functools.cache
def load() -> Atlas:
    """Return the atlas of published timings that is shipped with the package."""
    timings = dict(iter(pd.read_parquet(DATA / "timings.parquet").groupby("group")))
    groups = []
    for entry in json.loads((DATA / "groups.json").read_text()):
        includes_call = entry.pop("call")
        group = TimingGroup(
            **entry,
            includes_call=includes_call,
            overhead_seconds=_KERNEL_SECONDS if includes_call else 0.0,
            timings=timings[entry["number"]],
        )
        groups.append(group)
    return Atlas(tuple(groups))


def make_operation(kind: str, columns: Any, variant: str = "") -> Operation:
    """Return the operation that a row of a table of timings describes.

    Args:
        kind: Kind of kernel, such as "gemm".
        columns: Fields of the operation, such as "m" or "flops", with their values (see
            `analysis.atlas.kernels`).
        variant: Variant of the kernel, such as the layout of its operands; empty if there is only
            one.
    """
    sizes = {name: max(1, round(float(columns[name]))) for name in _SIZES if name in columns}
    return Operation(
        kind=kind,
        variant=variant,
        flops=float(columns["flops"]),
        bytes=float(columns["bytes"]),
        **sizes,
    )


def operations_from_rows(rows: pd.DataFrame, kind: str) -> list[Operation]:
    """Return an operation for each row of a table of timings.

    Args:
        rows: The table, with the columns that `analysis.atlas.kernels` describes.
        kind: Kind of kernel of all rows.
    """
    return [
        make_operation(kind, row, str(row.get("variant", ""))) for row in rows.to_dict("records")
    ]
