"""Predicted times of whole points: phases, limits, and gaps between points.

The predicted phases are compared with the timing protocol on a simulated clock.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradnn.config.point import FrameworkOptions
from paradnn.config.reading import read_point
from paradnn.core.messages import Timing
from paradnn.forecast.history import CompletedRun
from paradnn.forecast.phases import (
    PointTimes,
    calibrate,
    extra_blocks,
    measure_seconds,
    profile_seconds,
    warmup_seconds,
)
from paradnn.forecast.table import RunHistory
from paradnn.store.metrics import PHASES
from paradnn.worker import measure
from paradnn.worker.profile.run import profile_steps
from paradnn.workloads.serve import Offline, Server, SingleStream
from paradnn.workloads.step import SingleStep
from tests.forecast.planted import Machine, expected_times, fc, grid, rates
from tests.worker.test_measure import Machine as SimulatedMachine


class NoisyMachine(SimulatedMachine):
    """Machine that runs steps of `seconds` each in simulated time.

    Block times have a relative standard deviation of `jitter`.
    """

    def __init__(self, seconds: float, jitter: float = 0.0, seed: int = 0) -> None:
        super().__init__(lambda _: seconds)
        self.spent: dict[str, float] = {}
        self._jitter = jitter
        self._random = np.random.default_rng(seed)

    def run(self, steps: int) -> float:
        self.now += steps * self._cost(0) * (1 + self._jitter * self._random.standard_normal())
        self.steps += steps
        return 1.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = self.now
        yield
        self.spent[name] = self.now - begin


def protocols(count: int) -> list[dict[str, float]]:
    """Return random settings of the timing protocol."""
    random = np.random.default_rng(7)
    ranges = {
        "min_seconds": (0.01, 3),
        "min_blocks": (1, 20),
        "max_seconds": (0.5, 60),
        "block_seconds": (-3, 0),  # power of ten
    }
    ranges |= {"warmup_seconds": (0.05, 12)}
    groups = [{name: random.uniform(*ends) for name, ends in ranges.items()} for _ in range(count)]
    for group in groups:
        group |= {
            "min_blocks": int(group["min_blocks"]),
            "block_seconds": 10 ** group["block_seconds"],
        }
        group["timeout"] = 600.0
    return groups


def columns_of(settings: list[dict[str, float]]) -> dict[str, np.ndarray]:
    return {name: np.array([[float(group[name])] for group in settings]) for name in settings[0]}


def run_protocol(machine: NoisyMachine, settings: dict[str, float]) -> Timing:
    return measure.measure_steps(
        machine.run, measure.Protocol.from_settings(settings), machine.phase, machine.clock
    )


def test_the_predicted_times_of_constant_steps_equal_those_of_the_protocol() -> None:
    settings = protocols(200)
    steps = 10 ** np.random.default_rng(3).uniform(-5, 1, (200, 1))
    columns = columns_of(settings)
    blocks = calibrate(steps, columns)
    warmup = warmup_seconds(blocks, columns, np.zeros((200, 1)))
    measured = measure_seconds(blocks, columns)
    ratios = []
    for index, group in enumerate(settings):
        machine = NoisyMachine(float(steps[index, 0]))
        result = run_protocol(machine, group)
        taken = (result.steps_per_block, machine.spent["warmup"], machine.spent["measure"])
        ratios.append(
            np.array([blocks.steps[index, 0], warmup[index, 0], measured[index, 0]]) / taken
        )
    # If a trial of 1, 10 or 100 steps happens to be long enough, a block has this number of steps.
    assert (np.abs(np.array(ratios) - 1) < 1e-6).mean() > 0.85
    assert (np.abs(np.array(ratios) - 1) < 0.15).mean() > 0.97


def test_the_blocks_until_the_steady_state_follow_from_a_run() -> None:
    """Compute the warm-up time of a run from its recorded number of blocks.

    With variable step times, more blocks pass before the steady state.
    """
    settings = {**protocols(1)[0], "block_seconds": 0.1, "warmup_seconds": 1e6}
    columns = columns_of([settings])
    extra_blocks_needed = []
    for seed in range(40):
        machine = NoisyMachine(0.0301, jitter=0.06, seed=seed)
        result = run_protocol(machine, settings)
        if result.steps_per_block != 4:
            continue  # a trial was just too short for a block
        recorded = np.array([[len(result.calibration) - 1 + len(result.warmup)]], dtype=float)
        blocks = calibrate(np.array([[0.0301]]), columns)
        extra = extra_blocks(recorded + blocks.trials - len(result.calibration), blocks)
        extra_blocks_needed.append(float(extra[0, 0]))
        # Unsteady blocks that were measured again count as warm-up.
        before = machine.now - sum(result.blocks)
        assert warmup_seconds(blocks, columns, extra)[0, 0] == pytest.approx(before, rel=0.15)
    assert max(extra_blocks_needed) > 3
    assert min(extra_blocks_needed) == 0


class EmptyTraceFramework:
    """Framework without a profiler trace, for a test that only counts steps."""

    @contextlib.contextmanager
    def trace(self, folder: Path) -> Iterator[Any]:
        yield contextlib.nullcontext

    def read_trace(self, folder: Path) -> None:
        raise ValueError("no trace")


@pytest.mark.parametrize("seconds", [1e-4, 0.0099, 0.1, 0.3, 4.0, 7.0])
@pytest.mark.parametrize("left", [5.0, 30.0, math.inf])
def test_the_predicted_profile_has_as_many_steps_as_the_real_one(
    seconds: float, left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = NoisyMachine(seconds)
    profile_steps(EmptyTraceFramework(), machine, seconds, keep_trace=False, seconds_left=left)  # type: ignore[arg-type]
    assert profile_seconds(np.array(seconds), np.array(left)) == pytest.approx(
        machine.steps * seconds
    )


def test_the_time_of_a_point_is_the_sum_of_its_phases_up_to_its_limit() -> None:
    expected = expected_times([], [fc(4, 512, 256)])
    assert expected.seconds == pytest.approx(np.sum(list(expected.phases.values()), axis=0))
    assert set(expected.phases) <= {*PHASES, "between"}
    assert "profile" not in expected.phases
    large = fc(128, 8192, 16384)
    short = replace(large, measure=replace(large.measure, timeout=5.0, profile=True))
    late = expected_times([], [short])
    assert late.timed_out.all()
    inside = late.seconds - np.sum(
        [late.phases[name] for name in ("schedule", "record", "between")], axis=0
    )
    assert inside == pytest.approx(5.0)


def test_a_plan_predicts_timeouts_caused_by_torch_compile() -> None:
    """Compare the predicted compile times of torch.compile, eager PyTorch and TensorFlow.

    Compiling a forward pass of fc 4x1024 took 11 s with torch.compile (docs/how-to/engines.md), and
    0.1 s with TensorFlow.
    """
    compiled = fc(
        4, 1024, 1, workload=SingleStep("inference"), framework=FrameworkOptions(name="torch")
    )
    others = [replace(compiled, compile="eager"), replace(compiled, framework=FrameworkOptions())]
    short = replace(compiled, measure=replace(compiled.measure, timeout=5.0))
    times = expected_times([], [compiled, *others, short])
    seconds = np.quantile(times.phases["compile"], [0.025, 0.5, 0.975], axis=1)
    assert seconds[0, 0] < 11 < seconds[2, 0]
    assert max(seconds[1, 1:3]) < 1
    assert (times.timed_out.mean(axis=1) > 0.5).tolist() == [False] * 3 + [True]


@pytest.fixture(scope="module")
def times_of_three_points() -> PointTimes:
    """Return the expected times of a training step, of a profiled one, and of inference."""
    plain = fc(4, 512, 256)
    profiled = replace(plain, measure=replace(plain.measure, profile=True))
    inference = replace(plain, workload=SingleStep("inference"))
    return expected_times([], [plain, profiled, inference])


def test_only_profiled_points_have_a_profile_phase(times_of_three_points: PointTimes) -> None:
    profile = times_of_three_points.phases["profile"]

    assert np.all(profile[0] == 0)
    assert np.all(profile[1] > 0.25)


def test_only_inference_has_a_latency_phase(times_of_three_points: PointTimes) -> None:
    latency = times_of_three_points.phases["latency"]
    timed = min(10.0, 200 * np.median(times_of_three_points.step[2]))

    assert np.all(latency[:2] == 0)
    assert np.median(latency[2]) == pytest.approx(timed, rel=0.3)


def test_a_load_lasts_until_its_queries_are_served() -> None:
    plain = fc(4, 512, 256)
    loads = (
        Server(rate=10.0, min_seconds=5.0, min_queries=400),
        SingleStream(min_seconds=0.0, min_queries=1000),
        Offline(min_seconds=20.0, min_queries=1),
    )

    times = expected_times([], [replace(plain, workload=load) for load in loads])

    server, stream, offline = times.phases["load"]
    assert (server == 40).all()
    assert stream == pytest.approx(1000 * times.step[1])
    assert offline == pytest.approx(22)  # 10% more queries than fit into 20 s
    assert np.all(times.phases["latency"] == 0)


def test_only_generation_has_a_prefill_phase() -> None:
    config = {"model": {"name": "gpt"}, "batch_size": 4}

    phases = expected_times(
        [], [read_point({**config, "mode": mode}) for mode in ("inference", "generate")]
    ).phases

    assert np.all(phases["prefill"][0] == 0)
    assert phases["prefill"][1] == pytest.approx(phases["warmup"][1] + phases["measure"][1])


@pytest.fixture
def runs_with_a_pause_and_a_failure() -> list[CompletedRun]:
    """Return 40 runs, one every 3 s, with a pause of an hour after 21 of them and one timeout."""
    random = np.random.default_rng(5)
    machine = Machine(random, session=0.0)
    points = grid(random, 40)
    runs = [
        replace(run, start=3.0 * index + (3600.0 if index > 20 else 0.0))
        for index, run in enumerate(machine.session("first", points))
    ]
    failed_tags = {"outcome": "timeout"}
    runs[10] = replace(runs[10], tags={**runs[10].tags, **failed_tags}, metrics={})
    return runs


def test_pauses_do_not_count_as_overhead(
    runs_with_a_pause_and_a_failure: list[CompletedRun],
) -> None:
    expected = expected_times(runs_with_a_pause_and_a_failure, [fc(2, 128, 256)])

    assert np.median(expected.phases["between"]) < 2.0


def test_failed_runs_are_not_part_of_the_history(
    runs_with_a_pause_and_a_failure: list[CompletedRun],
) -> None:
    assert len(RunHistory.from_runs(runs_with_a_pause_and_a_failure, rates)) == 39


def test_start_times_of_several_processes_with_an_import_are_ignored() -> None:
    """Plant a run whose five starts include an import of 1.2 s.

    Their mean of 0.26 s is not the duration of any start, so this run must not be used.
    """
    random = np.random.default_rng(6)
    runs = Machine(random, session=0.0).session("first", grid(random, 2))
    several_processes = [
        replace(run, metrics={**run.metrics, "processes": 5.0, "phase_start_seconds": seconds})
        for run, seconds in zip(runs, (1.28, 0.1), strict=True)
    ]
    start = RunHistory.from_runs(several_processes, rates).phases["start"]
    assert np.isnan(start[0])
    assert start[1] == pytest.approx(0.02)
