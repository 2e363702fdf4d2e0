"""What is found on planted hosts, folders that look like /proc and /sys, and on this one."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paradnn.platform.environment import Environment
from paradnn.platform.findings import Finding, gpu_findings, host_findings, load_findings
from paradnn.platform.load import HostLoad, LoadWatch, Taker, described
from tests.processes import started

CPU = "sys/devices/system/cpu"

#: A laptop with all that hurts.
LAPTOP = {
    **{f"{CPU}/cpu{core}/cpufreq/scaling_governor": "powersave\n" for core in (0, 1)},
    **{f"{CPU}/cpu{core}/topology/thread_siblings_list": "0-1\n" for core in (0, 1)},
    f"{CPU}/intel_pstate/no_turbo": "0\n",
    "sys/devices/system/node/node0/cpulist": "0,2-3\n",
    "sys/devices/system/node/node1/cpulist": "1,4-7\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
    "sys/class/power_supply/BAT0/status": "Discharging\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/job/memory.max": "4294967296\n",
    "proc/self/cgroup": "0::/job\n",
    "proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition 2097148 512000 -2\n",
    "proc/cpuinfo": "processor : 0\nflags : fpu sse2 avx\n",
}

#: A server that is as it should be.
SERVER = {
    **{f"{CPU}/cpu{core}/cpufreq/scaling_governor": "performance\n" for core in (0, 1)},
    **{f"{CPU}/cpu{core}/topology/thread_siblings_list": f"{core}\n" for core in (0, 1)},
    f"{CPU}/cpufreq/boost": "0\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "proc/self/cgroup": "0::/\n",
    "proc/swaps": "Filename Type Size Used Priority\n",
    "proc/cpuinfo": "processor : 0\nflags : fpu sse2 hypervisor\n",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    """The host's files below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


def found(root: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in host_findings(root)}


def test_all_that_hurts_is_found(tmp_path: Path) -> None:
    findings = found(plant(tmp_path, LAPTOP))
    assert {name: finding.value for name, finding in findings.items()} == {
        "governor": "powersave",
        "turbo": "on",
        "thp": "always",
        "smt": "2 threads on 1 cores",
        "numa": "2 of 2 in use",
        "cpu_quota": "1.5 of 2 cores",
        "memory_limit": "4.0 GiB",
        "swap": "500 MiB in use",
        "clock_source": "hpet",
        "virtual": "bare metal",
        "battery": "Discharging",
    }
    harmful = {"governor", "turbo", "numa", "cpu_quota", "swap", "clock_source", "battery"}
    assert {name for name, finding in findings.items() if finding.harms} == harmful
    assert all(findings[name].remedy for name in harmful)
    assert all(finding.why for finding in findings.values())
    assert findings["numa"].remedy == "platform.cores=0"
    assert findings["governor"].remedy.startswith("sudo python -m pyperf system tune, or: echo performance | sudo tee ")


def test_a_host_as_it_should_be_has_nothing_that_harms(tmp_path: Path) -> None:
    findings = found(plant(tmp_path, SERVER))
    assert not [finding for finding in findings.values() if finding.harms]
    assert findings["cpu_quota"].value == findings["memory_limit"].value == "none"
    assert findings["virtual"].value == "virtual machine"


def test_what_a_host_does_not_tell_is_left_out(tmp_path: Path) -> None:
    assert {finding.name for finding in host_findings(tmp_path)} <= {"cpu_quota", "memory_limit", "swap"}


QUIET = HostLoad(2, 0.2, 0.01, 0.0, ())


def test_a_busy_machine_is_said_to_be() -> None:
    assert not QUIET.busy
    busy = replace(QUIET, average=3.2, foreign=0.7, takers=(Taker(17, "python", 1.4),))
    assert busy.busy
    assert str(busy) == "load 3.2 on 2 cores, others take 1.4 of them (python (17) 1.4)"
    harming = {finding.name: finding for finding in load_findings(busy) if finding.harms}
    assert list(harming) == ["foreign_cpu"]
    assert "17" in harming["foreign_cpu"].remedy
    own = replace(busy, takers=(Taker(18, "python -m paradnn.worker", 1.0, measures=True),))
    [remedy] = [finding.remedy for finding in load_findings(own) if finding.harms]
    assert remedy == "ParaDnn measures here (18): wait for its end, python -m paradnn.watch shows it"
    stolen = replace(QUIET, steal=0.2)
    assert stolen.busy
    assert str(stolen) == "load 0.2 on 2 cores, the hypervisor takes 20% (steal)"
    assert not [finding for finding in load_findings(QUIET) if finding.harms or finding.remedy]


def test_what_this_process_started_is_not_foreign() -> None:
    watch = LoadWatch()
    with started([sys.executable, "-c", "while True: pass"]) as spinner:
        assert spinner.pid not in {taker.pid for taker in watch.look().takers}


def test_a_board_that_is_hot_and_shared_is_told() -> None:
    def findings(**said: list[list[str]]) -> dict[str, Finding]:
        return {one.name: one for one in gpu_findings(lambda kind, *_: said.get(kind.replace("-", "_"), []))}

    hot = ["0", "Disabled", "1200", "1980", "0x0000000000000020"]
    found = findings(gpu=[hot], compute_apps=[["4242", "python"]])
    assert {name for name, finding in found.items() if finding.harms} == {"gpu_throttling", "gpu_processes"}
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


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["/usr/bin/python3.11", "-u", "-m", "mlflow", "ui", "--password", "x"], "python3.11 -u -m mlflow"),
        (["python", "train.py", "--token=x"], "python train.py"),
        (["python3", "-c", "import secret"], "python3 -c"),
        (["/opt/chrome", "--type=x"], "chrome"),
        ([], ""),
    ],
)
def test_a_process_is_called_by_what_it_runs(words: list[str], called: str) -> None:
    assert described(words) == called
