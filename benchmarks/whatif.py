"""Compare predicted upgrades with the devices that were built.

    python -m benchmarks.whatif [--aiconfigurator DIR] [--neusight DIR] [--deepbench DIR] [--timm DIR]

Every pair of devices in published tables that ran the same operations is predicted from the older
device's times and the ratios of specifications. The prior of the gains is learned from the pairs
that do not contain the newer device, as if it had not been built. Compared are the smooth maximum
(`paradnn.forecast.upgrades`), a roofline of the data sheets, a roofline with fitted efficiencies,
the predictor of `paradnn ask` with scaled rates, and a quantile regression over the other pairs.

The table of pairs goes to benchmarks/results/whatif.csv, that of choices between two newer devices
to whatif_choices.csv. `--write` makes the shipped prior,
paradnn/forecast/generations.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack

from analysis.atlas import operations_from_rows, version_key
from analysis.atlas.kernels import COLUMNS, Columns
from benchmarks.published.atlas import (
    KERNEL_TABLES,
    NEUSIGHT_KERNELS,
    PREFERRED_ROWS,
    WIDTHS,
    device_name,
)
from paradnn.forecast import generations
from paradnn.forecast.generations import (
    DevicePair,
    changed_hardware,
    compared_with,
    pairs_without,
    upgrade_between,
)
from paradnn.forecast.operation_times import OperationTimes
from paradnn.forecast.upgrades import (
    LIMITS,
    OperationLimits,
    TimedWork,
    expected_speedups,
    fit_gains,
    limit_shares,
    predict_speedups,
)
from paradnn.platform.specifications import find_hardware

RESULTS = Path(__file__).with_name("results") / "whatif.csv"
CHOICES = RESULTS.with_name("whatif_choices.csv")
#: Number of operations of a table that are used, chosen at random.
_OPERATIONS = 400
_DRAWS = 150
_MIN_OPERATIONS = 40
#: Operations that the predictor of `paradnn ask` is fitted to.
_FITTED = 150
#: Prior standard deviations of the logarithms of the gains of a pair.
_GAIN_SPREADS = np.array([0.5, 0.5, 0.5])
#: Operations of a table in the quantile regression.
_PER_TABLE = 20
#: Tables that the predictor of `paradnn ask` is tried on.
_ASKED_KINDS = ("gemm", "bmm", "conv2d", "elementwise", "attention", "decode", "experts")
_ASKED_SOURCES = ("aiconfigurator, vllm", "NeuSight")
_ESTIMATORS = (
    "smooth maximum",
    "data sheet",
    "roofline",
    "fitted roofline",
    "quantile regression",
    "ask",
)
#: Noise of a timing, as a logarithm: an interval that ends at exactly 1 covers 1.02.
_ROUNDING = 0.02
#: Minimum difference between the true speedups of two upgrades in a decisive choice.
_DECISIVE = 0.1
#: Minimum probability of the better upgrade in a likely choice.
_LIKELY = 0.8

#: Pairs of systems in aiconfigurator's tables, the older first.
_SYSTEMS = (
    ("a100_sxm", "h100_sxm"),
    ("a100_sxm", "h200_sxm"),
    ("h100_sxm", "h200_sxm"),
    ("h100_sxm", "b200_sxm"),
    ("h200_sxm", "b200_sxm"),
    ("h200_sxm", "gb200"),
    ("b200_sxm", "gb200"),
    ("b200_sxm", "b300_sxm"),
    ("b300_sxm", "gb300"),
    ("gb200", "gb300"),
    ("l40s", "a100_sxm"),
    ("l40s", "h100_sxm"),
    ("l40s", "rtx_pro_6000_server"),
    ("rtx_pro_6000_server", "h100_sxm"),
)
_STEMS = (
    "gemm_perf",
    "context_attention_perf",
    "generation_attention_perf",
    "moe_perf",
    "nccl_perf",
)
#: Columns of aiconfigurator that do not identify a shape.
_NOT_SHAPE = ("latency", "framework", "version", "device", "kernel_source", "backend")
#: Highest clock rates in MHz according to drivers.
_CLOCKS = {
    "a100_sxm": 1410,
    "h100_sxm": 1980,
    "h200_sxm": 1980,
    "b200_sxm": 1965,
    "b300_sxm": 2032,
    "gb200": 2062,
    "gb300": 2062,
    "l40s": 2520,
    "rtx_pro_6000_server": 2430,
}
#: Bandwidths in B/s that aiconfigurator states for another edition (NVIDIA's data sheet).
_BANDWIDTHS = {"rtx_pro_6000_server": 1597e9}
#: FLOP/s of float32, B/s and MHz of cards that the table of specifications lacks or has in another
#: form factor (NVIDIA's data sheets).
_CARDS = {
    "P4": (5.5e12, 192e9, 1114),
    "P100": (9.3e12, 732e9, 1303),
    "V100": (14.0e12, 900e9, 1380),
    "T4": (8.1e12, 320e9, 1590),
    "A100 PCIe": (19.5e12, 1555e9, 1410),
    # Tensor cores with 32-bit accumulators, which PyTorch uses (NVIDIA's whitepapers).
    "RTX 3090": (71.2e12, 936e9, 1695),
    "RTX 4090": (165.2e12, 1008e9, 2520),
    "RTX 5090": (209.5e12, 1792e9, 2407),
    "RTX PRO 6000 Max-Q": (438.9e12, 1792e9, 2280),
}
_NEUSIGHT_PAIRS = (("P100", "V100"), ("P4", "T4"), ("V100", "A100 PCIe"), ("T4", "A100 PCIe"))
_DEEPBENCH_PAIRS = (
    ("M40", "P100"),
    ("TitanX", "TitanX_Pascal"),
    ("TitanX_Pascal", "TitanXp"),
    ("1080Ti", "V100"),
    ("P100", "V100"),
)
#: Files of timm: older and newer device, and the rest of the file names.
_TIMM_PAIRS = (
    ("RTX 3090", "RTX 4090", "infer-amp-nchw-pt240-cu124-rtx3090", "infer-amp-nchw-pt240-cu124-rtx4090"),
    ("RTX 3090", "RTX 4090", "infer-amp-nhwc-pt240-cu124-rtx3090", "infer-amp-nhwc-pt240-cu124-rtx4090"),
    ("RTX 4090", "RTX 5090", "infer-amp-nchw-pt291-cu128-4090", "infer-amp-nchw-pt291-cu130-5090"),
    ("RTX 4090", "RTX 5090", "infer-amp-nchw-pt291-cu128-4090-dynamo", "infer-amp-nchw-pt291-cu130-5090-dynamo"),
    ("RTX 5090", "RTX PRO 6000 Max-Q", "infer-amp-nchw-pt291-cu130-5090", "infer-amp-nchw-pt291-cu130-pro6000maxq"),
    ("RTX 4090", "RTX PRO 6000 Max-Q", "infer-amp-nchw-pt291-cu128-4090", "infer-amp-nchw-pt291-cu130-pro6000maxq"),
)  # fmt: skip


class Specification(NamedTuple):
    """FLOP/s, B/s and clock of a device at one precision."""

    peak: float
    bandwidth: float
    clock: float


@dataclass(frozen=True, kw_only=True, eq=False)
class PairTimings:
    """Operations of one kind that two devices ran.

    Attributes:
        source: Repository and engine.
        kind: Kind of the operations; "model" for whole models.
        precision: Type of the operands.
        older: Name of the first device.
        newer: Name of the second device.
        old: Specification of the first device.
        new: Specification of the second device.
        count: Number of operations that both ran.
        rows: Those that are used: the columns of `analysis.atlas.kernels.COLUMNS`, `variant`,
            `seconds` of the older device and `new_seconds` of the newer one.
    """

    source: str
    kind: str
    precision: str
    older: str
    newer: str
    old: Specification
    new: Specification
    count: int
    rows: pd.DataFrame

    @cached_property
    def work(self) -> TimedWork:
        """Operations with the times of the older device."""
        flops = self.rows["flops"].to_numpy(dtype=float)
        moved = self.rows["bytes"].to_numpy(dtype=float)
        return TimedWork.single(flops, moved, self.rows["seconds"].to_numpy(dtype=float))

    @property
    def true(self) -> np.ndarray:
        """Logarithms (n,) of the measured speedups."""
        ratios = self.rows["seconds"] / self.rows["new_seconds"]
        return np.log(ratios.to_numpy(dtype=float))

    @property
    def ratios(self) -> np.ndarray:
        """Logarithms (3,) of the ratios of the specifications."""
        return np.log(np.array(self.new) / np.array(self.old))

    @cached_property
    def fit(self) -> OperationLimits:
        """Limits that are fitted to the times of the older device."""
        bandwidth = None if self.kind == "collective" else self.old.bandwidth
        return OperationLimits.fit(self.work, self.old.peak, bandwidth)

    @cached_property
    def pair(self) -> DevicePair:
        """Gains that are fitted to the times of both devices."""
        new_seconds = self.rows["new_seconds"].to_numpy(dtype=float)
        gains, scatter = fit_gains(self.work, self.fit, new_seconds, self.ratios, _GAIN_SPREADS)
        shares = limit_shares(self.work, self.fit.logs).mean(axis=1)
        return DevicePair(self.older, self.newer, self.ratios, gains, shares, scatter)


def _chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the operations that are used: the same shapes of every pair of devices."""
    valid = rows[(rows["seconds"] > 0) & (rows["new_seconds"] > 0) & (rows["bytes"] > 0)]
    return valid.iloc[_first_by_hash(valid[list(COLUMNS)])]


