"""One inference for every comparison of two sides: log ratios with crossed effects, and the
verdicts of a page.

The logarithm of a point's ratio has an effect of its model, of its batch size and of the values of
its hyperparameters (`paradnn.statistics.dependence`), and each side one of the session or host
that measured it, unless both sides share it (`paradnn.statistics.sessions`). Every number is over
the points at which the sides are comparable; its interval has the variance of all these effects,
with Satterthwaite's degrees of freedom. Points that one side alone ran bound it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

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

#: Differences up to this are called the same, where that is shown.
MARGIN = 0.05

#: Values of a hyperparameter from which they are a sample of such; fewer are taken as given.
_VALUES = 6

_TINY = 1e-300


class Verdict(StrEnum):
    """What is said of a family, and of a cell that was tested; tables hold the values."""

    A_BETTER = "A better"
    B_BETTER = "B better"
    SAME = "the same within the margin"
    NOT_SHOWN = "no difference shown"
    WITHHELD = "no verdict"
    NOT_ENOUGH = "not enough data"
    UNTESTED = "not tested"


@dataclass(frozen=True)
class Contrast:
    """The pairs of one family, or of all, that carry a comparison; `left` are of points left out of
    it since their sides were measured in different sessions.
    """

    pairs: pd.DataFrame
    sampling: Sampling
    unit: Unit = "crossed"
    left: int = 0

    @classmethod
    def of(cls, pairs: pd.DataFrame, family: str, unit: Unit = "crossed") -> Contrast:
        """Of rows of `pairing.pair`, of one family or of "all"."""
        rows = pairs if family == "all" else pairs[pairs["family"] == family]
        kept = rows[rows["comparable"]] if rows["comparable"].any() else rows
        return cls(kept, get_sampling(pairs, family), unit, len(rows) - len(kept))

    @cached_property
    def ratios(self) -> np.ndarray:
        """The ratio of each point, (n,)."""
        found: np.ndarray = self.pairs["speedup"].to_numpy(dtype="float64")
        return found

    @cached_property
    def levels(self) -> Levels:
        """What the points share."""
        return shared_levels(self.pairs, self.unit, axes=_VALUES)

    @property
    def comparable(self) -> bool:
        """Whether the sides' sessions allow a verdict."""
        return bool(len(self.pairs)) and bool(self.pairs["comparable"].all())

    @property
    def allowance(self) -> float:
        """What a session may have done to the sides as a whole, as a factor; 1 where their sessions
        can be told.
        """
        return 1.0 if self.comparable else ALLOWANCE

    @property
    def missing(self) -> int:
        """Points that both sides tried and one alone measured."""
        return sum(self.sampling.missing)

    @cached_property
    def error(self) -> Component:
        """The variance of the mean log ratio and its degrees of freedom; NaN below MINIMUM_POINTS."""
        if len(self.ratios) < MINIMUM_POINTS:
            return Component(np.nan, np.nan)
        return sum_components(
            [crossed_variance(np.log(self.ratios), self.levels), *self.sampling.between]
        )

    def mean(self) -> Estimate:
        """The geometric mean with its interval, which has no ends below MINIMUM_POINTS."""
        return geometric_mean(self.ratios, self.levels, more=self.sampling.between)

    def share(self, above: float = 1.0) -> Estimate:
        """The share of points with a ratio above a number: its interval over points
        (`crossed_share`), joined by variance estimates recovery with that of the shares that
        sessions could have made of it.
        """
        logs = np.log(self.ratios)
        found = crossed_share(self.ratios > above, self.levels, latent=logs)
        shift = sum_components(self.sampling.between).half_width
        if not shift or not len(logs):
            return found
        value, low, high = found
        least, most = ((logs - math.log(above) > by).mean() for by in (shift, -shift))
        down = math.hypot(value - low, value - least)
        up = math.hypot(high - value, most - value)
        return Estimate(value, max(value - down, 0.0), min(value + up, 1.0))

    def quantile(self, share: float = 0.5) -> Estimate:
        """A quantile of the ratios: its interval over points (`crossed_quantile`), widened by what
        sessions add.
        """
        found = crossed_quantile(self.ratios, self.levels, share)
        shift = sum_components(self.sampling.between).half_width
        if not shift:
            return found
        value, low, high = found
        # An end without an order statistic stays infinite.
        if math.isfinite(low):
            low = value * math.exp(-math.hypot(math.log(value / low), shift))
        if math.isfinite(high):
            high = value * math.exp(math.hypot(math.log(high / value), shift))
        return Estimate(value, low, high)

    def bounds(self) -> dict[str, float]:
        """Where the share of wins, the median and the geometric mean lie whatever the points would
        have given that ran on one side alone: of share and median for certain, of the mean were
        none further from 1, to either side, than the ratio that is furthest (Manski, American
        Economic Review 80, 1990).
        """
        found: dict[str, float] = {}
        logs = np.log(self.ratios)
        furthest = np.abs(logs).max()
        for end, extreme, observed in (("least", 0.0, -furthest), ("most", np.inf, furthest)):
            # The middle of an even number lies between two, one of which may be unknown.
            whole = np.sort(np.append(self.ratios, np.full(self.missing, extreme)))
            place = (len(whole) - (extreme == 0)) // 2
            found |= {
                f"share_{end}": float((whole > 1).mean()),
                f"median_{end}": float(whole[place]),
            }
            found[f"mean_{end}"] = math.exp((logs.sum() + self.missing * observed) / len(whole))
        return found

    def row(self) -> dict[str, Any]:
        """The numbers that every comparison of sides shows of a family; `error` and `freedom` are
        those of the mean log ratio, what `judge` needs.

        Intervals are 95%. Where one side alone ran points that both tried, those of the share and
        of the mean reach as far as these could have moved them (`bounds`): their numbers are over
        the points that both ran.
        """
        count = len(self.ratios)
        missing = self.sampling.missing
        share = self.share()
        mean = self.mean()
        bounds = self.bounds() if count else {}
        if self.missing and count:
            tried = count + self.missing
            known = count / (count + self.missing)
            share = Estimate(
                share.value, known * share.low, known * share.high + self.missing / tried
            )
            low, high = (bounds[f"mean_{end}"] / mean.value for end in ("least", "most"))
            mean = Estimate(mean.value, mean.low * min(low, 1.0), mean.high * max(high, 1.0))
        if count:
            quantiles = np.quantile(self.ratios, [0, 0.25, 0.5, 0.75, 1])
        else:
            quantiles = np.full(5, np.nan)
        return {
            "points": count,
            "wins": int((self.ratios > 1).sum()),
            **dict(zip(("share", "share_low", "share_high"), share, strict=True)),
            **dict(
                zip(
                    ("geometric_mean", "geometric_mean_low", "geometric_mean_high"),
                    mean,
                    strict=True,
                )
            ),
            "sample": self.levels.words,
            **dict(
                zip(("minimum", "q25", "median", "q75", "maximum"), quantiles.tolist(), strict=True)
            ),
            "missing_a": missing[0],
            "missing_b": missing[1],
            "left": self.left,
            "comparable": self.comparable,
            "error": math.sqrt(self.error.variance),
            "freedom": self.error.freedom,
            **bounds,
        }


