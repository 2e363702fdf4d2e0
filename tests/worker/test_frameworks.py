"""Points measured in JAX and PyTorch: outcomes, profiles, compilations and memory.

`make test-frameworks` installs both frameworks.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.outcome import PointResult
from paradnn.core.messages import NoProfile, Profile
from paradnn.families import make_model
from paradnn.families.own import content_of
from paradnn.session.workers import WorkerKey, WorkerPool
from tests.conftest import ROOT, Store, process
from tests.worker import families
from tests.worker.families import BATCH, MODELS, RMSPROP
from tests.worker.test_devices import LOSS_TOLERANCE, check_memory
from tests.worker.two_hosts import ADDRESSES, QUICK, second_host

#: Time limit of a point in seconds. No point should reach it, but a busy machine takes many minutes
#: to compile some models.
LIMIT = 1200.0
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool() as workers:
        yield workers


def measure(pool: WorkerPool, framework: str, family: str, **changes: Any) -> PointResult:
    protocol = {
        "min_blocks": 1,
        "max_seconds": 1.0,
        "profile": True,
        "timeout": LIMIT,
    } | changes.pop("measure", {})
    point = {"model": MODELS[family], "optimizer": RMSPROP, "measure": protocol} | changes
    return families.measure(pool, point, framework, LIMIT)


def test_jax_reduces_over_devices_within_its_program(pool: WorkerPool) -> None:
    result = measure(pool, "jax", "fc", devices=2)
    assert result.outcome == "ok", result.reason
    costs = make_model(MODELS["fc"]).costs(
        batch_size=BATCH, precision="float32", mode="train", optimizer="rmsprop"
    )
    profile = result.answer.profile
    assert profile.product_flops == pytest.approx(costs.flops_per_step, rel=0.1)
    assert "communication" in {row["category"] for row in profile.operation_types.rows()}


def test_jax_divides_the_weights_among_devices(pool: WorkerPool) -> None:
    one = measure(pool, "jax", "fc")

    result = measure(pool, "jax", "fc", devices=2, parallel="model")

    assert result.outcome == "ok", result.reason
    measured = result.answer.measurement
    expected = one.answer.measurement
    assert measured.first_loss == pytest.approx(expected.first_loss, rel=LOSS_TOLERANCE)
    assert measured.parameters == expected.parameters
    # Kernels of 50 x 64, 64 x 64 and 64 x 10 are divided, and biases copied.
    kernels = 50 * 64 + 64 * 64 + 64 * 10
    assert result.answer.work.parameters_per_device == kernels // 2 + 64 + 64 + 10
    assert "communication" in {
        row["category"] for row in result.answer.profile.operation_types.rows()
    }


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("compile_mode", ["graph", "eager"])
def test_jax_divides_the_weights_in_every_mode(
    pool: WorkerPool, mode: str, compile_mode: str
) -> None:
    changes = {"mode": mode, "compile": compile_mode, "measure": {"profile": False}}
    result = measure(pool, "jax", "fc", devices=2, parallel="model", **changes)
    assert result.outcome == "ok", result.reason


@pytest.mark.parametrize(
    ("framework", "changes", "reason"),
    [
        pytest.param(
            "torch",
            {},
            "framework=torch has no parallel=model, because Keras divides weights among devices "
            "only with JAX: set framework=jax or parallel=data",
            id="different framework",
        ),
        pytest.param(
            "jax",
            {"devices": 7, "batch_size": 7},
            "no weight can be divided, because no weight's last axis is a multiple of devices=7: "
            "choose other sizes of the model, or set parallel=data",
            id="indivisible weights",
        ),
    ],
)
def test_points_whose_weights_cannot_be_divided_are_unavailable(
    pool: WorkerPool, framework: str, changes: dict[str, Any], reason: str
) -> None:
    result = measure(pool, framework, "fc", **{"devices": 2, "parallel": "model", **changes})
    assert (result.outcome, result.reason) == ("unavailable", reason)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_reference_kernels_run_between_the_blocks_of_each_framework(
    pool: WorkerPool, framework: str
) -> None:
    with_reference = {"reference": True, "min_blocks": 6, "block_seconds": 0.05, "profile": False}
    result = measure(pool, framework, "fc", measure=with_reference)
    assert result.outcome == "ok", result.reason
    timing = result.answer.measurement.timing
    before = [entry for entry in timing.references if entry.blocks == -1]
    assert timing.references[: len(before)] == before
    assert len(before) == 12
    assert timing.references[-1].blocks == len(timing.blocks)
    for entry in timing.references:
        assert set(entry.seconds) == {"arithmetic", "memory", "dispatch"}
        assert min(entry.seconds.values()) > 0
    assert timing.reference_seconds > 0


CASES = [
    *[("jax", "xla", family) for family in MODELS],
    *[("torch", "eager", family) for family in MODELS],
    ("jax", "eager", "fc"),
    *[("torch", "graph", family) for family in ("fc", "residual", "lstm")],
]


@pytest.mark.parametrize(
    ("framework", "compile_mode", "family"), CASES, ids=["-".join(case) for case in CASES]
)
def test_profiles_agree_with_analytic_costs(
    pool: WorkerPool, framework: str, compile_mode: str, family: str
) -> None:
    result = measure(pool, framework, family, compile=compile_mode)
    assert result.outcome == "ok", result.reason
    profile = result.answer.profile
    assert isinstance(profile, Profile), profile
    costs = make_model(MODELS[family]).costs(
        batch_size=BATCH, precision="float32", mode="train", optimizer="rmsprop"
    )
    assert result.answer.measurement.parameters == costs.parameters
    assert profile.product_flops == pytest.approx(costs.flops_per_step, rel=0.1)
    for name in ("operations", "operation_types"):
        table = getattr(profile, name).rows()
        assert sum(row["share"] for row in table) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("framework", ["jax", "torch"])
@pytest.mark.parametrize("family", ["fc", "residual", "lstm"])
def test_steps_are_finite_in_every_precision(
    pool: WorkerPool, framework: str, family: str, precision: str
) -> None:
    result = measure(
        pool,
        framework,
        family,
        precision=precision,
        compile="eager" if framework == "torch" else "graph",
    )
    assert result.outcome == "ok", result.reason


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_exhausted_memory_is_an_outcome(pool: WorkerPool, framework: str) -> None:
    huge = {
        "name": "fc",
        "layers": 1,
        "nodes": 2_000_000,
        "input_size": 2_000_000,
        "output_size": 2,
    }
    result = measure(pool, framework, "fc", model=huge, compile="eager")
    assert result.outcome == "oom_host", result.reason


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_other_frameworks_are_not_imported(framework: str) -> None:
    code = (
        "import sys; from paradnn.worker import frameworks; f = frameworks.load(sys.argv[1]); import keras;"
        "keras.utils.set_random_seed(0);"
        "print(sorted(m for m in ('tensorflow', 'jax', 'torch') if sys.modules.get(m)))"
    )
    environ = WorkerKey(sys.executable, framework, None, "cpu", ()).environ()
    output = subprocess.check_output(
        [sys.executable, "-c", code, framework], env=environ, text=True
    )
    # Keras itself imports JAX if it is installed.
    assert output.strip() == {"jax": "['jax']", "torch": "['jax', 'torch']"}[framework]


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_frameworks_measure_without_protobuf(
    framework: str, without_protobuf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without protobuf, JAX's trace cannot be read, but PyTorch's can."""
    monkeypatch.setenv("PYTHONPATH", str(without_protobuf))
    with WorkerPool() as workers:
        result = measure(
            workers, framework, "fc", compile="graph" if framework == "jax" else "eager"
        )
    assert result.outcome == "ok", result.reason
    assert result.answer.measurement.timing.blocks
    assert isinstance(result.answer.profile, NoProfile if framework == "jax" else Profile)


