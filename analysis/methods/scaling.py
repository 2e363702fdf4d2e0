"""How speed grows with devices: each point on n devices against itself on one, and Amdahl's non-parallel fraction.

The paper's Figure 4 sets the utilisation on eight cores against that on one and reads off a largest non-parallel
fraction. Here every point on n devices is paired with the same point on one, and the fraction is fitted for each
family with an interval. The batch is that of the whole step, so this is strong scaling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from analysis.methods.dependence import Levels, crossed_quantile, crossed_variance, levels_of
from analysis.methods.pairing import RESULT_COLUMNS, pair, sampling
from analysis.methods.quantiles import bootstrap_ratio
from analysis.store.frame import families, is_ok, require_homogeneous
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.families import message_families
from paradnn.forecast.estimate import LEVEL, Estimate

__all__ = ["METRICS", "FamilyScaling", "Scaling", "amdahl_fraction", "amdahl_speedup", "scaling"]

#: Rates, of which n devices have n times as much where nothing is lost.
METRICS = ("examples_per_second", "flops_per_second")
#: The column that says how several devices meet.
_TRANSPORT = "transport"
#: Families of messages, which run on no devices.
_FOUND = (*RESULT_COLUMNS, "many", "one", "devices", "efficiency", "fraction")


@dataclass(frozen=True)
class FamilyScaling:
    """The non-parallel fraction of one family's points.

    `fraction` is the fit over all points and counts, `median` and `upper` (the 90th percentile) are over the fractions
    fitted to each point by itself, `largest` is the greatest of these. `largest_batch` is the largest batch size,
    `upper_at_largest_batch` the 90th percentile there. `efficiency` is the median of speedup / n at the largest n.
    `slower` counts measurements that were slower than on one device, `superlinear` those above n times as fast.
    """

    family: str
    points: int
    measurements: int
    counts: tuple[int, ...]
    fraction: Estimate
    median: Estimate
    upper: Estimate
    largest: float
    largest_batch: int | None
    upper_at_largest_batch: Estimate
    efficiency: Estimate
    slower: int
    superlinear: int


@dataclass(frozen=True)
class Scaling:
    """`pairs` has a row for each point and count above one: the join columns, `devices` (the count), `one` and `many`
    (the metric on one and on all devices), `speedup` with its interval, `efficiency` (speedup / count) and `fraction`.
    `alone` are the families without a pair. `apart`: families -> why their counts cannot be told from sessions or a
    drift. `pooled` says what differed among runs that were pooled, `run_ids` are the measured runs.
    """

    metric: str
    by: str
    pairs: pd.DataFrame
    families: tuple[FamilyScaling, ...]
    alone: tuple[str, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)
    pooled: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()


def amdahl_speedup(fraction: float, count: ArrayLike) -> np.ndarray:
    """1 / (s + (1 - s) / n) for n devices, s the non-parallel fraction (Amdahl, AFIPS 30, 1967)."""
    n = np.asarray(count, dtype="float64")
    return np.asarray(1 / (fraction + (1 - fraction) / n), dtype="float64")


def amdahl_fraction(speedup: ArrayLike, count: ArrayLike) -> np.ndarray:
    """s = (1 / speedup - 1 / n) / (1 - 1 / n), Amdahl's law solved for the fraction (Karp and Flatt, CACM 33, 1990).

    Below 0 where the speedup is above n, above 1 where n devices are slower than one. n must be above 1.
    """
    n = np.asarray(count, dtype="float64")
    return np.asarray((1 / np.asarray(speedup, dtype="float64") - 1 / n) / (1 - 1 / n), dtype="float64")


def scaling(
    frame: pd.DataFrame,
    metric: str = "examples_per_second",
    by: str = "devices",
    pool: bool = False,
    level: float = LEVEL,
) -> Scaling:
    """Pair each point on n > 1 devices with itself on one, and fit the fraction of each family.

    Amdahl's law says 1 / speedup - 1 / n = s (1 - 1 / n), a line through the origin: s is fitted by least squares over
    all points and counts of a family. Its interval is over models and batch sizes, which points share (`dependence`),
    of points that share nothing a bootstrap-t (`bootstrap_ratio`); all counts of a point count together, so it also
    allows for points that scale differently. So are medians and percentiles over models and batch sizes. `by` is the
    column that counts devices; platform.threads will do. `level` is that of all these.

    Raises ConfigError for another metric, NotEnoughData where no point was measured on one device and on more,
    SchemaError for heterogeneous runs of a family.

    Where devices meet in several ways (`transport`), the families are "fc, local" and "fc, grpc", each with a fraction.
    """
    if metric not in METRICS:
        raise ConfigError("--metric", metric, "is no rate that grows with devices", f"choose {' or '.join(METRICS)}")
    measured = _counted(frame, by)
    checked = [require_homogeneous(rows, pool=pool) for _, rows in measured.groupby("family", dropna=False)]
    pooled = tuple(rows.attrs["pooled"] for rows in checked if rows.attrs.get("pooled"))
    found, apart = _paired(measured, metric, by)
    alone = tuple(name for name in families(measured) if name not in set(found["family"]))
    if _TRANSPORT in found and found[_TRANSPORT].nunique() > 1:
        # How devices meet decides what they lose: each way has a fraction of its own.
        found["family"] = found["family"] + ", " + found[_TRANSPORT]
    found = found.rename(columns={"a": "many", "b": "one"})
    found["efficiency"] = found["speedup"] / found["devices"]
    found["fraction"] = amdahl_fraction(found["speedup"], found["devices"])
    named = [_family(name, found[found["family"] == name], level) for name in families(found)]
    return Scaling(metric, by, found, tuple(named), alone, apart, pooled, tuple(measured["run_id"]))


#: Columns that count devices, which older runs lack.
_COUNTS = ("devices", "hosts", "platform.threads")


def _counted(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """The measured runs that say how many devices they had."""
    measured = _by_hosts(frame[is_ok(frame) & ~frame["family"].isin(message_families())])
    if by not in measured and by not in _COUNTS:
        raise ConfigError("--by", by, "these runs have no such column", f"name one that counts: {', '.join(_COUNTS)}")
    if by not in measured or measured[by].notna().sum() == 0:
        raise NotEnoughData(f"{by}: no measured run records how many; measure points with {by}=1 and more")
    if not pd.api.types.is_numeric_dtype(measured[by]):
        raise ConfigError("--by", by, "holds no numbers", "name the column that counts devices")
    return measured[measured[by].notna()]


def _paired(measured: pd.DataFrame, metric: str, by: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """Each point on more devices beside itself on one, as `pairing.pair` has them; column `devices` counts. Then which
    families' sides cannot be told from their sessions, and why."""
    counts = sorted({int(count) for count in measured[by]})
    # One device exchanges nothing: it is what devices of every transport are held against.
    count_columns = [name for name in (by, _TRANSPORT) if name in measured]
    one = measured[measured[by] == 1].drop(columns=count_columns)
    if one.empty or counts == [1]:
        there = ", ".join(map(str, counts))
        raise NotEnoughData(f"{by} = {there}: scaling needs points on 1 and on more; measure the same points on both")
    parts = []
    for count, transport, many in _by_count(measured, by):
        if count > 1:
            met = {} if transport is None else {_TRANSPORT: transport}
            parts.append(pair(many.drop(columns=count_columns), one, metric).assign(devices=count, **met))
    found = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if found.empty:
        raise NotEnoughData(f"no point was measured with {by}=1 and with more; measure the same points on both")
    apart: dict[str, str] = {}
    for part in parts:
        for name in families(part):
            design = sampling(part, name).design
            if not design.comparable:
                apart.setdefault(name, design.text())
    return found, apart


