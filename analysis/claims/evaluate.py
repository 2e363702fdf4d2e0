"""The rows that a check speaks of; its numbers, an effect with its 95% interval, or what is missing
to find one; and the answer to a claim from those of its checks, as a table and in words.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from analysis.claims.kinds import Bound, Check, ClaimAnswer, StatedClaim
from analysis.columns import is_configuration_column, is_platform_column, join_columns
from analysis.lazy import np, pd, stats
from analysis.operation_speedup import TYPE as _OPERATION
from analysis.operation_speedup import identity_columns
from analysis.pairing import pair, require_like_sessions
from analysis.regression_terms import encode
from analysis.store.conditions import Condition, Conditions, filter_rows, format_conditions
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from analysis.versions import sort_versions
from paradnn.core.errors import NotEnoughData, ParadnnError
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast
from paradnn.statistics.dependence import crossed_quantile, crossed_share, shared_levels
from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.regression import BETWEEN, Regression, regress
from paradnn.statistics.sessions import ALLOWANCE, MeasurementTimes, arrange, measurement_times


@dataclass
class Data:
    """A frame, how to read its operation tables, and whether heterogeneous runs are pooled.

    `read_operations` takes runs and returns the rows of their operation tables with `run_id`;
    without it the shares in the frame's op_share.* columns stand for them. `used` gathers the ids
    of the runs that answers rest on, `pooled` what differed among runs that were pooled.
    """

    frame: pd.DataFrame
    read_operations: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    pool: bool = False
    used: set[str] = field(default_factory=set)
    pooled: set[str] = field(default_factory=set)

    @cached_property
    def operations(self) -> pd.DataFrame:
        """A row for each operation type of each profiled run: run_id, type, share and whatever else
        was recorded.
        """
        profiled = [name for name in self.frame.columns if str(name).startswith("op_share.")]
        if profiled:
            runs = self.frame[self.frame[profiled].notna().any(axis=1)]
        else:
            runs = self.frame.iloc[:0]
        if self.read_operations is not None and len(runs):
            table = self.read_operations(runs)
            if len(table):
                return table
        melted = runs.melt("run_id", profiled, _OPERATION, "share").dropna(subset="share")
        return melted.assign(
            type=melted.pop(_OPERATION).astype("str").str.removeprefix("op_share.")
        )


def require(frame: pd.DataFrame, conditions: Conditions, what: str = "run") -> pd.DataFrame:
    """The rows that meet every condition, at least one; NotEnoughData names the first one that
    leaves none.
    """
    left = frame
    met = dict[str, tuple[Condition, ...]]()
    for name, group in conditions.items():
        if name not in frame:
            raise NotEnoughData(f"no {what} says {name}")
        left, met[name] = filter_rows(left, group, "condition"), group
        if left.empty:
            break
    if left.empty:
        raise NotEnoughData(f"no {what}s with {format_conditions(met)}" if met else f"no {what}s")
    return left


def side(data: Data, conditions: Conditions, metric: str | None = None) -> pd.DataFrame:
    """The runs that meet the conditions, homogeneous in environment and protocol unless pooled.

    With `metric` only ok runs that hold it. Raises NotEnoughData naming what there is none of,
    SchemaError for heterogeneous runs.
    """
    rows = require(data.frame, conditions)
    if metric is not None:
        ok = rows[is_ok(rows)]
        rows = ok[ok[metric].notna()] if metric in ok else ok.iloc[:0]
        if rows.empty:
            if len(ok):
                what = f"no {metric} was measured in these {len(ok)} runs"
            else:
                what = "none of these runs is ok"
            raise NotEnoughData(what)
    rows = require_homogeneous(rows, pool=data.pool)
    data.used.update(rows["run_id"])
    data.pooled |= {rows.attrs["pooled"]} if rows.attrs.get("pooled") else set()
    return rows


def paired_points(
    data: Data,
    where: Conditions,
    a: Conditions,
    b: Conditions,
    metric: str,
    extra: Sequence[str] = (),
) -> pd.DataFrame:
    """`pair` of the two sides, with numbers `extra` that identify no point, such as parameters.

    Runs that were tried and hold no metric make no pair, but say which points are missing on one
    side.
    """
    wanted_of = [{**where, **conditions} for conditions in (a, b)]
    sides = [side(data, conditions, metric) for conditions in wanted_of]
    tried = [require(data.frame, conditions) for conditions in wanted_of]
    both = [pd.concat([ok, rows[~is_ok(rows)]]) for ok, rows in zip(sides, tried, strict=True)]
    about = sides[1].select_dtypes("number")
    carried = [
        name
        for name in extra
        if name in about and not is_configuration_column(name) and not is_platform_column(name)
    ]
    found = pair(both[0], both[1], metric, carry=carried)
    if found.empty:
        raise NotEnoughData(
            f"no point was measured on both sides, of {len(sides[0])} and {len(sides[1])} runs"
        )
    return found


def paired_operations(
    data: Data, where: Conditions, a: Conditions, b: Conditions, operations: Conditions, metric: str
) -> pd.DataFrame:
    """`pair` of operation types within points; B's operations are those that meet the conditions."""
    sides = []
    for conditions in (a, b):
        runs = side(data, {**where, **conditions})
        rows = data.operations.merge(runs[identity_columns(runs)], on="run_id")
        if rows.empty:
            raise NotEnoughData(
                f"none of {len(runs)} runs was profiled; measure with measure.profile=true"
            )
        if metric not in rows or rows[metric].isna().all():
            raise NotEnoughData(f"no {metric} in the operation tables")
        sides.append(rows)
    sides[1] = require(sides[1], operations, "operation")
    one, two = (rows.rename(columns={"type": _OPERATION}) for rows in sides)
    keys, _ = join_columns(one, two)
    found = pair(one, two, metric, on=[*keys, _OPERATION])
    if found.empty:
        raise NotEnoughData("no operation was profiled on both sides")
    return found


