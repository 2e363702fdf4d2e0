"""Proposals of further runs that would decide a comparison: number, duration and command."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace

from analysis.format import format_setting
from analysis.lazy import np, pd
from analysis.store.frame import is_ok
from paradnn.core.words import counted
from paradnn.families import FAMILIES
from paradnn.statistics.contrast import Contrast
from paradnn.statistics.decision import decide
from paradnn.statistics.effects import combine
from paradnn.statistics.verdict import Verdict

#: Largest number of further runs per side and point that is proposed.
_MAX_RUNS = 20
#: Defaults of settings. A command states a setting if a run has a different value.
_DEFAULTS = {
    "batch_size": "",
    "precision": "float32",
    "compile": "graph",
    "mode": "train",
    "framework.name": "tensorflow",
    "measure.cache": "warm",
}
_PRESETS = ("quick",)


def describe_more_runs(a: pd.DataFrame, b: pd.DataFrame, contrast: Contrast, margin: float) -> str:
    """Describe the further runs that would decide whether A or B is faster.

    The estimated ratio of A to B is assumed to be true. The text is that of `describe_runs_for`. It
    is empty if no point (configuration) was measured on both sides.

    Args:
        a: Runs of A, one row each.
        b: Runs of B, one row each.
        contrast: The points that both sides measured.
        margin: Largest relative difference that counts as equal, such as 0.05 for 5%.
    """
    if not len(contrast.pairs):
        return ""
    return describe_runs_for(a, b, contrast, float(np.log(contrast.ratios).mean()), margin)


def describe_runs_for(
    a: pd.DataFrame, b: pd.DataFrame, contrast: Contrast, distance: float, margin: float
) -> str:
    """Describe the further runs that would decide a comparison of A and B with a given ratio.

    A point is one configuration to measure.

    Args:
        a: Runs of A, one row each.
        b: Runs of B, one row each.
        contrast: The points that both sides measured.
        distance: Mean over points of log(A / B), or its distance from the bound that decides the
            verdict.
        margin: Largest relative difference that counts as equal, such as 0.05 for 5%.

    Returns:
        The number of runs per side, their duration and the command that measures them, as text. If
        up to `_MAX_RUNS` runs do not suffice, the text proposes to measure both sides in one
        session or in more sessions. If that cannot help either, it says that more runs would not
        decide. It is empty if `contrast` has no evidence on the scatter of its runs.
    """
    if contrast.evidence is None:
        return ""
    sides = [side[is_ok(side)] for side in (a, b)]
    runs = runs_needed(contrast, distance, margin)
    if runs is None:
        if not contrast.shared:
            return f"{_MAX_RUNS} more runs per side would not decide it"
        return _describe_shared_session(sides, contrast, distance)
    command = measuring_command(sides, contrast.pairs, runs)
    seconds = runs * sum(_seconds_per_replicate(side, contrast.pairs) for side in sides)
    text = f"{counted(runs, 'more run')} per side"
    if seconds:
        text += f", about {_format_duration(seconds)}"
    if command:
        text += f": {command}"
    return text


def runs_needed(contrast: Contrast, mean: float, margin: float) -> int | None:
    """Return how many further runs of each point per side would decide a comparison of A and B.

    A point is one configuration to measure. The estimated ratio of A to B is assumed to be true.
    Further runs reduce only the scatter between processes.

    Args:
        contrast: The points that both sides measured.
        mean: Mean over points of log(A / B), or its distance from the bound that decides the
            verdict.
        margin: Largest relative difference that counts as equal, such as 0.05 for 5%.

    Returns:
        The number of runs; None if _MAX_RUNS do not suffice.
    """
    processes = contrast.effects[0]
    shared = [effect.component for effect in contrast.shared]
    counts = contrast.pairs[["a_units", "b_units"]].to_numpy(dtype="float64")
    present = max(float(counts.mean()), 1.0)
    points = len(contrast.pairs)
    for more in range(1, _MAX_RUNS + 1):
        scatter = replace(
            processes,
            variance=processes.variance * present / (present + more),
            freedom=processes.freedom + 2 * more * points,
        )
        decision = decide(mean, [scatter.component, *shared], margin, contrast.bias)
        if decision.verdict != Verdict.UNDECIDED:
            return more
    return None


def _describe_shared_session(sides: list[pd.DataFrame], contrast: Contrast, distance: float) -> str:
    """Propose a command that measures both sides in one session, or else a number of sessions.

    Args:
        sides: The ok runs of A and of B.
        contrast: The points that both sides measured.
        distance: Mean over points of log(A / B), or its distance from the bound that decides the
            verdict.
    """
    command = measuring_command(sides, contrast.pairs, 2)
    if command:
        seconds = 2 * sum(_seconds_per_replicate(side, contrast.pairs) for side in sides)
        text = "measure both sides in one sweep"
        if seconds:
            text += f", about {_format_duration(seconds)}"
        return f"{text}: {command}"
    half_width = float(combine([effect.component for effect in contrast.shared]).half_width)
    if distance == 0 or half_width > abs(distance) * math.sqrt(_MAX_RUNS):
        return "more sessions of both sides, alternating between them"
    sessions = math.ceil((half_width / distance) ** 2)
    return f"about {counted(sessions, 'session')} of each side, alternating between them"


def describe_more_values(
    sides: Sequence[pd.DataFrame], points: pd.DataFrame, name: str, count: int
) -> str:
    """Propose a sweep of further values of a hyperparameter.

    The values lie between the measured ones, at about equal distances on a logarithmic scale.

    Args:
        sides: The runs of each side; one or two sides.
        points: The measured configurations, one row each.
        name: Column of the hyperparameter.
        count: Number of values after the sweep, including the measured ones.

    Returns:
        The duration and the command of the sweep, as text; empty if no command can measure it.
    """
    measured = [side[is_ok(side)] for side in sides]
    command = measuring_command(measured, points, 1)
    known = np.unique(points[name].to_numpy(dtype="float64"))
    if f" {name}=" not in command or known[0] <= 0:
        return ""
    wanted = np.unique(np.rint(np.geomspace(known[0], known[-1], 2 * count)).astype("int64"))
    further = [int(value) for value in wanted if value not in known]
    positions = np.unique(np.linspace(0, len(further) - 1, count - len(known)).round().astype(int))
    chosen = [further[position] for position in positions if further]
    if not chosen:
        return ""
    words = [word for word in shlex.split(command) if not word.startswith("replicate=")]
    for position, word in enumerate(words):
        if word.startswith(f"{name}="):
            words[position] = f"{name}={','.join(map(str, chosen))}"
    seconds = sum(_seconds_per_replicate(side, points) for side in measured)
    seconds *= len(chosen) / len(known)
    duration = f"about {_format_duration(seconds)}: " if seconds else ""
    return f"{duration}{shlex.join(words)}"


def describe_sessions(runs: pd.DataFrame, sessions: int) -> str:
    """Propose to repeat runs in a number of further sessions.

    Args:
        runs: The runs, one row each.
        sessions: Number of sessions.

    Returns:
        The number and duration of the sessions, and the command of a session if there is one, as
        text.
    """
    measured = runs[is_ok(runs)]
    points = measured.drop_duplicates("point_id")
    text = f"about {counted(sessions, 'session')} would decide it"
    command = measuring_command([measured], points, 1)
    seconds = _seconds_per_replicate(measured, points)
    if not command:
        return text
    duration = f", about {_format_duration(seconds)} each" if seconds else ""
    return f"{text}{duration}: {command}"


def measuring_command(sides: Sequence[pd.DataFrame], pairs: pd.DataFrame, more: int) -> str:
    """Return the command of a sweep that repeats configurations on both sides of a comparison.

    It is empty if one sweep cannot measure both sides, or if the configurations belong to several
    model families.

    Args:
        sides: The ok runs of A and of B.
        pairs: The configurations that both sides measured, one row each.
        more: Number of further runs of each configuration.
    """
    families = pairs["family"].dropna().unique()
    if len(families) != 1 or families[0] not in FAMILIES:
        return ""
    runs = pd.concat([side[side["family"] == families[0]] for side in sides])
    for name in ("device", "host", "environment_id"):
        if name in runs and runs[name].nunique() > 1:
            return ""
    words = [f"model={families[0]}"]
    for entry in dataclasses.fields(FAMILIES[families[0]].options):
        name = f"model.{entry.name}"
        source = pairs if name in pairs else runs
        if entry.name != "name" and name in source and source[name].notna().all():
            words.append(f"{name}={_format_values(source[name])}")
    for name, default in _DEFAULTS.items():
        source = pairs if name in pairs else runs
        if name in source and source[name].notna().all():
            values = _format_values(source[name])
            if values != default:
                words.append(f"{name}={values}")
    protocols = set(runs.get("protocol", pd.Series(dtype="object")).dropna())
    if len(protocols) == 1 and next(iter(protocols)) in _PRESETS:
        words.append(f"measure={next(iter(protocols))}")
    first = 0
    if "replicate" in runs and runs["replicate"].notna().any():
        first = int(runs["replicate"].max()) + 1
    replicates = ",".join(str(first + number) for number in range(more))
    return shlex.join(["python", "-m", "paradnn.train", "-m", *words, f"replicate={replicates}"])


def _format_values(column: pd.Series) -> str:
    return ",".join(map(format_setting, sorted(column.unique())))


def _seconds_per_replicate(runs: pd.DataFrame, pairs: pd.DataFrame) -> float:
    """Return the estimated seconds for one more run of every configuration; 0 if unknown.

    Args:
        runs: Runs of one side, with their start and end times.
        pairs: The configurations, one row each.
    """
    if "end_time" not in runs or "start_time" not in runs:
        return 0.0
    seconds = (runs["end_time"] - runs["start_time"]).dt.total_seconds().median()
    if not seconds > 0:
        return 0.0
    return float(seconds) * len(pairs)


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds / 10) * 10} seconds"
    if seconds < 5400:
        return f"{math.ceil(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"
