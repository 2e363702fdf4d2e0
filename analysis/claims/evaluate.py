"""The numbers behind a check, an effect with its 95% interval or what is missing to find one, and a claim's answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.analyses.layers import divide_sessions, share_of
from analysis.analyses.sensitivity import encode
from analysis.claims.kinds import Answer, Bound, Check
from analysis.claims.sides import Data, paired_operations, paired_points, points, side, versions
from analysis.columns import join_columns
from analysis.lazy import np, pd
from analysis.statistics.contrast import Contrast
from analysis.statistics.dependence import crossed_quantile, crossed_share, levels_of
from analysis.statistics.regression import Regression, regress
from analysis.statistics.sessions import ALLOWANCE, arrange
from analysis.store.conditions import Condition, Conditions, choose, in_words
from paradnn.errors import NotEnoughData, ParadnnError
from paradnn.forecast.estimate import Estimate

#: Model columns that are no hyperparameters of size.
_NAMES = ("model.name",)
#: What may set runs apart without being a hyperparameter: its effect is taken out of a weight.
_SETTINGS = ("device", "environment_id", "precision", "compile", "mode")
_SETTING_PREFIXES = ("optimizer.", "platform.", "framework.", "data.", "software.")
#: What is said where the sides' sessions cannot be told apart.
_ALLOWED = f" (a session may shift a side by {ALLOWANCE - 1:.0%})"
_SMALLEST = math.nextafter(0, 1)


@dataclass(frozen=True)
class Finding:
    """An answer to a check: `quantity` says what `value` is, `missing` why there is none or no answer.

    An interval that straddles the `bound` is not enough data, with `points` above 0. `together` is the answer with an
    interval so wide that those of all checks hold at once.
    """

    check: Check
    answer: Answer
    quantity: str = ""
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    needed: str = ""
    points: int = 0
    missing: str = ""
    bound: Bound = field(default_factory=Bound)
    together: Answer = Answer.NOT_ENOUGH


def evaluate(check: Check, data: Data) -> Finding:
    """Find a check's numbers; where there are none, the finding says why."""
    try:
        return _EVALUATORS[check.kind](check, data)
    except ParadnnError as problem:
        return Finding(check, Answer.NOT_ENOUGH, missing=str(problem))


def _finding(
    check: Check, quantity: str, estimates: Sequence[Estimate], bound: Bound, count: int, needed: str = ""
) -> Finding:
    """The answer of one estimate, or of several that must all hold: the one that says least for the claim."""
    answers = [bound.answer(estimate.low, estimate.high) for estimate in estimates]
    answer = next((one for one in (Answer.REFUTED, Answer.NOT_ENOUGH) if one in answers), Answer.SUPPORTED)
    worst = estimates[answers.index(answer)]
    missing = ""
    if answer is Answer.NOT_ENOUGH:
        unknown = not np.isfinite([worst.low, worst.high]).all()
        missing = (
            f"undecided: {count} points are too few for an interval with two ends"
            if unknown
            else "undecided: the interval includes the bound; measure more points"
        )
    return Finding(check, answer, quantity, *worst, needed or str(bound), count, missing, bound)


def _trend(check: Check, data: Data) -> Finding:
    rows = _rows(check, data, [check.of])
    found = _weights(check, rows, [check.of], data.level)
    weight = _weight(found, check.of)
    bound = Bound(low=_SMALLEST) if check.direction == "rises" else Bound(high=-_SMALLEST)
    return _finding(
        check,
        f"{check.scale} weight",
        [weight],
        bound,
        found.rows,
        "above 0" if check.direction == "rises" else "below 0",
    )


