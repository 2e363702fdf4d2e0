"""Reader of claims in YAML.

A claim is a statement about platforms with checks. An error is one line with the file, claim, key
and remedy.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from analysis.claims.kinds import KINDS, Bound, Check, StatedClaim
from analysis.store.conditions import Conditions, claim_conditions
from paradnn.core.errors import ConfigError, DataError
from paradnn.core.schema import as_text, read
from paradnn.core.words import did_you_mean

#: Key of a bound -> the end that it sets; empty for both ends.
_BOUNDS = {"at_least": "low", "at_most": "high", "between": ""}
_CONDITIONS = ("where", "a", "b", "operations")


def observations() -> tuple[StatedClaim, ...]:
    """Return the fourteen observations in Table 1 of the ParaDnn paper, as claims."""
    return load_claims(Path("observations.yaml"))


def load_claims(path: Path) -> tuple[StatedClaim, ...]:
    """Read the claims in a user's file, or in a packaged file.

    A claim is a statement about platforms that is checked on runs.

    Args:
        path: Path of the YAML file. The name of a packaged file (observations.yaml, engines.yaml,
            launchers.yaml) selects that file, unless a file at the path exists.

    Raises:
        DataError: If the file cannot be read.
        ConfigError: If an entry is invalid.
    """
    packaged = resources.files("analysis.claims").joinpath(path.name)
    if (
        path.suffix == ".yaml"
        and path.name == str(path)
        and not path.exists()
        and packaged.is_file()
    ):
        return parse_claims(packaged.read_text(encoding="utf-8"), path.name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            problem = error.strerror
        else:
            problem = "is not text"
        raise DataError(f"{path}: {problem or error}; name a YAML file of claims") from None
    return parse_claims(text, str(path))


def parse_claims(text: str, source: str) -> tuple[StatedClaim, ...]:
    """Parse the claims in a YAML text.

    Args:
        text: The YAML text, a list of claims.
        source: Name of the text in messages.

    Raises:
        DataError: If the text is not YAML, or not a list of claims.
        ConfigError: If an entry is invalid.
    """
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise DataError(
            f"{source}{where}: is not YAML: {' '.join(str(problem).split())}; correct its syntax"
        ) from None
    if not isinstance(entries, list) or not entries:
        raise DataError(
            f"{source}: does not contain a list of claims; begin each with '- id: ...', "
            "see observations.yaml"
        )
    claims: dict[str, StatedClaim] = {}
    for number, entry in enumerate(entries, 1):
        claim = _claim(entry, number, source)
        if claim.id in claims:
            raise ConfigError(
                f"{source}: claim {claim.id}: id",
                claim.id,
                "appears twice",
                "give each claim a unique id",
            )
        claims[claim.id] = claim
    return tuple(claims.values())


def _claim(entry: Any, number: int, source: str) -> StatedClaim:
    name: object = number
    if isinstance(entry, dict):
        name = entry.get("id", number)
    location = f"{source}: claim {name}"
    _require_keys(entry, ("id", "says", "checks"), ("proof", "where"), location)
    if not isinstance(entry["checks"], list):
        raise ConfigError(
            f"{location}: checks",
            entry["checks"],
            "is not a list",
            "begin each check with '- kind: ...'",
        )
    shared = _conditions(entry.get("where", {}), f"{location}: where")
    checks = [
        _check(check, shared, f"{location}: check {number}")
        for number, check in enumerate(entry["checks"], 1)
    ]
    says, proof = (
        as_text(_on_one_line(entry.get(key, "")), {}, f"{location}: {key}")
        for key in ("says", "proof")
    )
    return StatedClaim(str(entry["id"]), says, tuple(checks), proof)


def _check(entry: Any, shared: Conditions, location: str) -> Check:
    """Read one check of a claim.

    Args:
        entry: The YAML value.
        shared: Conditions of the claim. The conditions of the check override them.
        location: Location of the check, for messages.

    Raises:
        ConfigError: If the entry is not a valid check.
    """
    kind = str(entry.get("kind", "(none)")) if isinstance(entry, dict) else ""
    if kind and kind not in KINDS:
        raise ConfigError(
            f"{location}: kind",
            kind,
            "is not a kind of check",
            f"choose one of {', '.join(KINDS)}",
        )
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    bounds: list[str] = []
    if kind:
        required = KINDS[kind].required
        optional = KINDS[kind].optional
        if KINDS[kind].needs_bound:
            bounds = [*_BOUNDS]
    _require_keys(entry, ("kind", *required), ("where", "name", *optional, *bounds), location)
    _require_sides(entry, location)
    conditions = {
        name: _conditions(entry[name], f"{location}: {name}")
        for name in _CONDITIONS
        if name in entry
    }
    conditions["where"] = {**shared, **conditions.get("where", {})}
    rest = {
        name: _on_one_line(value)
        for name, value in entry.items()
        if name not in (*conditions, *bounds)
    }
    return read(Check, rest, location, {**conditions, "bound": _bound(entry, bounds, location)})


def _on_one_line(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value


def _require_sides(entry: Mapping[str, Any], location: str) -> None:
    """Require that a check has conditions for both sides, A and B, or for none.

    A check of a ratio needs either both sides, or the column of `successive` versions.

    Args:
        entry: The check, as a YAML mapping.
        location: Location of the check, for messages.

    Raises:
        ConfigError: If a side is missing or superfluous.
    """
    if ("a" in entry) != ("b" in entry):
        missing = "b" if "a" in entry else "a"
        remedy = "a speedup has two sides: write a: and b:"
        raise ConfigError(f"{location}: {missing}", "(none)", "is missing", remedy)
    if entry["kind"] == "ratio" and ("a" in entry) == ("successive" in entry):
        if "a" in entry:
            given = "both"
            problem = "a ratio compares either two sides or successive versions"
        else:
            given = "(none)"
            problem = "a ratio needs two sides or successive versions"
        remedy = "write either a: and b:, or successive: version.tensorflow"
        raise ConfigError(f"{location}: a, b or successive", given, problem, remedy)
    if "operations" in entry and entry.get("paired") is False:
        raise ConfigError(f"{location}: paired", False, "operations are always paired", "omit it")


def _require_keys(entry: Any, needed: Sequence[str], others: Sequence[str], location: str) -> None:
    """Require that an entry is a mapping with valid keys and values.

    Args:
        entry: The YAML value.
        needed: Keys that the entry must have.
        others: Keys that the entry may have.
        location: Location of the entry, for messages.

    Raises:
        ConfigError: If the entry is not a mapping, has an unknown key, lacks a key, or has an empty
            value.
    """
    if not isinstance(entry, dict):
        raise ConfigError(
            location, entry, "is not a mapping", f"write its keys: {', '.join(needed)}"
        )
    allowed = sorted({*needed, *others})
    for key, value in entry.items():
        if key not in allowed:
            remedy = f"{did_you_mean(str(key), allowed)}choose from {', '.join(allowed)}"
            raise ConfigError(f"{location}: {key}", value, "is an unknown key", remedy)
        if value in (None, "", [], {}) and key != "where":
            raise ConfigError(f"{location}: {key}", value, "is empty", "write a value")
    for key in needed:
        if key not in entry:
            problem = "is missing"
            if "kind" in entry:
                problem += f" from a {entry['kind']}"
            raise ConfigError(f"{location}: {key}", "(none)", problem, f"write {key}: ...")


def _bound(entry: Mapping[str, Any], names: Sequence[str], location: str) -> Bound:
    """Read the bound of a check: `at_least`, `at_most` or `between`.

    Args:
        entry: The check.
        names: The permitted kinds of bounds. The check must have exactly one, if any is permitted.
        location: Location of the check, for messages.

    Raises:
        ConfigError: If the bound is missing, ambiguous or invalid.
    """
    given = [name for name in names if name in entry]
    if len(given) > 1:
        raise ConfigError(
            f"{location}: {given[1]}",
            entry[given[1]],
            f"conflicts with {given[0]}",
            "write one bound",
        )
    if not given:
        if names:
            wanted = " or ".join(names)
            raise ConfigError(
                f"{location}: {wanted}",
                "(none)",
                f"is missing from a {entry['kind']}",
                f"write {wanted}: ...",
            )
        return Bound()
    key = f"{location}: {given[0]}"
    value = entry[given[0]]
    end = _BOUNDS[given[0]]
    if end:
        return Bound(**{end: _number(value, key)})
    if not isinstance(value, list) or len(value) != 2:
        raise ConfigError(
            key, value, "expects two numbers", "for example, write between: [2.0, 2.6]"
        )
    bound = Bound(*(_number(part, key) for part in value))
    if bound.low >= bound.high:
        raise ConfigError(
            key, value, "has its ends in the wrong order", "write the smaller number first"
        )
    return bound


def _conditions(value: Any, key: str) -> Conditions:
    if not isinstance(value, dict):
        raise ConfigError(
            key,
            value,
            "is not a mapping",
            f"for example, write {key.rpartition(' ')[2]}: {{platform.name: cpu}}",
        )
    conditions = {}
    for name, wanted in value.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if not values or any(part == "" or isinstance(part, (dict, list)) for part in values):
            raise ConfigError(
                f"{key}: {name}",
                wanted,
                "is not a condition",
                "write a value, a list of values, or a comparison such as '>=1024'",
            )
        conditions[str(name)] = claim_conditions(str(name), values, key)
    return conditions


def _number(value: Any, key: str) -> float:
    # YAML 1.1 reads 1e8 as text.
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(key, value, "expects a number", "for example, write 0.5")
    return float(value)
