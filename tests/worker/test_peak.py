"""The search of the highest rate that holds, where the truth is planted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paradnn.workloads.serve.load import find_peak


def planted_search(peak: float, unlucky: Sequence[float] = (), most: int = 100) -> tuple[float, float, int, bool]:
    """What a search finds where everything up to `peak` holds; runs of full length at rates above `unlucky` fail."""
    probes: list[float] = []

    def probe(rate: float) -> bool:
        probes.append(rate)
        return rate <= peak

    found = find_peak(
        probe,
        lambda rate: (not any(rate > worse for worse in unlucky), rate),
        1_000.0,
        0.05,
        lambda _: len(probes) < most,
    )
    return found.rate or 0.0, found.high, len(probes), found.held


@pytest.mark.parametrize("peak", [5.0, 37.0, 499.0, 501.0, 990.0, 3_000.0])
def test_a_search_brackets_the_peak(peak: float) -> None:
    rate, failed, probes, held = planted_search(peak)
    assert rate <= peak < failed <= 1.05 * rate
    assert held
    assert probes <= 16


def test_a_search_goes_on_below_a_run_that_fails() -> None:
    rate, _, _, held = planted_search(800.0, unlucky=[600.0])
    assert held
    assert 0.8 * 600 < rate <= 600


def test_a_search_ends_where_nothing_holds_and_where_time_does() -> None:
    assert planted_search(0.0)[0] == 0.0
    rate, failed, probes, held = planted_search(800.0, most=2)
    assert (probes, held) == (2, True)
    assert rate <= 800 < failed