def _first_by_hash(keys: pd.DataFrame) -> np.ndarray:
    varying = keys.loc[:, keys.nunique() > 1].astype("str")
    return np.argsort(pd.util.hash_pandas_object(varying, index=False).to_numpy())[:_OPERATIONS]


def read_aiconfigurator(folder: Path) -> Iterator[PairTimings]:
    """Yield the pairs of aiconfigurator's tables, with the newest version that both devices ran."""
    root = next(iter(sorted(folder.rglob("systems/data"))))
    for older, newer in _SYSTEMS:
        sheets = [
            yaml.safe_load((root.parent / f"{name}.yaml").read_text())["gpu"]
            for name in (older, newer)
        ]
        for stem in _STEMS:
            for engine in ("vllm", "sglang", "trtllm", "nccl"):
                both = [
                    {path.parent.name: path for path in (root / name).glob(f"*/{engine}/*/{stem}.parquet")}
                    for name in (older, newer)
                ]  # fmt: skip
                versions = sorted(set(both[0]) & set(both[1]), key=version_key)
                if not versions:
                    continue
                paths = [tables[versions[-1]] for tables in both]
                for precision, count, rows in _shared_rows(stem, paths):
                    peak = "fp8_tc_flops" if precision == "fp8" else "bfloat16_tc_flops"
                    specifications = [
                        Specification(
                            sheet.get(peak, 0.0),
                            _BANDWIDTHS.get(name, sheet["mem_bw"]),
                            _CLOCKS[name],
                        )
                        for sheet, name in zip(sheets, (older, newer), strict=True)
                    ]
                    if not all(item.peak for item in specifications):
                        continue
                    yield PairTimings(
                        source=f"aiconfigurator, {engine} {versions[-1]}",
                        kind=KERNEL_TABLES[stem][0],
                        precision=precision,
                        older=device_name(older),
                        newer=device_name(newer),
                        old=specifications[0],
                        new=specifications[1],
                        count=count,
                        rows=rows,
                    )


