"""Inference for every comparison of two sides: a mean ratio with two intervals.

The sides A and B are two sets of recorded runs, for example of two frameworks. A point is one
configuration; it is paired if both sides measured it.

The interval *on these points* is that of the mean log ratio of a fixed set of points. Its variance
has two parts: the variance between processes, averaged over the points, and the variance of effects
that shift a whole side and do not cancel (`paradnn.statistics.effects`). The verdict is based on
this interval.

The interval *for other models like these* has the same center. Its variance also includes random
effects of models and batch sizes (`paradnn.statistics.dependence`).

Points that only one side measured do not widen either interval. `Contrast.bounds` returns bounds
that include these points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paradnn.statistics.decision import MARGIN, adjust_p_values, equivalent
from paradnn.statistics.dependence import (
    MINIMUM_POINTS,
    Component,
    Levels,
    Unit,
    crossed_variance,
    shared_levels,
)
from paradnn.statistics.effects import Effect, Schedule, SessionVariance, combine
from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.lazy import np, pd, stats
from paradnn.statistics.priors import ScatterPriors, scatter_priors
from paradnn.statistics.verdict import Verdict

#: Minimum number of values of a hyperparameter that count as a sample; fewer values are fixed.
_MINIMUM_SAMPLE_VALUES = 6
#: Bootstrap draws from which the scatter of a quantile is computed.
_QUANTILE_DRAWS = 200
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Evidence:
    """Variances and counts from which the intervals of ratios between two sides are computed.

    A and B are the two compared sets of runs. A point is one configuration; p points were measured
    on both sides.

    Attributes:
        schedule: Time and place of the n runs from which the ratios are computed.
        family: (n,) model family of each run.
        session: Posterior variance between sessions, which are measurements taken in one go.
        point: (p,) numbers of the paired points, ascending.
        variance: (2, p) variance of the mean logarithm of the compared metric, such as speed, at
            each point. It is computed from the scatter between processes on A and on B.
        mean_variance: (2, p) variance of the logarithm of the metric's median at each point, on A
            and on B, from the mean scatter of its family. The ratios are ratios of these medians.
        freedom: (2, p) degrees of freedom of `variance`.
        data_freedom: (2, p) degrees of freedom without the prior.
        priors: Priors of the scatter.
        interaction: Family -> effect of shared sessions on the ratio of the family, if both sides
            share several sessions.
        leveled: Family -> variance from the correction of its runs to a common machine speed. This
            variance replaces the variance of sessions.
        selection: Family -> bound of the bias from lost replicates (repeated runs that failed), as
            a log ratio.
        lost: Family -> number of lost replicates of A and of B.
        missing: Family -> number of points that both sides tried and only A measured, and number
            that both sides tried and only B measured.
        speed_change: Family -> how much faster the machine was in the fastest part of the sessions
            than in the slowest, as a share (0.1: 10%).
    """

    schedule: Schedule
    family: np.ndarray
    session: SessionVariance
    point: np.ndarray
    variance: np.ndarray
    mean_variance: np.ndarray
    freedom: np.ndarray
    data_freedom: np.ndarray
    priors: ScatterPriors = field(default_factory=scatter_priors)
    interaction: dict[str, Effect] = field(default_factory=dict)
    leveled: dict[str, Component] = field(default_factory=dict)
    selection: dict[str, float] = field(default_factory=dict)
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)
    missing: dict[str, tuple[int, int]] = field(default_factory=dict)
    speed_change: dict[str, float] = field(default_factory=dict)

    def __deepcopy__(self, memo: object) -> Evidence:
        """Return the evidence without copying it.

        Otherwise, pandas would copy the evidence with every slice of a frame.
        """
        return self

    def shared_effects(self, families: set[str], points: np.ndarray) -> list[Effect]:
        """Return the effects, such as those of sessions, that shift all log ratios together.

        Args:
            families: Model families of the points.
            points: Numbers of the points whose log ratios are considered, as in `point`.
        """
        schedule = self.schedule.select(np.isin(self.schedule.point, points))
        effects = schedule.effects(self.session, self.priors)
        known = [self.leveled[name] for name in sorted(families & set(self.leveled))]
        if known and families <= set(self.leveled):
            widest = max(known, key=lambda component: float(component.variance))
            rest = [effect for effect in effects if effect.name != "sessions"]
            effects = [*rest, Effect("reference speed", widest.variance, widest.freedom)]
        shared = [self.interaction[name] for name in families if name in self.interaction]
        if shared:
            effects.append(max(shared, key=lambda effect: effect.variance))
        return effects

    def process_effect(self, points: np.ndarray, counts: np.ndarray) -> Effect:
        """Return the effect of the scatter between processes on a mean log ratio over points.

        Args:
            points: (k,) distinct numbers of the points, as in `point`.
            counts: (k,) number of times that each point occurs in the mean.
        """
        position = np.searchsorted(self.point, points)
        shares = (counts / counts.sum()) ** 2
        parts = shares * self.variance[:, position]
        variance = float(np.sum(shares * self.mean_variance[:, position]))
        prior = self.priors.process.freedom
        known = float(self.data_freedom[:, position].sum())
        limit = prior + known
        with np.errstate(divide="ignore", invalid="ignore"):
            below = float(np.nansum(parts**2 / self.freedom[:, position]))
        freedom = limit
        if below > 0:
            freedom = min(float(parts.sum()) ** 2 / below, limit)
        return Effect("processes", variance, freedom, prior / limit)


@dataclass(frozen=True)
class Contrast:
    """Comparison of two sides A and B over the configurations (points) that both measured.

    It covers one model family, or all families.

    Attributes:
        pairs: n rows from `analysis.pairing.pair`, one per point. The column `speedup` is the ratio
            of A over B.
        evidence: Variances from which intervals are computed. If None, they are unknown, and the
            ends of intervals are NaN.
        family: Name of the model family, or "all".
        unit: What counts as the sample if results are generalized to similar models
            (`population_mean`): models and batch sizes ("crossed"), models ("model") or points
            ("point").
    """

    pairs: pd.DataFrame
    evidence: Evidence | None
    family: str = "all"
    unit: Unit = "crossed"

    @classmethod
    def of(cls, pairs: pd.DataFrame, family: str, unit: Unit = "crossed") -> Contrast:
        """Create the comparison of one model family.

        Args:
            pairs: Rows from `analysis.pairing.pair`, one per point that both sides measured.
            family: Name of the family; "all" for all families.
            unit: What counts as the sample if results are generalized to similar models
                (`population_mean`): models and batch sizes ("crossed"), models ("model") or points
                ("point").
        """
        rows = pairs
        if family != "all":
            rows = pairs[pairs["family"] == family]
        return cls(rows, pairs.attrs.get("evidence"), family, unit)

    @cached_property
    def ratios(self) -> np.ndarray:
        """(n,) ratio of A over B at each point; above 1 if A is better."""
        ratios: np.ndarray = self.pairs["speedup"].to_numpy(dtype="float64")
        return ratios

    @cached_property
    def levels(self) -> Levels:
        """The model, batch size and other factors that points have in common."""
        return shared_levels(self.pairs, self.unit, axes=_MINIMUM_SAMPLE_VALUES)

    @property
    def _families(self) -> set[str]:
        return set(self.pairs["family"].fillna("").astype(str))

    @property
    def missing_by_side(self) -> tuple[int, int]:
        """Numbers of points that only one side measured: only A, and only B.

        Both sides tried to measure these points.
        """
        if self.evidence is None:
            return (0, 0)
        known = self.evidence.missing
        names = list(known) if self.family == "all" else [self.family]
        counts = [known.get(name, (0, 0)) for name in names]
        return sum(a for a, _ in counts), sum(b for _, b in counts)

    @property
    def missing(self) -> int:
        """Number of points that both sides tried to measure, and only one side measured."""
        return sum(self.missing_by_side)

    @cached_property
    def shared(self) -> list[Effect]:
        """Effects that shift the ratios of all points together."""
        if self.evidence is None or not len(self.pairs):
            return []
        return self.evidence.shared_effects(self._families, self.pairs["point"].to_numpy())

    @cached_property
    def effects(self) -> list[Effect]:
        """All sources of scatter that widen the interval of `mean`, beginning with processes."""
        if self.evidence is None or not len(self.pairs):
            return []
        points, counts = np.unique(self.pairs["point"].to_numpy(), return_counts=True)
        return [self.evidence.process_effect(points, counts), *self.shared]

    @cached_property
    def error(self) -> Component:
        """Variance of the mean log ratio on these points; NaN if it is unknown."""
        if not self.effects:
            return Component(np.nan, np.nan)
        return combine([effect.component for effect in self.effects])

    @cached_property
    def bias(self) -> float:
        """Upper bound of the bias from lost replicates (failed repeated runs), as a log ratio."""
        if self.evidence is None:
            return 0.0
        known = [self.evidence.selection.get(name, 0.0) for name in self._families]
        return max(known, default=0.0)

    @property
    def shift(self) -> float:
        """Largest plausible common error of all log ratios: 95% half width plus `bias`."""
        parts = [effect.component for effect in self.shared]
        half_width = 0.0
        if parts:
            half_width = float(combine(parts).half_width)
        return half_width + self.bias

    def mean(self) -> Estimate:
        """Return the geometric mean of the ratios with its 95% interval for these points.

        The interval does not apply to other points. Its ends are NaN without evidence.
        """
        return self._around_mean(self.error)

    def population_mean(self) -> Estimate:
        """Return the geometric mean of the ratios with its 95% interval for similar models.

        The interval also includes the variance over models and batch sizes. Its ends are NaN
        without evidence, or for fewer than MINIMUM_POINTS points.
        """
        if len(self.ratios) < MINIMUM_POINTS or not self.effects:
            return self._around_mean(Component(np.nan, np.nan))
        # The scatter of ratios includes the scatter of processes. With its prior, however, the
        # latter may be wider.
        of_points = crossed_variance(np.log(self.ratios), self.levels)
        of_processes = self.effects[0].component
        widest = max(of_points, of_processes, key=lambda part: float(part.half_width))
        return self._around_mean(combine([widest, *(effect.component for effect in self.shared)]))

    def _around_mean(self, error: Component) -> Estimate:
        if not len(self.ratios):
            return Estimate(np.nan, np.nan, np.nan)
        mean = float(np.exp(np.log(self.ratios).mean()))
        factor = float(np.exp(error.half_width + self.bias))
        return Estimate(mean, mean / factor, mean * factor)

    @cached_property
    def _point_errors(self) -> np.ndarray:
        """(n,) standard error of each log ratio from the scatter between processes."""
        if self.evidence is None:
            return np.full(len(self.ratios), np.nan)
        position = np.searchsorted(self.evidence.point, self.pairs["point"].to_numpy())
        errors: np.ndarray = np.sqrt(self.evidence.mean_variance.sum(axis=0)[position])
        return errors

    def share(self, above: float = 1.0) -> Estimate:
        """Return the share of these points whose ratio A over B exceeds a threshold.

        The interval covers the shares that result if all ratios shift together by up to `shift`. It
        also includes the noise of single points: a point that is on the wrong side of the threshold
        with probability p adds the variance p (1 - p).

        Args:
            above: The threshold. With 1, the share is the share of points at which A is better.
        """
        logs = np.log(self.ratios) - math.log(above)
        if not len(logs):
            return Estimate(np.nan, np.nan, np.nan)
        value = float((logs > 0).mean())
        least = float((logs > self.shift).mean())
        most = float((logs > -self.shift).mean())
        chance = stats.norm.sf(np.abs(logs) / np.maximum(self._point_errors, _TINY))
        noise = stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt(np.sum(chance * (1 - chance)))
        noise /= len(logs)
        low = max(value - math.hypot(value - least, noise), 0.0)
        high = min(value + math.hypot(most - value, noise), 1.0)
        return Estimate(value, low, high)

    def quantile(self, share: float = 0.5) -> Estimate:
        """Return a quantile of the ratios of these points with its 95% interval.

        The interval combines a common shift of all ratios with the noise of single points. A
        parametric bootstrap adds the noise to the ratios.

        Args:
            share: Which quantile, from 0 to 1; 0.5 is the median.
        """
        if not len(self.ratios):
            return Estimate(np.nan, np.nan, np.nan)
        value = float(np.quantile(self.ratios, share))
        if self.evidence is None:
            return Estimate(value, np.nan, np.nan)
        noise = np.random.default_rng(0).normal(0, 1, (_QUANTILE_DRAWS, len(self.ratios)))
        drawn = np.quantile(np.log(self.ratios) + noise * self._point_errors, share, axis=1)
        freedom = self.effects[0].freedom
        half_width = float(Component(drawn.var(), freedom).half_width)
        factor = math.exp(math.hypot(self.shift, half_width))
        return Estimate(value, value / factor, value * factor)

    def bounds(self) -> dict[str, float]:
        """Return bounds of three statistics of the ratios, given that some points lack a ratio.

        A point lacks a ratio of A over B if both sides tried it and only one side measured it. The
        statistics are the share of points at which A is better, the median ratio and the geometric
        mean ratio. The bounds of share and median hold for any missing ratios. The bounds of the
        geometric mean assume that no missing ratio is further from 1, on a log scale, than the
        furthest measured ratio (Manski, American Economic Review 80, 1990).

        Returns:
            Name -> bound: `share_least`, `share_most`, `median_least`, `median_most`, `mean_least`
            and `mean_most`.
        """
        bounds: dict[str, float] = {}
        logs = np.log(self.ratios)
        furthest = np.abs(logs).max()
        for end, ratio, log in (("least", 0.0, -furthest), ("most", np.inf, furthest)):
            ratios = np.sort(np.append(self.ratios, np.full(self.missing, ratio)))
            # The median of an even number of ratios lies between two of them. One of the two may be
            # missing, so use the outer ratio as the bound.
            middle = len(ratios) // 2
            if end == "least":
                middle = (len(ratios) - 1) // 2
            bounds[f"share_{end}"] = float((ratios > 1).mean())
            bounds[f"median_{end}"] = float(ratios[middle])
            bounds[f"mean_{end}"] = math.exp((logs.sum() + self.missing * log) / len(ratios))
        return bounds

    def row(self) -> dict[str, Any]:
        """Return the statistics of the comparison by name, as one row of a table of families.

        They are counts, the share of wins of A, geometric mean, quantiles and bounds, with 95%
        intervals. The statistics cover the points that both sides measured. `judge` uses `error`
        (the standard error of the mean log ratio), `freedom` (its degrees of freedom) and `bias`.
        """
        count = len(self.ratios)
        missing_a, missing_b = self.missing_by_side
        share = self.share()
        mean = self.mean()
        population = self.population_mean()
        bounds: dict[str, float] = {}
        quantiles = np.full(5, np.nan)
        if count:
            bounds = self.bounds()
            quantiles = np.quantile(self.ratios, [0, 0.25, 0.5, 0.75, 1])
        minimum, q25, median, q75, maximum = quantiles.tolist()
        return {
            "points": count,
            "wins": int((self.ratios > 1).sum()),
            "share": share.value,
            "share_low": share.low,
            "share_high": share.high,
            "geometric_mean": mean.value,
            "geometric_mean_low": mean.low,
            "geometric_mean_high": mean.high,
            "population_low": population.low,
            "population_high": population.high,
            "sample": self.levels.description,
            "shift": self.shift,
            "minimum": minimum,
            "q25": q25,
            "median": median,
            "q75": q75,
            "maximum": maximum,
            "missing_a": missing_a,
            "missing_b": missing_b,
            "error": math.sqrt(self.error.variance),
            "freedom": float(self.error.freedom),
            "bias": self.bias,
            **bounds,
        }


def judge(rows: pd.DataFrame, margin: float = MARGIN, rate: float = 0.05) -> pd.DataFrame:
    """Add a verdict on A to each row of a table of comparisons, corrected for multiple tests.

    The verdict is equal if both one-sided tests against +-log(1 + margin) are significant
    (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987). Otherwise, A is faster or
    slower if Student's t test is significant. In all other cases, the verdict is undecided. The
    p-values of each test are adjusted for the number of rows by Holm's rule (`adjust_p_values`).

    Args:
        rows: Rows from `Contrast.row`, one per comparison of two sides A and B.
        margin: Largest relative difference that counts as equal (0.02: 2%).
        rate: Permitted probability that any row has a false verdict.

    Returns:
        The rows with two more columns. `verdict` is a `Verdict`. `by_itself` is the verdict
        without the correction for the number of rows.
    """
    mean = np.log(rows["geometric_mean"].to_numpy(dtype="float64"))
    bias = rows["bias"].to_numpy(dtype="float64")
    error = np.maximum(rows["error"].to_numpy(), _TINY)
    freedom = rows["freedom"].to_numpy(dtype="float64")
    distance = np.maximum(np.abs(mean) - bias, 0.0)
    different = 2 * stats.t.sf(distance / error, freedom)
    same = equivalent(mean - bias, mean + bias, error, freedom, margin)

    def verdicts(p_different: np.ndarray, p_same: np.ndarray) -> np.ndarray:
        leader = np.where(mean > 0, Verdict.FASTER, Verdict.SLOWER)
        is_equal = p_same <= rate
        is_different = p_different <= rate
        found: np.ndarray = np.select(
            [is_equal, is_different], [Verdict.EQUAL, leader], Verdict.UNDECIDED
        )
        return found

    return rows.assign(
        verdict=verdicts(adjust_p_values(different), adjust_p_values(same)),
        by_itself=verdicts(different, same),
    )
