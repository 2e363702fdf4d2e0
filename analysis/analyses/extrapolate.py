"""`extrapolate`: how long a step would take on a device that only ran kernels: its operations, predicted and summed.

The products of a step follow from its layers (`Model.product_list`), with exact shapes, which profiles do
not hold. What else a step does is read from the run's own operation table, how often and how many bytes, whatever
device it was profiled on; without a table it is the traffic that the products do not explain. Such an operation is
predicted as an elementwise kernel that moves as many bytes. An operation within a step is not called: of each kernel's
time the call is taken off, and a step of dispatch added, as chains of elementwise kernels show it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import analysis
from analysis.result import Paragraph, Result, require_runs
from analysis.steps import OF_KERNELS, OF_OTHERS, Part, Sum, model_in, summed, told
from analysis.store.conditions import select
from analysis.store.frame import families, is_ok, require_homogeneous
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.families import FAMILIES, Model
from paradnn.families.operations import Counted, Operation, elementwise_operation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paradnn.forecast.operation_times import OperationTimes


@dataclass(frozen=True, kw_only=True)
class ExtrapolateOptions(Options):
    """Which steps, on which device."""

    command = "extrapolate"

    to: str = option(text="the device, which ran kernels: model=gemm, conv2d, elementwise", metavar="DEVICE")
    run: str | None = option(
        None,
        "the beginning of one run's id, or a condition as in --where (default: all models)",
        metavar="RUN",
        names="conditions",
    )
    model: str | None = option(
        None,
        "points that need no run, such as 'model=fc model.nodes=64,256 batch_size=32'",
        metavar="POINTS",
        names="conditions",
    )


def _sentences(kernels: Kernels, steps: Sequence[Step], table: pd.DataFrame) -> Iterator[Paragraph | str]:
    points = tuple(
        f"{kind}: {kernels.counts[kind]} kernels; each predicted from the others with a median error of "
        f"{model.left_out.median_error:.1%}, {model.left_out.coverage():.0%} of them in their 95% interval; "
        f"a call takes {short(model.dispatch * 1e6, digits=2)} microseconds."
        for kind, model in kernels.models.items()
    )
    few = ", ".join(f"{kind} ({count} of its kernels ran)" for kind, count in kernels.missing.items())
    yield Paragraph(f"Operation times on {kernels.device}{f'; not modelled: {few}' if few else ''}:", points)
    if len(steps) == 1:
        (step,) = steps
        middle, low, high = (short(end * 1e3, "ms", digits=3) for end in (step.seconds, step.low, step.high))
        yield f"The step takes {middle} ({low} to {high}) on {kernels.device}."
        yield (
            "Without a profile of it, what the operations cover is not known, and what is no product is only the "
            "traffic that cannot be avoided; a run with measure.profile=true says more."
            if math.isnan(step.covered)
            else f"The modelled operations took {step.covered:.1%} of the step in the profile."
        )
    known = table[table["measured"].notna()]
    if len(known):
        error, held = (known["ratio"] - 1).abs(), known["measured"].between(known["low"], known["high"])
        yield (
            f"Beside {len(known)} measured steps: predicted / measured {known['ratio'].median():.3g} in the median, "
            f"a median error of {error.median():.1%}, {held.mean():.0%} within their 95% interval."
        )


@analysis(
    ExtrapolateOptions,
    summary="the step time of models on a device that only ran kernels, operation by operation",
    description="Predict the operations of a step from kernels that ran on a device (gemm, conv2d, elementwise)\n"
    "and add them up, with an interval. Products follow from the model's layers; what else a step does\n"
    "is read from the run's profile. Says what share of the profiled time is covered. Where the runs are\n"
    "of that very device, predicted steps stand beside measured ones.",
    example="python -m analysis extrapolate --run 3f2a91 --to 'Tesla V100'",
)
def extrapolate(frame: pd.DataFrame, options: ExtrapolateOptions) -> Result:
    """Steps of a frame's models, or of points that are named, on a device whose kernels are in the frame.

    ConfigError for a run, points or a device that is not there, NotEnoughData for too few kernels, SchemaError for
    kernels of several environments or protocols.
    """
    from analysis.store.load import load_tables

    require_runs(frame)
    rows = _chosen(frame, options)
    records = rows.to_dict("records")
    for row in records:
        require_step(row, *(() if options.model is None else ("--model", "name other points")))
    kernels = fit_kernels(frame, options.to, records[0], options.pool)
    if differing := [name for name in _SAME if name in rows and rows[name].nunique() > 1]:
        values = ", ".join(map(str, rows[differing[0]].unique()))
        raise ConfigError("--run", differing[0], f"differs: {values}", f"choose one with --where {differing[0]}=...")
    profiled = rows[rows["profile"].eq("ok").fillna(False)] if "profile" in rows else rows[:0]
    tables = {}
    if len(profiled):
        read = load_tables(profiled, "operations.json", options.store)
        tables = {str(run_id): table for run_id, table in read.groupby("run_id")}
    steps = [step_of(row, kernels, tables.get(str(row.get("run_id")))) for row in records]
    table = _beside_measured(rows, steps, kernels.device)
    return Result(
        numbers=steps[0].operations if len(steps) == 1 else table,
        sentences=[*_sentences(kernels, steps, table)],
        picture=(lambda: _draw(table, kernels.device)) if table["measured"].notna().any() else None,
        sources=(*rows.get("run_id", ()), *kernels.run_ids),
        pooled=kernels.pooled,
    )


def _beside_measured(rows: pd.DataFrame, steps: Sequence[Step], device: str) -> pd.DataFrame:
    """A row for each step, in seconds; measured and ratio (predicted / measured) where it ran on the device."""
    named = [name for name in ("run_id", "run_name", "family", "batch_size") if name in rows]
    table = rows[named].reset_index(drop=True)
    for name in ("seconds", "low", "high", "covered"):
        table[name] = [getattr(step, name) for step in steps]
    measured = np.full(len(table), np.nan)
    if "device" in rows:
        measured = np.where(rows["device"].eq(device).fillna(False), _numbers(rows, _TIME) / 1e3, np.nan)
    return table.assign(measured=measured, ratio=table["seconds"] / measured)


def _chosen(frame: pd.DataFrame, options: ExtrapolateOptions) -> pd.DataFrame:
    """The rows that are to be predicted: points that are named, else the measured runs of models that are meant."""
    from analysis.store.past import read_space

    if options.run is not None and options.model is not None:
        raise ConfigError("--model", options.model, "is given beside --run", "leave one of them out")
    if options.model is not None:
        return read_space(options.model, "--model")
    models = [name for name, family in FAMILIES.items() if family.has_layers]
    runs = frame[is_ok(frame) & frame["family"].isin(models)].reset_index(drop=True)
    if options.run is not None:
        is_condition = any(sign in options.run for sign in "=<>")
        chosen = (
            select(runs, [options.run], "--run") if is_condition else runs[runs["run_id"].str.startswith(options.run)]
        )
        if chosen.empty or (not is_condition and len(chosen) > 1):
            problem = f"{len(chosen)} runs begin so" if len(chosen) else "no measured run of a model is it"
            raise ConfigError("--run", options.run, problem, "see run_id in python -m analysis export runs.csv")
        runs = chosen
    if runs.empty:
        raise ConfigError("--run", "(none given)", "no model was measured", "name points with --model")
    return runs.reset_index(drop=True)


_TIME = "step_time_ms"
_PRODUCTS = ("matmul", "convolution")
#: The row of a profile that says in which time no operation ran.
_IDLE = "(no operation)"
#: Passes of a training step over a layer: forward, and backward for weights and inputs.
_PASSES = 3
#: One row of a frame: column -> value.
Row = Mapping[Any, Any]
_SAME = ("precision", "framework.name", "compile")


@dataclass(frozen=True)
class Kernels:
    """Time models of a device's kernels, by kind; `counts`: how many of each kind ran."""

    device: str
    models: Mapping[str, OperationTimes]
    counts: Mapping[str, int]
    run_ids: tuple[str, ...] = ()
    pooled: str = ""

    @property
    def missing(self) -> dict[str, int]:
        """Kinds with too few runs, and how many they have."""
        return {kind: self.counts.get(kind, 0) for kind in ("gemm", "conv2d", "elementwise") if kind not in self.models}

    @property
    def call(self) -> float:
        """Seconds of a call that does nothing: an elementwise operation prepares nothing of its own."""
        own = self.models.get("elementwise")
        return own.dispatch if own else min(model.dispatch for model in self.models.values())

    def start(self, operation: Operation) -> float:
        """Seconds that the library prepares before an operation within a step begins.

        Products beside each other, as attention has them, are prepared as convolutions are."""
        model = self.models[operation.kind]
        if operation.kind == "gemm" and operation.batch > 1:
            model = self.models.get("conv2d", model)
        return max(model.dispatch - self.call, 0.0)

    def sum_of(self, products: Sequence[Counted], others: Sequence[Counted]) -> Sum:
        """A step of products and of operations without products, all of kinds that have a model."""
        step = self.models["elementwise"].step if "elementwise" in self.models else 0.0
        parts = []
        for name, counted, spread in (("products", products, OF_KERNELS), ("others", others, OF_OTHERS)):
            for kind, model in self.models.items():
                if mine := [each for each in counted if each.operation.kind == kind]:
                    times, begin = model.predict_uncalled, lambda one: self.start(one) + step
                    parts.append(Part(name, mine, times, (name, spread), begin))
        return summed(parts, self.call)


