"""Apply the stopping rule of `paradnn compare` to simulated pairs: false verdicts and power.

    python -m benchmarks.compare_verdicts [--draws 2000]
    python -m benchmarks.compare_verdicts --gate [--draws 2000]

The first command prints the tables of docs/validation/comparisons.md, the second the table of
`paradnn gate`. Each draw is one whole comparison in simulated time, with the order of sides, the
looks, the stopping rule and the limit of rounds of the command. A visit takes five seconds; machine
and process determine the logarithm of its speed. CV is the coefficient of variation of one visit of
one side.
"""

import argparse
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.common import save
from benchmarks.steadiness import ar1
from paradnn.compare.gate import Gate, Limit
from paradnn.statistics.paired_rounds import Rule, SpeedEstimate, estimate, orders
from paradnn.statistics.verdict import Verdict

VISIT_SECONDS = 5.0
#: Effects that neighboring visits of a comparison share: machine(visits, cv, random).
Machine = Callable[[int, float, np.random.Generator], np.ndarray]


def _state(rho: float) -> Machine:
    """The machine's state, common to both sides, with lag-one correlation rho between rounds."""
    return lambda visits, cv, random: cv * np.array(ar1(visits, math.sqrt(rho), random))


#: Effects of a machine in addition to the noise of single visits: effect(visits, random).
EFFECTS: dict[str, Callable[[int, np.random.Generator], np.ndarray | float]] = {
    "independent": lambda visits, random: 0.0,
    # A session that is about 10% faster or slower than others.
    "session effect of 10%": lambda visits, random: 0.1 * random.standard_normal(),
    "drift of 4% an hour": lambda visits, random: -0.04 * np.arange(visits) * VISIT_SECONDS / 3600,
    # Three of ten processes have an unfavorable memory layout, which costs 8%.
    "bimodal, 8%": lambda visits, random: -0.08 * (random.random(visits) < 0.3),
    # One process of twenty is disturbed and up to 50% slower.
    "disturbed visits": lambda visits, random: (
        -0.5 * random.random(visits) * (random.random(visits) < 0.05)
    ),
    # The second visit of a round is 3% slower.
    "second place 3% slower": lambda visits, random: -0.03 * (np.arange(visits) % 2),
}


def _beside(effect: Callable[[int, np.random.Generator], np.ndarray | float]) -> Machine:
    return lambda visits, cv, random: cv * random.standard_normal(visits) + effect(visits, random)


#: Machines by name. `own rho` is an effect of the sides, not of the machine (`compare_planted`).
MACHINES: dict[str, Machine] = {name: _beside(effect) for name, effect in EFFECTS.items()}
MACHINES |= {f"state {rho}": _state(rho) for rho in (0.3, 0.5, 0.7)}
_independent = MACHINES["independent"]
#: Lag-one correlation between rounds of the noise of each side.
OWN = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Outcome:
    """End of one comparison."""

    verdict: Verdict
    rounds: int
    is_covered: bool
    found: SpeedEstimate


def _logs(
    visits: np.ndarray, random: np.random.Generator, sides: list[np.ndarray]
) -> Iterator[float]:
    """Return the log speeds of each round for equal sides."""
    for number, (first, _) in enumerate(orders(random.integers(2**32))):
        if sides:
            yield float(sides[0][number] - sides[1][number])
        else:
            pair = visits[2 * number : 2 * number + 2]
            yield float(pair[first] - pair[1 - first])


def compare_planted(
    truth: float,
    cv: float,
    rule: Rule,
    random: np.random.Generator,
    machine: Machine = _independent,
    own: float = 0.0,
) -> Outcome:
    """Run one comparison in which the first side is `truth` times as fast as the second.

    With `own` each side's noise is a separate AR(1) series over the rounds.
    """
    visits = machine(2 * rule.most, cv, random)
    if own:
        sides = [cv * np.array(ar1(rule.most, own, random)) for _ in range(2)]
    else:
        sides = []
    logs: list[float] = []
    for log in _logs(visits, random, sides):
        logs.append(math.log(truth) + log)
        if not rule.looks(len(logs)):
            continue
        found = estimate(logs)
        enough = rule.is_enough(found)
        if not enough and len(logs) == rule.most:
            found = estimate(logs, last=True)
        if enough or len(logs) == rule.most:
            break
    return Outcome(
        found.verdict(rule.margin),
        len(logs),
        abs(found.mean - math.log(truth)) <= found.half,
        found,
    )


