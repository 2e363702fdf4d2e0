"""`predict`: fill a partly measured grid with predictions and their 95% intervals.

A point is a combination of hyperparameter values. The space is the grid that the hyperparameter
values of the runs span. The row of an unmeasured point has the environment, protocol and session of
a measured run, but other sizes. An unmeasured point is taken to run out of memory if a failed run
proves it, such as a run with smaller sizes. If neither failed nor measured runs prove the outcome,
a logistic regression decides.

The model of step time (`paradnn.forecast.predict`) is fitted to the runs of a device. Leave-one-out
predictions of these runs show its accuracy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from analysis.columns import (
    OUT_OF_MEMORY,
    FamilyGroup,
    GroupKey,
    analyze_groups,
    as_sizes,
    choose_metric,
    family_groups,
    find_metric,
)
from analysis.heat_maps import HeatMaps, choose_axes, draw_heat_maps, make_heat_maps
from analysis.labels import label, not_recorded
from analysis.lazy import np, pd
from analysis.options import Options, column_option, metric_option
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, pooled_within
from analysis.store.frame import (
    IDENTITY,
    aggregate_replicates,
    is_ok,
    require_homogeneous,
    select_rows,
)
from analysis.store.lazy_step_inputs import step_inputs
from paradnn.core.errors import ConfigError, InsufficientData, ParadnnError
from paradnn.core.words import counted

if TYPE_CHECKING:
    from paradnn.forecast.process import LeaveOneOutErrors

#: Maximum number of points of a space. Intervals need joint draws of all points.
_MAX_POINTS = 50_000
#: Outcome of an unmeasured point that is expected to run out of memory.
EXCLUDED = "oom_predicted"
#: Minimum number of measured points for a prediction.
_MIN_POINTS = 5
#: Metric that follows from the step time -> the column with the work of a step (examples or FLOP);
#: empty for the step time.
PREDICTABLE = {
    "examples_per_second": "batch_size",
    "flops_per_second": "flops_per_step",
    "flops_utilization": "flops_per_step",
    "flops_utilization_spec": "flops_per_step",
    "step_time_ms": "",
}

#: Columns that state when and how a run was measured. The row of an unmeasured point copies them
#: from a measured point.
_CIRCUMSTANCES = ("start_time", "sweep_id", "host", "source", "protocol", "experiment", "store")
#: Inverse of the ridge penalty of the logistic regression (`C` of scikit-learn).
_INVERSE_RIDGE_PENALTY = 1e3
#: Minimum share of untried points in a space for a section in the report.
_SPARSE_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """Options of the command `predict`: the metric, and the axes of its heat map."""

    metric: str | None = metric_option("metric to predict")
    x: str | None = column_option(
        None, "hyperparameter on the x axis (default: batch_size if it varies)", "A"
    )
    y: str | None = column_option(
        None, "hyperparameter on the y axis (default: the one with the most values)", "B"
    )


def _list_sections(rows: pd.DataFrame) -> Iterator[SectionSpec]:
    """Yield a report section for each heat map that has many unmeasured points."""
    for names, x, y in choose_axes(rows):
        if y and is_sparse(rows[rows["family"].isin(names)]):
            options = PredictOptions(x=x, y=y)
            yield SectionSpec(
                options,
                f"Predicted map: {', '.join(names)}",
                families=names,
                key=f"predict-{names[0]}",
            )


@analysis(
    PredictOptions,
    summary="every point of a space, measured or predicted with an interval",
    example="python -m analysis predict --family fc --figure map.png",
    section="system",
    order=25,
    reading=(
        "The metric over the whole grid that these runs belong to; unmeasured points are predicted."
    ),
    list_sections=_list_sections,
)
def predict(frame: pd.DataFrame, options: PredictOptions) -> Result:
    """Predict a metric at the unmeasured points of the grids that the runs span.

    The grid of a family on a device consists of all combinations of its measured sizes.

    Args:
        frame: Runs, one per row, including failed runs.
        options: The metric, and the axes of the heat map.

    Returns:
        The result. Its table has a row for each point, measured or predicted.

    Raises:
        ConfigError: If the metric cannot be predicted, or a space is too large.
        InsufficientData: If there are too few runs.
        SchemaError: If the runs of a family on a device differ in their environment or timing
            protocol, and the option `pool` is not set.
    """
    completed = complete(frame, options.metric, pool=options.pool)
    maps = _maps(completed, options)
    picture = None
    if maps is not None:
        picture = partial(draw_heat_maps, maps)
    pooled = ""
    if options.pool:
        pooled = pooled_within(frame, ["family", "device"], pool=True)
    return Result(
        numbers=_every_point(completed),
        answer=_answer(completed),
        sentences=[*_describe_accuracy(completed)],
        picture=picture,
        sources=tuple(completed.frame.loc[~completed.frame["predicted"], "run_id"]),
        pooled=pooled,
        metrics=(completed.metric,),
    )


@dataclass(frozen=True)
class Space(GroupKey):
    """Grid of points that the runs of one family on one device span.

    Attributes:
        runs: All runs of the family on the device, including failed runs.
        others: A row for every point without a run. `chance` is the probability that the point runs
            out of memory; 0 and 1 are proved by other runs. `outcome` is "oom_predicted" if the
            chance exceeds 1/2, else ok.
        keys: The columns in which points differ.
        measured: Number of measured points.
        failed: Number of points that were tried but not measured.
    """

    runs: pd.DataFrame
    others: pd.DataFrame
    keys: tuple[str, ...]
    measured: int
    failed: int

    @property
    def total(self) -> int:
        """Number of all points of the grid, including failed and unmeasured ones."""
        return self.measured + self.failed + len(self.others)


def space_of(group: FamilyGroup, *, pool: bool = False) -> Space:
    """Return the grid of points that the hyperparameter values of some runs span.

    For each combination of the other settings, the grid is the Cartesian product of the values of
    model.* and batch_size. Columns that vary together in every point, as in a sweep with zipped
    axes, are one axis.

    Args:
        group: The runs of a family on a device.
        pool: Whether to pool runs of different environments or protocols.

    Raises:
        InsufficientData: If no point was measured, or all runs are of one point.
        ConfigError: If the grid has more than 50,000 points.
        SchemaError: If the runs differ in their environment or timing protocol, and `pool` is
            false.
    """
    rows = require_homogeneous(group.rows, pool=pool)
    rows = select_rows(rows, rows["outcome"].notna())
    points = aggregate_replicates(rows)
    if points.empty or not is_ok(points).any():
        if points.empty:
            raise InsufficientData("no point was tried")
        ended = ", ".join(
            f"{count} {name}" for name, count in points["outcome"].value_counts().items()
        )
        raise InsufficientData(f"no point was measured ({ended})")
    grid = _spanned_grid(points)
    keys = [str(name) for name in grid]
    if not keys:
        raise InsufficientData("all runs measure the same point, so there is nothing to predict")
    if len(grid) > _MAX_POINTS:
        problem = (
            f"the grid over the hyperparameters of these runs has {len(grid):,} points, "
            f"more than {_MAX_POINTS:,}"
        )
        raise ConfigError("predict", group.name, problem, "choose fewer runs with --where")
    is_tried = _codes(grid, keys).isin(set(_codes(points, keys)))
    others = _unmeasured_rows(grid[~is_tried], points, keys)
    if step_inputs.analytic_costs(points.head(1))["parameters"].notna().all():
        # If the costs of measured points can be computed, a point without costs is not a valid
        # model.
        others = others[step_inputs.analytic_costs(others)["parameters"].notna()].reset_index(
            drop=True
        )
    others["chance"] = _chances(others, points, keys)
    others["outcome"] = np.where(others["chance"] > 0.5, EXCLUDED, "ok")
    ok = is_ok(points)
    return Space(
        group.family, group.device, rows, others, tuple(keys), int(ok.sum()), int((~ok).sum())
    )


def _point_keys(points: pd.DataFrame) -> list[str]:
    """Return the columns that identify a point and have at least one value.

    Args:
        points: Points, one per row.
    """
    return [
        str(name)
        for name in points
        if step_inputs.is_point_key(str(name)) and points[name].notna().any()
    ]


def _is_size(name: str) -> bool:
    """Return whether a column is a size of the model or batch, and thus an axis of the grid.

    All other columns are settings.
    """
    return name.startswith("model.") or name == "batch_size"


def _spanned_grid(points: pd.DataFrame) -> pd.DataFrame:
    """Return the grid of sizes for each combination of settings.

    Args:
        points: The points that were tried, one per row.

    Returns:
        A row per point of the grid, with a column for each size or setting that varies.
    """
    keys = [name for name in _point_keys(points) if points[name].nunique(dropna=False) > 1]
    settings = [name for name in keys if not _is_size(name)]
    parts = [pd.DataFrame()]
    points = points[keys]
    groups = [points]
    if settings:
        groups = [group for _, group in points.groupby(settings, dropna=False, sort=False)]
    for part in groups:
        # Keys whose values vary together in all points form one axis (a bundle). Each pair of
        # values must occur at least twice on average, so that it is no coincidence.
        bundles: list[list[str]] = []
        for name in (name for name in keys if _is_size(name)):
            for bundle in bundles:
                pairs = len(part[[bundle[0], name]].drop_duplicates())
                if (
                    1 < pairs == part[name].nunique() == part[bundle[0]].nunique()
                    and len(part) >= 2 * pairs
                ):
                    bundle.append(name)
                    break
            else:
                bundles.append([name])
        grid = part[settings].head(1)
        for bundle in bundles:
            if len(grid) <= _MAX_POINTS:  # the caller rejects a grid that is larger already
                grid = grid.merge(part[bundle].drop_duplicates(), how="cross")
        parts.append(grid)
    return pd.concat(parts, ignore_index=True).reindex(columns=keys)


def _codes(points: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Return the values of some columns as one tuple per point, to compare points of two frames.

    Args:
        points: Points, one per row.
        keys: The columns that distinguish points.

    Returns:
        A series (n,) with the index of `points`.
    """
    columns = [points[name].astype("object").where(points[name].notna(), None) for name in keys]
    if columns:
        codes = list(zip(*columns, strict=True))
    else:
        codes = [()] * len(points)
    return pd.Series(codes, index=points.index, dtype="object")


