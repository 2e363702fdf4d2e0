"""The search for the largest batch: doubling and bisection on their own, and over a planted
machine's memory.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from paradnn.config.point import Measure, Point
from paradnn.config.settings import Largest
from paradnn.designs.largest import LargestBatch, Search
from tests.design.world import World, space
from tests.forecast.planted import QUICK

LIMIT = 2**31


def answer(search: Search, largest: int) -> tuple[int, int]:
    """Return the answer of a search if batches up to `largest` fit, and the number of attempts."""
    tried = 0
    while size := search.next():
        assert size % search.unit == 0
        search.take(size, fits=size <= largest)
        tried += 1
    return search.fits, tried


@pytest.mark.parametrize("largest", [1, 2, 3, 63, 64, 65, 1000, 4097, 100_000])
@pytest.mark.parametrize("begin", [1, 64, 4096])
def test_the_found_size_fits_and_a_slightly_larger_one_does_not(largest: int, begin: int) -> None:
    found, tried = answer(Search(1, begin, within=0.05), largest)
    assert found <= largest <= max(1.05 * found, found)
    assert tried <= 24
    exact, _ = answer(Search(1, begin, within=1e-6), largest)
    assert exact == largest


def test_batches_are_multiples_and_nothing_may_fit() -> None:
    found, _ = answer(Search(4, 64, within=1e-6), 1001)
    assert found == 1000
    search = Search(4, 64, within=0.05)
    assert answer(search, 0)[0] == 0
    assert search.fails == 4


def searched(world: World, points: list[Point], **settings: object) -> tuple[LargestBatch, str]:
    """Follow a search to its end, and return its answer."""
    design = LargestBatch(points, replace(world.settings(), largest=Largest(**settings)))  # type: ignore[arg-type]
    list(world.follow(design))
    return design, design.conclusion().text


def smallest(nodes: tuple[int, ...]) -> list[Point]:
    """Points with the smallest batch."""
    return space((4,), nodes, (1,), Measure(**{**vars(QUICK), "memory_limit": LIMIT}))


def test_memory_decides_and_the_search_goes_on_where_it_was(tmp_path: Path) -> None:
    world, [point] = World(tmp_path), smallest((512,))
    _, text = searched(world, [point])
    found = int(text.partition("largest batch ")[2].partition(":")[0].replace(",", ""))
    peak, beyond = (
        world.peak(replace(point, batch_size=size)) for size in (found, round(1.06 * found))
    )
    assert peak <= LIMIT < beyond
    assert "GiB at the peak" in text
    assert text.rstrip().endswith("oom_host")
    tried = len(world.measured)
    assert tried <= 10
    design, again = searched(world, [point])
    assert (again, len(world.measured), design.left) == (text, tried, 0)


def test_a_step_time_decides(tmp_path: Path) -> None:
    world, [point] = World(tmp_path, noise=0.0), smallest((512,))
    limit = 1e3 * world.machine.law(replace(point, batch_size=300))
    _, text = searched(world, [point], step_ms=limit, within=1e-6)
    assert "largest batch 300: " in text
    assert " ms a step" in text.partition("; 301: ")[2]


def test_no_step_that_is_short_enough_is_not_called_out_of_memory(tmp_path: Path) -> None:
    world, [point] = World(tmp_path, noise=0.0), smallest((512,))
    _, text = searched(world, [point], step_ms=1e-6)
    assert "no batch fits with steps of at most 1e-06 ms; 1: " in text


def test_the_largest_model_is_searched_by_one_of_its_sizes(tmp_path: Path) -> None:
    world, [point] = World(tmp_path, noise=0.0), smallest((20,))
    limit = 1e3 * world.machine.law(replace(point, model=replace(point.model, nodes=1500)))  # type: ignore[call-arg]
    _, text = searched(world, [point], of="model.nodes", step_ms=limit, within=1e-6)
    assert "fc 4x1500 " in text
    assert "largest nodes 1,500: " in text
    assert "; 1,520: " in text
    # Sizes beyond the model's limit count as too large: it has at most this number of layers.
    _, text = searched(world, [point], of="model.layers", step_ms=1e9)
    assert "model.layers=" in text


def test_a_latency_is_within_its_budget_with_its_interval() -> None:
    budget = Largest(latency_ms=30)
    assert budget.fits({"latency_p90_ms": 29.0, "latency_p90_high_ms": 29.9})
    assert not budget.fits({"latency_p90_ms": 29.0, "latency_p90_high_ms": 30.1})
    assert budget.fits({"latency_p90_ms": 29.0})  # too few steps for an interval
    assert not budget.fits({"step_time_ms": 1.0})  # nothing was timed one by one
