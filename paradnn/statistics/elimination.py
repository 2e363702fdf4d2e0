"""Successive elimination: find the best of several candidates in rounds of repeated measurements.

Each round measures the remaining candidates once, each in a fresh process. The model of a value is

    log score = candidate + round + process,

where all measurements of a round share the state of the machine, and process effects are
independent. Rounds are fixed effects, so a drift between rounds does not favor the candidates of
later rounds. The variance of processes has a prior (`paradnn.statistics.priors`). Therefore, one
value per candidate suffices for an interval.

No elimination is final. After every round, all candidates are judged again with all values. A
candidate that was slow by chance in the first round can therefore return if the leader loses its
advantage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from paradnn.statistics.lazy import np, special
from paradnn.statistics.priors import VariancePrior, scatter_priors
from paradnn.statistics.shrinkage import GROUP_ERRORS, shrinkage

#: Weight of the common variance in the variance of each candidate, in degrees of freedom.
_CANDIDATE_DEGREES = 4.0
#: Minimum number of processes of both the winner and its closest rival.
MIN_PROCESSES = 2
#: Largest total risk of the candidates that a round omits, as a share of the permitted risk.
_OMITTED_SHARE = 0.5
#: Numbers of further rounds that a forecast tries.
_FURTHER_ROUNDS = sorted({round(1.25**step) for step in range(32)})


class Observation(NamedTuple):
    """One measurement of a candidate, in a race that looks for the best of several candidates.

    Attributes:
        candidate: Index of the candidate.
        round: Number of the round, in which each remaining candidate is measured once.
        log_score: Natural logarithm of the score; larger is better.
    """

    candidate: int
    round: int
    log_score: float


class Interval(NamedTuple):
    """A value with its 95% interval, on either a linear or a logarithmic scale."""

    value: float
    low: float
    high: float

    def map(self, function: Callable[[float], float]) -> Interval:
        """Return the interval after applying an increasing function to the value and both ends."""
        return Interval(function(self.value), function(self.low), function(self.high))


@dataclass(frozen=True)
class EliminationRule:
    """Stopping rule of a race, which looks for the best of several candidates.

    Attributes:
        margin: Largest advantage that does not matter, as a share of the score (0.05: 5%).
        risk: Permitted probability, after any one round, that a candidate is better than the winner
            by more than the margin. The rule is applied after every round, which about doubles the
            probability over a whole race (docs/validation/best.md).
        prior: Prior of the variance of log scores between processes that measure a candidate.
    """

    margin: float = 0.05
    risk: float = 0.025
    prior: VariancePrior = field(default_factory=lambda: scatter_priors().process)


class _Model:
    """Least-squares fit of the candidates' means, with the rounds as fixed effects."""

    def __init__(self, observations: Sequence[Observation], prior: VariancePrior) -> None:
        self.candidates = sorted({each.candidate for each in observations})
        position = {candidate: index for index, candidate in enumerate(self.candidates)}
        rounds = {number: index for index, number in enumerate({o.round for o in observations})}
        self.rows = np.array([position[each.candidate] for each in observations])
        round_rows = np.array([rounds[each.round] for each in observations])
        self.values = np.array([each.log_score for each in observations])
        count = len(observations)
        in_round = round_rows[:, None] == round_rows[None, :]
        centering = np.eye(count) - in_round / in_round.sum(axis=1)
        indicator = np.zeros((count, len(self.candidates)))
        indicator[np.arange(count), self.rows] = 1.0
        # Subtracting the round means leaves normal equations with one row per candidate.
        projected = centering @ indicator
        self.weights = np.linalg.pinv(projected.T @ indicator) @ projected.T
        self.means = self.weights @ self.values
        residuals = centering @ self.values - projected @ self.means
        freedom = np.diag(centering) - np.einsum("ij,ji->i", projected, self.weights)
        self.sums = np.bincount(self.rows, residuals**2, len(self.candidates))
        self.degrees = np.maximum(np.bincount(self.rows, freedom, len(self.candidates)), 0.0)
        self.variances, self.total_degrees = self._moderated_variances(prior)
        self._prior = prior

    def _moderated_variances(self, prior: VariancePrior) -> tuple[np.ndarray, float]:
        """Estimate the variance between processes for each candidate.

        The common variance of all candidates is shrunk toward the prior. The variance of each
        candidate is then shrunk toward the common variance.

        Args:
            prior: Prior of the common variance.

        Returns:
            The variance of each candidate, and the degrees of freedom of the common variance.
        """
        degrees = float(self.degrees.sum())
        variance = float(self.sums.sum()) / degrees if degrees > 0 else 0.0
        common = prior.update(variance, degrees)
        variances: np.ndarray = (_CANDIDATE_DEGREES * common.variance + self.sums) / (
            _CANDIDATE_DEGREES + self.degrees
        )
        return variances, float(common.freedom)

    def contrast(self, first: int, second: int) -> tuple[float, float, float]:
        """Return the difference of two candidates' mean log scores, with its standard error.

        Args:
            first: Index of a candidate in `candidates`.
            second: Index of the candidate whose mean is subtracted.

        Returns:
            The difference, its standard error, and the degrees of freedom of the standard error.
        """
        weights = self.weights[first] - self.weights[second]
        error = math.sqrt(float(weights**2 @ self.variances[self.rows]))
        pair_degrees = self.degrees[first] + self.degrees[second]
        degrees = min(
            self.total_degrees,
            self._prior.freedom + _CANDIDATE_DEGREES + float(pair_degrees),
        )
        return float(self.means[first] - self.means[second]), error, degrees