def _unmeasured_rows(
    unmeasured: pd.DataFrame, points: pd.DataFrame, keys: Sequence[str]
) -> pd.DataFrame:
    """Return a row for each unmeasured point, with the other columns of a measured point.

    Args:
        unmeasured: The unmeasured points, one per row, with the columns `keys`.
        points: The points that were tried, one per row.
        keys: The columns in which points differ.
    """
    unmeasured = unmeasured.reset_index(drop=True)
    versions = [name for name in points if str(name).startswith("version.")]
    copied = ["family", "device", *IDENTITY, *_point_keys(points), *_CIRCUMSTANCES, *versions]
    ok = points[is_ok(points)]
    settings = [name for name in keys if not _is_size(name)]
    codes = _codes(ok, settings)
    positions_by_settings = codes.groupby(codes.to_numpy()).indices
    candidates = [
        positions_by_settings.get(code, range(len(ok))) for code in _codes(unmeasured, settings)
    ]
    # Cycle through the measured points with the same settings, so that the unmeasured points are
    # spread over their sessions.
    templates = [each[number % len(each)] for number, each in enumerate(candidates)]
    rows = ok.iloc[templates][[name for name in dict.fromkeys(copied) if name in ok]].reset_index(
        drop=True
    )
    for name in keys:
        rows[name] = unmeasured[name].astype(points[name].dtype)
    group = " ".join(
        str(points[name].iloc[0]) for name in ("family", "device", *IDENTITY) if name in points
    )
    names = [f"unmeasured {number} of {group}" for number in range(len(rows))]
    rows = rows.assign(run_id=names, point_id=names)
    return rows.assign(
        **step_inputs.analytic_costs(rows)[
            [name for name in step_inputs.WORK_METRICS if name in points]
        ]
    )


