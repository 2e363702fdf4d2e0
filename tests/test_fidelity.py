"""Programs that take turns, and what their ratios amount to."""

import csv
import math
import os
import statistics
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fidelity import Cell, combine, differences
from benchmarks.turns import COMPARED, Failed, Ready, Stage
from tests.conftest import ROOT, process

TURNING = {name: ["tests.turning"] for name in ("one", "other")}


def test_programs_take_turns_model_after_model_and_what_goes_wrong_in_one_is_said() -> None:
    with Stage(TURNING, os.environ, ROOT) as stage:
        for model in ("first", "second"):
            programs = stage.open(model)
            assert [program.name for program in programs] == ["one", "other"]
            for program in programs:
                ready = program.ready()
                assert (ready.losses, ready.parameters) == (tuple(map(float, range(1, COMPARED + 1))), 9)
                assert program.block(1000, lead=10) > 0
        with pytest.raises(Failed, match=r"one: SystemExit: nothing can be prepared"):
            stage.open("ends")[0].ready()
        diverging, _ = stage.open("diverges")
        assert len(diverging.ready().losses) == COMPARED
        with pytest.raises(Failed, match="one: the loss is nan"):
            diverging.block(1)
    with Stage({"one": ["tests.no_such_program"]}, os.environ, ROOT) as stage, pytest.raises(Failed, match="No module"):
        stage.open("first")


def test_a_ratio_is_one_of_throughputs() -> None:
    start = {"ours": [0.8] * 8, "plain": [1.0] * 8, "copy": [1.0] * 8, "keras": [2.0] * 8}
    row = Cell("jax", "fc", [start, start]).row()
    assert {name: round(ratio.value, 6) for name, ratio in row.items()} == {
        "ours / by hand": 1.25,
        "ours / with Keras": 2.5,
        "with Keras / by hand": 0.5,
        "by hand / by hand": 1.0,
    }


def test_the_interval_covers_what_starts_and_rounds_scatter_about() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        starts = 0.99 * np.exp(0.01 * generator.standard_normal((3, 1)) + 0.03 * generator.standard_normal((3, 36)))
        ratio = combine(starts.tolist())
        held += ratio.low <= 0.99 <= ratio.high
    assert held / 400 >= 0.93


def test_a_few_rounds_have_no_interval() -> None:
    ratio = combine([[1.0, 1.01, 0.99]])
    assert (ratio.low, ratio.high, ratio.sound) == (0.0, math.inf, False)


def losses(rate: float) -> tuple[float, ...]:
    return tuple(6.0 * math.exp(-rate * step) for step in range(COMPARED))


def test_programs_that_compute_something_else_are_told_apart() -> None:
    one = Ready(((2, 3),), losses(0.5))
    assert differences({"ours": one, "plain": Ready(((2, 3),), losses(0.5001))}) is None
    other = Ready(((2, 3),), losses(0.55))
    assert "after 2 steps the loss of plain" in str(differences({"ours": one, "plain": other}))
    assert "other shapes" in (differences({"ours": one, "plain": Ready(((3, 2),), losses(0.5))}) or "")
    assert differences({"ours": one, "plain": Ready(((2, 3),), (math.nan,) * COMPARED)})


@pytest.mark.long
@pytest.mark.framework
def test_the_workers_step_and_the_plain_loops_compute_the_same(tmp_path: Path) -> None:
    sizes = ["--rounds", "6", "--block", "0.02", "--starts", "1", "--settle", "0"]
    done = process(["benchmarks.fidelity", "--families", "gru", *sizes, "--out", str(tmp_path)])
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(" tensorflow")]
    assert [row[1] for row in rows] == ["gru"], done.stdout + done.stderr
    assert all(0 < float(row[4]) < math.inf for row in rows)
    assert statistics.median(float(row[2]) for row in rows) > 0
    with (tmp_path / "fidelity.csv").open() as table:
        assert [row["family"] for row in csv.DictReader(table)] == ["gru"]
