"""Memory frontiers of planted points, compared with the frontier's definition."""

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.memory import find_frontiers
from analysis.analyses.memory import memory as analyse
from paradnn.designs.frontier import cross_check_points
from tests.analysis.planted import grid, runs
from tests.analysis.rejected import assert_rejected


def planted(limit: float = 2.0e8, **columns: object) -> pd.DataFrame:
    """Return points with a known memory limit.

    A point runs out of memory if layers x nodes x (nodes + batch size) exceeds the limit.
    """
    points = grid()
    layers, nodes, batch = (
        points[name].astype(float) for name in ("model.layers", "model.nodes", "batch_size")
    )
    failed = layers * nodes * (nodes + batch) > limit
    return runs(points, outcome=np.where(failed, "oom_device", "ok"), **columns)


def test_sides_and_edges_follow_from_monotonicity_alone() -> None:
    points = np.random.default_rng(0).integers(0, 6, (60, 3))
    failed = points @ [1, 2, 1] > 10
    side, edge = cross_check_points(points, failed)

    for number, point in enumerate(points):
        is_other = np.arange(60) != number
        fits = any((point <= other).all() for other in points[is_other & ~failed])
        fails = any((point >= other).all() for other in points[is_other & failed])
        if fits:
            expected = "fits"
        elif fails:
            expected = "fails"
        else:
            expected = "open"
        assert side[number] == expected

        same_outcome = points[failed == failed[number]]
        if failed[number]:
            beyond = [other for other in same_outcome if (other <= point).all()]
        else:
            beyond = [other for other in same_outcome if (other >= point).all()]
        assert edge[number] == all((other == point).all() for other in beyond)


@pytest.mark.parametrize(
    ("points", "failed", "sides"),
    [
        pytest.param(
            [[1, 1], [3, 3], [2, 2]],
            [True, False, True],
            ["fits", "fails", "contradicted"],
            id="small points fail and a large one fits",
        ),
        pytest.param([[1, 1]], [True], ["open"], id="one point"),
    ],
)
def test_sides_of_few_points(points: list[list[int]], failed: list[bool], sides: list[str]) -> None:
    assert cross_check_points(points, failed)[0].tolist() == sides


def test_contradictory_points_are_named() -> None:
    frame = planted()
    is_largest = (
        frame[["model.nodes", "model.layers", "batch_size"]].eq([4096, 32, 4096]).all(axis=1)
    )
    frame.loc[is_largest, "outcome"] = "ok"

    assert (
        "1 point fitted although points that are no larger in any size did not: nodes 4096, layers 32, "
        in analyse(frame).text()
    )


def test_failures_for_other_reasons_are_excluded() -> None:
    frame = planted()
    frame.loc[frame.index[:3], "outcome"] = ["crash", "oom_predicted", "timeout"]

    assert (
        "of 61 tried points ran out of memory; excluded: 1 crash, 1 oom_predicted, 1 timeout."
        in analyse(frame).text()
    )


def test_a_single_point_is_rejected() -> None:
    assert_rejected(
        "memory",
        planted(device="D").head(1),
        "fc on D: all runs have the same batch size and model size",
    )


def test_points_of_different_precision_do_not_contradict_each_other() -> None:
    """bfloat16 halves the bytes, so a model that fails in float32 may fit without contradiction.

    A missing setting also separates points.
    """
    precisions = [planted(2e8), planted(4e8, precision="bfloat16", environment_id="env-a")]
    partly_unset = planted().assign(**{"model.kind": pd.array(["tall", None] * 32, dtype="str")})
    for frame, count in ((pd.concat(precisions, ignore_index=True), 128), (partly_unset, 64)):
        (group,), _ = find_frontiers(frame)
        assert len(group.points) == count
        assert not group.points["side"].eq("contradicted").any()
