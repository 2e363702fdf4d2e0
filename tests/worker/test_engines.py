"""Inference engines: converted models compared with Keras, profiles, and unsupported work.

`make test-frameworks` installs the engines.
"""

import ast
import contextlib
import importlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paradnn.core.errors import UnavailableError
from paradnn.core.versions import FRAMEWORKS
from paradnn.families.parts.exported_program import plain_archive
from tests.conftest import ROOT, Store, run
from tests.worker.families import SMALL, run_module

ENGINES = sorted(name for name, entry in FRAMEWORKS.items() if entry.is_engine)
CPU = {"name": "cpu", "threads": 1, "index": 0}
POINT = {
    "mode": "inference",
    "compile": "graph",
    "precision": "float32",
    "batch_size": 4,
    "seed": 1,
    "platform": CPU,
}


def prepare_engine_step(engine: str, family: str, **changes: Any) -> Any:
    pytest.importorskip(FRAMEWORKS[engine].package.replace("-", "_"))
    from paradnn.families import FAMILIES
    from paradnn.worker.step import prepare_step

    point = POINT | {"framework": {"name": engine}} | changes
    framework = importlib.import_module(f"paradnn.worker.frameworks.{engine}").FRAMEWORK()
    options = FAMILIES[family].options(name=family, **SMALL[family])
    return prepare_step({**point, "model": vars(options)}, framework)[1]


@pytest.mark.framework
@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_of_a_converted_model_equal_those_of_keras(engine: str, family: str) -> None:
    step = prepare_engine_step(engine, family)
    step.run(2)
    assert step.conversion().conversion_error < 1e-5
    assert step.conversion().artefact_bytes > 1000


@pytest.mark.framework
@pytest.mark.parametrize("family", ["fc", "residual", "lstm"])
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_profile_names_the_operations_and_their_flops(engine: str, family: str) -> None:
    from paradnn.core.messages import Profile
    from paradnn.families import FAMILIES
    from paradnn.worker.profile.run import profile_steps

    step = prepare_engine_step(engine, family)
    step.run(2)
    profile = profile_steps(step._engine, step, 0.01, keep_trace=False)
    assert isinstance(profile, Profile), profile
    rows = profile.operations.rows()
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert {row["count"] for row in rows if row["category"] in ("matmul", "convolution")} >= {1.0}
    model = FAMILIES[family].options(name=family, **SMALL[family])
    costs = model.costs(batch_size=4, precision="float32", mode="inference", optimizer="sgd")
    ratio = profile.product_flops / costs.flops_per_step
    # ONNX Runtime pads channels to the width of a register, which multiplies the few channels of
    # this model.
    highest = 6.0 if (engine, family) == ("onnxruntime", "residual") else 1.02
    assert 0.98 <= ratio <= highest


@pytest.mark.framework
def test_an_engine_without_a_profiler_reports_a_reason() -> None:
    from paradnn.core.messages import NoProfile
    from paradnn.worker.profile.run import profile_steps

    step = prepare_engine_step("litert", "fc")
    step.run(1)
    profile = profile_steps(step._engine, step, 0.01, keep_trace=False)
    assert isinstance(profile, NoProfile)
    assert "takes no profiler" in profile.unavailable
    step.run(1)  # the step must still work


@pytest.mark.framework
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"mode": "train"},
            "runs only forward passes: set mode=inference, or framework=tensorflow to train",
            id="train",
        ),
        pytest.param({"compile": "xla"}, "set compile=graph", id="xla"),
        pytest.param(
            {"precision": "float64"},
            r"has no precision=float64: set one of float32, [\w, ]*int8$",
            id="float64",
        ),
    ],
)
def test_unsupported_work_of_an_engine_is_unavailable(
    engine: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnavailableError, match=reason):
        prepare_engine_step(engine, "fc", **changes)


@pytest.mark.framework
@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        pytest.param([1.0, -2.1], 0.05, id="close"),
        pytest.param([np.nan, -2.0], np.inf, id="not-finite"),
        pytest.param([[1.0, -2.0]], np.inf, id="different-shape"),
    ],
)
def test_the_conversion_error_is_relative_to_the_largest_output(
    outputs: list[Any], error: float
) -> None:
    engines = importlib.import_module("paradnn.worker.frameworks.engines")
    expected = [np.array([1.0, -2.0])]
    assert engines.largest_error([np.array(outputs)], expected) == pytest.approx(error)


