"""The operation breakdown of profiles.

Parts are compared with hand counts, and totals with TensorFlow's counter and analytic costs.
"""

import functools
import time
from pathlib import Path
from typing import Any

import keras
import pytest

from paradnn.families import build, make_model
from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.worker.profile import protos
from paradnn.worker.profile import trace as traces
from paradnn.worker.profile.run import profile_steps
from paradnn.worker.profile.shapes import shares
from paradnn.worker.profile.trace import Event, attribute
from paradnn.worker.step import POLICIES, product_flops, synthetic_batch
from tests.worker.families import BATCH, RMSPROP
from tests.worker.families import MODELS as FAMILIES

#: One model per family, with a single layer if further layers are similar: XLA compiles each layer
#: for seconds.
MODELS = {
    name: model | ({"layers": 1} if name in ("lstm", "gpt") else {})
    for name, model in FAMILIES.items()
}
#: Families whose profile has hardly more FLOPs than the analytic costs.
ATTENTION = {"gpt"}
#: Combinations whose costs TensorFlow's own counter confirms exactly (tests/worker/test_models.py,
#: test_real_models.py).
EXACT = {("graph", "residual"), ("graph", "gpt")}


@functools.cache
def profile(family: str, compile: str, precision: str = "float32", before: int = 2) -> Any:
    """Return the profile of a real step after `before` earlier steps, and the step.

    Each combination is measured once for all tests.
    """
    keras.config.set_dtype_policy(POLICIES[precision])
    framework = TensorFlow()
    workload = build(MODELS[family])
    point = {"compile": compile, "precision": precision, "mode": "train", "optimizer": RMSPROP}
    step = framework.make_step(workload, synthetic_batch(workload, BATCH, 0), point)
    step.run(before)
    begin = time.perf_counter()
    step.run(3)
    return profile_steps(framework, step, (time.perf_counter() - begin) / 3, keep_trace=False), step


@pytest.fixture(autouse=True)
def folder(clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


#: Loops, convolutions and attention in either mode, and a product in each precision.
TABLES = [(family, "graph", "float32") for family in ("fc", "residual", "lstm", "gpt")]
TABLES += [(family, "xla", "float32") for family in ("fc", "gru", "gpt")]
TABLES += [("fc", "graph", "bfloat16"), ("fc", "graph", "float16"), ("fc", "xla", "bfloat16")]
TABLES += [pytest.param("residual", "xla", "float32", marks=pytest.mark.long)]


@pytest.mark.parametrize(("family", "compile", "precision"), TABLES)
def test_profiles_agree_with_the_analytic_costs(family: str, compile: str, precision: str) -> None:
    """Compare a profile with the analytic costs, and with the products that its program states."""
    result, step = profile(family, compile, precision)

    costs = make_model(MODELS[family]).costs(
        batch_size=BATCH, precision=precision, mode="train", optimizer="rmsprop"
    )
    # A compiler pads three channels to four, and a recurrence's first product is with zeros
    # (docs/reference/metrics.md).
    if (compile, family) in EXACT:
        tolerance = 0.01
    elif family in ATTENTION:
        tolerance = 0.02
    else:
        tolerance = 0.07
    assert result.product_flops == pytest.approx(costs.flops_per_step, rel=tolerance)
    if family == "fc":
        assert result.product_flops == costs.flops_per_step
    if family in ("fc", "gpt"):
        stated = product_flops(step)
        assert shares(stated) == pytest.approx(result.product_types, abs=0.01)
        assert sum(stated.values()) == pytest.approx(result.product_flops, rel=0.01)
    assert (compile, precision) == ("xla", "bfloat16") or result.product_types == {precision: 1.0}
    for name in ("operations", "operation_types"):
        table = getattr(result, name).rows()
        assert sum(row["share"] for row in table) == pytest.approx(1.0, abs=1e-6)
        assert table[-1]["type"] == "(no operation)"
        assert table[-1]["share"] == result.unexplained_share
    known = [row for row in result.operations.rows() if row["flops"] and row["self_seconds"]]
    assert all(row["flops_per_second"] == row["flops"] / row["self_seconds"] for row in known)
    categories = {row["category"] for row in known}
    assert "convolution" in categories if family == "residual" else "matmul" in categories


def test_field_numbers_equal_those_of_the_public_formats() -> None:
    """Compare field numbers with those of the classes in the installed TensorFlow."""
    from tensorflow.compiler.xla import xla_data_pb2
    from tensorflow.compiler.xla.service import hlo_pb2
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for name, own in protos.CLASSES.items():
        [public] = [
            getattr(module, name)
            for module in (xplane_pb2, hlo_pb2, xla_data_pb2)
            if hasattr(module, name)
        ]
        for field in own.DESCRIPTOR.fields:
            assert public.DESCRIPTOR.fields_by_name[field.name].number == field.number, (
                name,
                field.name,
            )


def test_time_is_divided_among_concurrent_operations() -> None:
    """Plant ten seconds of two threads.

    Thread "one" runs a loop around two operations; thread "two" runs operations without a loop.
    """
    events = [
        Event("one", "loop", "While", 0.0, 6.0),
        Event("one", "a", "MatMul", 1.0, 3.0),
        Event("one", "b", "Add", 3.0, 4.0),
        Event("two", "c", "Mul", 2.0, 5.0),
        Event("two", "a", "MatMul", 7.0, 8.0),
        Event("two", "late", "Mul", 11.0, 12.0),
    ]
    usage, idle = attribute(events, 0.0, 10.0)
    explained = {name: used.wall_seconds for (name, _), used in usage.items()}
    # a runs alone 1..2 and with c 2..3, and alone 7..8. b runs with c 3..4. The loop runs alone
    # 0..1 and 5..6, and with c 4..5.
    assert explained == pytest.approx({"loop": 2.5, "a": 2.5, "b": 0.5, "c": 1.5})
    assert {name: used.self_seconds for (name, _), used in usage.items()} == {
        "loop": 3,
        "a": 3,
        "b": 1,
        "c": 3,
    }
    assert {name: used.count for (name, _), used in usage.items()} == {
        "loop": 1,
        "a": 2,
        "b": 1,
        "c": 1,
    }
    assert idle == 3.0
    assert idle + sum(explained.values()) == pytest.approx(10.0)


def planted_device(
    name: str, line: str, events: list[tuple[str, dict[str, Any], dict[str, Any]]]
) -> Any:
    """Return a trace plane in the layout of GPU and TPU profilers.

    It has one event per millisecond, half a millisecond long. Each entry of `events` holds the
    event's name, the statistics of its metadata and those of the event.
    """
    plane = protos.XSpace().planes.add(name=name)
    track = plane.lines.add(name=line, timestamp_ns=1_000_000)
    plane.lines.add(name="Steps").events.add(metadata_id=1, duration_ps=10**12)
    keys: dict[str, int] = {}

    def fill(stats: Any, values: dict[str, Any]) -> None:
        for key, value in values.items():
            number = keys.setdefault(key, len(keys) + 1)
            plane.stat_metadata[number].name = key
            stat = stats.add(metadata_id=number)
            setattr(stat, "str_value" if isinstance(value, str) else "int64_value", value)

    for index, (label, metadata, values) in enumerate(events, start=1):
        plane.event_metadata[index].name = label
        fill(plane.event_metadata[index].stats, metadata)
        fill(
            track.events.add(
                metadata_id=index, offset_ps=index * 10**9, duration_ps=5 * 10**8
            ).stats,
            values,
        )
    return plane


def read_planted(plane: Any) -> Any:
    trace = traces.Trace(1.0)
    traces.read_device(plane, trace, 0)
    return trace.events, trace.stated_costs


def test_kernels_of_a_gpu_belong_to_the_operations_that_launched_them() -> None:
    events: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (
            "void gemm<float>(int)",
            {},
            {"annotation": "model/dense/MatMul:MatMul#shape=(float[2,3])#"},
        ),
        ("loop_fusion_3", {}, {"hlo_op": "loop_fusion.3", "hlo_module": "step.7"}),
        ("MemcpyH2D", {}, {"memcpy_details": "size:4"}),
    ]
    kernels, stated = read_planted(planted_device("/device:GPU:0", "Stream #13(Compute)", events))
    copy = ("MemcpyH2D", "MemcpyH2D")
    result = [(event.name, event.kind) for event in kernels]
    assert result == [("model/dense/MatMul", "MatMul"), ("loop_fusion.3", "hlo:step.7"), copy]
    assert {key: cost.category for key, cost in stated.items()} == {copy: "data movement"}
    assert kernels[0].end - kernels[0].start == pytest.approx(5e-4)


