"""A family in one file of another package, found by its entry point, is in everything that families are in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, Store, environment

#: Runs commands one after the other in a process that finds the package; prints exit codes and texts.
PROGRAM = """
import json, sys
from pathlib import Path
from tests.conftest import Store, _pools, run
said = []
for arguments in json.loads(sys.argv[2]):
    done = run(arguments, Store(Path(sys.argv[1])))
    said.append([done.returncode, done.stdout, done.stderr])
for pool in _pools.values():
    pool.close()
print(json.dumps(said))
"""
SWEEP = ["model=plane", "model.wings=2,5", *[word for word in TINY if word.startswith(("measure", "ceilings"))]]
COMMANDS = [
    ["paradnn.train", "--help"],
    ["paradnn.listing.command", "models", "hidden layer between"],
    ["paradnn.listing.completion", "paradnn train model=plane model.w"],
    ["paradnn.train", "model=plane", "model.wings=0"],
    ["paradnn.train", "-m", *SWEEP],
    ["paradnn.plan", "-m", *SWEEP],
    ["analysis.__main__", "parameters"],
    ["analysis.__main__", "roofline", "--family", "plane"],
]


@pytest.mark.framework
def test_a_family_of_another_package_is_in_everything(store: Store) -> None:
    environ = environment(store, PYTHONPATH=str(Path(__file__).with_name("plugin")))
    command = [sys.executable, "-c", PROGRAM, str(store.folder), json.dumps(COMMANDS)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told, listed, completed, wrong, swept, planned, counted, roofed = json.loads(done.stdout)
    right = (told, listed, completed, swept, planned, counted, roofed)
    assert not [each for each in right if each[0]]
    assert "Keys of model=plane\n  model.wings=8 " in told[1]
    # However wide the terminal is.
    assert " ".join(listed[1].split()) == "plane One hidden layer between four features and two classes. model.wings=8"
    assert completed[1] == "model.wings=\n"
    assert (wrong[0], wrong[2]) == (2, "error: model.wings=0: must be at least 1; choose a larger value\n")
    runs = {store.values("params", each["run_id"])["model.wings"]: each["run_id"] for each in store.runs()}
    metrics = {wings: store.values("latest_metrics", run) for wings, run in runs.items()}
    # (4 + 1) x wings + (wings + 1) x 2; a batch of 32, which comes with the model; no gradient of the features.
    assert {wings: found["parameters"] for wings, found in metrics.items()} == {"2": 16, "5": 37}
    assert metrics["5"]["flops_per_step"] == 2 * 32 * (2 * 4 * 5 + 3 * 5 * 2)
    assert "2 points" in planned[1]
    assert "plane" in counted[1]
    assert "plane" in roofed[1]
