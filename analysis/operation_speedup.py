"""`speedup --operations`: A over B operation by operation, and the gain in memory bandwidth that this implies.

The speedup of single operations against their arithmetic intensity, and the bandwidth gain it implies (Figure 6).

An operation left of the ridge is limited by memory: what it gains from B to A is what the memory gained. Starts from
operation tables (`analysis.store.load.load_types`), paired by point and type of operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.lazy import drawing, np, pd, ticker
from analysis.result import Paragraph, Result
from analysis.sides import KEPT, Sides, apart, mean_in_words, tidy
from analysis.statistics.dependence import geometric_mean, levels_of
from analysis.statistics.pairing import RESULT_COLUMNS, pair
from paradnn.errors import NotEnoughData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from analysis.columns import join_columns
from analysis.operations import MINIMUM_SHARE, TRANSFERS
from analysis.roofs import find_roofs
from paradnn.platform.specifications import find_hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperationSpeedupResult(Result):
    """Paired operation types, levels of what limits them, and the bandwidth gain; `ridges` in FLOP/B."""

    speedup: OperationSpeedup
    sides: Sides
    ridges: tuple[float, ...]

    @property
    def table(self) -> pd.DataFrame:
        return tidy(self.speedup.operations, ("operation_type", *KEPT))

    def _figure(self) -> Figure:
        return draw_operations(self.speedup, self.ridges, self.sides.name_a, self.sides.name_b)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of, sides = self.speedup, self.sides
        yield Paragraph(
            f"{sides.named()}Speedup of {' over '.join(sides.called)} in the FLOP rate of {len(of.operations)} "
            f"operation types in paired points; {of.small} below 1% of the time are left out."
        )
        for row in of.levels.to_dict("records"):
            mean = mean_in_words(row["geometric_mean"], row["geometric_mean_low"], row["geometric_mean_high"])
            yield Paragraph(f"{row['level']}: {mean} over {row['operations']} operations in {row['points']} points.")
        yield Paragraph(self._gain())
        yield from apart(of.operations, sides, "operation types")

    def _gain(self) -> str:
        if not self.ridges:
            return (
                "No ridge point is known, so memory-bound operations cannot be identified: give it with --ridge, or "
                "measure the ceilings."
            )
        if self.speedup.gain_from is None:
            return "No operation is memory-bound on both sides: nothing is said of the bandwidth."
        edges = ", ".join(f"{ridge:.3g}" for ridge in self.ridges)
        return (
            f"Memory bandwidth gain of {' over '.join(self.sides.called)}, from the level '{self.speedup.gain_from}': "
            f"{mean_in_words(*self.speedup.gain)}; ridge at {edges} FLOP/B."
        )


def operations_over(
    sides: Sides, on: Sequence[str] | None, given: Sequence[float], store: Sequence[str]
) -> OperationSpeedupResult:
    """The operations of A's profiled runs over those of B's; NotEnoughData where nothing can be paired."""
    from analysis.store.load import load_types

    ridges = _ridges(sides, given)
    types = load_types(pd.concat([sides.a, sides.b], ignore_index=True), store)
    speedup = operation_speedup(sides.a, sides.b, types, ridges, on)
    return OperationSpeedupResult(
        speedup=speedup, sides=sides, ridges=ridges, sources=sides.sources, pooled=sides.pooled
    )


def _ridges(sides: Sides, given: Sequence[float]) -> tuple[float, ...]:
    """The ridge points as given, else those of the sides' roofs; none where one of these is unknown.

    Half a knowledge would call operations memory-bound that are so on one side alone.
    """
    if given:
        return tuple(sorted(given))
    ridges = {roof.ridge for side in (sides.a, sides.b) for roof in find_roofs(side, find_hardware)}
    return () if None in ridges else tuple(sorted(ridge for ridge in ridges if ridge is not None))


#: The column that names an operation's type; `type` itself identifies no point.
TYPE = "operation_type"


class Level(StrEnum):
    """What limits an operation on both sides; tables hold the values."""

    COMPUTE = "compute-bound"
    MATMUL = "memory-bound MatMul"
    OTHER = "memory-bound, other"
    ACROSS = "across a ridge"
    TRANSFER = "between devices"
    UNKNOWN = "ridge unknown"


# Types whose work is that of matrix products. XLA on a TPU names a product, with what follows it, output fusion.
_PRODUCTS = re.compile(r"matmul|gemm|\bdot\b|conv|einsum|output fusion", re.IGNORECASE)

_IDENTITY = (
    "run_id",
    "family",
    "device",
    "outcome",
    "batch_size",
    "precision",
    "compile",
    "mode",
    "devices",
    "transport",
    "hosts",
    "task",
    "scenario",
    # When and where it was measured, for `analysis.statistics.sessions`.
    "start_time",
    "sweep_id",
    "host",
    "source",
)
_IDENTITY_PREFIXES = ("model.", "optimizer.", "data.", "platform.", "framework.", "software.")


@dataclass(frozen=True)
class OperationSpeedup:
    """The result.

    `operations`: a row for each type of operation in each pair of points, with the columns of `pairing.pair` (a, b in
    FLOP/s), `operation_type`, `arithmetic_intensity` (FLOP/B, the geometric mean of both sides), `share` of the time
    on the side where it is greater, `bandwidth_gain` and `level` (a value of Level). `levels`: a row for each level,
    with operations, points, geometric mean and interval of the speedup, and where memory limits the mean
    `bandwidth_gain`. `gain`: (mean, low, high) of the bandwidth gain, from the level `gain_from`; NaN and None without
    memory-bound operations. `small`: operations left out for their share.
    """

    operations: pd.DataFrame
    levels: pd.DataFrame
    gain: tuple[float, float, float]
    gain_from: Level | None
    small: int


def operation_speedup(
    a: pd.DataFrame,
    b: pd.DataFrame,
    types: pd.DataFrame,
    ridges: Sequence[float] = (),
    on: Sequence[str] | None = None,
    minimum_share: float = MINIMUM_SHARE,
) -> OperationSpeedup:
    """Pair the operation types of two sides by point and type, and say what limits them.

    speedup = FLOP/s of A / FLOP/s of B while the operation runs. Only operations with FLOPs and a rate on both sides,
    and with at least `minimum_share` of the time on one, as in the paper. `ridges` are the ridge points of the sides
    (FLOP/B): an operation is memory-bound left of them all, compute-bound right of them all.

    Bandwidth gain: FLOP/s = intensity x B/s, so it is speedup x intensity on B / intensity on A, over operations that
    memory limits on both sides. That takes out what a larger batch brings to matrix products, as the paper reasons
    (section 4.5: 3x at twice the batch is 1.5x of bandwidth). It is taken from operations that are no products where
    there are any, since these may keep operands on the chip. Exchanges between devices are a level of their own. Means
    are of points (the geometric mean of a point's operations counts once), intervals over models and batch sizes.
    Raises NotEnoughData naming what lacks, and as `pair` does.
    """
    one, two = _rows("A", a, types), _rows("B", b, types)
    keys = join_columns(one, two)[0] if on is None else list(on)
    carried = ("intensity_a", "intensity_b", "share_a", "share_b")
    found = pair(one, two, "flops_per_second", [*keys, TYPE], carried)
    if found.empty:
        raise NotEnoughData(
            "no type of operation has FLOPs in a point of both sides; "
            f"A has {_listed(one[TYPE])}; B has {_listed(two[TYPE])}"
        )
    attrs = found.attrs
    share = found[["share_a", "share_b"]].max(axis=1)
    large = share.isna() | (share >= minimum_share)
    small = int((~large).sum())
    found, share = found[large].reset_index(drop=True), share[large].reset_index(drop=True)
    intensity_a, intensity_b = found.pop("intensity_a"), found.pop("intensity_b")
    found = found.drop(columns=["share_a", "share_b"])
    intensity = np.sqrt(intensity_a * intensity_b)
    place = list(found.columns).index("a")
    found.insert(place, "arithmetic_intensity", intensity)
    found.insert(place + 1, "share", share)
    found["bandwidth_gain"] = found["speedup"] * intensity_b / intensity_a
    found["level"] = _levels(intensity_a, intensity_b, found[TYPE], ridges)
    found.attrs = attrs
    levels = _by_level(found)
    source = next((level for level in (Level.OTHER, Level.MATMUL) if (found["level"] == level).any()), None)
    here = found["level"].eq(source or "")
    gain = _mean(found[here], "bandwidth_gain", _points(found)[here.to_numpy()])
    return OperationSpeedup(found, levels, gain, source, small)


def identity_columns(runs: pd.DataFrame) -> list[str]:
    """The columns of runs that identify a point and its place, without the runs' own metrics."""
    return [name for name in runs.columns if name in _IDENTITY or str(name).startswith(_IDENTITY_PREFIXES)]


def _by_level(found: pd.DataFrame) -> pd.DataFrame:
    points, rows = _points(found), []
    for level in Level:
        here = (found["level"] == level).to_numpy()
        if here.any():
            mean, low, high = _mean(found[here], "speedup", points[here])
            gain = (
                _mean(found[here], "bandwidth_gain", points[here])[0]
                if level in (Level.MATMUL, Level.OTHER)
                else np.nan
            )
            rows.append(
                {
                    "level": level.value,
                    "operations": int(here.sum()),
                    "points": len(set(points[here])),
                    "geometric_mean": mean,
                    "geometric_mean_low": low,
                    "geometric_mean_high": high,
                    "bandwidth_gain": gain,
                }
            )
    return pd.DataFrame(rows)


def _rows(name: str, side: pd.DataFrame, types: pd.DataFrame) -> pd.DataFrame:
    """A side's operations with FLOPs and a rate, with what identifies their point."""
    rows = types.merge(side[identity_columns(side)], on="run_id")
    if rows.empty:
        raise NotEnoughData(f"none of the {len(side)} runs of {name} was profiled; measure them with a profile")
    works = (rows["flops"] > 0) & (rows["flops_per_second"] > 0) & (rows["arithmetic_intensity"] > 0)
    if not works.any():
        raise NotEnoughData(f"no operation of {name} has FLOPs, a rate and an intensity")
    suffix = name.lower()
    renamed = {"type": TYPE, "arithmetic_intensity": f"intensity_{suffix}", "share": f"share_{suffix}"}
    rows = rows[works].rename(columns=renamed)
    # A row is one type of a run.
    return rows.assign(run_id=rows["run_id"] + " " + rows[TYPE])


def _levels(intensity_a: pd.Series, intensity_b: pd.Series, types: pd.Series, ridges: Sequence[float]) -> np.ndarray:
    """What limits each operation on both sides."""
    level = np.full(len(types), Level.UNKNOWN.value, dtype=object)
    if len(ridges):
        least, greatest = np.minimum(intensity_a, intensity_b), np.maximum(intensity_a, intensity_b)
        level[:] = Level.ACROSS.value
        level[greatest < min(ridges)] = Level.OTHER.value
        level[(greatest < min(ridges)) & types.str.contains(_PRODUCTS)] = Level.MATMUL.value
        level[least >= max(ridges)] = Level.COMPUTE.value
    level[types.str.contains(TRANSFERS)] = Level.TRANSFER.value
    return level


def _points(found: pd.DataFrame) -> np.ndarray:
    """A number for each pair of points, the same for all its operations."""
    made = (*RESULT_COLUMNS, TYPE, "arithmetic_intensity", "share", "bandwidth_gain", "level")
    keys = [name for name in found.columns if name not in made]
    return found.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()


def _mean(rows: pd.DataFrame, column: str, points: np.ndarray) -> tuple[float, float, float]:
    """The geometric mean of a column over points and its interval."""
    if rows.empty:
        return np.nan, np.nan, np.nan
    logs = pd.Series(np.log(rows[column].to_numpy(dtype="float64"))).groupby(points).mean()
    one = rows.groupby(points).head(1)
    each = one.set_axis(pd.unique(points)).reindex(logs.index)
    return geometric_mean(np.exp(logs.to_numpy()), levels_of(each))


def _listed(values: pd.Series, limit: int = 6) -> str:
    names = sorted(set(values))
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def draw_operations(found: OperationSpeedup, ridges: Sequence[float] = (), a: str = "A", b: str = "B") -> Figure:
    """Speedup of each operation against its arithmetic intensity, a mark for each kind of limit, the ridge points
    dashed and each kind's mean as a line over the intensities it covers."""
    figure, axes = drawing.figure(8.0, 4.8)
    shown = [level for level in Level if (found.operations["level"] == level).any()]
    means = found.levels.set_index("level")["geometric_mean"]
    for level in shown:
        rows = found.operations[found.operations["level"] == level]
        look = {"color": drawing.colour_of(level, tuple(Level)), "marker": drawing.marker_of(level, tuple(Level))}
        axes.scatter(
            rows["arithmetic_intensity"],
            rows["speedup"],
            s=22,
            alpha=0.7,
            linewidths=0,
            **look,
            label=f"{level}: {means[level]:.2f}x ({len(rows)})",
        )
        ends = rows["arithmetic_intensity"].min() / 1.25, rows["arithmetic_intensity"].max() * 1.25
        axes.plot(ends, [means[level]] * 2, color=look["color"], linewidth=1.4)
    for ridge in ridges:
        axes.axvline(ridge, color="#666666", linestyle="--", linewidth=1)
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    drawing.finish(
        axes,
        f"Operations: {a} over {b}",
        "arithmetic intensity in FLOP/B"
        + (f" (ridge {' and '.join(f'{ridge:.3g}' for ridge in ridges)} dashed)" if len(ridges) else ""),
        "speedup of the FLOP rate",
    )
    axes.set_yscale("log")
    drawing.ratio_axis(axes.yaxis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
