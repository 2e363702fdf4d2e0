"""Set what a measurement wants, and put back what was there before.

The former values stand in a state file before the first of them is changed, so a process that is killed halfway leaves
nothing that `restore` cannot mend. Who sets twice keeps the values from before the first time.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paradnn.errors import ConfigError, DataError
from paradnn.platform.findings import ROOT, SETTINGS, chosen, read_text, set_command

#: What --tune takes beside the names of `SETTINGS`, of the first NVIDIA board on. None is usual.
_GPU_SETTINGS = ("persistence", "clocks")

Say = Callable[[str], None]
Command = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Change:
    """A value that was changed: the file that holds it, or the command that puts it back; what it said before."""

    file: str | None
    former: str
    command: tuple[str, ...] = ()


def default_state_file() -> Path:
    """Where the former values of this host are kept: the user's state folder, which hosts may share."""
    folder = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(folder) / "paradnn" / f"tuned-{platform.node() or 'host'}.json"


def tuned_names(text: str) -> list[str]:
    """The settings that `--tune` names, separated by commas; raises ConfigError for one that there is not."""
    known = [*dict.fromkeys(setting.name for setting in SETTINGS), *_GPU_SETTINGS]
    usual = [*dict.fromkeys(setting.name for setting in SETTINGS if setting.usual)]
    names = [name.strip() for name in text.split(",") if name.strip()] or usual
    for name in names:
        if name.partition("=")[0] not in known:
            raise ConfigError("--tune", name, "no such setting", f"choose among {','.join(known)}")
        if name.startswith("clocks") and not name.removeprefix("clocks=").isdigit():
            raise ConfigError("--tune", name, "wants a frequency", "give MHz that the board has: --tune clocks=1410")
    return names


def tune(names: Iterable[str], state: Path, say: Say, root: Path = ROOT, run: Command | None = None) -> None:
    """Set the named settings where this user may; say each change, and the command for what he may not.

    `run` runs a command and returns why it failed, None where it did not.
    """
    run, names = run or _run, list(names)
    wrong = [
        (setting, path, value)
        for setting in SETTINGS
        if setting.name in names
        for path, value in setting.values(root).items()
        if not setting.right(value)
    ]
    allowed = [entry for entry in wrong if os.access(entry[1], os.W_OK)]
    boards = []
    for key, _, value in (name.partition("=") for name in names):
        if key == "persistence":
            boards.append((Change(None, "off", ("nvidia-smi", "-pm", "0")), ["nvidia-smi", "-pm", "1"]))
        elif key == "clocks":
            locked = ["nvidia-smi", "-lgc", f"{value},{value}"]
            boards.append((Change(None, "not locked", ("nvidia-smi", "-rgc")), locked))
    kept = _saved(state)
    known = {(change.file, change.command) for change in kept}
    changes = [Change(str(path), value) for _, path, value in allowed] + [change for change, _ in boards]
    _save(state, [*kept, *(change for change in changes if (change.file, change.command) not in known)])
    for setting, path, value in allowed:
        problem = _write(path, setting.wanted)
        refused = f"{setting.title} stays {value}: {problem}: {set_command(setting.wanted, [path])}"
        say(refused if problem else f"{setting.title}: {value} -> {setting.wanted} ({path})")
    for change, command in boards:
        problem = run(command)
        say(f"{' '.join(command)}: {f'failed: {problem}; try sudo' if problem else f'set, was {change.former}'}")
    for setting in SETTINGS:
        if forbidden := [path for one, path, _ in wrong if one is setting and not os.access(path, os.W_OK)]:
            say(f"{setting.title}: you may not set it. {set_command(setting.wanted, forbidden)}")
    if not wrong and not boards:
        say("nothing to set: all of it is as it should be, or this machine has no such settings")


def restore(state: Path, say: Say, run: Command | None = None) -> bool:
    """Put the former values back; whether all of them are. What cannot be put back stays in the state file."""
    run, left, saved = run or _run, [], _saved(state)
    if not saved:
        say(f"nothing to restore: {state} holds nothing")
    for change in saved:
        if change.file is None:
            problem, what = run(change.command), " ".join(change.command)
            remedy = f"sudo {what}"
        else:
            path = Path(change.file)
            now = chosen(read_text(path))
            problem = None if now == change.former else _write(path, change.former)
            what, remedy = f"{path}: {now} -> {change.former}", set_command(change.former, [path])
        if problem:
            left.append(change)
        say(f"{what}: {problem}: {remedy}" if problem else what)
    _save(state, left)
    return not left


def _saved(state: Path) -> list[Change]:
    try:
        entries = json.loads(state.read_text())
        return [Change(entry["file"], entry["former"], tuple(entry["command"])) for entry in entries]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{state} holds the values to restore and cannot be read: {error}; mend or remove it") from None


def _save(state: Path, changes: Sequence[Change]) -> None:
    """Whole or not at all, and on the disk before anything is changed."""
    if not changes:
        state.unlink(missing_ok=True)
        return
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        made = state.with_suffix(".new")
        with made.open("w") as file:
            json.dump([asdict(change) for change in changes], file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        made.replace(state)
    except OSError as error:
        raise DataError(f"{state} cannot be written ({error.strerror}); nothing was changed") from None


def _write(path: Path, value: str) -> str | None:
    """Why the value could not be written; None where it was."""
    try:
        path.write_text(value)
    except OSError as error:
        return error.strerror or str(error)
    return None if chosen(read_text(path)) == value else "the kernel did not take it"


def _run(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    lines = f"{done.stdout}{done.stderr}".strip().splitlines()
    return (lines or ["no message"])[-1] if done.returncode else None
