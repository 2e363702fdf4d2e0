"""Models from outside: their signatures read, what is wrong with them said in a line, measured by
the command line.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(SOURCE)
    return path


def point(path: Path, function: str = "net", **keys: Any) -> Point:
    return read_point({"model": {"name": "own", "build": f"{path}:{function}", **keys}})


def test_parameters_are_keys_with_their_types_and_defaults(file: Path) -> None:
    held = point_request(point(file, width=32))["model"]
    assert [held[key] for key in ("width", "rate", "kind", "more")] == [32, 0.5, "relu", None]
    assert (held["build"], len(held["source"])) == (f"{file}:net", 16)
    assert make_model(held).size == "net width=32 rate=0.5 kind=relu more=None"
    assert point_request(point(file, "Net", depth=2, sizes=[5]))["model"]["sizes"] == [5]


def test_a_changed_file_is_another_point_and_a_spelt_out_default_is_the_same(file: Path) -> None:
    before = point_id(point(file))
    assert point_id(point(file, width=8)) == before != point_id(point(file, width=9))
    file.write_text(SOURCE + "\n# changed\n")
    assert point_id(point(file)) != before


WRONG = yaml.safe_load(Path(__file__).with_name("own_refused.yaml").read_text())


@pytest.mark.parametrize(("said", "keys"), WRONG.items())
def test_what_is_wrong_is_said_before_anything_runs(
    file: Path, said: str, keys: dict[str, Any]
) -> None:
    given = {
        key: value.replace("HERE", str(file)) if key == "build" else value
        for key, value in keys.items()
    }
    with pytest.raises(ConfigError) as error:
        read_point({"model": {"name": "own", **given}})
    assert said in str(error.value)


def test_a_file_that_is_no_python_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import os; os._exit(3)\ndef net(:\n")
    with pytest.raises(ConfigError, match="line 2: invalid syntax; mend the file"):
        point(tmp_path / "broken.py")


def test_a_package_that_does_not_fit_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms')")
    monkeypatch.syspath_prepend(tmp_path)
    says = r"the package timm cannot be used here: operator t.*; pip install 'paradnn\[architectures\]'"
    with pytest.raises(UnavailableError, match=says):
        make_model({"name": "timm", "architecture": "resnet18"}).built_model()


@pytest.mark.framework
def test_what_follows_from_a_key_of_a_configuration_follows(tmp_path: Path) -> None:
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
    asked: Any = read_point({"model": keys, "framework": {"name": "torch"}})
    module, _ = asked.model.made(pytest.importorskip("transformers"))
    assert (module.config.head_dim, module.config.vocab_size, str(module.dtype)) == (
        16,
        50,
        "torch.float32",
    )


@pytest.mark.framework
def test_it_is_swept_and_resumed_like_any_family(file: Path, store: Store) -> None:
    sweep = [
        "paradnn.train",
        "-m",
        "model=own",
        f"model.build={file}:net",
        "model.width=4,6",
        *SHORT,
    ]
    swept = run(sweep, store)
    assert swept.returncode == 0, swept.stderr
    assert "2 known" in run(sweep, store).stdout or len(store.runs()) == 2
    runs = {store.values("params", each["run_id"])["model.width"]: each for each in store.runs()}
    assert {width: tags["costs"] for width, tags in runs.items()} == {
        "4": "counted",
        "6": "counted",
    }
    metrics = store.values("latest_metrics", runs["6"]["run_id"])
    assert metrics["parameters"] == 17 * 6 + 7 * 4
    # Two layers for four examples: forward, and both gradients but that of the inputs.
    assert metrics["flops_per_step"] == 2 * 4 * (2 * 16 * 6 + 3 * 6 * 4)
    assert runs["6"]["checks"] == "passed"
    planned = run(["paradnn.plan", *sweep[1:5], "model.width=4,6,8", *SHORT], store)
    assert (planned.returncode, "3 points" in planned.stdout) == (0, True)


@pytest.mark.framework
def test_functions_that_are_wrong_end_in_an_outcome(file: Path, store: Store) -> None:
    names = ("nothing", "number", "raises", "shapeless", "several", "frozen", "words", "example")
    builds = ",".join(f"{file}:{name}" for name in names)
    done = run(["paradnn.train", "-m", "model=own", f"model.build={builds}", *SHORT], store)
    assert "8 points" in done.stdout
    found = {}
    for each in store.runs():
        build = str(store.values("params", each["run_id"])["model.build"])
        found[build.rpartition(":")[2]] = each["outcome"], each.get("reason", "")
    assert found["nothing"][1].startswith("models.py:nothing returns nothing: return a Keras model")
    assert found["number"][1].startswith("models.py:number returns int: ")
    assert found["raises"] == ("crash", "build: ValueError: no such thing (models.py, line 15)")
    assert "set model.input_shape" in found["shapeless"][1]
    assert "several outputs: set mode=inference" in found["several"][1]
    assert "no weights to train: set mode=inference" in found["frozen"][1]
    assert found["words"] == found["example"] == ("ok", "")


@pytest.mark.framework
def test_a_file_of_keras_is_loaded_without_code_of_its_own(tmp_path: Path, store: Store) -> None:
    subprocess.run([sys.executable, "-c", SAVE], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "no.keras").write_text("nothing")
    paths = ",".join(
        str(tmp_path / name) for name in ("net.keras", "code.keras", "code.h5", "no.keras")
    )
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
    found = {
        Path(store.values("params", each["run_id"])["model.path"]).name: each
        for each in store.runs()
    }
    outcomes = [
        found[name]["outcome"] for name in ("net.keras", "code.keras", "code.h5", "no.keras")
    ]
    assert outcomes == ["ok"] + ["unavailable"] * 3
    assert "safe mode" in found["code.keras"]["reason"]