def _ranking(check: Check, data: Data) -> Finding:
    rows = _rows(check, data, [check.larger, *check.than])
    signs = np.sign(_weights(check, rows, [check.larger, *check.than], data.level).weights["weight"])
    estimates, count = [], 0
    for other in check.than:
        # w1 z1 + w2 z2 = (w1 + w2) / 2 (z1 + z2) + (w1 - w2) / 2 (z1 - z2), with signs such that both weights are
        # positive: the weight of the last column is half the difference of their sizes.
        design, response = _design(check, rows, [check.larger, *check.than])
        scores = (design - design.mean()) / design.std()
        one, two = (scores[name] * signs[name] for name in (check.larger, other))
        rest = scores.drop(columns=[check.larger, other])
        both = pd.concat([(one - two).rename("difference"), (one + two).rename("sum"), rest], axis=1)
        found = regress(both, response, level=data.level, levels=levels_of(rows))
        estimates.append(_weight(found, "difference", 2 / float(both["difference"].std())))
        count = found.rows
    return _finding(check, f"difference of {check.scale} weights", estimates, Bound(low=_SMALLEST), count, "above 0")


def _compare(check: Check, data: Data) -> Finding:
    found = Contrast.of(paired_points(data, check.where, check.a, check.b, check.metric), "all")
    allowance, missing = _allowance(found), found.missing
    value, low, high = (found.share(check.margin * shift, data.level) for shift in (1.0, allowance, 1 / allowance))
    share = Estimate(value.value, low.low, high.high)
    name = "share of points" + (_ALLOWED if allowance > 1 else "")
    finding = _finding(check, name, [share], check.bound, len(found.ratios))
    hits, whole = int((found.ratios > check.margin).sum()), len(found.ratios) + missing
    return _bounded(finding, check.bound, missing, hits / whole, (hits + missing) / whole)


def _bounded(finding: Finding, bound: Bound, count: int, low: float, high: float) -> Finding:
    """A finding over pairs, where one side alone measured `count` points that both tried: over all of them the number
    lies between `low` and `high`, whatever these would have given. What does not hold at both ends is not decided."""
    if not count:
        return finding
    told = f"{finding.quantity}, between {low:.3g} and {high:.3g} with the {count} points that one side alone measured,"
    if finding.answer is Answer.NOT_ENOUGH or bound.answer(low, high) is finding.answer:
        return replace(finding, quantity=told)
    reason = "undecided: points that one side alone measured could turn it"
    return replace(finding, quantity=told, answer=Answer.NOT_ENOUGH, missing=reason)


def _ratio(check: Check, data: Data) -> Finding:
    name = "median speedup" if check.quantile == 0.5 else f"{check.middle()} of speedups"
    pairs: list[tuple[Conditions, Conditions]]
    if check.successive:
        names = versions(data, check.where, check.successive)
        each = [{check.successive: (Condition(check.successive, "=", (name,)),)} for name in names]
        pairs = [(new, old) for old, new in itertools.pairwise(each)]
    else:
        pairs = [(check.a, check.b)]
    estimates, counts, allowances = [], [], []
    for a, b in pairs:
        if not check.paired:
            samples = [points(data, {**check.where, **each}, check.metric) for each in (a, b)]
            # Their points need not be the same.
            allowances.append(1.0 if arrange(samples[0], samples[1]).design.comparable else ALLOWANCE)
            estimates.append(_shifted(_apart(samples, check.quantile, data.level, check.metric), allowances[-1]))
            counts.append(min(len(sample) for sample in samples))
            name = f"ratio of {check.middle()}s"
            continue
        found = Contrast.of(
            paired_operations(data, check.where, a, b, check.operations, check.metric)
            if check.operations
            else paired_points(data, check.where, a, b, check.metric),
            "all",
        )
        allowances.append(_allowance(found))
        estimates.append(_shifted(found.quantile(check.quantile, data.level), allowances[-1]))
        counts.append(len(found.ratios))
    name += _ALLOWED if max(allowances) > 1 else ""
    finding = _finding(check, name, estimates, check.bound, min(counts))
    if not check.paired or check.operations or len(pairs) > 1:
        return finding
    low = np.quantile(np.append(found.ratios, np.zeros(found.missing)), check.quantile, method="lower")
    high = np.quantile(np.append(found.ratios, np.full(found.missing, np.inf)), check.quantile, method="higher")
    return _bounded(finding, check.bound, found.missing, float(low), float(high))


