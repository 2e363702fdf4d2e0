"""Conclusions from a few points of a space, predicted over the whole of it: how often they are those of all points.

    python -m benchmarks.few_conclusions FOLDER [--seeds 100] [--only weights claims planted]

FOLDER holds the paper's data files (github.com/Emma926/paradnn, scripts/data). From all that was tried there, so many
are taken for measured, at random or spread evenly, and `sensitivity` and `claims` are asked with --predicted and
without. Beside it a surface is planted whose weights are known. The figures are those of benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.analyses.claims import ClaimsOptions, check_claims
from analysis.analyses.sensitivity import SensitivityOptions, SensitivityResult, sensitivity
from analysis.claims.kinds import Answer
from analysis.published.archive import read_archive
from analysis.store.frame import is_ok
from paradnn.designs.choice import first_points
from paradnn.errors import ParadnnError

_SIZES = ["model.layers", "model.nodes", "model.input_size", "model.output_size", "batch_size"]
_SHOWN = 0.1  # weights above this are to have the right sign
_CLAIMS = ("1", "7", "8")  # those whose checks are of metrics that are predicted, and have data in the archive


def archive(folder: Path) -> pd.DataFrame:
    """A row for each run of the published files, as the importer logs them."""
    return read_archive(folder).frame().assign(schema_version="1")


def some(frame: pd.DataFrame, share: float, seed: int, design: str) -> pd.DataFrame:
    """So many of the rows of each device, at random or spread over their sizes."""
    parts = []
    for _, rows in frame.groupby("device"):
        count = max(round(share * len(rows)), 6)
        if design == "random":
            parts.append(rows.sample(count, random_state=seed))
            continue
        chosen = first_points(np.log2(rows[_SIZES].to_numpy(dtype="float64")), count, seed)
        parts.append(rows.iloc[chosen])
    return pd.concat(parts).reset_index(drop=True)


def weights(result: SensitivityResult) -> pd.DataFrame:
    """Weight, low and high by term."""
    found: pd.DataFrame = result.table.set_index("term")[["weight", "low", "high"]]
    return found


def are_right(found: pd.DataFrame, truth: pd.DataFrame) -> tuple[bool, bool]:
    """Whether the two strongest terms are those of the truth, and whether the signs of those that matter are."""
    strongest = [set(table["weight"].abs().nlargest(2).index) for table in (found, truth)]
    matter = truth.index[truth["weight"].abs() > _SHOWN]
    signs = [np.sign(table["weight"].reindex(matter).fillna(0)).tolist() for table in (found, truth)]
    return strongest[0] == strongest[1], signs[0] == signs[1]


def of_weights(frame: pd.DataFrame, share: float, seeds: int, design: str) -> str:
    """Over seeds: how often both conclusions are right, and how often intervals hold the truth; a line of text."""
    alone = SensitivityOptions(metric="step_time_ms", log_scale="both", unit="point")
    truth = weights(sensitivity(frame, alone))
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as space:
        frame[_SIZES].to_csv(space, index=False)
        space.flush()
        designs = {True: replace(alone, predicted=True, space=space.name), False: alone}
        return _counted(designs, truth, [some(frame, share, seed, design) for seed in range(seeds)])


def _counted(options: Mapping[bool, SensitivityOptions], truth: pd.DataFrame, samples: list[pd.DataFrame]) -> str:
    right: dict[bool, list[tuple[bool, bool]]] = {True: [], False: []}
    held, widths = [], []
    for sample in samples:
        for predicted, chosen in options.items():
            try:
                found = weights(sensitivity(sample, chosen))
            except ParadnnError:
                right[predicted].append((False, False))
                continue
            right[predicted].append(are_right(found, truth))
            if predicted:
                both = found.join(truth, rsuffix="_true", how="inner")
                held += list((both["low"] <= both["weight_true"]) & (both["weight_true"] <= both["high"]))
                widths += list(both["high"] - both["low"])
    shares = {name: np.mean(found, axis=0) for name, found in right.items()}
    return (
        f"predicted: strongest two {shares[True][0]:.0%}, signs {shares[True][1]:.0%}; measured alone: "
        f"{shares[False][0]:.0%}, {shares[False][1]:.0%}; intervals hold the whole space's weight in "
        f"{np.mean(held):.1%} of {len(held)}, in the median {np.median(widths):.3f} wide"
    )


def answers(frame: pd.DataFrame, predicted: bool) -> dict[str, Answer]:
    """The answer to each check that has data."""
    found = check_claims(frame, ClaimsOptions(only=_CLAIMS, predicted=predicted))
    every = (finding for verdict in found.verdicts for finding in verdict.findings)
    return {f"{finding.check}": finding.answer for finding in every if finding.points}


def of_claims(frame: pd.DataFrame, share: float, seeds: int, design: str) -> str:
    """Over seeds: the share of checks answered as from all runs, and of those that were decided otherwise."""
    truth = answers(frame, predicted=False)
    counts = {name: np.zeros(3) for name in (True, False)}
    for seed in range(seeds):
        sample = some(frame, share, seed, design)
        for predicted, count in counts.items():
            found = answers(sample, predicted)
            same = sum(found.get(check, Answer.NOT_ENOUGH) is answer for check, answer in truth.items())
            count += same, _contradicted(found, truth), len(truth)
    words = {
        name: f"{same / total:.1%} as from all, {against / total:.1%} against it"
        for name, (same, against, total) in counts.items()
    }
    return f"of {len(truth)} checks, predicted: {words[True]}; measured alone: {words[False]}"


def _contradicted(found: Mapping[str, Answer], truth: Mapping[str, Answer]) -> int:
    decided = {Answer.SUPPORTED, Answer.REFUTED}
    return sum({found.get(check), answer} == decided for check, answer in truth.items())


def planted(seed: int, noise: float = 0.02) -> pd.DataFrame:
    """The 1,000 points of a grid, whose step times bend between two regimes of random slopes."""
    axes: dict[str, tuple[int, ...]] = {
        "model.layers": (2, 4, 8, 16),
        "model.nodes": (64, 128, 256, 512, 1024),
        "model.input_size": (500, 1000, 2000, 4000, 8000),
        "model.output_size": (100, 1000),
        "batch_size": (16, 32, 64, 128, 256),
    }
    grid = pd.MultiIndex.from_product(axes.values(), names=list(axes)).to_frame(index=False)
    random = np.random.default_rng(seed)
    layers, nodes, inputs, outputs, batch = (np.log2(grid[name] / grid[name].median()) for name in axes)
    slopes = random.normal(0, 0.3, 5)
    # As arithmetic and traffic meet.
    one = layers * (0.7 + slopes[0]) + nodes * (1.2 + slopes[1]) + batch * (0.8 + slopes[2]) + inputs * slopes[3]
    other = layers * 0.8 + 0.3 * nodes + 0.2 * batch + outputs * slopes[4]
    step = np.logaddexp(one, other) + random.normal(0, noise, len(grid))
    names = [f"point {number}" for number in range(len(grid))]
    shared = {"device": "Planted", "environment_id": "e", "protocol_id": "p", "schema_version": "1"}
    shared |= {"family": "fc", "outcome": "ok", "precision": "float32", "compile": "graph", "mode": "train"}
    return grid.assign(run_id=names, point_id=names, step_time_ms=np.exp(step), **shared)


def of_planted(seeds: int) -> str:
    """How often intervals from one point in twenty hold the weights of the whole grid; a line of text."""
    held: list[bool] = []
    for seed in range(seeds):
        whole = planted(seed)
        sample = some(whole, 0.05, seed, "random")
        options = SensitivityOptions(metric="step_time_ms", log_scale="both", unit="point")
        truth = weights(sensitivity(whole, options))
        found = weights(sensitivity(sample, replace(options, predicted=True))).join(truth, rsuffix="_true")
        held += list((found["low"] <= found["weight_true"]) & (found["weight_true"] <= found["high"]))
    return f"intervals hold {np.mean(held):.1%} of {len(held)} weights"


def main() -> None:
    """Print a line for each question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--only", nargs="+", default=["weights", "claims", "planted"])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    frame = archive(given.folder)
    tpu = frame[frame["device"] == "TPU v2"].reset_index(drop=True)
    print(f"{len(tpu)} points of TPU v2, {int(is_ok(tpu).sum())} of them measured; {given.seeds} seeds")
    for share in (0.02, 0.05):
        for design in ("random", "spread"):
            if "weights" in given.only:
                print(f"weights, {share:.0%} {design}: {of_weights(tpu, share, given.seeds, design)}", flush=True)
            if "claims" in given.only and (share, design) != (0.02, "spread"):
                print(f"claims, {share:.0%} {design}: {of_claims(frame, share, given.seeds // 5, design)}", flush=True)
    if "planted" in given.only:
        print(f"planted, 5% random: {of_planted(given.seeds)}", flush=True)


if __name__ == "__main__":
    main()
