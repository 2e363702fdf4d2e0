"""Record of planted answers, its price, and summaries of raw values.

SciPy and the standard library compute the expected summaries. For points in several processes, the
tests also cover the request to each process and the end of the measurement.
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
from tests.config.test_points import point as asked
from tests.session.records import answered, recorded, timing

QUIET = Contention(2, 0.75, 0.01, 0.0, 40.0, None, None)


def record(
    *contention: Contention,
    other_phases: dict[str, Contention] | None = None,
    latencies: Sequence[float] = (),
) -> Record:
    """Return the record of a point with one process per argument, with 500 ms per step.

    Args:
        contention: The contention of each process while it measures.
        other_phases: The contention of the other phases of the processes.
        latencies: Seconds of every single step, per process.
    """
    point = read_point({"model": {"name": "fc"}, "mode": "inference" if latencies else "train"})
    results = []
    for entry, one in zip_longest(contention, latencies):
        singles = [one] * 200 if one else None
        results.append(
            answered(
                timing([0.5] * 6),
                {"contention": entry},
                contention=other_phases or {},
                latencies=singles,
            )
        )
    return recorded(point, *results)


def test_the_note_of_a_run_has_interval_and_contention() -> None:
    """The sentence in the UI must not be more confident than the metrics."""
    blocks = [0.4, 0.5, 0.6, 0.45, 0.55, 0.5, 0.52, 0.48]
    reason = "other processes took 1.0 of 2 cores"
    busy = replace(QUIET, foreign_cpu_fraction=0.5, reason=reason)
    processes = [answered(timing(blocks), {"contention": entry}) for entry in (QUIET, busy)]
    made = recorded(read_point({"model": {"name": "fc"}}), *processes, processes[0])

    ends = [made.metrics[f"examples_per_second_{end}"] for end in ("low", "high")]
    low, high = (rounded(end) for end in ends)
    rate = rounded(made.metrics["examples_per_second"])
    note = made.description
    assert f"**{rate} examples/s** (95% interval {low} to {high}), 500.000 ms a step" in note
    assert note.endswith(f"**Contended**: {made.tags['contended_reason']}.")
    assert "Contended" not in record(QUIET).description
    apart = [answered(timing([seconds] * 6)) for seconds in (0.5, 0.51)]
    unknown = recorded(read_point({"model": {"name": "fc"}}), *apart)
    assert f"({unknown.tags['interval_reason']})" in unknown.description


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
    several = [
        replace(QUIET, reason=f"other processes took {taken} of 2 cores")
        for taken in ("1.1", "1.5", "0.9")
    ]
    assert record(*several).tags["contended_reason"] == "other processes took 1.5 of 2 cores", (
        "the worst, once"
    )


def test_a_step_has_a_processor_time() -> None:
    """The processes use 75% of two cores during a step of 500 ms.

    A process that is stopped for half of this time uses half as much processor time.
    """
    assert record(QUIET).metrics["processor_time_ms"] == pytest.approx(750.0)
    assert record(replace(QUIET, own_cpu_fraction=0.375)).metrics[
        "processor_time_ms"
    ] == pytest.approx(375.0)
    assert record(QUIET).description.endswith("500.000 ms a step, steady.")
    unsteady = recorded(
        asked("model=fc"), answered(timing([0.5] * 6, steady=False, steady_reason="a drift"))
    )
    assert unsteady.description.endswith("500.000 ms a step, not steady: a drift.")


def test_a_median_of_single_steps_far_from_the_step_time_fails_a_check() -> None:
    problem = "the median of single steps is 1100 ms, but a step of the blocks takes 500 ms"
    assert problem in record(QUIET, latencies=[1.1]).tags["checks"]
    assert "single steps" not in record(QUIET, latencies=[0.6]).tags["checks"]
    busy = {"latency": replace(QUIET, reason="it was busy")}
    assert "single steps" not in record(QUIET, latencies=[1.1], other_phases=busy).tags["checks"]


# These are no contradictions: XLA omits products of one example and products with padding, its CPU
# compiler computes depthwise gradients for all pairs of channels, and an engine computes whole
# registers.
@pytest.mark.parametrize(
    ("words", "metrics", "said"),
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
            "the step waited for input 1.200 of its time",
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
    words: str, metrics: dict[str, float], said: str | None
) -> None:
    costs = step_costs(asked(words))
    answer = answered(
        timing([0.5] * 6), {"parameters": metrics.get("parameters", costs.parameters)}
    ).answer
    assert answer
    problems = find_contradictions(asked(words), costs, metrics, answer)
    assert "".join(problems).startswith(said) if said else problems == []


# Compile time computed by hand from the seconds of steps.

#: Ten steps per block; a typical step takes 0.1 s.
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


def test_precision_is_that_of_the_operands() -> None:
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


def holds(found: Summarized, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def test_an_interval_ends_at_the_extremes_or_has_a_reason_for_its_absence() -> None:
    """No interval extends to values that are far from every block.

    Such an interval would follow from a drift, or from two processes that differ strongly.
    """
    drift = [1.0 + 0.05 * index for index in range(20)]
    assert summarize([drift]).low is None
    assert str(summarize([drift]).reason).startswith(
        "20 blocks are too strongly autocorrelated: they count as"
    )
    assert str(summarize([[1.0] * 5]).reason).startswith("5 blocks, but an interval needs 6")
    apart = summarize([[1.0, 1.1] * 5, [2.0, 2.1] * 5])
    assert (apart.low, apart.high) == (None, None)
    assert str(apart.reason).startswith(
        "the medians of 2 processes differ by up to 95%, and so few processes"
    )
    near = summarize([[1.0, 1.5] * 5, [1.01, 1.5] * 5])
    assert near.reason is None
    random = np.random.default_rng(0)
    for _ in range(300):
        blocks = np.exp(0.1 * random.standard_normal(24).cumsum())
        found = summarize([blocks.tolist()])
        assert found.low is None or blocks.min() <= found.low <= found.high <= blocks.max()


@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("goal", [0.02, 0.01])
def test_an_interval_that_decides_the_number_of_processes_keeps_its_coverage(
    first: int, goal: float
) -> None:
    """At most 30 processes differ by 1%; the coverage over 600 trials is 95%.

    The tolerance is three standard deviations, plus 1% for the error of the method.
    """
    random = np.random.default_rng(7)
    held = 0
    for _ in range(600):
        drawn = [[value] for value in np.exp(random.normal(0, 0.01, 30)).tolist()]
        count = next((n for n in range(first, 31) if narrow_enough(drawn[:n], goal)), 30)
        held += holds(summarize(drawn[:count], stopped_by_interval=True), 1.0)
    assert 0.91 < held / 600 < 0.99


def test_the_interval_of_processes_covers_where_that_of_one_does_not() -> None:
    """Planted deviations are 2% between processes and 1% within; three processes, ten blocks each.

    The blocks of one process contain no information about the other processes.
    """
    random = np.random.default_rng(0)
    several = 0
    single = 0
    between = []
    for _ in range(2000):
        middles = random.normal(0, 0.02, 3)
        blocks = np.exp(middles[:, None] + random.normal(0, 0.01, (3, 10))).tolist()
        found = summarize(blocks)
        one = summarize(blocks[:1])
        several += holds(found, 1.0)
        single += holds(one, 1.0)
        between.append(found.between_cv)
    assert 1870 <= several <= 1930  # 95% within three standard deviations
    assert single < 1000
    assert np.sqrt(np.mean(np.square(between))) == pytest.approx(0.02, rel=0.1)


def planted(*seconds: float, **settings: Any) -> OpenPoint:
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


#: Two processes, and further ones until the half-width of the interval is 2% of the value.
NARROW = {"processes": 2, "relative_interval": 0.02}


@pytest.mark.parametrize(
    ("seconds", "settings", "is_complete"),
    [
        pytest.param([1.0], {}, True, id="one of one"),
        pytest.param([1.0], {"processes": 2}, False, id="one of two"),
        pytest.param([1.0, 1.1], {"processes": 2}, True, id="two of two"),
        pytest.param([1.0, 1.1], NARROW, False, id="wide interval"),
        pytest.param([1.0, 1.1], {**NARROW, "max_processes": 2}, True, id="wide, but the last"),
        pytest.param([1.0, 1.001, 1.002], NARROW, False, id="narrow by chance"),
        pytest.param([1.0, 1.001, 1.002, 1.003], NARROW, True, id="narrow"),
        pytest.param([1.0], {"relative_interval": 0.02}, True, id="one process measures on itself"),
    ],
)
def test_when_a_point_has_enough_processes(
    seconds: list[float], settings: dict[str, Any], is_complete: bool
) -> None:
    assert planted(*seconds, **settings).is_complete is is_complete


def test_only_the_first_process_profiles_and_a_failure_ends_all() -> None:
    settings = {"profile": True, "keep_trace": True, "relative_interval": 0.02}
    first = planted(processes=2, **settings).request()
    second = planted(1.0, processes=2, **settings).request()
    assert [entry["measure"]["profile"] for entry in (first, second)] == [True, False]
    assert [entry["measure"]["keep_trace"] for entry in (first, second)] == [True, False]
    assert [entry["measure"]["relative_interval"] for entry in (first, second)] == [None, None]
    assert planted(**settings).request()["measure"]["relative_interval"] == 0.02


def test_every_process_and_replicate_has_a_separate_schedule() -> None:
    """Processes with the same arrivals would share the chance effects of those arrivals.

    The first process has LoadGen's schedule.
    """
    seeds = []
    for replicate in range(3):
        for done in range(3):
            entry = planted(*[1.0] * done, processes=3)
            load = Server(rate=100.0)
            entry.point = replace(entry.point, workload=load, replicate=replicate)
            seeds.append(entry.request()["server"]["seed"])
    assert seeds[0] == LOADGEN_SEED
    assert len(set(seeds)) == len(seeds)
    entry.point = replace(entry.point, workload=replace(load, seed=2**32 - 1))
    assert 0 <= entry.request()["server"]["seed"] < 2**32


def test_unusable_numbers_end_the_point_and_not_the_sweep() -> None:
    entry = planted(1.0, 1.0, processes=2)
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


def test_metrics_of_real_input_are_worked_out_by_hand() -> None:
    found = balance_metrics(INPUT, [1.0, 1.0], 10, "cpu")
    assert found["infeed_fraction"] == 0.5
    assert (found["infeed_gain"], found["infeed_gain_low"]) == pytest.approx((1.0, 0.5))
    assert found["infeed_gain_high"] == pytest.approx(1.5)
    assert found["input_free_examples_per_second"] == pytest.approx(100)
    assert found["input_examples_per_second"] == 50
    assert found["input_cpu_ms_per_example"] == pytest.approx(4)
    # The device works while the host waits: half of a step that takes twice as long.
    assert balance_metrics(INPUT, [1.0, 1.0], 10, "gpu")["infeed_fraction"] == pytest.approx(0.5)
    faster = replace(INPUT, fed_step_seconds=[0.09] * 6)  # faster by chance
    assert balance_metrics(faster, [1.0, 1.0], 10, "gpu")["infeed_fraction"] == 0


ENVIRONMENT = Environment("V100", {}, {}, {"host": "box"})
TABLE = Prices("USD", "2019", "a page", {"V100": "2.5", "box": "1"})


def on_gpu(**platform: object) -> Point:
    return read_point(
        {"model": {"name": "fc"}, "batch_size": 64, "platform": {"name": "gpu", **platform}}
    )


def test_a_price_is_no_part_of_a_point_and_of_no_ceilings() -> None:
    dear = on_gpu(price_per_hour=3.0)
    assert point_id(dear) == point_id(on_gpu())
    former = {"min_seconds": 1.0, "block_seconds": 0.1}
    assert point_id(read_point({"model": {"name": "fc"}, "measure": former})) == "57f7f9f40bab5f25"
    assert ceilings_identity(dear, ENVIRONMENT) == ceilings_identity(on_gpu(), ENVIRONMENT)
    assert point_request(dear)["platform"]["price_per_hour"] == 3.0


TWO = replace(on_gpu(), devices=2)
OWN = on_gpu(price_per_hour=3.0)
OTHER = replace(ENVIRONMENT, device="another")
FROM = {"price_currency": "USD", "price_source": "a page, 2019"}


@pytest.mark.parametrize(
    ("given", "table", "environment", "price", "tags"),
    [
        (on_gpu(), TABLE, ENVIRONMENT, 2.5, FROM),
        (OWN, TABLE, ENVIRONMENT, 3.0, {"price_currency": "USD"}),
        (on_gpu(), TABLE, OTHER, 1.0, FROM),  # the host's price
        (on_gpu(), Prices(), ENVIRONMENT, None, {}),
        (TWO, TABLE, ENVIRONMENT, 5.0, FROM),  # a price per chip
        (
            replace(TWO, platform=Platform()),
            TABLE,
            ENVIRONMENT,
            2.5,
            FROM,
        ),  # cores have no separate price
        (TWO, TABLE, OTHER, 1.0, FROM),  # devices of a host have no separate price
        (on_gpu(), load_prices("example", "price"), ENVIRONMENT, None, {}),
    ],
)
def test_the_points_own_price_comes_first_and_the_device_before_its_host(
    given: Point, table: Prices, environment: Environment, price: float | None, tags: dict[str, str]
) -> None:
    found, said = priced(given, table, environment)
    assert (found.platform.price_per_hour, said) == (price, tags)
