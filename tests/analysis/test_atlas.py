"""The atlas of published timings: what is shipped, what is asked of it, and what a run is held
against.
"""

import json
import shlex
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.atlas import DATA, load, operation
from analysis.atlas.ask import main as ask
from analysis.atlas.expect import expect, published, traced_layers
from analysis.atlas.kernels import COLUMNS, attention, decode, experts, product
from analysis.atlas.normal import _run
from analysis.atlas.versions import change
from benchmarks.atlas import planted
from paradnn.config.reading import read_point
from paradnn.core.errors import ConfigError
from tests.analysis.conftest import copy_of, refusals

FC = {
    "family": "fc",
    "model.layers": 4,
    "model.nodes": 512,
    "model.input_size": 2000,
    "model.output_size": 1000,
}
OWN = """
import keras
from keras import layers

def net(heads: int = 2):
    image = keras.Input((16, 16, 3))
    x = layers.Reshape((64, 8))(layers.Conv2D(8, 3, strides=2, padding="same")(image))
    x = layers.MultiHeadAttention(heads, 4)(x, x)
    return keras.Model(image, layers.Dense(10)(layers.Flatten()(x)))
"""
GPT_WORDS = ("model=gpt", "batch_size=8", "precision=bfloat16", "mode=inference")
GPT = {
    "family": "gpt",
    "model.layers": 4,
    "model.width": 1024,
    "model.heads": 16,
    "model.sequence_length": 512,
}


def test_what_is_shipped_is_small_names_its_source_and_was_tested_on_what_was_left_out() -> None:
    atlas = load()
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 20e6
    assert {"H200", "B200", "A100", "L40S", "V100", "TPU v2", "T4"} <= set(atlas.devices)
    assert (atlas.device("NVIDIA H200 NVL 141GB"), atlas.device("NVIDIA A100 80GB PCIe")) == (
        "H200",
        "A100 PCIe",
    )
    assert all(group.source.count("/") == 1 and group.kept <= group.rows for group in atlas.groups)
    assert all(len(group.timings) == group.kept for group in atlas.groups)
    products = [group for group in atlas.groups if group.kind == "gemm"]
    assert len({group.device for group in products}) >= 8
    assert np.median([group.median_error for group in products]) < 0.07
    assert 0.93 < np.mean([group.coverage for group in atlas.groups]) < 0.97


@pytest.mark.parametrize(
    ("columns", "flops", "moved"),
    [
        (product(64, 128, 32, 2), 2 * 64 * 128 * 32, 2 * (64 * 32 + 32 * 128 + 64 * 128)),
        (
            attention(2, 8, 4, 4, 16),
            sum(4 * 2 * 4 * 16 * seen for seen in range(1, 9)),
            2 * 4 * (2 * 8 * 4 * 16),
        ),
        (attention(1, 8, 1, 1, 1, window=3), 4 * (1 + 2 + 3 * 6), 2 * 4 * 8),
        (decode(1, 10, 4, 2, 8, width=1), 4 * 10 * 4 * 8, 2 * 10 * 2 * 8 + 4 * 4 * 8),
        (
            experts(10_000, 64, 32, 2, 8, 1, 1, 2),
            6 * 20_000 * 32 * 64,
            2 * 8 * 3 * 32 * 64 + 4 * (20_000 * 96 + 10_000 * 64),
        ),
    ],
)
def test_arithmetic_of_kernels_equals_what_is_counted_by_hand(
    columns: dict, flops: float, moved: float
) -> None:
    assert float(columns["flops"]) == pytest.approx(flops)
    assert float(columns["bytes"]) == pytest.approx(moved)


def test_a_published_step_is_found_and_its_prediction_holds_it() -> None:
    row = {**FC, "batch_size": 512, "precision": "bfloat16"}
    seconds = published(row, "TPU v2")
    answer = expect(row, "tpu v2")
    assert load().device("NVIDIA H200") == "H200", "as its driver calls it"
    assert answer.seconds is not None
    assert answer.low <= seconds <= answer.high
    assert any("Emma926/paradnn" in source for source in answer.sources)
    assert published({**row, "model.nodes": 513}, "TPU v2") is None


