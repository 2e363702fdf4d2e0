"""The atlas: what other platforms were measured to do, in public tables, as predictors that are
shipped.

Of each table a few hundred timings are kept, chosen at random, with their source; `python -m
benchmarks.published.atlas` makes the files from the sources' own. A predictor's error and coverage
were measured on timings that were left out, of weights that none of the kept timings has; `scale`
widens its intervals to hold 95% of half of these, and the coverage is that of the other half.
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

#: The shipped files: timings (a row each, with the number of its group) and the groups.
DATA = Path(__file__).with_name("data")
#: Timings of whole steps that a predictor is fitted on at most; they are in random order.
_FITTED = 300
#: Seconds that a kernel takes within a step at the least, which timings of calls do not hold.
_KERNEL = 2e-6
#: Devices are compared with the same one where that is possible.
_ENGINES = ("vLLM", "SGLang", "TensorRT-LLM", "PyTorch", "TensorFlow", "NCCL", "oneCCL")
_SIZES = [name for name in COLUMNS if name not in ("flops", "bytes")]


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Timings of one kind of kernel on one device with one version of a library.

    kernels: what its source calls those that a twentieth of the rows ran. rows: of the published
    table; kept: of these in the atlas. median_error, mean_error, coverage: relative errors of
    predictions, and the share in their 95% intervals, over `held_out` timings of weights that were
    not kept. scale: of intervals. call: whether each was timed with something that no step has: a
    call from Python, or the search for an operand's scale. timings: the kept ones, with `seconds`.
    before: seconds of each operation within a step beside its own. start: of a step that is one
    call, where that is known. fit: the predictor, where there is one already. faster: how many
    times its own arithmetic and memory bandwidth those of the device are that it stands for.
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
    call: bool = False
    timings: pd.DataFrame = field(repr=False)
    before: float = 0.0
    start: float = 0.0
    fit: OperationTimes | None = None
    faster: tuple[float, float] = (1.0, 1.0)

    @property
    def told(self) -> str:
        """Where its numbers come from, in a line."""
        if self.held_out:
            error = (
                f", {self.median_error:.1%} median error, {self.coverage:.0%} in their intervals"
            )
        else:
            error = ""
        kept = f"{self.kept:,} of {self.rows:,} timings{error}"
        engine = f"{self.engine} {self.version}".strip()
        if self.call:
            beside = "; what was timed beside the kernel is taken off"
        else:
            beside = ""
        return f"{self.source}: {self.kind} in {self.precision} on {self.device}, {engine} ({kept}{beside})"

    @functools.cache  # noqa: B019  groups live as long as the process
    def times(self) -> OperationTimes:
        """The predictor."""
        from paradnn.forecast.operation_times import OperationTimes

        rows = self.timings.head(_FITTED)
        fit = self.fit or OperationTimes.fit(
            operations_of(rows, self.kind), rows["seconds"].to_numpy(dtype=float)
        )
        return replace(
            fit, peak=fit.peak * self.faster[0], bandwidth=fit.bandwidth * self.faster[1]
        )

    def predict(self, operations: Sequence[Operation], as_timed: bool = False) -> Prediction:
        """Logarithms of their seconds within a step, or `as_timed`; intervals as wide as left-out
        timings ask for.
        """
        times = self.times()
        scale = self.scale
        found = (times.predict_uncalled if self.call and not as_timed else times.predict)(
            operations
        )
        return replace(
            found, root=found.root * scale, own=found.own * scale**2, noise=found.noise * scale
        )

    def beyond(self, operations: Sequence[Operation]) -> dict[str, float]:
        """Size -> how many times the largest timed it is, for the sizes that are larger by more
        than a tenth.
        """
        rows = self.timings
        found = {}
        for name in ("m", "n", "k", "batch", "flops", "bytes"):
            values = np.array([getattr(one, name) for one in operations], dtype=float)
            factor = float((values / rows[name].max()).max())
            if factor > 1.1:
                found[name] = factor
        return found


@dataclass(frozen=True)
class Atlas:
    """All groups."""

    groups: tuple[Group, ...]

    @functools.cached_property
    def devices(self) -> dict[str, set[str]]:
        """In alphabetical order, with the words of each name."""
        return {name: _words(name) for name in sorted({group.device for group in self.groups})}

    def device(self, name: str, option: str = "--device") -> str:
        """The atlas' name of a device that a user or a driver calls so. ConfigError, of the
        `option` that names it, for one that is not there, or several.
        """
        among = self.named(name)
        if len(among) == 1:
            return among[0]
        if among:
            problem = f"may be {' or '.join(among)}"
        else:
            problem = "is not in the atlas"
        raise ConfigError(
            option,
            name,
            problem,
            f"{did_you_mean(name, self.devices)}it has {', '.join(self.devices)}",
        )

    def named(self, name: str) -> list[str]:
        """Devices that may be called so: all words of the shorter in the longer, as many of them as
        are in any.
        """
        asked = _words(name)
        common = {
            device: len(words & asked) - (words != asked) / 2
            for device, words in self.devices.items()
            if asked and (asked <= words or words <= asked)
        }
        return [device for device, count in common.items() if count == max(common.values())]

    def find(
        self,
        device: str,
        kind: str,
        precision: str,
        engine: str | None = None,
        version: str | None = None,
    ) -> Group | None:
        """The group, of the newest version where none is named, of the first of `_ENGINES` there
        where none is.
        """
        found = [
            group
            for group in self.groups
            if (group.device, group.kind, group.precision) == (device, kind, precision)
            and engine in (None, group.engine)
            and version in (None, group.version)
        ]
        found.sort(key=lambda group: order_of(group.version), reverse=True)
        return min(
            found, key=lambda group: (*_ENGINES, group.engine).index(group.engine), default=None
        )


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def order_of(version: str) -> list[int]:
    """What versions are sorted by."""
    return [int(word) for word in re.findall(r"\d+", version)]


@functools.cache
def load() -> Atlas:
    """What is shipped with the package."""
    timings = dict(iter(pd.read_parquet(DATA / "timings.parquet").groupby("group")))
    known = json.loads((DATA / "groups.json").read_text())
    return Atlas(
        tuple(
            Group(**one, timings=timings[one["number"]], before=_KERNEL if one["call"] else 0.0)
            for one in known
        )
    )


def operation(kind: str, columns: Any, variant: str = "") -> Operation:
    """One operation of `analysis.atlas.kernels`' columns."""
    sizes = {name: max(1, round(float(columns[name]))) for name in _SIZES if name in columns}
    m, n, k = (sizes.pop(name) for name in ("m", "n", "k"))
    return Operation(
        kind, variant, m, n, k, float(columns["flops"]), float(columns["bytes"]), **sizes
    )


def operations_of(rows: pd.DataFrame, kind: str) -> list[Operation]:
    """A row each; all of one kind."""
    return [operation(kind, row, str(row.get("variant", ""))) for row in rows.to_dict("records")]
