"""Hosts planted as folders that look like /proc and /sys."""

from __future__ import annotations

from pathlib import Path

CPU = "sys/devices/system/cpu"

#: A laptop with all that hurts.
LAPTOP = {
    f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave\n",
    f"{CPU}/cpu0/cpufreq/cpuinfo_min_freq": "800000\n",
    f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "4700000\n",
    f"{CPU}/cpu0/cpufreq/base_frequency": "2100000\n",
    f"{CPU}/intel_pstate/no_turbo": "0\n",
    f"{CPU}/cpu0/topology/thread_siblings_list": "0-1\n",
    f"{CPU}/cpu1/topology/thread_siblings_list": "0-1\n",
    f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "12\n",
    f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "5\n",
    f"{CPU}/online": "0-7\n",
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
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/kernel/randomize_va_space": "2\n",
    "proc/cpuinfo": "processor : 0\nflags : fpu sse2 avx\n",
}

#: A server that is as it should be.
SERVER = {
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpufreq/boost": "0\n",
    f"{CPU}/cpu0/topology/thread_siblings_list": "0\n",
    f"{CPU}/cpu1/topology/thread_siblings_list": "1\n",
    f"{CPU}/online": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/\n1:name=systemd:/\n",
    "proc/swaps": "Filename Type Size Used Priority\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/kernel/randomize_va_space": "0\n",
    "proc/cpuinfo": "processor : 0\nflags : fpu sse2 hypervisor\n",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    """The host's files below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def content(root: Path) -> dict[str, str]:
    """What the files below `root` say, without the space around it."""
    return {str(path.relative_to(root)): path.read_text().strip() for path in root.rglob("*") if path.is_file()}
