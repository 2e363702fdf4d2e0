"""Prior knowledge of how much repeated measurements scatter, and how data update it.

A comparison needs the variance of log step times between processes, sessions and hosts. A store
with one run per side holds no information on it. So each variance has a scaled inverse chi-square
prior (Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.6). A prior of scale s0 and d0
degrees of freedom counts like d0 deviations of mean square s0^2. A sample variance s^2 of d degrees
of freedom gives the posterior (d0 s0^2 + d s^2) / (d0 + d) with d0 + d degrees of freedom. The
moderated variances of `paradnn.statistics.variances` follow the same rule (Smyth 2004).

docs/explanation/statistics.md lists the scales, their sources and what follows from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from paradnn.statistics.dependence import Component
from paradnn.statistics.lazy import pd, stats

#: p below which data contradict a prior, to either side.
_CONTRADICTION_P = 0.01
#: Degrees of freedom that data need to contradict a prior.
_MIN_FREEDOM = 3
#: Largest factor by which other runs of a machine change a prior.
_LARGEST_CHANGE = 2.0


class DeviceClass(StrEnum):
    """Kinds of machines whose measurements scatter differently."""

    SHARED = "shared virtual machine"
    QUIET = "quiet host"
    ACCELERATOR = "GPU or TPU"


@dataclass(frozen=True)
class VariancePrior:
    """Scaled inverse chi-square prior of a variance of log step time.

    Attributes:
        scale: Standard deviation s0 that the prior expects; 0.05 is 5% of the step time.
        freedom: Degrees of freedom d0, the weight of the prior in deviations.
        source: The data that the scale is from.
        is_floor: Whether data that scatter less than the prior expects never replace it, since they
            may have missed what scatters more.
    """

    scale: float
    freedom: float
    source: str
    is_floor: bool = False

    def update(self, variance: float = 0.0, freedom: float = 0.0) -> Component:
        """Return the posterior variance after a sample variance with its degrees of freedom.

        Data that contradict the prior replace it (Evans and Moshonov, Bayesian Analysis 1, 2006):
        the prior predicts that the ratio of the sample variance to s0^2 has an F distribution.
        """
        if self.contradicts(variance, freedom):
            return Component(variance, freedom)
        total = self.freedom + freedom
        pooled = self.freedom * self.scale**2 + freedom * variance
        return Component(pooled / total, total)

    def learn(self, variance: float, freedom: float) -> VariancePrior:
        """Return the prior after other data of the same machine.

        The data may change the scale by a factor of _LARGEST_CHANGE and weigh twice as much as the
        prior, since other points and days may scatter differently.
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

        Few measurements, or equal ones, contradict nothing.
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
    """Priors of everything that moves a measurement and does not cancel between two sides.

    Attributes:
        process: One process against another of the same point in a session.
        session: Sessions, and hosts: the effect of a session or a host on all of its runs.
        order: Sides that are always measured in the same order, session after session.
        position: The second of two runs of a point, which finds what the first left in caches.
        driver: Drivers that measure parts of one sweep at the same time.
        interaction: What a session does to the ratio of two sides that share it.
        protocol: Timing protocols (`measure.*`) that differ between the sides.
        value: One value of a hyperparameter, which departs from the power law of the others. The
            scale is in standard deviations of the response over the points. None for the runs that
            the prior is from, which must not count twice.
        is_learned: Whether other runs of the same machine have updated them.
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
    source="a machine that slows by a quarter within an hour, as a throttled one does",
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
    source="quick against standard protocol, 3% apart (docs/validation/verdicts.md)",
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
# No repeated measurements of quiet hosts are available, so they share the priors of the machine
# that scatters most. Their own runs update them.
_PRIORS[DeviceClass.QUIET] = _PRIORS[DeviceClass.SHARED]
# The scales are larger than the scatter of the logs (0.65% between processes, 1.9% between
# systems), and have few degrees of freedom: the logs are of long runs that keep the accelerators
# busy, and other work may scatter more. TPUs are assumed to scatter as GPUs do.
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
    """Return the priors of a class of devices."""
    return _PRIORS[device_class]


def classify_devices(*sides: pd.DataFrame) -> DeviceClass:
    """Return the class of the machines that measured some runs.

    It is that of accelerators if all runs used one, else that of shared virtual machines, whose
    measurements scatter most.

    Args:
        *sides: Runs, with `platform.name` where it is known.
    """
    names: set[str] = set()
    for side in sides:
        column = side.get("platform.name", pd.Series("", side.index))
        names |= set(column.fillna("").astype("str"))
    if names and names <= {"gpu", "tpu"}:
        return DeviceClass.ACCELERATOR
    return DeviceClass.SHARED


def priors_for(*sides: pd.DataFrame) -> ScatterPriors:
    """Return the priors for some runs, without the one that published runs were the source of.

    Args:
        *sides: Runs, with `platform.name` and `source` where they are known.
    """
    priors = scatter_priors(classify_devices(*sides))
    sources = [side.get("source", pd.Series("", side.index)) for side in sides]
    if sources and all(source.eq("published").fillna(False).all() for source in sources):
        return replace(priors, value=None)
    return priors