def _shared_rows(stem: str, paths: Sequence[Path]) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield precision, number and rows of the operations that both tables hold."""
    _, column, _, arithmetic = KERNEL_TABLES[stem]
    frames = []
    for path in paths:
        frame = pd.read_parquet(path)
        if "latency" not in frame:
            return
        frame = frame[frame["latency"] > 0]
        for key, words in PREFERRED_ROWS.items():
            if key in frame and frame[key].str.contains(words).any():
                frame = frame[frame[key].str.contains(words)]
        if "window_size" not in frame:
            frame = frame.assign(window_size=0)
        frames.append(frame)
    old, new = frames
    skipped = set(_NOT_SHAPE)
    if stem != "nccl_perf":
        skipped.add("op_name")
    keys = [
        name
        for name in old
        if name in new and name not in skipped and not str(name).startswith("power")
    ]
    shared = old.drop_duplicates(keys).merge(
        new.drop_duplicates(keys)[[*keys, "latency"]], on=keys, suffixes=("", "_new")
    )
    for name, rows in shared.groupby(column, sort=True):
        precision = {"half": "bfloat16", "float16": "bfloat16"}.get(str(name), str(name))
        if precision not in ("bfloat16", "fp8") or len(rows) < _MIN_OPERATIONS:
            continue
        chosen = rows.iloc[_first_by_hash(rows[keys])]
        columns = arithmetic(chosen, WIDTHS[precision])
        seconds = chosen["latency"] / 1e3
        yield precision, len(rows), _timed_rows(columns, seconds, chosen["latency_new"] / 1e3)


def _timed_rows(columns: Columns, seconds: pd.Series, new_seconds: pd.Series) -> pd.DataFrame:
    """Return operations with the times of both devices."""
    rows = pd.DataFrame({name: columns.get(name, 1) for name in COLUMNS}, index=seconds.index)
    return rows.astype(float).assign(variant="", seconds=seconds, new_seconds=new_seconds)


def read_neusight(folder: Path) -> Iterator[PairTimings]:
    """Yield the pairs of NeuSight's float32 kernels; convolutions on an A100 use TF32 there."""
    sizes = {
        "linear": ("M", "N", "K"),
        "bmm": ("B", "M", "N", "K"),
        "conv": (
            "B",
            "Input_Channel",
            "Output_Channel",
            "Kernel_Szie",
            "Input_Size",
            "Stride",
            "Padding",
        ),
        "add": ("B", "H"),
    }
    for name, (kind, arithmetic) in NEUSIGHT_KERNELS.items():
        keys = sizes[name]
        paths = {
            _neusight_device(path.stem): path
            for path in folder.rglob(f"dataset/train/collect/{name}/*/*.csv")
        }
        for older, newer in _NEUSIGHT_PAIRS:
            old, new = (
                pd.read_csv(paths[device]).dropna(subset=["Latency"]) for device in (older, newer)
            )
            shared = old.drop_duplicates(list(keys)).merge(
                new.drop_duplicates(list(keys))[[*keys, "Latency"]],
                on=list(keys),
                suffixes=("", "_new"),
            )  # fmt: skip
            if len(shared) < _MIN_OPERATIONS:
                continue
            rows = _timed_rows(
                arithmetic(shared), shared["Latency"] / 1e3, shared["Latency_new"] / 1e3
            )
            yield PairTimings(
                source="NeuSight, PyTorch 2.1",
                kind=kind,
                precision="float32",
                older=older,
                newer=newer,
                old=Specification(*_CARDS[older]),
                new=Specification(*_CARDS[newer]),
                count=len(rows),
                rows=_chosen(rows),
            )