#: Model columns that are no hyperparameters of size.
_NAMES = ("model.name",)
#: What may set runs apart without being a hyperparameter: its effect is taken out of a weight.
_SETTINGS = ("device", "environment_id", "precision", "compile", "mode")
_SETTING_PREFIXES = ("optimizer.", "platform.", "framework.", "data.", "software.")
_SMALLEST = math.nextafter(0, 1)
UNDECIDED = "undecided: the interval includes the bound; measure more points"


@dataclass(frozen=True)
class CheckFinding:
    """An answer to a check: `quantity` says what `value` is, `missing` why there is none or no
    answer.

    An interval that straddles the `bound` is not enough data, with `points` above 0.
    """

    check: Check
    answer: ClaimAnswer
    quantity: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    needed: str = ""
    points: int = 0
    missing: str = ""
    bound: Bound = field(default_factory=Bound)


def evaluate(check: Check, data: Data) -> CheckFinding:
    """Find a check's numbers; where there are none, the finding says why."""
    try:
        return _EVALUATORS[check.kind](check, data)
    except ParadnnError as problem:
        return CheckFinding(check, ClaimAnswer.NOT_ENOUGH, missing=str(problem))


def _finding(
    check: Check,
    quantity: str,
    estimates: Sequence[Estimate],
    count: int,
    bound: Bound | None = None,
    needed: str = "",
) -> CheckFinding:
    """The answer of one estimate, or of several that must all hold: the one that says least for the
    claim.
    """
    bound = bound or check.bound
    answers = [bound.answer(estimate.low, estimate.high) for estimate in estimates]
    answer = next(one for one in _ORDER if one in answers)
    worst = estimates[answers.index(answer)]
    missing = ""
    if answer is ClaimAnswer.NOT_ENOUGH:
        known = np.isfinite([worst.low, worst.high]).all()
        if known:
            missing = UNDECIDED
        else:
            missing = f"undecided: {count} points are too few for an interval with two ends"
    return CheckFinding(
        check, answer, quantity, *worst, needed or str(bound), count, missing, bound
    )


