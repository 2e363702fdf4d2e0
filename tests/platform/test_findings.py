"""What is found on planted hosts, folders that look like /proc and /sys, and on this one."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from paradnn.platform.environment import Environment
from paradnn.platform.findings import Finding, gpu_findings, host_findings, load_findings
from paradnn.platform.load import ForeignProcess, HostLoad, LoadMonitor, described
from tests.processes import started

#: Planted hosts, their files and what is found on them; and what processes are called.
HOSTS, PROCESSES = (
    yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text())
    for name in ("hosts", "processes")
)


def plant(root: Path, files: dict[str, str]) -> Path:
    """The host's files below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


def found(root: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in host_findings(root)}


@pytest.mark.parametrize("host", HOSTS)
def test_all_that_hurts_is_found_and_nothing_else(host: str, tmp_path: Path) -> None:
    findings = found(plant(tmp_path, HOSTS[host]["files"]))
    told = HOSTS[host]
    assert (
        told["found"].items() <= {name: finding.value for name, finding in findings.items()}.items()
    )
    assert [name for name, finding in findings.items() if finding.harms] == told["harmful"]
    assert all(
        finding.why and bool(finding.remedy) >= finding.harms for finding in findings.values()
    )
    if told["harmful"]:
        assert set(findings) == set(told["found"])
        assert findings["numa"].remedy == "platform.cores=0"
        tune = "sudo python -m pyperf system tune, or: echo performance | sudo tee "
        assert findings["governor"].remedy.startswith(tune)


def test_what_a_host_does_not_tell_is_left_out(tmp_path: Path) -> None:
    assert {finding.name for finding in host_findings(tmp_path)} <= {
        "cpu_quota",
        "memory_limit",
        "swap",
    }


QUIET = HostLoad(2, 0.2, 0.01, 0.0, ())


def test_a_busy_machine_is_said_to_be() -> None:
    assert not QUIET.busy
    busy = replace(QUIET, average=3.2, foreign=0.7, takers=(ForeignProcess(17, "python", 1.4),))
    assert busy.busy
    assert str(busy) == "load 3.2 on 2 cores, others take 1.4 of them (python (17) 1.4)"
    harming = {finding.name: finding for finding in load_findings(busy) if finding.harms}
    assert list(harming) == ["foreign_cpu"]
    assert "17" in harming["foreign_cpu"].remedy
    own = replace(
        busy, takers=(ForeignProcess(18, "python -m paradnn.worker", 1.0, measures=True),)
    )
    [remedy] = [finding.remedy for finding in load_findings(own) if finding.harms]
    assert (
        remedy == "ParaDnn measures here (18): wait for its end, python -m paradnn.watch shows it"
    )
    stolen = replace(QUIET, steal=0.2)
    assert stolen.busy
    assert str(stolen) == "load 0.2 on 2 cores, the hypervisor takes 20% (steal)"
    assert not [finding for finding in load_findings(QUIET) if finding.harms or finding.remedy]


def test_what_this_process_started_is_not_foreign() -> None:
    watch = LoadMonitor()
    with started([sys.executable, "-c", "while True: pass"]) as spinner:
        assert spinner.pid not in {taker.pid for taker in watch.look().takers}


def test_a_board_that_is_hot_and_shared_is_told() -> None:
    def findings(**said: list[list[str]]) -> dict[str, Finding]:
        return {
            one.name: one
            for one in gpu_findings(lambda kind, *_: said.get(kind.replace("-", "_"), []))
        }

    hot = ["0", "Disabled", "1200", "1980", "0x0000000000000020"]
    found = findings(gpu=[hot], compute_apps=[["4242", "python"]])
    assert {name for name, finding in found.items() if finding.harms} == {
        "gpu_throttling",
        "gpu_processes",
    }
    assert found["gpu_throttling"].value == "temperature (software)"
    assert found["gpu_processes"].value == "python (4242)"
    assert "-pm 1" in found["gpu_persistence"].remedy
    idle = findings(gpu=[["0", "Enabled", "1200", "1980", "0x1"]])
    assert not [finding for finding in idle.values() if finding.harms]
    assert findings() == {}


def test_findings_are_recorded_and_identify_nothing() -> None:
    plain = Environment("a processor", {"cores": 2}, {"keras": "3"}, {})
    told = replace(plain, findings=tuple(load_findings(QUIET)))
    assert told.environment_id == plain.environment_id
    assert told.as_dict()["findings"][0]["name"] == "load_average"


@pytest.mark.parametrize(("words", "called"), PROCESSES)
def test_a_process_is_called_by_what_it_runs(words: list[str], called: str) -> None:
    assert described(words) == called
