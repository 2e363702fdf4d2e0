"""Generate the files of the atlas from clones of the source repositories.

    python -m benchmarks.published.atlas paradnn neusight=DIR aiconfigurator=DIR [out=DIR]

Keeps a few hundred timings of each table, and the accuracy with which they predict the others.
ai-dynamo/aiconfigurator (Apache-2.0): kernels under vLLM, SGLang and TensorRT-LLM in Parquet files,
one latency per row, timed in CUDA graphs. sitar-lab/NeuSight (MIT): PyTorch 2.1 kernels in float32,
called from Python. Emma926/paradnn (Apache-2.0): all whole training steps of fully connected models
on TPU v2 and V100, which ship with the package.
"""

import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.atlas import DATA, TimingGroup, operations_from_rows, version_key
from analysis.atlas.kernels import (
    COLUMNS,
    Columns,
    attention,
    collective,
    convolution,
    decode,
    elementwise,
    experts,
    product,
)
from analysis.lazy import np, pd, special
from paradnn.core.errors import DataError
from paradnn.forecast.operation_times import MIN_OPERATIONS, OperationTimes

#: Numbers of timings of a table: kept ones, those that errors are measured on, and those from which
#: both are chosen.
_KEPT = 300
_TESTED = 1000
_LOOKED_AT = 6000
#: Bytes of a weight by the name of its type; other types are omitted.
WIDTHS = {
    **dict.fromkeys(("bfloat16", "float16"), 2.0),
    **dict.fromkeys(("fp8", "fp8_block", "int8_wo"), 1.0),
    **dict.fromkeys(("nvfp4", "int4_wo", "w4a16_mxfp4"), 0.5),
}
#: Fields of a group that are not written with its timings.
_NOT_KEPT = ("timings", "overhead_seconds", "dispatch_seconds", "fit", "speed_ratios")
#: Minimum factor on intervals, and minimum size of a table for widening.
_NARROWEST = 0.8
_LEVEL = 0.95


def build_atlas(sources: dict[str, Path], out: Path) -> list[TimingGroup]:
    """Write the atlas's files of the named sources and return its groups.

    Raises:
        DataError: If a folder is not a clone of its source.
    """
    readers = {"aiconfigurator": _aiconfigurator, "neusight": _neusight, "paradnn": _paradnn}
    groups: list[TimingGroup] = []
    for name, folder in sources.items():
        count = len(groups)
        for table in readers[name](folder):
            if len(table.timings) >= 4 * MIN_OPERATIONS:
                groups.append(_chosen(replace(table, number=len(groups))))
                print(groups[-1].description)
        if len(groups) == count:
            raise DataError(
                f"{folder}: holds no table of {name}; clone its repository and name that folder"
            )
    out.mkdir(parents=True, exist_ok=True)
    kept = (group.timings.assign(group=group.number) for group in groups)
    timings = pd.concat(kept, ignore_index=True).drop(columns="weight")
    types = {
        **dict.fromkeys(("seconds", "flops", "bytes"), "float32"),
        "variant": "category",
        "group": "int32",
    }
    timings.astype(types).to_parquet(out / "timings.parquet", compression="zstd", index=False)
    entries = []
    for group in groups:
        entry = {name: value for name, value in vars(group).items() if name not in _NOT_KEPT}
        # The file keeps the name of its first version.
        entry["call"] = entry.pop("includes_call")
        entries.append(entry)
    (out / "groups.json").write_text(json.dumps(entries, indent=0) + "\n")
    return groups


