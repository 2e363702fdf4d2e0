"""The search for the largest batch: doubling and bisection alone, and on a planted machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from paradnn.config.point import Measure, Point
from paradnn.config.settings import Largest
from paradnn.designs.largest import LargestBatch, Search
from tests.design.world import World, space
from tests.forecast.planted import QUICK

#: Memory limit in bytes.
LIMIT = 2**31


def run_search(search: Search, largest: int) -> tuple[int, int]:
    """Run a search in which sizes up to `largest` fit; return its answer and the attempts."""
    tried = 0
    size = search.next()
    while size:
        assert size % search.unit == 0
        search.take(size, fits=size <= largest)
        tried += 1
        size = search.next()
    return search.fits, tried


every_limit = pytest.mark.parametrize("largest", [1, 2, 3, 63, 64, 65, 1000, 4097, 100_000])
every_begin = pytest.mark.parametrize("begin", [1, 64, 4096])


@every_limit
@every_begin
def test_the_found_size_fits_and_a_slightly_larger_one_does_not(largest: int, begin: int) -> None:
    found, tried = run_search(Search(1, begin, within=0.05), largest)

    assert found <= largest <= max(1.05 * found, found)
    assert tried <= 24


@every_limit
@every_begin
def test_an_exact_search_finds_the_largest_size(largest: int, begin: int) -> None:
    exact, _ = run_search(Search(1, begin, within=1e-6), largest)

    assert exact == largest


def test_batches_are_multiples_of_the_unit() -> None:
    found, _ = run_search(Search(4, 64, within=1e-6), 1001)

    assert found == 1000


def test_a_search_without_a_fitting_batch_finds_zero() -> None:
    search = Search(4, 64, within=0.05)

    assert run_search(search, 0)[0] == 0
    assert search.fails == 4


def follow_search(
    world: World, points: list[Point], **settings: object
) -> tuple[LargestBatch, str]:
    """Follow a search on the machine to its end; return its design and the text of its answer."""
    design = LargestBatch(points, replace(world.settings(), largest=Largest(**settings)))  # type: ignore[arg-type]
    list(world.follow(design))
    return design, design.conclusion().text


def smallest_points(nodes: tuple[int, ...]) -> list[Point]:
    """Return points with batch size 1 and the memory limit."""
    return space((4,), nodes, (1,), Measure(**{**vars(QUICK), "memory_limit": LIMIT}))


def test_memory_limits_the_batch_and_a_repeated_search_measures_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    [point] = smallest_points((512,))
    _, text = follow_search(world, [point])
    found = int(text.partition("largest batch ")[2].partition(":")[0].replace(",", ""))
    peak, beyond = (
        world.peak(replace(point, batch_size=size)) for size in (found, round(1.06 * found))
    )

    assert peak <= LIMIT < beyond
    assert "GiB at the peak" in text
    assert text.rstrip().endswith("oom_host")

    tried = len(world.measured)
    assert tried <= 10

    design, repeated_text = follow_search(world, [point])
    assert (repeated_text, len(world.measured), design.left) == (text, tried, 0)


def test_a_step_time_limits_the_batch(tmp_path: Path) -> None:
    world = World(tmp_path, noise=0.0)
    [point] = smallest_points((512,))
    limit = 1e3 * world.machine.law(replace(point, batch_size=300))
    _, text = follow_search(world, [point], step_ms=limit, within=1e-6)

    assert "largest batch 300: " in text
    assert " ms a step" in text.partition("; 301: ")[2]


def test_an_unreachable_step_time_is_not_called_out_of_memory(tmp_path: Path) -> None:
    world = World(tmp_path, noise=0.0)
    [point] = smallest_points((512,))
    _, text = follow_search(world, [point], step_ms=1e-6)

    assert "no batch fits with steps of at most 1e-06 ms; 1: " in text


def test_the_largest_size_of_a_model_is_found(tmp_path: Path) -> None:
    world = World(tmp_path, noise=0.0)
    [point] = smallest_points((20,))
    limit = 1e3 * world.machine.law(replace(point, model=replace(point.model, nodes=1500)))  # type: ignore[call-arg]
    _, text = follow_search(world, [point], of="model.nodes", step_ms=limit, within=1e-6)

    assert "fc 4x1500 " in text
    assert "largest nodes 1,500: " in text
    assert "; 1,520: " in text

    # Numbers of layers beyond the limit of the model count as too large.
    _, text = follow_search(world, [point], of="model.layers", step_ms=1e9)
    assert "model.layers=" in text


def test_a_latency_fits_its_budget_only_with_its_interval() -> None:
    budget = Largest(latency_ms=30)
    assert budget.fits({"latency_p90_ms": 29.0, "latency_p90_high_ms": 29.9})
    assert not budget.fits({"latency_p90_ms": 29.0, "latency_p90_high_ms": 30.1})
    assert budget.fits({"latency_p90_ms": 29.0})  # too few steps for an interval
    assert not budget.fits({"step_time_ms": 1.0})  # without a latency
