"""Summaries of raw values against the standard library."""

from __future__ import annotations

import statistics

import pytest

from paradnn.record.statistics import quantile, summarise


def test_quantile_agrees_with_the_standard_library() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    expected = statistics.quantiles(values, n=100, method="inclusive")
    assert [quantile(values, share / 100) for share in range(1, 100)] == pytest.approx(expected)


def test_fewer_than_six_values_are_summarised_without_an_interval() -> None:
    assert summarise([1.0, 2.0]).low is None
    assert summarise([1.0, 1.1, 0.9, 1.0, 1.1, 0.9]).low is not None