def _neusight_device(stem: str) -> str:
    if "A100" in stem:
        return "A100 PCIe"
    return next(name for name in ("V100", "P100", "T4", "P4") if name in stem)


def read_deepbench(folder: Path) -> Iterator[PairTimings]:
    """Yield the pairs of DeepBench's float32 training kernels."""
    from benchmarks.published.deepbench import read_workbook
    from paradnn.families import make_model

    tables: dict[str, dict[str, pd.DataFrame]] = {}
    names = {name for pair in _DEEPBENCH_PAIRS for name in pair}
    devices = {}
    for name in names:
        machine, timings = read_workbook(
            next(folder.rglob(f"results/train/DeepBench_NV_{name}.xlsx"))
        )
        devices[name] = machine.device
        rows: dict[str, list[dict[str, Any]]] = {}
        for timing in timings:
            if (
                timing.kernel not in ("gemm", "conv2d", "rnn_kernel")
                or timing.precision != "float32"
            ):
                continue
            model = make_model({"name": timing.kernel, **timing.options})
            operation = model.as_operation(batch_size=timing.batch_size, precision="float32")
            key = str((sorted(timing.options.items()), timing.batch_size))
            rows.setdefault(timing.kernel, []).append(
                {**vars(operation), "key": key, "seconds": timing.seconds}
            )
        tables[name] = {kind: pd.DataFrame(found) for kind, found in rows.items()}
    for older, newer in _DEEPBENCH_PAIRS:
        sheets = [find_hardware(f"NVIDIA {devices[name].removeprefix('NVIDIA ')}") or find_hardware(devices[name]) for name in (older, newer)]  # fmt: skip
        specifications = [
            Specification(sheet.peak_flops["float32"], sheet.bandwidth, sheet.clock / 1e6)
            for sheet in sheets
            if sheet is not None and sheet.bandwidth is not None and sheet.clock is not None
        ]
        for kind in tables[older]:
            if len(specifications) < 2 or kind not in tables[newer]:
                continue
            new = tables[newer][kind].drop_duplicates("key").set_index("key")["seconds"]
            old = tables[older][kind].drop_duplicates("key")
            shared = old.assign(new_seconds=old["key"].map(new)).dropna(subset=["new_seconds"])
            if len(shared) < _MIN_OPERATIONS:
                continue
            yield PairTimings(
                source="DeepBench",
                kind=kind,
                precision="float32",
                older=older,
                newer=newer,
                old=specifications[0],
                new=specifications[1],
                count=len(shared),
                rows=_chosen(shared),
            )


