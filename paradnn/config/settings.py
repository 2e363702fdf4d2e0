"""Settings of a command that are not part of a point: store, sweep, search, resume and prices."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paradnn.config.outcome import OUTCOMES
from paradnn.config.paths import default_experiment
from paradnn.config.point import point_keys
from paradnn.config.price import Prices, check_prices
from paradnn.config.tags import read_tags
from paradnn.core.errors import ConfigError
from paradnn.core.schema import option, read
from paradnn.core.words import MAX_HOSTS

_DAY = 86_400.0


@dataclass(frozen=True)
class Tracking:
    """Settings of the store that records runs."""

    name: str = option(
        "mlflow",
        "store of the runs: mlflow (a tracking store), or offline (one file per point)",
        choices=("mlflow", "offline"),
    )
    uri: str | None = option(
        None, "tracking URI; null: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db"
    )
    experiment: str | None = option(
        None, "MLflow experiment; null: MLFLOW_EXPERIMENT_NAME, else paradnn"
    )
    tags: Mapping[str, str] = option(
        {},
        "your tags of every run, as in tracking.tags.team=vision; "
        "analysis --tag team=vision selects the runs",
        prefixes=("",),
    )
    folder: str | None = option(
        None, "folder for points that the store did not accept; null: mlruns/offline"
    )
    patience: float = option(
        120.0, "seconds to wait for a store that does not answer", low=0.0, high=_DAY
    )

    page: bool | None = option(
        None,
        "at the end of a sweep, add figures and a table to its run, which takes seconds; null: "
        "PARADNN_PAGE, else true",
    )

    @property
    def experiment_name(self) -> str:
        """Name of the MLflow experiment that records the runs."""
        return self.experiment or default_experiment()

    @property
    def draws_page(self) -> bool:
        """Whether figures and a table are added to the run of a sweep when the sweep ends."""
        if self.name == "offline":
            return False
        if self.page is None:
            return os.environ.get("PARADNN_PAGE", "true").lower() not in ("0", "false")
        return self.page


@dataclass(frozen=True)
class Sweep:
    """Choice and order of the configurations that a sweep (-m) measures."""

    grids: tuple[Mapping[str, Any], ...] = option(
        (), "axes of a preset: a list of grids, whose union is swept"
    )
    design: str = option(
        "grid",
        "grid: measure every point; adaptive: measure the points with the most information per "
        "measuring time, and predict the others (docs/how-to/adaptive.md)",
        choices=("grid", "adaptive"),
    )
    points: int | None = option(None, "adaptive: stop after this many points", low=1)
    minutes: float | None = option(
        None, "adaptive: stop after this many minutes", low=0.01, high=525_600.0
    )
    error: float | None = option(
        None,
        "adaptive: stop at this expected median relative error of unmeasured step times; by default "
        "0.05 if no other stopping rule is set",
        low=0.001,
        high=10.0,
    )
    zip: tuple[tuple[str, ...], ...] = option(
        (),
        "axes that advance together, value by value: [model.nodes,batch_size], or several groups "
        "[[a,b],[c,d]]",
    )
    order: str = option(
        "random",
        "order of the points: random (so that drift does not look like an effect), or given (as "
        "written)",
        choices=("random", "given"),
    )
    seed: int = option(0, "seed of the random order and of the sample", low=0, high=2**31 - 1)
    sample: int | None = option(
        None, "measure only this many points, drawn evenly over the space; null: all", low=1
    )
    name: str | None = option(None, "name of the parent run; null: the date and the families")
    drivers: int = option(
        1,
        "number of drivers that share the sweep; hydra/launcher= starts them "
        "(docs/how-to/clusters.md)",
        low=1,
        high=MAX_HOSTS,
    )
    plan: str | None = option(None, "internal: id of a planned sweep")


@dataclass(frozen=True)
class Largest:
    """Search for the largest feasible size: `batch_size=largest`, or `largest.of=model.nodes`."""

    of: str = option(
        "batch_size",
        "key to enlarge: batch_size, or a size of the model such as model.nodes, beginning at its "
        "value",
    )
    step_ms: float | None = option(
        None,
        "find the largest size with at most this step time; null: no limit of the step time",
        low=1e-6,
        high=1e9,
    )
    latency_ms: float | None = option(
        None,
        "find the largest size whose 90th percentile of the latency, upper end of the 95% interval, "
        "is at most this; null: no limit of the latency",
        low=1e-6,
        high=1e9,
    )
    within: float = option(
        0.05,
        "stop once the smallest size that fails exceeds the largest size that fits by at most this "
        "share",
        low=1e-6,
        high=1.0,
    )

    @property
    def has_time_limit(self) -> bool:
        """Whether the search has a limit of step time or latency, in addition to memory."""
        return self.step_ms is not None or self.latency_ms is not None

    def fits(self, metrics: Mapping[str, float]) -> bool:
        """Return whether a measurement is within the limits of step time and latency.

        Args:
            metrics: Metrics of the measurement, by name. For the latency, the upper end of its 95%
                interval is compared if it is known. A missing latency exceeds its limit.
        """
        step_ms = metrics.get("step_time_ms", 0.0)
        latency_ms = metrics.get("latency_p90_ms", math.inf)
        latency_ms = metrics.get("latency_p90_high_ms", latency_ms)
        if self.step_ms is not None and step_ms > self.step_ms:
            return False
        return self.latency_ms is None or latency_ms <= self.latency_ms


@dataclass(frozen=True)
class Settings:
    """Settings of the driver, apart from the configuration to measure."""

    resume: bool | str = option(
        True,
        "true: measure only points without an outcome; false: measure all points again; retry: "
        "measure points without an outcome, and points with an outcome listed in `retry`",
        choices=("retry",),
    )
    ceilings: bool = option(
        True,
        "record utilization relative to the peak rates of this machine, which are measured once if "
        "they are unknown",
    )
    retry: tuple[str, ...] = option(
        ("crash", "timeout", "unavailable"),
        "outcomes that resume=retry measures again",
        choices=tuple(OUTCOMES),
    )
    tracking: Tracking = field(default_factory=Tracking)
    sweep: Sweep = field(default_factory=Sweep)
    largest: Largest = field(default_factory=Largest)
    price: Prices = field(default_factory=Prices)
    elsewhere: str | None = option(
        None,
        "folder to create with a program (run.py) that measures the points on a different machine, "
        "which needs only an engine",
    )


#: The value of `batch_size` that requests a search.
LARGEST = "largest"
SETTINGS_KEYS = tuple(Settings.__dataclass_fields__)


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings in a composed configuration.

    Args:
        config: The composed configuration, as nested mappings of plain values.

    Raises:
        ConfigError: If a setting is invalid, or a key belongs neither to the settings nor to a
            point.
    """
    for key, value in config.items():
        if key not in point_keys() and key not in SETTINGS_KEYS:
            raise ConfigError(key, value, "no such key", "see python -m paradnn.train --help")
    values = {key: config[key] for key in SETTINGS_KEYS if key in config}
    tracking = values.get("tracking")
    if isinstance(tracking, Mapping) and "tags" in tracking:
        tags = read_tags(tracking["tags"], point_keys() + SETTINGS_KEYS)
        values["tracking"] = {**tracking, "tags": tags}
    settings = read(Settings, values, "")
    check_prices(settings.price)
    if settings.sweep.design == "grid":
        _check_grid(settings.sweep)
    return settings


def _check_grid(sweep: Sweep) -> None:
    """Check that a sweep that measures all of its points (configurations) has no stopping rule.

    Raises:
        ConfigError: If it has one.
    """
    remedies = {
        "points": "add sweep.design=adaptive, or use sweep.sample",
        "minutes": "add sweep.design=adaptive",
        "error": "add sweep.design=adaptive",
    }
    for key, remedy in remedies.items():
        value = getattr(sweep, key)
        if value:
            reason = "ends an adaptive sweep, but this sweep measures all points"
            raise ConfigError(f"sweep.{key}", value, reason, remedy)
