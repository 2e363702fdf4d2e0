"""What became of the points of a session."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Summary"]


@dataclass
class Summary:
    """Rows of the measured points, and counts of those that needed no measuring.

    skipped: outcomes that the store held already, this sweep's or another driver's. repeated: points that the sweep
    names twice.
    """

    total: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    where: str = ""

    @property
    def outcomes(self) -> Counter[str]:
        """How many points this session measured with each outcome."""
        return Counter(row["outcome"] for row in self.rows if not row.get("known"))

    @property
    def measured(self) -> int:
        """Points measured by this session."""
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """Points without an outcome."""
        return self.total - self.measured - sum(self.skipped.values()) - self.repeated

    @property
    def exit_code(self) -> int:
        """0 when every point has an outcome, 130 after an interruption, 1 otherwise."""
        return 130 if self.interrupted else int(self.missing > 0)

    def counts(self) -> str:
        """What became of the points, in words."""
        parts = [", ".join(f"{count} {name}" for name, count in self.outcomes.most_common()) or "none measured"]
        if self.skipped:
            known = ", ".join(f"{count} {name}" for name, count in self.skipped.most_common())
            parts.append(f"{sum(self.skipped.values())} skipped, the store holds their outcome already ({known})")
        if self.repeated:
            parts.append(f"{self.repeated} named twice")
        if self.missing:
            parts.append(f"{self.missing} not measured")
        return "; ".join(parts)