class RaceState:
    """Estimated scores of the candidates of a race, from the measurements so far.

    A race looks for the best of several candidates, which are identified by their indices.

    Args:
        observations: All measurements.
        eligible: Candidates that may win. All other candidates have failed or exceed a limit.
        rule: Stopping rule of the race.

    Attributes:
        leader: Index of the eligible candidate with the largest mean log score.
        rivals: Indices of the other eligible candidates, in descending order of the probability
            that they are better than the leader.
    """

    def __init__(
        self,
        observations: Sequence[Observation],
        eligible: Collection[int],
        rule: EliminationRule,
    ) -> None:
        self._rule = rule
        self._model = _Model(observations, rule.prior)
        self._observations = observations
        self._position = {each: index for index, each in enumerate(self._model.candidates)}
        measured = [each for each in self._model.candidates if each in eligible]
        self.leader = max(measured, key=self._mean)
        others = [each for each in measured if each != self.leader]
        self._risks = {each: self._risk_of(each) for each in others}
        self.rivals = sorted(others, key=lambda each: (-self._risks[each], -self._mean(each)))

    @property
    def risk(self) -> float:
        """Upper bound of the probability that the leader is the wrong winner.

        A winner is wrong if any rival is better by more than the margin. The bound is the sum of
        the probabilities of the rivals (Bonferroni).
        """
        return sum(self._risks.values())

    def processes(self, candidate: int) -> int:
        """Return the number of measurements of the candidate with the given index."""
        return sum(each.candidate == candidate for each in self._observations)

    def is_decided(self) -> bool:
        """Return whether the leader has won under the stopping rule."""
        finalists = [self.leader, *self.rivals[:1]]
        if any(self.processes(each) < MIN_PROCESSES for each in finalists):
            return False
        return self.risk <= self._rule.risk

    def rounds_needed(self) -> int:
        """Estimate the number of further rounds until the race is decided.

        The estimate assumes that the means do not change, and that standard errors fall with the
        square root of the number of processes.
        """
        least = min(self.processes(each) for each in self.contenders())
        for rounds in _FURTHER_ROUNDS:
            factor = math.sqrt((least + rounds) / least)
            risk = sum(self._risk_of(each, factor) for each in self.rivals)
            if risk <= self._rule.risk:
                break
        return rounds

    def contenders(self) -> list[int]:
        """Return the candidates to measure in the next round: the leader and its rivals.

        The risk of a rival is the probability that it is better than the leader by more than the
        margin. The rivals with the smallest risks are omitted, as long as the omitted risks sum to
        at most half of the permitted risk. At least one rival remains, if there is any.
        """
        omitted_risk = 0.0
        kept = list(self.rivals)
        while len(kept) > 1:
            omitted_risk += self._risks[kept[-1]]
            if omitted_risk > _OMITTED_SHARE * self._rule.risk:
                break
            kept.pop()
        return [self.leader, *kept]

    def score(self, candidate: int) -> Interval:
        """Return the geometric mean of a candidate's scores with its 95% interval.

        The best of several similar candidates owes part of its lead to chance. The mean of a
        candidate in the top group, which may be the best, is therefore shrunk toward the mean of
        this group (`paradnn.statistics.shrinkage`).

        Args:
            candidate: Index of the candidate.
        """
        values = np.array([o.log_score for o in self._observations if o.candidate == candidate])
        sample_variance = float(values.var(ddof=1)) if len(values) > 1 else 0.0
        scatter = self._rule.prior.update(sample_variance, len(values) - 1)
        middle = float(values.mean()) - self._shrinkage(candidate)
        # The variance of the model excludes a drift between rounds, but the values contain it.
        common = float(self._model.variances[self._position[candidate]])
        error = math.sqrt(max(float(scatter.variance), common) / len(values))
        half = float(special.stdtrit(scatter.freedom, 0.975)) * error
        return Interval(middle, middle - half, middle + half).map(math.exp)

    def lead(self, rival: int) -> Interval:
        """Return the ratio of the leader's score to a rival's score, with its 95% interval.

        Both scores are shrunk as in `score`, because leads are partly due to chance.

        Args:
            rival: Index of the rival.
        """
        mean, error, degrees = self._contrast(self.leader, rival)
        half = float(special.stdtrit(degrees, 0.975)) * error
        middle = mean - self._shrinkage(self.leader) + self._shrinkage(rival)
        return Interval(middle, middle - half, middle + half).map(math.exp)

    def may_be_as_good(self, rival: int) -> bool:
        """Return whether a rival may be as good as the leader.

        This is so if the 95% interval of the ratio of their scores (`lead`) includes 1.

        Args:
            rival: Index of the rival.
        """
        return self.lead(rival).low <= 1.0

    def _mean(self, candidate: int) -> float:
        return float(self._model.means[self._position[candidate]])

    def _contrast(self, first: int, second: int) -> tuple[float, float, float]:
        return self._model.contrast(self._position[first], self._position[second])

    def _risk_of(self, rival: int, precision: float = 1.0) -> float:
        """Return the probability that a rival's score exceeds the leader's by more than the margin.

        Args:
            rival: Index of the rival.
            precision: Factor by which the current standard error is divided.
        """
        mean, error, degrees = self._contrast(self.leader, rival)
        distance = (mean + math.log1p(self._rule.margin)) / error * precision
        return float(special.stdtr(degrees, -distance))

    @cached_property
    def _top_group(self) -> list[int]:
        """The leader, and the rivals whose means are within two standard errors of the leader's."""
        group = [self.leader]
        for rival in self.rivals:
            mean, error, _ = self._contrast(self.leader, rival)
            if mean <= GROUP_ERRORS * error:
                group.append(rival)
        return group

    def _shrinkage(self, candidate: int) -> float:
        """Return the amount by which a candidate's mean log score is shrunk.

        It is 0 for a candidate outside `_top_group`.
        """
        group = self._top_group
        if candidate not in group:
            return 0.0
        means = np.array([self._mean(each) for each in group])
        sampling = [
            self._model.variances[self._position[each]] / self.processes(each) for each in group
        ]
        return shrinkage(means, np.array(sampling), group.index(candidate))
