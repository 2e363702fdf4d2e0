"""The result of `paradnn ask`: an answer with its limits, a table of offers, and a figure.

An offer is a model configuration on a device, with the estimated step time and a price.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.atlas.estimate import LAUNCH_SECONDS, StepTimeEstimate
from analysis.atlas.memory import format_gib
from analysis.atlas.offers import Offer, PositiveInterval, Ranking
from analysis.format import format_number, format_seconds, format_with_interval
from analysis.lazy import drawing, np, pd
from analysis.result import AnalysisAnswer, Paragraph, Result
from paradnn.core.words import counted

#: Smallest share of a step with which a part is named.
_MIN_SHARE = 0.01
#: Smallest factor by which launches lengthen a step with which they are mentioned.
_MIN_LAUNCH_FACTOR = 1.1
#: Largest number of offers that a line names.
_MAX_NAMED = 3
#: Columns whose values are lists or mappings.
_LISTS = ("sources", "extrapolated", "notes", "parts")
_BASIS = "errors of the predicted kernels, which devices do not share"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OfferResult(Result):
    """Result of `paradnn ask`: ranked offers, each a model configuration on a device at a price.

    Attributes:
        rankings: The offers by kind of work, such as training of one model.
    """

    rankings: Sequence[Ranking] = ()

    @property
    def table(self) -> pd.DataFrame:
        """The table that --csv writes, with lists joined to text."""
        joined = {name: self.numbers[name].map(_join_entries) for name in _LISTS}
        return self.numbers.assign(**joined)

    def as_json(self) -> dict[str, Any]:
        """Return the answer and the rows of the table as a JSON object.

        If there is a single row, its values are also top-level keys.
        """
        values = super().as_json()
        for row, numbers in zip(values["rows"], self.numbers.to_dict("records"), strict=True):
            row.update({name: numbers[name] for name in _LISTS})
        if len(values["rows"]) == 1:
            return {**values, **values["rows"][0]}
        return values


def offer_result(rankings: Sequence[Ranking], *, everything: bool = False) -> OfferResult:
    """Return the result of `paradnn ask` for ranked offers.

    An offer is a model configuration on a device at a price.

    Args:
        rankings: The rankings, one per kind of work; at least one.
        everything: Whether to list the parts of the time and the sources of every offer. A single
            offer always has them.
    """
    offers = [offer for ranking in rankings for offer in ranking.offers]
    is_any_known = any(ranking.best is not None for ranking in rankings)
    details = []
    if everything or len(offers) == 1:
        details = [_details(offer, names_offer=len(offers) > 1) for offer in offers]
    return OfferResult(
        sources=(),
        numbers=pd.DataFrame([_numbers(offer) for offer in offers]),
        answer=_answer(rankings),
        sentences=[*_remarks(rankings), *details],
        caveats=tuple(_limits(offers)),
        picture=(lambda: _draw(rankings)) if is_any_known else None,
        rows=[("", _cells(offers))],
        rankings=rankings,
    )


def _numbers(offer: Offer) -> dict[str, Any]:
    """Return the row of an offer in the table that CSV and JSON share, by column.

    Args:
        offer: A model configuration on a device at a price.
    """
    estimate = offer.estimate
    cost_of_step = None
    if offer.price is not None and estimate.seconds is not None:
        cost_of_step = offer.price / 3600 * estimate.seconds
    row: dict[str, Any] = {
        "model": offer.label,
        **vars(estimate),
        "batch_size": offer.batch,
        "mode": offer.mode,
        "unit": offer.unit,
        "price_per_hour": offer.price,
        "cost": cost_of_step,
        "fits": offer.fits,
        "verdict": offer.verdict,
    }
    row |= {name: list(row[name]) for name in ("sources", "extrapolated", "notes")}
    row["parts"] = dict(estimate.parts)
    quantities = {
        f"{offer.unit}s_per_second": offer.rate,
        "cost_per_million": offer.cost_per_million,
        "job_seconds": offer.job_seconds,
        "job_cost": offer.job_cost,
    }
    for name, interval in quantities.items():
        if interval is None:
            interval = PositiveInterval(np.nan, np.nan, np.nan)
        row[name] = interval.value
        row[f"{name}_low"] = interval.low
        row[f"{name}_high"] = interval.high
    return row


def _answer(rankings: Sequence[Ranking]) -> AnalysisAnswer:
    if len(rankings) == 1:
        return _answer_of(rankings[0])
    points = sum(len(ranking.offers) for ranking in rankings)
    best = [ranking.best for ranking in rankings if ranking.best is not None]
    if not best:
        return AnalysisAnswer(sentence="No time is known", points=points)
    if all(ranking.runner_up is None for ranking in rankings):
        values = ", ".join(
            f"{_format_value(offer, by_cost=False)} for {offer.label}" for offer in best
        )
        machines = " or ".join(dict.fromkeys(offer.machine for offer in best))
        return AnalysisAnswer(sentence=f"{machines} reaches {values}", points=points)
    quantity = "cheapest"
    if not all(ranking.by_cost for ranking in rankings if ranking.best is not None):
        quantity = "fastest"
    is_decided = all(ranking.is_decided for ranking in rankings if ranking.runner_up is not None)
    certainty = "is" if is_decided else "may be"
    winners = dict.fromkeys(offer.machine for offer in best)
    if len(winners) == 1:
        sentence = f"{best[0].machine} {certainty} the {quantity} for each of {len(best)} models"
    else:
        choices = ", ".join(f"{offer.machine} for {offer.label}" for offer in best)
        sentence = f"The {quantity} machine {certainty} {choices}"
    return AnalysisAnswer(sentence=sentence, points=points)


def _answer_of(ranking: Ranking) -> AnalysisAnswer:
    """State which machine is the best for one kind of work.

    Args:
        ranking: The ranked offers (model configurations on a device at a price) for this work.
    """
    best = ranking.best
    points = len(ranking.offers)
    if best is None:
        return AnalysisAnswer(sentence=_unknown_sentence(ranking.offers), points=points)
    if ranking.runner_up is None or ranking.ratio is None:
        return AnalysisAnswer(sentence=_single_machine_sentence(ranking, best), points=points)
    estimate = (ranking.ratio.value, ranking.ratio.low, ranking.ratio.high)
    ratio = format_with_interval(estimate, "{:.3g}x".format)
    quantity = "cheapest" if ranking.by_cost else "fastest"
    certainty = "is" if ranking.is_decided else "may be"
    value = _format_value(best, by_cost=ranking.by_cost)
    comparison = f"{ratio} the rate of {ranking.runner_up.machine}"
    if ranking.by_cost:
        comparison = f"{ranking.runner_up.machine} costs {ratio} as much"
    sentence = (
        f"{best.machine} {certainty} the {quantity} for {_work_name(best)}: {value} at batch "
        f"{best.batch:,}; {comparison}"
    )
    if ranking.settings > 1:
        sentence += f"; {best.machine} leads at {ranking.ahead} of {ranking.settings} settings"
    return AnalysisAnswer(
        sentence=sentence,
        verdict="faster" if ranking.is_decided else "undecided",
        ratio=ranking.ratio.value,
        low=ranking.ratio.low,
        high=ranking.ratio.high,
        ahead=ranking.ahead,
        points=ranking.settings or points,
        basis=_BASIS,
    )


def _work_name(offer: Offer) -> str:
    """Return the work of an offer as text, such as "training of llama3-8b"."""
    if offer.is_generation:
        return f"generation with {offer.label}"
    if offer.mode == "train":
        return f"training of {offer.label}"
    return f"{offer.mode} with {offer.label}"


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _format_value(offer: Offer, *, by_cost: bool) -> str:
    if by_cost and offer.cost_per_million is not None:
        return f"{offer.cost_per_million.value:.3g} per million {offer.unit}s"
    assert offer.rate is not None
    return f"{format_number(offer.rate.value, digits=3)} {offer.unit}s/s"


def _unknown_sentence(offers: Sequence[Offer]) -> str:
    """State that no time is known, with the reason if it is the same for all offers.

    Args:
        offers: Offers (model configurations on a device) without a known time.
    """
    offer = offers[0]
    machines = ", ".join(dict.fromkeys(offer.machine for offer in offers))
    reasons = list(dict.fromkeys(offer.estimate.why for offer in offers))
    sentence = f"The time of {_work_name(offer)} on {machines} is not known"
    if len(reasons) == 1:
        sentence += f": {reasons[0]}"
    return sentence


def _single_machine_sentence(ranking: Ranking, best: Offer) -> str:
    known = [offer for offer in ranking.offers if offer.seconds is not None]
    if len(known) == 1:
        assert best.seconds is not None
        time = format_with_interval(best.seconds, format_seconds)
        return (
            f"{_capitalized(_work_name(best))} at batch {best.batch:,} on {best.machine} takes "
            f"{time} per {best.step_unit}: {_format_value(best, by_cost=False)}"
        )
    quantity = "cheapest" if ranking.by_cost else "fastest"
    value = _format_value(best, by_cost=ranking.by_cost)
    return (
        f"{_capitalized(_work_name(best))} on {best.machine} is {quantity} at batch "
        f"{best.batch:,}: {value}"
    )


def _limits(offers: Sequence[Offer]) -> Iterator[str]:
    """Yield the limits of an answer: why times are unknown, and notes on known times.

    Args:
        offers: All offers (model configurations on a device) of the answer.
    """
    known = [offer for offer in offers if offer.seconds is not None]
    too_large = [offer for offer in offers if offer.fits is False]
    others = [offer for offer in offers if offer.seconds is None and offer.fits is not False]
    if too_large and len(offers) > 1:
        offer = too_large[0]
        yield (
            f"too large for the memory: {len(too_large)} of {counted(len(offers), 'offer')}; "
            f"{_short_name(offer)}: {offer.estimate.why}"
        )
    if known or too_large or len({offer.estimate.why for offer in offers}) > 1:
        for why, group in _by_text(others, lambda estimate: [estimate.why]):
            yield f"time unknown on {group}: {why}"
    for note, group in _by_text(known, lambda estimate: estimate.notes):
        yield f"note, {group}: {note}"


def _remarks(rankings: Sequence[Ranking]) -> Iterator[str]:
    """Yield further remarks on an answer, which compares model configurations on devices (offers).

    They concern changes of a device, missing prices, offers that no other offer beats, the job,
    launches of operations, and extrapolated times.

    Args:
        rankings: The ranked offers, one ranking per kind of work.
    """
    known = [offer for ranking in rankings for offer in ranking.offers if offer.seconds is not None]
    for offer in known:
        if offer.estimate.change_speedup is not None:
            yield _change_line(offer)
    for ranking in rankings:
        if ranking.unpriced:
            names = " and ".join(ranking.unpriced)
            yield f"ranked by time, since there is no --price for {names}"
        efficient = ranking.efficient()
        if ranking.by_cost and ranking.runner_up is not None:
            names = " or ".join(map(_short_name, efficient[:_MAX_NAMED]))
            if len(efficient) > _MAX_NAMED:
                names += f" or {len(efficient) - _MAX_NAMED} more"
            yield f"no other offer is both faster and cheaper than {names}"
        if ranking.best is not None and ranking.best.job_seconds is not None:
            yield _job_line(ranking.best)
    launches = _launch_line(known)
    if launches:
        yield launches
    # The shares of a part differ between batch sizes; one line for the first is enough.
    stated = set()
    for note, group in _by_text(known, lambda estimate: estimate.extrapolated):
        kind = re.sub(r"[\d.,]+", "", note)
        if (kind, group) not in stated:
            stated.add((kind, group))
            yield f"extrapolated, {group}: {note}"


def _change_line(offer: Offer) -> str:
    """State the speedup of a step by a change of the device, with its interval.

    Args:
        offer: A model configuration on a changed device, with a known speedup.
    """
    estimate = offer.estimate
    assert estimate.change_speedup is not None
    assert estimate.change_speedup_low is not None
    assert estimate.change_speedup_high is not None
    speedup = format_with_interval(
        (estimate.change_speedup, estimate.change_speedup_low, estimate.change_speedup_high),
        "{:.3g}x".format,
    )
    return (
        f"{estimate.change} makes {offer.label} at batch {offer.batch:,} on {estimate.device} "
        f"{speedup} as fast"
    )


def _job_line(offer: Offer) -> str:
    """State how long the whole job takes with an offer, and its cost if the price is known.

    Args:
        offer: A model configuration on a device, with a known time and job size.
    """
    assert offer.amount is not None
    assert offer.job_seconds is not None
    time = format_with_interval(offer.job_seconds, format_duration)
    line = f"{offer.amount:,.0f} {offer.unit}s take {time} on {_short_name(offer)}"
    if offer.job_cost is not None:
        line += f" and cost {format_with_interval(offer.job_cost, _format_three)}"
    return line


def _short_name(offer: Offer) -> str:
    return f"{offer.machine} at batch {offer.batch:,}"


def _by_text(
    offers: Sequence[Offer], texts: Callable[[StepTimeEstimate], Iterable[str]]
) -> Iterator[tuple[str, str]]:
    """Yield each distinct text about the estimates of some offers, with the machines it concerns.

    Args:
        offers: Model configurations, each with the estimated time of a step on a machine.
        texts: Function that returns the texts for the estimate of one offer, such as its notes.

    Yields:
        The text, and the names of the machines, separated by commas.
    """
    names: dict[str, list[str]] = {}
    for offer in offers:
        for text in texts(offer.estimate):
            names.setdefault(text, []).append(offer.machine)
    for text, machines in names.items():
        yield text, ", ".join(dict.fromkeys(machines))


def _launch_line(offers: Sequence[Offer]) -> str:
    """State how much longer steps take if the framework launches operations one by one.

    Args:
        offers: Offers (model configurations on a device) with known times.

    Returns:
        A line that counts the offers with noticeably longer steps, by more than 10%. It gives the
        step with the largest factor as an example. The line is empty if there is no such offer.
    """
    slowed = [offer for offer in offers if _launch_factor(offer.estimate) > _MIN_LAUNCH_FACTOR]
    if not slowed:
        return ""
    offer = max(slowed, key=lambda offer: _launch_factor(offer.estimate))
    estimate = offer.estimate
    assert estimate.eager_seconds is not None
    return (
        f"times are for a captured graph; longer with compile=eager: {len(slowed)} of "
        f"{counted(len(offers), 'offer')}, such as {_short_name(offer)} with "
        f"{format_seconds(estimate.eager_seconds)} for {estimate.operations:,.0f} launches of about "
        f"{LAUNCH_SECONDS * 1e6:.0f} us"
    )


def _launch_factor(estimate: StepTimeEstimate) -> float:
    if not estimate.eager_seconds or not estimate.seconds:
        return 1.0
    return estimate.eager_seconds / estimate.seconds


def _details(offer: Offer, *, names_offer: bool) -> Paragraph:
    """Return a paragraph of details of an offer, one line each.

    The lines state the prompt of a generation, the share of each part in the time of the step, and
    the sources of the timings.

    Args:
        offer: A model configuration on a device, with its estimated time.
        names_offer: Whether the paragraph starts with the point and the machine of the offer, which
            is needed if the output has several offers.
    """
    estimate = offer.estimate
    lines = list(_detail_lines(offer))
    if names_offer:
        return Paragraph(f"{estimate.point} on {offer.machine}:", tuple(lines))
    return Paragraph("", tuple(lines))


def _detail_lines(offer: Offer) -> Iterator[str]:
    estimate = offer.estimate
    if estimate.prompt is not None:
        yield (
            f"prompt of {estimate.prompt_tokens:,} tokens, read in "
            f"{format_seconds(estimate.prompt)}; {estimate.generated_tokens:,} generated tokens"
        )
    shown = {name: share for name, share in estimate.parts.items() if share >= _MIN_SHARE}
    if len(estimate.parts) > 1:
        parts = sorted(shown.items(), key=lambda part: -part[1])
        yield "parts of the time: " + ", ".join(f"{name} {share:.0%}" for name, share in parts)
    for source in estimate.sources:
        yield f"from {source}"


def _cells(offers: Sequence[Offer]) -> pd.DataFrame:
    """Return the table that a terminal shows, a row per offer, without empty columns.

    Args:
        offers: The offers (model configurations on a device), in the order of the rows.
    """
    rows = [_cell_row(offer, is_single=len(offers) == 1) for offer in offers]
    cells = pd.DataFrame(rows).fillna("")
    return cells.loc[:, (cells != "").any()].replace("", "-")


def _cell_row(offer: Offer, *, is_single: bool) -> dict[str, str]:
    """Return one row of the terminal table, as a mapping from column names to texts.

    The columns are the same for all offers. A text is empty if the offer has no such value.

    Args:
        offer: A model configuration on a device, with its estimated time.
        is_single: Whether the table has only this offer.
    """
    estimate = offer.estimate
    row = {"device": estimate.device, "devices": "", "model": "", "mode": "", "precision": ""}
    row |= {"change": estimate.change, "compile": "", "batch": f"{offer.batch:,}"}
    if estimate.devices > 1:
        row["devices"] = f"{estimate.devices} {estimate.parallel}"
    if not is_single:
        row["model"] = offer.label
        row["mode"] = offer.mode
        row["precision"] = estimate.precision
        row["compile"] = str(offer.row.get("compile", ""))
    row[f"time/{offer.step_unit}"] = _format(offer.seconds, format_seconds)
    row["95% interval"] = ""
    if offer.seconds is not None:
        row["95% interval"] = _format_range(offer.seconds, _seconds_format(offer.seconds))
    row[f"{offer.unit}s/s"] = _format(offer.rate, _format_three)
    row["cost/1M"] = _format(offer.cost_per_million, "{:.3g}".format)
    row["job"] = _format(offer.job_seconds, format_duration)
    row["job cost"] = _format(offer.job_cost, _format_three)
    row["verdict"] = "" if is_single else offer.verdict
    row["memory"] = _format_memory(estimate)
    return row


def _format(interval: PositiveInterval | None, format_value: Callable[[float], str]) -> str:
    if interval is None:
        return ""
    return format_value(interval.value)


def _format_three(value: float) -> str:
    return format_number(value, digits=3)


def _seconds_format(interval: PositiveInterval) -> Callable[[float], str]:
    """Return a function that formats both ends of an interval of seconds in the same unit.

    The unit is milliseconds if `format_seconds` writes the lower end in them, else seconds.

    Args:
        interval: The interval in seconds.
    """
    if format_seconds(interval.low).endswith("ms"):
        return lambda value: format_number(1e3 * value, "ms", digits=3)
    return format_seconds


def _format_range(interval: PositiveInterval, format_value: Callable[[float], str]) -> str:
    """Return an interval as text, with one unit if both ends have it, such as "1.2 to 1.5 ms".

    Args:
        interval: The interval, in the unit that `format_value` expects.
        format_value: Function that formats one end as a number, optionally followed by a unit.
    """
    low = format_value(interval.low)
    high = format_value(interval.high)
    number, _, unit = low.partition(" ")
    if unit and high.endswith(f" {unit}"):
        return f"{number} to {high}"
    return f"{low} to {high}"


def _format_memory(estimate: StepTimeEstimate) -> str:
    if estimate.memory_bytes is None:
        return ""
    needed = format_gib(estimate.memory_bytes)
    if estimate.device_memory_bytes is None:
        return f"{needed} GiB"
    return f"{needed}/{format_gib(estimate.device_memory_bytes)} GiB"


def format_duration(seconds: float) -> str:
    """Return the duration of a job as text, in the largest unit with a value of at least 2.

    Args:
        seconds: The duration in seconds.
    """
    for name, size in (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{format_number(seconds / size, digits=3)} {name}"
    return format_seconds(seconds)


def _draw(rankings: Sequence[Ranking]) -> drawing.Figure:
    """Draw the offers of each kind of work in a panel, with the batch sizes as points.

    An offer is a model configuration on a device at a price.

    The vertical axis shows cost or throughput. The horizontal axis shows the time of a step, or for
    a generation the tokens per second of each user.

    Args:
        rankings: The ranked offers, one ranking per kind of work.
    """
    known = [
        [offer for offer in ranking.offers if offer.seconds is not None] for ranking in rankings
    ]
    shown = [(ranking, offers) for ranking, offers in zip(rankings, known, strict=True) if offers]
    drawn, panels = drawing.panels(len(shown), 6.2, 4.4, across=2)
    names = list(dict.fromkeys(_line_name(offer) for _, offers in shown for offer in offers))
    for axes, (ranking, offers) in zip(panels, shown, strict=True):
        _draw_panel(axes, ranking, offers, names)
    drawing.legend(drawn, [drawing.handle(name, **drawing.look(name, names)) for name in names], "")
    return drawn


def _line_name(offer: Offer) -> str:
    return f"{offer.machine} {offer.estimate.precision}"


def _draw_panel(
    axes: drawing.Axes, ranking: Ranking, offers: Sequence[Offer], names: Sequence[str]
) -> None:
    """Draw a line per machine and precision, through one point per batch size.

    Args:
        axes: Axes of the panel.
        ranking: The ranking, which determines whether the panel shows cost or throughput.
        offers: The offers of this ranking whose times are known.
        names: Names of the lines in all panels, which determine the colors.
    """
    is_generation = offers[0].is_generation
    lines: dict[str, list[Offer]] = {}
    for offer in offers:
        lines.setdefault(_line_name(offer), []).append(offer)
    for name, line in lines.items():
        line.sort(key=lambda offer: offer.batch)
        x = [_speed(offer) for offer in line]
        y = [_benefit(offer, by_cost=ranking.by_cost) for offer in line]
        style = drawing.look(name, names)
        drawing.marks(
            axes,
            [point.value for point in x],
            [point.value for point in y],
            x_ends=([point.low for point in x], [point.high for point in x]),
            y_ends=([point.low for point in y], [point.high for point in y]),
            **{**style, "linestyle": "-", "linewidth": 1.4, "elinewidth": 0.7, "capsize": 0},
        )
        for offer, across, up in zip(line, x, y, strict=True):
            axes.annotate(
                f"{offer.batch:,}",
                (across.value, up.value),
                (5, 4),
                textcoords="offset points",
                fontsize="x-small",
                color=style["color"],
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    unit = offers[0].unit
    speed = "tokens per second for each user" if is_generation else "time per step (ms)"
    benefit = f"cost of a million {unit}s" if ranking.by_cost else f"{unit}s per second"
    drawing.finish(
        axes,
        f"{_capitalized(_work_name(offers[0]))}, by batch size",
        speed,
        benefit,
        logs={"x": drawing.plain, "y": _format_three},
    )


def _speed(offer: Offer) -> PositiveInterval:
    """Return the value of an offer on the horizontal axis, with its interval.

    It is the milliseconds per step, or for a generation the tokens per second of each user.

    Args:
        offer: A model configuration on a device, with a known time.
    """
    assert offer.seconds is not None
    if offer.is_generation:
        return offer.seconds.inverse()
    return offer.seconds.times(1e3)


def _benefit(offer: Offer, *, by_cost: bool) -> PositiveInterval:
    """Return the value of an offer on the vertical axis, with its interval.

    Args:
        offer: A model configuration on a device, whose cost or rate must be known.
        by_cost: Whether to return the cost of a million units instead of the units per second.
    """
    interval = offer.cost_per_million if by_cost else offer.rate
    assert interval is not None
    return interval


def _join_entries(value: Mapping[str, float] | Sequence[str]) -> str:
    """Return the entries of a list or mapping as one text, separated by semicolons."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {share:.4g}" for name, share in value.items())
    return "; ".join(value)
