"""What a run says beside its timing, as a user gets it: operation table, figure, ceilings, latency, energy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from paradnn.hardware import HARDWARE, find_hardware
from tests.conftest import TINY, Store, run

PNG = b"\x89PNG\r\n\x1a\n"
WITH_CEILINGS = [entry for entry in TINY if entry != "ceilings=false"]


def artifacts(store: Store, run_id: str) -> Path:
    [(uri,)] = store.query("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
    return Path(uri.removeprefix("file://"))


def table(path: Path) -> list[dict]:
    content = json.loads(path.read_text())
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def test_profile_and_ceilings_of_a_sweep(store: Store) -> None:
    """Two points, one set of ceilings; a later command measures neither of them again."""
    command = ["paradnn.train", "-m", *WITH_CEILINGS, "compile=graph,xla", "measure.profile=true"]
    done = run(command, store)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("measuring the ceilings") == 1
    [ceilings] = store.runs("ceilings")
    assert ceilings["status"] == "FINISHED"
    peaks = store.values("latest_metrics", ceilings["run_id"])
    folder = artifacts(store, ceilings["run_id"])
    rates = [row["flops_per_second"] for row in table(folder / "matmul.json") if row["precision"] == "float32"]
    assert peaks["peak_flops_per_second.float32"] == max(rates)
    assert peaks["peak_bytes_per_second"] == table(folder / "bandwidth.json")[-1]["bytes_per_second"]
    assert (folder / "ceilings.png").read_bytes().startswith(PNG)
    assert len(store.runs()) == 2
    for point in store.runs():
        metrics = store.values("latest_metrics", point["run_id"])
        folder = artifacts(store, point["run_id"])
        assert point["checks"] == "passed"
        assert point["ceilings_run"] == ceilings["run_id"]
        assert point["matmul_types"] == "float32 100.0%"
        assert metrics["peak_flops_per_second"] == max(rates)
        assert metrics["flops_utilization"] == metrics["flops_per_second"] / max(rates)
        shares = {key: value for key, value in metrics.items() if key.startswith("category_share.")}
        assert math.isclose(sum(shares.values()) + metrics["profile_unexplained_share"], 1.0, abs_tol=1e-6)
        assert sum(row["share"] for row in table(folder / "operations.json")) == pytest.approx(1.0)
        assert (folder / "breakdown.png").read_bytes().startswith(PNG)
        assert json.loads(point["mlflow.loggedArtifacts"])[0] == {"path": "operations.json", "type": "table"}
        assert point["energy_source"].startswith(("rapl", "unavailable: "))
        assert ("energy_per_step_joules" in metrics) == (point["energy_source"] == "rapl")
    again = run([*command, "model.nodes=9"], store)
    assert again.returncode == 0, again.stderr
    assert "measuring the ceilings" not in again.stderr
    assert len(store.runs("ceilings")) == 1


def test_a_profile_that_is_asked_for_later_is_measured(store: Store) -> None:
    assert "ok" in run(["paradnn.train", *TINY], store).stdout
    assert "held this outcome already" in run(["paradnn.train", *TINY], store).stdout
    assert run(["paradnn.train", *TINY, "measure.keep_trace=true"], store).returncode == 0
    kept = [point for point in store.runs() if "extras" in point]
    assert [point["extras"] for point in kept] == ["profile keep_trace"]
    traces = list((artifacts(store, kept[0]["run_id"]) / "trace").rglob("plugins/profile/*/*.xplane.pb"))
    assert len(traces) == 1
    assert traces[0].stat().st_size > 1000
    # The trace brings the profile along, and either stands for the bare timing.
    for more in ([], ["measure.profile=true"], ["measure.keep_trace=true"]):
        assert "held this outcome already" in run(["paradnn.train", *TINY, *more], store).stdout
    # The timing is the same measurement with and without a profile.
    assert len({point["protocol_id"] for point in store.runs()}) == 1


def test_inference_has_latencies(store: Store) -> None:
    done = run(["paradnn.train", *TINY, "mode=inference", "batch_size=1"], store)
    assert done.returncode == 0, done.stderr
    [point] = store.runs()
    metrics = store.values("latest_metrics", point["run_id"])
    quantiles = [metrics[f"latency_p{share}_ms"] for share in (50, 90, 99)]
    assert 0 < quantiles[0] <= quantiles[1] <= quantiles[2]
    assert metrics["latency_steps"] >= 100
    assert "latency" in done.stdout


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200 (SXM)"),
        ("NVIDIA A100-SXM4-80GB", "A100 (SXM, 80 GB)"),
        ("NVIDIA A10", "A10"),
        ("TPU v2", "TPU v2 (board, 8 cores)"),
        ("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz, 40 cores", "Xeon Platinum 8380"),
        ("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz, 4 cores", None),
        ("AMD EPYC, 2 cores", None),
        ("NVIDIA Z9000", None),
    ],
)
def test_specifications_are_found_by_name_or_not_at_all(device: str, name: str | None) -> None:
    found = find_hardware(device)
    assert (found.name if found else None) == name


def test_every_specification_has_a_source_and_sound_numbers() -> None:
    assert len({entry.name for entry in HARDWARE}) == len(HARDWARE)
    for entry in HARDWARE:
        assert entry.source
        assert all(1e11 < peak < 1e16 for peak in entry.peak_flops.values())
        assert find_hardware(f"{entry.aliases[0]}, {entry.cores} cores" if entry.cores else entry.aliases[0])
        if {"float32", "float16"} <= set(entry.peak_flops):
            assert entry.peak_flops["float16"] > entry.peak_flops["float32"]
