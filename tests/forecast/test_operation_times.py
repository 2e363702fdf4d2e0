"""Operation times beside planted ones: a roofline with dispatch is found again, intervals hold what they say."""

import numpy as np
import pytest

from paradnn.families import model_of
from paradnn.families.operations import Operation, elementwise_operation
from paradnn.forecast.operation_times import OperationTimes

BANDWIDTH, CALL = 1e11, 2e-5


def test_chains_tell_a_call_from_an_operation_within_it() -> None:
    chains = [
        model_of({"name": "elementwise", "elements": elements, "operations": operations}).as_operation(1, "float32")
        for elements in (10, 1000, 100_000, 10_000_000)
        for operations in (1, 10, 100)
    ]
    seconds = np.array([CALL + 4e-6 * one.calls + one.bytes / BANDWIDTH for one in chains])
    found = OperationTimes.fit(chains, seconds)
    assert found.dispatch == pytest.approx(CALL, rel=0.3)
    assert found.step == pytest.approx(4e-6, rel=0.3)
    assert np.exp(found.predict([elementwise_operation(3e8, "float32")]).mean[0]) == pytest.approx(3e-3, rel=0.2)


def test_what_a_cache_holds_is_read_faster() -> None:
    """One token's attention: a cache of 50 MB is five times as fast, and every sequence takes a moment."""
    random = np.random.default_rng(0)
    sizes = [(int(2 ** random.uniform(0, 10)), int(2 ** random.uniform(5, 14))) for _ in range(150)]
    one = [Operation("decode", "", 4, n, 128, 2048.0 * b * n, 512.0 * b * n, batch=b) for b, n in sizes]
    moved = np.array([each.bytes for each in one])
    seconds = CALL / 10 + 3e-8 * np.array([b for b, _ in sizes]) + moved / np.where(moved < 5e7, 5e12, 1e12)
    fit = OperationTimes.fit(one[:110], seconds[:110])
    assert np.median(np.abs(fit.predict(one[110:]).mean - np.log(seconds[110:]))) < 0.05
    assert fit.line["cached"] > 0.8


def test_small_operations_that_scatter_more_are_no_less_certain_than_they_scatter() -> None:
    """Beside the noise of a run, 2%, which is more than large operations scatter at all."""
    random = np.random.default_rng(0)
    sizes = np.exp(random.uniform(np.log(1e3), np.log(1e9), 200))
    known = [elementwise_operation(size, "float32") for size in sizes]
    scatter = np.where(sizes < 1e6, 0.03, 0.001) * random.standard_normal(len(sizes))
    fit = OperationTimes.fit(known, (CALL + sizes / BANDWIDTH) * np.exp(scatter))
    least, most = fit.predict([elementwise_operation(size, "float32") for size in (1e3, 1e9)]).spread
    assert least == pytest.approx(np.hypot(0.03, 0.02), rel=0.3)
    assert most == pytest.approx(0.02, rel=0.3)
