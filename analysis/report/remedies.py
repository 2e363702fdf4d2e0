"""Commands that supply what an analysis lacks: of the same protocol, platform and framework as the runs that are shown.

Every command but the last of a line is one that `python -m paradnn.plan` takes as well, with the same arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import yaml

from analysis.registry import Analysis, Remedy
from analysis.report.populations import Population
from analysis.store.frame import families
from paradnn.config.identity import EXTRA_KEYS, LIMIT_KEYS
from paradnn.config.paths import CONFIG
from paradnn.families import FAMILIES

__all__ = ["supply", "surroundings", "sweep_of"]

#: Groups of the configuration that a population may have in common, with what needs no word.
_GROUPS = {"platform": "cpu", "framework": "tensorflow", "software": "current"}


def supply(one: Analysis[Any, Any], population: Population, needs: Remedy | None = None) -> str:
    """The command line that measures what an analysis of a population lacks; empty where no sweep would."""
    needs = needs or (Remedy() if one.remedy is None else one.remedy(population.rows))
    if needs.families and not any(map(_is_swept, needs.families)):
        return ""
    sweep = sweep_of([*needs.families] or [_subject(population)], population, *needs.words)
    return f"{sweep} && {shlex.join(('python', '-m', 'analysis', one.name, *needs.then))}" if needs.then else sweep


def sweep_of(names: list[str], population: Population, *more: str) -> str:
    """A sweep of some families that have their hyperparameters in common, measured as the population was."""
    words = [f"model={','.join(names)}", *FAMILIES[names[0]].sweep.split(), *more] if names[0] in FAMILIES else []
    return shlex.join(["python", "-m", "paradnn.train", "-m", *words, *surroundings(population)])


def _subject(population: Population) -> str:
    """The first of its families that has a sweep, else the simplest one."""
    return next((name for name in families(population.rows) if _is_swept(name)), "fc")


def _is_swept(name: str) -> bool:
    return name in FAMILIES and bool(FAMILIES[name].sweep)


def surroundings(population: Population) -> Iterator[str]:
    """What all runs of a population have in common and a command must say: platform, framework, stack, protocol."""
    for group, usual in _GROUPS.items():
        value = population.value(f"{group}.name")
        if value not in (None, usual):
            yield f"{group}={value}"
    yield from _protocol(population)


def _protocol(population: Population) -> list[str]:
    """The preset of `measure` that is nearest to the protocol of its runs, and the keys in which it differs."""
    told = {name.removeprefix("measure."): population.rows[name] for name in population.with_prefix("measure.")}
    held = {key: values.dropna().iloc[0] if values.notna().any() else None for key, values in told.items()}
    candidates = []
    for path in sorted((CONFIG / "measure").glob("*.yaml")):
        preset = yaml.safe_load(path.read_text(encoding="utf-8"))
        differ = [
            f"measure.{key}={_text(held[key])}" for key in _timed(preset, held) if not _same(held[key], preset[key])
        ]
        candidates.append((len(differ), path.stem != "standard", [f"measure={path.stem}", *differ]))
    words = min(candidates)[2]
    return [word for word in words if word != "measure=standard"]


def _timed(preset: Mapping[str, Any], held: Mapping[str, Any]) -> list[str]:
    """Keys that decide how points are timed."""
    return [key for key in preset if key in held and key not in LIMIT_KEYS + EXTRA_KEYS]


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None or isinstance(other, bool):
        return (one is None) == (other is None) and (one is None or bool(one) == other)
    return float(one) == float(other)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if str(value) in ("True", "False"):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, Real) else str(value)