def _by_hosts(rows: pd.DataFrame) -> pd.DataFrame:
    """Devices of several hosts meet in another way than those of one: their transport says so."""
    if not {"hosts", _TRANSPORT} <= set(rows.columns):
        return rows
    hosts = rows["hosts"].fillna(1).astype("int64")
    words = rows[_TRANSPORT].where(hosts == 1, rows[_TRANSPORT] + " on " + hosts.astype("string") + " hosts")
    return rows.drop(columns="hosts").assign(**{_TRANSPORT: words})


def _by_count(measured: pd.DataFrame, by: str) -> Iterator[tuple[int, str | None, pd.DataFrame]]:
    """The runs of each count, and of each transport where runs name one."""
    for count in sorted({int(count) for count in measured[by]}):
        rows = measured[measured[by] == count]
        if _TRANSPORT not in rows:
            yield count, None, rows
            continue
        for transport in sorted(rows[_TRANSPORT].dropna().unique()):
            yield count, str(transport), rows[rows[_TRANSPORT] == transport]


def _family(name: str, pairs: pd.DataFrame, level: float) -> FamilyScaling:
    keys = [column for column in pairs.columns if column not in _FOUND]
    point = pairs.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    count = pairs["devices"].to_numpy(dtype="float64")
    room = 1 - 1 / count
    lost = 1 / pairs["speedup"].to_numpy(dtype="float64") - 1 / count
    above, below = np.bincount(point, lost * room), np.bincount(point, room * room)
    each = above / below
    levels = levels_of(pairs.iloc[np.unique(point, return_index=True)[1]])
    most = pairs[pairs["devices"] == pairs["devices"].max()]
    largest, there = None, np.ones(len(each), dtype=bool)
    if "batch_size" in pairs and pairs["batch_size"].notna().any():
        batches = pairs.groupby(point)["batch_size"].first().to_numpy(dtype="float64", na_value=np.nan)
        largest = int(np.nanmax(batches))
        there = batches == largest
    return FamilyScaling(
        family=name,
        points=len(each),
        measurements=len(pairs),
        counts=tuple(sorted({int(n) for n in pairs["devices"]})),
        fraction=_fraction(above, below, levels, level),
        median=crossed_quantile(each, levels, level=level),
        upper=crossed_quantile(each, levels, 0.9, level),
        largest=float(each.max()),
        largest_batch=largest,
        upper_at_largest_batch=crossed_quantile(each[there], levels.of(there), 0.9, level),
        efficiency=crossed_quantile(most["efficiency"], levels_of(most), level=level),
        slower=int((pairs["speedup"] < 1).sum()),
        superlinear=int((pairs["speedup"] > pairs["devices"]).sum()),
    )


def _fraction(above: np.ndarray, below: np.ndarray, levels: Levels, level: float) -> Estimate:
    """sum(above) / sum(below) over points, with an interval that knows which models and batch sizes they share."""
    if levels.independent:
        return bootstrap_ratio(above, below, level)
    ratio = float(above.sum() / below.sum())
    variance, freedom = crossed_variance((above - ratio * below) / below.mean(), levels)
    reach = float(stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(variance))
    return Estimate(ratio, ratio - reach, ratio + reach)
