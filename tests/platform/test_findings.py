"""Findings on this host and on planted hosts, which are folders that imitate /proc and /sys."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paradnn.platform.environment import Environment, available_memory
from paradnn.platform.findings import Finding, gpu_findings, host_findings, load_findings
from paradnn.platform.load import ForeignProcess, HostLoad, LoadMonitor, process_label
from tests.processes import started

CPUS = "sys/devices/system/cpu"
#: Files of a laptop on which every setting disturbs measurements.
DISTURBED_LAPTOP = {
    f"{CPUS}/cpu0/cpufreq/scaling_governor": "powersave",
    f"{CPUS}/cpu1/cpufreq/scaling_governor": "powersave",
    f"{CPUS}/cpu0/topology/thread_siblings_list": "0-1",
    f"{CPUS}/cpu1/topology/thread_siblings_list": "0-1",
    f"{CPUS}/intel_pstate/no_turbo": "0",
    "sys/devices/system/node/node0/cpulist": "0,2-3",
    "sys/devices/system/node/node1/cpulist": "1,4-7",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet",
    "sys/class/power_supply/BAT0/status": "Discharging",
    "sys/fs/cgroup/cpu.max": "150000 100000",
    "sys/fs/cgroup/job/cpu.max": "max 100000",
    "sys/fs/cgroup/job/memory.max": "4294967296",
    "proc/self/cgroup": "0::/job",
    "proc/swaps": "Filename Type Size Used Priority\n/dev/sda2 partition 2097148 512000 -2",
    "proc/cpuinfo": "processor : 0\nflags : fpu sse2 avx",
}
#: Files of a server on which no setting disturbs measurements.
TUNED_SERVER = {
    f"{CPUS}/cpu0/cpufreq/scaling_governor": "performance",
    f"{CPUS}/cpu1/cpufreq/scaling_governor": "performance",
    f"{CPUS}/cpu0/topology/thread_siblings_list": "0",
    f"{CPUS}/cpu1/topology/thread_siblings_list": "1",
    f"{CPUS}/cpufreq/boost": "0",
    "sys/devices/system/node/node0/cpulist": "0-1",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "sys/fs/cgroup/cpu.max": "max 100000",
    "sys/fs/cgroup/memory.max": "max",
    "proc/self/cgroup": "0::/",
    "proc/swaps": "Filename Type Size Used Priority",
    "proc/cpuinfo": "processor : 0\nflags : fpu sse2 hypervisor",
}
QUIET = HostLoad(cores=2, average=0.2, foreign=0.01, steal=0.0, processes=())


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write the files of a host below `root`, and return `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


def findings_of(files: dict[str, str], root: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in host_findings(plant(root, files))}


def harmful(findings: dict[str, Finding]) -> list[str]:
    return [name for name, finding in findings.items() if finding.harms]


def test_every_disturbing_setting_is_found(tmp_path: Path) -> None:
    findings = findings_of(DISTURBED_LAPTOP, tmp_path)
    assert {name: finding.value for name, finding in findings.items()} == {
        "governor": "powersave",
        "turbo": "on",
        "thp": "always",
        "smt": "2 threads on 1 core",
        "numa": "2 of 2 in use",
        "cpu_quota": "1.5 of 2 cores",
        "memory_limit": "4.0 GiB",
        "swap": "500 MiB in use",
        "clock_source": "hpet",
        "virtual": "bare metal",
        "battery": "Discharging",
    }
    assert harmful(findings) == [
        "governor",
        "turbo",
        "numa",
        "cpu_quota",
        "swap",
        "clock_source",
        "battery",
    ]


def test_every_harmful_finding_has_a_reason_and_a_remedy(tmp_path: Path) -> None:
    findings = findings_of(DISTURBED_LAPTOP, tmp_path)
    assert all(finding.why for finding in findings.values())
    assert all(finding.remedy for finding in findings.values() if finding.harms)
    assert findings["numa"].remedy == "platform.cores=0"
    assert findings["governor"].remedy.startswith(
        "sudo python -m pyperf system tune, or: echo performance | sudo tee "
    )


def test_a_tuned_server_has_no_harmful_finding(tmp_path: Path) -> None:
    findings = findings_of(TUNED_SERVER, tmp_path)
    assert harmful(findings) == []
    assert findings["cpu_quota"].value == "none"
    assert findings["memory_limit"].value == "none"
    assert findings["virtual"].value == "virtual machine"
    assert findings["turbo"].value == "off"


def test_slurm_variables_limit_a_job_without_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "node1",
        "SLURM_CPUS_ON_NODE": "1",
        "SLURM_MEM_PER_CPU": "3072",
    }.items():
        monkeypatch.setenv(name, value)

    findings = findings_of(TUNED_SERVER, tmp_path)

    assert findings["memory_limit"].value == "3.0 GiB"
    assert findings["allocated_cores"].value == "1 of 2 cores"
    assert findings["allocated_cores"].remedy == "platform.threads=1"
    assert available_memory() < 3 * 2**30


def test_facts_that_a_host_does_not_report_are_omitted(tmp_path: Path) -> None:
    names = {finding.name for finding in host_findings(tmp_path)}
    # A quota, a memory limit and swap may be reported as "none" even without files.
    assert names <= {"cpu_quota", "memory_limit", "swap"}


def test_a_quiet_machine_is_not_busy() -> None:
    assert not QUIET.is_busy
    assert not [finding for finding in load_findings(QUIET) if finding.harms or finding.remedy]


def test_foreign_processes_make_a_machine_busy() -> None:
    busy = replace(QUIET, average=3.2, foreign=0.7, processes=(ForeignProcess(17, "python", 1.4),))
    [harm] = [finding for finding in load_findings(busy) if finding.harms]
    assert busy.is_busy
    assert str(busy) == "load 3.2 on 2 cores, other processes take 1.4 of them (python (17) 1.4)"
    assert harm.name == "foreign_cpu"
    assert harm.value == "1.40 of 2 cores: python (17) 1.4"
    assert harm.remedy == "end these processes, or wait until they end: ps 17"


def test_the_remedy_for_another_measurement_is_to_wait() -> None:
    worker = ForeignProcess(18, "python -m paradnn.worker", 1.0, measures=True)
    [harm] = [
        finding
        for finding in load_findings(replace(QUIET, foreign=0.7, processes=(worker,)))
        if finding.harms
    ]
    assert harm.remedy == (
        "wait until ParaDnn's own measurement ends (process 18): "
        "python -m paradnn.watch shows its progress"
    )


def test_a_hypervisor_makes_a_machine_busy() -> None:
    stolen = replace(QUIET, steal=0.2)
    assert stolen.is_busy
    assert str(stolen) == "load 0.2 on 2 cores, the hypervisor takes 20% (steal)"


def test_child_processes_are_not_foreign() -> None:
    monitor = LoadMonitor()
    with started([sys.executable, "-c", "while True: pass"]) as spinner:
        assert spinner.pid not in {process.pid for process in monitor.look().processes}


#: Throttle reasons of nvidia-smi, as bit masks.
GPU_IDLE = "0x1"
TOO_HOT_FOR_SOFTWARE = "0x0000000000000020"


def board_row(persistence: str, throttle_reasons: str) -> list[str]:
    """Return the row of nvidia-smi about board 0 at 1200 of at most 1980 MHz."""
    return ["0", persistence, "1200", "1980", throttle_reasons]


def board_findings(**answers: list[list[str]]) -> dict[str, Finding]:
    """Return the findings about GPU boards, given the rows of nvidia-smi per kind of query."""

    def query(kind: str, *_: str) -> list[list[str]]:
        return answers.get(kind.replace("-", "_"), [])

    return {finding.name: finding for finding in gpu_findings(query)}


def test_a_hot_and_shared_board_is_found() -> None:
    hot = board_row(persistence="Disabled", throttle_reasons=TOO_HOT_FOR_SOFTWARE)
    process_row = ["4242", "python"]
    findings = board_findings(gpu=[hot], compute_apps=[process_row])
    assert harmful(findings) == ["gpu_throttling", "gpu_processes"]
    assert findings["gpu_throttling"].value == "temperature (software)"
    assert findings["gpu_processes"].value == "python (4242)"
    assert "-pm 1" in findings["gpu_persistence"].remedy


def test_an_idle_board_has_no_harmful_finding() -> None:
    idle = board_row(persistence="Enabled", throttle_reasons=GPU_IDLE)
    assert harmful(board_findings(gpu=[idle])) == []


def test_a_machine_without_boards_has_no_finding_about_boards() -> None:
    assert board_findings() == {}


def test_findings_are_recorded_and_do_not_change_the_environment_id() -> None:
    plain = Environment("a processor", {"cores": 2}, {"keras": "3"}, {})
    checked = replace(plain, findings=tuple(load_findings(QUIET)))
    assert checked.environment_id == plain.environment_id
    assert checked.as_dict()["findings"][0]["name"] == "load_average"


@pytest.mark.parametrize(
    ("words", "label"),
    [
        pytest.param(
            ["/usr/bin/python3.11", "-u", "-m", "mlflow", "ui", "--password", "x"],
            "python3.11 -u -m mlflow",
            id="module",
        ),
        pytest.param(["python", "train.py", "--token=x"], "python train.py", id="script"),
        pytest.param(["python3", "-c", "import secret"], "python3 -c", id="program text"),
        pytest.param(["/opt/chrome", "--type=x"], "chrome", id="other program"),
        pytest.param([], "", id="no words"),
    ],
)
def test_the_label_of_a_process_contains_no_possible_secret(words: list[str], label: str) -> None:
    assert process_label(words) == label