def _chosen(group: TimingGroup) -> TimingGroup:
    """Return the group with its kept timings and its errors on the omitted ones.

    Whole steps are all kept. Timings of one `weight` are omitted together.
    """
    rows = group.timings
    random = np.random.default_rng(
        zlib.crc32(repr((group.source, group.device, group.kind, group.version)).encode())
    )
    order = random.permutation(len(rows))
    fitted = order[:_KEPT]
    rest = order[_KEPT:]
    weights = rows["weight"].to_numpy()
    seconds = rows["seconds"].to_numpy()
    apart = rest[~np.isin(weights[rest], weights[fitted])]
    tested = (apart if len(apart) >= 4 * MIN_OPERATIONS else rest)[:_TESTED]
    times = OperationTimes.fit(operations_from_rows(rows.iloc[fitted], group.kind), seconds[fitted])
    if len(tested) >= 4 * MIN_OPERATIONS:
        found = times.predict(operations_from_rows(rows.iloc[tested], group.kind))
        error = np.log(seconds[tested]) - found.mean
        spread = found.spread
        freedom = found.freedom
    else:  # each from the others
        tested = fitted
        left = times.leave_one_out
        error = left.error
        spread = left.spread
        freedom = left.freedom
    ratio = np.abs(error) / (spread * float(special.stdtrit(freedom, 0.5 + _LEVEL / 2)))
    half = len(ratio) // 2
    relative = np.abs(np.expm1(-error))
    scale = max(_NARROWEST, float(np.quantile(ratio[:half], _LEVEL)))
    figures = {
        "median_error": round(float(np.median(relative)), 4),
        "mean_error": round(float(np.mean(relative)), 4),
        "coverage": round(float(np.mean(ratio[half:] <= scale)), 4),
        "scale": round(scale, 3),
    }
    chosen = order if group.kind == "fc" else fitted
    return replace(
        group, kept=len(chosen), held_out=len(tested), timings=rows.iloc[chosen], **figures
    )  # type: ignore


def _commit(folder: Path) -> str:
    """Return the commit of a clone, or an empty string."""
    found = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else ""


def _timings(
    columns: Columns,
    seconds: pd.Series,
    variant: str | pd.Series,
    weights: Sequence[str],
    frame: pd.DataFrame,
) -> pd.DataFrame:
    """Return the valid timings of a published table; `weights` names the columns that identify a
    weight.
    """
    rows = pd.DataFrame({name: columns.get(name, 1) for name in COLUMNS}, index=frame.index)
    sizes = [name for name in COLUMNS if name not in ("flops", "bytes")]
    rows[sizes] = np.maximum(1, np.rint(rows[sizes].astype("float64"))).astype("int64")
    held = frame.groupby(list(weights)).ngroup()
    rows = rows.assign(seconds=seconds.astype("float64"), variant=variant, weight=held)
    kept: pd.DataFrame = rows[rows["seconds"].gt(0) & np.isfinite(rows["seconds"])]
    return kept.reset_index(drop=True)


#: File of aiconfigurator -> kind, column of the precision, columns of a weight, arithmetic of its
#: frame.
KERNEL_TABLES: dict[str, tuple[str, str, Sequence[str], Callable[[pd.DataFrame, float], Columns]]] = {
    "gemm_perf": (
        "gemm", "gemm_dtype", ("n", "k"), lambda f, width: product(f["m"], f["n"], f["k"], 2, weight_width=width)
    ),
    "context_attention_perf": (
        "attention", "kv_cache_dtype", ("num_heads", "num_key_value_heads", "head_dim"),
        lambda f, _: attention(f["batch_size"], f["isl"], f["num_heads"], f["num_key_value_heads"], f["head_dim"],
                               f["window_size"]),
    ),
    "encoder_attention_perf": (
        "encoder_attention", "attn_dtype", ("num_heads", "head_dim"),
        lambda f, _: attention(f["batch_size"], f["isl"], f["num_heads"], f["num_heads"], f["head_dim"], causal=False),
    ),
    "generation_attention_perf": (
        "decode", "kv_cache_dtype", ("num_heads", "num_key_value_heads", "head_dim"),
        lambda f, width: decode(f["batch_size"], f["step"] + 1, f["num_heads"], f["num_key_value_heads"], f["head_dim"],
                                f["window_size"], width),
    ),
    "moe_perf": (
        "experts", "moe_dtype", ("hidden_size", "inter_size", "num_experts", "moe_tp_size", "moe_ep_size"),
        lambda f, width: experts(
            tokens=f["num_tokens"],
            hidden=f["hidden_size"],
            inner=f["inter_size"],
            chosen=f["topk"],
            count=f["num_experts"],
            tensor=f["moe_tp_size"],
            parallel=f["moe_ep_size"],
            width=width,
            skew=f["distribution"].str.extract(r"power_law_([\d.]+)")[0].astype(float).fillna(0.0),
        ),
    ),
    **{
        f"{name}_perf": (
            "collective", f"{column}_dtype", ("num_gpus",),
            lambda f, _: collective(f["op_name"], f["num_gpus"], 2 * f["message_size"]),
        )
        for name, column in (("nccl", "nccl"), ("custom_allreduce", "allreduce"))
    },
}  # fmt: skip
#: For tables that time a shape in several ways, the way that is used in a step: collectives within
#: CUDA graphs, attention with 16-bit arithmetic for any type of cache, and experts with gates.
PREFERRED_ROWS = {"backend": "_graph", "attn_dtype": "bfloat16", "kernel_source": "^(?!.*nongated)"}
#: Products whose timings include work that no step does. TensorRT-LLM's fp8 products compute the
#: scale of their operand, which published weights contain. vLLM's products in fp8 blocks are called
#: outside of a graph in versions whose fastest product takes longer than this.
_SCALED = ("TensorRT-LLM", "fp8")
_CALLED = ("vLLM", "fp8_block")
_IN_GRAPH = 1.5e-5
#: Smallest share of a table at which a kernel is listed.
_NAMED = 0.05
#: Columns that distinguish timings of equal sizes.
_VARIANTS = {"experts": "distribution", "collective": "op_name"}
_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "nccl": "NCCL",
    "oneccl": "oneCCL",
}


