"""Hosts planted as folders that look like /proc and /sys."""

from pathlib import Path

CPU = "sys/devices/system/cpu"

#: A laptop with all that hurts.
LAPTOP = {
    f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave\n",
    f"{CPU}/intel_pstate/no_turbo": "0\n",
    f"{CPU}/cpu0/topology/thread_siblings_list": "0-1\n",
    f"{CPU}/cpu1/topology/thread_siblings_list": "0-1\n",
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
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpufreq/boost": "0\n",
    f"{CPU}/cpu0/topology/thread_siblings_list": "0\n",
    f"{CPU}/cpu1/topology/thread_siblings_list": "1\n",
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