def _chances(others: pd.DataFrame, points: pd.DataFrame, keys: Sequence[str]) -> np.ndarray:
    """Estimate the probability (n,) that each unmeasured point runs out of memory.

    The probability is 0 if measured runs prove that the point fits, and 1 if failed runs prove that
    it does not. Otherwise a logistic regression gives the probability. Its predictor is the
    logarithm of the analytic lower bound of memory, or the logarithms of the sizes if any bound is
    unknown. A ridge penalty keeps the coefficients finite if fitting and failing points are
    separable.

    Args:
        others: The unmeasured points, one per row.
        points: The points that were tried, one per row.
        keys: The columns in which points differ.
    """
    tried = points[is_ok(points) | points["outcome"].isin((*OUT_OF_MEMORY, EXCLUDED))]
    failed = (~is_ok(tried)).to_numpy(dtype=bool)
    if not failed.any() or others.empty:
        return np.zeros(len(others))
    from sklearn.linear_model import LogisticRegression  # importing it takes seconds

    from paradnn.designs.frontier import find_failure_proofs, proven_to_fit

    both = pd.concat([tried, others], ignore_index=True)
    count = len(tried)
    columns = {name: as_sizes(both[name]) for name in keys if _is_size(name)}
    sizes = np.column_stack([column for column in columns.values() if column is not None])
    kinds = list(_codes(both, [name for name in keys if columns.get(name) is None]))
    known = (sizes[count:], kinds[count:], sizes[:count], kinds[:count], failed)
    fails = [proof is not None for proof in find_failure_proofs(*known, list(tried["run_id"]))]
    bounds = step_inputs.analytic_costs(both)["memory_lower_bound_bytes"].to_numpy()
    if np.isfinite(np.log(bounds)).all():
        logs = np.log(bounds)[:, None]
    else:
        logs = np.log2(sizes)
    regression = LogisticRegression(C=_INVERSE_RIDGE_PENALTY)
    regression.fit(logs[:count] - logs.mean(axis=0), failed)
    likely = regression.predict_proba(logs[count:] - logs.mean(axis=0))[:, 1]
    return np.asarray(np.select([proven_to_fit(*known), fails], [0.0, 1.0], likely))