def test_a_step_grows_with_its_batch_and_is_not_known_where_nothing_was_timed() -> None:
    small, large = (
        expect(
            {**GPT, "batch_size": batch, "precision": "bfloat16", "mode": "inference"},
            "NVIDIA H200",
        )
        for batch in (4, 64)
    )
    assert 2 < large.seconds / small.seconds < 20
    assert sum(large.parts.values()) == pytest.approx(1, abs=0.1)
    assert "not" not in large.why
    lacking = expect({**GPT, "batch_size": 4, "precision": "float32", "mode": "inference"}, "H200")
    assert lacking.seconds is None
    assert "float32" in lacking.why
    huge = {
        **GPT,
        "model.layers": 120,
        "model.width": 20480,
        "batch_size": 4,
        "precision": "bfloat16",
    }
    assert "its weights take 1,125 GiB, and H200 (SXM) has 141" in expect(huge, "H200").why


def test_a_product_that_was_timed_is_nearly_known() -> None:
    rows = load().find("H200", "gemm", "bfloat16", "vLLM").timings
    for row in rows[rows["seconds"] > 2e-5].head(4).to_dict("records"):
        sizes = {f"model.{name}": row[name] for name in "mnk"}
        answer = expect(
            {"family": "gemm", **sizes, "batch_size": 1, "precision": "bfloat16"}, "H200"
        )
        assert answer.seconds == pytest.approx(row["seconds"], rel=0.15)
        assert answer.high / answer.low < 2


def test_what_no_step_has_is_taken_off_products_that_were_timed_with_it() -> None:
    tiny = [operation("gemm", product(8, 256, 256, 2))]
    for engine, precision in (("vLLM", "fp8_block"), ("TensorRT-LLM", "fp8")):
        group = load().find("H200", "gemm", precision, engine)
        own, timed = (
            float(np.exp(group.predict(tiny, as_timed).mean[0])) for as_timed in (False, True)
        )
        assert own + group.before < 5e-6 < 1e-5 < timed


def test_ask_writes_its_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.json"
    assert ask(["--device", "H200", "--json", str(file), *GPT_WORDS]) == 0
    answer = json.loads(file.read_text())
    assert {"device", "seconds", "low", "high", "sources", "extrapolated"} <= set(answer)
    assert answer["device"] == "H200"
    assert answer["low"] < answer["seconds"] < answer["high"]
    assert "from ai-dynamo/aiconfigurator" in capsys.readouterr().out
    assert (
        ask(
            [
                "--device",
                "H200",
                "--device",
                "L40S",
                "--price",
                "H200=3",
                "--price",
                "L40S=1",
                *GPT_WORDS,
            ]
        )
        == 0
    )
    assert "cheapest" in capsys.readouterr().out
    assert ask(["--device", "TPU v2", *GPT_WORDS]) == 1
    assert "not known" in capsys.readouterr().out


