"""Predict times of served models from the atlas's kernels and compare them with measurements.

    python -m benchmarks.served --aiconfigurator DIR

DIR is a clone of github.com/ai-dynamo/aiconfigurator, whose `silicon_sample.csv` holds time to
first token and time per output token of 5,221 deployments at fixed numbers of requests in flight.
None of it is in the atlas.

A step that writes one token for each of b requests is the sum of its kernels: products, attention
of one token to a cache that holds the prompt and half of the answer, experts, two all-reduces per
layer if several devices share a layer, and small kernels. While a request of `o` tokens is
answered, o steps are taken and b - 1 prompts are read, one for each leaving request. A token
therefore takes a step and (b - 1) / o prompts. The first token of a request takes at least its own
prompt.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.atlas import Atlas, TimingGroup, load, make_operation, version_key
from analysis.atlas.kernels import attention, collective, decode, experts, product
from paradnn.families.operations import Operation
from paradnn.platform.specifications import find_hardware

_ROOT = Path("aic-core/src/aiconfigurator_core")
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
_WIDTHS = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5, "w4a16_mxfp4": 0.5}
#: Kernels of a layer in addition to those that were timed: two norms, positions, cache, activation.
#: Times of products include quantization. There are two more if queries and keys are normalized.
_SMALL = 5
#: Seconds of each small kernel in addition to the time of its memory traffic.
_KERNEL = 2e-6
#: Distributions of tokens over experts in the timings; the closest to real ones first.
_SKEW = "power_law_1.2"


class NotExpressed(Exception):
    """Exception with the reason for which a row is omitted."""


@dataclass
class Row:
    """A deployment: the count of each (phase, group, operation) per token."""

    deployment: Mapping[str, Any]
    counts: Counter[tuple[str, TimingGroup, Operation]] = field(default_factory=Counter)
    small: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        phase: str,
        group: TimingGroup | None,
        kind: str,
        columns: Any,
        count: float,
        variant: str = "",
    ) -> None:
        """Add an operation `count` times. Raises NotExpressed if it was never timed."""
        if group is None:
            raise NotExpressed(f"no {kind} timed")
        self.counts[phase, group, make_operation(kind, columns, variant)] += count  # type: ignore[assignment]


def expressed(deployment: Mapping[str, Any], config: Mapping[str, Any], atlas: Atlas) -> Row:
    """Return the kernels of a deployment."""
    if deployment["mode"] != "agg":
        raise NotExpressed("prompts are read elsewhere")
    if "kv_lora_rank" in config or "hidden_size" not in config:
        raise NotExpressed("latent or linear attention")
    if deployment["attention_dp_size"] > 1:
        raise NotExpressed("attention shared by requests")
    row = Row(deployment)
    tensor = int(deployment["tp_size"])
    device = atlas.device_name(deployment["system"].replace("_sxm", ""))
    engine = _ENGINES[deployment["backend"]]
    is_oss = config["model_type"] == "gpt_oss"
    if is_oss or deployment["gemm_quant_mode"] != deployment["gemm_quant_mode"]:
        numbers = "bfloat16"
    else:
        numbers = deployment["gemm_quant_mode"]
    of_experts = "w4a16_mxfp4" if is_oss else numbers
    if numbers == "fp8" and (config.get("quantization_config") or {}).get("weight_block_size"):
        numbers = of_experts = "fp8_block"
    hidden, layers, heads, keys = (
        config[name]
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
        )
    )
    size = config.get("head_dim") or hidden // heads
    own = max(1, heads // tensor)
    own_keys = max(1, keys // tensor)
    count = config.get("num_local_experts") or config.get("num_experts")
    chosen = config.get("num_experts_per_tok")
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    normalized = config.get("use_qk_norm") or config["model_type"].startswith("qwen3")
    windows = Counter(config["sliding_window"] if kind.startswith("sliding") else 0
                      for kind in config.get("layer_types") or ["full"] * layers)  # fmt: skip
    batch = int(deployment["batch_size"])
    prompt = int(deployment["isl"])
    answer = int(deployment["osl"])

    def find(kind: str, precision: str) -> TimingGroup | None:
        """Return the group of the version nearest to the served one."""
        asked = (device, kind, precision, engine)
        versions = {
            one.version
            for one in atlas.groups
            if (one.device, one.kind, one.precision, one.engine) == asked
        }
        served = version_key(str(deployment["backend_version"])) or [10**6]
        at_least = [one for one in versions if version_key(one) >= served]
        if not versions:
            return None
        if at_least:
            version = min(at_least, key=version_key)
        else:
            version = max(versions, key=version_key)
        return atlas.find_group(device, kind, precision, engine, version)

    for phase, tokens in (("step", batch), ("prompt", prompt)):
        gemm = find("gemm", numbers)
        width = _WIDTHS[numbers]
        sides = [((own + 2 * own_keys) * size, hidden), (hidden, own * size)]
        if not count:
            sides += [(2 * inner // tensor, hidden), (hidden, inner // tensor)]
        for n, k in sides:
            row.add(phase, gemm, "gemm", product(tokens, n, k, 2, weight_width=width), layers)
        for window, many in windows.items():
            if phase == "step":
                if engine == "TensorRT-LLM" and numbers != "bfloat16":
                    bytes_of = 1
                else:
                    bytes_of = 2
                columns = decode(batch, prompt + answer // 2, own, own_keys, size, window, bytes_of)
            else:
                columns = attention(1, prompt, own, own_keys, size, window)
            kind = "decode" if phase == "step" else "attention"
            if engine == "TensorRT-LLM" and numbers != "bfloat16":
                cache = "fp8"
            else:
                cache = "bfloat16"
            row.add(phase, find(kind, cache), kind, columns, many)
        if count:
            tensors = max(1, int(deployment["moe_tp_size"]))
            parallel = max(1, int(deployment["moe_ep_size"]))
            group = find("experts", of_experts) or find(
                "experts", "fp8_block" if of_experts == "fp8" else of_experts
            )
            columns = experts(
                tokens=tokens,
                hidden=hidden,
                inner=inner,
                chosen=chosen,
                count=count,
                tensor=tensors,
                parallel=parallel,
                width=_WIDTHS[of_experts],
                skew=1.2,
            )
            row.add(phase, group, "experts", columns, layers, _SKEW)
            row.add(
                phase, find("gemm", "bfloat16"), "gemm", product(tokens, count, hidden, 2), layers
            )
        if tensor > 1:
            group = find("collective", "bfloat16") or atlas.find_group(
                device, "collective", "bfloat16", "NCCL"
            )
            row.add(phase, group, "collective", collective("all_reduce", tensor, 2 * tokens * hidden), 2 * layers,
                    "all_reduce")  # fmt: skip
        part = find_hardware(device)
        moved = 4 * tokens * hidden / (part.bandwidth if part and part.bandwidth else 3e12)
        row.small[phase] += layers * (_SMALL + 2 * bool(normalized)) * (_KERNEL + moved)  # type: ignore[assignment]
        last = batch if phase == "step" else 1
        row.add(
            phase,
            find("gemm", "bfloat16"),
            "gemm",
            product(last, config["vocab_size"] // tensor, hidden, 2),
            1,
        )
    return row


def predicted(rows: list[Row]) -> pd.DataFrame:
    """Return a row per deployment: seconds of a step and a prompt by kind, and of a token."""
    wanted: defaultdict[TimingGroup, dict[Operation, float]] = defaultdict(dict)
    for row in rows:
        for _, group, one in row.counts:
            wanted[group][one] = 0.0
    for group, found in wanted.items():
        found.update(
            zip(found, np.exp(group.predict([*found]).mean) + group.overhead_seconds, strict=True)
        )
    table = []
    for row in rows:
        parts: Counter[str] = Counter(row.small)
        parts.update({f"{phase}.small": value for phase, value in row.small.items()})
        for (phase, group, one), count in row.counts.items():
            parts[f"{phase}.{one.kind}"] += count * wanted[group][one]  # type: ignore[assignment]
            parts[phase] += count * wanted[group][one]  # type: ignore[assignment]
        share = (float(row.deployment["batch_size"]) - 1) / float(row.deployment["osl"])
        table.append({**row.deployment, **parts, "token": parts["step"] + share * parts["prompt"]})
    return pd.DataFrame(table)


def _configs(folder: Path) -> dict[str, Any]:
    """Map the name of a model, without owner and weight format, to its published sizes."""
    paths = (folder / _ROOT / "model_configs").glob("*_config.json")
    found = {path.stem.removesuffix("_config"): json.loads(path.read_text()) for path in paths}
    return {name.split("--")[-1].replace("Meta-", ""): config for name, config in found.items()}


def main() -> None:
    """Print errors of tokens and prompts by system and engine, and the omitted rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--aiconfigurator", type=Path, required=True)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    sample = pd.read_csv(given.aiconfigurator / _ROOT / "systems" / "silicon_sample.csv")
    configs = _configs(given.aiconfigurator)
    rows = []
    left = Counter[str]()
    for deployment in sample.to_dict("records"):
        name = deployment["model_path"].split("/")[-1]
        for ending in ("-Instruct", "-FP8", "-NVFP4", "-Instruct"):
            name = name if name in configs else name.removesuffix(ending)
        try:
            rows.append(expressed(deployment, configs.get(name, {"kv_lora_rank": 0}), load()))
        except NotExpressed as why:
            left[str(why)] += 1
    table = predicted(rows)
    table["off"] = np.log(1e3 * table["token"] / table["silicon_tpot_ms"])
    table["first"] = np.log(1e3 * table["prompt"] / table["silicon_ttft_ms"])
    if given.csv:
        table.to_csv(given.csv, index=False)
    print(f"{len(sample)} points, {len(table)} expressed; omitted: {dict(left)}")
    error = table.assign(error=np.abs(np.expm1(table["off"])), ratio=np.exp(table["off"]))
    for by in (["system", "backend"], ["model_path"]):
        print(
            error.groupby(by).agg(
                points=("error", "size"), error=("error", "median"), ratio=("ratio", "median")
            )
        )
    few = np.exp(table.loc[table["batch_size"] <= 4, "first"])
    print(
        f"prompt / time to first token, at most 4 in flight, {len(few)} points: {few.median():.2f} "
        "in the median"
    )
    print(f"all: {error['error'].median():.1%} in the median")


if __name__ == "__main__":
    main()