@pytest.mark.parametrize(
    ("framework", "compile_mode"), [("jax", "graph"), ("jax", "eager"), ("torch", "eager")]
)
def test_only_the_first_step_compiles(pool: WorkerPool, framework: str, compile_mode: str) -> None:
    compilation = measure(
        pool, framework, "fc", compile=compile_mode
    ).answer.measurement.compilation
    if framework == "torch":
        assert (compilation.programs, compilation.note) == ([0], None)
        return
    first_step, *later_steps = compilation.programs
    assert later_steps == [0]
    if compile_mode == "graph":
        assert first_step == 1
        assert "jax.jit" in compilation.note
    else:
        assert first_step > 10
        assert "jax.disable_jit" in compilation.note


def test_pytorch_compiles_until_a_step_compiles_nothing(pool: WorkerPool) -> None:
    """Measure a recurrent model, which compiles again in its second step.

    This extends the phase `compile`, and the note gives the reason.
    """
    plain = measure(pool, "torch", "fc").answer.measurement.compilation
    assert plain.programs[-1] == 0
    assert plain.note == "torch.compile: 2 graphs, 0 graph breaks, 0 recompilations"
    # Points do not use PyTorch's compilation cache, so the next point compiles again.
    second_measurement = measure(pool, "torch", "fc").answer.measurement
    assert second_measurement.product_types == {"float32": 1.0}
    short = MODELS["lstm"] | {"layers": 1, "sequence_length": 4}
    result = measure(pool, "torch", "lstm", model=short)
    assert result.outcome == "ok", result.reason
    recurrent = result.answer.measurement.compilation
    assert len(recurrent.programs) > 2
    assert recurrent.programs[1] > 0
    assert recurrent.programs[-1] == 0
    assert "graph break" in recurrent.note
    # Nothing compiles during the blocks.
    assert "compiled" not in result.answer.measurement.timing.steady_reason