@pytest.mark.framework
def test_outputs_without_elements_are_equal() -> None:
    engines = importlib.import_module("paradnn.worker.frameworks.engines")
    empty = [np.zeros((0, 4))]
    assert engines.largest_error(empty, empty) == 0.0


@pytest.mark.framework
@pytest.mark.parametrize(
    ("precision", "expected", "reason"),
    [
        pytest.param(
            "float32",
            [1.0, -2.0],
            r"by 0\.05 of the largest output; the tolerance is 0\.001$",
            id="float32",
        ),
        pytest.param(
            "int8",
            [1.0, -4.0],
            r"by 0\.47 of the largest output; the tolerance is 0\.25: set precision=float32$",
            id="int8",
        ),
        pytest.param("int8", [1.0, -2.0], None, id="int8-may-differ-by-more"),
    ],
)
def test_a_point_whose_outputs_differ_too_much_is_unavailable(
    precision: str, expected: list[float], reason: str | None
) -> None:
    engines = importlib.import_module("paradnn.worker.frameworks.engines")
    session = SimpleNamespace(
        compute_type="", run=lambda: None, outputs=lambda: [np.array([1.0, -2.1])]
    )
    engine: Any = SimpleNamespace(
        title="Always",
        convert=lambda *_: b"artifact",
        load=lambda *_: session,
        as_unavailable=lambda *_, **__: contextlib.nullcontext(),
    )
    source: Any = SimpleNamespace(
        expected_outputs=lambda: [np.array(expected)], artifact=b"", reference="Keras"
    )
    step = engines.EngineStep(engine, source, precision)
    if reason is None:
        step.run(1)
        return
    with pytest.raises(
        UnavailableError, match=f"outputs of Always differ from those of Keras {reason}"
    ):
        step.run(1)


def test_the_versions_module_imports_only_the_standard_library() -> None:
    """The project runs this module's source in interpreters that do not have the project."""
    tree = ast.parse(Path(ROOT / "paradnn/core/versions.py").read_text())
    names = {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"importlib.metadata", "platform", "dataclasses"}


@pytest.mark.framework
@pytest.mark.parametrize("engine", ENGINES)
def test_int8_is_smaller_and_calibrated_on_the_given_examples(engine: str) -> None:
    """Calibrate on examples that are 100 times as large as the step's batch.

    A calibration on the batch would clip them.
    """
    step = prepare_engine_step(engine, "fc", precision="int8")
    generator = np.random.default_rng(0)
    examples = 100 * generator.standard_normal((3, 64), np.float32)  # fewer than a batch
    step.calibrate(examples)
    plain = prepare_engine_step(engine, "fc")
    plain.run(1)
    step.run(1)
    assert 1e-5 < step.conversion().conversion_error < 0.1
    assert step.conversion().artefact_bytes < plain.conversion().artefact_bytes
    outputs = step.outputs([examples[[0, 1, 2, 0]]])
    assert np.array_equal(outputs[0], outputs[3])
    assert not np.array_equal(outputs, step.outputs([examples[[1, 1, 2, 0]]]))


@pytest.mark.framework
@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_one_is_calibrated_on_different_examples(engine: str) -> None:
    source = prepare_engine_step(engine, "fc", precision="int8", batch_size=1)._source
    assert len({array.tobytes() for [array] in source.calibration_batches()}) == 8


@pytest.mark.framework
@pytest.mark.parametrize("engine", ENGINES)
def test_an_operation_that_an_engine_lacks_is_named(engine: str) -> None:
    pytest.importorskip(FRAMEWORKS[engine].package.replace("-", "_"))
    import keras

    from paradnn.families.built import BuiltModel
    from paradnn.worker.frameworks.engines import Source

    class Singular(keras.layers.Layer):  # type: ignore[misc]
        def call(self, matrices: Any) -> Any:
            return keras.ops.svd(matrices, compute_uv=False)

    model = keras.Sequential([keras.Input((4, 4)), Singular()])
    source = Source(BuiltModel(model, ()), [np.ones((2, 4, 4), "float32")], 1)
    framework = importlib.import_module(f"paradnn.worker.frameworks.{engine}").FRAMEWORK()
    with pytest.raises(UnavailableError, match=r"cannot run this model: .*Svd"):
        framework.load(framework.convert(source, "float32"), source, "float32")


