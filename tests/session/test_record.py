"""Records of planted answers, prices, and summaries of raw values.

SciPy and the standard library compute the expected summaries. For points in several processes, the
tests also cover the request to each process, and when the point is complete.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from paradnn.config.identity import Identity, point_id, point_request
from paradnn.config.point import Measure, Platform, Point, step_costs
from paradnn.config.price import Prices, load_prices
from paradnn.config.reading import read_point
from paradnn.core.messages import (
    Compilation,
    Contention,
    InputMeasurement,
    Measurement,
    OperationTable,
    PipelinePart,
    Profile,
    Timing,
)
from paradnn.core.words import rounded
from paradnn.families.fc import FullyConnected
from paradnn.platform.environment import Environment
from paradnn.session.contradictions import find_contradictions
from paradnn.session.hardware_peaks import ceilings_identity
from paradnn.session.measured import Summarized, narrow_enough, summarize
from paradnn.session.open_point import OpenPoint
from paradnn.session.record import precision_tags, priced, profile_tags
from paradnn.store.runs import Claim, Record
from paradnn.worker.arrivals import LOADGEN_SEED
from paradnn.workloads.serve import Server
from paradnn.workloads.step import balance_metrics, compiling_metrics
from tests.config.test_points import point as read_words
from tests.session.records import answered, recorded, timing

QUIET = Contention(2, 0.75, 0.01, 0.0, 40.0, None, None)


def record(
    *contention: Contention,
    other_phases: dict[str, Contention] | None = None,
    latencies: Sequence[float] = (),
) -> Record:
    """Return the record of a point with one process per argument and 500 ms per step.

    Args:
        contention: Contention during the measured blocks, per process.
        other_phases: Contention during other phases, by phase; the same for all processes.
        latencies: Seconds of each of the 200 single steps, per process.
    """
    point = read_point({"model": {"name": "fc"}, "mode": "inference" if latencies else "train"})
    results = []
    for entry, latency in zip_longest(contention, latencies):
        singles = [latency] * 200 if latency else None
        results.append(
            answered(
                timing([0.5] * 6),
                {"contention": entry},
                contention=other_phases or {},
                latencies=singles,
            )
        )
    return recorded(point, *results)


def record_with_a_contended_process() -> Record:
    """Return the record of three processes; other work takes half of the cores in the second."""
    blocks = [0.4, 0.5, 0.6, 0.45, 0.55, 0.5, 0.52, 0.48]
    reason = "other processes took 1.0 of 2 cores"
    busy = replace(QUIET, foreign_cpu_fraction=0.5, reason=reason)
    processes = [answered(timing(blocks), {"contention": entry}) for entry in (QUIET, busy)]
    return recorded(read_point({"model": {"name": "fc"}}), *processes, processes[0])


def test_the_description_of_a_run_has_the_interval_of_its_rate() -> None:
    """Check that the description is not more confident than the metrics."""
    contended_record = record_with_a_contended_process()
    ends = [contended_record.metrics[f"examples_per_second_{end}"] for end in ("low", "high")]
    low, high = (rounded(end) for end in ends)
    rate = rounded(contended_record.metrics["examples_per_second"])

    assert (
        f"**{rate} examples/s** (95% interval {low} to {high}), 500.000 ms a step"
        in contended_record.description
    )


def test_the_description_of_a_run_has_the_reason_of_a_missing_interval() -> None:
    different_processes = [answered(timing([seconds] * 6)) for seconds in (0.5, 0.51)]

    unknown = recorded(read_point({"model": {"name": "fc"}}), *different_processes)

    assert f"({unknown.tags['interval_reason']})" in unknown.description


def test_the_description_of_a_contended_run_has_the_reason() -> None:
    contended_record = record_with_a_contended_process()

    reason = contended_record.tags["contended_reason"]
    assert contended_record.description.endswith(f"**Contended**: {reason}.")


def test_the_description_of_a_quiet_run_does_not_mention_contention() -> None:
    assert "Contended" not in record(QUIET).description


def test_disturbances_of_a_point_are_recorded_with_a_verdict() -> None:
    quiet = record(QUIET)
    assert quiet.tags["contended"] == "false"
    assert "contended_reason" not in quiet.tags
    assert quiet.metrics["own_cpu_fraction"] == 0.75
    assert "throttled_fraction" not in quiet.metrics
    busy = record(
        replace(QUIET, foreign_cpu_fraction=0.5, reason="other processes took 1.0 of 2 cores")
    )
    assert (busy.tags["contended"], busy.tags["contended_reason"]) == (
        "true",
        "other processes took 1.0 of 2 cores",
    )
    covered_by_several = [
        replace(QUIET, reason=f"other processes took {taken} of 2 cores")
        for taken in ("1.1", "1.5", "0.9")
    ]
    assert (
        record(*covered_by_several).tags["contended_reason"]
        == "other processes took 1.5 of 2 cores"
    ), "the worst, once"


def test_the_processor_time_of_a_step_follows_from_its_share() -> None:
    """Plant processes that use 75% of two cores during a step of 500 ms.

    A process that is stopped for half of this time uses half as much processor time.
    """
    assert record(QUIET).metrics["processor_time_ms"] == pytest.approx(750.0)
    assert record(replace(QUIET, own_cpu_fraction=0.375)).metrics[
        "processor_time_ms"
    ] == pytest.approx(375.0)
    assert record(QUIET).description.endswith("500.000 ms a step, steady.")
    unsteady = recorded(
        read_words("model=fc"), answered(timing([0.5] * 6, steady=False, steady_reason="a drift"))
    )
    assert unsteady.description.endswith("500.000 ms a step, not steady: a drift.")


def test_a_median_of_single_steps_far_from_the_step_time_fails_a_check() -> None:
    problem = "the median of single steps is 1100 ms, but a step of the blocks takes 500 ms"
    assert problem in record(QUIET, latencies=[1.1]).tags["checks"]
    assert "single steps" not in record(QUIET, latencies=[0.6]).tags["checks"]
    busy = {"latency": replace(QUIET, reason="it was busy")}
    assert "single steps" not in record(QUIET, latencies=[1.1], other_phases=busy).tags["checks"]


# Some differences are not contradictions. XLA omits products of one example and products with
# padding, and its CPU compiler computes depthwise gradients for all pairs of channels. An engine
# computes whole registers.
@pytest.mark.parametrize(
    ("words", "metrics", "expected_problem"),
    [
        pytest.param(
            "model=fc",
            {"parameters": 7},
            "the model has 7 parameters, but the analytic count is",
            id="parameters",
        ),
        pytest.param(
            "model=fc",
            {"infeed_fraction": 1.2},
            "infeed_fraction is 1.200, outside 0..1",
            id="infeed above 1",
        ),
        pytest.param("model=fc", {"infeed_fraction": 1.0}, None, id="infeed of 1"),
        pytest.param(
            "model=fc",
            {"profile_flops_ratio": 0.89},
            "the profile's FLOPs are 0.890 times the analytic ones",
            id="FLOPs 11% low",
        ),
        pytest.param("model=fc", {"profile_flops_ratio": 0.91}, None, id="FLOPs 9% low"),
        pytest.param("model=fc", {"profile_flops_ratio": 1.09}, None, id="FLOPs 9% high"),
        pytest.param(
            "model=fc",
            {"profile_flops_ratio": 1.11},
            "the profile's FLOPs are 1.110",
            id="FLOPs 11% high",
        ),
        pytest.param(
            "model=fc batch_size=1",
            {"profile_flops_ratio": 0.5},
            "the profile's FLOPs",
            id="one example, graph",
        ),
        pytest.param(
            "model=fc batch_size=1 compile=xla",
            {"profile_flops_ratio": 0.5},
            None,
            id="one example, XLA omits products",
        ),
        pytest.param(
            "model=fc batch_size=2 compile=xla",
            {"profile_flops_ratio": 0.5},
            "the profile's FLOPs",
            id="two examples, XLA",
        ),
        pytest.param(
            "model=fc batch_size=1 compile=xla",
            {"profile_flops_ratio": 1.2},
            "the profile's FLOPs",
            id="one example, XLA, too many",
        ),
        pytest.param(
            "model=fc batch_size=1 framework=jax",
            {"profile_flops_ratio": 0.5},
            None,
            id="one example, jax.jit omits products",
        ),
        pytest.param(
            "model=fc batch_size=1 framework=jax compile=eager",
            {"profile_flops_ratio": 0.5},
            "the profile's FLOPs",
            id="one example, JAX eager",
        ),
        pytest.param(
            "model=residual model.image_size=64 compile=xla",
            {"profile_flops_ratio": 0.5},
            None,
            id="small images, XLA omits padding",
        ),
        pytest.param(
            "model=residual model.image_size=96 compile=xla",
            {"profile_flops_ratio": 0.5},
            "the profile's FLOPs",
            id="larger images, XLA",
        ),
        pytest.param(
            "model=residual model.image_size=64",
            {"profile_flops_ratio": 0.5},
            "the profile's FLOPs",
            id="small images, graph",
        ),
        pytest.param(
            "model=mobilenet compile=xla",
            {"profile_flops_ratio": 3.0},
            None,
            id="depthwise gradients, XLA on a CPU",
        ),
        pytest.param(
            "model=mobilenet compile=xla mode=inference",
            {"profile_flops_ratio": 3.0},
            "the profile's FLOPs",
            id="depthwise forward, XLA",
        ),
        pytest.param(
            "model=mobilenet compile=xla platform=gpu",
            {"profile_flops_ratio": 3.0},
            "the profile's FLOPs",
            id="depthwise gradients, XLA on a GPU",
        ),
        pytest.param(
            "model=mobilenet",
            {"profile_flops_ratio": 3.0},
            "the profile's FLOPs",
            id="depthwise gradients, graph",
        ),
        pytest.param(
            "model=fc mode=inference framework=onnxruntime",
            {"profile_flops_ratio": 3.0},
            None,
            id="engine computes whole registers",
        ),
        pytest.param(
            "model=sparse_gemm batch_size=1 mode=inference",
            {"profile_flops_ratio": 0.5},
            None,
            id="sparse product computes less",
        ),
        pytest.param(
            "model=sparse_gemm batch_size=1 mode=inference",
            {"profile_flops_ratio": 1.2},
            "the profile's FLOPs",
            id="sparse product computes more",
        ),
        pytest.param(
            "model=fc",
            {"step_memory_bytes": 1000000},
            "the step took 1000000 bytes, less than the lower bound",
            id="memory below the bound",
        ),
        pytest.param(
            "model=fc platform=gpu", {"step_memory_bytes": 1000000}, None, id="memory on a GPU"
        ),
        pytest.param(
            "model=fc mode=inference framework=onnxruntime precision=int8",
            {"step_memory_bytes": 1000000},
            None,
            id="memory of an int8 engine",
        ),
        pytest.param(
            "model=fc model.nodes=8 model.input_size=8 model.output_size=8",
            {"step_memory_bytes": 0},
            None,
            id="memory from a free heap",
        ),
    ],
)
def test_contradictory_measurements_are_reported(
    words: str, metrics: dict[str, float], expected_problem: str | None
) -> None:
    costs = step_costs(read_words(words))
    answer = answered(
        timing([0.5] * 6), {"parameters": metrics.get("parameters", costs.parameters)}
    ).answer
    assert answer
    problems = find_contradictions(read_words(words), costs, metrics, answer)
    assert "".join(problems).startswith(expected_problem) if expected_problem else problems == []


#: Timing with ten steps per block and a typical step of 0.1 s.
TIMING = Timing(10, [], [], [0.9, 1.0, 1.1], True, "", None)
FED = InputMeasurement([0.1], [0.05], [0.1], [PipelinePart(8, 0.5, 0.25)], 2)


@pytest.mark.parametrize(
    ("seconds", "programs", "is_fed", "compile_seconds", "compile_steps", "compile_programs"),
    [
        pytest.param([3.0, 0.2], [1, 0], False, 2.9, 1, 1, id="one compiling step"),
        pytest.param(
            [3.0, 0.1, 1.0, 0.2], [2, 0, 1, 0], False, 3.8, 3, 3, id="ordinary step in between"
        ),
        pytest.param([0.5], [0], False, 0.4, 1, 0, id="slow first step that compiles nothing"),
        pytest.param([0.05], [0], False, 0.0, 1, 0, id="fast first step"),
        pytest.param([3.0, 0.2], [1, 0], True, 2.95, 1, 1, id="ordinary steps wait for input"),
    ],
)
def test_compile_time_is_the_excess_of_compiling_steps(
    seconds: list[float],
    programs: list[int],
    is_fed: bool,
    compile_seconds: float,
    compile_steps: int,
    compile_programs: int,
) -> None:
    compilation = Compilation(seconds, programs, None)
    measurement = Measurement(1, compilation, {}, None, TIMING, None, "none")

    metrics = compiling_metrics(measurement, FED if is_fed else None)

    expected = [compile_seconds, compile_steps, compile_programs]
    assert [*metrics.values()] == pytest.approx(expected)


def test_the_recorded_precision_is_that_of_the_operands() -> None:
    assert precision_tags({"bfloat16": 1.0}, "bfloat16") == {"matmul_types": "bfloat16 100.0%"}
    assert precision_tags({}, "bfloat16") == {}
    mixed = precision_tags({"bfloat16": 0.75, "float32": 0.25}, "bfloat16")
    assert mixed["matmul_types"] == "bfloat16 75.0%, float32 25.0%"
    assert (
        mixed["precision_note"] == "25% of the products have operands of a type other than bfloat16"
    )


def test_the_remedy_for_command_buffers_is_a_valid_override() -> None:
    empty = OperationTable([], [])
    profile = Profile(empty, empty, 1.0, 0.0, 0.0, {}, steps=3, slowdown=1.0, command_buffers=2)

    note = profile_tags(profile)["profile_note"]

    quoted = re.search("'.*'", note)
    assert quoted
    [word] = shlex.split(quoted[0])
    override = OverridesParser.create().parse_override(word)
    assert override.is_add(), "framework.env has no keys by default"
    assert override.key_or_group == "framework.env.XLA_FLAGS"
    assert override.value() == "--xla_gpu_enable_command_buffer="


def covers(found: Summarized, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def test_an_interval_is_within_the_extremes_or_its_absence_has_a_reason() -> None:
    """Check that no interval extends to values far from every block.

    Without the check, a drift or two processes that differ strongly would have such an interval.
    """
    drift = [1.0 + 0.05 * index for index in range(20)]
    assert summarize([drift]).low is None
    assert str(summarize([drift]).reason).startswith(
        "20 blocks are too strongly autocorrelated (worth fewer than"
    )
    assert str(summarize([[1.0] * 5]).reason).startswith("5 blocks, but an interval needs 6")
    apart = summarize([[1.0, 1.1] * 5, [2.0, 2.1] * 5])
    assert (apart.low, apart.high) == (None, None)
    assert str(apart.reason).startswith(
        "the medians of 2 processes differ by up to 95%, too much for an interval"
    )
    close_processes = summarize([[1.0, 1.5] * 5, [1.01, 1.5] * 5])
    assert close_processes.reason is None
    random = np.random.default_rng(0)
    for _ in range(300):
        blocks = np.exp(0.1 * random.standard_normal(24).cumsum())
        summary = summarize([blocks.tolist()])
        assert summary.low is None or blocks.min() <= summary.low <= summary.high <= blocks.max()


@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("goal", [0.02, 0.01])
def test_an_interval_that_ends_the_measurement_keeps_its_coverage(first: int, goal: float) -> None:
    """Plant up to 30 processes that differ by 1%, and expect a coverage of 95% over 600 trials.

    The tolerance is three standard deviations, plus 1% for the error of the method.
    """
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(600):
        drawn = [[value] for value in np.exp(random.normal(0, 0.01, 30)).tolist()]
        count = next((n for n in range(first, 31) if narrow_enough(drawn[:n], goal)), 30)
        covered += covers(summarize(drawn[:count], stopped_by_interval=True), 1.0)
    assert 0.91 < covered / 600 < 0.99


def test_several_processes_cover_the_truth_and_a_single_one_does_not() -> None:
    """Plant three processes of ten blocks, with deviations of 2% between and 1% within processes.

    The blocks of one process contain no information about the other processes.
    """
    random = np.random.default_rng(0)
    covered_by_several = 0
    covered_by_one = 0
    deviations_between = []
    for _ in range(2000):
        process_logs = random.normal(0, 0.02, 3)
        blocks = np.exp(process_logs[:, None] + random.normal(0, 0.01, (3, 10))).tolist()
        summary = summarize(blocks)
        latency = summarize(blocks[:1])
        covered_by_several += covers(summary, 1.0)
        covered_by_one += covers(latency, 1.0)
        deviations_between.append(summary.between_cv)
    assert 1870 <= covered_by_several <= 1930  # 95% within three standard deviations
    assert covered_by_one < 1000
    assert np.sqrt(np.mean(np.square(deviations_between))) == pytest.approx(0.02, rel=0.1)


def planted_point(*seconds: float, **settings: Any) -> OpenPoint:
    """Return a point whose processes have the given seconds per step, without noise."""
    point = Point(model=FullyConnected(), measure=Measure(**settings))
    return OpenPoint(
        point,
        None,
        None,
        None,
        {},
        None,
        results=[answered(timing([value] * 10)) for value in seconds],
    )


#: At least two processes, and further ones until the interval's half-width is 2% of the value.
UNTIL_NARROW = {"processes": 2, "relative_interval": 0.02}


@pytest.mark.parametrize(
    ("seconds", "settings", "is_complete"),
    [
        pytest.param([1.0], {}, True, id="one of one"),
        pytest.param([1.0], {"processes": 2}, False, id="one of two"),
        pytest.param([1.0, 1.1], {"processes": 2}, True, id="two of two"),
        pytest.param([1.0, 1.1], UNTIL_NARROW, False, id="wide interval"),
        pytest.param(
            [1.0, 1.1], {**UNTIL_NARROW, "max_processes": 2}, True, id="wide, but the last"
        ),
        pytest.param([1.0, 1.001, 1.002], UNTIL_NARROW, False, id="narrow by chance"),
        pytest.param([1.0, 1.001, 1.002, 1.003], UNTIL_NARROW, True, id="narrow"),
        pytest.param([1.0], {"relative_interval": 0.02}, True, id="one process measures on itself"),
    ],
)
def test_a_point_is_complete_with_enough_processes(
    seconds: list[float], settings: dict[str, Any], is_complete: bool
) -> None:
    assert planted_point(*seconds, **settings).is_complete is is_complete


def test_only_the_first_process_is_profiled() -> None:
    settings = {"profile": True, "keep_trace": True, "relative_interval": 0.02}
    first = planted_point(processes=2, **settings).request()
    second = planted_point(1.0, processes=2, **settings).request()
    assert [entry["measure"]["profile"] for entry in (first, second)] == [True, False]
    assert [entry["measure"]["keep_trace"] for entry in (first, second)] == [True, False]
    assert [entry["measure"]["relative_interval"] for entry in (first, second)] == [None, None]
    assert planted_point(**settings).request()["measure"]["relative_interval"] == 0.02


def seed_of_schedule(replicate: int, finished: int, **changes: Any) -> int:
    """Return the seed of the arrivals in a process of a point with three processes.

    Args:
        replicate: Replicate of the point.
        finished: Number of processes that have ended.
        changes: Keys of the load.
    """
    entry = planted_point(*[1.0] * finished, processes=3)
    load = Server(rate=100.0, **changes)
    entry.point = replace(entry.point, workload=load, replicate=replicate)
    seed: int = entry.request()["server"]["seed"]
    return seed


def test_every_process_and_replicate_has_a_separate_schedule() -> None:
    """Require different arrivals, because processes with the same arrivals share chance effects."""
    seeds = [
        seed_of_schedule(replicate, finished) for replicate in range(3) for finished in range(3)
    ]

    assert len(set(seeds)) == len(seeds)


def test_the_first_process_has_the_schedule_of_loadgen() -> None:
    assert seed_of_schedule(replicate=0, finished=0) == LOADGEN_SEED


def test_seeds_of_schedules_have_32_bits() -> None:
    assert 0 <= seed_of_schedule(replicate=2, finished=2, seed=2**32 - 1) < 2**32


def test_impossible_numbers_make_the_point_a_crash() -> None:
    entry = planted_point(1.0, 1.0, processes=2)
    entry.results = [
        replace(each, answer=replace(each.answer, latencies=[0.0] * 200))
        for each in entry.results
        if each.answer
    ]
    entry.environment, entry.costs = (
        Environment("a processor", {"cores": 2}, {}, {}),
        step_costs(entry.point),
    )
    entry.claim = Claim("run", Identity("point", "environment", 0), 0)
    record = entry.record()
    assert record.outcome == "crash"
    assert str(record.reason).startswith(
        "process 2: the worker reports an impossible measurement: "
    )


INPUT = InputMeasurement(
    waits=[0.25, 0.75],
    threads=2,
    free_step_seconds=[0.1] * 6,
    fed_step_seconds=[0.15, 0.2, 0.2, 0.2, 0.25, 0.2],
    alone=[PipelinePart(examples=100, seconds=2.0, cpu_seconds=0.4)] * 6,
)


def test_metrics_of_input_agree_with_hand_calculations() -> None:
    metrics = balance_metrics(INPUT, [1.0, 1.0], 10, "cpu")
    assert metrics["infeed_fraction"] == 0.5
    assert (metrics["infeed_gain"], metrics["infeed_gain_low"]) == pytest.approx((1.0, 0.5))
    assert metrics["infeed_gain_high"] == pytest.approx(1.5)
    assert metrics["input_free_examples_per_second"] == pytest.approx(100)
    assert metrics["input_examples_per_second"] == 50
    assert metrics["input_cpu_ms_per_example"] == pytest.approx(4)
    # The device computes while the host waits: for half of a step that lasts twice as long.
    assert balance_metrics(INPUT, [1.0, 1.0], 10, "gpu")["infeed_fraction"] == pytest.approx(0.5)
    faster = replace(INPUT, fed_step_seconds=[0.09] * 6)  # faster by chance
    assert balance_metrics(faster, [1.0, 1.0], 10, "gpu")["infeed_fraction"] == 0


ENVIRONMENT = Environment("V100", {}, {}, {"host": "box"})
TABLE = Prices("USD", "2019", "a page", {"V100": "2.5", "box": "1"})


def on_gpu(**platform: object) -> Point:
    return read_point(
        {"model": {"name": "fc"}, "batch_size": 64, "platform": {"name": "gpu", **platform}}
    )


def test_a_price_changes_neither_the_point_nor_its_ceilings() -> None:
    expensive = on_gpu(price_per_hour=3.0)
    assert point_id(expensive) == point_id(on_gpu())
    former = {"min_seconds": 1.0, "block_seconds": 0.1}
    assert point_id(read_point({"model": {"name": "fc"}, "measure": former})) == "57f7f9f40bab5f25"
    assert ceilings_identity(expensive, ENVIRONMENT) == ceilings_identity(on_gpu(), ENVIRONMENT)
    assert point_request(expensive)["platform"]["price_per_hour"] == 3.0


TWO_DEVICES = replace(on_gpu(), devices=2)
WITH_PRICE = on_gpu(price_per_hour=3.0)
OTHER_DEVICE = replace(ENVIRONMENT, device="another")
PRICE_TAGS = {"price_currency": "USD", "price_source": "a page, 2019"}


@pytest.mark.parametrize(
    ("point", "table", "environment", "price", "tags"),
    [
        pytest.param(on_gpu(), TABLE, ENVIRONMENT, 2.5, PRICE_TAGS, id="price of the device"),
        pytest.param(
            WITH_PRICE, TABLE, ENVIRONMENT, 3.0, {"price_currency": "USD"}, id="price of the point"
        ),
        pytest.param(on_gpu(), TABLE, OTHER_DEVICE, 1.0, PRICE_TAGS, id="price of the host"),
        pytest.param(on_gpu(), Prices(), ENVIRONMENT, None, {}, id="empty table"),
        pytest.param(TWO_DEVICES, TABLE, ENVIRONMENT, 5.0, PRICE_TAGS, id="price per chip"),
        pytest.param(
            replace(TWO_DEVICES, platform=Platform()),
            TABLE,
            ENVIRONMENT,
            2.5,
            PRICE_TAGS,
            id="cores have no separate price",
        ),
        pytest.param(
            TWO_DEVICES,
            TABLE,
            OTHER_DEVICE,
            1.0,
            PRICE_TAGS,
            id="devices of a host have no separate price",
        ),
        pytest.param(
            on_gpu(), load_prices("example", "price"), ENVIRONMENT, None, {}, id="example table"
        ),
    ],
)
def test_the_price_is_that_of_the_point_or_of_the_device_or_of_the_host(
    point: Point, table: Prices, environment: Environment, price: float | None, tags: dict[str, str]
) -> None:
    priced_point, price_tags = priced(point, table, environment)

    assert (priced_point.platform.price_per_hour, price_tags) == (price, tags)
