"""Summaries of raw values against the standard library."""

import numpy as np
import pytest
from scipy import stats

from paradnn.session.measured import Summarised, narrow_enough, summarise


def holds(found: Summarised, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def test_an_interval_ends_at_the_extremes_or_is_none_and_says_why() -> None:
    """A value that no block came near cannot be: of a drift, of two processes that lie apart."""
    drift = [1.0 + 0.05 * index for index in range(20)]
    assert summarise([drift]).low is None
    assert str(summarise([drift]).reason).startswith("20 blocks resemble their neighbours so much that they say less")
    assert str(summarise([[1.0] * 5]).reason).startswith("5 of the 6 blocks that it takes")
    apart = summarise([[1.0, 1.1] * 5, [2.0, 2.1] * 5])
    assert (apart.low, apart.high) == (None, None)
    assert str(apart.reason).startswith("2 processes lie 95% apart, which says too little of further ones")
    near = summarise([[1.0, 1.5] * 5, [1.01, 1.5] * 5])
    assert near.reason is None
    random = np.random.default_rng(0)
    for _ in range(300):
        blocks = np.exp(0.1 * random.standard_normal(24).cumsum())
        found = summarise([blocks.tolist()])
        assert found.low is None or blocks.min() <= found.low <= found.high <= blocks.max()


@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("goal", [0.02, 0.01])
def test_an_interval_that_decides_how_many_processes_there_are_holds_as_it_says(first: int, goal: float) -> None:
    """Processes 1% apart, thirty at most; 95% of 600 within three standard deviations and the method's own 1%."""
    random, held = np.random.default_rng(7), 0
    for _ in range(600):
        drawn = [[value] for value in np.exp(random.normal(0, 0.01, 30)).tolist()]
        count = next((n for n in range(first, 31) if narrow_enough(drawn[:n], goal)), 30)
        held += holds(summarise(drawn[:count], looked=True), 1.0)
    assert 0.91 < held / 600 < 0.99


def test_several_processes_have_the_interval_of_their_medians() -> None:
    """Against SciPy, of the logarithms; the blocks within a process are only its median's."""
    processes = [[9.0, 10.0, 11.0], [11.0, 12.0, 90.0], [10.0, 11.0, 12.0], [8.0, 9.0, 10.0]]
    logs = np.log([10.0, 12.0, 11.0, 9.0])
    expected = np.exp(stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs)))
    found = summarise(processes)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-4)
    assert found.value == pytest.approx(np.exp(logs.mean()))
    assert (found.minimum, found.maximum) == (8.0, 90.0)
    assert found.process_cv == pytest.approx(logs.std(ddof=1))


def test_the_interval_of_processes_covers_where_that_of_one_does_not() -> None:
    """Planted: 2% between processes, 1% within, three of ten blocks; the blocks of one know nothing of the others."""
    random = np.random.default_rng(0)
    several, single, between = 0, 0, []
    for _ in range(2000):
        middles = random.normal(0, 0.02, 3)
        blocks = np.exp(middles[:, None] + random.normal(0, 0.01, (3, 10))).tolist()
        found, one = summarise(blocks), summarise(blocks[:1])
        several += holds(found, 1.0)
        single += holds(one, 1.0)
        between.append(found.between_cv)
    assert 1870 <= several <= 1930  # 95% within three standard deviations
    assert single < 1000
    assert np.sqrt(np.mean(np.square(between))) == pytest.approx(0.02, rel=0.1)
