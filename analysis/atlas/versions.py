"""Speedups of engine versions on one device: the paper's Figure 12 for current kernels.

An engine is a library or serving engine, such as PyTorch or vLLM. The atlas (the published timings)
has a few hundred timings of each version, at different shapes. At the shapes of one version, the
time of the other version is predicted. Each version is predicted at about half of all shapes, so a
constant bias of the predictor cancels out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from analysis.atlas import Atlas, TimingGroup, operations_from_rows, version_key
from analysis.lazy import np

#: Largest relative change that counts as equal.
_EQUIVALENCE = 0.03
#: Relative change beyond which a shape counts as slower or faster.
_LARGE_CHANGE = 0.10
_BOOTSTRAP_DRAWS = 1000


@dataclass(frozen=True)
class VersionChange:
    """A version of an engine (such as PyTorch or vLLM) compared with the version before it.

    Attributes:
        before: Timings of the earlier version.
        after: Timings of the later version.
        shapes: Number of kernel shapes over which the versions are compared.
        time_ratio: Time of the later version / time of the earlier version, median over the shapes.
        low: Lower end of the 95% interval of `time_ratio`.
        high: Upper end of that interval.
        slower: Share of shapes whose time is over 1.1 times that of the earlier version.
        faster: Share of shapes whose time is below 1/1.1 of that of the earlier version.
    """

    before: TimingGroup
    after: TimingGroup
    shapes: int
    time_ratio: float
    low: float
    high: float
    slower: float
    faster: float

    @property
    def verdict(self) -> str:
        """The later version as "faster", "slower", "the same within 3%" or "undecided"."""
        if self.low > 1 / (1 + _EQUIVALENCE) and self.high < 1 + _EQUIVALENCE:
            return f"the same within {_EQUIVALENCE:.0%}"
        if self.low > 1:
            return "slower"
        if self.high < 1:
            return "faster"
        return "undecided"

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object; "times" is the ratio of the times."""
        return {
            "device": self.after.device,
            "engine": self.after.engine,
            "kind": self.after.kind,
            "precision": self.after.precision,
            "before": self.before.version,
            "after": self.after.version,
            "shapes": self.shapes,
            "times": self.time_ratio,
            "low": self.low,
            "high": self.high,
            "slower": self.slower,
            "faster": self.faster,
            "kernels_before": list(self.before.kernels),
            "kernels_after": list(self.after.kernels),
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        old = self.before
        new = self.after
        sentence = (
            f"{new.device}, {new.engine}, {new.kind} in {new.precision}: {new.version} takes "
            f"{self.time_ratio:.3g} ({self.low:.3g} to {self.high:.3g}) times as long as "
            f"{old.version}, {self.verdict}; of {self.shapes} shapes, {self.slower:.0%} are more "
            f"than {_LARGE_CHANGE:.0%} slower and {self.faster:.0%} more than {_LARGE_CHANGE:.0%} faster"
        )
        if old.includes_call != new.includes_call:
            called = old if old.includes_call else new
            sentence += f"; only {called.version} was timed with its calls from Python"
        if list(old.kernels) != list(new.kernels):
            sentence += (
                f"; kernels: {', '.join(old.kernels)} before, {', '.join(new.kernels)} after"
            )
        return sentence


def version_changes(
    atlas: Atlas, device: str, engine: str | None = None
) -> Iterator[VersionChange]:
    """Yield a comparison of each version that was timed on a device with the previous version.

    Versions are compared by engine, kind of kernel and precision.

    Args:
        atlas: Published timings.
        device: The atlas's name of the device.
        engine: Engine to compare, such as "vLLM"; None for all.
    """
    key = attrgetter("engine", "kind", "precision")
    groups = [
        group for group in atlas.groups if group.device == device and engine in (None, group.engine)
    ]
    for _, same in itertools.groupby(sorted(groups, key=key), key=key):
        versions = sorted(same, key=lambda group: version_key(group.version))
        for before, after in itertools.pairwise(versions):
            yield compare_versions(before, after)


def compare_versions(before: TimingGroup, after: TimingGroup) -> VersionChange:
    """Compare two versions of an engine by predicting each at the kernel shapes of the other.

    Args:
        before: Timings of the earlier version.
        after: Timings of the later version, of the same kind of kernel, device and precision.
    """
    logs = []
    matrix_sizes: list[tuple[Any, Any]] = []
    common_variance = 0.0
    for timed, predicted, sign in ((before, after, 1.0), (after, before, -1.0)):
        rows: Any = timed.timings
        operations = operations_from_rows(rows, predicted.kind)
        prediction = predicted.predict(operations, as_timed=True)
        logs.append(sign * (prediction.mean - np.log(rows["seconds"].to_numpy(dtype=float))))
        # The coefficients are uncertain, so the predictions share errors. Add the variance of the
        # mean error. Each version is predicted at about half of all shapes, so the variance has the
        # factor 1/4.
        mean_root = prediction.root.mean(axis=0)
        common_variance += float((mean_root**2).sum()) / 4
        matrix_sizes += zip(rows["n"], rows["k"], strict=True)
    log_ratios = np.concatenate(logs)
    random = np.random.default_rng(0)
    medians = _bootstrap_medians(log_ratios, matrix_sizes, random)
    medians += np.sqrt(common_variance) * random.standard_normal(_BOOTSTRAP_DRAWS)
    low, high = np.exp(np.quantile(medians, (0.025, 0.975)))
    threshold = np.log(1 + _LARGE_CHANGE)
    return VersionChange(
        before=before,
        after=after,
        shapes=len(log_ratios),
        time_ratio=float(np.exp(np.median(log_ratios))),
        low=float(low),
        high=float(high),
        slower=float(np.mean(log_ratios > threshold)),
        faster=float(np.mean(-log_ratios > threshold)),
    )


def _bootstrap_medians(
    log_ratios: np.ndarray, matrix_sizes: Sequence[tuple[Any, Any]], random: np.random.Generator
) -> np.ndarray:
    """Return the medians of resampled log ratios of times.

    Ratios of shapes with the same weight matrix are similar, so matrices are resampled instead of
    shapes.

    Args:
        log_ratios: (n,) logarithms of ratios, one per shape.
        matrix_sizes: (n) columns and rows of the weight matrix of each shape.
        random: Source of the draws.

    Returns:
        An array (draws,).
    """
    indices = {size: index for index, size in enumerate(dict.fromkeys(matrix_sizes))}
    matrix_indices = np.array([indices[size] for size in matrix_sizes])
    order = np.argsort(log_ratios)
    equal_chances = np.full(len(indices), 1 / len(indices))
    counts = random.multinomial(len(indices), equal_chances, _BOOTSTRAP_DRAWS)
    # The weighted median of each draw is the first sorted ratio at which half of the drawn ratios
    # are reached.
    cumulative = np.cumsum(counts[:, matrix_indices[order]], axis=1)
    middles = (cumulative >= cumulative[:, -1:] / 2).argmax(axis=1)
    medians: np.ndarray = log_ratios[order][middles]
    return medians
