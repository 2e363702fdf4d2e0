"""What the keys of a point must be together; ConfigError says which is to change."""

from __future__ import annotations

from typing import Any

from paradnn.errors import ConfigError


def check_hosts(point: Any) -> None:
    """What is on several hosts has processes for each, and runs in an interpreter that is on all."""
    hosts = point.hosts
    if hosts == 1:
        return
    key, processes = point.workload.meeting(point)
    if processes % hosts:
        reason = f"does not divide the {processes} processes of {key}"
        raise ConfigError("hosts", hosts, reason, "give each host as many of them")
    if point.software.name != "current" or point.software.python:
        reason = f"is not for software={point.software.name}: the other hosts have the interpreter of this command"
        raise ConfigError("hosts", hosts, reason, "start this command with that interpreter")


def check_latency(point: Any) -> None:
    """Cold caches are a latency's, and a processor's."""
    if point.measure.cold_caches and (point.workload.mode != "inference" or point.platform.name != "cpu"):
        raise ConfigError(
            "measure.cold_caches", "true", "is for the latency of a CPU", "set mode=inference and platform=cpu"
        )


def check_processes(measure: Any) -> None:
    """The cap of an interval's processes is no less than the processes that there are anyway."""
    if measure.relative_interval is not None and measure.max_processes < measure.processes:
        raise ConfigError(
            "measure.max_processes",
            measure.max_processes,
            f"is less than measure.processes={measure.processes}",
            "raise it",
        )


def check_software(software: Any) -> None:
    """An interpreter is given or made, not both."""
    if software.python and software.requirements:
        raise ConfigError(
            "software.python", software.python, f"software={software.name} has requirements of its own", "give one"
        )
    if software.python_version and not software.requirements:
        raise ConfigError(
            "software.python_version", software.python_version, "is for a stack", "give software.requirements too"
        )
