"""Report how often intervals of single analyses cover the truth if points share models and batches.

    python -m benchmarks.verdicts [--draws 250]

The results are in docs/validation/verdicts.md, section "Single analyses".
"""

import argparse
import itertools

import numpy as np
import pandas as pd
from scipy import stats

from analysis.analyses.boxplot import box_statistics
from analysis.analyses.breakdown import measure_shares
from analysis.analyses.infeed import InfeedOptions, input_waits
from analysis.analyses.sensitivity import SensitivityOptions, sensitivity
from analysis.roofs import place_models, summarize_families
from paradnn.statistics.dependence import Unit

PEAKS = ("peak_flops_per_second", "peak_bytes_per_second")


def shared_effects(random: np.random.Generator, models: int = 23, batches: int = 9) -> pd.DataFrame:
    """Return models measured at all batch sizes, with planted effects.

    A point's value has normal effects of its model (0.9), its batch size (0.8) and itself (0.6)
    around 0.5. Its size is that of its model; its nodes have no effect.
    """
    of_model = random.normal(0, 0.9, models)
    nodes = random.normal(size=models)
    model = np.repeat(np.arange(models), batches)
    batch = np.tile(np.arange(batches), models)
    planted = (
        0.5
        + of_model[model]
        + random.normal(0, 0.8, batches)[batch]
        + random.normal(0, 0.6, models * batches)
    )
    share = 1 / (1 + np.exp(-planted))
    return pd.DataFrame(
        {
            "run_id": np.arange(models * batches).astype(str),
            "point_id": np.arange(models * batches),
            "model.nodes": np.exp(nodes[model]),
            "batch_size": 64 * 2**batch,
            "parameters": np.exp(of_model[model]),
            "flops_per_example": np.exp(of_model[model]),
            "examples_per_second": np.exp(planted),
            "infeed_fraction": share,
            "op_share.fusion": share,
            "arithmetic_intensity": np.exp(-planted),
            "flops_per_second": share * np.minimum(1, np.exp(-planted)),
        }
    ).assign(
        family="fc", device="D", precision="float32", outcome="ok", **dict.fromkeys(PEAKS, 1.0)
    )


def found_under(frame: pd.DataFrame, unit: Unit) -> dict[str, tuple[float, float, float]]:
    """Return (truth, low, high) of each analysis of `shared_effects`."""

    whole = np.sqrt(0.9**2 + 0.8**2 + 0.6**2)
    share = float(stats.norm.cdf(0.5 / whole))
    middle = 1 / (1 + np.exp(-0.5))
    box = box_statistics(frame, "examples_per_second", ["family"], unit=unit).iloc[0]
    part = measure_shares(frame, unit)[0].iloc[0]
    roof = summarize_families(place_models(frame, lambda _: None).points, unit).iloc[0]
    waits = input_waits(frame, InfeedOptions(threshold=0.5, unit=unit))[0][0]
    both = SensitivityOptions(metric="examples_per_second", log_scale="both", unit=unit)
    weights = sensitivity(frame, both).table.set_index("term")
    of_nodes, of_batches = (weights.loc[name] for name in ("model.nodes", "batch_size"))
    return {
        "sensitivity, weight of nodes": (0.0, of_nodes["low"], of_nodes["high"]),
        "sensitivity, weight of batch size": (0.0, of_batches["low"], of_batches["high"]),
        "boxplot, median": (np.exp(0.5), box["median_low"], box["median_high"]),
        "roofline, median share of the roof": (middle, roof["median_low"], roof["median_high"]),
        "breakdown, median share": (middle, part["low"], part["high"]),
        "infeed, share of points": (share, *waits.share[1:]),
        "infeed, median wait": (middle, *waits.median[1:]),
    }


def main() -> None:
    """Print how often each interval covers the truth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=250)
    draws = parser.parse_args().draws
    random = np.random.default_rng(0)
    hits = dict[tuple[str, Unit], int]()
    units: tuple[Unit, ...] = ("point", "crossed")
    for frame, unit in itertools.product((shared_effects(random) for _ in range(draws)), units):
        for name, (true, low, high) in found_under(frame, unit).items():
            hits[name, unit] = hits.get((name, unit), 0) + (low <= true <= high)
    for (name, unit), count in hits.items():
        print(f"23 models at 9 batch sizes, {name}, --unit {unit}: {count / draws:.1%}")


if __name__ == "__main__":
    main()