def read_timm(folder: Path) -> Iterator[PairTimings]:
    """Yield the pairs of timm's models in inference, each as one operation.

    A model reads its weights, and writes and reads each activation once.
    """
    for older, newer, *stems in _TIMM_PAIRS:
        paths = [next(folder.rglob(f"results/benchmark-{stem}.csv")) for stem in stems]
        keys = ["model", "infer_img_size", "infer_batch_size"]
        old, new = (pd.read_csv(path).dropna(subset=["infer_step_time"]) for path in paths)
        shared = old.drop_duplicates(keys).merge(
            new.drop_duplicates(keys)[[*keys, "infer_step_time"]], on=keys, suffixes=("", "_new")
        )
        shared = shared.dropna(subset=["infer_gmacs", "infer_macts"])
        batch = shared["infer_batch_size"]
        columns = {
            "m": batch,
            "flops": 2e9 * shared["infer_gmacs"] * batch,
            "bytes": 2e6 * (2 * shared["infer_macts"] * batch + shared["param_count"]),
        }
        rows = _timed_rows(
            columns, shared["infer_step_time"] / 1e3, shared["infer_step_time_new"] / 1e3
        )
        rows = rows[rows["flops"] > 0]
        yield PairTimings(
            source=f"timm, {stems[0].removeprefix('infer-')}",
            kind="model",
            precision="mixed",
            older=older,
            newer=newer,
            old=Specification(*_CARDS[older]),
            new=Specification(*_CARDS[newer]),
            count=len(rows),
            rows=_chosen(rows),
        )


class Quality(NamedTuple):
    """Quality of the prediction of one pair.

    Attributes:
        errors: Median relative error of the speedups by estimator.
        coverage: Share of the speedups inside their 95% intervals.
        width: Median ratio of the upper to the lower end of the intervals.
        log_speedups: The predicted logarithms (n,).
        by_limit: Median relative error of the operations that a limit dominates; NaN without any.
    """

    errors: Mapping[str, float]
    coverage: float
    width: float
    log_speedups: np.ndarray
    by_limit: Mapping[str, float]


def evaluate(timings: PairTimings, pairs: Sequence[DevicePair], quantiles: np.ndarray) -> Quality:
    """Predict a pair without any pair that contains its newer device.

    Args:
        timings: The pair.
        pairs: All pairs, as the prior sees them.
        quantiles: Coefficients of the quantile regression over tables without the newer device.
    """
    known = pairs_without(timings.newer, pairs)
    upgrade = upgrade_between(timings.ratios, known)
    found = predict_speedups(timings.work, timings.fit, upgrade, _DRAWS)
    low, middle, high = np.quantile(found.log_speedups, (0.025, 0.5, 0.975), axis=1)
    predictions = {
        "smooth maximum": middle,
        "data sheet": np.log(expected_speedups(timings.work, timings.fit, timings.ratios)),
        "roofline": _roofline(timings, fitted=False),
        "fitted roofline": _roofline(timings, fitted=True),
        "quantile regression": _quantile_features(timings) @ quantiles,
    }
    if timings.kind in _ASKED_KINDS and timings.source.startswith(_ASKED_SOURCES):
        predictions["ask"] = _ask(timings)
    true = timings.true
    error = np.abs(np.expm1(middle - true))
    dominant = found.before.argmax(axis=0)
    return Quality(
        errors={
            name: float(np.median(np.abs(np.expm1(values - true))))
            for name, values in predictions.items()
        },
        coverage=float(np.mean((low <= true) & (true <= high))),
        width=float(np.exp(np.median(high - low))),
        log_speedups=middle,
        by_limit={
            name: float(np.median(error[dominant == place]))
            if (dominant == place).any()
            else np.nan
            for place, name in enumerate(LIMITS)
        },
    )


