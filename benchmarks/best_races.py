"""Race simulated candidates with `paradnn best`: false winners, coverage and measuring time.

    python -m benchmarks.best_races [--draws 1000]      # the table of docs/validation/best.md

Each draw is one whole race of the command's own design in simulated time: 18 candidates with
log-normal step times and a margin of 5%. The race may take half of the time that measuring every
candidate with the standard protocol takes.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.common import save
from paradnn.best.objective import Objective, WinnerLimits
from paradnn.best.race import Candidate, Race
from paradnn.config.point import Point
from paradnn.families.fc import FullyConnected
from paradnn.session.design import DesignPoint, RecordedPoint
from paradnn.statistics.elimination import EliminationRule

CANDIDATES = 18
#: Seconds that a process needs to start, and to build, compile and warm up a model.
_START_SECONDS = 4.0
#: Processes, shortest measurement in seconds and fewest blocks of measure=standard.
_STANDARD = (5, 0.5, 10)
#: Shortest measurement in seconds and fewest blocks of measure=quick.
_QUICK = (0.5, 6)
_BLOCK_SECONDS = 0.05
#: Standard deviation of a measurement around the level of its process.
_BLOCK_NOISE = 0.02
#: Log speed of a process with an unfavorable memory layout.
_SLOW = math.log1p(-0.08)
_MARGIN = 0.05
_OBJECTIVE = Objective("throughput", ("examples_per_second",))
_POINT = Point(FullyConnected())

Random = np.random.Generator


def _spread(scale: float) -> Callable[[Random], np.ndarray]:
    return lambda random: random.normal(0.0, scale, CANDIDATES)


def _steps(step: float) -> Callable[[Random], np.ndarray]:
    return lambda random: -step * np.arange(CANDIDATES)


def _two_best(random: Random) -> np.ndarray:
    scores = np.minimum(random.normal(-0.5, 0.5, CANDIDATES), -0.1)
    scores[:2] = 0.0
    return scores


def _one_ahead(random: Random) -> np.ndarray:
    scores = np.full(CANDIDATES, -0.06)
    scores[0] = 0.0
    return scores


@dataclass(frozen=True)
class World:
    """Planted candidates and a machine.

    Attributes:
        scores: Draws the log scores of the candidates.
        scatter: Standard deviation between processes, the same for all candidates.
        tails: Degrees of freedom of the scatter; None if it is normal.
        disturbed: Share of processes that are up to 50% slower.
        slow: Share of processes that are 8% slower.
        drift: Change of the machine's log speed per hour.
        state: Standard deviation of the machine's state, whose lag-one correlation is 0.9.
        noisy: Share of candidates whose processes scatter six times as much.
    """

    scores: Callable[[Random], np.ndarray]
    scatter: float = 0.05
    tails: float | None = None
    disturbed: float = 0.0
    slow: float = 0.0
    drift: float = 0.0
    state: float = 0.0
    noisy: float = 0.0


WORLDS = {
    "spread by a factor of 1.6": World(_spread(0.5)),
    "spread by 20%": World(_spread(0.2)),
    "two equal best": World(_two_best),
    "all equal": World(lambda random: np.zeros(CANDIDATES)),
    "each 3% behind the next": World(_steps(0.03)),
    "each 6% behind the next": World(_steps(0.06)),
    "one 6% ahead of 17 equal ones": World(_one_ahead),
    "heavy tails (t with 3 degrees)": World(_spread(0.2), tails=3.0),
    "1 of 20 processes disturbed": World(_spread(0.2), disturbed=0.05),
    "3 of 10 processes 8% slower": World(_spread(0.2), scatter=0.03, slow=0.3),
    "machine slows by 60% per hour": World(_spread(0.2), drift=-0.6),
    "state of the machine changes times by 10%": World(_spread(0.2), state=0.1),
    "scatter 2%": World(_spread(0.2), scatter=0.02),
    "scatter 10%": World(_spread(0.2), scatter=0.1),
    "scatter 10%, each 6% behind": World(_steps(0.06), scatter=0.1),
    "scatter 2% for half of the candidates, 12% for the others": World(
        _spread(0.2), scatter=0.02, noisy=0.5
    ),
}


@dataclass(frozen=True)
class Outcome:
    """End of one race.

    Attributes:
        is_decided: Whether the race named a winner.
        is_false: Whether another candidate is better than the leader by at least the margin.
        covers_lead: Whether the interval of the lead over the closest rival covers the truth.
        covers_score: Whether the interval of the leader's score covers the truth, apart from what
            the machine did to all candidates.
        processes: Processes that were measured.
        time_share: Time as a share of the standard protocol's.
    """

    is_decided: bool
    is_false: bool
    covers_lead: bool
    covers_score: bool
    processes: int
    time_share: float


def _seconds(step_seconds: float, least_seconds: float, blocks: int) -> float:
    """Return the duration of one process in seconds."""
    return _START_SECONDS + max(least_seconds, blocks * max(step_seconds, _BLOCK_SECONDS))


class _Machine:
    """Measures visits of a race in simulated time."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._state = world.state * random.standard_normal()
        self.scores = random.permutation(world.scores(random))
        # A candidate that is fast per example may have any step time.
        self.step_seconds = np.exp(random.normal(math.log(0.03), 1.0, CANDIDATES))
        noisy = random.random(CANDIDATES) < world.noisy
        self._scatter = world.scatter * np.where(noisy, 6.0, 1.0)
        self.seconds = 0.0
        self.machine_logs: list[float] = []

    def clock(self) -> float:
        return self.seconds

    def measure(self, visit: DesignPoint) -> RecordedPoint:
        world = self._world
        index = int(visit.tags["candidate"])
        if world.tails is None:
            effect = self._random.standard_normal()
        else:
            spread = math.sqrt(world.tails / (world.tails - 2))
            effect = self._random.standard_t(world.tails) / spread
        log_score = self.scores[index] + self._scatter[index] * effect
        log_score += _BLOCK_NOISE * self._random.standard_normal()
        if self._random.random() < world.disturbed:
            log_score += math.log1p(-0.5 * self._random.random())
        if self._random.random() < world.slow:
            log_score += _SLOW
        log_score -= world.slow * _SLOW  # the scores are means
        innovation = math.sqrt(1 - 0.9**2) * world.state * self._random.standard_normal()
        self._state = 0.9 * self._state + innovation
        log_score += self._state + world.drift * self.seconds / 3600
        self.seconds += _seconds(self.step_seconds[index], *_QUICK)
        metrics = {"examples_per_second": 1000.0 * math.exp(log_score)}
        return RecordedPoint("id", "name", "fc", "ok", None, metrics, visit.tags)