def tally(
    draws: int,
    truth: float,
    cv: float,
    rule: Rule,
    machine: Machine = _independent,
    own: float = 0.0,
    seed: int = 0,
) -> list[Outcome]:
    """Run the given number of comparisons, each with its own random numbers."""
    children = np.random.default_rng(seed).spawn(draws)
    return [compare_planted(truth, cv, rule, child, machine, own) for child in children]


def _cells(outcomes: list[Outcome]) -> dict[str, object]:
    """Return the cells of a table: shares of the verdicts, coverage and duration."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    draws = len(outcomes)
    cells: dict[str, object] = {
        verdict.name.lower(): f"{counts[verdict] / draws:.1%}" for verdict in Verdict
    }
    cells["interval holds"] = f"{sum(outcome.is_covered for outcome in outcomes) / draws:.1%}"
    return cells | {"rounds": f"{statistics.median(outcome.rounds for outcome in outcomes):.0f}"}


def gate_planted(
    slower: float,
    truth: float,
    cv: float,
    misses: float,
    random: np.random.Generator,
    machine: Machine,
    most: int,
) -> tuple[str, int]:
    """Return the result of a gate with threshold `slower` on a head slower by `truth`, and its
    rounds.
    """
    rule = Limit(most=most, misses=misses, slower=slower)
    logs: list[float] = []
    for log in _logs(machine(2 * most, cv, random), random, []):
        logs.append(log - math.log1p(truth))
        if rule.looks(len(logs)):
            said = rule.judge(estimate(logs, misses))
            if said is Gate.UNDECIDED and len(logs) == most:
                said = rule.judge(estimate(logs, misses, last=True))
            if said is not Gate.UNDECIDED or len(logs) == most:
                break
    return said.name, len(logs)


def _gates(draws: int, most: int) -> list[dict[str, object]]:
    """Return shares of gate results, per machine, threshold and truth."""
    rows = []
    thresholds = ((0.05, 0.05), (0.02, 0.05), (0.02, 0.01))
    for (name, machine), (slower, misses) in itertools.product(MACHINES.items(), thresholds):
        for truth, cv in itertools.product((0.0, 0.02, 0.05, 0.1), (0.01, 0.03)):
            children = np.random.default_rng(7).spawn(draws)
            found = [
                gate_planted(slower, truth, cv, misses, child, machine, most) for child in children
            ]
            shares = Counter(word for word, _ in found)
            row = {
                "machine": name,
                "slower": slower,
                "false alarms": misses,
                "truth": truth,
                "cv": cv,
            }
            row |= {gate.name.lower(): f"{shares[gate.name] / draws:.1%}" for gate in Gate}
            rows.append(row | {"rounds": statistics.median(rounds for _, rounds in found)})
            print("  ".join(f"{value!s:>14}" for value in rows[-1].values()), flush=True)
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=2000, help="comparisons a cell")
    parser.add_argument("--most", type=int, default=Rule.most, help="rounds at most")
    parser.add_argument(
        "--gate", action="store_true", help="gates in place of comparisons, of 160 rounds at most"
    )
    arguments = parser.parse_args()
    if arguments.gate:
        save("gate_verdicts", _gates(arguments.draws, 160))
        return
    rule = Rule(most=arguments.most)
    settings: list[tuple[str, float, float, Machine, float]] = []
    for cv in (0.003, 0.01, 0.03):
        settings += [(name, 1.0, cv, machine, 0.0) for name, machine in MACHINES.items()]
        settings += [(f"own {own}", 1.0, cv, _independent, own) for own in OWN]
    power = itertools.product((1.01, 1.02, 1.05, 1.3), (0.01, 0.03))
    settings += [("independent", truth, cv, _independent, 0.0) for truth, cv in power]
    rows = []
    for name, truth, cv, machine, own in settings:
        planted = {"machine": name, "truth": truth, "cv": cv}
        rows.append(planted | _cells(tally(arguments.draws, truth, cv, rule, machine, own)))
        print("  ".join(f"{value!s:>14}" for value in rows[-1].values()), flush=True)
    save("compare_verdicts", rows)


if __name__ == "__main__":
    main()
