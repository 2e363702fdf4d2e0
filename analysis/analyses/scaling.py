"""`scaling`: speedup over the number of devices or hosts, and the non-parallel fraction.

Every point on n devices is paired with the same point on one device. The non-parallel fraction of
each family is fitted, with an interval (the paper's Figure 4). In strong scaling, both runs of a
pair have the same batch per step, and the fraction follows Amdahl's law. In weak scaling, both have
the same batch per device, and the fraction follows Gustafson's law.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from analysis.format import (
    format_number,
    format_percent_interval,
    format_share,
    format_with_interval,
)
from analysis.labels import column_unit, label
from analysis.lazy import drawing, np, pd
from analysis.options import Options, column_option, option
from analysis.pairing import RESULT_COLUMNS, pair
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, joined
from analysis.sides import describe_confounding
from analysis.store.frame import families, is_ok, require_homogeneous
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.families import message_families
from paradnn.statistics.contrast import Contrast
from paradnn.statistics.dependence import Component
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.sessions import assign_sessions
from paradnn.statistics.transfers import MIN_SIZES, TransferFit, fit_transfers, predicted_times

#: Rates that are n times as high on n devices with perfect scaling.
METRICS = ("examples_per_second", "flops_per_second")
#: Column with the number of devices on all hosts: devices x hosts.
_TOTAL = "total_devices"
#: Column with the number of devices per host, if the device count is in a different column.
_PER_HOST = "devices_per_host"
#: Columns that count devices. Runs of older versions may lack some.
_COUNTS = ("devices", "hosts", _TOTAL, "platform.threads")
#: Suffix of the family name of runs that split the weights over the devices.
_MODEL_PARALLEL = ", model parallel"
#: Communication metrics of training over several processes, shown if the runs have them.
_EXCHANGE = ("communication_ms", "communication_share", "gradient_bytes")
#: (framework, platform) -> the transport of its gradients, as `model=channel` names it.
_TRANSPORTS = {
    ("tensorflow", "cpu"): "tensorflow",
    ("torch", "cpu"): "gloo",
    ("torch", "gpu"): "nccl",
    ("jax", "cpu"): "gloo",
}
_RATIO = ("speedup", "speedup_low", "speedup_high", "efficiency", "fraction", "interval_source")
#: Columns that the table always has, in this order.
_FIXED_COLUMNS = ["devices", "one", "many", *_RATIO]
#: Columns of the pairs that are not settings.
_NOT_SETTINGS = {"family", *RESULT_COLUMNS, *_FIXED_COLUMNS}
#: (family, number of devices) -> the comparison with one device.
_Contrasts = dict[tuple[str, int], Contrast]
_LINE_COLOR = "#555555"


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Options of the command `scaling`: the rate, the column of device counts, and weak scaling."""

    metric: Literal["examples_per_second", "flops_per_second"] = option(
        "examples_per_second", "rate to compare"
    )
    by: str = column_option(
        "devices",
        "the column that counts devices: devices, hosts, total_devices, platform.threads",
    )
    weak: bool = option(
        False,
        "compare points with the same batch per device (weak scaling), not per step",
    )


class FamilyScaling(NamedTuple):
    """Non-parallel fraction and efficiency of one family on several devices.

    Attributes:
        family: Name of the family.
        points: Number of points.
        counts: Device counts above one, in ascending order.
        fraction: The non-parallel fraction, fitted over all points and counts.
        efficiency: Median of speedup / n over the points with the largest count n.
    """

    family: str
    points: int
    counts: tuple[int, ...]
    fraction: Estimate
    efficiency: Estimate


class Scaling(NamedTuple):
    """Comparison of every point on several devices with the same point on one device.

    Attributes:
        pairs: A row for each point and count above one: the columns that identify the point,
            `devices` (the count), `one` and `many` (the metric on one device and on all devices
            together), `speedup` with its interval, `efficiency` (speedup / count) and `fraction`.
        families: The fit of each family that has pairs.
        unpaired: Families without a pair.
        confounding: Reason, by family, why an effect of the device count cannot be separated from
            effects of sessions or from drift.
        measured: The runs that record a device count.
        pooled: How the pooled runs differ, as text; empty if no heterogeneous runs were pooled.
        weak: Whether pairs have the same batch per device (weak scaling) instead of per step.
    """

    pairs: pd.DataFrame
    families: list[FamilyScaling]
    unpaired: list[str]
    confounding: dict[str, str]
    measured: pd.DataFrame
    pooled: str
    weak: bool = False


