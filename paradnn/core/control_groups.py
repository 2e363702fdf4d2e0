"""Limits that the Linux control groups of this process impose on memory and processor time.

A limit applies to a group and to all groups below it. Slurm, systemd, Kubernetes and Docker set
limits at different levels. Each function therefore reads every group from the group of this process
up to the root of the hierarchy. The module supports both versions of control groups, and the hybrid
layout, in which version 1 manages some controllers and version 2 the others.

Functions take the root of the file system as an argument, so that tests can imitate other hosts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
#: A memory limit of at least this size means "no limit". Version 1 reports the largest number of
#: whole pages below 2**63 bytes.
_UNLIMITED_BYTES = 2**62


@dataclass(frozen=True)
class _Hierarchy:
    """The control groups of one controller, such as memory, to which this process belongs.

    Attributes:
        version: 1 or 2.
        folders: Folders of the groups, from the innermost to the root.
    """

    version: int
    folders: list[Path]


def memory_limit_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory limit of this process in bytes; None without a limit.

    This is the smallest limit of all groups from the group of this process to the root group.

    Args:
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.
    """
    limits = [limit for limit, _ in _memory_budgets(root)]
    return min(limits, default=None)


def memory_headroom_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes of memory that this process can still allocate before a limit is reached.

    File pages that were not used recently count as free, because the kernel drops them before it
    enforces a limit. Kubernetes defines its working set in the same way.

    Args:
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.

    Returns:
        The smallest headroom of all groups from the group of this process to the root group; None
        without a limit.
    """
    headrooms = [max(0, limit - working_set) for limit, working_set in _memory_budgets(root)]
    return min(headrooms, default=None)


def oom_kill_count(root: Path = _ROOT) -> int | None:
    """Return how many processes in this process's group the kernel killed for lack of memory.

    The number includes processes that were killed because an outer group exceeded its limit.

    Args:
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.

    Returns:
        The number; None if the kernel does not report it.
    """
    hierarchy = _hierarchy("memory", root)
    counter_file = "memory.events" if hierarchy.version == 2 else "memory.oom_control"
    for folder in hierarchy.folders:
        counters = _read_counters(folder / counter_file)
        if "oom_kill" in counters:
            return counters["oom_kill"]
    return None


def cpu_quota_cores(root: Path = _ROOT) -> float | None:
    """Return the processor quota of this process, as a number of cores; None without a quota.

    This is the smallest quota of all groups from the group of this process to the root group.

    Args:
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.
    """
    hierarchy = _hierarchy("cpu", root)
    quotas = []
    for folder in hierarchy.folders:
        if hierarchy.version == 2:
            quota, _, period = _read(folder / "cpu.max").partition(" ")
        else:
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def throttled_seconds(root: Path = _ROOT) -> float | None:
    """Return the total seconds for which processor quotas have stopped the groups of this process.

    Args:
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.

    Returns:
        The sum over all groups from the group of this process to the root group; None if no group
        reports this time.
    """
    total = None
    for folder in _hierarchy("cpu", root).folders:
        counters = _read_counters(folder / "cpu.stat")
        for name, per_second in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
            if name in counters:
                total = (total or 0.0) + counters[name] / per_second
    return total


def _memory_budgets(root: Path) -> Iterator[tuple[int, int]]:
    """Yield every memory limit that applies to this process, and the memory that counts towards it.

    Args:
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.

    Yields:
        A limit and the working set of its group, both in bytes. The working set is the memory that
        counts towards the limit, minus reclaimable file pages.
    """
    hierarchy = _hierarchy("memory", root)
    for folder in hierarchy.folders:
        counters = _read_counters(folder / "memory.stat")
        if hierarchy.version == 2:
            reclaimable = counters.get("inactive_file", 0)
            # Above memory.high, the kernel reclaims memory from the group and slows it down.
            files = (("memory.max", "memory.current"), ("memory.high", "memory.current"))
        else:
            reclaimable = counters.get("total_inactive_file", 0)
            # memsw is memory plus swap.
            files = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
            )
        for limit_file, usage_file in files:
            usage = _read(folder / usage_file)
            used = int(usage) if usage.isdigit() else 0
            limits = [_read(folder / limit_file)]
            if hierarchy.version == 1 and limit_file == "memory.limit_in_bytes":
                # This counter includes limits of outer groups that a container cannot see.
                limits.append(str(counters.get("hierarchical_memory_limit", "")))
            for limit in limits:
                if limit.isdigit() and int(limit) < _UNLIMITED_BYTES:
                    yield int(limit), max(0, used - reclaimable)
        if _read(folder.parent / "memory.use_hierarchy") == "0":
            return  # in version 1 without a hierarchy, limits of outer groups do not apply


def _hierarchy(controller: str, root: Path) -> _Hierarchy:
    """Return the control groups of one controller to which this process belongs.

    /proc/self/cgroup has one line per hierarchy of version 1, which names the controllers of the
    hierarchy. All other controllers belong to version 2, whose line contains no names.

    Args:
        controller: Name of the controller, such as "memory".
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.
    """
    version = 2
    names = ""
    path = ""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        listed, _, group = rest.partition(":")
        if controller in listed.split(","):
            version = 1
            names = listed
            path = group
            break
        if number == "0" and not listed:
            path = group
    if not path:
        return _Hierarchy(version, [])
    mount, mount_root = _mount(version, controller, path, root)
    if mount is None:
        mount = _default_mount(version, names, root)
    inner = PurePosixPath(path)
    # In a container, the mount may show only a part of the hierarchy, which may exclude `path`.
    if ".." not in inner.parts and inner.is_relative_to(mount_root):
        folder = mount / inner.relative_to(mount_root)
    else:
        folder = mount
    folders = [parent for parent in (folder, *folder.parents) if parent.is_relative_to(mount)]
    return _Hierarchy(version, folders)


def _mount(
    version: int, controller: str, path: str, root: Path
) -> tuple[Path | None, PurePosixPath]:
    """Return the mount point of a hierarchy, and the group that appears at the mount point.

    Of several mounts, the first that contains the group `path` is selected. If no mount contains
    it, the first mount is selected.

    Args:
        version: Version of the control groups, 1 or 2.
        controller: Name of the controller, such as "memory"; ignored for version 2.
        path: The group of this process, as an absolute path in the hierarchy.
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.

    Returns:
        The mount point below `root`, and the group in the hierarchy. If the hierarchy is not
        mounted, the mount point is None and the group is "/".
    """
    found: list[tuple[Path, PurePosixPath]] = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        # 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
        fields, _, source = line.partition(" - ")
        kind, _, options = source.partition(" ")
        if version == 2:
            matches = kind == "cgroup2"
        else:
            matches = kind == "cgroup" and controller in options.rpartition(" ")[2].split(",")
        if matches:
            shown_group, mount_point = (_unescape(field) for field in fields.split(" ")[3:5])
            found.append((root / mount_point.lstrip("/"), PurePosixPath(shown_group)))
    for mount, mount_root in found:
        if PurePosixPath(path).is_relative_to(mount_root):
            return mount, mount_root
    if found:
        return found[0]
    return None, PurePosixPath("/")


def _default_mount(version: int, names: str, root: Path) -> Path:
    """Return the folder at which systemd mounts a hierarchy.

    Args:
        version: Version of the control groups, 1 or 2.
        names: Controllers of a version 1 hierarchy, separated by commas; ignored for version 2.
        root: Folder that is used as "/" when reading /proc and /sys. Tests use other folders.
    """
    base = root / "sys/fs/cgroup"
    if version == 1:
        return base / names
    hybrid = base / "unified"
    return hybrid if hybrid.is_dir() else base


def _unescape(field: str) -> str:
    r"""Return a field of mountinfo with escaped characters decoded, such as \040 for a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _read_counters(path: Path) -> dict[str, int]:
    """Return the counters in a file of lines "NAME NUMBER"; empty if it cannot be read."""
    counters = {}
    for line in _read(path).splitlines():
        name, _, number = line.partition(" ")
        if number.isdigit():
            counters[name] = int(number)
    return counters


def _read(path: Path) -> str:
    """Return the stripped text of a small file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