def _trend(check: Check, data: Data) -> CheckFinding:
    found = _weights(*_rows(check, data, [check.of]), [check.of])
    rises = check.direction == "rises"
    bound, needed = (
        (Bound(low=_SMALLEST), "above 0") if rises else (Bound(high=-_SMALLEST), "below 0")
    )
    return _finding(check, "rank weight", [_weight(found, check.of)], found.rows, bound, needed)


def _ranking(check: Check, data: Data) -> CheckFinding:
    columns = [check.larger, *check.than]
    rows, when = _rows(check, data, columns)
    signs = np.sign(_weights(rows, when, columns).weights["weight"])
    design = _design(rows, columns)
    estimates = []
    scores = (design - design.mean()) / design.std()
    for other in check.than:
        # w1 z1 + w2 z2 = (w1 + w2) / 2 (z1 + z2) + (w1 - w2) / 2 (z1 - z2), with signs such that
        # both weights are positive: the weight of the last column is half the difference of their
        # sizes.
        one, two = (scores[name] * signs[name] for name in (check.larger, other))
        rest = scores.drop(columns=[check.larger, other])
        both = pd.concat(
            [(one - two).rename("difference"), (one + two).rename("sum"), rest], axis=1
        )
        found = _fit(rows, when, both)
        estimates.append(_weight(found, "difference", 2 / float(both["difference"].std())))
    return _finding(
        check, "difference of rank weights", estimates, found.rows, Bound(low=_SMALLEST), "above 0"
    )


def _compare(check: Check, data: Data) -> CheckFinding:
    found = Contrast.of(paired_points(data, check.where, check.a, check.b, check.metric), "all")
    value, low, high = (
        found.share(check.margin * by) for by in (1.0, found.allowance, 1 / found.allowance)
    )
    share = Estimate(value.value, low.low, high.high)
    finding = _finding(
        check, f"share of points{_said(found.allowance)}", [share], len(found.ratios)
    )
    hits = int((found.ratios > check.margin).sum())
    whole = len(found.ratios) + found.missing
    return _bounded(finding, found.missing, hits / whole, (hits + found.missing) / whole)


def _bounded(finding: CheckFinding, count: int, low: float, high: float) -> CheckFinding:
    """A finding over pairs, where one side alone measured `count` points that both tried: over all
    of them the number lies between `low` and `high`, whatever these would have given. What does not
    hold at both ends is not decided.
    """
    if not count:
        return finding
    told = f"{finding.quantity}, between {low:.3g} and {high:.3g} with the {count} points that one side alone measured,"
    if (
        finding.answer is ClaimAnswer.NOT_ENOUGH
        or finding.bound.answer(low, high) is finding.answer
    ):
        return replace(finding, quantity=told)
    reason = "undecided: points that one side alone measured could turn it"
    return replace(finding, quantity=told, answer=ClaimAnswer.NOT_ENOUGH, missing=reason)


def _ratio(check: Check, data: Data) -> CheckFinding:
    pairs = [(check.a, check.b)]
    name = check.successive
    if name:
        rows = require(data.frame, check.where)
        if name in rows:
            names = sort_versions(set(rows[name].dropna().astype("str")))
        else:
            names = []
        if len(names) < 2:
            raise NotEnoughData(f"one {name} alone: {names[0]}" if names else f"no run says {name}")
        each = [{name: (Condition(name, "=", (version,)),)} for version in names]
        pairs = [(new, old) for old, new in itertools.pairwise(each)]
    if not check.paired:
        return _unpaired(check, data, pairs)
    contrasts = []
    for a, b in pairs:
        if check.operations:
            rows = paired_operations(data, check.where, a, b, check.operations, check.metric)
        else:
            rows = paired_points(data, check.where, a, b, check.metric)
        contrasts.append(Contrast.of(rows, "all"))
    estimates = [_shifted(one.quantile(check.quantile), one.allowance) for one in contrasts]
    if check.quantile == 0.5:
        what = "median speedup"
    else:
        what = f"{check.middle()} of speedups"
    what += _said(max(one.allowance for one in contrasts))
    finding = _finding(check, what, estimates, min(len(one.ratios) for one in contrasts))
    if check.operations or len(contrasts) > 1:
        return finding
    (found,) = contrasts
    low = np.quantile(
        np.append(found.ratios, np.zeros(found.missing)), check.quantile, method="lower"
    )
    high = np.quantile(
        np.append(found.ratios, np.full(found.missing, np.inf)), check.quantile, method="higher"
    )
    return _bounded(finding, found.missing, float(low), float(high))