def planted_race(world: World, random: Random) -> Outcome:
    """Run one race."""
    machine = _Machine(world, random)
    processes, least, blocks = _STANDARD
    standard = processes * sum(_seconds(step, least, blocks) for step in machine.step_seconds)
    race = Race(
        str(random.integers(2**32)),
        [Candidate(str(i), replace(_POINT, batch_size=i + 1)) for i in range(CANDIDATES)],
        _OBJECTIVE,
        limits=WinnerLimits(),
        rule=EliminationRule(margin=_MARGIN),
        seconds=standard / 2,
        clock=machine.clock,
    )
    rows: list[RecordedPoint] = []
    while visits := race.batch(rows):
        rows = [machine.measure(visit) for visit in visits]
    state = race.state()
    assert state is not None
    truth = machine.scores
    best_rival = min(state.rivals, key=lambda each: state.lead(each).value)
    lead = state.lead(best_rival)
    score = state.score(state.leader)
    true_lead = math.exp(truth[state.leader] - truth[best_rival])
    true_score = 1000.0 * math.exp(truth[state.leader])
    return Outcome(
        is_decided=race.is_decided(),
        is_false=bool(truth.max() - truth[state.leader] >= math.log1p(_MARGIN)),
        covers_lead=lead.low <= true_lead <= lead.high,
        covers_score=score.low <= true_score <= score.high,
        processes=race.processes,
        time_share=machine.seconds / standard,
    )


def tally(world: World, draws: int, seed: int = 0) -> list[Outcome]:
    """Run the given number of races, each with its own random numbers."""
    return [planted_race(world, child) for child in np.random.default_rng(seed).spawn(draws)]


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1000, help="races per world")
    draws = parser.parse_args().draws
    rows = []
    for name, world in WORLDS.items():
        outcomes = tally(world, draws)
        decided = [each for each in outcomes if each.is_decided]
        rows.append(
            {
                "world": name,
                "decided": f"{len(decided) / draws:.1%}",
                "false winners": f"{sum(each.is_false for each in decided) / draws:.1%}",
                "leader false": f"{sum(each.is_false for each in outcomes) / draws:.1%}",
                "lead covered": f"{sum(each.covers_lead for each in outcomes) / draws:.1%}",
                "score covered": f"{sum(each.covers_score for each in outcomes) / draws:.1%}",
                "processes": f"{sum(each.processes for each in outcomes) / draws:.1f}",
                "time": f"{sum(each.time_share for each in outcomes) / draws:.0%}",
            }
        )
        print("  ".join(f"{value!s:>14}" for value in rows[-1].values()), flush=True)
    save("best_races", rows)


if __name__ == "__main__":
    main()