def test_operations_of_a_tpu_have_the_costs_that_the_compiler_reports() -> None:
    stats = {"hlo_category": "convolution fusion", "flops": 4000, "bytes_accessed": 500}
    plane = planted_device(
        "/device:TPU:0", "XLA Ops", [("%fusion.3 = f32[8]{0} fusion(...)", stats, {})]
    )
    kernels, stated = read_planted(plane)
    assert [(event.name, event.kind) for event in kernels] == [("fusion.3", "convolution fusion")]
    cost = stated["fusion.3", "convolution fusion"]
    assert (cost.category, cost.flops, cost.bytes, cost.product_flops) == (
        "convolution",
        4000,
        500,
        4000,
    )


def test_a_failing_profile_does_not_fail_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    _, step = profile("fc", "graph")
    framework = TensorFlow()

    def broken(name: str, kind: str) -> None:
        raise KeyError(name)

    assert profile_steps(
        framework, step, 60.0, keep_trace=False, seconds_left=100.0
    ).unavailable.startswith("the profile may take 240 s")
    monkeypatch.setattr(step, "kernel_cost", broken)
    assert profile_steps(framework, step, 1.0, keep_trace=False).unavailable.startswith(
        "KeyError: "
    )
    assert list(Path().iterdir()) == []


def test_kernels_of_one_launch_are_one_execution() -> None:
    """Plant two products, each split and summed by two kernels.

    A kernel that occurs a second time belongs to the next product.
    """
    stats = {"hlo_op": "while.2::dot.1", "hlo_module": "step.7"}
    kernels = [
        ("gemm", {}, stats),
        ("splitKreduce", {}, stats),
        ("gemm", {}, stats),
        ("splitKreduce", {}, stats),
    ]
    plane = planted_device("/device:GPU:0", "Stream #13(Compute)", kernels)
    repeated_line = plane.lines.add(name="XLA Ops", timestamp_ns=1_000_000)
    repeated_line.events.add(metadata_id=1, offset_ps=10**9, duration_ps=5 * 10**8)
    instructions, _ = read_planted(plane)
    assert {(event.name, event.kind) for event in instructions} == {("dot.1", "hlo:step.7")}
    usage, _ = attribute(instructions, 0.0, 1.0)
    assert usage["dot.1", "hlo:step.7"].count == 2
    assert usage["dot.1", "hlo:step.7"].self_seconds == pytest.approx(4 * 5e-4)
