"""Offers: a model configuration on a device at a price, with throughput, cost and a ranking.

Models that predict tokens are counted in tokens, others in examples. A generation is counted in
generated tokens; its cost includes reading the prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from analysis.atlas.estimate import StepTimeEstimate
from analysis.atlas.points import get_text
from paradnn.families import Model

#: Keys of a point that may differ between offers for the same work.
_OFFER_KEYS = ("batch_size", "precision", "devices", "parallel", "compile")
_SECONDS_PER_HOUR = 3600.0
_MILLION = 1e6


class PositiveInterval(NamedTuple):
    """A positive value with the ends of its 95% interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    value: float
    low: float
    high: float

    def times(self, factor: float) -> PositiveInterval:
        """Return the interval multiplied by a positive factor."""
        return PositiveInterval(*(factor * end for end in self))

    def inverse(self) -> PositiveInterval:
        """Return the interval of the reciprocal 1 / value."""
        return PositiveInterval(1 / self.value, 1 / self.high, 1 / self.low)

    def over(self, other: PositiveInterval) -> PositiveInterval:
        """Return the ratio of this value to another value, with its interval.

        The errors of the two values are assumed to be independent, so half widths of logarithms add
        as squares (Zou and Donner, Statistics in Medicine 27, 2008).

        Args:
            other: The denominator of the ratio.
        """
        ratio = self.value / other.value
        below = math.hypot(math.log(self.value / self.low), math.log(other.high / other.value))
        above = math.hypot(math.log(self.high / self.value), math.log(other.value / other.low))
        return PositiveInterval(ratio, ratio * math.exp(-below), ratio * math.exp(above))


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A model configuration on one device or on several equal devices, at a price.

    Attributes:
        row: The configuration, as a mapping from keys such as "batch_size" to values.
        model: The model of the configuration.
        label: Name of the model.
        estimate: Estimated time of a step.
        price: Price per hour of all devices together; None if unknown.
        amount: Size of the whole job, in units of `unit`; None if no job was given.
        verdict: Comparison with the best offer for the same work, such as "1.5x the cost".
    """

    row: Mapping[Any, Any]
    model: Model
    label: str
    estimate: StepTimeEstimate
    price: float | None = None
    amount: float | None = None
    verdict: str = ""

    @property
    def mode(self) -> str:
        return get_text(self.row, "mode", "train")

    @property
    def batch(self) -> int:
        return int(self.row["batch_size"])

    @property
    def is_generation(self) -> bool:
        return self.mode == "generate"

    @property
    def unit(self) -> str:
        """The unit of the throughput: "token" or "example"."""
        if self.model.predicts_tokens:
            return "token"
        return "example"

    @property
    def step_unit(self) -> str:
        """What the time `seconds` refers to: "step", or in a generation "token".

        In a generation, it is the time in which each example of the batch gets one token.
        """
        if self.is_generation:
            return "token"
        return "step"

    @property
    def units_per_example(self) -> int:
        """Number of tokens or examples (see `unit`) that a step processes per example."""
        if self.is_generation or self.unit == "example":
            return 1
        return int(vars(self.model)["sequence_length"])

    @property
    def work(self) -> tuple[Any, ...]:
        """Key of the work that this offer does. Only offers with equal keys are ranked together."""
        keys = {name: value for name, value in self.row.items() if name not in _OFFER_KEYS}
        return tuple(sorted((str(name), str(value)) for name, value in keys.items()))

    @property
    def machine(self) -> str:
        """Name of the device, with the number of devices if there are several."""
        estimate = self.estimate
        name = estimate.device
        if estimate.change:
            name = f"{name} with {estimate.change}"
        if estimate.devices == 1:
            return name
        return f"{estimate.devices} x {name} ({estimate.parallel})"

    @property
    def seconds(self) -> PositiveInterval | None:
        """Seconds of a step, or in a generation of one token per example; None if unknown."""
        estimate = self.estimate
        if estimate.seconds is None or estimate.low is None or estimate.high is None:
            return None
        return PositiveInterval(estimate.seconds, estimate.low, estimate.high)

    @property
    def rate(self) -> PositiveInterval | None:
        """Tokens or examples (see `unit`) per second; None if unknown.

        In a generation, the time to process the prompts is not included.
        """
        if self.seconds is None:
            return None
        return self.seconds.inverse().times(self.batch * self.units_per_example)

    @property
    def seconds_per_unit(self) -> PositiveInterval | None:
        """Seconds per token or example (see `unit`); None if unknown.

        In a generation, the time to process the prompts is included.
        """
        if self.seconds is None:
            return None
        per_step = self.seconds
        if self.is_generation and self.estimate.prompt and self.estimate.generated_tokens:
            prompt_share = self.estimate.prompt / self.estimate.generated_tokens
            per_step = per_step.times(1 + prompt_share / per_step.value)
        return per_step.times(1 / (self.batch * self.units_per_example))

    @property
    def cost_per_million(self) -> PositiveInterval | None:
        """Cost of a million tokens or examples (see `unit`); None if price or time is unknown."""
        if self.price is None or self.seconds_per_unit is None:
            return None
        return self.seconds_per_unit.times(_MILLION * self.price / _SECONDS_PER_HOUR)

    @property
    def job_seconds(self) -> PositiveInterval | None:
        """Seconds of the whole job; None if no job was given or the time is unknown."""
        if self.amount is None or self.seconds_per_unit is None:
            return None
        return self.seconds_per_unit.times(self.amount)

    @property
    def job_cost(self) -> PositiveInterval | None:
        """Cost of the whole job; None if no job was given, or the price or the time is unknown."""
        if self.price is None or self.job_seconds is None:
            return None
        return self.job_seconds.times(self.price / _SECONDS_PER_HOUR)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into the memory of each device; None if that is unknown."""
        estimate = self.estimate
        if estimate.memory_bytes is None or estimate.device_memory_bytes is None:
            return None
        return estimate.memory_bytes <= estimate.device_memory_bytes

    def score(self, *, by_cost: bool) -> PositiveInterval:
        """Return the value that ranks offers. Lower is better, and the value must be known.

        Args:
            by_cost: Whether to return the cost of a million tokens or examples, instead of the
                seconds per token or example.
        """
        score = self.cost_per_million if by_cost else self.seconds_per_unit
        assert score is not None
        return score


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Offers for the same work, ranked by cost or by throughput.

    An offer is a model configuration on a machine (one or more devices) at a price.

    Attributes:
        offers: All offers with their verdicts, in the order of the input.
        by_cost: Whether the offers are ranked by cost. This requires a price for every offer with a
            known time.
        best: The best offer; None if no time is known.
        runner_up: The best offer of another machine than that of `best`; None if only one machine
            has an offer.
        ratio: Cost (or time, if not `by_cost`) of the runner-up / that of the best offer; None
            without a runner-up.
        ahead: Number of settings at which the machine of `best` is better than that of `runner_up`.
            A setting is a batch size, precision and compile mode.
        settings: Number of settings for which both of these machines have offers.
    """

    offers: Sequence[Offer]
    by_cost: bool
    best: Offer | None = None
    runner_up: Offer | None = None
    ratio: PositiveInterval | None = None
    ahead: int = 0
    settings: int = 0

    @property
    def is_decided(self) -> bool:
        """Whether the best offer is better than the runner-up with 95% confidence."""
        return self.ratio is not None and self.ratio.low > 1

    @property
    def unpriced(self) -> list[str]:
        """Names of the devices without a price, if at least one other device has a price.

        Only devices with a known time are considered.
        """
        known = [offer for offer in self.offers if offer.seconds is not None]
        if all(offer.price is None for offer in known):
            return []
        names = (offer.estimate.device for offer in known if offer.price is None)
        return list(dict.fromkeys(names))

    def efficient(self) -> list[Offer]:
        """Return the offers that no other offer beats in both speed and cost.

        Only offers with a known step time and cost are considered.
        """
        known = [offer for offer in self.offers if offer.seconds and offer.cost_per_million]
        return [offer for offer in known if not any(_beats(rival, offer) for rival in known)]


def _beats(rival: Offer, offer: Offer) -> bool:
    assert rival.seconds is not None
    assert offer.seconds is not None
    rival_cost = rival.score(by_cost=True).value
    cost = offer.score(by_cost=True).value
    return rival_cost < cost and rival.seconds.value < offer.seconds.value


def rank_offers(offers: Iterable[Offer]) -> list[Ranking]:
    """Rank offers for each kind of work, such as training of one model.

    An offer is a model configuration on a device at a price.

    Args:
        offers: Offers for one or several kinds of work.

    Returns:
        A ranking per kind of work, in the order in which the kinds first occur in `offers`.
    """
    rivals: dict[tuple[Any, ...], list[Offer]] = {}
    for offer in offers:
        rivals.setdefault(offer.work, []).append(offer)
    return [_rank(group) for group in rivals.values()]


def _rank(offers: Sequence[Offer]) -> Ranking:
    known = [offer for offer in offers if offer.seconds is not None]
    by_cost = bool(known) and all(offer.price is not None for offer in known)
    if not known:
        judged = [replace(offer, verdict=_unknown_verdict(offer)) for offer in offers]
        return Ranking(offers=judged, by_cost=by_cost)

    def value(offer: Offer) -> float:
        return offer.score(by_cost=by_cost).value

    best = min(known, key=value)
    judged = [replace(offer, verdict=_verdict(offer, best, by_cost=by_cost)) for offer in offers]
    others = [offer for offer in known if offer.machine != best.machine]
    if not others:
        return Ranking(offers=judged, by_cost=by_cost, best=best)
    runner_up = min(others, key=value)
    ratio = runner_up.score(by_cost=by_cost).over(best.score(by_cost=by_cost))
    leads = []
    for offer in known:
        for other in known:
            is_pair = (offer.machine, other.machine) == (best.machine, runner_up.machine)
            if is_pair and _setting(offer) == _setting(other):
                leads.append(value(offer) < value(other))
    return Ranking(
        offers=judged,
        by_cost=by_cost,
        best=best,
        runner_up=runner_up,
        ratio=ratio,
        ahead=sum(leads),
        settings=len(leads),
    )


def _setting(offer: Offer) -> tuple[str, ...]:
    return tuple(get_text(offer.row, key, "") for key in ("batch_size", "precision", "compile"))


def _unknown_verdict(offer: Offer) -> str:
    if offer.fits is False:
        return "does not fit"
    return "not known"


def _verdict(offer: Offer, best: Offer, *, by_cost: bool) -> str:
    if offer.seconds is None:
        return _unknown_verdict(offer)
    if offer is best:
        return "cheapest" if by_cost else "fastest"
    ratio = offer.score(by_cost=by_cost).over(best.score(by_cost=by_cost))
    verdict = f"{ratio.value:.3g}x the cost"
    if not by_cost:
        verdict = f"{1 / ratio.value:.3g}x the rate"
    if ratio.low <= 1:
        return f"{verdict[: verdict.index(' ')]}, undecided"
    return verdict
