"""Reading claims from YAML: every wrong entry is one line naming file, claim, key and remedy."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from analysis.claims.kinds import KINDS, Bound, Check, Claim
from analysis.store.conditions import Condition, Conditions, conditions_on
from paradnn.core.errors import ConfigError, DataError

_CLAIM_KEYS = ("id", "says", "proof", "where", "checks")
_BOUNDS = ("at_least", "at_most", "between")


def observations() -> tuple[Claim, ...]:
    """The paper's fourteen observations."""
    source = resources.files("analysis.claims").joinpath("observations.yaml")
    return parse_claims(source.read_text(encoding="utf-8"), "observations.yaml")


def load_claims(path: Path) -> tuple[Claim, ...]:
    """The claims in a user's file; DataError when it cannot be read, ConfigError for a wrong entry."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is not text"
        raise DataError(f"{path}: {problem or error}; name a YAML file of claims") from None
    return parse_claims(text, str(path))


def parse_claims(text: str, source: str) -> tuple[Claim, ...]:
    """The claims in a YAML text; `source` names it in messages."""
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise DataError(f"{source}{where}: is not YAML: {' '.join(str(problem).split())}; fix that line") from None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{source}: holds no list of claims; begin each with '- id: ...', see observations.yaml")
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(entries, 1):
        claim = _claim(entry, number, source)
        if claim.id in claims:
            raise ConfigError(f"{source}: claim {claim.id}: id", claim.id, "is there twice", "give each claim its own")
        claims[claim.id] = claim
    return tuple(claims.values())


def _claim(entry: Any, number: int, source: str) -> Claim:
    place = f"{source}: claim {entry.get('id', number) if isinstance(entry, dict) else number}"
    _mapping(entry, _CLAIM_KEYS, place, ": id, says, checks")
    for key in ("id", "says", "checks"):
        if entry.get(key) in (None, "", []):
            raise ConfigError(f"{place}: {key}", "(none)", "is missing", f"write {key}: ...")
    if not isinstance(entry["checks"], list):
        raise ConfigError(f"{place}: checks", entry["checks"], "is no list", "begin each check with '- kind: ...'")
    shared = _conditions(entry.get("where", {}), f"{place}: where")
    checks = [_check(check, shared, f"{place}: check {place_in}") for place_in, check in enumerate(entry["checks"], 1)]
    says, proof = (_text(entry.get(key, ""), f"{place}: {key}") for key in ("says", "proof"))
    return Claim(str(entry["id"]), says, tuple(checks), proof)


def _check(entry: Any, shared: Conditions, place: str) -> Check:
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if isinstance(entry, dict) and str(kind) not in KINDS:
        known = f"choose of {', '.join(KINDS)}"
        raise ConfigError(f"{place}: kind", "(none)" if kind is None else kind, "no such kind", known)
    takes = KINDS[str(kind)][1].split() if kind else []
    fields = {name.rstrip("!") for name in takes}
    bounds = _BOUNDS if "bound" in fields else ()
    _mapping(entry, ["kind", "where", "name", *(fields - {"bound"}), *bounds], place, ", first kind: ...")
    given: dict[str, Any] = {
        name: _PARSERS[name](value, f"{place}: {name}") for name, value in entry.items() if name in _PARSERS
    }
    given |= _bound(entry, place)
    for needed in (name[:-1] for name in takes if name.endswith("!")):
        if needed not in given:
            wanted = " or ".join(_BOUNDS) if needed == "bound" else needed
            raise ConfigError(f"{place}: {wanted}", "(none)", f"is missing in a {kind}", f"write {wanted}: ...")
    _sides(entry, place)
    return Check(str(kind), **{**given, "where": {**shared, **given.get("where", {})}})


def _sides(entry: Mapping[str, Any], place: str) -> None:
    """A and B go together, and a ratio has either them or versions that follow each other."""
    if ("a" in entry) != ("b" in entry):
        lacking = "b" if "a" in entry else "a"
        raise ConfigError(f"{place}: {lacking}", "(none)", "is missing", "a speedup has two sides: write a: and b:")
    if entry["kind"] == "ratio" and ("a" in entry) == ("successive" in entry):
        given, remedy = "both" if "a" in entry else "neither", "write a: and b:, or successive: version.tensorflow"
        raise ConfigError(f"{place}: a, b or successive", given, "a ratio has two sides, or versions in a row", remedy)
    if "operations" in entry and entry.get("paired") is False:
        raise ConfigError(f"{place}: paired", False, "operations are always paired", "leave it out")


def _mapping(entry: Any, allowed: Sequence[str], place: str, needed: str) -> None:
    """ConfigError for what is no mapping, or has other keys."""
    if not isinstance(entry, dict):
        raise ConfigError(place, entry, "is no mapping", f"write its keys{needed}")
    for key, value in entry.items():
        if key not in allowed:
            close = difflib.get_close_matches(str(key), sorted(allowed), n=1)
            advice = f"did you mean {close[0]}?" if close else f"keys here: {', '.join(sorted(allowed))}"
            raise ConfigError(f"{place}: {key}", value, "no such key", advice)


def _bound(entry: Mapping[str, Any], place: str) -> dict[str, Bound]:
    given = [name for name in _BOUNDS if name in entry]
    if len(given) > 1:
        raise ConfigError(f"{place}: {given[1]}", entry[given[1]], f"stands beside {given[0]}", "write one bound")
    if not given:
        return {}
    key, value = f"{place}: {given[0]}", entry[given[0]]
    if given[0] != "between":
        return {"bound": Bound(**{"low" if given[0] == "at_least" else "high": _number(value, key)})}
    if not isinstance(value, list) or len(value) != 2:
        raise ConfigError(key, value, "expects two numbers", "write between: [2.0, 2.6]")
    low, high = (_number(part, key) for part in value)
    if low >= high:
        raise ConfigError(key, value, "has its ends the wrong way round", "write the smaller number first")
    return {"bound": Bound(low, high)}


def _conditions(value: Any, key: str) -> Conditions:
    if not isinstance(value, dict):
        raise ConfigError(key, value, "is no mapping", f"write {key.rpartition(' ')[2]}: {{platform.name: cpu}}")
    found = {}
    for name, wanted in value.items():
        values = tuple(wanted) if isinstance(wanted, list) else (wanted,)
        for part in values:
            if (part is not None and not isinstance(part, (str, int, float, bool))) or part == "":
                raise ConfigError(f"{key}: {name}", part, "is no value", "write a value, a list of them, or '>=1024'")
        if not values:
            raise ConfigError(f"{key}: {name}", wanted, "is empty", "write a value")
        found[str(name)] = conditions_on(str(name), values, key)
    return found


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(key, value, "expects text", "quote it")
    return " ".join(value.split())


def _texts(value: Any, key: str) -> tuple[str, ...]:
    return tuple(_text(part, key) for part in (value if isinstance(value, list) else [value]))


def _number(value: Any, key: str) -> float:
    # YAML 1.1 reads 1e8 as text.
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(key, value, "expects a number", "write for example 0.5")
    return float(value)


def _good(
    is_good: Callable[[Any], bool], problem: str, remedy: str, read: Callable[[Any, str], Any] = lambda value, _: value
) -> Callable[[Any, str], Any]:
    """What reads a value, and refuses one that is not good."""

    def parse(value: Any, key: str) -> Any:
        found = read(value, key)
        if not is_good(found):
            said = ", ".join(map(str, value)) if value and isinstance(value, list) else value
            raise ConfigError(key, said, problem, remedy)
        return found

    return parse


def _one_of(*choices: str) -> Callable[[Any, str], Any]:
    return _good(choices.__contains__, "no such choice", f"choose one of {', '.join(choices)}")


_SOME = _good(bool, "chooses nothing", "write for example {platform.name: gpu}", _conditions)
_NAMES = _good(bool, "is empty", "name at least one", _texts)
_BETWEEN = "must lie between 0 and 1", "0.5 is the median, 0.9 the 90th percentile"
#: What reads each field of a check but its bound.
_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "where": _conditions,
    **dict.fromkeys(("name", "metric", "of", "larger", "successive", "by"), _text),
    **dict.fromkeys(("a", "b", "operations"), _SOME),
    **dict.fromkeys(("than", "a_outcome", "b_outcome"), _NAMES),
    "given": _texts,
    "scale": _one_of("rank", "linear"),
    "direction": _one_of("rises", "falls"),
    "margin": _good(lambda number: number > 0, "must be positive", "1.1 asks for a tenth more speed", _number),
    "quantile": _good(lambda number: 0 < number < 1, *_BETWEEN, _number),
    "paired": _good(lambda value: isinstance(value, bool), "expects true or false", "write true or false"),
}


def restate(claims: Sequence[Claim], names: Mapping[str, str]) -> tuple[Claim, ...]:
    """The claims that a name stands in, with every condition's old name read as the new one, and saying so.

    `names` maps old values of conditions to new ones, such as tpu to cpu. ConfigError for a name in no condition.
    """
    used: set[str] = set()

    def conditions(old: Conditions) -> Conditions:
        used.update(value for group in old.values() for condition in group for value in condition.values)
        return {key: tuple(map(renamed, group)) for key, group in old.items()}

    def renamed(old: Condition) -> Condition:
        return dataclasses.replace(old, values=tuple(names.get(value, value) for value in old.values))

    def check(old: Check) -> Check:
        return dataclasses.replace(old, where=conditions(old.where), a=conditions(old.a), b=conditions(old.b))

    reading = ", ".join(f"{old} read as {new}" for old, new in names.items())
    found = []
    for claim in claims:
        checks = tuple(check(each) for each in claim.checks)
        if checks != claim.checks:
            says = f"{claim.says.rstrip('.')} [{reading}]"
            found.append(dataclasses.replace(claim, checks=checks, says=says, proof=""))
    for old in names:
        if old not in used:
            known = ", ".join(sorted(used))
            raise ConfigError("--as", f"{old}={names[old]}", f"no condition of a claim says {old}", f"they say {known}")
    return tuple(found)