@dataclass(frozen=True)
class Step:
    """A step on a device that ran kernels alone; seconds, with the ends of their 95% interval.

    operations: the longest first; layer (of several the first), kind, shape, count, seconds, low, high and share of the
    step. covered: share of the profiled time of the run that the modelled operations took there, NaN without a profile.
    """

    seconds: float
    low: float
    high: float
    operations: pd.DataFrame
    covered: float


def fit_kernels(frame: pd.DataFrame, device: str, like: Row, pool: bool = False) -> Kernels:
    """The kernels that ran on `device` with the precision, framework and compile mode of `like`, where it has these.

    ConfigError for a device without runs, NotEnoughData for one without enough kernels of any kind.
    """
    from analysis.store.past import noise_of
    from paradnn.forecast.operation_times import LEAST, OperationTimes

    runs = require_homogeneous(_kernel_runs(frame, device, like), pool=pool)
    noise = noise_of(runs)
    groups: defaultdict[str, list[tuple[Operation, float, float]]] = defaultdict(list)
    for row, seconds, own in zip(runs.to_dict("records"), _numbers(runs, _TIME) / 1e3, noise, strict=True):
        operation = model_in(row).as_operation(int(row["batch_size"]), str(row["precision"]))
        groups[operation.kind].append((operation, seconds, own))
    counts = {kind: len({operation for operation, *_ in group}) for kind, group in groups.items()}
    models = {
        kind: OperationTimes.fit([one for one, *_ in group], *np.array([rest for _, *rest in group]).T)
        for kind, group in groups.items()
        if counts[kind] >= LEAST
    }
    if not models:
        few = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        raise NotEnoughData(
            f"{device} ran too few kernels ({few}); {LEAST} of a kind are the least, {2 * LEAST} better"
        )
    return Kernels(device, models, counts, tuple(runs["run_id"]), runs.attrs.get("pooled", ""))