def _allowance(found: Contrast) -> float:
    """What a session may have done to the sides as a whole, as a factor; 1 where their sessions can be told apart."""
    return 1.0 if found.comparable else ALLOWANCE


def _shifted(found: Estimate, allowance: float) -> Estimate:
    return Estimate(found.value, found.low / allowance, found.high * allowance)


def _apart(samples: list[pd.DataFrame], quantile: float, level: float, metric: str) -> Estimate:
    """A's quantile over B's. Each has an interval at 97.5% for a level of 95%, so that both hold (Bonferroni)."""
    one, two = (crossed_quantile(sample[metric], levels_of(sample), quantile, (1 + level) / 2) for sample in samples)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Estimate(
            *(
                float(np.divide(top, bottom))
                for top, bottom in ((one.value, two.value), (one.low, two.high), (one.high, two.low))
            )
        )


def _threshold(check: Check, data: Data) -> Finding:
    rows = points(data, check.where, check.metric)
    found = crossed_quantile(rows[check.metric], levels_of(rows), check.quantile, data.level)
    return _finding(check, check.middle(), [found], check.bound, len(rows))


def _share(check: Check, data: Data) -> Finding:
    runs = side(data, check.where)
    profiled = data.operations[data.operations["run_id"].isin(runs["run_id"])]
    if profiled.empty:
        raise NotEnoughData(f"none of these {len(runs)} runs was profiled; measure with measure.profile=true")
    needed = [name for name in check.operations if name not in profiled]
    if needed:
        raise NotEnoughData(f"the operation tables do not say {', '.join(needed)}")
    meant = [condition for group in check.operations.values() for condition in group]
    parts = choose(profiled, meant, "operations").groupby("run_id")["share"].sum()
    shares = parts.reindex(profiled["run_id"].unique(), fill_value=0.0)
    identity = runs.set_index("run_id")["point_id"].reindex(shares.index)
    shares = shares.groupby(identity.to_numpy()).median()
    levels = levels_of(runs.drop_duplicates("point_id").set_index("point_id").reindex(shares.index))
    name = "median share" if check.quantile == 0.5 else f"{check.middle()} of shares"
    found = crossed_quantile(shares, levels, check.quantile, data.level)
    return _finding(check, name, [found], check.bound, len(shares))


def _outcome(check: Check, data: Data) -> Finding:
    sides = [side(data, {**check.where, **each}) for each in (check.a, check.b)]
    keys, _ = join_columns(*sides)
    outcomes = (check.a_outcome, check.b_outcome)
    ended = [rows[rows["outcome"].isin(wanted)] for rows, wanted in zip(sides, outcomes, strict=True)]
    if ended[1].empty:
        raise NotEnoughData(f"no point ended as {'|'.join(check.b_outcome)} with {in_words(check.b)}")
    asked, there, wanted = (set(_keyed(rows, keys)) for rows in (ended[1], sides[0], ended[0]))
    both = asked & there
    if not both:
        raise NotEnoughData(f"none of the {len(asked)} points that did was tried with {in_words(check.a)}")
    tried = sides[0].assign(_key=_keyed(sides[0], keys)).drop_duplicates("_key")
    tried = tried[tried["_key"].isin(both)]
    share = crossed_share(tried["_key"].isin(wanted), levels_of(tried), data.level)
    return _finding(check, "share of points", [share], check.bound, len(both))


def _scaling(check: Check, data: Data) -> Finding:
    from analysis.analyses.scaling import fit_scaling

    rows = side(data, check.where, check.metric)
    families = fit_scaling(rows, check.metric, check.by, data.pool, data.level).families
    estimates = [Estimate(*family.fraction) for family in families]
    return _finding(check, "non-parallel fraction", estimates, check.bound, sum(family.points for family in families))