def _roofline(timings: PairTimings, *, fitted: bool) -> np.ndarray:
    """Return the logarithms (n,) of the speedups of a roofline.

    Args:
        timings: The pair.
        fitted: Whether the ceilings are the rates that 98% of the older device's operations do not
            exceed, in place of its data sheet.
    """
    work = timings.work
    peak, bandwidth = timings.old[:2]
    if fitted:
        peak = float(np.quantile(work.flops / work.seconds, 0.98))
        bandwidth = float(np.quantile(work.bytes / work.seconds, 0.98))
    terms = np.log([work.flops / peak, work.bytes / bandwidth])
    return terms.max(axis=0) - (terms - timings.ratios[:2, None]).max(axis=0)


def _quantile_features(timings: PairTimings) -> np.ndarray:
    """Return (n, 4): 1, and the ratio of each limit times its share of the time."""
    shares = limit_shares(timings.work, timings.fit.logs)
    ratios = timings.ratios[:, None] * shares
    return np.concatenate([np.ones((1, ratios.shape[1])), ratios]).T


def quantile_regression(tables: Sequence[PairTimings]) -> np.ndarray:
    """Return the coefficients (4,) of the median of the true speedups over the features.

    Minimizes the absolute errors as a linear program (Koenker and Bassett 1978).
    """
    parts = [(_quantile_features(table)[:_PER_TABLE], table.true[:_PER_TABLE]) for table in tables]
    design = np.concatenate([features for features, _ in parts])
    values = np.concatenate([true for _, true in parts])
    count, width = design.shape
    cost = np.concatenate([np.zeros(2 * width), np.ones(2 * count)])
    identity = eye_array(count, format="csr")
    equations = hstack([csr_array(design), csr_array(-design), identity, -identity])
    found = linprog(cost, A_eq=equations, b_eq=values, method="highs")
    return np.asarray(found.x[:width] - found.x[width : 2 * width])


def _ask(timings: PairTimings) -> np.ndarray:
    """Return the logarithms (n,) of the speedups of the predictor of `paradnn ask`.

    It is fitted to the older device, and its rates are multiplied by the ratios.
    """
    operations = operations_from_rows(timings.rows, timings.kind)
    seconds = timings.rows["seconds"].to_numpy(dtype=float)
    fit = OperationTimes.fit(operations[:_FITTED], seconds[:_FITTED])
    peak_ratio, bandwidth_ratio, _ = np.exp(timings.ratios)
    faster = replace(fit, peak=fit.peak * peak_ratio, bandwidth=fit.bandwidth * bandwidth_ratio)
    return fit.predict(operations).mean - faster.predict(operations).mean


class Choices(NamedTuple):
    """Choices between two newer devices for an operation that one older device ran.

    Attributes:
        choices: Number of choices.
        decided: How many of them the prediction decides: the 95% interval of the ratio of both
            speedups excludes 1.
        decisive: How many have true speedups that differ by more than a tenth, which exceeds the
            noise of published timings.
        judged: How many are decided and decisive.
        right: How many of the judged ones the prediction gets right.
        inside: How many true ratios are in their 95% intervals.
        named: How many of the decisive ones the sign of the predicted ratio gets right, decided or
            not.
        likely: How many of the decisive ones have an upgrade that is better with a probability of
            at least 80%.
        likely_right: How many of the likely ones the prediction gets right.
    """

    choices: int
    decided: int
    decisive: int
    judged: int
    right: int
    inside: int
    named: int
    likely: int
    likely_right: int


def count_choices(tables: Sequence[PairTimings], pairs: Sequence[DevicePair]) -> pd.DataFrame:
    """Count the choices between every two newer devices of an older one.

    Neither of the newer devices is in the prior.

    Returns:
        A row per older device, two newer ones and table, with the fields of `Choices`.
    """
    groups: dict[tuple[str, ...], list[PairTimings]] = {}
    for table in tables:
        key = (table.source, table.kind, table.precision, table.older)
        groups.setdefault(key, []).append(table)
    rows = []
    for (source, kind, precision, older), members in groups.items():
        for first, second in itertools.combinations(members, 2):
            choices = _count_choices(first, second, pairs)
            if choices is None:
                continue
            row = {"older": older, "first": first.newer, "second": second.newer}
            row |= {"source": source, "kind": kind, "precision": precision}
            rows.append(row | choices._asdict())
    return pd.DataFrame(rows)


