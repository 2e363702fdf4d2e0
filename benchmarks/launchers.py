"""Compare the time that each layer of a sweep takes, with every launcher and without one.

    python -m benchmarks.launchers [--launchers bare,joblib,submitit_slurm,ray] [--rounds 3]

Each round measures the same twelve points again with two drivers per launcher, in a random order of
the launchers. Without a launcher the two drivers are started by hand, one with all variables of a
shared sweep. Slurm is a private cluster of two nodes on loopback, Ray a private instance. Every
point must be measured once per round. Writes the runs to `--dir`, the shares to
benchmarks/results/launchers.csv and the picture to benchmarks/results/launchers.png.
"""

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.common import RESULTS, ROOT, environment, runs
from tests.cluster.slurm import slurm

DRIVERS = 2
POINTS = ["model.nodes=64,128,256", "model.layers=2,4", "batch_size=64,256"]
COMMON = [
    "measure=quick",
    "model=fc",
    "resume=false",
    "ceilings=false",
    *POINTS,
]
OPTIONS = {
    "joblib": [],
    "submitit_local": [],
    "submitit_slurm": ["hydra.launcher.timeout_min=30"],
    "ray": [f"+hydra.launcher.ray.init.num_cpus={DRIVERS}"],
}
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def sweep(launcher: str, number: int, folder: Path, environ: dict[str, str]) -> None:
    """Measure the points once; exit if a driver fails."""
    words = [sys.executable, "-m", "paradnn.train", "-m", *COMMON, f"sweep.drivers={DRIVERS}"]
    variables = environment(folder) | environ
    if launcher == "bare":
        shared = variables | {"PARADNN_SWEEP": f"bare-{number}-{os.getpid()}"}
        commands = [(words, shared | {"PARADNN_DRIVER": str(n)}) for n in range(DRIVERS)]
    else:
        words += [f"hydra/launcher={launcher}", *OPTIONS[launcher]]
        words += [f"hydra.sweep.dir={folder}/jobs"]
        commands = [(words, variables)]
    with (folder / f"{launcher}-{number}.log").open("wb") as log:
        processes = [
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
            for command, env in commands
        ]
        codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"{launcher}: exit codes {codes}: {log.name}")


def check(folder: Path, begin_ms: float, launcher: str) -> None:
    """Exit unless every point was measured once since the given Unix time."""
    rows = [run for run in runs(folder) if run["start_time"] >= begin_ms]
    counts = Counter(run["point_id"] for run in rows if run.get("outcome") == "ok")
    if len(counts) != 12 or set(counts.values()) != {1}:
        sys.exit(f"{launcher}: {dict(counts)}")


def main() -> None:
    """Measure all rounds, and print and save the layers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launchers", default="bare,joblib,submitit_slurm,ray")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="keep the store in this folder and add to it")
    given = parser.parse_args()
    launchers = given.launchers.split(",")
    with contextlib.ExitStack() as stack:
        folder = given.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        environ = dict(RAY)
        if "submitit_slurm" in launchers:
            environ |= stack.enter_context(slurm()).environ
        for number in range(given.rounds):
            for launcher in random.sample(launchers, len(launchers)):
                begin = time.time()
                sweep(launcher, number, folder, environ)
                check(folder, 1000 * begin, launcher)
                print(f"round {number}, {launcher}: {time.time() - begin:.0f} s", flush=True)
        RESULTS.mkdir(exist_ok=True)
        store = ["--store", str(folder / "mlflow.db"), "--pool"]
        analysis = [sys.executable, "-m", "analysis"]
        files = [
            "--csv",
            str(RESULTS / "launchers.csv"),
            "--figure",
            str(RESULTS / "launchers.png"),
        ]
        for words in (
            ["overhead", "--layers", *store, *files],
            ["claims", "--file", "launchers.yaml", *store],
        ):
            subprocess.run([*analysis, *words], cwd=ROOT, env=environment(folder), check=True)


if __name__ == "__main__":
    main()