def _layers(check: Check, data: Data) -> Finding:
    found = divide_sessions(side(data, check.where))
    share, sample = share_of(found, check.layers, level=data.level)
    count = len(found.points if sample == "points" else found.sessions)
    return _finding(check, f"share of wall clock, over {sample or 'too few sessions'}", [share], check.bound, count)


_EVALUATORS: dict[str, Callable[[Check, Data], Finding]] = {
    "trend": _trend,
    "ranking": _ranking,
    "compare": _compare,
    "ratio": _ratio,
    "threshold": _threshold,
    "share": _share,
    "outcome": _outcome,
    "scaling": _scaling,
    "layers": _layers,
}


def _keyed(rows: pd.DataFrame, keys: list[str]) -> pd.Series[Any]:
    """Each row's point, as text."""
    texts = rows[keys].astype("string").fillna("").itertuples(index=False, name=None)
    return pd.Series(list(texts), index=rows.index, dtype="object")


def _rows(check: Check, data: Data, columns: Sequence[str]) -> pd.DataFrame:
    """The rows a regression is over, its response in the column `response`."""
    wanted = [*columns, *(check.given or ())]
    if check.a:
        rows = paired_points(data, check.where, check.a, check.b, check.metric, wanted)
        rows = rows.assign(response=rows["speedup"])
    else:
        rows = points(data, check.where, check.metric)
        rows = rows.assign(response=rows[check.metric])
    for name in wanted:
        if name not in rows or rows[name].notna().sum() == 0:
            raise NotEnoughData(f"no run says {name}")
    return rows[rows[wanted].notna().all(axis=1)]


def _weights(check: Check, rows: pd.DataFrame, columns: Sequence[str], level: float) -> Regression:
    design, response = _design(check, rows, columns)
    words = [name for name in columns if name not in design]
    if words:
        raise NotEnoughData(f"{words[0]} is a word, not a number")
    found = regress(design, response, level=level, levels=levels_of(rows))
    for name in columns:
        if name not in found.weights.index:
            reason = f"goes with {', '.join(found.collinear[name])}" if name in found.collinear else "does not vary"
            raise NotEnoughData(f"{name} {reason} in these {found.rows} points")
    return found


def _weight(found: Regression, term: str, scale: float = 1.0) -> Estimate:
    value, low, high = (scale * found.weights[name].loc[term] for name in ("weight", "low", "high"))
    return Estimate(float(value), float(low), float(high))


def _design(check: Check, rows: pd.DataFrame, columns: Sequence[str]) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """(what the response is regressed on, the response), as ranks unless the check's scale is linear.

    Beside `columns` stand the hyperparameters that vary, or those the check gives, and whatever else sets the runs
    apart. Ranks make a weight the same for any monotone scale of either side (Iman and Conover, Technometrics 21,
    1979). A column that is no hyperparameter, such as parameters, depends on them all: only batch_size stands beside.
    """
    derived = any(name != "batch_size" and not name.startswith("model.") for name in columns)
    if check.given is not None:
        others = list(check.given)
    elif derived:
        others = ["batch_size"]
    else:
        others = [name for name in rows.columns if name == "batch_size" or str(name).startswith("model.")]
    settings = [name for name in rows.columns if name in _SETTINGS or str(name).startswith(_SETTING_PREFIXES)]
    names = [
        name
        for name in dict.fromkeys([*columns, *others, *settings])
        if name in rows
        and name not in _NAMES
        and rows[name].notna().all()
        and (name in columns or rows[name].nunique() > 1)
    ]
    design = encode(rows, names)[0]
    response = rows["response"].astype("float64")
    if check.scale == "rank":
        design, response = design.rank(), response.rank()
    return design.reset_index(drop=True), response.to_numpy(dtype="float64")
