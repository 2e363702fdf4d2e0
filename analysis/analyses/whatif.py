"""`whatif`: predict the speedup of every measured point on faster hardware.

The time of an operation is modeled as the smooth maximum of its arithmetic time, its memory time
and an overhead (`paradnn.forecast.upgrades`). The model is fitted to the measured times, per device
and kind of work. Operations come from a profile if the run has one, else from the layers of the
model.

An upgrade multiplies the arithmetic rate by --peak, the memory bandwidth by --bandwidth, and the
overhead by --overhead. Alternatively, --from and --to name two devices, and the ratios of their
ceilings (peak arithmetic rate and memory bandwidth) are the factors. With two upgrades (--to
twice), their speedups are compared per point. Intervals cover the uncertainty of the fit, the
residual of every measured time, and the differences between specified and measured gains in pairs
of real devices. Time spent waiting for input or for other devices does not change.

The model does not include overlap between operations, caches, or clocks that depend on the load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from analysis.atlas.changes import HardwareChange, read_change
from analysis.ceilings import with_best_ceilings
from analysis.columns import (
    MEMORY_OUTCOMES,
    as_sizes,
    families_of_examples,
    hyperparameters,
    join_columns,
)
from analysis.format import format_number, format_with_interval
from analysis.labels import label
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.point_names import with_point_names
from analysis.point_work import (
    LIMITS,
    FittedGroup,
    FittedWork,
    PointWork,
    fit_work,
    limits_of_points,
    measured_work,
)
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, pooled_within, require_runs
from analysis.roofs import Roof, find_roofs
from analysis.store.frame import aggregate_replicates, families, is_ok
from analysis.store.lazy_step_inputs import step_inputs
from analysis.upgrade_choice import Alternative, UpgradeChoice, interval, mark_points
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted
from paradnn.platform.specifications import find_hardware

if TYPE_CHECKING:
    from paradnn.forecast.upgrades import Upgrade

#: Maximum number of upgrades per command; two are compared.
_MAX_UPGRADES = 2
#: Columns with the share of each limit in the time of a step after the upgrade.
_AFTER_COLUMNS = tuple(f"{name}_after" for name in LIMITS)
#: Factors on either axis of the heat map (1 to 8), and the speedups of its iso-lines.
_GRID = tuple(2.0 ** (exponent / 4) for exponent in range(13))
_ISO_LINES = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Minimum share of the points that a threshold must classify correctly to be reported.
_MIN_CLASSIFIED_SHARE = 0.9
#: Minimum number of points on either side of a threshold.
_MIN_THRESHOLD_POINTS = 5
#: Maximum number of groups (a family on a device) that are described in sentences.
_MAX_DESCRIBED_GROUPS = 6


@dataclass(frozen=True, kw_only=True)
class WhatifOptions(Options):
    """Options of the command `whatif`: the upgraded hardware, as factors or as another device."""

    peak: float = option(1.0, "factor on the arithmetic rate", metavar="X", above=0)
    bandwidth: float = option(1.0, "factor on the memory bandwidth", metavar="X", above=0)
    overhead: float = option(
        1.0, "factor on the overhead of an operation, such as 0.5 for half", metavar="X", above=0
    )
    memory: float = option(
        1.0,
        "factor on the memory size, to predict which points that ran out of memory would fit",
        metavar="X",
        above=0,
    )
    to: tuple[str, ...] = option(
        (),
        "a device whose peak rates replace the factors, such as A100, or factors such as "
        "bandwidth=2,overhead=0.5; repeat it to compare two upgrades",
        metavar="UPGRADE",
        several="repeat",
    )
    from_: str | None = option(
        None, "with --to: the device whose points are predicted", metavar="DEVICE"
    )

    def __post_init__(self) -> None:
        if isinstance(self.to, str):  # Python callers may pass a single upgrade
            object.__setattr__(self, "to", (self.to,))
        super().__post_init__()


class _Scenario(NamedTuple):
    """An upgrade of the hardware, as the options of the command describe it.

    Attributes:
        change: Factors on the arithmetic rate, bandwidth, overhead and memory. If `device` is not
            empty, the ratios of the ceilings of the devices replace the factors on arithmetic rate
            and bandwidth.
        device: Name of the upgraded device, which replaces the present one; empty if the upgrade
            consists of factors only.
    """

    change: HardwareChange
    device: str = ""

    @property
    def subject(self) -> str:
        """The upgrade as the subject of a sentence, such as "2x the memory bandwidth"."""
        if self.device:
            return f"Moving to {self.device}"
        names = {"peak": "the arithmetic rate", "bandwidth": "the memory bandwidth"}
        names |= {"overhead": "the overhead of an operation", "memory": "the memory"}
        texts = [
            f"{getattr(self.change, name):g}x {words}"
            for name, words in names.items()
            if getattr(self.change, name) != 1
        ]
        return " and ".join(texts)

    @property
    def name(self) -> str:
        """The name of the upgraded device, or else the factors, such as "2x bandwidth"."""
        return self.device or self.change.label


class _Change(NamedTuple):
    """An upgrade of one device at one precision.

    Attributes:
        roof: The ceilings (peak arithmetic rate and memory bandwidth) before the upgrade.
        peak: Arithmetic rate after the upgrade / before it.
        bandwidth: Memory bandwidth after the upgrade / before it.
        overhead: Overhead of an operation after the upgrade / before it.
        device: Name of the upgraded device, which replaces the present one; empty if the user gave
            factors.
        source: Source of the ratios between the two devices: "measured ceilings" or
            "specifications"; empty if the user gave factors.
    """

    roof: Roof
    peak: float
    bandwidth: float
    overhead: float
    device: str = ""
    source: str = ""

    @property
    def ratios(self) -> np.ndarray:
        """Natural logarithms (3,) of the improvements of arithmetic rate, bandwidth and overhead.

        The improvement of the overhead is 1 / `overhead`, so more is better for all three.
        """
        return np.log([self.peak, self.bandwidth, 1 / self.overhead])

    def upgrade(self) -> Upgrade:
        """Return the gains of this upgrade with their uncertainty.

        The uncertainty is estimated from pairs of real devices, without the pairs that include the
        upgraded device.
        """
        from paradnn.forecast.generations import (
            built_pairs,
            changed_hardware,
            pairs_without,
            upgrade_between,
        )

        if not self.device:
            return changed_hardware(
                peak=self.peak,
                bandwidth=self.bandwidth,
                overhead=self.overhead,
                pairs=built_pairs(),
            )
        return upgrade_between(self.ratios, pairs_without(self.device, built_pairs()))

    def upgrade_next_to(self, first: _Change) -> Upgrade:
        """Return the gains of this upgrade with their uncertainty, to compare two upgrades.

        The uncertainty is correlated with that of the gains of the first upgrade.

        Args:
            first: The first upgrade of the comparison.
        """
        from paradnn.forecast.generations import built_pairs, compared_with, pairs_without

        pairs = built_pairs()
        for device in filter(None, (self.device, first.device)):
            pairs = tuple(pairs_without(device, pairs))
        return compared_with(first.upgrade(), self.upgrade(), self.ratios - first.ratios, pairs)


class _Prediction(NamedTuple):
    """Predicted effect of an upgrade on points.

    Attributes:
        points: The points, one of p rows each.
        log_speedups: Draws (p, draws) of the natural logarithm of the speedup of each point.
        before: Share of each limit in the time of a point before the upgrade (p rows, columns
            `LIMITS`).
        after: Share of each limit in the time of a point after the upgrade, in the same layout.
        groups: The models of operation times, each fitted to one group of times.
        work: All measured times.
        changes: Upgrades by device and precision.
        unexplained: Number of points of each group, such as a family on a device, that were omitted
            because the model does not explain their times.
    """

    points: pd.DataFrame
    log_speedups: np.ndarray
    before: pd.DataFrame
    after: pd.DataFrame
    groups: Sequence[FittedGroup]
    work: PointWork
    changes: dict[tuple[str, str], _Change]
    unexplained: Mapping[str, int]


def _list_sections(rows: pd.DataFrame) -> Iterator[SectionSpec]:
    yield SectionSpec(
        WhatifOptions(bandwidth=2.0),
        title="Predicted speedup with twice the memory bandwidth",
        families=tuple(families_of_examples(rows)),
    )


@analysis(
    WhatifOptions,
    summary="predicted speedups on faster hardware, and the limit after the upgrade",
    example="python -m analysis whatif --bandwidth 2 --family fc --figure whatif.png",
    section="system",
    order=65,
    title="Predicted speedup with an upgrade",
    reading="Predicted speedup of each point over its parameters, colored by what limits it after "
    "the upgrade.",
    list_sections=_list_sections,
)
def whatif(frame: pd.DataFrame, options: WhatifOptions) -> Result:
    """Predict the speedup of measured points under an upgrade of the hardware.

    A point is a combination of hyperparameter values.

    Args:
        frame: Runs, one per row.
        options: The factors on arithmetic rate, bandwidth, overhead and memory, or the devices
            before and after the upgrade.

    Returns:
        The result. Its table has a row per point, the largest speedup first:

        - `point`, `family`, `device`, `step_time_ms`, `parameters`, `run_id`.
        - `speedup`, with its 95% interval `speedup_low` to `speedup_high`.
        - `limit`, `limit_after`: the main limit of the step time before and after the upgrade.
        - `compute`, `memory`, `overhead`, `input`, `communication`, `other`: the share of each
          limit in the step time before the upgrade; with the suffix `_after`, the share after it.
        - With --to: `measured_speedup`, if the point was also measured on the device after the
          upgrade, and `inside` (whether the interval contains it).

        With --memory, rows for the points that ran out of memory follow. Their column `fits` is
        yes, no, open (undecided), or unknown.

        With two upgrades, a row has the `ratio` of the first speedup to the second with its 95%
        interval, and both speedups. It also has the `better` upgrade and the `probability` that the
        first upgrade is better.

    Raises:
        ConfigError: If the options state no upgrade, more than two upgrades, or contradict each
            other, or if a device is unknown.
        InsufficientData: If no point has a time and known work.
        HeterogeneousError: If the runs of a device differ in their environment or timing protocol,
            and the option `pool` is not set.
    """
    require_runs(frame)
    scenarios = _scenarios(options)
    runs = frame
    if options.from_ is not None:
        device = _device_of(options.from_, frame, "--from")
        runs = frame[frame["device"].eq(device)]
    pooled = pooled_within(runs, ["device"], pool=options.pool)
    points = with_best_ceilings(aggregate_replicates(runs), options.store)
    others = [_other_device(frame, scenario, options.store) for scenario in scenarios]
    for other in others:
        points = points[~points["device"].isin(other["device"].unique())]
    predictions = _predict(points, others, scenarios, options.store)
    if len(scenarios) > 1:
        return _comparison_result(predictions, others, scenarios, pooled)
    return _upgrade_result(predictions[0], others[0], scenarios[0], points, pooled)


def _upgrade_result(
    prediction: _Prediction,
    others: pd.DataFrame,
    scenario: _Scenario,
    points: pd.DataFrame,
    pooled: str,
) -> Result:
    """Return the result for one upgrade.

    Args:
        prediction: The predicted speedups.
        others: Points that were measured on the upgraded device; may be empty.
        scenario: The upgrade.
        points: All points of the device before the upgrade, including those that failed.
        pooled: How pooled runs differ, as text; empty if no heterogeneous runs were pooled.
    """
    table = _table(prediction)
    if scenario.device:
        table = _with_measured(table, prediction, others)
    exhausted = pd.DataFrame()
    if scenario.change.memory != 1:
        exhausted = _memory_rows(points, scenario.change.memory)
        table = pd.concat([table, exhausted], ignore_index=True)
    by_family = _by_family(prediction)
    return Result(
        numbers=table,
        answer=_answer(prediction, by_family, scenario),
        sentences=[*_sentences(prediction, by_family, table, exhausted, scenario)],
        picture=lambda: _draw(table, prediction, scenario),
        sources=tuple(prediction.points["run_id"]),
        pooled=pooled,
    )


def _comparison_result(
    predictions: Sequence[_Prediction],
    others: Sequence[pd.DataFrame],
    scenarios: Sequence[_Scenario],
    pooled: str,
) -> Result:
    """Return the result for a comparison of two upgrades.

    Args:
        predictions: The predicted speedups of each upgrade.
        others: For each upgrade, the points that were measured on the upgraded device; may be
            empty.
        scenarios: The two upgrades.
        pooled: How pooled runs differ, as text; empty if no heterogeneous runs were pooled.
    """
    first, second = (
        Alternative(
            scenario.name,
            prediction.log_speedups,
            _measured_speedups(prediction, other).to_numpy(dtype="float64"),
        )
        for scenario, prediction, other in zip(scenarios, predictions, others, strict=True)
    )
    points = predictions[0].points
    choice = UpgradeChoice(points, first, second)
    sentences = [*choice.sentences()]
    for scenario, prediction in zip(scenarios, predictions, strict=True):
        if scenario.device:
            sentences += _describe_ratios(prediction, scenario)
    sentences += _describe_sources(predictions[0])
    return Result(
        numbers=choice.table(),
        answer=choice.answer(),
        sentences=sentences,
        picture=choice.draw,
        sources=tuple(points["run_id"]),
        pooled=pooled,
    )


def _scenarios(options: WhatifOptions) -> list[_Scenario]:
    """Return the upgrades, one or two, that the options of the command describe.

    Args:
        options: The options of the command.

    Raises:
        ConfigError: If the options describe no upgrade or more than two, or contradict each other.
    """
    factors = HardwareChange(
        bandwidth=options.bandwidth,
        peak=options.peak,
        overhead=options.overhead,
        memory=options.memory,
    )
    if not options.to:
        if options.from_ is not None:
            remedy = "name the device after the upgrade with --to, or select points with --device"
            raise ConfigError("--from", options.from_, "has no effect without --to", remedy)
        if not factors.label:
            remedy = "give a factor, such as --bandwidth 2, or a device, such as --to H200"
            raise ConfigError("--bandwidth", 1, "changes nothing", remedy)
        return [_Scenario(factors)]
    given = [f"--{name}" for name in ("peak", "bandwidth") if getattr(options, name) != 1]
    if given:
        problem = f"cannot be combined with {' and '.join(given)}"
        raise ConfigError("--to", options.to[0], problem, f"omit --to or {' and '.join(given)}")
    if len(options.to) > _MAX_UPGRADES:
        problem = "is a third upgrade, but only two can be compared"
        raise ConfigError("--to", options.to[2], problem, "give --to once or twice")
    scenarios = [_read_scenario(text, factors) for text in options.to]
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) < len(names):
        raise ConfigError("--to", options.to[1], "is given twice", "name two different upgrades")
    memories = [scenario.change.memory for scenario in scenarios if scenario.change.memory != 1]
    if memories and len(scenarios) > 1:
        problem = "does not change the speed, and two upgrades are compared by speed"
        raise ConfigError("--memory", f"{memories[0]:g}", problem, "give --to once")
    return scenarios


def _read_scenario(text: str, factors: HardwareChange) -> _Scenario:
    """Return the upgrade that a value of --to describes.

    Args:
        text: The value: the name of a device, or factors such as "bandwidth=2,overhead=0.5".
        factors: Factors from further options, such as --overhead. They can be combined with a
            device, but not with factors in `text`.

    Raises:
        ConfigError: If a factor in `text` is unknown, not positive or given twice, or if both
            `text` and further options contain factors.
    """
    if "=" not in text:
        return _Scenario(factors, text)
    if factors.label:
        values = asdict(factors).items()
        words = [f"{name}={value:g}" for name, value in values if value != 1]
        remedy = f"write --to {','.join([text, *words])}"
        problem = f"cannot be combined with {factors.label} from other options"
        raise ConfigError("--to", text, problem, remedy)
    change = read_change(text, "--to")
    if not change.label:
        raise ConfigError("--to", text, "changes nothing", "for example, write --to bandwidth=2")
    return _Scenario(change)


def _device_of(name: str, frame: pd.DataFrame, flag: str) -> str:
    """Return the device with this name, or the only device whose name contains it.

    Args:
        name: Name of a device, or a part of it.
        frame: The runs, with a column `device`.
        flag: Option that an error message names.

    Raises:
        ConfigError: If no device or several devices match.
    """
    devices = [str(device) for device in frame["device"].dropna().unique()]
    if name in devices:
        return name
    matches = [device for device in devices if name.lower() in device.lower()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        problem = f"matches {' and '.join(matches)}"
    else:
        problem = "has no runs in the selection"
    raise ConfigError(flag, name, problem, f"name one of {', '.join(sorted(devices))}")


def _other_device(frame: pd.DataFrame, scenario: _Scenario, store: Sequence[str]) -> pd.DataFrame:
    """Return the points that were measured on the upgraded device.

    The result is empty if the upgrade consists of factors, or if no device or several devices in
    `frame` match its name.

    Args:
        frame: All runs.
        scenario: The upgrade.
        store: Addresses of the stores of the runs; empty for the default store.
    """
    if not scenario.device:
        return frame[:0]
    try:
        device = _device_of(scenario.device, frame, "--to")
    except ConfigError:
        return frame[:0]
    runs = with_best_ceilings(aggregate_replicates(frame), store)
    return runs[runs["device"].eq(device)]


def _predict(
    points: pd.DataFrame,
    others: Sequence[pd.DataFrame],
    scenarios: Sequence[_Scenario],
    store: Sequence[str],
) -> list[_Prediction]:
    """Fit the times of the points and predict the speedups of the points under each upgrade.

    Args:
        points: The points to predict.
        others: For each upgrade, the points that were measured on the upgraded device; may be
            empty.
        scenarios: The upgrades.
        store: Addresses of the stores from which profiles are read; empty for the default store.

    Raises:
        InsufficientData: If no point has a time and known work.
        ConfigError: If the peak arithmetic rate or memory bandwidth of a device is unknown.
    """
    every = measured_work(points, store)
    changes = [
        _changes(every.points, other, scenario)
        for other, scenario in zip(others, scenarios, strict=True)
    ]
    fitted = fit_work(every, [change.roof for change in changes[0].values()])
    first = changes[0]
    upgrades = [{key: change.upgrade() for key, change in first.items()}]
    upgrades += [
        {key: change.upgrade_next_to(first[key]) for key, change in second.items()}
        for second in changes[1:]
    ]
    before = limits_of_points(fitted.measured, fitted.groups)
    return [
        _prediction(fitted, upgrade, before, change)
        for upgrade, change in zip(upgrades, changes, strict=True)
    ]


def _prediction(
    fitted: FittedWork,
    upgrades: Mapping[tuple[str, str], Upgrade],
    before: pd.DataFrame,
    changes: dict[tuple[str, str], _Change],
) -> _Prediction:
    """Predict the speedups of points from the model of their times.

    Args:
        fitted: The measured times and the models that were fitted to them.
        upgrades: Gains of the upgrade with their uncertainty, by device and precision.
        before: Share of each limit in the time of a point before the upgrade.
        changes: Upgrades by device and precision.
    """
    from paradnn.forecast.upgrades import DRAWS, predict_speedups

    measured, groups, unexplained = fitted
    count = len(measured.points)
    seconds = np.zeros((count, DRAWS))
    after = np.zeros((count, len(LIMITS)))
    for seed, group in enumerate(groups):
        upgrade = upgrades[group.device, group.precision]
        found = predict_speedups(group.work, group.fit, upgrade, seed=seed)
        new_seconds = group.work.seconds[:, None] * np.exp(-found.log_speedups)
        np.add.at(seconds, group.points, new_seconds)
        np.add.at(after[:, :3], group.points, (found.after * new_seconds.mean(axis=1)).T)
    fixed = measured.fixed.to_numpy()
    after[:, 3:] = fixed
    unchanged = fixed.sum(axis=1)
    old = np.bincount(measured.point, measured.work.seconds, count) + unchanged
    return _Prediction(
        points=measured.points,
        log_speedups=np.log(old)[:, None] - np.log(seconds + unchanged[:, None]),
        before=before,
        after=pd.DataFrame(after / after.sum(axis=1, keepdims=True), columns=list(LIMITS)),
        groups=groups,
        work=measured,
        changes=changes,
        unexplained=unexplained,
    )


def _changes(
    points: pd.DataFrame, others: pd.DataFrame, scenario: _Scenario
) -> dict[tuple[str, str], _Change]:
    """Return an upgrade as the change of each device at each precision.

    Args:
        points: Points of the devices before the upgrade.
        others: Points that were measured on the upgraded device; may be empty.
        scenario: The upgrade, as the options describe it.

    Returns:
        A mapping from (device, precision) to the change.

    Raises:
        ConfigError: If the upgrade names a device, and the ceilings of this device or of a device
            before the upgrade are unknown.
    """
    changes = {}
    for roof in find_roofs(points, find_hardware):
        if scenario.device:
            change = _change_to(roof, others, scenario)
        else:
            change = _Change(
                roof=roof,
                peak=scenario.change.peak,
                bandwidth=scenario.change.bandwidth,
                overhead=scenario.change.overhead,
            )
        changes[roof.device, roof.precision] = change
    return changes


def _change_to(roof: Roof, others: pd.DataFrame, scenario: _Scenario) -> _Change:
    """Return the change from one device to another, as ratios of their ceilings.

    The ratios use measured ceilings if both devices have them at the same precision, else specified
    ceilings. Unless --overhead is given, the overhead of an operation is assumed to be inversely
    proportional to the clock.

    Args:
        roof: Ceilings (peak arithmetic rate and memory bandwidth) of the device before the upgrade.
        others: Points that were measured on the upgraded device; may be empty.
        scenario: The upgrade, which names the upgraded device.

    Raises:
        ConfigError: If the ceilings of either device are unknown.
    """
    name = scenario.device
    device = str(others["device"].iloc[0]) if len(others) else name
    old = find_hardware(roof.device)
    new = find_hardware(device) or find_hardware(f"NVIDIA {device}")
    overhead = scenario.change.overhead
    if overhead == 1 and old is not None and new is not None and old.clock and new.clock:
        overhead = old.clock / new.clock
    for other in find_roofs(others, find_hardware) if len(others) else ():
        is_same = other.source == roof.source == "measured" and other.precision == roof.precision
        if is_same and roof.peak and other.peak and roof.bandwidth and other.bandwidth:
            return _Change(
                roof=roof,
                peak=other.peak / roof.peak,
                bandwidth=other.bandwidth / roof.bandwidth,
                overhead=overhead,
                device=device,
                source="measured ceilings",
            )
    if new is None:
        problem = "has neither specifications nor measured ceilings"
        remedy = (
            "measure its ceilings (python -m paradnn.ceilings), or replace --to with "
            "factors, such as --bandwidth 2"
        )
        raise ConfigError("--to", name, problem, remedy)
    if old is None:
        problem = f"cannot be compared with {roof.device}, which has no specifications"
        raise ConfigError("--to", name, problem, "replace it with factors, such as --bandwidth 2")
    old_peak, new_peak = _common_peaks(old.peak_flops, new.peak_flops, roof.precision)
    if not (old_peak and new_peak and old.bandwidth and new.bandwidth):
        problem = (
            f"cannot be compared with {roof.device}, because the peak rates in {roof.precision} are "
            "not specified for both devices"
        )
        raise ConfigError("--to", name, problem, "replace it with factors, such as --bandwidth 2")
    return _Change(
        roof=replace(roof, peak=roof.peak or old_peak, bandwidth=roof.bandwidth or old.bandwidth),
        peak=new_peak / old_peak,
        bandwidth=new.bandwidth / old.bandwidth,
        overhead=overhead,
        device=device,
        source="specifications",
    )


def _common_peaks(old: Any, new: Any, precision: str) -> tuple[float, float]:
    """Return the peak arithmetic rates of two devices at a precision, in FLOP/s; 0 if unknown.

    For a 16-bit precision at which a device has no peak, its largest peak at either 16-bit
    precision is used.

    Args:
        old: Peaks of the device before the upgrade, by precision.
        new: Peaks of the upgraded device, by precision.
        precision: The precision, such as "bfloat16".
    """
    names = ("float16", "bfloat16")
    old_peak = old.get(precision, 0.0)
    new_peak = new.get(precision, 0.0)
    if precision in names:
        old_peak = old_peak or max(old.get(name, 0.0) for name in names)
        new_peak = new_peak or max(new.get(name, 0.0) for name in names)
    return float(old_peak), float(new_peak)


def _table(prediction: _Prediction) -> pd.DataFrame:
    """Return a row per point with the predicted speedup, the largest speedup first.

    Args:
        prediction: The predicted speedups.
    """
    points = prediction.points
    middle, low, high = interval(prediction.log_speedups)
    table = pd.DataFrame(
        {
            "family": points["family"],
            "device": points["device"],
            "speedup": middle,
            "speedup_low": low,
            "speedup_high": high,
            "limit": prediction.before.idxmax(axis=1),
            "limit_after": prediction.after.idxmax(axis=1),
            "step_time_ms": points["step_time_ms"],
            "parameters": points.get("parameters", pd.Series(np.nan, index=points.index)),
        }
    )
    table = pd.concat(
        [table, prediction.before, prediction.after.set_axis(list(_AFTER_COLUMNS), axis=1)],
        axis=1,
    ).assign(run_id=points["run_id"])
    table = with_point_names(table, points)
    return table.sort_values("speedup", ascending=False, kind="stable", ignore_index=True)


def _with_measured(
    table: pd.DataFrame, prediction: _Prediction, others: pd.DataFrame
) -> pd.DataFrame:
    """Return the table of points with the additional columns `measured_speedup` and `inside`.

    Both columns are missing for a point that was not measured on the upgraded device.
    `inside` states whether the predicted interval contains the measured speedup.

    Args:
        table: The table that `_table` returns.
        prediction: The prediction, with the points in their original order.
        others: Points that were measured on the upgraded device; may be empty.
    """
    measured = _measured_speedups(prediction, others)
    by_run = dict(zip(prediction.points["run_id"], measured, strict=True))
    speedup = table["run_id"].map(by_run)
    inside = speedup.between(table["speedup_low"], table["speedup_high"])
    table = table.assign(measured_speedup=speedup, inside=inside.where(speedup.notna()))
    leading = ["point", "family", "device", "speedup", "speedup_low", "speedup_high"]
    leading += ["measured_speedup", "inside"]
    return table[[*leading, *(name for name in table if name not in leading)]]


def _measured_speedups(prediction: _Prediction, others: pd.DataFrame) -> pd.Series:
    """Return the measured speedup of each point, from one device to the other.

    The speedup is the step time on the device before the upgrade divided by the median step time on
    the upgraded device. It is NaN for points that were not measured on both devices.

    Args:
        prediction: The prediction, with the points on the device before the upgrade.
        others: Points that were measured on the upgraded device; may be empty.
    """
    ok = others[is_ok(others)] if len(others) else others
    if not len(ok) or "step_time_ms" not in ok:
        return pd.Series(np.nan, index=prediction.points.index)
    keys, _ = join_columns(ok, prediction.points)
    new_times = ok.groupby(keys, dropna=False)["step_time_ms"].median().rename("new_step_time_ms")
    joined = prediction.points[[*keys, "step_time_ms"]].merge(
        new_times.reset_index(), on=keys, how="left"
    )
    return joined["step_time_ms"] / joined["new_step_time_ms"]


def _memory_rows(points: pd.DataFrame, factor: float) -> pd.DataFrame:
    """Return the points that ran out of memory, and whether each would fit with more memory.

    Within a family and device, the memory that a point needs is assumed to be proportional to its
    analytic lower bound. The available memory, in terms of this bound, is known only as a range:
    between the largest bound of a point that fitted and the smallest bound of a point that did not
    fit. The upgrade multiplies both ends of the range by `factor`.

    Args:
        points: All points, with the column `outcome`.
        factor: Factor on the memory size.

    Returns:
        A row per point that ran out of memory. The column `fits` is "yes" below the multiplied
        range, "open" within it, and "no" above it. It is "unknown" if the point has no bound or no
        point fitted.
    """
    failed = points["outcome"].isin(MEMORY_OUTCOMES)
    if not failed.any():
        return pd.DataFrame()
    tried = points[failed | is_ok(points)]
    bounds = step_inputs.analytic_costs(tried)["memory_lower_bound_bytes"]
    parts = []
    for (family, device), rows in tried.groupby(["family", "device"], sort=False):
        is_failed = failed[rows.index]
        if not is_failed.any():
            continue
        bound = bounds[rows.index]
        largest_fitted = bound[~is_failed].max()
        smallest_failed = bound[is_failed].min()
        # A failed point may have a smaller bound than a fitted one, since the proportionality is
        # approximate.
        limit_low = factor * np.nanmin([largest_fitted, smallest_failed])
        limit_high = factor * np.nanmax([largest_fitted, smallest_failed])
        needed = bound[is_failed]
        fits = np.select([needed <= limit_low, needed <= limit_high], ["yes", "open"], "no")
        fits = np.where(needed.notna() & np.isfinite(largest_fitted), fits, "unknown")
        rows = rows[is_failed]
        part = pd.DataFrame({"family": family, "device": device, "fits": fits}, index=rows.index)
        parts.append(part.assign(run_id=rows["run_id"]))
    found = pd.concat(parts)
    return with_point_names(found, points.loc[found.index]).reset_index(drop=True)


def _by_family(prediction: _Prediction) -> pd.DataFrame:
    """Return a row per family and device, with the geometric mean speedup of the points.

    A row also has the mean share of each limit in the times of the points, before and after the
    upgrade. It states the limit that dominates most points.

    Args:
        prediction: The predicted speedups.
    """
    points = prediction.points
    rows = []
    order = families(points)
    keys = points[["family", "device"]].astype("object")
    for key, index in keys.groupby(["family", "device"], sort=False).indices.items():
        family, device = map(str, cast("tuple[Any, Any]", key))
        middle, low, high = interval(prediction.log_speedups[index].mean(axis=0))
        row = {
            "family": family,
            "device": device,
            "points": len(index),
            "speedup": middle,
            "speedup_low": low,
            "speedup_high": high,
        }
        for name in LIMITS:
            row[name] = float(prediction.before[name].iloc[index].mean())
            row[f"{name}_after"] = float(prediction.after[name].iloc[index].mean())
        limits_after = prediction.after.iloc[index].idxmax(axis=1)
        row["limit"] = prediction.before.iloc[index].idxmax(axis=1).value_counts().idxmax()
        row["limit_after"] = limits_after.value_counts().idxmax()
        rows.append(row)
    table = pd.DataFrame(rows)
    position = table["family"].map({name: index for index, name in enumerate(order)})
    return table.assign(position=position).sort_values(
        ["position", "device"], kind="stable", ignore_index=True
    )


def _answer(
    prediction: _Prediction, by_family: pd.DataFrame, scenario: _Scenario
) -> AnalysisAnswer:
    """State the geometric mean speedup of all points, and the main limit after the upgrade.

    Args:
        prediction: The predicted speedups.
        by_family: The table that `_by_family` returns.
        scenario: The upgrade.
    """
    middle, low, high = interval(prediction.log_speedups.mean(axis=0))
    count = len(prediction.points)
    names = ", ".join(dict.fromkeys(by_family["family"]))
    devices = ", ".join(dict.fromkeys(by_family["device"]))
    speedup = format_with_interval((middle, low, high), _times)
    limits = prediction.after.idxmax(axis=1).value_counts()
    after = f"{limits.index[0]} then limits {limits.iloc[0]:,} of them"
    if count == 1:
        after = f"{limits.index[0]} then limits it"
    sentence = (
        f"{scenario.subject} would make {counted(count, 'point')} of {names} on {devices} "
        f"{speedup} as fast; {after}."
    )
    return AnalysisAnswer(
        sentence=sentence,
        ratio=float(middle),
        low=float(low),
        high=float(high),
        points=count,
        basis="the model of operation times and pairs of real devices",
    )


def _times(value: float) -> str:
    return f"{value:.3g}x"


def _sentences(
    prediction: _Prediction,
    by_family: pd.DataFrame,
    table: pd.DataFrame,
    exhausted: pd.DataFrame,
    scenario: _Scenario,
) -> Iterator[Paragraph | str]:
    if scenario.device:
        yield from _describe_ratios(prediction, scenario)
        yield from _describe_check(table, scenario)
    if len(exhausted):
        yield _describe_memory(exhausted, scenario)
    for row in by_family.head(_MAX_DESCRIBED_GROUPS).to_dict("records"):
        yield _describe_family(row, prediction)
    if len(by_family) > _MAX_DESCRIBED_GROUPS:
        yield f"{counted(len(by_family) - _MAX_DESCRIBED_GROUPS, 'further group')}: see --csv."
    yield from _describe_sources(prediction)


def _describe_sources(prediction: _Prediction) -> Iterator[str]:
    """Yield sentences on omitted points, the source of the operations, and gaps of the model.

    Args:
        prediction: The predicted speedups, with the measured times.
    """
    for name, count in prediction.unexplained.items():
        yield (
            f"{counted(count, 'point')} of {name} omitted: without a profile, neither arithmetic "
            "nor memory traffic explains the measured time."
        )
    profiled = int(prediction.work.profiled.sum())
    source = "the layers of the models"
    if profiled == len(prediction.work.profiled):
        source = "profiles"
    elif profiled:
        source = f"profiles ({counted(profiled, 'point')}) and the layers of the models"
    yield (
        f"Operations come from {source}. The model does not include overlap between operations, "
        "caches, or clocks that depend on the load."
    )


def _describe_ratios(prediction: _Prediction, scenario: _Scenario) -> Iterator[str]:
    """Yield the ratios of the upgraded device to the present device, and their source.

    Args:
        prediction: The prediction, with the ratios for each device and precision.
        scenario: The upgrade, which names a device.
    """
    for (device, precision), change in prediction.changes.items():
        yield (
            f"{scenario.device} compared with {device} in {precision}, by {change.source}: "
            f"{_times(change.peak)} the arithmetic rate, {_times(change.bandwidth)} the bandwidth, "
            f"{_times(change.overhead)} the overhead."
        )


def _describe_check(table: pd.DataFrame, scenario: _Scenario) -> Iterator[str]:
    """Yield a sentence that compares predictions with measurements after the upgrade.

    Args:
        table: The table that `_with_measured` returns.
        scenario: The upgrade, which names a device.
    """
    known = table[table["measured_speedup"].notna()]
    if known.empty:
        yield (
            f"No point was also measured on {scenario.device}, so no measurement checks the "
            "prediction."
        )
        return
    error = (known["speedup"] / known["measured_speedup"] - 1).abs().median()
    inside = int(known["inside"].astype(bool).sum())
    middle = math.exp(np.log(known["measured_speedup"]).mean())
    yield (
        f"{counted(len(known), 'point')} also measured on {scenario.device}: geometric mean "
        f"{_times(middle)} as fast, median error of the prediction {error:.0%}, {inside} inside "
        "the 95% interval."
    )


def _describe_memory(exhausted: pd.DataFrame, scenario: _Scenario) -> str:
    """State how many of the points that ran out of memory would fit after the upgrade.

    Args:
        exhausted: The table that `_memory_rows` returns.
        scenario: The upgrade.
    """
    counts = exhausted["fits"].value_counts()
    fits = int(counts.get("yes", 0))
    parts = [f"{fits:,} would fit"]
    if counts.get("open", 0):
        parts.append(f"{counts['open']:,} may fit")
    if counts.get("unknown", 0):
        parts.append(f"{counts['unknown']:,} are unknown")
    return (
        f"Of {counted(len(exhausted), 'point')} that ran out of memory, {', '.join(parts)} with "
        f"{scenario.change.memory:g}x the memory."
    )


def _describe_family(row: dict[Any, Any], prediction: _Prediction) -> str:
    """State the speedup of a family on a device, and the share of each limit in the time.

    The text also states whether memory bandwidth or arithmetic rate is worth more.

    Args:
        row: Row of the family and device in the table that `_by_family` returns.
        prediction: The predicted speedups.
    """
    speedup = format_with_interval(
        (row["speedup"], row["speedup_low"], row["speedup_high"]), _times
    )
    parts = []
    for name in LIMITS:
        old = row[name]
        new = row[f"{name}_after"]
        if max(old, new) >= 0.01:
            parts.append(f"{name} {_share(old)} to {_share(new)}")
    text = (
        f"{row['family']} on {row['device']}, {counted(row['points'], 'point')}: {speedup}. Share "
        f"of the time by limit, before and after the upgrade: {', '.join(parts)}."
    )
    points = prediction.points
    is_member = points["family"].eq(row["family"]) & points["device"].eq(row["device"])
    worth = describe_worth(points[is_member], prediction.before[is_member])
    return f"{text} {worth}" if worth else text


def _share(value: float) -> str:
    return f"{value:.0%}"


def describe_worth(points: pd.DataFrame, shares: pd.DataFrame) -> str:
    """State which points gain more from 1% more memory bandwidth than from 1% more arithmetic rate.

    The gain from a ceiling, as an elasticity of the throughput, is the share of the time that this
    ceiling limits. If a threshold of one hyperparameter classifies at least 90% of the points
    correctly, the sentence names the best threshold.

    Args:
        points: The points (p rows).
        shares: Share of each limit in the time of a point (p rows, columns `LIMITS`).

    Returns:
        A sentence; empty if there is a single point, and arithmetic rate is worth at least as much.
    """
    difference = (shares["memory"] - shares["compute"]).to_numpy()
    prefers_memory = difference > 0
    count = len(points)
    total = int(prefers_memory.sum())
    text = "1% more memory bandwidth is worth more than 1% more arithmetic rate"
    if total == count:
        return f"{text} for {'all of them' if count > 1 else 'it'}."
    if not total:
        return f"{text} for no point." if count > 1 else ""
    best = None
    if min(total, count - total) >= _MIN_THRESHOLD_POINTS:
        best = _best_threshold(points, prefers_memory)
    if best is None:
        return f"{text} for {total:,} of them."
    name, value, is_below = best
    side = "below" if is_below else "from"
    return f"{text} {side} {label(name)} {value:,g} ({total:,} of {count:,} points)."


def _best_threshold(
    points: pd.DataFrame, prefers_memory: np.ndarray
) -> tuple[str, float, bool] | None:
    """Return the threshold of a hyperparameter that best predicts which points gain from bandwidth.

    Args:
        points: The points (p rows).
        prefers_memory: (p,) whether memory bandwidth is worth more than the arithmetic rate.

    Returns:
        The hyperparameter, the threshold, and whether memory bandwidth is worth more for points
        below the threshold (rather than for the others). None if no threshold classifies at least
        90% of the points correctly.
    """
    best: tuple[float, str, float, bool] | None = None
    for name in hyperparameters(points):
        sizes = as_sizes(points[name])
        if sizes is None or sizes.nunique() < 3:
            continue
        values = np.sort(sizes.unique())
        for value in values[1:]:
            is_below = (sizes < value).to_numpy()
            for side in (True, False):
                share = float(np.mean(prefers_memory == (is_below == side)))
                if best is None or share > best[0]:
                    best = (share, name, float(value), side)
    if best is None or best[0] < _MIN_CLASSIFIED_SHARE:
        return None
    return best[1:]


def _draw(table: pd.DataFrame, prediction: _Prediction, scenario: _Scenario) -> drawing.Figure:
    """Draw the speedup of each point over its number of parameters.

    If all points belong to one family and device, a second panel shows a heat map (see
    `_draw_map`).

    Args:
        table: The table of the result, a row per point.
        prediction: The predicted speedups.
        scenario: The upgrade.
    """
    rows = table[table["speedup"].notna()]
    is_single = rows["family"].nunique() == 1 and rows["device"].nunique() == 1
    figure, panels = drawing.panels(2 if is_single else 1, 6.0, 4.4, across=2)
    axes = panels[0]
    x, x_label, limits = mark_points(axes, rows, column="speedup", by="limit_after", names=LIMITS)
    if "measured_speedup" in rows:
        axes.scatter(x, rows["measured_speedup"], s=14, marker="x", color="black", zorder=3)
    axes.axhline(1, color="#333333", linewidth=1)
    title = f"{scenario.subject}: {counted(len(rows), 'point')}"
    drawing.finish(
        axes,
        title,
        x_label,
        "predicted speedup",
        logs={"x": format_number, "y": drawing.times},
    )
    handles = [drawing.handle(name, **drawing.look(name, LIMITS)) for name in limits]
    if "measured_speedup" in rows:
        handles.append(drawing.handle("measured", color="black", marker="x"))
    if is_single:
        _draw_map(panels[1], prediction, rows)
    drawing.legend(figure, handles, "limit after the upgrade")
    return figure


def _draw_map(axes: drawing.Axes, prediction: _Prediction, rows: pd.DataFrame) -> None:
    """Draw the geometric mean speedup over the factors on bandwidth and arithmetic rate.

    The panel is a heat map with lines of equal speedup.

    Args:
        axes: Axes of the panel.
        prediction: The prediction, with the fitted models of operation times.
        rows: The points, which belong to one family and device.
    """
    grid = speedup_grid(prediction.work, prediction.groups, np.log(_GRID))
    axes.pcolormesh(_GRID, _GRID, grid, cmap=drawing.SEQUENTIAL, shading="gouraud")
    lines = axes.contour(
        _GRID, _GRID, grid, levels=list(_ISO_LINES), colors="white", linewidths=1.0
    )
    axes.clabel(lines, fmt=drawing.times, fontsize="small")
    family = rows["family"].iloc[0]
    device = rows["device"].iloc[0]
    drawing.finish(
        axes,
        f"{family} on {device}: geometric mean speedup",
        "factor on the memory bandwidth",
        "factor on the arithmetic rate",
        logs={"x": drawing.times, "y": drawing.times},
    )


def speedup_grid(
    work: PointWork, groups: Sequence[FittedGroup], log_factors: np.ndarray
) -> np.ndarray:
    """Return the mean speedup of all points for each pair of factors on two hardware rates.

    The rates are the arithmetic rate and the memory bandwidth. The mean is geometric.

    Args:
        work: The measured times.
        groups: The models that were fitted to these times.
        log_factors: Natural logarithms (k,) of the factors, which are used for both rates.

    Returns:
        The expected speedups (k, k): a row per factor on the arithmetic rate, a column per factor
        on the memory bandwidth.
    """
    from paradnn.forecast.upgrades import expected_speedups

    fixed = work.fixed.to_numpy().sum(axis=1)
    grid = np.empty((len(log_factors), len(log_factors)))
    old = fixed.copy()
    np.add.at(old, work.point, work.work.seconds)
    for row, peak in enumerate(log_factors):
        for column, bandwidth in enumerate(log_factors):
            gains = np.array([peak, bandwidth, 0.0])
            new = fixed.copy()
            for group in groups:
                speedups = expected_speedups(group.work, group.fit, gains)
                np.add.at(new, group.points, group.work.seconds / speedups)
            grid[row, column] = math.exp(float(np.mean(np.log(old / new))))
    return grid