@dataclass(frozen=True)
class PredictedGrid:
    """Measured and predicted points of all grids that the runs span.

    Attributes:
        metric: The predicted metric.
        frame: The runs and a row for every unmeasured point. `predicted` marks unmeasured points.
            They have either the outcome "oom_predicted" or a prediction: the median in the column
            of the metric, and its 95% interval in `low` and `high`.
        spaces: The grid of each family on each device.
        trust: Leave-one-out errors at the measured points of each space, by name of the space.
        omitted: An InsufficientData with the reason for each family and device without a
            prediction.
    """

    metric: str
    frame: pd.DataFrame
    spaces: tuple[Space, ...]
    trust: dict[str, LeaveOneOutErrors]
    omitted: tuple[InsufficientData, ...]


def complete(
    frame: pd.DataFrame, metric: str | None = None, *, pool: bool = False
) -> PredictedGrid:
    """Predict a metric at every unmeasured point of the grids that the runs span.

    A grid belongs to a family on a device (see `space_of`). One model is fitted per device.

    Args:
        frame: Runs, one per row, including failed runs.
        metric: The metric; None for the default metric of the runs (see `choose_metric`).
        pool: Whether to pool runs of different environments or protocols.

    Raises:
        ConfigError: If the metric cannot be computed from the step time.
        InsufficientData: If no group has at least 5 measured points and a grid of at least three
            points.
        SchemaError: If the runs of a family on a device differ in their environment or timing
            protocol, and `pool` is false.
    """
    if not is_ok(frame).any():
        # Any metric leads to the error that no point was measured.
        metric = next(iter(PREDICTABLE))
    elif metric:
        metric = find_metric(frame, metric)
    else:
        metric = choose_metric(frame)
    if metric not in PREDICTABLE:
        known = ", ".join(PREDICTABLE)
        raise ConfigError(
            "--metric", metric, "cannot be computed from the step time", f"choose from {known}"
        )
    spaces, omitted = analyze_groups(
        frame,
        lambda group: _space(group, metric, pool=pool),
        f"not enough data to predict {metric}",
        "measure more points, about 10 seconds each: python -m paradnn.train -m model=fc "
        "model.nodes=128,512,2048 batch_size=64,512 measure=quick",
    )
    runs = pd.concat([space.runs for space in spaces])
    whole = pd.concat([runs, *(space.others for space in spaces)], ignore_index=True)
    whole = whole.assign(predicted=np.arange(len(whole)) >= len(runs), low=np.nan, high=np.nan)
    whole[metric] = whole[metric].astype("float64")
    trust: dict[str, LeaveOneOutErrors] = {}
    named = whole["device"].astype("object").fillna(not_recorded("device"))
    for device in dict.fromkeys(space.device for space in spaces):
        on_device = [space for space in spaces if space.device == device]
        is_unknown = whole["predicted"] & is_ok(whole) & (named == device)
        predictor = _Predictor(pd.concat([space.runs for space in on_device]), metric)
        whole.loc[is_unknown, [metric, "low", "high"]] = predictor.predict(whole[is_unknown])
        trust |= {space.name: predictor.leave_one_out(space.family) for space in on_device}
    return PredictedGrid(metric, whole, tuple(spaces), trust, tuple(omitted))