def _aiconfigurator(folder: Path) -> Iterator[TimingGroup]:
    """Yield products of every version, and other kinds of the newest version of each engine."""
    root = next(iter(sorted(folder.rglob("systems/data"))), folder)
    commit = _commit(folder)
    paths: dict[tuple[str, str, str], dict[str, Path]] = {}
    for path in sorted(root.rglob("*.parquet")):
        if path.stem in KERNEL_TABLES and len(parts := path.relative_to(root).parts) == 5:
            system, _, engine, version, _ = parts
            paths.setdefault((system, path.stem, engine), {})[version] = path
    for (system, stem, engine), versions in paths.items():
        kind, column, weights, arithmetic = KERNEL_TABLES[stem]
        ordered = sorted(versions, key=version_key)
        for version in ordered if kind == "gemm" else ordered[-1:]:
            frame = pd.read_parquet(versions[version])
            if "latency" in frame:
                frame = frame[frame["latency"] > 0]
            else:
                frame = frame[:0]
            for key, words in PREFERRED_ROWS.items():
                if key in frame and frame[key].str.contains(words).any():
                    frame = frame[frame[key].str.contains(words)]
            if "window_size" not in frame:
                frame = frame.assign(window_size=0)
            for name, rows in frame.groupby(column, sort=True):
                precision = {"half": "bfloat16", "float16": "bfloat16"}.get(str(name), str(name))
                if precision not in WIDTHS or (kind == "collective" and precision != "bfloat16"):
                    continue
                count = len(rows)
                rows = rows.sample(min(len(rows), _LOOKED_AT), random_state=0)
                variant: pd.Series | str = ""
                if kind in _VARIANTS:
                    variant = rows[_VARIANTS[kind]].astype(str)
                columns = arithmetic(rows, WIDTHS[precision])
                seconds = rows["latency"] / 1e3
                if "kernel_source" in rows:
                    kernels = rows["kernel_source"].value_counts(normalize=True)
                else:
                    kernels = pd.Series()
                timings = _timings(columns, seconds, variant, weights, rows)
                of = _NAMES.get(engine, engine), precision
                yield TimingGroup(
                    source="ai-dynamo/aiconfigurator", commit=commit, device=device_name(system), engine=of[0],
                    version=version, precision=precision, kind=kind, rows=count, timings=timings,
                    kernels=sorted(map(str, kernels[kernels >= _NAMED].index)),
                    includes_call=kind == "gemm" and (of == _SCALED or (of == _CALLED and min(timings["seconds"]) > _IN_GRAPH)),
                )  # fmt: skip


def device_name(system: str) -> str:
    """Return the name of a device in its maker's spelling; for example, h200_sxm is H200 SXM."""
    known = {"rtx_pro_6000_server": "RTX PRO 6000", "b60": "Arc Pro B60"}
    return known.get(system, system.upper().replace("_", " ")).removesuffix(" SXM")


