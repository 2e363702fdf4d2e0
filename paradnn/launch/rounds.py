"""An adaptive sweep through a launcher: rounds of tasks, each chosen from what the rounds before left in the store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from paradnn.designs.adaptive import conclusion_of, open_design
from paradnn.session.course import Conclusion
from paradnn.sweep.tasks import Sweep

__all__ = ["Round", "Rounds"]

#: A round has this share of the points measured before it: few rounds wait for their slowest task, and yet each is
#: chosen from much.
_SHARE = 0.5


@dataclass(frozen=True)
class Round:
    """Points of a sweep, by index, that are measured at the same time; `excluded` says why these are not tried."""

    indices: Sequence[int]
    excluded: Sequence[str] = ()


class Rounds:
    """The rounds of an adaptive sweep; who launches them says of each when it has ended."""

    def __init__(self, sweep: Sweep, chunk: int, begin: float) -> None:
        self._design = open_design(sweep.points, sweep.settings, sweep.info, begin, anywhere=True)
        self._chunk = chunk
        self._environments: set[str] = set()

    @property
    def standing(self) -> str:
        """The expected error and how many conclusions are settled."""
        return self._design.standing

    def __iter__(self) -> Iterator[Round]:
        design, places = self._design, self._design.knowledge.candidates.places
        known = -1
        while len(design.knowledge.ended) > known:
            known = len(design.knowledge.ended)
            largest = max(self._chunk, int(_SHARE * known), 0 if known else len(places))
            chosen = design.next(largest, self._environments)
            if not chosen:
                break
            yield Round([places[index] for index in chosen])
            design.knowledge.look(self._environments)
        else:
            design.reason = "tasks that measured nothing"
        if excluded := design.excluded:
            yield Round([places[index] for index in excluded], [*excluded.values()])

    def end_round(self, environments: Collection[str]) -> None:
        """The tasks of a round have ended; in these environments they ran."""
        self._environments |= set(environments)

    def conclusion(self) -> Conclusion:
        """The whole design, of all drivers."""
        return conclusion_of(self._design)
