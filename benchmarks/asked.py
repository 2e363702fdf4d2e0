"""Compare predictions of `paradnn ask` with published measurements of served models.

    python -m benchmarks.asked SILICON_SAMPLE.csv [--every N] [--csv FILE]

The file is `silicon_sample.csv` of github.com/ai-dynamo/aiconfigurator: times per output token of
served models at fixed numbers of requests in flight. None of it is in the atlas, and nothing is
fitted to it. Only the dense models of the presets are compared, with their tensor-parallel devices.
While a request of `o` tokens is answered, the server takes `o` steps and reads one prompt for each
leaving request, so that a token takes a step and (b - 1) / o prompts.

It prints by device, engine and number of devices how many measured times are within the 95%
intervals, the median error, and the median ratio of predicted to measured times. It also prints how
often the better of two devices is named if both were measured with the same settings.
"""

import argparse
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.atlas import load
from analysis.atlas.estimate import estimate_step_time
from analysis.atlas.offers import PositiveInterval
from paradnn.config.paths import CONFIG

_ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
#: Preset with the sizes of a model, by a part of the model's published name.
_PRESETS = {
    "Llama-3.1-8B": "llama3-8b",
    "Llama-3.1-70B": "llama3-70b",
    "Qwen3-32B": "qwen3-32b",
    "Qwen3-235B": "qwen3-235b-a22b",
}
#: Columns that are equal for two deployments whose devices are compared.
_SETTING = ["model_path", "backend", "precision", "isl", "osl", "batch_size", "tp_size"]


def preset_row(name: str) -> dict[str, Any]:
    """Return the sizes of a preset as keys of a point."""
    keys = yaml.safe_load((CONFIG / "model" / f"{name}.yaml").read_text())
    row = {f"model.{key}": value for key, value in keys.items() if key != "name"}
    return {"family": keys["name"], **row}


def point(deployment: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Return a deployment as a point; None if `ask` does not support it."""
    path = str(deployment["model_path"])
    presets = [preset for name, preset in _PRESETS.items() if name in path]
    if not presets or deployment["mode"] != "agg":
        return None
    precision = deployment["gemm_quant_mode"]
    if not isinstance(precision, str):
        precision = "bfloat16"
    return {
        **preset_row(presets[0]),
        "mode": "generate",
        "batch_size": int(deployment["batch_size"]),
        "precision": precision,
        "generate.prompt": int(deployment["isl"]),
        "generate.tokens": int(deployment["osl"]),
        "devices": int(deployment["tp_size"]),
        "parallel": "tensor",
    }


def predicted(deployment: Mapping[Any, Any]) -> PositiveInterval | None:
    """Predict the seconds per token of a deployment; None if the atlas lacks its kernels."""
    row = point(deployment)
    if row is None:
        return None
    device = load().device_name(str(deployment["system"]).replace("_sxm", ""))
    estimate = estimate_step_time(row, device, _ENGINES[str(deployment["backend"])])
    if estimate.seconds is None or estimate.low is None or estimate.high is None:
        return None
    # The prompts of a batch are read together.
    one_prompt = (estimate.prompt or 0.0) / row["batch_size"]
    prompts = (row["batch_size"] - 1) / row["generate.tokens"] * one_prompt
    interval = PositiveInterval(estimate.seconds, estimate.low, estimate.high)
    return interval.times(1 + prompts / estimate.seconds)


def compared(sample: pd.DataFrame) -> pd.DataFrame:
    """Return the known deployments with prediction, interval, error and coverage."""
    rows = []
    for deployment in sample.to_dict("records"):
        if not deployment["tp_size"] > 0:
            continue
        interval = predicted(deployment)
        if interval is None:
            continue
        measured = deployment["silicon_tpot_ms"] / 1e3
        rows.append(
            {
                **{str(name): value for name, value in deployment.items()},
                **interval._asdict(),
                "measured": measured,
                "ratio": interval.value / measured,
                "error": abs(interval.value / measured - 1),
                "covered": interval.low <= measured <= interval.high,
            }
        )
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return points, coverage, median error and median ratio by some columns."""
    return table.groupby(by).agg(
        points=("error", "size"),
        covered=("covered", "mean"),
        error=("error", "median"),
        ratio=("ratio", "median"),
    )


def decisions(table: pd.DataFrame) -> tuple[int, int, int]:
    """Return the numbers of pairs of devices, of decided pairs, and of right decisions.

    A pair is decided if the interval of the ratio of both predictions excludes 1.
    """
    pairs = 0
    decided = 0
    right = 0
    for _, group in table.groupby(_SETTING, dropna=False):
        per_device = group.drop_duplicates("system").to_dict("records")
        for one, other in itertools.combinations(per_device, 2):
            pairs += 1
            ratio = PositiveInterval(one["value"], one["low"], one["high"]).over(
                PositiveInterval(other["value"], other["low"], other["high"])
            )
            if ratio.low <= 1 <= ratio.high:
                continue
            decided += 1
            truth = math.log(one["measured"] / other["measured"])
            right += truth * math.log(ratio.value) > 0
    return pairs, decided, right


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sample", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take every N-th deployment")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    table = compared(pd.read_csv(options.sample).iloc[:: options.every])
    if options.csv:
        table.to_csv(options.csv, index=False)
    for by in (["system", "backend"], ["tp_size"], ["model_path"]):
        print(summary(table, by).round(3))
    print(
        f"all: {len(table)} points, {table['covered'].mean():.1%} in their intervals, "
        f"median error {table['error'].median():.1%}, "
        f"90% of errors below {np.quantile(table['error'], 0.9):.0%}"
    )
    pairs, decided, right = decisions(table)
    print(f"{pairs} pairs of devices, {decided} decided, {right} of these rightly")


if __name__ == "__main__":
    main()