def _unpaired(
    check: Check, data: Data, pairs: Sequence[tuple[Conditions, Conditions]]
) -> CheckFinding:
    """A's quantile over B's, whose points need not be the same. Each has an interval at 97.5%
    (Bonferroni).
    """
    estimates = []
    allowances = []
    counts = []
    for a, b in pairs:
        samples = [
            aggregate_replicates(side(data, {**check.where, **each}, check.metric))
            for each in (a, b)
        ]
        one, two = (
            crossed_quantile(
                rows[check.metric], shared_levels(rows), check.quantile, (1 + LEVEL) / 2
            )
            for rows in samples
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.divide([one.value, one.low, one.high], [two.value, two.high, two.low])
        allowances.append(1.0 if arrange(samples[0], samples[1]).design.comparable else ALLOWANCE)
        estimates.append(_shifted(Estimate(*map(float, ends)), allowances[-1]))
        counts.append(min(map(len, samples)))
    return _finding(
        check, f"ratio of {check.middle()}s{_said(max(allowances))}", estimates, min(counts)
    )


def _said(allowance: float) -> str:
    """What is said where the sides' sessions cannot be told apart."""
    if allowance > 1:
        return f" (a session may shift a side by {ALLOWANCE - 1:.0%})"
    return ""


def _shifted(found: Estimate, allowance: float) -> Estimate:
    return Estimate(found.value, found.low / allowance, found.high * allowance)


def _threshold(check: Check, data: Data) -> CheckFinding:
    rows = aggregate_replicates(side(data, check.where, check.metric))
    found = crossed_quantile(rows[check.metric], shared_levels(rows), check.quantile)
    return _finding(check, check.middle(), [found], len(rows))


def _share(check: Check, data: Data) -> CheckFinding:
    runs = side(data, check.where)
    profiled = data.operations[data.operations["run_id"].isin(runs["run_id"])]
    if profiled.empty:
        raise NotEnoughData(
            f"none of these {len(runs)} runs was profiled; measure with measure.profile=true"
        )
    needed = [name for name in check.operations if name not in profiled]
    if needed:
        raise NotEnoughData(f"the operation tables do not say {', '.join(needed)}")
    meant = [condition for group in check.operations.values() for condition in group]
    parts = filter_rows(profiled, meant, "operations").groupby("run_id")["share"].sum()
    shares = parts.reindex(profiled["run_id"].unique(), fill_value=0.0)
    shares = shares.groupby(
        runs.set_index("run_id")["point_id"].reindex(shares.index).to_numpy()
    ).median()
    levels = shared_levels(
        runs.drop_duplicates("point_id").set_index("point_id").reindex(shares.index)
    )
    if check.quantile == 0.5:
        name = "median share"
    else:
        name = f"{check.middle()} of shares"
    found = crossed_quantile(shares, levels, check.quantile)
    return _finding(check, name, [found], len(shares))


def _outcome(check: Check, data: Data) -> CheckFinding:
    sides = [side(data, {**check.where, **each}) for each in (check.a, check.b)]
    keys, _ = join_columns(*sides)
    outcomes = (check.a_outcome, check.b_outcome)
    ended = [
        rows[rows["outcome"].isin(wanted)] for rows, wanted in zip(sides, outcomes, strict=True)
    ]
    if ended[1].empty:
        raise NotEnoughData(
            f"no point ended as {'|'.join(check.b_outcome)} with {format_conditions(check.b)}"
        )
    asked, there, wanted = (set(_keyed(rows, keys)) for rows in (ended[1], sides[0], ended[0]))
    both = asked & there
    if not both:
        raise NotEnoughData(
            f"none of the {len(asked)} points that did was tried with {format_conditions(check.a)}"
        )
    tried = sides[0].assign(_key=_keyed(sides[0], keys)).drop_duplicates("_key")
    tried = tried[tried["_key"].isin(both)]
    share = crossed_share(tried["_key"].isin(wanted), shared_levels(tried))
    return _finding(check, "share of points", [share], len(both))


def _scaling(check: Check, data: Data) -> CheckFinding:
    from analysis.analyses.scaling import fit_scaling

    rows = side(data, check.where, check.metric)
    families = fit_scaling(rows, check.metric, check.by, data.pool).families
    estimates = [Estimate(*family.fraction) for family in families]
    return _finding(
        check, "non-parallel fraction", estimates, sum(family.points for family in families)
    )


_EVALUATORS: dict[str, Callable[[Check, Data], CheckFinding]] = {
    function.__name__[1:]: function
    for function in (_trend, _ranking, _compare, _ratio, _threshold, _share, _outcome, _scaling)
}


def _keyed(rows: pd.DataFrame, keys: list[str]) -> pd.Series[Any]:
    """Each row's point, as text."""
    texts = rows[keys].astype("string").fillna("").itertuples(index=False, name=None)
    return pd.Series(list(texts), index=rows.index, dtype="object")


def _rows(
    check: Check, data: Data, columns: Sequence[str]
) -> tuple[pd.DataFrame, MeasurementTimes | None]:
    """The rows a regression is over, its response in the column `response`, and when they were
    measured; sides that were measured together share that.
    """
    if check.a:
        rows = paired_points(data, check.where, check.a, check.b, check.metric, columns)
        require_like_sessions(rows, "all")
        rows = rows.assign(response=rows["speedup"])
    else:
        runs = side(data, check.where, check.metric)
        rows = aggregate_replicates(runs)
        rows = rows.assign(response=rows[check.metric])
    for name in columns:
        if name not in rows or rows[name].notna().sum() == 0:
            raise NotEnoughData(f"no run says {name}")
    rows = rows[rows[[*columns]].notna().all(axis=1)]
    return rows, None if check.a else measurement_times(runs, rows["point_id"])


def _weights(
    rows: pd.DataFrame, when: MeasurementTimes | None, columns: Sequence[str]
) -> Regression:
    design = _design(rows, columns)
    words = [name for name in columns if name not in design]
    if words:
        raise NotEnoughData(f"{words[0]} is a word, not a number")
    found = _fit(rows, when, design)
    for name in columns:
        if name not in found.weights.index:
            if name in found.collinear:
                reason = f"goes with {', '.join(found.collinear[name])}"
            else:
                reason = "does not vary"
            raise NotEnoughData(f"{name} {reason} in these {found.rows} points")
        if found.weights["between"][name] >= BETWEEN:
            raise NotEnoughData(
                f"other values of {name} were measured in other sessions, which may differ as much"
            )
    return found


def _fit(rows: pd.DataFrame, when: MeasurementTimes | None, design: pd.DataFrame) -> Regression:
    """A regression as of `sensitivity`, of ranks."""
    values = rows["response"].to_numpy(dtype="float64")
    return regress(
        design, values, stats.rankdata, levels=shared_levels(rows), by_value=True, when=when
    )


def _weight(found: Regression, term: str, scale: float = 1.0) -> Estimate:
    value, low, high = (scale * found.weights[name].loc[term] for name in ("weight", "low", "high"))
    return Estimate(float(value), float(low), float(high))


def _design(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """What the response is regressed on, as ranks.

    Beside `columns` stand the hyperparameters that vary, and whatever else sets the runs apart.
    Ranks make a weight the same for any monotone scale of either side (Iman and Conover,
    Technometrics 21, 1979). A column that is no hyperparameter, such as parameters, depends on them
    all: only batch_size stands beside.
    """
    names = [str(name) for name in rows]
    others = [name for name in names if name == "batch_size" or name.startswith("model.")]
    if not set(columns) <= set(others):
        others = ["batch_size"]
    settings = [name for name in names if name in _SETTINGS or name.startswith(_SETTING_PREFIXES)]
    kept = [
        name
        for name in dict.fromkeys([*columns, *others, *settings])
        if name in columns
        or (
            name in rows
            and name not in _NAMES
            and rows[name].notna().all()
            and rows[name].nunique() > 1
        )
    ]
    return encode(rows, kept)[0].reset_index(drop=True).rank()


#: The first of these that any measured check has is the claim's, or that of several estimates the
#: check's.
_ORDER = (ClaimAnswer.REFUTED, ClaimAnswer.NOT_ENOUGH, ClaimAnswer.SUPPORTED)


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with the findings of its checks.

    Refuted where any check is; supported where some check is and each one that has data is; else
    not enough data.
    """

    claim: StatedClaim
    findings: tuple[CheckFinding, ...]

    @property
    def answer(self) -> ClaimAnswer:
        """That of the checks that have data."""
        answers = {finding.answer for finding in self.findings if finding.points}
        return next((answer for answer in _ORDER if answer in answers), ClaimAnswer.NOT_ENOUGH)

    @property
    def title(self) -> str:
        """The claim with its id and its proof."""
        proof = f" ({self.claim.proof})" if self.claim.proof else ""
        return f"{self.claim.id}. {self.claim.says.rstrip('.')}{proof}"

    @property
    def extent(self) -> str:
        """What to add to the answer where some checks have no data; else empty."""
        total = len(self.findings)
        if 0 < self.measured < total:
            return f", as far as measured: {self.measured} of {total} checks"
        return ""

    @property
    def measured(self) -> int:
        """How many checks have data."""
        return sum(finding.points > 0 for finding in self.findings)


def judge(claims: Sequence[StatedClaim], data: Data) -> tuple[ClaimVerdict, ...]:
    """Answer every claim over one frame."""
    return tuple(
        ClaimVerdict(claim, tuple(evaluate(check, data) for check in claim.checks))
        for claim in claims
    )


def table(verdicts: Sequence[ClaimVerdict]) -> pd.DataFrame:
    """A row for each check, with its claim's answer, its effect and interval, and what is missing."""
    numbers = ("quantity", "value", "low", "high", "needed", "points", "missing")
    rows = [
        (
            verdict.claim.id,
            verdict.answer.value,
            str(one.check),
            one.answer.value,
            *map(vars(one).get, numbers),
        )
        for verdict in verdicts
        for one in verdict.findings
    ]
    return pd.DataFrame(rows, columns=["claim", "claim_answer", "check", "answer", *numbers])


def summary(verdicts: Sequence[ClaimVerdict]) -> str:
    """Count the answers in a sentence."""
    if not verdicts:
        return "No claim has data in these runs."
    counts = []
    for answer in ClaimAnswer:
        count = sum(verdict.answer is answer for verdict in verdicts)
        counts.append(f"{count} {answer}")
    return (
        f"{counted(len(verdicts), 'claim')}: {', '.join(counts)}. Intervals are 95% for each check "
        "by itself, over models and batch sizes as a sample of their kind; an interval that holds "
        "both sides of a claim leaves it undecided."
    )


def sentences(verdict: ClaimVerdict) -> list[str]:
    """What each check that has data found, and what the others lack."""
    lines = [_sentence(finding) for finding in verdict.findings if finding.points]
    missing = Counter(finding.missing for finding in verdict.findings if not finding.points)
    return lines + [
        f"{ClaimAnswer.NOT_ENOUGH}: {reason} ({counted(count, 'check')})"
        for reason, count in missing.items()
    ]


def _sentence(finding: CheckFinding) -> str:
    value, low, high = (
        f"{number:.3g}" if np.isfinite(number) else "unknown"
        for number in (finding.value, finding.low, finding.high)
    )
    if low == high == "unknown":
        interval = "(no interval)"
    else:
        interval = f"(95% interval {low} to {high})"
    reason = f"; {finding.missing}" if finding.missing else ""
    return (
        f"{finding.answer}: {finding.check}: {finding.quantity} {value} {interval} over {finding.points} points, "
        f"{finding.needed} is needed{reason}"
    )