def _kernel_runs(frame: pd.DataFrame, device: str, like: Row) -> pd.DataFrame:
    if device not in set(frame["device"].dropna()):
        there = ", ".join(sorted(set(frame["device"].dropna().astype(str))))
        raise ConfigError("--to", device, "no chosen run is of this device", f"choose of {there}")
    kernels = [name for name, family in FAMILIES.items() if family.is_kernel and not family.is_communication]
    runs = frame[is_ok(frame) & frame["device"].eq(device) & frame["family"].isin(kernels)]
    runs = runs[_numbers(runs, _TIME) > 0]
    wanted = {name: like[name] for name in _SAME if name in frame and pd.notna(like.get(name))}
    for name, value in wanted.items():
        runs = runs[runs[name].eq(value) | runs[name].isna()]
    if runs.empty:
        words = " ".join(f"{name}={value}" for name, value in wanted.items())
        remedy = "measure some, as in python -m paradnn.train -m experiment=kernels"
        raise NotEnoughData(f"no kernel ran on {device} with {words}; {remedy}")
    return runs


def require_step(row: Row, option: str = "--run", remedy: str = "choose runs with --where") -> None:
    """ConfigError, of the option that chose it, for a point whose operations are not known."""
    model = model_in(row)
    if model.is_kernel or told(row, "devices", "1") != "1":
        raise ConfigError(option, model.name, "is no model on one device", remedy)
    if (mode := told(row, "mode", "train")) not in ("train", "inference"):
        raise ConfigError(option, f"mode={mode}", "has no list of operations here", remedy)