def _list_sections(rows: pd.DataFrame) -> Iterator[SectionSpec]:
    """Yield a report section each for scaling over hosts and over devices, if their counts vary.

    If neither count varies, there is one section: over threads if their count varies, else with
    the default options.
    """
    devices, hosts, threads = (
        name in rows and rows[name].nunique() > 1
        for name in ("devices", "hosts", "platform.threads")
    )
    if hosts:
        yield SectionSpec(ScalingOptions(by="hosts"))
    if devices or not hosts:
        is_over_threads = threads and not devices
        yield SectionSpec(ScalingOptions(by="platform.threads") if is_over_threads else None)


@analysis(
    ScalingOptions,
    summary="speed over device counts, with Amdahl's non-parallel fraction",
    example="python -m analysis scaling --family fc --figure scaling.png",
    section="system",
    order=90,
    title="Scaling over devices",
    reading="Speed against the same point on one device, with Amdahl's fraction.",
    list_sections=_list_sections,
)
def scaling(frame: pd.DataFrame, options: ScalingOptions) -> Result:
    """Compare each point on several devices with the same point on one device.

    The non-parallel fraction of each family is fitted to the speedups.

    Args:
        frame: Runs, one per row.
        options: The rate, the column that counts devices, and whether the scaling is weak.

    Returns:
        The result. Its table has the pairs of `fit_scaling` without the settings that are equal in
        all pairs.

    Raises:
        ConfigError: If the metric is not one of `METRICS`, or `by` is not a column of numbers.
        InsufficientData: If no point was measured both on one device and on several.
        SchemaError: If the runs of a family differ in their environment or timing protocol, and the
            option `pool` is not set.
    """
    found = fit_scaling(frame, options.metric, options.by, pool=options.pool, weak=options.weak)
    exchange = [name for name in _EXCHANGE if name in found.pairs]
    pairs = found.pairs
    if exchange:
        pairs = pairs.assign(all_reduce_ms=_all_reduce_ms(frame, pairs))
        exchange.append("all_reduce_ms")
    others = [
        name
        for name in found.pairs
        if name not in (*_NOT_SETTINGS, *_EXCHANGE) and found.pairs[name].nunique(dropna=False) > 1
    ]
    return Result(
        numbers=pairs[["family", *others, *_FIXED_COLUMNS, *exchange]],
        answer=_answer(found, options.by.rpartition(".")[2]),
        sentences=[*_sentences(found, options.by), *_exchange_sentences(pairs)],
        picture=lambda: draw_scaling(found, options),
        sources=tuple(dict.fromkeys(found.measured["run_id"])),
        pooled=found.pooled,
    )


def _answer(found: Scaling, unit: str) -> AnalysisAnswer:
    """State the efficiency on the most devices for the families that scale best and worst.

    Args:
        found: The comparison with one device, with at least one family.
        unit: Name of the counted units, such as "devices" or "threads".
    """
    points = sum(family.points for family in found.families)
    ordered = sorted(found.families, key=lambda family: family.efficiency.value)
    worst = ordered[0]
    best = ordered[-1]

    def describe(family: FamilyScaling) -> str:
        speed = format_with_interval(family.efficiency, format_share)
        count = f"{family.counts[-1]} {unit}"
        text = f"{family.family} runs on {count} at {speed} of linear speedup"
        if family.efficiency.low > 1:
            text += ", which is superlinear"
        return text

    if len(ordered) == 1:
        text = describe(best)
    else:
        text = (
            f"{describe(best)}, the best of {len(ordered)} families; {describe(worst)}, the worst"
        )
    return AnalysisAnswer(
        sentence=f"{text}.",
        points=points,
        basis="the scatter of processes and sessions, on these points",
    )


