"""Users' models: their signatures, their errors, and sweeps of them from the command line."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paradnn.config.identity import point_id, point_request
from paradnn.config.point import Point
from paradnn.config.reading import read_point
from paradnn.core.errors import ConfigError, UnavailableError
from paradnn.families import make_model
from tests.conftest import TINY, Store, run

SHORT = [word for word in TINY if word.startswith(("measure", "ceilings", "batch"))]
SOURCE = """
import keras
from typing import Literal, Optional

def net(width: int = 8, rate=0.5, kind: Literal["relu", "tanh"] = "relu", more: Optional[int] = None):
    inputs = keras.Input((16,))
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dense(width, activation=kind)(inputs)))

class Net:
    def __init__(self, depth: "int", *, sizes: tuple[int, ...] = (3, 4)):
        pass

def nothing(): pass
def number(): return 3
def raises(): raise ValueError("no such thing")
def shapeless(): return keras.Sequential([keras.layers.Dense(1)])
def several():
    inputs = keras.Input((16,))
    return keras.Model(inputs, [keras.layers.Dense(4)(inputs), keras.layers.Dense(2)(inputs)])
def frozen():
    made = net()
    made.trainable = False
    return made
def words():
    return keras.Sequential([keras.Input((5,), dtype="int32"), keras.layers.Embedding(9, 4), keras.layers.Dense(9)])
def example():
    import numpy
    return keras.Sequential([keras.layers.Dense(1)]), numpy.zeros((2, 3, 5), "float32")
def untyped(width): pass
def odd(width: Literal[str.upper("s")] = "S"): pass
def clash(size: int = 3): pass
"""
SAVE = """
import keras
keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)]).save("net.keras")
keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x + 1)]).save("code.keras")
keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x + 1)]).save("code.h5")
class Custom(keras.layers.Layer):
    def call(self, inputs):
        return inputs
keras.Sequential([keras.Input((4,)), Custom()]).save("custom.keras")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return path


def point(path: Path, function: str = "net", **keys: Any) -> Point:
    return read_point({"model": {"name": "own", "build": f"{path}:{function}", **keys}})


def test_parameters_are_keys_with_their_types_and_defaults(file: Path) -> None:
    model = point_request(point(file, width=32))["model"]
    assert [model[key] for key in ("width", "rate", "kind", "more")] == [32, 0.5, "relu", None]
    assert model["build"] == f"{file}:net"
    assert len(model["source"]) == 16
    assert make_model(model).size == "net width=32 rate=0.5 kind=relu more=None"
    assert point_request(point(file, "Net", depth=2, sizes=[5]))["model"]["sizes"] == [5]


def test_a_point_is_identified_by_the_file_and_the_arguments(file: Path) -> None:
    before = point_id(point(file))
    # A width of 8 is the default.
    assert point_id(point(file, width=8)) == before
    assert point_id(point(file, width=9)) != before
    file.write_text(SOURCE + "\n# changed\n")
    assert point_id(point(file)) != before


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param(
            {"build": "{file}:net", "widht": 3},
            "model.widht=3: no such key; did you mean width?",
            id="misspelt-key",
        ),
        pytest.param(
            {"build": "{file}:net", "width": 1.5},
            "model.width=1.5: expects a whole number",
            id="wrong-type",
        ),
        pytest.param(
            {"build": "{file}:net", "kind": "elu"},
            "no such choice; did you mean relu? choose one of relu, tanh",
            id="invalid-choice-of-a-literal",
        ),
        pytest.param(
            {"build": "{file}:nets"},
            "the file has no function nets; choose one of its functions: net, Net",
            id="no-such-function",
        ),
        pytest.param(
            {"build": "{file}:Net"},
            "Net has no default for this parameter; set model.depth=VALUE",
            id="missing-argument",
        ),
        pytest.param(
            {"build": "{file}:untyped"},
            "is a parameter of untyped without a type; annotate it as int",
            id="no-annotation",
        ),
        pytest.param(
            {"build": "{file}:odd"},
            "model.width=Literal[str.upper('s')]: is not a type that a key of odd can have",
            id="computed-annotation",
        ),
        pytest.param(
            {"build": "{file}:clash"},
            "is a parameter of clash whose name ParaDnn reserves; rename the parameter",
            id="reserved-name",
        ),
        pytest.param(
            {"build": ""},
            "does not name a function; write model.build=my_models.py:make_net",
            id="empty",
        ),
        pytest.param({"build": "none.py:net"}, "there is no file", id="no-such-file"),
        pytest.param(
            {"build": "no_such_package.models:net"},
            "there is no module no_such_package.models",
            id="no-such-package",
        ),
        pytest.param(
            {"build": "json:nothing"},
            "the file has no function nothing",
            id="no-such-name-in-package",
        ),
        pytest.param({"build": "math:sin"}, "there is no module math", id="module-without-source"),
        pytest.param(
            {"name": "keras_file", "path": "none.keras"},
            "model.path=none.keras: there is no such file",
            id="no-such-keras-file",
        ),
        pytest.param(
            {"name": "onnx"},
            "give the path of the file: model=onnx model.path=...",
            id="no-path",
        ),
        pytest.param(
            {"name": "timm"},
            "framework=tensorflow: model=timm requires framework=torch",
            id="wrong-framework",
        ),
        pytest.param(
            {"name": "timm", "pretrained": True},
            "is not supported, because ParaDnn draws random weights",
            id="pretrained-weights",
        ),
        pytest.param(
            {"name": "transformers", "config": "none.json"},
            "there is no such file",
            id="no-such-config",
        ),
    ],
)
def test_an_invalid_model_is_rejected_before_its_code_runs(
    file: Path, keys: dict[str, Any], message: str
) -> None:
    keys = {"name": "own", **keys}
    if "build" in keys:
        keys["build"] = keys["build"].format(file=file)
    with pytest.raises(ConfigError) as error:
        read_point({"model": keys})
    assert message in str(error.value)


