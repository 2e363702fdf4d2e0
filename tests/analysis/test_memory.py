"""Where memory ends: the frontier by its definition, the regression against other maximisers, planted points."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import optimize

from analysis.analyses.memory import memory as analyse
from analysis.analyses.memory import memory_limits
from analysis.cli import main
from analysis.statistics.regression import firth, profile_interval
from paradnn.designs.frontier import sides
from tests.analysis.planted import grid, runs


def planted(limit: float = 2.0e8, **columns: object) -> pd.DataFrame:
    """Points that run out of memory where layers x nodes x (nodes + batch size) is above a limit."""
    points = grid()
    layers, nodes, batch = (points[name].astype(float) for name in ("model.layers", "model.nodes", "batch_size"))
    failed = layers * nodes * (nodes + batch) > limit
    return runs(points, outcome=np.where(failed, "oom_device", "ok"), **columns)


def test_the_others_say_what_follows_from_monotony_and_nothing_else() -> None:
    points = np.random.default_rng(0).integers(0, 6, (60, 3))
    failed = points @ [1, 2, 1] > 10
    side, edge = sides(points, failed)
    for number, point in enumerate(points):
        kept = np.arange(60) != number
        fits = any((point <= one).all() for one in points[kept & ~failed])
        fails = any((point >= one).all() for one in points[kept & failed])
        assert side[number] == ("fits" if fits else "fails" if fails else "open")
        alike = points[failed == failed[number]]
        beyond = [one for one in alike if ((one <= point) if failed[number] else (one >= point)).all()]
        assert edge[number] == all((one == point).all() for one in beyond)
    assert sides([[1, 1], [3, 3], [2, 2]], [True, False, True])[0].tolist() == ["fits", "fails", "contradicted"]
    assert sides([[1, 1]], [True])[0].tolist() == ["open"]


def test_of_two_groups_the_penalty_adds_half_a_point_to_each_cell() -> None:
    """Firth 1993, section 3: log-odds of (hits + 1/2) over (misses + 1/2), also where one of them is none."""
    group = np.repeat([0.0, 1.0], [10, 15])
    hits = np.array([*[1] * 3, *[0] * 7, *[1] * 15])
    found, _ = firth(np.column_stack([np.ones(25), group]), hits)
    first, second = np.log(3.5 / 7.5), np.log(15.5 / 0.5)
    np.testing.assert_allclose(found, [first, second - first], atol=1e-6)


def test_the_regression_is_the_maximum_that_scipy_finds() -> None:
    """Of statsmodels' likelihood and information, with and without perfect separation."""
    draw = np.random.default_rng(5)
    design = np.column_stack([np.ones(60), draw.normal(size=(60, 2))])
    for scatter in (0.0, 1.0):
        hits = (design @ [0.3, 1.0, -2.0] + draw.logistic(0, scatter + 1e-12, 60) > 0).astype(float)
        model = sm.Logit(hits, design)

        def lost(found: np.ndarray, model: sm.Logit = model) -> float:
            return -float(model.loglike(found) + 0.5 * np.linalg.slogdet(-model.hessian(found))[1])

        found, height = firth(design, hits)
        best = optimize.minimize(
            lost, found * 0.5, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 5000}
        )
        np.testing.assert_allclose(found, best.x, rtol=1e-3)
        assert height == pytest.approx(-best.fun, abs=1e-6)
        for end in profile_interval(design, hits, found, height, 1):
            rest = optimize.minimize(
                lambda two, end=end: lost(np.array([two[0], end, two[1]])), found[[0, 2]], method="Nelder-Mead"
            )
            assert height + rest.fun == pytest.approx(1.9207, abs=5e-3)


def test_planted_memory_is_found_again() -> None:
    frame = planted()
    (group,), _ = memory_limits(frame)
    failed = frame["outcome"].eq("oom_device")
    assert (group.points["failed"].sum(), len(group.points)) == (failed.sum(), 64)
    assert group.weights is not None
    assert (group.weights.loc[["model.nodes", "model.layers"], "low"] > 0).all()
    assert group.weights["weight"].idxmax() == "model.nodes"
    edge = group.points[group.points["edge"] & group.points["failed"]]
    sizes = frame.loc[failed, ["model.nodes", "model.layers", "batch_size"]].astype(float).to_numpy()
    least = [one for one in sizes if not ((sizes <= one).all(axis=1) & (sizes < one).any(axis=1)).any()]
    assert len(edge) == len(least)


def test_what_contradicts_memory_is_named_and_what_says_nothing_of_it_is_left_out() -> None:
    frame = planted()
    worst = frame[["model.nodes", "model.layers", "batch_size"]].eq([4096, 32, 4096]).all(axis=1)
    frame.loc[worst, "outcome"] = "ok"
    frame.loc[frame.index[:3], "outcome"] = ["crash", "oom_predicted", "timeout"]
    text = analyse(frame).text()
    assert "of 61 points that were tried ran out of memory; left out: 1 crash, 1 oom_predicted, 1 timeout." in text
    assert (
        "1 point fitted though others that are no larger in any size did not: nodes 4096, layers 32, batch_size 4096."
        in text
    )


def test_devices_on_which_all_or_none_failed_have_no_regression(tmp_path: Path) -> None:
    frames = [planted(limit, device=f"D{limit:g}") for limit in (0.0, 1e30)]
    result = analyse(pd.concat(frames, ignore_index=True))
    assert "fc on D0: 64 of 64 points that were tried ran out of memory." in result.text()
    assert "The smallest that did: nodes 64, layers 4, batch_size 64." in result.text()
    assert "The largest that fitted: nodes 4096, layers 32, batch_size 4096." in result.text()
    assert not result.drawable


def test_points_of_different_precision_do_not_speak_of_each_other() -> None:
    """Half the bytes: what fails in float32 fits in bfloat16, and that is no contradiction. A setting that some runs
    lack is a value of its own."""
    both = [planted(2e8), planted(4e8, precision="bfloat16", environment_id="env-a")]
    mixed = planted().assign(**{"model.kind": pd.array(["tall", None] * 32, dtype="str")})
    for frame, count in ((pd.concat(both, ignore_index=True), 128), (mixed, 64)):
        (group,), _ = memory_limits(frame)
        assert len(group.points) == count
        assert not group.points["side"].eq("contradicted").any()


def test_the_command_says_and_draws_where_memory_ends(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png = tmp_path / "memory.png"
    assert main(["memory", "--store", store, "--family", "fc", "--figure", str(png)]) == 0
    out = capsys.readouterr().out
    assert "5 of 30 points that were tried ran out of memory" in out
    assert "The smallest that did: layers 1, batch_size 96." in out
    assert png.read_bytes().startswith(b"\x89PNG")