@pytest.mark.framework
@pytest.mark.parametrize("engine", ENGINES)
def test_a_loop_is_quantized_or_unavailable(engine: str) -> None:
    """Quantize a GRU.

    LiteRT's converter would crash on a loop, so the point is unavailable before the conversion.
    The reason must omit the first lines of OpenVINO's error, which name a line of its source code.
    """
    step = prepare_engine_step(engine, "gru", precision="int8")
    if engine == "onnxruntime":
        step.run(1)
        assert step.conversion().conversion_error < 0.1
        return
    if engine == "litert":
        reason = "calibration of a loop"
    else:
        reason = "cannot run this model: (?!Exception|Check).*: set precision=float32"
    with pytest.raises(UnavailableError, match=reason):
        step.run(1)


#: Packages that a machine with only an engine lacks.
MISSING = (
    "tensorflow",
    "keras",
    "onnx",
    "psutil",
    "yaml",
    "mlflow",
    "hydra",
    "omegaconf",
    "pandas",
)


@pytest.mark.framework
def test_a_folder_is_measured_on_a_machine_with_only_an_engine(
    store: Store, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    board = tmp_path / "board"
    sweep = [
        "paradnn.train",
        "-m",
        "model=fc",
        "model.nodes=32",
        "framework=onnxruntime",
        "measure=quick",
        "measure.min_seconds=0.1",
        f"elsewhere={board}",
    ]
    assert "set mode=inference" in run(sweep, store).stderr
    other_framework = run([*sweep, "mode=inference", "framework=tensorflow"], store)
    assert "framework=tensorflow" in other_framework.stderr
    board.mkdir()
    (board / "other").touch()
    not_empty = run([*sweep, "mode=inference"], store)
    assert f"elsewhere={board}: is a folder with other files" in not_empty.stderr
    (board / "other").unlink()

    converted = run([*sweep, "mode=inference", "precision=float32,float16"], store)
    assert "has no precision=float16" in converted.stdout
    assert "1 of 2 converted" in converted.stdout

    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({MISSING}))\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "run.py"]
    first = subprocess.check_output(command, cwd=board, env=environ, text=True)
    assert " ok" in first
    second = subprocess.check_output(command, cwd=board, env=environ, text=True)
    assert second == ""

    assert "1 logged, 0 logged before" in run(["paradnn.sync", str(board)], store).stdout
    assert "0 logged, 1 logged before" in run(["paradnn.sync", str(board)], store).stdout
    [result] = board.glob("point-*.json")
    (board / "point-0.json").write_text("{}")
    os.rename(result, board / "point-1.json")
    synced = run(["paradnn.sync", str(board)], store)
    assert "point-0.json: is not a result file, or is damaged" in synced.stderr
    assert "0 logged, 1 logged before, 0 not logged, 1 rejected" in synced.stdout


GRAPH = "net/models/model.json"
WEIGHTS = "net/data/weights/model_weights_config.json"


def archive(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return path


def test_pytorch_gets_no_member_that_it_would_unpickle(tmp_path: Path) -> None:
    pickles = (
        "net/data/sample_inputs/model.pt",
        "net/data/weights/model.pt",
        "net/data/constants/custom_obj_0",
    )
    others = (
        "net/data/constants/opaque_obj_0",
        "serialized_state_dict.pt",
        "net/extra/code.py",
        "net/../models/a.json",
    )
    kept = (
        GRAPH,
        WEIGHTS,
        "net/data/weights/weight_0",
        "net/data/constants/tensor_0",
        "net/archive_format",
    )
    path = archive(tmp_path / "net.pt2", **dict.fromkeys((*kept, *pickles, *others), "{}"))
    with zipfile.ZipFile(plain_archive(path)) as copy:
        assert {name for name in copy.namelist() if copy.read(name)} == set(kept)
        assert copy.read(pickles[0]) == b""
    entry = {"weight": {"path_name": "weight_0", "use_pickle": True}}
    path = archive(
        tmp_path / "pickled.pt2", **{GRAPH: "{}", WEIGHTS: json.dumps({"config": entry})}
    )
    with pytest.raises(UnavailableError, match=r"pickled\.pt2 contains pickled tensors"):
        plain_archive(path)


def test_an_exported_program_computes_the_same_as_its_module(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run_module("exported_program", "torch", [], tmp_path)
