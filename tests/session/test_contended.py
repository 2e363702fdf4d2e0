"""What is told of points that others disturbed, and of a machine that is busy before the first."""

import pytest

from paradnn.platform.load import HostLoad, LoadWatch, Taker
from paradnn.session.design import RecordedPoint, Summary
from paradnn.session.progress import describe_point, describe_sweep
from tests.conftest import TINY, Store, run

METRICS = {
    "examples_per_second": 100.0,
    "step_time_ms": 10.0,
    "blocks": 10.0,
    "steps_per_block": 1.0,
    "flops_per_step": 1e6,
    "flops_per_second": 1e8,
    "parameters": 10.0,
}
TAGS = {"steady": "true", "steady_reason": "", "contended": "true", "contended_reason": "other processes took 1 of 2"}


def row(**tags: str) -> RecordedPoint:
    return RecordedPoint("id", "fc b4", "fc", "ok", None, METRICS, {"steady": "true", "steady_reason": "", **tags})


def test_a_contended_point_says_what_took_its_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert "note         contended: other processes took 1 of 2" in describe_point(row(**TAGS), "a store")
    assert "contended" not in describe_point(row(contended="false"), "a store")
    summary = Summary(2)
    summary.rows += [row(**TAGS), row(contended="false")]
    describe_sweep(summary)
    shown = capsys.readouterr().out
    assert shown.count("yes, contended") == 1


@pytest.mark.framework
def test_a_busy_machine_is_told_before_its_first_point(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = HostLoad(2, 3.2, 0.7, 0.0, (Taker(17, "spin", 1.4),))
    monkeypatch.setattr(LoadWatch, "look", lambda _: busy)
    done = run(["paradnn.train", *TINY], store)
    assert done.returncode == 0, done.stderr
    line = "this machine is busy: load 3.2 on 2 cores, others take 1.4 of them (spin (17) 1.4): intervals will be wide"
    assert done.stderr.count(line) == 1
    (point,) = store.runs()
    assert point["contended"] in ("true", "false")
    metrics = store.values("latest_metrics", point["run_id"])
    assert 0 <= metrics["own_cpu_fraction"] <= 1.5
    known = run(["paradnn.train", *TINY], store)
    assert "this machine is busy" not in known.stderr
