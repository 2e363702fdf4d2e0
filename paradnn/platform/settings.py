"""Settings of a host's kernel that change how fast or how evenly it computes, and that can be set while it runs.

Each knows the files that hold it, what they should say for a measurement and why; `python -m paradnn.check` shows them,
`paradnn.platform.tuning` sets them. Files stand below a root, so that tests plant a host of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "SETTINGS", "Setting", "read_text"]

ROOT = Path("/")


@dataclass(frozen=True)
class Setting:
    """One setting: `name` as --tune takes it, the files that hold it, and the value a measurement wants.

    `harms` says whether a value that is not wanted widens intervals; where it does not, it still changes results.
    `usual`: set by --tune that names nothing. `accepts` tells further values that are as good as `wanted`, `matters`
    whether the host below a root has what the setting is of. `words` stand for a number: as wanted, and not.
    """

    name: str
    title: str
    globs: tuple[str, ...]
    wanted: str
    why: str
    harms: bool
    usual: bool = True
    accepts: Callable[[str], bool] = lambda _: False
    matters: Callable[[Path], bool] = lambda _: True
    words: tuple[str, str] | None = None

    def files(self, root: Path) -> list[Path]:
        """The files of this host that hold the setting; none where it has no such setting, or that does not matter."""
        if not self.matters(root):
            return []
        return next((found for glob in self.globs if (found := sorted(root.glob(glob)))), [])

    def values(self, root: Path) -> dict[Path, str]:
        """What each of the files says."""
        return {path: chosen(text) for path in self.files(root) if (text := read_text(path))}

    def right(self, value: str) -> bool:
        """Whether a value is as a measurement wants it."""
        return value == self.wanted or self.accepts(value)

    def shown(self, value: str) -> str:
        """The value as a person reads it."""
        return value if self.words is None else self.words[not self.right(value)]

    def may_set(self, root: Path) -> bool:
        """Whether this user may write all the files (root too is refused in many containers)."""
        return all(os.access(path, os.W_OK) for path in self.files(root))

    def command(self, root: Path) -> str:
        """What sets it, for a user who may use sudo."""
        return set_command(self.wanted, self.files(root))


def set_command(value: str, files: Sequence[Path]) -> str:
    """The shell's command that writes `value` into files."""
    return f"echo {value} | sudo tee {' '.join(map(str, files))} > /dev/null"


def _at_most_ten(value: str) -> bool:
    return value.isdigit() and int(value) <= 10


def _has_swap(root: Path) -> bool:
    return len(read_text(root / "proc/swaps").splitlines()) > 1


#: Turbo is there twice: Intel's driver says no_turbo, the others boost.
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "governor",
        "clock governor",
        ("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",),
        "performance",
        "others lower the clock when a core idles and raise it late: short steps are timed at a changing clock",
        harms=True,
    ),
    Setting(
        "turbo",
        "turbo boost",
        ("sys/devices/system/cpu/intel_pstate/no_turbo",),
        "1",
        "the clock above its base depends on temperature and on how many cores are busy",
        harms=True,
        words=("off", "on"),
    ),
    Setting(
        "turbo",
        "turbo boost",
        ("sys/devices/system/cpu/cpufreq/boost",),
        "0",
        "the clock above its base depends on temperature and on how many cores are busy",
        harms=True,
        words=("off", "on"),
    ),
    Setting(
        "thp",
        "transparent huge pages",
        ("sys/kernel/mm/transparent_hugepage/enabled",),
        "madvise",
        "with always the kernel merges pages while a point runs, with never large arrays miss in the TLB",
        harms=False,
    ),
    Setting(
        "swappiness",
        "swappiness",
        ("proc/sys/vm/swappiness",),
        "10",
        "above 10 the kernel swaps a process out for the sake of its file cache",
        harms=False,
        accepts=_at_most_ten,
        matters=_has_swap,
    ),
    Setting(
        "aslr",
        "address space randomisation",
        ("proc/sys/kernel/randomize_va_space",),
        "0",
        "each worker has another memory layout: part of the spread between sessions, not within one; it is a defence",
        harms=False,
        usual=False,
        words=("off", "on"),
    ),
)


def read_text(path: Path) -> str:
    """A small file without the space around its text; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def chosen(text: str) -> str:
    """The value that a file holds: of several that it offers, the one in brackets."""
    return text.partition("[")[2].partition("]")[0] if "[" in text else text