def is_sparse(frame: pd.DataFrame) -> bool:
    """Return whether predictions could fill at least 10% of a grid that these runs span.

    Args:
        frame: Runs, one per row, including failed runs.
    """
    for group in family_groups(frame):
        with contextlib.suppress(ParadnnError):
            space = space_of(group)
            if space.measured >= _MIN_POINTS and len(space.others) >= _SPARSE_SHARE * space.total:
                return True
    return False


def _space(group: FamilyGroup, metric: str, *, pool: bool) -> Space:
    if group.family == not_recorded("family"):
        raise InsufficientData("the family of these runs is not recorded")
    space = space_of(group, pool=pool)
    ok = space.runs[is_ok(space.runs)]
    if metric not in ok or not (ok[metric] > 0).any():
        raise InsufficientData(f"no measured run has {metric}")
    if space.total < 3:
        raise InsufficientData(
            f"the hyperparameters of these runs span {counted(space.total, 'point')}, "
            "but a prediction needs 3 or more"
        )
    points = ok["point_id"].nunique()
    if points < _MIN_POINTS:
        raise InsufficientData(
            f"a prediction needs {_MIN_POINTS} measured points, but these runs have {points}"
        )
    return space


class _Predictor:
    """Prediction of a metric on one device, from a model fitted to its runs.

    Args:
        runs: Runs on the device, one per row. Only runs with outcome ok are used.
        metric: The metric, a key of `PREDICTABLE`.

    Raises:
        InsufficientData: If the step time of a run cannot be computed from its metric.
    """

    def __init__(self, runs: pd.DataFrame, metric: str) -> None:
        from paradnn.forecast.predict import StepTimeModel

        self._work_column = PREDICTABLE[metric]
        measured = runs[metric].astype("float64")
        runs = runs[is_ok(runs) & (measured > 0) & np.isfinite(measured)]
        values = runs[metric].to_numpy(dtype="float64")
        seconds = values
        if self._work_column:
            seconds = _work(runs, self._work_column) / values
        if not np.isfinite(np.log(seconds)).all():
            raise InsufficientData(
                f"the step time of some runs cannot be computed from {metric}; "
                "exclude these runs with --where"
            )
        # Work over a metric is a step time up to a constant factor, such as the peak of a
        # utilization. The model starts from a roofline in seconds, so the times must be roughly in
        # seconds.
        self._scale = 1.0
        if "step_time_ms" in runs and runs["step_time_ms"].gt(0).any():
            self._scale = float(
                np.nanmedian(runs["step_time_ms"].to_numpy(dtype="float64") / 1e3 / seconds)
            )
        self._rates = step_inputs.device_rates(runs, seconds * self._scale)
        self._table = step_inputs.make_step_table(runs, self._rates)
        self._model = StepTimeModel.fit(
            self._table, seconds * self._scale, step_inputs.stated_run_noise(runs)
        )

    def leave_one_out(self, family: str) -> LeaveOneOutErrors:
        """Return the errors of each measured step of a family, predicted from all other steps.

        Args:
            family: Name of the family.
        """
        # The model has one observation per step, in the order of their first appearance.
        pairs = zip(self._table.environments, self._table.steps, strict=True)
        steps = dict(zip(pairs, self._table.families, strict=True))
        return self._model.leave_one_out.select(np.array(list(steps.values())) == family)

    def predict(self, rows: pd.DataFrame) -> np.ndarray:
        """Predict the metric at unmeasured points.

        Args:
            rows: (n rows) the points, with the environment and session of a measured run.

        Returns:
            (n, 3) the median, and the low and high end of its 95% interval.
        """
        if rows.empty:
            return np.empty((0, 3))
        predicted = self._model.predict(step_inputs.make_step_table(rows, self._rates))
        values = np.exp(np.column_stack([predicted.mean, *predicted.interval()])) / self._scale
        if self._work_column:
            values = _work(rows, self._work_column)[:, None] / values
        value, *ends = values.T
        return np.column_stack([value, np.minimum(*ends), np.maximum(*ends)])