def _sentences(found: Scaling, by: str) -> Iterator[Paragraph | str]:
    what = by.rpartition(".")[2]
    for family in found.families:
        counts = ", ".join(map(str, family.counts))
        most = family.counts[-1]
        points = counted(family.points, "point")
        scope = f"{family.family}: over {points} on {counts} against 1 ({what}), "
        yield Paragraph(
            f"{scope}{_describe_fraction(family.fraction, what, weak=found.weak)}.",
            (
                f"On {most}: a median of {format_percent_interval(family.efficiency)} of linear "
                "speedup.",
                *_explain_superlinear(family, by),
            ),
        )
    if found.unpaired:
        yield (
            f"Not compared: {', '.join(found.unpaired)}. No point was measured both on 1 and on "
            f"more ({what})."
        )
    law = "Amdahl's law, speedup = 1 / (s + (1 - s) / n)"
    if found.weak:
        law = "Gustafson's law, speedup = n - s (n - 1) for equal batches per device"
    yield (
        f"The fraction is s in {law}, fitted over all points. The 95% intervals hold for these "
        "points and include the scatter of processes and sessions."
    )
    for reason in dict.fromkeys(found.confounding.values()):
        names = ", ".join(name for name, each in found.confounding.items() if each == reason)
        yield f"The interval of {names} depends on the prior of session effects: {reason}."


def _describe_fraction(fraction: Estimate, what: str, *, weak: bool) -> str:
    """State the non-parallel fraction, and the limit of the speedup that follows from it.

    Args:
        fraction: The fraction with its interval.
        what: Name of the counted units, such as "devices".
        weak: Whether the fraction is Gustafson's.
    """
    share = format_percent_interval(fraction)
    law = "Gustafson's" if weak else "Amdahl's"
    if fraction.value <= 0:
        return (
            f"the speedup is at least the number of {what}, so {law} fraction is not positive: "
            f"{share}"
        )
    if weak:
        return f"{share} of the step does not run in parallel, with equal batches per device"
    if fraction.value < 1:
        limit = f"{1 / fraction.value:.3g}x"
        return (
            f"{share} of the step does not run in parallel, so no number of {what} makes it more "
            f"than {limit} as fast"
        )
    return f"{share} of the step does not run in parallel: more {what} make it slower"


def _explain_superlinear(family: FamilyScaling, by: str) -> Iterator[str]:
    """Yield possible reasons for a speedup on n devices that exceeds n.

    Args:
        family: The fit of the family.
        by: The column that counts devices.
    """
    value = family.efficiency.value
    if not value > 1:
        return
    if not family.efficiency.low > 1:
        yield "The interval includes 100%, so neither a loss nor a gain is shown."
        return
    most = family.counts[-1]
    yield (
        f"Superlinear: either the work fits into the caches of {most} but not of 1, or "
        f"something slowed the baseline on 1. Measure the baseline again with {by}=1 "
        "replicate=1,2; if it is as slow as before, caches are the likely cause."
    )


def _exchange_sentences(pairs: pd.DataFrame) -> Iterator[Paragraph]:
    """Yield sentences that compare communication with an all-reduce of the same size.

    The communication is the part that computation does not hide, on the largest number of devices.

    Args:
        pairs: The pairs, with the communication metrics if runs have them.
    """
    if "communication_share" not in pairs:
        return
    for name in families(pairs):
        members = pairs[(pairs["family"] == name) & pairs["communication_share"].notna()]
        if members.empty:
            continue
        most = members[members["devices"] == members["devices"].max()]
        count = int(most["devices"].iloc[0])
        share = float(most["communication_share"].median())
        exchange = float(most["communication_ms"].median())
        sentence = (
            f"{name}, on {count}: {format_share(share)} of a step ({format_number(exchange)} ms) "
            "is communication that computation does not hide"
        )
        all_reduce = most["all_reduce_ms"].dropna()
        if all_reduce.empty:
            transfer = (
                "no model=channel run has the same transport and number of processes to compare "
                "with"
            )
        else:
            transfer = (
                "an all-reduce of the gradients alone takes "
                f"{format_number(float(all_reduce.median()))} ms (model=channel)"
            )
        yield Paragraph(f"{sentence}; {transfer}.")


