"""How a multirun is laid out: its keys, typed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paradnn.core.schema import option
from paradnn.errors import ConfigError


@dataclass(frozen=True)
class Sweep:
    """How a multirun is laid out."""

    grids: tuple[Mapping[str, Any], ...] = option((), "axes of a preset: a list of grids, their union is swept")
    design: str = option(
        "grid",
        "grid: every point; adaptive: those that teach most for their time, the others predicted (docs/adaptive.md)",
        choices=("grid", "adaptive"),
    )
    points: int | None = option(None, "adaptive: end once so many points are measured", low=1)
    minutes: float | None = option(
        None, "adaptive: end after so many minutes of this command", low=0.01, high=525_600.0
    )
    error: float | None = option(
        None,
        "adaptive: end once the median relative error expected of unmeasured step times is so small; 0.05 where no end"
        " is given",
        low=0.001,
        high=10.0,
    )
    zip: tuple[tuple[str, ...], ...] = option(
        (), "axes that go together, value by value: [model.nodes,batch_size], or several such groups [[a,b],[c,d]]"
    )
    order: str = option(
        "random", "random: drift does not look like an effect; given: as written", choices=("random", "given")
    )
    seed: int = option(0, "of the random order and of the sample", low=0, high=2**31 - 1)
    sample: int | None = option(None, "measure only so many points, drawn evenly over the space; null: all", low=1)
    name: str | None = option(None, "name of the parent run; null: the date and the families")
    chunk: int | None = option(
        None, "points of one task; null: all of them here, 5 to 50 with a launcher such as slurm", low=1
    )
    plan: str | None = option(None, "internal: the points of a launched task", longest=2**26)


@dataclass(frozen=True)
class Largest:
    """What `batch_size=largest` searches."""

    step_ms: float | None = option(
        None,
        "the largest batch whose step takes no longer than so many ms; null: the largest that fits the memory",
        low=1e-6,
        high=1e9,
    )
    within: float = option(
        0.05, "how near, as a share, a batch that does not fit must be to the one found", low=1e-6, high=1.0
    )


def check_design(sweep: Sweep) -> None:
    """Raise ConfigError for ends of an adaptive sweep where a sweep measures every point."""
    if sweep.design == "grid":
        for key in ("points", "minutes", "error"):
            if value := getattr(sweep, key):
                remedy = "add sweep.design=adaptive" + (", or use sweep.sample" if key == "points" else "")
                raise ConfigError(f"sweep.{key}", value, "ends an adaptive sweep, and this one measures all", remedy)
