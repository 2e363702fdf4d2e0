"""The layers of planted sessions, against the numbers that they were planted with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.layers import LAYERS, LayersOptions, divide_sessions, share_of, shares_of
from analysis.analyses.layers import layers as analyse
from analysis.claims.evaluate import Data, judge
from analysis.claims.load import load_claims, parse_claims
from paradnn.errors import ConfigError, NotEnoughData, SchemaError
from tests.conftest import ROOT

START = pd.Timestamp("2026-11-22T10:00:00Z")
#: What a session is planted with, in seconds; those of points are of each point.
WAITS = {"queue": 4.0, "task start": 2.0, "import": 5.0, "rest": 1.5}
EACH = {"build": 0.5, "compile": 1.0, "warm-up": 0.75, "profile": 0.25, "recording": 0.125}
MEASURED, TALKING, FED, SET = 8.0, 0.25, 0.125, 0.0625
POINTS = 6


def session(name: str, launcher: str | None, scale: float = 1.0, **columns: object) -> pd.DataFrame:
    """A session whose waits are so many times as long; the first of its points waits for the framework."""
    rows, now = [], WAITS["rest"]
    for number in range(POINTS):
        start = scale * WAITS["import"] if number == 0 else 0.0625
        begun = now
        now += start + sum(EACH.values()) + MEASURED + SET
        rows.append(
            {
                "run_id": f"{name}-{number}",
                "start_time": START + pd.Timedelta(seconds=begun),
                "end_time": START + pd.Timedelta(seconds=now),
                "phase_schedule_seconds": EACH["recording"] / 2,
                "phase_start_seconds": start,
                "phase_build_seconds": EACH["build"],
                "phase_input_seconds": SET,
                "phase_compile_seconds": EACH["compile"],
                "phase_warmup_seconds": EACH["warm-up"],
                "phase_measure_seconds": MEASURED,
                "phase_profile_seconds": EACH["profile"],
                "phase_record_seconds": EACH["recording"] / 2,
                "category_share.communication": TALKING,
                "infeed_fraction": FED,
                "session_seconds": now,
                "sweep_id": f"sweep-{name}",
                "device": "D",
                "environment_id": "e",
                "outcome": "ok",
            }
        )
    frame = pd.DataFrame(rows)
    if launcher:
        waits = {"queue_seconds": scale * WAITS["queue"], "task_start_seconds": scale * WAITS["task start"]}
        frame = frame.assign(launcher=launcher, launched_task="0", **waits)
    return frame.assign(**columns)


def planted() -> pd.DataFrame:
    """Four tasks under Slurm with waits of several lengths, one sweep without a launcher."""
    tasks = [session(f"s{number}", "slurm", scale) for number, scale in enumerate((1.0, 2.0, 3.0, 4.0))]
    return pd.concat([*tasks, session("l", None)], ignore_index=True)


def test_every_layer_is_what_was_planted_and_they_add_up_to_the_wall_clock() -> None:
    found = divide_sessions(planted())
    assert list(found.sessions["group"]) == ["slurm"] * 4 + ["local"]
    one = found.sessions.set_index("session").iloc[1]
    expected = {name: POINTS * seconds for name, seconds in EACH.items()}
    expected |= {name: 2 * WAITS[name] for name in ("queue", "task start", "import")} | {"rest": WAITS["rest"]}
    expected |= {"fork": (POINTS - 1) * 0.0625, "communication": POINTS * MEASURED * TALKING}
    expected |= {"input": POINTS * (MEASURED * FED + SET), "computation": POINTS * MEASURED * (1 - TALKING - FED)}
    assert set(expected) == set(LAYERS)
    assert one[list(expected)].to_dict() == pytest.approx(expected)
    assert one["wall"] == pytest.approx(sum(expected.values()))
    local = found.sessions.iloc[-1]
    assert local["queue"] == local["task start"] == 0
    np.testing.assert_allclose(found.sessions[list(LAYERS)].sum(axis=1), found.sessions["wall"])
    assert shares_of(found).groupby("group")["share"].sum().to_dict() == pytest.approx({"slurm": 1, "local": 1})


def test_steps_that_are_messages_are_communication() -> None:
    sends = session("c", None, **{"model.transport": "tcp"}).drop(columns=["category_share.communication"])
    frame = pd.concat([sends.drop(columns="infeed_fraction"), session("l", None)], ignore_index=True)
    channel, trained = divide_sessions(frame).sessions.to_dict("records")
    assert (channel["communication"], channel["computation"]) == pytest.approx((POINTS * MEASURED, 0))
    assert trained["communication"] == pytest.approx(POINTS * MEASURED * TALKING)


def test_shares_are_of_all_sessions_of_a_launcher_and_their_intervals_over_them() -> None:
    found = divide_sessions(planted())
    slurm = found.sessions[found.sessions["group"] == "slurm"]
    share, sample = share_of(found, ("queue", "task start"), "slurm")
    assert sample == "sessions"
    assert share.value == pytest.approx((4.0 + 2.0) * 10 / slurm["wall"].sum())
    each = 6.0 * np.array([1, 2, 3, 4]) / slurm["wall"]
    assert 0 <= share.low < share.value < share.high <= 1
    assert share.low < each.mean() < share.high
    rows = shares_of(found).set_index(["group", "layer"])
    assert set(rows.loc["slurm", "sample"]) == {"sessions"}
    # One session: what points have is over points, what it has once is not known.
    assert rows.loc[("local", "build"), "sample"] == "points"
    assert np.isnan(rows.loc[("local", "rest"), "low"])
    assert np.isnan(rows.loc[("local", "import"), "high"])
    computation = rows.loc[("local", "computation")]
    assert computation["low"] <= computation["share"] <= computation["high"]


def test_an_interval_over_tasks_covers_the_share_of_all_tasks() -> None:
    """Of 100 samples of 20 tasks whose queue is exponential; the wall clock beside it is the same."""
    rng, covered = np.random.default_rng(7), 0
    base = session("t", "slurm").iloc[[0]]
    work = float(divide_sessions(base).sessions["wall"].iloc[0]) - 4.0
    truth = 5.0 / (5.0 + work)
    for _ in range(100):
        tasks = pd.concat([base] * 20, ignore_index=True).assign(
            queue_seconds=rng.exponential(5.0, 20),
            launched_task=[str(n) for n in range(20)],
            run_id=[str(n) for n in range(20)],
        )
        share, _ = share_of(divide_sessions(tasks), ("queue",), "slurm")
        covered += share.low <= truth <= share.high
    assert 87 <= covered <= 99


def test_attempts_sweeps_and_single_points_are_sessions_of_their_own() -> None:
    again = session("s", "slurm").assign(restarts="1").drop(columns=["queue_seconds", "task_start_seconds"])
    other = session("s", "slurm", host="node2")
    alone = session("x", None).drop(columns="sweep_id").iloc[:2]
    named = [session("n", "slurm", session_id=name) for name in ("one", "two")]
    assert list(divide_sessions(pd.concat(named, ignore_index=True)).sessions["points"]) == [POINTS, POINTS]
    frame = pd.concat([session("s", "slurm", host="node1"), again, other, alone], ignore_index=True)
    found = divide_sessions(frame)
    assert list(found.sessions["points"]) == [POINTS, POINTS, 1, 1]
    assert (found.restarted, found.without) == (POINTS, 0)
    by_sweep = divide_sessions(planted(), "sweep").sessions["group"]
    assert list(by_sweep) == ["slurm sweep-s0", "slurm sweep-s1", "slurm sweep-s2", "slurm sweep-s3", "local sweep-l"]


def test_runs_recorded_before_sessions_said_how_long_they_took() -> None:
    """Their wall clock is that of their first and last times, which do not hold what came before the first claim."""
    found = divide_sessions(session("s", "slurm").drop(columns="session_seconds"))
    [one] = found.sessions.to_dict("records")
    whole = divide_sessions(session("s", "slurm")).sessions["wall"].iloc[0]
    assert one["wall"] == pytest.approx(whole - WAITS["rest"] + EACH["recording"] / 2)
    assert sum(one[name] for name in LAYERS) == pytest.approx(one["wall"])


@pytest.mark.parametrize(("scale", "expected"), [(1.0, "supported"), (4.0, "refuted")])
def test_the_talk_s_claims_are_asked_of_launched_sweeps(scale: float, expected: str) -> None:
    """Tasks that wait 6 s of 77 s, or 24 s of 110 s."""
    tasks = [session(f"s{n}", "slurm", scale * factor) for n, factor in enumerate((0.9, 1.0, 1.1, 1.0))]
    claims = load_claims(ROOT / "analysis" / "claims" / "layers.yaml")
    [scheduler] = judge(claims, Data(pd.concat(tasks, ignore_index=True)))
    assert scheduler.answer == expected
    found = scheduler.findings[0]
    assert found.points == 4
    assert found.quantity == "share of wall clock, over sessions"
    with pytest.raises(ConfigError, match="layers=queues: no such layer; choose of queue, task start, "):
        parse_claims("- {id: x, says: s, checks: [{kind: layers, layers: [queues], at_most: 1}]}", "my.yaml")


def test_the_command_says_and_draws_who_took_the_time(tmp_path: Path) -> None:
    frame = planted()
    result = analyse(frame)
    text = result.text()
    assert "slurm: 24 points in 4 sessions took " in text
    assert "local: 6 points in 1 session took " in text
    assert "  Scheduler (queue + task start): 1" in text
    assert text.count("Scheduler") == 1, "the local sweep has none"
    assert list(result.table.columns) == ["group", "layer", "seconds", "share", "low", "high", "sample"]
    result.figure().savefig(tmp_path / "layers.png")
    published = frame.iloc[[0]].assign(run_id="p").drop(columns=[name for name in frame if name.startswith("phase_")])
    assert "1 run without phases are left out" in analyse(pd.concat([frame, published], ignore_index=True)).text()
    with pytest.raises(NotEnoughData, match="no run reports its phases"):
        analyse(published)
    frame.loc[3, "environment_id"] = "other"
    with pytest.raises(SchemaError, match="environment_id"):
        analyse(frame)
    assert "pooled" in analyse(frame, LayersOptions(pool=True)).text()