def judge(rows: pd.DataFrame, margin: float = MARGIN, rate: float = 0.05) -> pd.DataFrame:
    """`verdict` and `basis` of each row (as `Contrast.row` gives them), which together are one
    page.

    Equivalence first: the same where both one-sided tests against +-log(1 + margin) say so
    (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987); then A or B, by Student's t.
    Both are held over the page by Holm's rule (`adjust_p_values`), and both must hold whatever the points
    would have given that one side alone ran. `basis` is "points" for such a verdict; where there is
    none it says why: "sessions", "few" points, "missing" ones, or the "page", whose other tests
    take what this one alone would say.
    """
    mean = np.log(rows["geometric_mean"].to_numpy(dtype="float64"))
    least, most = (
        np.log(rows[name].to_numpy(dtype="float64")) if name in rows else mean
        for name in ("mean_least", "mean_most")
    )
    error = np.maximum(rows["error"].to_numpy(), _TINY)
    freedom = rows["freedom"].to_numpy(dtype="float64")
    apart = (rows["points"].to_numpy() > 0) & ~rows["comparable"].to_numpy(dtype=bool)
    few = ~(rows["points"].to_numpy() >= MINIMUM_POINTS)
    able = ~few & ~apart

    def tests(least: np.ndarray, most: np.ndarray) -> list[np.ndarray]:
        different = 2 * np.minimum(
            stats.t.sf(least / error, freedom), stats.t.cdf(most / error, freedom)
        )
        same = equivalent(least, most, error, freedom, margin)
        return [np.where(able, p, np.nan) for p in (np.minimum(different, 1), same)]

    different, same = tests(least, most)
    seen, alike = (adjust_p_values(p) <= rate for p in (different, same))
    ahead = np.where(mean > 0, Verdict.A_BETTER, Verdict.B_BETTER)
    verdict = np.select(
        [apart, few, alike, seen],
        [Verdict.WITHHELD, Verdict.NOT_ENOUGH, Verdict.SAME, ahead],
        Verdict.NOT_SHOWN,
    )
    alone = (different <= rate) | (same <= rate)
    ran = np.minimum(*tests(mean, mean)) <= rate
    basis = np.select(
        [apart, few, alike | seen, alone, ran],
        ["sessions", "few", "points", "page", "missing"],
        "points",
    )
    return rows.assign(verdict=verdict, basis=basis)


def adjust_p_values(p_values: np.ndarray, discoveries: bool = False) -> np.ndarray:
    """p values adjusted for being many, NaN where there is none.

    Such that with 95% none of those below 0.05 is false (Holm, Scandinavian J. of Statistics 6,
    1979), or with `discoveries` no more than 5% of them are expected to be (Benjamini and Hochberg,
    J. Royal Statistical Society B 57, 1995), which holds for tests that are independent or
    positively dependent, as those are whose sides share a machine.
    """
    found = np.full(len(p_values), np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    if discoveries:
        found[known] = (
            stats.false_discovery_control(p_values[known], method="bh") if len(known) else []
        )
        return found
    # statsmodels' multipletests collects all garbage of the process, which takes 0.1 s a call.
    order = known[np.argsort(p_values[known])]
    found[order] = np.minimum(
        np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1)), 1
    )
    return found


def equivalent(
    least: np.ndarray, most: np.ndarray, error: np.ndarray, freedom: np.ndarray, margin: float
) -> np.ndarray:
    """p of the two one-sided tests that log ratios, which lie from `least` to `most`, are beyond
    +-log(1 + margin): small where the sides are the same within it. NaN without an error.
    """
    bound = math.log1p(margin)
    with np.errstate(divide="ignore", invalid="ignore"):
        worse: np.ndarray = np.maximum(
            stats.t.sf((least + bound) / error, freedom),
            stats.t.sf((bound - most) / error, freedom),
        )
    return worse