def test_a_point_compiles_its_model_and_no_probe_of_the_processor(tmp_path: Path) -> None:
    """PyTorch compiles probes for ten seconds, so all points share the cache of the probes."""
    code = (
        "import os, torch; from paradnn.worker.frameworks.torch import _compiled;"
        "_compiled(torch.sin, 'graph', torch.device('cpu'), 'default')(torch.ones(64));"
        "print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    )
    own = {
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    environ = {**WorkerKey(sys.executable, "torch", None, "cpu", ()).environ(), **own}
    completed = subprocess.check_output(
        [sys.executable, "-c", code], env=environ, cwd=tmp_path, text=True
    )
    of_point = {path.read_text() for path in Path(completed.strip()).rglob("*.cpp")}
    of_all = {path.read_text() for path in tmp_path.rglob("*.cpp")} - of_point
    assert any("sin" in text for text in of_point)
    assert not any("_chk_kernel" in text for text in of_point)
    assert all("_chk_kernel" in text for text in of_all)
    assert of_all


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_several_devices_report_the_flops_of_the_whole_batch(
    pool: WorkerPool, framework: str, tmp_path: Path
) -> None:
    """Count a user's model on two devices; each device's program has only a part of the FLOPs."""
    file = tmp_path / "models.py"
    file.write_text(
        "import keras\n"
        "def net():\n"
        "    return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(128)])\n"
    )
    own = {"name": "own", "build": f"{file}:net", "source": content_of(file)[1]}
    result = measure(pool, framework, "fc", model=own, batch_size=32, devices=2, hosts=1)
    assert result.outcome == "ok", result.reason
    # One product forward and one for the gradients; those of the inputs are not needed.
    assert result.answer.measurement.counted.flops_per_step == 2 * 2 * 32 * 64 * 128


@pytest.mark.parametrize(
    ("framework", "compile_mode"), [("jax", "graph"), ("torch", "eager"), ("torch", "graph")]
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_programs_and_profiles_report_the_same_product_types(
    pool: WorkerPool, framework: str, compile_mode: str, precision: str
) -> None:
    answer = measure(pool, framework, "fc", compile=compile_mode, precision=precision).answer
    assert isinstance(answer.profile, Profile), answer.profile
    assert answer.measurement.product_types == pytest.approx(answer.profile.product_types, abs=0.02)
    if framework == "torch":
        assert answer.measurement.product_types == {precision: 1.0}


@pytest.mark.parametrize(
    ("framework", "compile_mode"), [("jax", "graph"), ("torch", "eager"), ("torch", "graph")]
)
def test_the_memory_of_a_point_equals_that_of_a_plain_process(
    pool: WorkerPool, framework: str, compile_mode: str
) -> None:
    check_memory(pool, framework, compile_mode)


@pytest.mark.parametrize("address", ADDRESSES)
def test_gloo_sends_messages_between_hosts(address: str, store: Store) -> None:
    options = ["model=channel", "model.transport=gloo", "model.bytes=4096", "measure.processes=1"]
    patterns = (
        ["all_reduce,broadcast,latency,bandwidth"],
        ["all_reduce", "model.processes=4"],
    )
    with second_host(address) as variables:
        for pattern, *further in patterns:
            arguments = [*options, f"model.pattern={pattern}", *further, *QUICK]
            completed = process(["paradnn.train", "-m", *arguments], store, **variables)
            assert completed.returncode == 0, completed.stdout + completed.stderr
    points = store.runs()
    assert [(point["outcome"], point.get("reason")) for point in points] == [("ok", None)] * 5
    assert {store.values("params", point["run_id"])["framework.name"] for point in points} == {
        "torch"
    }


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_unsupported_work_of_a_framework_is_unavailable(pool: WorkerPool, framework: str) -> None:
    platform = {"name": "cpu", "threads": None, "index": 7 if framework == "torch" else 900}
    result = measure(pool, framework, "fc", platform=platform)
    assert result.outcome == "unavailable"
    assert "so there is no platform.index=" in str(result.reason)
    assert "set framework=litert or onnx" in str(
        measure(pool, framework, "fc", precision="int8_dynamic").reason
    )
