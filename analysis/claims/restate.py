"""The same claims of other platforms: what is said of a TPU, asked of the machine at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.claims.kinds import Check, Claim
from analysis.store.conditions import Condition, Conditions
from paradnn.errors import ConfigError

__all__ = ["restate"]


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
        changed: dict[str, Any] = {
            name: conditions(getattr(old, name)) for name in ("where", "a", "b") if hasattr(old, name)
        }
        return dataclasses.replace(old, **changed)

    reading = ", ".join(f"{old} read as {new}" for old, new in names.items())
    found = []
    for claim in claims:
        checks = tuple(check(each) for each in claim.checks)
        if checks != claim.checks:
            found.append(
                dataclasses.replace(claim, checks=checks, says=f"{claim.says.rstrip('.')} [{reading}]", proof="")
            )
    for old in names:
        if old not in used:
            known = ", ".join(sorted(used))
            raise ConfigError("--as", f"{old}={names[old]}", f"no condition of a claim says {old}", f"they say {known}")
    return tuple(found)