#: Name of a folder of NeuSight's timings -> kind of kernel, and its arithmetic from the columns.
NEUSIGHT_KERNELS: dict[str, tuple[str, Callable[[pd.DataFrame], Columns]]] = {
    "linear": ("gemm", lambda f: product(f["M"], f["N"], f["K"], 4)),
    "bmm": ("bmm", lambda f: product(f["M"], f["N"], f["K"], 4, f["B"])),
    "conv": (
        "conv2d",
        lambda f: convolution(
            images=f["B"],
            channels=f["Input_Channel"],
            filters=f["Output_Channel"],
            kernel=f["Kernel_Szie"],
            size=f["Input_Size"],
            stride=f["Stride"],
            padding=f["Padding"],
        ),
    ),
    "add": ("elementwise", lambda f: elementwise(f["B"] * f["H"], 4)),
}


def _neusight(folder: Path) -> Iterator[TimingGroup]:
    """Yield kernels of five GPUs in float32, forward only."""
    commit = _commit(folder)
    weights = {
        "gemm": ("N", "K"),
        "bmm": ("N", "K"),
        "conv2d": ("Input_Channel", "Output_Channel", "Kernel_Szie"),
        "elementwise": ("H",),
    }
    for name, (kind, arithmetic) in NEUSIGHT_KERNELS.items():
        for path in sorted(folder.rglob(f"dataset/train/collect/{name}/*/*.csv")):
            frame = pd.read_csv(path).dropna(subset=["Latency"])
            device = re.sub(r"Tesla |NVIDIA |[- ]PCI[Ee]|[- ]\d+GB", "", path.stem).replace(
                "A100", "A100 PCIe"
            )
            if kind == "conv2d":
                variant = "forward"
            elif kind == "elementwise":
                variant = "product"
            else:
                variant = "nn"
            yield TimingGroup(
                source="sitar-lab/NeuSight", commit=commit, device=device, engine="PyTorch", version="2.1.0",
                precision="float32", kind=kind, rows=len(frame), includes_call=True,
                timings=_timings(
                    arithmetic(frame), frame["Latency"] / 1e3, variant, weights[kind], frame
                ),
            )  # fmt: skip


def _paradnn(_: Path) -> Iterator[TimingGroup]:
    """Yield whole training steps as one kernel each: the batch by a layer's weights, layers in
    sequence.
    """
    from analysis.published.source import load_shipped
    from paradnn.families import make_model

    published = load_shipped("archive").runs
    measured = [run for run in published if run.outcome == "ok" and "step_time_ms" in run.metrics]
    for device in sorted({run.tags["device"] for run in measured}):
        rows = [run for run in measured if run.tags["device"] == device]
        precision = rows[0].params["precision"]
        columns = []
        for run in rows:
            keys = ("layers", "nodes", "input_size", "output_size")
            batch = int(run.params["batch_size"])
            model = {key: int(run.params[f"model.{key}"]) for key in keys}
            costs = make_model({"name": "fc", **model}).costs(
                batch_size=batch, precision=precision, mode="train", optimizer="rmsprop"
            )
            sizes = {"m": batch, "n": model["nodes"], "k": model["nodes"], "calls": model["layers"]}
            sizes |= {"images": model["input_size"], "window": model["output_size"]}
            columns.append({**sizes, "flops": costs.flops_per_step, "bytes": costs.bytes_per_step})
        frame = pd.DataFrame(columns)
        seconds = pd.Series([run.metrics["step_time_ms"] / 1e3 for run in rows])
        named = {str(name): frame[name] for name in frame}
        yield TimingGroup(
            source="Emma926/paradnn", commit="", device=device, engine="TensorFlow", version="1.x", precision=precision,
            kind="fc", rows=len(frame), timings=_timings(named, seconds, "train", ("n", "calls"), frame),
        )  # fmt: skip


def main(*words: str) -> None:
    """Make the files of the named sources; without `out=` those of the package."""
    sources = {name: Path(folder) for name, _, folder in (word.partition("=") for word in words)}
    out = sources.pop("out", DATA)
    groups = build_atlas(sources, out)
    print(
        f"{len(groups)} tables of {len({group.device for group in groups})} devices are in the atlas"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