def _all_reduce_ms(frame: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """Return the time (ms) of an all-reduce of each pair's gradients; NaN if it is unknown.

    The time comes from a fit of transfer time over message size to the `model=channel` runs with
    the same transport and number of processes.

    Args:
        frame: All runs.
        pairs: The pairs, with `gradient_bytes`.
    """
    missing = pd.Series(float("nan"), index=pairs.index)
    needed = {"model.transport", "model.pattern", "model.processes", "model.bytes", "transfer_us"}
    if not needed <= {*frame.columns}:
        return missing
    runs = frame[is_ok(frame) & (frame["model.pattern"] == "all_reduce")]
    if "device" in pairs:
        runs = runs[runs["device"].isin(pairs["device"])]
    hosts_of_runs = runs["hosts"] if "hosts" in runs else pd.Series(1, index=runs.index)
    keys = [runs["model.transport"], runs["model.processes"], hosts_of_runs]
    #: (transport, processes, hosts) -> the fit.
    fits: dict[tuple[Any, ...], TransferFit] = {}
    for key, part in runs.groupby(keys):
        if part["model.bytes"].nunique() >= MIN_SIZES:
            sizes = part["model.bytes"].astype("float64")
            times = part["transfer_us"].astype("float64")
            fits[key] = fit_transfers(sizes, times, assign_sessions(part))

    def all_reduce_ms(row: pd.Series) -> float:
        software = (row.get("framework.name", "tensorflow"), row.get("platform.name", "cpu"))
        transport = _TRANSPORTS.get(software, "")
        count = int(row["devices"])
        hosts = int(row.get("hosts", 1))
        processes = count * hosts * int(row.get(_PER_HOST, 1))
        # The device count may be the number of hosts. Processes on one machine have one host.
        candidates = [fits.get((transport, processes, each)) for each in (count, hosts, 1)]
        fit = next(filter(None, candidates), None)
        if fit is None or pd.isna(row["gradient_bytes"]):
            return float("nan")
        return float(predicted_times(fit.pieces, [row["gradient_bytes"]])[0]) / 1e3

    if pairs.empty:
        return missing
    return pairs.apply(all_reduce_ms, axis=1)


def amdahl_speedup(fraction: float, count: np.typing.ArrayLike) -> np.ndarray:
    """Return Amdahl's speedup 1 / (s + (1 - s) / n) (Amdahl, AFIPS 30, 1967).

    Args:
        fraction: The non-parallel fraction s.
        count: The number of devices n, of any shape.
    """
    n = np.asarray(count, dtype="float64")
    return np.asarray(1 / (fraction + (1 - fraction) / n), dtype="float64")


def amdahl_fraction(speedup: np.typing.ArrayLike, count: np.typing.ArrayLike) -> np.ndarray:
    """Return the non-parallel fraction s = (1 / speedup - 1 / n) / (1 - 1 / n).

    This is Amdahl's law solved for the fraction (Karp and Flatt, CACM 33, 1990). It is below 0 if
    the speedup exceeds n, and above 1 if n devices are slower than one.

    Args:
        speedup: Speedup over one device.
        count: The number of devices n, above 1.
    """
    n = np.asarray(count, dtype="float64")
    return np.asarray(
        (1 / np.asarray(speedup, dtype="float64") - 1 / n) / (1 - 1 / n), dtype="float64"
    )


def gustafson_speedup(fraction: float, count: np.typing.ArrayLike) -> np.ndarray:
    """Return Gustafson's scaled speedup n - s (n - 1) (Gustafson, CACM 31, 1988).

    Args:
        fraction: The fraction s of the time on n devices that does not grow with the work.
        count: The number of devices n, of any shape.
    """
    n = np.asarray(count, dtype="float64")
    return np.asarray(n - fraction * (n - 1), dtype="float64")


def gustafson_fraction(speedup: np.typing.ArrayLike, count: np.typing.ArrayLike) -> np.ndarray:
    """Return the fraction s = (n - speedup) / (n - 1) of Gustafson's law.

    Args:
        speedup: Speedup over one device with the same batch per device.
        count: The number of devices n, above 1.
    """
    n = np.asarray(count, dtype="float64")
    return np.asarray((n - np.asarray(speedup, dtype="float64")) / (n - 1), dtype="float64")


def fit_scaling(
    frame: pd.DataFrame,
    metric: str = "examples_per_second",
    by: str = "devices",
    *,
    pool: bool = False,
    weak: bool = False,
) -> Scaling:
    """Pair each point on n > 1 devices with the same point on one, and fit each family's fraction.

    Amdahl's law is 1 / speedup - 1 / n = s (1 - 1 / n), Gustafson's law n - speedup = s (n - 1).
    The non-parallel fraction s is fitted by least squares over all points and counts of a family.
    Its 95% interval holds for these points; it does not generalize to other points.

    Args:
        frame: Runs, one per row.
        metric: The rate to compare, one of `METRICS`.
        by: The column that counts devices.
        pool: Whether to pool runs of different environments or protocols.
        weak: Whether to pair points with the same batch per device (Gustafson) instead of the same
            batch per step (Amdahl).

    Raises:
        ConfigError: If the metric is not one of `METRICS`, or `by` is not a column of numbers.
        InsufficientData: If no point was measured both on one device and on several.
        SchemaError: If the runs of a family differ in their environment or timing protocol, and
            `pool` is false.
    """
    if metric not in METRICS:
        raise ConfigError(
            "--metric",
            metric,
            "is not a rate that grows with devices",
            f"choose {' or '.join(METRICS)}",
        )
    measured = _with_model_parallel_families(_runs_with_count(frame, by), by)
    if weak:
        # With model parallelism every device processes the whole batch.
        measured = measured[~measured["family"].str.endswith(_MODEL_PARALLEL, na=False)]
    checked = [
        require_homogeneous(rows, pool=pool) for _, rows in measured.groupby("family", dropna=False)
    ]
    if weak:
        measured = measured.assign(batch_size=measured["batch_size"] / measured[by])
    law = gustafson_fraction if weak else amdahl_fraction
    pairs, confounding, contrasts = _paired(measured, metric, by)
    pairs = pairs.rename(columns={"a": "many", "b": "one"}).assign(
        efficiency=lambda rows: rows["speedup"] / rows["devices"],
        fraction=lambda rows: law(rows["speedup"], rows["devices"]),
    )
    paired = families(pairs)
    return Scaling(
        pairs=pairs,
        families=[
            _fit_family(name, pairs[pairs["family"] == name], contrasts, weak=weak)
            for name in paired
        ],
        unpaired=[name for name in families(measured) if name not in paired],
        confounding=confounding,
        measured=measured,
        pooled=joined(rows.attrs.get("pooled", "") for rows in checked),
        weak=weak,
    )


def _runs_with_count(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the measured runs that record a device count, without runs that only send messages.

    Args:
        frame: Runs, one per row.
        by: The column that counts devices.

    Raises:
        ConfigError: If `by` is not a column of numbers.
        InsufficientData: If no measured run records the count.
    """
    measured = frame[is_ok(frame) & ~frame["family"].isin(message_families())]
    if by == _TOTAL and "devices" in measured:
        hosts = measured.get("hosts", 1)
        measured = measured.assign(**{_TOTAL: measured["devices"] * hosts})
        measured = measured.drop(columns=["devices", "hosts"], errors="ignore")
    if by not in measured and by not in _COUNTS:
        raise ConfigError(
            "--by",
            by,
            "these runs have no such column",
            f"name a column that counts devices: {', '.join(_COUNTS)}",
        )
    if by not in measured or measured[by].notna().sum() == 0:
        raise InsufficientData(
            f"{by}: no measured run records this count; measure the same points with "
            f"{_count_key(by)}=1 and with a larger count"
        )
    if not pd.api.types.is_numeric_dtype(measured[by]):
        remedy = f"name a column that counts devices: {', '.join(_COUNTS)}"
        raise ConfigError("--by", by, "is not a column of numbers", remedy)
    return measured[measured[by].notna()]


def _count_key(by: str) -> str:
    """Return the configuration key that sets a count of devices.

    Args:
        by: The column that counts devices.
    """
    return "devices" if by == _TOTAL else by


def _with_model_parallel_families(measured: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the runs with model parallel runs (parallel=model) in separate families.

    A run on one device is the baseline of both data parallel and model parallel runs. It is
    therefore copied to both families.

    Args:
        measured: Measured runs, one per row.
        by: The column that counts devices.
    """
    if "parallel" not in measured or by not in ("devices", _TOTAL):
        return measured
    is_model_parallel = measured["parallel"].eq("model").fillna(value=False)
    if not is_model_parallel.any():
        return measured
    model_parallel = measured[is_model_parallel]
    baselines = measured[measured[by].eq(1) & measured["family"].isin(model_parallel["family"])]
    moved = pd.concat([model_parallel, baselines.assign(parallel="model")])
    moved = moved.assign(family=moved["family"].astype("object") + _MODEL_PARALLEL)
    return pd.concat([measured[~is_model_parallel], moved], ignore_index=True)


def _paired(
    measured: pd.DataFrame, metric: str, by: str
) -> tuple[pd.DataFrame, dict[str, str], _Contrasts]:
    """Pair each point on several devices with the same point on one device.

    Args:
        measured: Measured runs that record a device count.
        metric: The rate to compare.
        by: The column that counts devices.

    Returns:
        Three values: the pairs, with the columns of `pairing.pair` and the count in `devices`;
            `Scaling.confounding`; and the comparison of each family and count with one device.

    Raises:
        InsufficientData: If no point was measured both on one device and on several.
    """
    counts = sorted({int(count) for count in measured[by]})
    one = measured[measured[by] == 1].drop(columns=by)
    if one.empty or counts == [1]:
        present = ",".join(map(str, counts))
        raise InsufficientData(
            f"all runs have {by}={present}, but scaling compares {by}=1 with larger counts; "
            "measure the same points with both, such as "
            f"python -m paradnn.train -m model=fc {_count_key(by)}=1,2"
        )
    parts: list[pd.DataFrame] = []
    confounding: dict[str, str] = {}
    contrasts: _Contrasts = {}
    for _, many in measured[(measured[by] > 1) & (measured[by] % 1 == 0)].groupby(by, sort=True):
        part = pair(many.drop(columns=by), one, metric)
        exchange = _exchange_metrics(many, part)
        part = part.rename(columns={"devices": _PER_HOST})
        part = part.assign(devices=int(many[by].iloc[0]), **exchange)
        parts.append(part)
        for name in families(part):
            contrast = Contrast.of(part, name)
            contrasts[name, int(many[by].iloc[0])] = contrast
            for limit in describe_confounding(contrast):
                confounding.setdefault(name, limit.rstrip("."))
    pairs = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if pairs.empty:
        raise InsufficientData(
            f"no point was measured both with {by}=1 and with a larger count; measure the same "
            f"points with both, such as python -m paradnn.train -m model=fc {_count_key(by)}=1,2"
        )
    return pairs, confounding, contrasts


def _exchange_metrics(many: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the median of each communication metric over the runs of each pair.

    Args:
        many: The runs on several devices.
        pairs: Pairs of points, as `pair` returns them.

    Returns:
        Medians by metric, with the index of `pairs`. Metrics that no run has are omitted.
    """
    present = [name for name in _EXCHANGE if name in many and many[name].notna().any()]
    keys = [name for name in pairs if name in many and name not in RESULT_COLUMNS]
    if not present or pairs.empty:
        return {}
    medians = many.groupby(keys, dropna=False)[present].median().reset_index()
    merged = pairs[keys].merge(medians, on=keys, how="left")
    return {name: merged[name].set_axis(pairs.index) for name in present}


def _fit_family(
    name: str, pairs: pd.DataFrame, contrasts: _Contrasts, *, weak: bool
) -> FamilyScaling:
    """Fit the non-parallel fraction of a family, and compute its efficiency on the most devices.

    The interval holds for these points. It includes the scatter of processes and the effects of
    sessions. The session of a device count affects the speedups on that count only; the session of
    the baseline affects all speedups.

    Args:
        name: Name of the family.
        pairs: Points of the family, each on one device and on several.
        contrasts: The comparison of each family and count with one device.
        weak: Whether the fraction follows Gustafson's law instead of Amdahl's.
    """
    others = (*RESULT_COLUMNS, *_FIXED_COLUMNS, *_EXCHANGE)
    keys = [column for column in pairs if column not in others]
    point = pairs.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    count = pairs["devices"].to_numpy(dtype="float64")
    speedup = pairs["speedup"].to_numpy(dtype="float64")
    # The least squares estimate is the weighted mean of the fractions of all pairs. The second
    # array is the derivative of a weighted fraction with respect to the logarithmic speedup.
    if weak:
        weights = (count - 1) ** 2
        derivative = -speedup * (count - 1)
    else:
        weights = (1 - 1 / count) ** 2
        derivative = -(1 - 1 / count) / speedup
    fraction = float((pairs["fraction"] * weights).sum() / weights.sum())
    counts = sorted({int(n) for n in pairs["devices"]})
    slopes = derivative / weights.sum()
    # Half of the variance of a contrast belongs to the device count, half to the baseline. Errors
    # of the counts are independent; the error of the baseline is common to all counts.
    independent_variance = 0.0
    baseline_error = 0.0
    freedom = math.inf
    for number in counts:
        slope = float(slopes[count == number].sum())
        error = contrasts[name, number].error
        independent_variance += slope**2 * float(error.variance) / 2
        baseline_error += slope * math.sqrt(float(error.variance) / 2)
        freedom = min(freedom, float(error.freedom))
    half = float(Component(independent_variance + baseline_error**2, freedom).half_width)
    most = contrasts[name, counts[-1]].quantile()
    return FamilyScaling(
        family=name,
        points=int(point.max()) + 1,
        counts=tuple(counts),
        fraction=Estimate(fraction, fraction - half, fraction + half),
        efficiency=Estimate(*(end / counts[-1] for end in most)),
    )


def draw_scaling(found: Scaling, options: ScalingOptions) -> drawing.Figure:
    """Draw the rate per device, and the speedup over the number of devices.

    The left panel shows the rate per device on n devices over the rate on one device. The right
    panel shows the speedups, and the fitted law of each family with its interval as a band. Dashed
    lines show perfect scaling.

    Args:
        found: The comparison with one device.
        options: The options of the command, for labels.
    """
    drawn, (left, right) = drawing.panels(2, 5.5, 4.4, across=3)
    by = options.by.rpartition(".")[2]
    pairs = found.pairs
    rate_per_device = pairs["many"] / pairs["devices"]
    counts = np.geomspace(1, int(pairs["devices"].max()), 100)
    names = [family.family for family in found.families]
    # The default color of a family is also that of its model parallel points.
    distinct_names = names if any(name.endswith(_MODEL_PARALLEL) for name in names) else []
    for number, family in enumerate(found.families):
        style = drawing.look(family.family, distinct_names)
        is_member = pairs["family"] == family.family
        middle, *ends = (f"{100 * end:.1f}%" for end in family.fraction)
        if math.isfinite(family.fraction.low):
            fraction = f"{middle} ({' to '.join(ends)})"
        else:
            fraction = middle
        name = f"{family.family}: non-parallel {fraction}"
        drawing.marks(
            left,
            pairs["one"][is_member],
            rate_per_device[is_member],
            alpha=0.6,
            label=name,
            **style,
        )
        # Shift the families so that their marks do not overlap at a count.
        shift = 2 ** (0.08 * (number - (len(found.families) - 1) / 2))
        drawing.marks(
            right,
            pairs["devices"][is_member] * shift,
            pairs["speedup"][is_member],
            alpha=0.5,
            **style,
        )
        speedup_law = gustafson_speedup if found.weak else amdahl_speedup
        law, low, high = (speedup_law(end, counts) for end in family.fraction)
        right.plot(counts, law, color=style["color"], linewidth=1.8)
        # Omit the band if the law is infinite or negative at some count.
        if np.isfinite(low).all() and (low > 0).all():
            right.fill_between(counts, low, high, color=style["color"], alpha=0.2, linewidth=0)
    span = [
        min(pairs["one"].min(), rate_per_device.min()),
        max(pairs["one"].max(), rate_per_device.max()),
    ]
    left.plot(span, span, "--", color=_LINE_COLOR, linewidth=1, label="perfect scaling")
    name = label(options.metric)
    unit = column_unit(options.metric)
    x = f"{name} on one ({unit})"
    y = f"{name} of each of n ({unit})"
    drawing.finish(
        left, f"Each of n {by} against one alone", x, y, logs=dict.fromkeys("xy", format_number)
    )
    right.plot(counts, counts, "--", color=_LINE_COLOR, linewidth=1)
    right.axhline(1, color=_LINE_COLOR, linewidth=0.8)
    ticks = sorted({1, *(int(count) for count in pairs["devices"])})
    right.set_xscale("log", base=2)
    right.set_yscale("log", base=2)
    right.set_xticks(ticks, [str(count) for count in ticks])
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    law_name = "Gustafson's" if found.weak else "Amdahl's"
    drawing.finish(right, f"Speedup, and {law_name} law fitted", by, "speedup over one")
    drawing.legend(drawn)
    return drawn
