"""Report how much repeated trainings scatter on GPUs, from published logs of MLPerf Training.

    git clone https://github.com/mlcommons/training_results_v4.0
    python -m benchmarks.accelerator_scatter training_results_v4.0

Submitters train each model 5 to 40 times on each system and log the throughput of each epoch or
evaluation interval. The median of a log is one measurement by one process. The program prints

- the standard deviation between the processes of a system, over all systems and models;
- the standard deviation between systems with the same number of accelerators of one kind, over all
  models;
- how often the prior of `paradnn.statistics.priors` alone would call two processes of a system,
  or two such systems, different.
"""

import argparse
import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from paradnn.statistics.priors import DeviceClass, VariancePrior, scatter_priors

#: Logged intervals that a process needs for a median.
MIN_INTERVALS = 3
#: Processes that a system needs for a standard deviation.
MIN_PROCESSES = 4


class System(NamedTuple):
    """A system that trained a model.

    Attributes:
        submitter: Organization that submitted the results.
        name: Name of the system, and of the file that describes it.
        model: The trained model, as MLPerf names it.
    """

    submitter: str
    name: str
    model: str


def throughputs(log: str) -> list[float]:
    """Return the logged throughputs of a training, in examples (or another unit) per second."""
    found = []
    for line in log.splitlines():
        _, marker, text = line.partition(":::MLLOG")
        if not marker or "throughput" not in text:
            continue
        try:
            event = json.loads(text)
        except json.JSONDecodeError:
            continue
        value = event.get("value")
        if event.get("key") == "tracked_stats" and isinstance(value, dict):
            throughput = value.get("throughput")
            if isinstance(throughput, int | float) and throughput > 0:
                found.append(float(throughput))
    return found


def read_results(folder: Path) -> dict[System, list[float]]:
    """Return the logarithm of the median throughput of each process, by system.

    Args:
        folder: A clone of the published results of a round.
    """
    found: dict[System, list[float]] = defaultdict(list)
    for path in sorted(folder.glob("*/results/*/*/result_*.txt")):
        submitter, _, name, model, _ = path.relative_to(folder).parts
        logged = throughputs(path.read_text(encoding="utf-8", errors="replace"))
        if len(logged) >= MIN_INTERVALS:
            found[System(submitter, name, model)].append(math.log(statistics.median(logged)))
    return {system: values for system, values in found.items() if len(values) >= MIN_PROCESSES}


def accelerators(folder: Path, system: System) -> str:
    """Return the number and the kind of a system's accelerators.

    Returns:
        Such as "8 x h100sxm580gb"; empty if no file describes the system, or it lacks these fields.
    """
    file = folder / system.submitter / "systems" / f"{system.name}.json"
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
        count = int(description["number_of_nodes"]) * int(description["accelerators_per_node"])
        kind = str(description["accelerator_model_name"])
    except (OSError, ValueError, KeyError):
        return ""
    # Submitters spell one accelerator differently: "NVIDIA H100-SXM5-80GB", "H100-SXM5-80GB".
    short = re.sub(r"nvidia|tensor core|gpu|[^a-z0-9]", "", kind.lower())
    return f"{count} x {short}"


def equal_systems(folder: Path, results: Mapping[System, Sequence[float]]) -> list[list[float]]:
    """Return the medians of systems with equal accelerators, a list for each kind and model."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for system, values in results.items():
        kind = accelerators(folder, system)
        if kind:
            found[system.model, kind].append(statistics.median(values))
    return [values for values in found.values() if len(values) > 1]


def half_width(prior: VariancePrior) -> float:
    """Return the half width of the 95% interval of a log ratio with one measurement per side."""
    return float(stats.t.ppf(0.975, prior.freedom)) * math.sqrt(2) * prior.scale


def called_different(groups: Sequence[Sequence[float]], limit: float) -> tuple[int, int]:
    """Return how many pairs within groups differ by more than a limit, and how many pairs exist."""
    differences = [abs(a - b) for values in groups for a, b in itertools.combinations(values, 2)]
    return sum(difference > limit for difference in differences), len(differences)


def describe(groups: Sequence[Sequence[float]], prior: VariancePrior) -> str:
    """Return the scatter within groups as text, next to that of a prior."""
    if not groups:
        return (
            "no two systems have equal accelerators and results of the same model; "
            "pass a clone of a round with at least two such systems"
        )
    deviations = np.array([statistics.stdev(values) for values in groups])
    freedoms = np.array([len(values) - 1 for values in groups])
    pooled = math.sqrt(float(np.sum(deviations**2 * freedoms) / np.sum(freedoms)))
    median, high = np.quantile(deviations, [0.5, 0.95])
    limit = half_width(prior)
    different, pairs = called_different(groups, limit)
    return (
        f"{len(groups)} groups, {int(np.sum(freedoms))} degrees of freedom: standard deviation "
        f"{pooled:.2%} pooled, {median:.2%} median, {high:.2%} at the 95th percentile, "
        f"{deviations.max():.2%} largest. The prior of {prior.scale:.1%} calls {different} of "
        f"{pairs} pairs different ({different / pairs:.2%}; half width {limit:.1%})."
    )


def main() -> None:
    """Print the scatter of each round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="+", help="clone of a round's results")
    given = parser.parse_args()
    priors = scatter_priors(DeviceClass.ACCELERATOR)
    for folder in given.folder:
        results = read_results(folder)
        if not results:
            parser.error(f"{folder}: no results/*/*/result_*.txt with logged throughput")
        print(f"{folder.name}, {sum(map(len, results.values()))} trainings")
        print(f"  processes: {describe(list(results.values()), priors.process)}")
        print(f"  systems:   {describe(equal_systems(folder, results), priors.session)}")


if __name__ == "__main__":
    main()
