"""Adaptive sweeps of a planted machine: stopping, resuming, concurrent drivers, and memory.

The store consists of files, and no framework is used.
"""

import itertools
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from paradnn.config.identity import point_id
from paradnn.config.point import Measure
from paradnn.session.design import DesignPoint
from paradnn.store.journal import Journal
from tests.design.world import World, space
from tests.forecast.planted import QUICK


def test_a_sweep_ends_when_a_few_points_predict_the_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    points = space()
    design = world.design(points, error=0.15)

    assert (design.left, design.progress) == (len(points), "")

    list(world.follow(design))
    conclusion = design.conclusion()

    assert conclusion.tags == {"design": "adaptive", "design_end": "sweep.error=0.15"}

    metrics = conclusion.metrics
    assert (
        metrics["design_measured"]
        == len(world.measured)
        == len({point_id(point) for point in world.measured})
    )
    assert len(world.measured) < len(points) / 2
    assert metrics["design_candidates"] == len(points)
    assert metrics["design_expected_error"] <= 0.15
    assert f"{len(world.measured)} of 80 points measured" in conclusion.text

    table = conclusion.artifacts["design.json"]
    assert table["columns"] == ["measured", "minutes", "error"]
    assert [row[0] for row in table["data"]] == sorted(row[0] for row in table["data"])
    assert all((row[2] is None) == (row[0] < 12) for row in table["data"]), (
        "no error is known before the first 12 points: 6, and 2 for each of three axes"
    )
    assert json.dumps(table)


def test_a_design_killed_ten_times_measures_every_point_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    points = space(layers=(1, 4), nodes=(32, 512, 2048))
    random = np.random.default_rng(6)
    for _ in range(10):
        # A driver killed in a measurement leaves the claim of the point.
        visits = world.follow(world.design(points, points=16))
        list(itertools.islice(visits, int(random.integers(1, 3))))
        for claim in tmp_path.glob("*.claim"):
            # Other processes would find the claim abandoned, because its process is gone.
            claim.unlink()

    assert 3 <= len(world.measured) < 16

    design = world.design(points, points=16)
    list(world.follow(design))

    assert Counter(map(point_id, world.measured)).most_common(1)[0][1] == 1
    assert len(world.measured) == 16
    assert design.conclusion().metrics["design_measured"] == 16

    repeated = world.design(points, points=16)
    assert list(world.follow(repeated)) == []
    assert repeated.conclusion().text == design.conclusion().text


def test_concurrent_drivers_do_not_exceed_the_number_of_points(tmp_path: Path) -> None:
    """The first driver chose its points before the other drivers claimed theirs."""
    world = World(tmp_path)
    points = space(layers=(1, 4), nodes=(32, 512, 2048))
    designs = [world.design(points, points=3) for _ in range(3)]
    claimed = set()
    for design in designs:
        visit, *_ = design.batch([])
        assert design.wants(visit, False)
        assert world.claim(Journal(tmp_path), visit.point)
        assert design.wants(visit, True)
        claimed.add(point_id(visit.point))
    fourth_visit = DesignPoint(
        next(point for point in points if point_id(point) not in claimed), {}
    )

    assert designs[0].wants(fourth_visit, False)
    assert world.claim(Journal(tmp_path), fourth_visit.point)
    assert not designs[0].wants(fourth_visit, True)
    assert not designs[0].wants(fourth_visit, False), (
        "the driver must have noticed that the limit is reached"
    )


def test_parallel_drivers_measure_the_requested_number_of_points(tmp_path: Path) -> None:
    worlds = [World(tmp_path) for _ in range(4)]
    points = space(layers=(1, 4), nodes=(32, 512, 2048))
    with ThreadPoolExecutor(len(worlds)) as drivers:
        list(drivers.map(lambda world: list(world.follow(world.design(points, points=9))), worlds))
    measured = [point_id(point) for world in worlds for point in world.measured]

    assert len(measured) == len(set(measured)) == 9


def test_memory_excludes_larger_points_and_names_the_proving_run(tmp_path: Path) -> None:
    limit = 3 * 2**28
    measure = Measure(**{**vars(QUICK), "memory_limit": limit})
    world = World(tmp_path)
    points = space((1, 2, 4, 8), (512, 2048, 8192), (256, 4096, 16384), measure)
    design = world.design(points, points=len(points))
    list(world.follow(design))
    fitting = {point_id(point) for point in points if world.peak(point) <= limit}

    assert 10 < len(fitting) < len(points) - 10
    assert {point_id(point) for point in world.measured} >= fitting
    assert not {point_id(point) for point in world.excluded} & fitting

    failed = len(world.measured) - len(fitting)
    assert 0 < failed < len(world.excluded), "most points must be excluded without an attempt"

    records = [
        json.loads(json.loads(path.read_text())["body"])["record"]
        for path in tmp_path.glob("point-*.json")
    ]
    reasons = {record["reason"] for record in records if record["outcome"] == "oom_predicted"}
    starts = ("needs at least ", "at least as large in every size as run ")

    assert all(reason.startswith(starts) for reason in reasons)
    assert any(reason.startswith(starts[1]) for reason in reasons)

    proofs = {
        reason.partition(" run ")[2].partition(",")[0] for reason in reasons if " run " in reason
    }
    assert proofs <= {path.stem for path in tmp_path.glob("point-*.json")}
    assert (
        design.conclusion()
        .tags["design_end"]
        .startswith("every point that fits in memory is measured, before ")
    )


@pytest.mark.parametrize(
    ("sizes", "ends", "reason"),
    [
        pytest.param(
            {"layers": [1], "nodes": [32], "sizes": [16]},
            {},
            "every point is measured, before sweep.error=0.05 was reached",
            id="one point",
        ),
        pytest.param(
            {"layers": [1, 2], "nodes": [32], "sizes": [16, 64]},
            {"error": 0.001},
            "every point is measured, before sweep.error=0.001 was reached",
            id="target not reached",
        ),
        pytest.param(
            {"layers": [1, 2], "nodes": [32], "sizes": [16]},
            {"points": 9, "minutes": 9.0},
            "before sweep.points=9 or sweep.minutes=9",
            id="two limits",
        ),
        pytest.param(
            {"layers": [1, 2], "nodes": [32], "sizes": [16], "measure": {"memory_limit": 1000}},
            {"points": 9},
            "no point fits in memory",
            id="everything out of memory",
        ),
        pytest.param({}, {"minutes": 0.01}, "sweep.minutes=0.01", id="time limit"),
        pytest.param(
            {"layers": [1], "nodes": [32, 64, 128, 256], "sizes": [16]},
            {"points": 2},
            "sweep.points=2",
            id="point limit",
        ),
    ],
)
def test_a_design_states_why_it_ended(tmp_path: Path, sizes: dict, ends: dict, reason: str) -> None:
    points = space(
        **{key: Measure(**value) if key == "measure" else value for key, value in sizes.items()}
    )
    world = World(tmp_path)
    design = world.design(points, **ends)
    if reason == "sweep.minutes=0.01":
        design.begin -= 1.0  # as if a second had passed
    list(world.follow(design))

    assert reason in design.conclusion().tags["design_end"]
    assert reason in design.conclusion().text

    if "out of memory" in reason:
        assert len(world.excluded) == 2
        assert not world.measured
