"""Successive elimination of candidates: fit, prior, stopping, and planted races."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from benchmarks.best_races import WORLDS, Outcome, tally
from paradnn.statistics.elimination import EliminationRule, Observation, RaceState
from tests.conftest import depth

RULE = EliminationRule(margin=0.05, risk=0.025)


def observe(*rounds: dict[int, float]) -> list[Observation]:
    """Return the observations of rounds; each round maps candidates to scores."""
    return [
        Observation(candidate, number, math.log(score))
        for number, scores in enumerate(rounds, start=1)
        for candidate, score in scores.items()
    ]


def state_of(*rounds: dict[int, float]) -> RaceState:
    observations = observe(*rounds)
    return RaceState(observations, {entry.candidate for entry in observations}, RULE)


def test_the_default_margin_is_five_percent() -> None:
    assert EliminationRule() == RULE


def test_one_process_per_candidate_gets_the_interval_of_the_prior() -> None:
    state = state_of({0: 150.0, 1: 100.0})

    lead = state.lead(1)

    # Both candidates have a prior scatter of 5% with 4 degrees of freedom.
    half_width = stats.t(4).ppf(0.975) * 0.05 * math.sqrt(2)

    assert state.leader == 0
    assert lead.value == pytest.approx(1.5)
    assert lead.low == pytest.approx(1.5 * math.exp(-half_width))
    assert lead.high == pytest.approx(1.5 * math.exp(half_width))


def test_leads_equal_those_of_least_squares_with_round_effects() -> None:
    random = np.random.default_rng(3)
    rounds = [{0: 8.0, 1: 5.0, 2: 3.0, 3: 9.0}, {0: 7.0, 3: 8.0}, {0: 9.0, 3: 8.5, 1: 5.5}]
    rounds = [
        {candidate: score * math.exp(random.normal(0, 0.1)) for candidate, score in scores.items()}
        for scores in rounds
    ]
    observations = observe(*rounds)
    state = RaceState(observations, {0, 1, 2}, RULE)  # candidate 3 is excluded but informs

    columns = np.array(
        [
            [entry.candidate == candidate for candidate in (0, 1, 2, 3)]
            + [entry.round == number for number in (2, 3)]
            for entry in observations
        ],
        dtype=float,
    )
    fit = sm.OLS([entry.log_score for entry in observations], columns).fit()

    assert state.leader == 0

    for rival in (1, 2):
        expected = math.exp(fit.params[0] - fit.params[rival])
        assert state.lead(rival).value == pytest.approx(expected)


def test_a_decision_needs_two_processes_of_winner_and_rival() -> None:
    first = {0: 1000.0, 1: 100.0, 2: 10.0}

    after_one_round = state_of(first)
    after_two_rounds = state_of(first, {0: 1000.0, 1: 100.0})

    assert after_one_round.risk < RULE.risk
    assert not after_one_round.is_decided()
    assert after_one_round.contenders() == [0, 1]
    assert after_two_rounds.is_decided()


def test_a_close_rival_stays_and_a_distant_one_is_eliminated() -> None:
    state = state_of({0: 1000.0, 1: 990.0, 2: 10.0})

    assert state.contenders() == [0, 1]
    assert state.rivals == [1, 2]


def test_rivals_are_eliminated_up_to_half_of_the_permitted_risk() -> None:
    """Each of ten rivals has a risk of 0.4%. Three of them add up to 1.2% of the permitted 2.5%."""
    distance = stats.t(4).isf(0.004) * 0.05 * math.sqrt(2) - math.log1p(RULE.margin)
    rival = 100.0 * math.exp(-distance)

    state = state_of({0: 100.0} | dict.fromkeys(range(1, 11), rival))

    assert state.risk == pytest.approx(0.04)
    assert len(state.contenders()) == 1 + 7


def test_a_lead_has_the_interval_of_a_two_way_analysis() -> None:
    """Compare with a two-way analysis of complete rounds, whose variances have two priors.

    The candidates are so far apart that none is shrunk.
    """
    random = np.random.default_rng(7)
    effects = np.array([4.0, 3.0, 2.0, 1.0, 0.0])
    logs = effects + random.normal(0, 1, (3, 1)) + random.normal(0, 0.1, (3, 5))

    lead = state_of(*(dict(enumerate(np.exp(row))) for row in logs)).lead(1)

    residuals = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    squares = (residuals**2).sum(axis=0)
    common = (4 * 0.05**2 + squares.sum()) / (4 + 8)
    candidate_variances = (4 * common + squares) / (4 + 8 / 5)
    error = math.sqrt((candidate_variances[0] + candidate_variances[1]) / 3)
    middle = logs[:, 0].mean() - logs[:, 1].mean()
    half_width = stats.t(4 + 4 + 2 * 8 / 5).ppf(0.975) * error

    assert np.log(lead) == pytest.approx([middle, middle - half_width, middle + half_width])


def test_the_interval_of_a_score_includes_the_scatter_of_its_values() -> None:
    """Both candidates become 6% faster per round, which is no difference between them."""
    logs = np.log(100.0) + 0.06 * np.arange(4.0)

    score = state_of(*({0: np.exp(value), 1: np.exp(value - 3.0)} for value in logs)).score(0)

    squares = ((logs - logs.mean()) ** 2).sum()
    half_width = stats.t(4 + 3).ppf(0.975) * math.sqrt((4 * 0.05**2 + squares) / (4 + 3) / 4)
    expected = [logs.mean(), logs.mean() - half_width, logs.mean() + half_width]

    assert np.log(score) == pytest.approx(expected)


def test_a_candidate_returns_if_the_leader_was_lucky() -> None:
    lucky = {0: 130.0, 1: 100.0, 2: 50.0}
    normal = {0: 96.0, 2: 50.0}

    after_first_round = state_of(lucky)
    after_three_rounds = state_of(lucky, normal, normal)

    assert after_first_round.leader == 0
    assert after_three_rounds.leader == 1 or 1 in after_three_rounds.contenders()


@pytest.mark.parametrize(
    ("margin", "is_decided"),
    [
        pytest.param(0.05, False, id="margin below the noise"),
        pytest.param(0.5, True, id="margin above the noise"),
    ],
)
def test_equal_candidates_are_decided_within_a_wide_margin(margin: float, is_decided: bool) -> None:
    observations = observe({0: 100.0, 1: 101.0}, {0: 101.0, 1: 100.0})

    state = RaceState(observations, {0, 1}, EliminationRule(margin=margin))

    assert state.is_decided() is is_decided
    assert state.may_be_as_good(1 - state.leader)


def test_more_rounds_are_forecast_for_closer_candidates() -> None:
    far = state_of({0: 120.0, 1: 100.0}, {0: 120.0, 1: 100.0})
    near = state_of({0: 101.0, 1: 100.0}, {0: 101.0, 1: 100.0})

    assert 1 <= far.rounds_needed() < near.rounds_needed() < 30


@pytest.mark.parametrize("ratio", [0.9, 0.97, 0.99, 1.0, 1.02])
def test_a_forecast_is_close_to_the_smallest_number_of_deciding_rounds(ratio: float) -> None:
    """Each candidate has one process, with a prior scatter of 5% and 4 degrees of freedom.

    The error falls with the square root of the number of processes.
    """
    state = state_of({0: 100.0, 1: 100.0 * ratio})
    distance = abs(math.log(ratio)) + math.log1p(RULE.margin)
    error = 0.05 * math.sqrt(2)
    factor = stats.t(4).isf(RULE.risk) * error / distance

    rounds = state.rounds_needed()

    least = factor**2 - 1

    assert least <= rounds <= math.ceil(1.25 * least) + 1


def test_the_score_of_a_single_process_has_the_scatter_of_the_prior() -> None:
    """The candidate is far from the others, so it is not shrunk."""
    score = state_of({0: 1000.0, 1: 100.0}).score(0)

    half_width = stats.t(4).ppf(0.975) * 0.05

    assert score.value == pytest.approx(1000.0)
    assert score.high / score.value == pytest.approx(math.exp(half_width))


def test_the_best_of_equal_candidates_is_shrunk_towards_their_mean() -> None:
    random = np.random.default_rng(5)
    covered = 0
    races = 200
    for _ in range(races):
        scores = 100.0 * np.exp(0.05 * random.standard_normal((3, 50)))
        state = state_of(*(dict(enumerate(row)) for row in scores))
        interval = state.score(state.leader)
        raw = math.exp(np.log(scores).mean(axis=0).max())
        assert interval.value < raw
        covered += interval.low <= 100.0 <= interval.high

    assert covered / races >= 0.93


def false_winners(outcomes: list[Outcome]) -> float:
    """Return the share of races that were decided for a false winner."""
    return sum(outcome.is_decided and outcome.is_false for outcome in outcomes) / len(outcomes)


#: Largest permitted share of false winners per world. In the last world, the scatter is twice that
#: of the prior.
MAX_FALSE = dict.fromkeys(WORLDS, 0.05) | {"scatter 10%, each 6% behind": 0.1}


@pytest.mark.slow
@depth(15, 400)
@pytest.mark.parametrize("name", WORLDS)
def test_planted_races_rarely_have_a_false_winner(name: str, draws: int) -> None:
    outcomes = tally(WORLDS[name], draws)

    chance = stats.binom(draws, MAX_FALSE[name]).ppf(0.999) / draws

    assert false_winners(outcomes) <= max(chance, MAX_FALSE[name])
    assert np.mean([outcome.time_share for outcome in outcomes]) <= 0.51

    coverage = np.mean([outcome.covers_lead for outcome in outcomes])
    assert coverage >= 0.85 - 3 * math.sqrt(0.85 * 0.15 / draws)


@depth(40, 400)
def test_clear_winners_are_found_in_a_third_of_the_standard_time(draws: int) -> None:
    outcomes = tally(WORLDS["spread by a factor of 1.6"], draws)

    assert np.mean([outcome.is_decided for outcome in outcomes]) >= 0.9
    assert np.mean([outcome.time_share for outcome in outcomes]) <= 0.34