def _count_choices(
    first: PairTimings, second: PairTimings, pairs: Sequence[DevicePair]
) -> Choices | None:
    """Count the choices between two devices; None if they ran no operation in common."""
    columns = [*COLUMNS, "variant"]
    keys = [table.rows[columns].round(3).apply(tuple, axis=1) for table in (first, second)]
    place = {key: position for position, key in enumerate(keys[1])}
    shared = [(own, place[key]) for own, key in enumerate(keys[0]) if key in place]
    if not shared:
        return None
    positions = np.array(shared)
    work = TimedWork.single(
        first.work.flops[positions[:, 0]],
        first.work.bytes[positions[:, 0]],
        first.work.seconds[positions[:, 0]],
    )
    known = pairs_without(first.newer, pairs_without(second.newer, pairs))
    upgrade = upgrade_between(first.ratios, known)
    other = upgrade_between(second.ratios, known)
    other = compared_with(upgrade, other, second.ratios - first.ratios, known)
    draws = [
        predict_speedups(work, first.fit, each, _DRAWS).log_speedups for each in (upgrade, other)
    ]
    low, middle, high = np.quantile(draws[0] - draws[1], (0.025, 0.5, 0.975), axis=1)
    true = first.true[positions[:, 0]] - second.true[positions[:, 1]]
    is_decisive = np.abs(true) > np.log1p(_DECISIVE)
    is_decided = (low > 0) | (high < 0)
    is_right = np.sign(middle) == np.sign(true)
    is_judged = is_decided & is_decisive
    probability = (draws[0] > draws[1]).mean(axis=1)
    is_likely = is_decisive & (np.abs(probability - 0.5) >= _LIKELY - 0.5)
    return Choices(
        choices=len(true),
        decided=int(is_decided.sum()),
        decisive=int(is_decisive.sum()),
        judged=int(is_judged.sum()),
        right=int((is_judged & is_right).sum()),
        inside=int(((low <= true) & (true <= high)).sum()),
        named=int((is_decisive & is_right).sum()),
        likely=int(is_likely.sum()),
        likely_right=int((is_likely & is_right).sum()),
    )


def _print_choices(choices: pd.DataFrame) -> None:
    """Print how often the better of two upgrades is named, by device and in total."""
    counts = [*Choices._fields]
    table = choices.groupby(["older", "first", "second"], sort=False)[counts].sum()
    total = table.sum()
    table.loc[("all", "", ""), :] = total
    shares = pd.DataFrame(
        {
            "choices": table["choices"].astype(int),
            "decisive": table["decisive"].astype(int),
            "decided of decisive": table["judged"] / table["decisive"],
            "right of these": table["right"] / table["judged"],
            "likely of decisive": table["likely"] / table["decisive"],
            "right of likely": table["likely_right"] / table["likely"],
            "right of decisive": table["named"] / table["decisive"],
            "inside": table["inside"] / table["choices"],
        }
    )
    print("\nchoices between two newer devices:")
    print(shares.round(3).to_string())


def bandwidth_alone(table: PairTimings, pairs: Sequence[DevicePair]) -> tuple[float, float]:
    """Return median error and coverage of a pair in which only the bandwidth changed.

    H100 and H200 are the same chip with different memory.
    """
    upgrade = changed_hardware(
        peak=1.0,
        bandwidth=float(np.exp(table.ratios[1])),
        overhead=1.0,
        pairs=pairs_without(table.newer, pairs),
    )
    found = predict_speedups(table.work, table.fit, upgrade, _DRAWS)
    low, middle, high = np.quantile(found.log_speedups, (0.025, 0.5, 0.975), axis=1)
    inside = (low - _ROUNDING <= table.true) & (table.true <= high + _ROUNDING)
    return float(np.median(np.abs(np.expm1(middle - table.true)))), float(inside.mean())