def _work(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Return the work of a step of each row (n,), in examples or FLOP.

    The work is computed if the model is known, and read from the column otherwise.

    Args:
        rows: Runs or points, one per row.
        name: Column of the work: "batch_size" or "flops_per_step".

    Raises:
        InsufficientData: If the work of a row is unknown.
    """
    if name != "batch_size":
        work = step_inputs.analytic_costs(rows)[name]
    else:
        work = pd.Series(np.nan, rows.index)
    if name in rows:
        work = work.fillna(pd.to_numeric(rows[name], errors="coerce").astype("float64"))
    if work.isna().any():
        unknown = counted(int(work.isna().sum()), "point")
        raise InsufficientData(f"{name} is unknown for {unknown}")
    return work.to_numpy(dtype="float64")


def _answer(completed: PredictedGrid) -> AnalysisAnswer:
    """State the numbers of predicted and measured points, and the accuracy of the predictions.

    Args:
        completed: Measured and predicted points, with leave-one-out errors.
    """
    spaces = completed.spaces
    measured = sum(space.measured for space in spaces)
    others = sum(len(space.others) for space in spaces)
    trust = [completed.trust[space.name] for space in spaces]
    errors = np.concatenate([np.abs(np.expm1(-each.error)) for each in trust])
    name = label(completed.metric)
    accuracy = ""
    if len(errors) > 1:
        accuracy = (
            f"; the median error of leave-one-out predictions of measured points is "
            f"{np.median(errors):.1%}"
        )
    if not others:
        sentence = (
            f"All {counted(measured, 'point')} were tried, so nothing is predicted{accuracy}."
        )
        return AnalysisAnswer(sentence=sentence, points=measured)
    excluded = sum(int((space.others["outcome"] == EXCLUDED).sum()) for space in spaces)
    text = (
        f"{name[0].upper()}{name[1:]} of {counted(others - excluded, 'point')} is predicted from "
        f"{counted(measured, 'measured point')}"
    )
    if excluded:
        text += f"; expected to run out of memory: {counted(excluded, 'further point')}"
    return AnalysisAnswer(
        sentence=f"{text}{accuracy}.",
        points=measured + others,
        basis="the model of step times, fitted to the measured points",
    )


def _describe_accuracy(completed: PredictedGrid) -> Iterator[Paragraph]:
    """Yield the measured share of each grid, and the accuracy of its predictions.

    Args:
        completed: Measured and predicted points, with leave-one-out errors.
    """
    for space in completed.spaces:
        trust = completed.trust[space.name]
        points = [
            f"Leave-one-out predictions of {completed.metric} at {len(trust.error):,} measured "
            f"points: median error {trust.median_error:.1%}; {trust.coverage():.0%} of the 95% "
            "intervals contain the measured value."
        ]
        excluded = int((space.others["outcome"] == EXCLUDED).sum())
        rest = f"{len(space.others) - excluded:,} are predicted"
        if space.failed or excluded:
            rest += f", {space.failed:,} failed, {excluded:,} are expected to run out of memory"
        share = (
            f"{space.measured:,} of {space.total:,} points were measured, "
            f"{space.measured / space.total:.0%}"
        )
        yield Paragraph(f"{space.name}: {share}; {rest}.", tuple(points))
    yield from (Paragraph(f"{omitted}: nothing is predicted.") for omitted in completed.omitted)
    if not completed.frame["predicted"].any():
        yield Paragraph("Every point of the space was tried, so nothing is predicted.")


def _every_point(completed: PredictedGrid) -> pd.DataFrame:
    """Return a row for each point of the grids, measured or predicted.

    Columns: family, device, the columns in which points differ, `status`, the metric, and `low` and
    `high` of the 95% interval of a prediction. The status is measured, predicted, or the outcome of
    a point that failed or is expected to fail.

    Args:
        completed: Measured and predicted points.
    """
    rows = aggregate_replicates(completed.frame)
    keys = list(dict.fromkeys(name for space in completed.spaces for name in space.keys))
    ok = is_ok(rows)
    status = rows["outcome"].astype("object")
    rows["status"] = status.where(
        ~ok, rows["predicted"].map({True: "predicted", False: "measured"})
    )
    numbers = [completed.metric, "low", "high"]
    found = rows[["family", "device", *keys, "status", *numbers]]
    found = found.assign(**{name: found[name].astype("float64").where(ok) for name in numbers})
    return found.sort_values(["family", "device", *keys], ignore_index=True)


def _maps(completed: PredictedGrid, options: PredictOptions) -> HeatMaps | None:
    """Return the heat maps over the axes of the options; None if only one hyperparameter varies.

    The default x axis is the batch size, if it varies. Other defaults are the hyperparameters with
    the most values.

    Args:
        completed: Measured and predicted points.
        options: The options of the command.
    """
    counts = completed.frame[
        list(dict.fromkeys(name for space in completed.spaces for name in space.keys))
    ].nunique()
    ordered = list(counts.sort_values(ascending=False, kind="stable").index)
    x = options.x or ("batch_size" if "batch_size" in ordered else ordered[0])
    others = [name for name in ordered if name.removeprefix("model.") != x.removeprefix("model.")]
    y = options.y or next(iter(others), None)
    if y is None:
        return None
    return predicted_maps(completed, x, y, pool=options.pool)


def predicted_maps(completed: PredictedGrid, x: str, y: str, *, pool: bool = False) -> HeatMaps:
    """Make heat maps of every point of the grids, measured or predicted.

    Args:
        completed: Measured and predicted points.
        x: Hyperparameter of the x axis.
        y: Hyperparameter of the y axis.
        pool: Whether to pool runs of different environments or protocols.

    Returns:
        The maps. `cells` has the additional column `measured`: the number of measured points in a
        cell, out of its `points`.
    """
    found = make_heat_maps(completed.frame, x, y, completed.metric, pool=pool)
    keys = ["family", "device", "j", "i"]
    measured = (
        found.points[is_ok(found.points) & ~found.points["predicted"].astype(bool)]
        .groupby(keys)
        .size()
    )
    counts = measured.reindex(pd.MultiIndex.from_frame(found.cells[keys]), fill_value=0)
    return found._replace(cells=found.cells.assign(measured=counts.to_numpy()))
