from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.overhead import LAYERS, OverheadOptions, OverheadResult, sessions_of, share_of
from analysis.analyses.overhead import overhead as analyse
from analysis.claims.evaluate import Data, judge
from analysis.claims.load import load_claims, parse_claims
from analysis.statistics.quantiles import bootstrap_ratio
from paradnn.errors import ConfigError, NotEnoughData, SchemaError
from paradnn.store.metrics import PHASES
from tests.conftest import ROOT

START = pd.Timestamp("2026-11-22T10:00:00Z")
#: What a session is planted with, in seconds; phases are of each point, but `start`, of the first.
QUEUE, TASK_START, REST, IMPORT, FORK, POINTS = 4.0, 2.0, 1.5, 5.0, 0.0625, 6
EACH = {
    "schedule": 0.25,
    "build": 0.5,
    "compile": 1.0,
    "warmup": 0.75,
    "measure": 8.0,
    "profile": 0.25,
    "record": 0.125,
}


def points(count: int = 40) -> pd.DataFrame:
    """Runs of two families; only some were profiled, two have no phases at all."""
    rng = np.random.default_rng(5)
    columns = {f"phase_{name}_seconds": rng.gamma(2, 1 + place, count) for place, name in enumerate(PHASES)}
    frame = pd.DataFrame(columns).assign(family=["rnn", "fc"] * (count // 2), outcome="ok", device="D")
    frame.loc[: count // 2, "phase_profile_seconds"] = np.nan
    frame.loc[frame.index.intersection([3, 8]), list(columns)] = np.nan
    return frame.assign(run_id=[str(row) for row in range(count)])


def overhead(frame: pd.DataFrame, **options: Any) -> OverheadResult:
    result = analyse(frame, OverheadOptions(**options))
    assert isinstance(result, OverheadResult)
    return result


def session(name: str, launcher: str | None, scale: float = 1.0, **columns: object) -> pd.DataFrame:
    """A session whose waits are so many times as long; the first of its points waits for the framework."""
    rows, now = [], REST
    for number in range(POINTS):
        phases = EACH | {"start": scale * IMPORT if number == 0 else FORK}
        begun, now = now, now + sum(phases.values())
        rows.append(
            {
                "run_id": f"{name}-{number}",
                "start_time": START + pd.Timedelta(seconds=begun + EACH["schedule"]),
                "end_time": START + pd.Timedelta(seconds=now),
                **{f"phase_{phase}_seconds": value for phase, value in phases.items()},
                "session_seconds": now,
                "sweep_id": f"sweep-{name}",
                "device": "D",
                "family": "fc",
                "environment_id": "e",
                "outcome": "ok",
            }
        )
    frame = pd.DataFrame(rows)
    if launcher:
        waits = {"queue_seconds": scale * QUEUE, "task_start_seconds": scale * TASK_START}
        frame = frame.assign(launcher=launcher, launched_task="0", **waits)
    return frame.assign(**columns)


def planted() -> pd.DataFrame:
    """Four tasks under Slurm with waits of several lengths, one sweep without a launcher."""
    tasks = [session(f"s{number}", "slurm", scale) for number, scale in enumerate((1.0, 2.0, 3.0, 4.0))]
    return pd.concat([*tasks, session("l", None)], ignore_index=True)


def test_every_layer_of_a_session_is_what_was_planted_and_they_add_up_to_the_wall_clock() -> None:
    found = sessions_of(planted())
    assert list(found["launcher"]) == ["slurm"] * 4 + ["local"]
    expected = {name: POINTS * spent for name, spent in EACH.items()}
    expected |= {"queue": 2 * QUEUE, "task start": 2 * TASK_START, "rest": REST}
    expected |= {"start": 2 * IMPORT + (POINTS - 1) * FORK}
    one = found.iloc[1]
    assert one[list(expected)].to_dict() == pytest.approx(expected)
    assert one["wall"] == pytest.approx(sum(expected.values()))
    assert found.iloc[-1][["queue", "task start"]].tolist() == [0, 0]
    np.testing.assert_allclose(found[list(LAYERS)].sum(axis=1), found["wall"])
    slurm = found[found["launcher"] == "slurm"]
    share = share_of(slurm, ("queue", "task start"), slurm["wall"])
    assert share.value == pytest.approx((QUEUE + TASK_START) * 10 / slurm["wall"].sum())
    each = (QUEUE + TASK_START) * np.array([1, 2, 3, 4]) / slurm["wall"]
    assert 0 <= share.low < each.mean() < share.high <= 1


def test_an_interval_over_tasks_covers_the_share_of_all_tasks() -> None:
    """Of 100 samples of 20 tasks whose queue is exponential; the wall clock beside it is the same."""
    rng, covered = np.random.default_rng(7), 0
    base = session("t", "slurm").iloc[[0]]
    work = float(sessions_of(base)["wall"].iloc[0]) - QUEUE
    truth = 5.0 / (5.0 + work)
    for _ in range(100):
        tasks = pd.concat([base] * 20, ignore_index=True).assign(
            queue_seconds=rng.exponential(5.0, 20),
            launched_task=[str(n) for n in range(20)],
            run_id=[str(n) for n in range(20)],
        )
        found = sessions_of(tasks)
        share = share_of(found, ("queue",), found["wall"])
        covered += share.low <= truth <= share.high
    assert 87 <= covered <= 99


def test_attempts_sweeps_and_single_points_are_sessions_of_their_own() -> None:
    again = session("s", "slurm").assign(restarts="1").drop(columns=["queue_seconds", "task_start_seconds"])
    other = session("s", "slurm", host="node2")
    alone = session("x", None).drop(columns="sweep_id").iloc[:2]
    named = [session("n", "slurm", session_id=name) for name in ("one", "two")]
    assert list(sessions_of(pd.concat(named, ignore_index=True))["points"]) == [POINTS, POINTS]
    frame = pd.concat([session("s", "slurm", host="node1"), again, other, alone], ignore_index=True)
    assert list(sessions_of(frame)["points"]) == [POINTS, POINTS, 1, 1], "how long a restarted task waited is not known"


def test_runs_recorded_before_sessions_said_how_long_they_took() -> None:
    """Their wall clock is that of their first and last times, which do not hold what came before the first claim."""
    [one] = sessions_of(session("s", "slurm").drop(columns="session_seconds")).to_dict("records")
    whole = sessions_of(session("s", "slurm"))["wall"].iloc[0]
    assert one["wall"] == pytest.approx(whole - REST)
    assert sum(one[name] for name in LAYERS) == pytest.approx(one["wall"])


@pytest.mark.parametrize(("scale", "expected"), [(1.0, "supported"), (4.0, "refuted")])
def test_the_talk_s_claims_are_asked_of_launched_sweeps(scale: float, expected: str) -> None:
    """Tasks that wait 6 s of 77 s, or 24 s of 110 s."""
    tasks = [session(f"s{n}", "slurm", scale * factor) for n, factor in enumerate((0.9, 1.0, 1.1, 1.0))]
    claims = load_claims(ROOT / "analysis" / "claims" / "layers.yaml")
    (scheduler,) = judge(claims, Data(pd.concat(tasks, ignore_index=True)))
    assert scheduler.answer == expected
    assert (scheduler.findings[0].points, scheduler.findings[0].quantity) == (4, "share of wall clock, over sessions")
    with pytest.raises(ConfigError, match="layers=queues: no such layer; choose of queue, task start, "):
        parse_claims("- {id: x, says: s, checks: [{kind: layers, layers: [queues], at_most: 1}]}", "my.yaml")


def test_sessions_are_said_and_drawn_by_launcher(tmp_path: Path) -> None:
    frame = planted()
    result = analyse(frame, OverheadOptions(by="launcher"))
    text = result.text()
    assert "slurm: 24 points in 4 sessions took " in text
    assert "local: 6 points in 1 session took " in text
    assert "  measure: 51% (95% interval " in text
    assert text.count("Scheduler (queue + task start): 1") == 1, "the local sweep has none"
    assert list(result.table.columns) == ["launcher", "layer", "seconds", "share", "low", "high"]
    assert result.table.groupby("launcher")["share"].sum().to_dict() == pytest.approx({"slurm": 1, "local": 1})
    result.figure().savefig(tmp_path / "layers.png")
    published = frame.iloc[[0]].assign(run_id="p").drop(columns=[name for name in frame if name.startswith("phase_")])
    with pytest.raises(NotEnoughData, match="no run reports its phases"):
        analyse(published, OverheadOptions(by="launcher"))


def test_phases_against_plain_numpy() -> None:
    frame = points()
    found = overhead(frame)
    table = frame[[f"phase_{name}_seconds" for name in PHASES]].to_numpy()
    total = np.nansum(table)
    assert (found.wall, found.runs, found.without) == (pytest.approx(total), 38, 2)
    assert list(found.phases["phase"]) == list(PHASES)
    np.testing.assert_allclose(found.phases["median"], np.nanmedian(table, axis=0))
    np.testing.assert_allclose(found.phases["q25"], np.nanpercentile(table, 25, axis=0))
    np.testing.assert_allclose(found.phases["share"], np.nansum(table, axis=0) / total)
    assert found.phases["share"].sum() == pytest.approx(1)
    assert found.phases.set_index("phase")["runs"]["profile"] == 19
    parts = dict(zip(PHASES, np.nansum(table, axis=0) / total, strict=True))
    measuring = ("prefill", "requests", "measure", "latency", "load", "learn")
    assert found.measuring.value == pytest.approx(sum(parts[name] for name in measuring))
    assert found.stack.value == pytest.approx(parts["schedule"] + parts["start"] + parts["record"])
    assert found.measuring.low < found.measuring.value < found.measuring.high


def test_families_stack_up_to_the_mean_time_of_a_point() -> None:
    frame = points()
    found = overhead(frame)
    assert list(dict.fromkeys(found.families["family"])) == ["fc", "rnn"]
    for family, group in found.families.groupby("family"):
        mine = frame[frame["family"] == family].filter(like="phase_").dropna(how="all")
        assert group["seconds"].sum() == pytest.approx(np.nansum(mine) / len(mine))
        assert group["share"].sum() == pytest.approx(1)


def test_no_interval_of_a_share_is_beyond_0_and_1() -> None:
    """Eight points, nearly all of whose time is measured: a bootstrap that knows numbers alone goes above 1."""
    rng = np.random.default_rng(3)
    wall, share = rng.gamma(2, 3, 8), 1 - rng.beta(0.3, 6, 8)
    assert bootstrap_ratio(wall * share, wall).high > 1
    assert bootstrap_ratio(wall * (1 - share), wall).low < 0
    phases = {"phase_measure_seconds": wall * share, "phase_start_seconds": wall * (1 - share)}
    found = overhead(pd.DataFrame(phases).assign(family="fc", device="D", run_id=range(8)))
    assert (found.measuring.high, found.stack.low) == (1.0, 0.0)
    assert 0 < found.measuring.low < found.measuring.value < 1


def test_the_command_says_and_draws_where_time_goes(tmp_path: Path) -> None:
    frame = points().assign(device="D", environment_id="e")
    result = overhead(frame)
    assert result.text().startswith(f"38 points took {result.wall:.0f} s of wall time, ")
    assert f"{100 * result.measuring.value:.0f}% (95% interval " in result.text()
    assert "is the stack's own overhead (schedule + start + record), " in result.text()
    assert "2 runs report no phases and are left out." in result.text()
    assert list(result.table["phase"]) == list(PHASES)
    assert len(result.sources) == 38
    result.figure().savefig(tmp_path / "overhead.png")
    bars = {bar.get_label(): bar.patches[0] for bar in result.figure().axes[0].containers}
    looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in bars.values()}
    assert len(looks) == len(bars) == len(PHASES), "every phase has a look of its own"
    # Runs without phases, such as published ones, make no others heterogeneous.
    frame.loc[[3, 8], "environment_id"] = "published"
    assert "pooled" not in overhead(frame).text()
    frame.loc[5, "environment_id"] = "other"
    with pytest.raises(SchemaError, match="environment_id"):
        overhead(frame)
    assert "Heterogeneous runs were pooled" in overhead(frame, pool=True).text()
    endless = points().assign(phase_build_seconds=np.inf)
    assert "build" not in list(overhead(endless).phases["phase"])
    bare = overhead(frame.loc[[3, 8]])
    assert bare.text() == "None of these 2 runs reports its phases; published ones do not."
    assert not bare.drawable


def test_few_points_may_miss_rare_waits() -> None:
    """With n points, what occurs in 1 - 0.05^(1/n) of them is missing from all of them in 5% of samples."""
    frame = points().assign(device="D", environment_id="e")
    assert (
        "waits that occur in fewer than 7.6% of the points may be missing from 38 of them (95%)"
        in overhead(frame).text()
    )
    assert pytest.approx(0.05, abs=1e-3) == (1 - 0.0758) ** 38
    many = pd.concat([frame.assign(run_id=frame["run_id"] + f"-{i}") for i in range(10)], ignore_index=True)
    assert "may be missing" not in overhead(many).text()
