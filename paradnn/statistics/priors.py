"""Priors of the variance of repeated measurements, and how data update them.

A comparison needs the variance of log step time between processes, sessions and hosts. A store with
one run per side does not contain this information. Each variance therefore has a scaled inverse
chi-square prior (Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.6). A prior with
scale s0 and d0 degrees of freedom has the weight of d0 deviations with mean square s0^2. With a
sample variance s^2 of d degrees of freedom, the posterior variance is (d0 s0^2 + d s^2) / (d0 + d),
with d0 + d degrees of freedom. `paradnn.statistics.variances.moderate_variances` follows the same
rule (Smyth 2004).

docs/explanation/statistics.md lists the scales, their sources and their consequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from paradnn.statistics.dependence import Component
from paradnn.statistics.lazy import pd, stats

#: Data contradict a prior if their p-value, in either tail, is below this level.
_CONTRADICTION_P = 0.01
#: Minimum degrees of freedom of data that contradict a prior.
_MIN_FREEDOM = 3
#: Limits the influence of other runs of a machine on a prior: the largest factor by which they
#: change the scale, and their largest weight relative to the prior.
_LARGEST_CHANGE = 2.0


class DeviceClass(StrEnum):
    """Class of machines, by how much repeated measurements on them scatter."""

    SHARED = "shared virtual machine"
    QUIET = "quiet host"
    ACCELERATOR = "GPU or TPU"


@dataclass(frozen=True)
class VariancePrior:
    """Scaled inverse chi-square prior of a variance of log step time.

    Attributes:
        scale: Standard deviation s0 that the prior expects; 0.05 is 5% of the step time.
        freedom: Degrees of freedom d0: the prior has the weight of d0 deviations.
        source: The data from which the scale was estimated, as text.
        is_floor: Whether data never replace the prior if they scatter less than it expects. Such
            data may lack a source of scatter.
    """

    scale: float
    freedom: float
    source: str
    is_floor: bool = False

    def update(self, variance: float = 0.0, freedom: float = 0.0) -> Component:
        """Return the posterior variance, which combines this prior with a sample variance.

        By default, there is no sample, and the posterior equals the prior. Data that contradict the
        prior replace it (Evans and Moshonov, Bayesian Analysis 1, 2006).

        Args:
            variance: Sample variance of log step time.
            freedom: Degrees of freedom of the sample variance.
        """
        if self.contradicts(variance, freedom):
            return Component(variance, freedom)
        total = self.freedom + freedom
        pooled = self.freedom * self.scale**2 + freedom * variance
        return Component(pooled / total, total)

    def learn(self, variance: float, freedom: float) -> VariancePrior:
        """Return this prior updated with other runs of the machine on which a comparison ran.

        The other runs are not part of the comparison: they measured other points, or ran on other
        days. Their times may scatter differently from those of the comparison, so their influence
        is limited. They change the scale by at most the factor _LARGEST_CHANGE. Their weight is at
        most _LARGEST_CHANGE times the weight of the prior.

        Args:
            variance: Sample variance of the log step time of the other runs.
            freedom: Degrees of freedom of the sample variance. If it is at most 0, the prior is
                returned unchanged.
        """
        if freedom <= 0:
            return self
        weight = min(freedom, _LARGEST_CHANGE * self.freedom)
        posterior = self.update(variance, weight)
        low, high = self.scale / _LARGEST_CHANGE, self.scale * _LARGEST_CHANGE
        return replace(
            self,
            scale=min(max(math.sqrt(posterior.variance), low), high),
            freedom=self.freedom + weight,
            source=f"{self.source}; other runs of this machine",
        )

    def contradicts(self, variance: float, freedom: float) -> bool:
        """Return whether a sample variance is too small or too large for this prior.

        The prior predicts that the ratio of the sample variance to s0^2 has an F distribution. Too
        few measurements (fewer than 3 degrees of freedom) and equal measurements never contradict
        the prior.

        Args:
            variance: Sample variance of log step time.
            freedom: Degrees of freedom of the sample variance.
        """
        if freedom < _MIN_FREEDOM or variance <= 0:
            return False
        ratio = variance / self.scale**2
        if self.is_floor and ratio < 1:
            return False
        below = float(stats.f.cdf(ratio, freedom, self.freedom))
        return min(below, 1 - below) < _CONTRADICTION_P


@dataclass(frozen=True)
class ScatterPriors:
    """Priors of the variances of all effects that do not cancel between two compared sets of runs.

    The two sets are called sides. A point is one configuration.

    Attributes:
        process: Effect of a process, relative to other processes of the point in the session.
        session: Effect of a session (measurements taken in one go), or of a host, on all its runs.
        order: Effect of the order, if sides are always measured in the same order.
        position: Effect of being the second of two successive runs of a point, which may profit
            from the caches that the first run filled.
        driver: Effect of a driver, the process that controls a sweep, if several drivers measure
            parts of one sweep at the same time.
        interaction: Effect of a session on the ratio of two sides that share the session.
        protocol: Effect of a timing protocol (`measure.*`), if the protocols of the sides differ.
        value: Deviation of one value of a hyperparameter from the power law of the other values, in
            standard deviations of the response over the points. None for the runs from which the
            prior was estimated, because they must not count twice.
        is_learned: Whether other runs of the same machine have updated the priors.
    """

    process: VariancePrior
    session: VariancePrior
    order: VariancePrior
    position: VariancePrior
    driver: VariancePrior
    interaction: VariancePrior
    protocol: VariancePrior
    value: VariancePrior | None
    is_learned: bool = False


_REPEATABILITY = "docs/validation/repeatability.md"
_ORDER = VariancePrior(
    scale=0.135,
    freedom=4,
    source="a machine that slows by a quarter within an hour, as a throttled machine does",
)
_POSITION = VariancePrior(
    scale=0.05,
    freedom=4,
    source="planted cache effects of 5% (docs/validation/verdicts.md)",
)
_DRIVER = VariancePrior(
    scale=0.04,
    freedom=4,
    source="workers of one machine that differ by 4% (docs/validation/verdicts.md)",
)
_INTERACTION = VariancePrior(
    scale=0.025,
    freedom=2,
    source="memory layouts that shift each side by 2 to 3% per session "
    "(docs/validation/calibration.md)",
)
_PROTOCOL = VariancePrior(
    scale=0.05,
    freedom=4,
    source="quick and standard protocols, which differ by 3% (docs/validation/verdicts.md)",
)
_VALUE = VariancePrior(
    scale=0.096,
    freedom=2,
    source="published throughput of fully connected models: values of three hyperparameters on two "
    "platforms are off a power law by 0.04 to 0.34 standard deviations of its logarithm",
)
_PRIORS = {
    DeviceClass.SHARED: ScatterPriors(
        process=VariancePrior(
            scale=0.05,
            freedom=4,
            source=f"ten times five processes of six points ({_REPEATABILITY})",
        ),
        session=VariancePrior(
            scale=0.075,
            freedom=8,
            source=f"23 sessions of four points, and three starts of six points ({_REPEATABILITY})",
        ),
        order=_ORDER,
        position=_POSITION,
        driver=_DRIVER,
        interaction=_INTERACTION,
        protocol=_PROTOCOL,
        value=_VALUE,
    ),
}
# No repeated measurements of quiet hosts are available, so they share the priors of shared virtual
# machines, which scatter most. Runs of a quiet host update its priors.
_PRIORS[DeviceClass.QUIET] = _PRIORS[DeviceClass.SHARED]
# The scales exceed the scatter of the published training logs (0.65% between processes, 1.9%
# between systems) and have few degrees of freedom. The reason is that the logs are from long runs,
# which keep the accelerators busy; other work may scatter more. TPUs are assumed to scatter like
# GPUs.
_PRIORS[DeviceClass.ACCELERATOR] = replace(
    _PRIORS[DeviceClass.SHARED],
    process=VariancePrior(
        scale=0.02,
        freedom=3,
        source=f"2,805 published trainings of 263 systems and models ({_REPEATABILITY})",
    ),
    session=VariancePrior(
        scale=0.03,
        freedom=3,
        source=f"published trainings by systems with equal accelerators ({_REPEATABILITY})",
    ),
)


def scatter_priors(device_class: DeviceClass = DeviceClass.SHARED) -> ScatterPriors:
    """Return the priors of the scatter of measurements on a class of machines."""
    return _PRIORS[device_class]


def classify_devices(*sides: pd.DataFrame) -> DeviceClass:
    """Return the class of the machines that measured the given runs.

    The class is ACCELERATOR if all runs used a GPU or TPU. Otherwise it is SHARED, the class with
    the largest scatter. The runs do not show whether a host is quiet, so it is never QUIET.

    Args:
        *sides: One or more sets of runs, one row per run. The column `platform.name` is used if
            present.
    """
    names: set[str] = set()
    for side in sides:
        column = side.get("platform.name", pd.Series("", side.index))
        names |= set(column.fillna("").astype("str"))
    if names and names <= {"gpu", "tpu"}:
        return DeviceClass.ACCELERATOR
    return DeviceClass.SHARED


def priors_for(*sides: pd.DataFrame) -> ScatterPriors:
    """Return the priors of the scatter of measurements that suit the given runs.

    If all runs are published measurements, the prior `value` is None, because it was estimated from
    published measurements.

    Args:
        *sides: One or more sets of runs, one row per run. The columns `platform.name` and `source`
            are used if present.
    """
    priors = scatter_priors(classify_devices(*sides))
    sources = [side.get("source", pd.Series("", side.index)) for side in sides]
    if sources and all(source.eq("published").fillna(False).all() for source in sources):
        return replace(priors, value=None)
    return priors
