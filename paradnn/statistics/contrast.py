"""One inference for every comparison of two sides: log ratios with crossed effects, and verdicts.

The logarithm of a point's ratio has an effect of its model, of its batch size and of the values of
its hyperparameters (`paradnn.statistics.dependence`). Each side has an effect of the session or
host that measured it, unless both sides share it (`paradnn.statistics.sessions`). Every number is
over the points at which the sides are comparable. Its interval has the variance of all these
effects, with Satterthwaite's degrees of freedom. Points that only one side ran bound it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from paradnn.statistics.decision import MARGIN, adjust_p_values, equivalent
from paradnn.statistics.dependence import (
    MINIMUM_POINTS,
    Component,
    Levels,
    Unit,
    crossed_quantile,
    crossed_share,
    crossed_variance,
    geometric_mean,
    shared_levels,
    sum_components,
)
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.lazy import np, pd, stats
from paradnn.statistics.sessions import ALLOWANCE, Sampling, get_sampling

#: Values of a hyperparameter from which on they count as a sample; fewer are fixed.
_MINIMUM_SAMPLE_VALUES = 6
_TINY = 1e-300


class Verdict(StrEnum):
    """The verdict on a family, or on a cell that was tested; tables hold the values."""

    A_BETTER = "A better"
    B_BETTER = "B better"
    SAME = "the same within the margin"
    NOT_SHOWN = "no difference shown"
    WITHHELD = "no verdict"
    NOT_ENOUGH = "not enough data"
    UNTESTED = "not tested"


@dataclass(frozen=True)
class Contrast:
    """The pairs of one family, or of all families, that a comparison is about.

    Attributes:
        pairs: Rows of `analysis.pairing.pair`, n of them.
        sampling: How they were sampled.
        unit: What is taken as a sample.
        excluded: Number of points left out because their sides were measured in different sessions.
    """

    pairs: pd.DataFrame
    sampling: Sampling
    unit: Unit = "crossed"
    excluded: int = 0

    @classmethod
    def of(cls, pairs: pd.DataFrame, family: str, unit: Unit = "crossed") -> Contrast:
        """Return the contrast of one family, or of "all", among the pairs of two sides."""
        rows = pairs
        if family != "all":
            rows = pairs[pairs["family"] == family]
        kept = rows
        if rows["comparable"].any():
            kept = rows[rows["comparable"]]
        return cls(kept, get_sampling(pairs, family), unit, len(rows) - len(kept))

    @cached_property
    def ratios(self) -> np.ndarray:
        """(n,) the ratio of each point."""
        ratios: np.ndarray = self.pairs["speedup"].to_numpy(dtype="float64")
        return ratios

    @cached_property
    def levels(self) -> Levels:
        """What the points share."""
        return shared_levels(self.pairs, self.unit, axes=_MINIMUM_SAMPLE_VALUES)

    @property
    def comparable(self) -> bool:
        """Whether the sessions of the sides allow a verdict."""
        return bool(len(self.pairs)) and bool(self.pairs["comparable"].all())

    @property
    def allowance(self) -> float:
        """What a session may have done to the sides as a whole, as a factor; 1 if comparable."""
        return 1.0 if self.comparable else ALLOWANCE

    @property
    def missing(self) -> int:
        """Number of points that both sides tried and only one measured."""
        return sum(self.sampling.missing)

    @cached_property
    def error(self) -> Component:
        """The variance of the mean log ratio; NaN below MINIMUM_POINTS."""
        if len(self.ratios) < MINIMUM_POINTS:
            return Component(np.nan, np.nan)
        of_points = crossed_variance(np.log(self.ratios), self.levels)
        return sum_components([of_points, *self.sampling.between])

    def mean(self) -> Estimate:
        """Return the geometric mean with its interval, whose ends are NaN below MINIMUM_POINTS."""
        return geometric_mean(self.ratios, self.levels, more=self.sampling.between)

    def share(self, above: float = 1.0) -> Estimate:
        """Return the share of points with a ratio above a number, with its interval.

        The interval over points (`crossed_share`) is combined by variance estimates recovery with
        the range of shares that the sessions could have made of it.
        """
        logs = np.log(self.ratios)
        estimate = crossed_share(self.ratios > above, self.levels, latent=logs)
        shift = sum_components(self.sampling.between).half_width
        if not shift or not len(logs):
            return estimate
        value, low, high = estimate
        distances = logs - math.log(above)
        least = (distances > shift).mean()
        most = (distances > -shift).mean()
        down = math.hypot(value - low, value - least)
        up = math.hypot(high - value, most - value)
        return Estimate(value, max(value - down, 0.0), min(value + up, 1.0))

    def quantile(self, share: float = 0.5) -> Estimate:
        """Return a quantile of the ratios with its interval.

        The interval over points (`crossed_quantile`) is widened by what sessions add. An end
        without an order statistic is infinite.
        """
        estimate = crossed_quantile(self.ratios, self.levels, share)
        shift = sum_components(self.sampling.between).half_width
        if not shift:
            return estimate
        value, low, high = estimate
        if math.isfinite(low):
            low = value * math.exp(-math.hypot(math.log(value / low), shift))
        if math.isfinite(high):
            high = value * math.exp(math.hypot(math.log(high / value), shift))
        return Estimate(value, low, high)

    def bounds(self) -> dict[str, float]:
        """Bound share, median and mean for any results of the points that only one side ran.

        The bounds of the share of wins and of the median are certain. Those of the geometric mean
        assume that no missing ratio is further from 1, to either side, than the furthest that was
        measured (Manski, American Economic Review 80, 1990).

        Returns:
            `share_least`, `share_most`, and the same for `median` and `mean`.
        """
        bounds: dict[str, float] = {}
        logs = np.log(self.ratios)
        furthest = np.abs(logs).max()
        for end, ratio, log in (("least", 0.0, -furthest), ("most", np.inf, furthest)):
            ratios = np.sort(np.append(self.ratios, np.full(self.missing, ratio)))
            # Of an even number the median lies between two ratios, one of which may be missing.
            middle = len(ratios) // 2
            if end == "least":
                middle = (len(ratios) - 1) // 2
            bounds[f"share_{end}"] = float((ratios > 1).mean())
            bounds[f"median_{end}"] = float(ratios[middle])
            bounds[f"mean_{end}"] = math.exp((logs.sum() + self.missing * log) / len(ratios))
        return bounds

    def row(self) -> dict[str, Any]:
        """Return the numbers that every comparison of sides shows of a family.

        Intervals are 95%. Values are over the points that both sides ran. If only one side ran some
        points that both tried, the intervals of share and mean reach as far as these could have
        moved them (`bounds`). `error` and `freedom`, those of the mean log ratio, are for `judge`.
        """
        count = len(self.ratios)
        missing_a, missing_b = self.sampling.missing
        share = self.share()
        mean = self.mean()
        bounds: dict[str, float] = {}
        quantiles = np.full(5, np.nan)
        if count:
            bounds = self.bounds()
            quantiles = np.quantile(self.ratios, [0, 0.25, 0.5, 0.75, 1])
        if self.missing and count:
            tried = count + self.missing
            measured = count / tried
            share = Estimate(
                share.value, measured * share.low, measured * share.high + self.missing / tried
            )
            mean = Estimate(
                mean.value,
                mean.low * min(bounds["mean_least"] / mean.value, 1.0),
                mean.high * max(bounds["mean_most"] / mean.value, 1.0),
            )
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
            "sample": self.levels.description,
            "minimum": minimum,
            "q25": q25,
            "median": median,
            "q75": q75,
            "maximum": maximum,
            "missing_a": missing_a,
            "missing_b": missing_b,
            "left": self.excluded,
            "comparable": self.comparable,
            "error": math.sqrt(self.error.variance),
            "freedom": self.error.freedom,
            **bounds,
        }


def judge(rows: pd.DataFrame, margin: float = MARGIN, rate: float = 0.05) -> pd.DataFrame:
    """Give each row a verdict; all rows together are one page.

    A row is the same if both one-sided tests against +-log(1 + margin) say so (Schuirmann, J.
    Pharmacokinetics and Biopharmaceutics 15, 1987). Otherwise A or B is better if Student's t says
    so. Both are corrected for the page by Holm's rule (`adjust_p_values`). Both must hold whatever
    the points would have given that only one side ran.

    Args:
        rows: Rows as `Contrast.row` returns them.
        margin: Largest relative difference that counts as the same.
        rate: Probability of any false verdict on the page.

    Returns:
        The rows with `verdict` and `basis`. The basis is "points" for a verdict. Otherwise it says
        why there is none: "sessions", "few" points, "missing" points, or the "page", whose other
        tests take away what this one alone would show.
    """
    mean = np.log(rows["geometric_mean"].to_numpy(dtype="float64"))
    least = most = mean
    if "mean_least" in rows:
        least = np.log(rows["mean_least"].to_numpy(dtype="float64"))
        most = np.log(rows["mean_most"].to_numpy(dtype="float64"))
    error = np.maximum(rows["error"].to_numpy(), _TINY)
    freedom = rows["freedom"].to_numpy(dtype="float64")
    points = rows["points"].to_numpy()
    is_withheld = (points > 0) & ~rows["comparable"].to_numpy(dtype=bool)
    has_few = ~(points >= MINIMUM_POINTS)
    is_testable = ~has_few & ~is_withheld

    def p_values(least: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return p of no difference and p of a relevant difference, NaN if not testable."""
        above = stats.t.sf(least / error, freedom)
        below = stats.t.cdf(most / error, freedom)
        different = np.minimum(2 * np.minimum(above, below), 1)
        same = equivalent(least, most, error, freedom, margin)
        return np.where(is_testable, different, np.nan), np.where(is_testable, same, np.nan)

    different, same = p_values(least, most)
    is_different = adjust_p_values(different) <= rate
    is_same = adjust_p_values(same) <= rate
    leader = np.where(mean > 0, Verdict.A_BETTER, Verdict.B_BETTER)
    verdict = np.select(
        [is_withheld, has_few, is_same, is_different],
        [Verdict.WITHHELD, Verdict.NOT_ENOUGH, Verdict.SAME, leader],
        Verdict.NOT_SHOWN,
    )
    shown_alone = (different <= rate) | (same <= rate)
    shown_without_missing = np.minimum(*p_values(mean, mean)) <= rate
    basis = np.select(
        [is_withheld, has_few, is_same | is_different, shown_alone, shown_without_missing],
        ["sessions", "few", "points", "page", "missing"],
        "points",
    )
    return rows.assign(verdict=verdict, basis=basis)
