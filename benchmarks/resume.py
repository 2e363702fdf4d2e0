"""python -m benchmarks.resume

How long the same command takes when the store holds an outcome for every one of its points: the 9,720 of paper_fc,
whose runs are put into a real store by plain SQL, and are then all skipped by a real command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from benchmarks.common import ROOT, Planted, fill, runs, train

POINTS = """
import json, sys
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from paradnn.config.point import read_point
from paradnn.config.identity import limits_id, point_id
from paradnn.config.space import expand
OmegaConf.register_new_resolver("paradnn_help", lambda: "")
with initialize_config_dir(sys.argv[1] + "/conf", version_base="1.3"):
    master = compose("config", overrides=["experiment=paper_fc"], return_hydra_config=True)
    plan = expand(GlobalHydra.instance().config_loader(), master, ["experiment=paper_fc"], {})
points = [read_point(config) for config in plan.configs()]
json.dump([(point_id(point), limits_id(point.measure)) for point in points], sys.stdout)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(["model.nodes=8", "model.layers=1", "measure=quick"], folder)
        [real] = runs(folder)
        command = [sys.executable, "-c", POINTS, str(ROOT)]
        points = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        same: dict[str, object] = {"kind": "point", "replicate": "0", "outcome": "ok", "extras": "profile"}
        same |= {"environment_id": real["environment_id"], **{f"version.{number}": "1.0" for number in range(10)}}
        tags = (same | {"point_id": point_id, "limits_id": limits_id} for point_id, limits_id in points)
        fill(folder / "mlflow.db", (Planted(uuid.uuid4().hex, 0, {}, each, {}) for each in tags))
        for _ in range(3):
            begin = time.perf_counter()
            train(["-m", "experiment=paper_fc"], folder)
            print(
                f"{len(points)} points checked and skipped: {time.perf_counter() - begin:.1f} s for the whole command"
            )
        assert len([run for run in runs(folder) if run.get("outcome")]) == len(points) + 1


if __name__ == "__main__":
    main()
