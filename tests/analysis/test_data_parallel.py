"""Exchanges and steps against hand-worked cases, closed formulae and bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paradnn.families import model_of
from paradnn.forecast.communication.data_parallel import as_link, exchange_seconds, messages

#: Seconds, and seconds a byte: 50 us and 1 GB/s.
ALPHA, BETA = 50e-6, 1e-9
FC = {"name": "fc", "layers": 2, "nodes": 4, "input_size": 3, "output_size": 2}


def line(size: float) -> float:
    return ALPHA + BETA * size


@pytest.mark.parametrize("count", [2, 4, 64, 1024])
def test_over_a_line_the_closed_formulae_hold(count: int) -> None:
    size, rounds, share = 3e6, math.log2(count), 2 * (count - 1) / count
    expected = {
        "ring": 2 * (count - 1) * ALPHA + share * size * BETA,
        "tree": rounds * (ALPHA + size * BETA),
        "halving": 2 * rounds * ALPHA + share * size * BETA,
    }
    for algorithm, seconds in expected.items():
        assert exchange_seconds(algorithm, count, size, line) == pytest.approx(seconds)


def test_one_process_sends_nothing_and_odd_counts_hand_over() -> None:
    assert all(messages(algorithm, 1, 1e6) == [] for algorithm in ("ring", "tree", "halving"))
    assert messages("tree", 6, 100) == [(2, 100), (2, 100)]
    assert messages("halving", 6, 100) == [(2, 50), (2, 25), (2, 100)]
    with pytest.raises(ValueError, match="0 processes: one is the least"):
        messages("ring", 0, 1)


def test_a_ring_sums_in_as_many_messages() -> None:
    """Buffers really sent round a ring: after 2 (N - 1) messages of a part each process has the sum of all."""
    count, part = 5, 3
    buffers = np.random.default_rng(0).normal(size=(count, count, part))
    expected = buffers.sum(axis=0)
    sent = 0
    for turn in range(2 * (count - 1)):
        moved = [(rank, (rank - turn) % count, buffers[rank, (rank - turn) % count].copy()) for rank in range(count)]
        for rank, place, data in moved:
            to = (rank + 1) % count
            buffers[to, place] = buffers[to, place] + data if turn < count - 1 else data
        sent += 1
    np.testing.assert_allclose(buffers, np.broadcast_to(expected, buffers.shape))
    assert messages("ring", count, count * part) == [(sent, part)]


def test_a_measured_all_reduce_gives_itself_again() -> None:
    def measured(size: float) -> float:
        return 1e-4 + 2e-9 * size if size < 65536 else 3e-4 + 1e-9 * size

    link = as_link(measured, 4)
    for size in (64.0, 65536.0, 1e7):
        assert exchange_seconds("ring", 4, size, link) == pytest.approx(measured(size))


def test_layers_add_up_to_the_model() -> None:
    costs = model_of(FC).costs(batch_size=7, precision="float32", mode="train", optimizer="sgd")
    layers = model_of(FC).layer_work()
    assert [layer.gradient_bytes for layer in layers] == [4 * 16, 4 * 20, 4 * 10]
    assert sum(layer.gradient_bytes for layer in layers) == 4 * costs.parameters
    assert 7 * sum(layer.forward for layer in layers) == costs.forward_flops
    assert 7 * sum(layer.backward for layer in layers) == costs.backward_flops
    with pytest.raises(ValueError, match="gemm has no layers"):
        model_of({"name": "gemm"}).layer_work()
