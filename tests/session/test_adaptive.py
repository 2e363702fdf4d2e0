"""`sweep.design=adaptive` as a user runs it: what is chosen is measured, and the parent run says what came of it."""

import json
from collections import Counter

import pytest

from paradnn.store.metrics import METRICS
from tests.conftest import TINY, Store, run

AXES = [
    *(entry for entry in TINY if not entry.startswith(("model.nodes", "model.layers", "batch_size"))),
    *("model.nodes=8,16,32", "model.layers=1,2", "batch_size=4,8", "sweep.design=adaptive"),
]


@pytest.mark.framework
def test_what_is_chosen_is_measured_and_the_same_command_goes_on(store: Store) -> None:
    done = run(["paradnn.train", "-m", *AXES, "sweep.points=6"], store)
    assert done.returncode == 0, done.stderr
    points, [parent] = store.runs(), store.runs("sweep")
    assert len(points) == 6
    assert {(point["outcome"], point["design"], point["mlflow.parentRunId"]) for point in points} == {
        ("ok", "adaptive", parent["run_id"])
    }
    assert (parent["status"], parent["design"], parent["design_end"]) == ("FINISHED", "adaptive", "sweep.points=6")
    assert "Adaptive: 6 of 12 points measured (50.0%)." in parent["mlflow.note.content"]
    assert "Adaptive: 6 of 12 points measured (50.0%)." in done.stdout
    metrics = store.values("latest_metrics", parent["run_id"])
    declared = {entry.name for entry in METRICS.values() if entry.kind == "design"}
    assert {name for name in metrics if not name.startswith("points")} == declared
    assert (metrics["design_measured"], metrics["design_candidates"]) == (6, 12)
    looks = json.loads((store.files(parent["run_id"]) / "design.json").read_text())
    assert [looks["data"][0][0], looks["data"][-1][0]] == [0, 6]
    again = run(["paradnn.train", "-m", *AXES, "sweep.points=6"], store)
    assert again.returncode == 0
    assert "0 points in" in again.stdout
    more = run(["paradnn.train", "-m", *AXES, "sweep.points=8"], store)
    assert more.returncode == 0
    assert "2 points in" in more.stdout
    assert "Adaptive: 8 of 12 points measured" in more.stdout
    assert set(Counter(point["point_id"] for point in store.runs()).values()) == {1}