def test_a_model_of_ones_own_is_answered_by_what_it_multiplies(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    model = read_point(
        {"model": {"name": "own", "build": f"{tmp_path}/mine.py:net", "heads": 3}}
    ).model
    layers = [layer for layer in traced_layers("tensorflow", model, 5) if layer.products]
    sides = [
        (one.rows, one.outputs, one.inputs, one.own)
        for [one] in (layer.products for layer in layers)
    ]
    heads = [(64, 64, 4, 15), (64, 4, 64, 15)]
    assert sides == [
        (5 * 64, 8, 27, 0),
        *[(5 * 64, 12, 8, 0)] * 3,
        *heads,
        (5 * 64, 8, 12, 0),
        (5, 10, 512, 0),
    ]
    row = {
        "family": "own",
        **{f"model.{key}": value for key, value in vars(model).items()},
        "batch_size": 5,
    }
    answer = expect({**row, "precision": "bfloat16", "mode": "train"}, "H200")
    assert answer.low < answer.seconds < answer.high
    assert "counted" in answer.extrapolated[0]


@pytest.mark.parametrize(("words", "line"), refusals("ask"))
def test_wrong_words_are_one_line(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(shlex.split(words)) == 2
    shown = capsys.readouterr()
    assert line in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


def test_published_steps_are_normal_and_others_are_not() -> None:
    """Of those that are as published at most a twentieth is called abnormal."""
    called = planted("TPU v2", (5.0, 0.05), 100)
    assert 100 - called[1.0]["normal"] <= 8
    assert (called[5.0]["slow"], called[0.05]["fast"]) >= (95, 95)


@pytest.mark.parametrize(
    "lost", ["params WHERE key = 'batch_size'", "params", "latest_metrics", "tags"]
)
def test_no_run_is_judged_that_lost_what_it_is_judged_by(
    lost: str, store: str, tmp_path: Path
) -> None:
    uri = copy_of(store, tmp_path)
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database, database:
        database.execute(
            "UPDATE latest_metrics SET key = 'step_time_ms' WHERE key = 'examples_per_second'"
        )
        database.execute(f"DELETE FROM {lost}")
    with pytest.raises(ConfigError, match="no run of a timed step is in the store"):
        _run(None, uri)


def test_what_a_version_changed_is_found_between_different_shapes() -> None:
    """Planted: 1.3 times as slow below 4,096 rows, as fast above; from other shapes of each
    version.
    """
    group = load().find("H200", "gemm", "bfloat16", "vLLM")
    random = np.random.default_rng(0)
    versions = []
    for version, factor in (("1.0", 1.0), ("2.0", 1.3)):
        sizes = np.exp(random.uniform(np.log(32), np.log(16384), (300, 3))).astype(int)
        frame = pd.DataFrame(operation_columns(sizes))
        work = (3e-6 + np.maximum(frame["flops"] / 7e14, frame["bytes"] / 4e12)) * np.where(
            sizes[:, 0] < 4096, factor, 1
        )
        timings = frame.assign(
            seconds=work * np.exp(0.02 * random.standard_normal(300)), variant=""
        )
        versions.append(
            replace(group, version=version, timings=timings, kernels=[f"kernel of {version}"])
        )
    found = change(*versions)
    assert found.low < 1.3 < 1.03 * found.high < 1.4
    assert found.verdict == "slower"
    assert 0.65 < found.slower < 0.9
    assert "kernels: kernel of 1.0 before, kernel of 2.0 after" in str(found)
    assert change(versions[0], replace(versions[0], version="1.1")).verdict == "the same within 3%"


def operation_columns(sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of products (n, 3), as the atlas has them."""
    return {**dict.fromkeys(COLUMNS, np.ones(len(sizes))), **product(*sizes.T, 2)}


def test_versions_of_a_device_are_listed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "versions.json"
    assert ask(["--device", "Arc Pro B60", "--versions", "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert {(one["precision"], one["before"], one["after"]) for one in told} >= {
        ("bfloat16", "0.12.0", "0.20.0")
    }
    assert all(one["low"] <= one["times"] <= one["high"] for one in told)
    assert capsys.readouterr().out.count("times as long as") == len(told)
    assert ask(["--device", "T4", "--versions"]) == 1


def test_a_device_with_specifications_alone_is_scaled_from_the_one_most_like_it() -> None:
    row = {**GPT, "batch_size": 64, "precision": "bfloat16", "mode": "inference"}
    # half of the arithmetic, 0.46 of the bandwidth
    there = expect(row, "A100")
    scaled = expect(row, "A30")
    assert 1.3 < scaled.seconds / there.seconds < 3.5
    assert scaled.high / scaled.low > 3.5
    assert scaled.extrapolated[0].startswith("A30 was not timed: all is ")
    with pytest.raises(ConfigError, match="is not in the atlas"):
        expect(row, "TPU v4")


@pytest.mark.parametrize(
    ("simulator", "flops", "moved"),
    [
        (
            "calculon",
            lambda made: made["matrix"]["bfloat16"]["tflops"] * 1e12,
            lambda made: made["mem1"]["GBps"] * 1e9,
        ),
        ("llm-viewer", lambda made: made["H200"]["FP16"], lambda made: made["H200"]["bandwidth"]),
        (
            "astra-sim",
            lambda made: made["peak-perf"] * 1e12,
            lambda made: made["local-mem-bw"] * 1e9,
        ),
    ],
)
def test_a_simulators_file_holds_what_kernels_reach_with_intervals_beside(
    tmp_path: Path, simulator: str, flops: Any, moved: Any
) -> None:
    assert (
        ask(["--device", "H200", "--system", simulator, "--json", str(tmp_path / "h200.json")]) == 0
    )
    made, beside = (
        json.loads((tmp_path / f"h200{end}.json").read_text()) for end in ("", "-intervals")
    )
    assert 0.6 * 989.4e12 < flops(made) < 989.4e12  # its data sheet's 16-bit products and bandwidth
    assert 0.6 * 4.8e12 < moved(made) < 4.8e12
    assert any(low < flops(made) < high for low, high in beside["intervals"]["flops_per_second"])
    for network in made.get("networks", []):
        assert network["size"] == 8
        assert {"collective_minus1_scalar"}.isdisjoint(network), (
            "Calculon refuses keys that it does not know"
        )
        assert 100 < network["bandwidth"] < 450  # NVLink's GB/s in one direction
