"""Claims over the whole of a space of which a part was measured: each check answered over completed spaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis.claims.evaluate import UNDECIDED, Data, Finding, evaluate
from analysis.claims.kinds import Answer, Check
from analysis.lazy import np, pd
from analysis.prediction import IMPUTATIONS, PREDICTABLE, Completed, combined, complete
from analysis.store.frame import IDENTITY
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import Estimate

#: Kinds of check on metrics that are predicted; of operations, outcomes and scaling nothing is.
_KINDS = ("trend", "ranking", "compare", "ratio", "threshold")
#: Those whose numbers are ratios and sizes above zero, which combine as logarithms.
_LOGARITHMS = ("ratio", "threshold")


@dataclass
class OverSpace:
    """Answers checks over a frame whose spaces are completed, `given` naming their points. What was completed is kept
    by metric: one fit for each device, environment and protocol. Those with too few points stay as they were measured.
    """

    frame: pd.DataFrame
    given: pd.DataFrame | None = None
    completed: dict[str, list[Completed]] = field(default_factory=dict)

    def evaluate(self, check: Check, data: Data) -> Finding:
        """The finding of a check over completed spaces; over the runs alone where its kind has none."""
        if check.kind not in _KINDS or check.operations or check.metric not in PREDICTABLE:
            return evaluate(check, data)
        if not self._parts(check.metric):
            return evaluate(check, data)
        found = []
        for number in range(IMPUTATIONS):
            drawn = dataclasses.replace(data, frame=self._drawn(check.metric, number), used=set())
            found.append(evaluate(check, drawn))
            runs = set(data.frame["run_id"]) & drawn.used
            data.used.update(runs)
        return _together(check, found)

    def _parts(self, metric: str) -> list[Completed]:
        if metric not in self.completed:
            keys = [name for name in ("device", *IDENTITY) if name in self.frame]
            self.completed[metric] = []
            for _, rows in self.frame.groupby(keys, sort=False, dropna=False):
                try:
                    part = complete(rows.reset_index(drop=True), metric, self.given, draws=IMPUTATIONS)
                except NotEnoughData:
                    continue
                self.completed[metric].append(part)
        return self.completed[metric]

    def _drawn(self, metric: str, number: int) -> pd.DataFrame:
        """The frame as one draw completes it, with the runs of groups that have no space."""
        parts = self._parts(metric)
        return pd.concat([*(part.drawn(number) for part in parts), self._others(metric)], ignore_index=True)

    def _others(self, metric: str) -> pd.DataFrame:
        keys = [name for name in ("family", "device", *IDENTITY) if name in self.frame]
        first = [space.runs[keys].iloc[:1] for part in self._parts(metric) for space in part.spaces]
        there = set(pd.concat(first).astype("object").itertuples(index=False, name=None))
        mine = self.frame[keys].astype("object").itertuples(index=False, name=None)
        return self.frame[[row not in there for row in mine]]


def _together(check: Check, found: Sequence[Finding]) -> Finding:
    """One finding from those over completed spaces."""
    first = found[0]
    known = [one for one in found if one.points]
    if len(known) < len(found):
        return next(one for one in found if not one.points)
    numbers = [Estimate(one.value, one.low, one.high) for one in known]
    if check.kind in _LOGARITHMS and all(one.value > 0 for one in numbers):
        with np.errstate(divide="ignore"):
            numbers = [Estimate(*np.log(np.maximum(one, 0.0))) for one in numbers]
        value, low, high = (float(np.exp(end)) for end in combined(numbers))
    else:
        value, low, high = combined(numbers)
    if check.kind == "compare":
        low, high = max(low, 0.0), min(high, 1.0)
    answer = first.bound.answer(low, high)
    # What points that one side alone measured could turn, they could turn here as well.
    turned = [one for one in known if one.answer is not one.bound.answer(one.low, one.high)]
    if len(turned) > len(known) / 2:
        return dataclasses.replace(turned[0], value=value, low=low, high=high, answer=Answer.NOT_ENOUGH)
    missing = UNDECIDED if answer is Answer.NOT_ENOUGH else ""
    return dataclasses.replace(first, value=value, low=low, high=high, answer=answer, missing=missing)