def test_the_remedy_for_a_git_lfs_pointer_is_the_command_that_fetches_the_file(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    pointer = folder / "net.onnx"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")

    with pytest.raises(ConfigError) as error:
        read_point({"model": {"name": "onnx", "path": str(pointer)}})

    message, _, remedy = str(error.value).partition("; run ")
    assert message.endswith("net.onnx: is a pointer of Git LFS, not the file itself")
    assert shlex.split(remedy) == ["git", "-C", str(folder), "lfs", "pull"]


def test_a_file_with_a_syntax_error_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import os; os._exit(3)\ndef net(:\n")
    with pytest.raises(ConfigError, match="line 2: invalid syntax; fix the file"):
        point(tmp_path / "broken.py")


def test_the_error_of_a_broken_package_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms')")
    monkeypatch.syspath_prepend(tmp_path)
    reason = (
        r"the package timm cannot be used here: operator t.*"
        r"; pip install 'paradnn\[architectures\]'"
    )
    with pytest.raises(UnavailableError, match=reason):
        make_model({"name": "timm", "architecture": "resnet18"}).built_model()


@pytest.mark.framework
def test_values_derived_from_a_configuration_key_are_updated(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        '{"model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": 1, "vocab_size": 50}'
    )
    keys = {
        "name": "transformers",
        "config": str(file),
        "hidden_size": 64,
        "num_attention_heads": 4,
    }
    requested: Any = read_point({"model": keys, "framework": {"name": "torch"}})
    module, _ = requested.model.instantiate(pytest.importorskip("transformers"))
    assert module.config.head_dim == 16
    assert module.config.vocab_size == 50
    assert str(module.dtype) == "torch.float32"


@pytest.mark.framework
def test_a_users_model_is_swept_and_resumed_like_any_family(file: Path, store: Store) -> None:
    model = ["model=own", f"model.build={file}:net"]
    sweep = ["paradnn.train", "-m", *model, "model.width=4,6", *SHORT]
    first = run(sweep, store)
    assert first.returncode == 0, first.stderr
    assert "2 known" in run(sweep, store).stdout or len(store.runs()) == 2
    runs = {store.values("params", entry["run_id"])["model.width"]: entry for entry in store.runs()}
    assert set(runs) == {"4", "6"}
    assert {tags["costs"] for tags in runs.values()} == {"counted"}
    metrics = store.values("latest_metrics", runs["6"]["run_id"])
    assert metrics["parameters"] == 17 * 6 + 7 * 4
    # Two layers and four examples: forward pass and all gradients except for that of the inputs.
    assert metrics["flops_per_step"] == 2 * 4 * (2 * 16 * 6 + 3 * 6 * 4)
    assert runs["6"]["checks"] == "passed"
    plan = run(["paradnn.plan", "-m", *model, "model.width=4,6,8", *SHORT], store)
    assert plan.returncode == 0
    assert "3 points" in plan.stdout


@pytest.mark.framework
def test_invalid_functions_end_in_an_outcome_with_a_reason(file: Path, store: Store) -> None:
    names = ("nothing", "number", "raises", "shapeless", "several", "frozen", "words", "example")
    builds = ",".join(f"{file}:{name}" for name in names)
    sweep = run(["paradnn.train", "-m", "model=own", f"model.build={builds}", *SHORT], store)
    assert "8 points" in sweep.stdout
    endings = {}
    for entry in store.runs():
        build = str(store.values("params", entry["run_id"])["model.build"])
        endings[build.rpartition(":")[2]] = (entry["outcome"], entry.get("reason", ""))
    reasons = {name: reason for name, (_, reason) in endings.items()}
    assert reasons["nothing"].startswith("models.py:nothing returns nothing: return a Keras model")
    assert reasons["number"].startswith("models.py:number returns int: ")
    assert endings["raises"] == ("crash", "build: ValueError: no such thing (models.py, line 15)")
    assert "set model.input_shape" in reasons["shapeless"]
    assert "several outputs: set mode=inference" in reasons["several"]
    assert "no weights to train: set mode=inference" in reasons["frozen"]
    assert endings["words"] == ("ok", "")
    assert endings["example"] == ("ok", "")


@pytest.mark.framework
def test_a_keras_file_cannot_run_code(tmp_path: Path, store: Store) -> None:
    subprocess.run([sys.executable, "-c", SAVE], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "no.keras").write_text("nothing")
    names = ("net.keras", "code.keras", "code.h5", "no.keras", "custom.keras")
    paths = ",".join(str(tmp_path / name) for name in names)
    run(
        [
            "paradnn.train",
            "-m",
            "model=keras_file",
            f"model.path={paths}",
            "mode=inference",
            *SHORT,
        ],
        store,
    )
    runs = {
        Path(store.values("params", entry["run_id"])["model.path"]).name: entry
        for entry in store.runs()
    }
    outcomes = [runs[name]["outcome"] for name in names]
    assert outcomes == ["ok", *["unavailable"] * 4]
    assert "safe mode" in runs["code.keras"]["reason"]
    assert "no.keras is not a zip archive, as .keras files are" in runs["no.keras"]["reason"]
    assert (
        "Could not locate class 'Custom'; build it in your own function"
        in runs["custom.keras"]["reason"]
    )