def _write_prior(tables: Sequence[PairTimings]) -> None:
    """Write the shipped prior: a row per table."""
    path = Path(generations.__file__).with_suffix(".csv")
    names = ("compute", "memory", "overhead")
    rows = []
    for table in tables:
        pair = table.pair
        row: dict[str, Any] = {
            "older": table.older,
            "newer": table.newer,
            "source": table.source,
            "kind": table.kind,
            "precision": table.precision,
            "operations": table.count,
        }
        ratios = zip(("peak", "bandwidth", "clock"), np.exp(pair.ratios), strict=True)
        row |= {f"{name}_ratio": f"{value:.4g}" for name, value in ratios}
        row |= {
            f"{name}_gain": f"{v:.4g}" for name, v in zip(names, np.exp(pair.gains), strict=True)
        }
        row |= {f"{name}_share": f"{v:.3f}" for name, v in zip(names, pair.shares, strict=True)}
        rows.append(row | {"scatter": f"{pair.scatter:.4f}"})
    _write_rows(path, rows)


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _result_row(table: PairTimings, quality: Quality) -> dict[str, Any]:
    row: dict[str, Any] = {
        "older": table.older,
        "newer": table.newer,
        "source": table.source,
        "kind": table.kind,
        "precision": table.precision,
        "operations": table.count,
        "true": f"{np.exp(np.median(table.true)):.3f}",
        "predicted": f"{np.exp(np.median(quality.log_speedups)):.3f}",
        "coverage": f"{quality.coverage:.3f}",
        "width": f"{quality.width:.2f}",
    }
    for name in _ESTIMATORS:
        value = quality.errors.get(name)
        row[name] = "" if value is None else f"{value:.4f}"
    for name, value in quality.by_limit.items():
        row[f"{name}_error"] = "" if np.isnan(value) else f"{value:.4f}"
    return row


def _print_summary(results: pd.DataFrame) -> None:
    """Print the medians by pair of devices, the worst first, and over all of them."""
    numbers = results.assign(
        **{name: pd.to_numeric(results[name]) for name in (*_ESTIMATORS, "coverage", "width")}
    )
    groups = numbers.groupby(["older", "newer"], sort=False)
    by_pair = groups[[*_ESTIMATORS, "coverage", "width"]].median()
    by_pair["tables"] = groups.size()
    by_pair["coverage"] = groups["coverage"].mean()
    print(by_pair.sort_values("smooth maximum", ascending=False).round(3).to_string())
    print("\nmedian over pairs of devices, and mean coverage:")
    print(by_pair[[*_ESTIMATORS]].median().round(3).to_string())
    print(round(float(by_pair["coverage"].mean()), 3))
    kinds = numbers.groupby("kind")
    by_kind = kinds[[*_ESTIMATORS]].median().assign(coverage=kinds["coverage"].mean())
    print(by_kind.round(3).to_string())


def main() -> None:
    """Evaluate the tables of the given folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    readers = {
        "aiconfigurator": read_aiconfigurator,
        "neusight": read_neusight,
        "deepbench": read_deepbench,
        "timm": read_timm,
    }
    for name in readers:
        parser.add_argument(f"--{name}", type=Path, help="a clone of its repository")
    parser.add_argument("--write", action="store_true", help="write the shipped prior")
    given = parser.parse_args()
    tables = [
        table
        for name, read in readers.items()
        if (folder := getattr(given, name)) is not None
        for table in read(folder)
    ]
    if not tables:
        parser.error("name the clone of at least one repository, such as --timm DIR")
    pairs = [table.pair for table in tables]
    if given.write:
        _write_prior(tables)
    coefficients = {
        newer: quantile_regression(
            [table for table in tables if newer not in (table.older, table.newer)]
        )
        for newer in dict.fromkeys(table.newer for table in tables)
    }
    qualities = [evaluate(table, pairs, coefficients[table.newer]) for table in tables]
    rows = [_result_row(table, quality) for table, quality in zip(tables, qualities, strict=True)]
    _write_rows(RESULTS, rows)
    _print_summary(pd.DataFrame(rows))
    choices = count_choices(tables, pairs)
    if not choices.empty:
        _write_rows(CHOICES, choices.to_dict("records"))
        _print_choices(choices)
    alone = [
        bandwidth_alone(table, pairs)
        for table in tables
        if (table.older, table.newer) == ("H100", "H200")
    ]
    if alone:
        errors, coverages = zip(*alone, strict=True)
        print(
            f"H100 to H200 as bandwidth alone: {np.median(errors):.1%} median error, "
            f"{np.mean(coverages):.1%} inside"
        )


if __name__ == "__main__":
    main()