def step_of(row: Row, kernels: Kernels, table: pd.DataFrame | None) -> Step:
    """One step of the point in `row` (columns of a frame) on the kernels' device; `table`: its operations, profiled."""
    require_step(row)
    model, batch_size, precision = model_in(row), int(row["batch_size"]), str(row["precision"])
    mode = told(row, "mode", "train")
    products = model.product_list(batch_size=batch_size, precision=precision, mode=mode)
    known = [each for each in products if each.operation.kind in kernels.models]
    others: list[Counted] = []
    if "elementwise" in kernels.models:
        others = list(_others(table, precision)) if table is not None else [_traffic(model, row, products)]
    if not known and not others:
        raise NotEnoughData(f"none of the operations of {model.name} is among the kernels of {kernels.device}")
    found = kernels.sum_of(known, others)
    seconds, low, high = found.ends()
    operations = found.rows.drop(columns="part").assign(share=found.rows["seconds"] / seconds)
    covered = math.nan
    if table is not None:
        # Time in which no operation ran is modelled as far as the call reaches, which is a term of the sum.
        idle = float(table.loc[table["type"].eq(_IDLE), "share"].sum())
        covered = _coverage(table, bool(known), "elementwise" in kernels.models) + min(idle, kernels.call / seconds)
    return Step(seconds, low, high, operations, covered)


def _others(table: pd.DataFrame, precision: str) -> Iterator[Counted]:
    """What a profile has beside products: bytes where they are known; of what only hands on, how often."""
    for kind, rows in table[~_is_product(table)].groupby(table["type"].astype(str), sort=False):
        for row in rows.to_dict("records"):
            count = row.get("count")
            if count is not None and count > 0 and pd.notna(row["bytes"]):
                moved = float(row["bytes"]) / float(count)
                yield Counted(str(kind), elementwise_operation(moved, precision), float(count))


def _traffic(model: Model, row: Row, products: Sequence[Counted]) -> Counted:
    """The traffic of a step that its products do not explain, one operation for each pass over a layer."""
    mode = told(row, "mode", "train")
    costs = model.costs(
        batch_size=int(row["batch_size"]),
        precision=str(row["precision"]),
        mode=mode,
        optimizer=told(row, "optimizer.name", "rmsprop"),
    )
    explained = sum(each.count * each.operation.bytes for each in products)
    count = max(1, len(products)) if mode == "inference" else _PASSES * max(1, len(products) // _PASSES)
    moved = max(0.0, costs.bytes_per_step - explained) / count
    return Counted("other traffic", elementwise_operation(moved, str(row["precision"])), float(count))


def _coverage(table: pd.DataFrame, has_products: bool, has_others: bool) -> float:
    """The share of the profiled time in modelled operations."""
    control = table.get("category", pd.Series("", index=table.index)).eq("control")
    others = has_others & (table["bytes"].notna() | control)
    return float(table["share"].fillna(0.0)[np.where(_is_product(table), has_products, others)].sum())


def _is_product(table: pd.DataFrame) -> np.ndarray:
    """Which rows are matrix products or convolutions; a depthwise convolution moves more than it multiplies."""
    depthwise = table["type"].astype(str).str.contains("Depthwise")
    if "category" in table:
        return np.asarray(table["category"].isin(_PRODUCTS) & ~depthwise)
    return np.asarray(table["type"].astype(str).str.contains("MatMul|Conv") & ~depthwise)


def _numbers(runs: pd.DataFrame, name: str) -> np.ndarray:
    missing = pd.Series(np.nan, index=runs.index)
    return np.asarray(runs.get(name, missing).to_numpy(dtype="float64", na_value=np.nan))


def _draw(table: pd.DataFrame, device: str) -> Figure:
    """Predicted with its 95% interval over measured, a marker for each family; on the line both are equal."""
    known = table[table["measured"].notna()]
    times = known[["measured", "seconds"]] * 1e3
    drawn, (axes,) = drawing.panels(1, 5.6, 4.7)
    ends = 0.7 * times.min().min(), 1.4 * times.max().max()
    axes.plot(ends, ends, color="0.4", linewidth=0.8, zorder=1)
    for name in families(known):
        rows = known[known["family"] == name]
        around = rows["low"] * 1e3, rows["high"] * 1e3
        look = drawing.look(name) | {"elinewidth": 0.7, "capsize": 0, "label": name}
        drawing.marks(axes, rows["measured"] * 1e3, rows["seconds"] * 1e3, y_ends=around, **look)
    axes.set(xscale="log", yscale="log", xlim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        drawing.log_ticks(axis)
    drawing.finish(axes, f"Steps on {device}, predicted from its kernels", "measured step (ms)", "predicted step (ms)")
    drawing.legend(drawn)
    return drawn
