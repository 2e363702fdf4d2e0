"""The atlas: shipped timings, predicted step times, `paradnn ask`, and judged runs."""

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

from analysis.atlas import DATA, load, make_operation
from analysis.atlas.ask import main as ask
from analysis.atlas.estimate import estimate_step_time
from analysis.atlas.kernels import COLUMNS, attention, decode, experts, product
from analysis.atlas.normal import find_run
from analysis.atlas.traced import traced_layers
from analysis.atlas.versions import compare_versions
from analysis.atlas.whole_steps import published_overhead_note, published_seconds
from benchmarks.atlas import planted
from paradnn.config.reading import read_point
from paradnn.core.errors import ConfigError
from tests.analysis.conftest import copy_of

FC = {
    "family": "fc",
    "model.layers": 4,
    "model.nodes": 512,
    "model.input_size": 2000,
    "model.output_size": 1000,
}
GPT = {
    "family": "gpt",
    "model.layers": 4,
    "model.width": 1024,
    "model.heads": 16,
    "model.sequence_length": 512,
}
#: The GPT point of `gpt_row` as command-line overrides.
GPT_OVERRIDES = ("model=gpt", "batch_size=8", "precision=bfloat16", "mode=inference")
OWN_MODEL = """
import keras
from keras import layers

def net(heads: int = 2):
    image = keras.Input((16, 16, 3))
    x = layers.Reshape((64, 8))(layers.Conv2D(8, 3, strides=2, padding="same")(image))
    x = layers.MultiHeadAttention(heads, 4)(x, x)
    return keras.Model(image, layers.Dense(10)(layers.Flatten()(x)))
"""


def fc_row(**changes: Any) -> dict[str, Any]:
    return {**FC, "batch_size": 512, **changes}


def gpt_row(**changes: Any) -> dict[str, Any]:
    return {**GPT, "batch_size": 8, "precision": "bfloat16", "mode": "inference", **changes}


def test_shipped_timings_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 20e6


def test_shipped_timings_cover_many_devices() -> None:
    atlas = load()
    product_groups = [group for group in atlas.groups if group.kind == "gemm"]

    assert {"H200", "B200", "A100", "L40S", "V100", "TPU v2", "T4"} <= set(atlas.devices)
    assert len({group.device for group in product_groups}) >= 8


def test_shipped_timings_name_their_source() -> None:
    assert all(group.source.count("/") == 1 for group in load().groups)


def test_groups_count_the_timings_that_they_keep() -> None:
    groups = load().groups

    assert all(group.kept <= group.rows for group in groups)
    assert all(len(group.timings) == group.kept for group in groups)


def test_held_out_timings_of_products_have_small_errors() -> None:
    product_groups = [group for group in load().groups if group.kind == "gemm"]

    assert np.median([group.median_error for group in product_groups]) < 0.07


def test_intervals_of_held_out_timings_have_nominal_coverage() -> None:
    assert 0.93 < np.mean([group.coverage for group in load().groups]) < 0.97


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param("NVIDIA H200 NVL 141GB", "H200", id="driver"),
        pytest.param("NVIDIA A100 80GB PCIe", "A100 PCIe", id="longest-match"),
        pytest.param("NVIDIA H200", "H200", id="vendor"),
        pytest.param("tpu v2", "TPU v2", id="lower-case"),
    ],
)
def test_devices_are_found_by_the_name_from_the_driver(name: str, device: str) -> None:
    assert load().device_name(name) == device


@pytest.mark.parametrize(
    ("columns", "flops", "moved_bytes"),
    [
        pytest.param(
            product(64, 128, 32, 2),
            2 * 64 * 128 * 32,
            2 * (64 * 32 + 32 * 128 + 64 * 128),
            id="product",
        ),
        pytest.param(
            attention(2, 8, 4, 4, 16),
            sum(4 * 2 * 4 * 16 * seen for seen in range(1, 9)),
            2 * 4 * (2 * 8 * 4 * 16),
            id="causal-attention",
        ),
        pytest.param(
            attention(1, 8, 1, 1, 1, window=3),
            4 * (1 + 2 + 3 * 6),
            2 * 4 * 8,
            id="windowed-attention",
        ),
        pytest.param(
            decode(1, 10, 4, 2, 8, width=1),
            4 * 10 * 4 * 8,
            2 * 10 * 2 * 8 + 4 * 4 * 8,
            id="decode",
        ),
        pytest.param(
            experts(
                tokens=10_000,
                hidden=64,
                inner=32,
                chosen=2,
                count=8,
                tensor=1,
                parallel=1,
                width=2,
            ),
            6 * 20_000 * 32 * 64,
            2 * 8 * 3 * 32 * 64 + 4 * (20_000 * 96 + 10_000 * 64),
            id="experts",
        ),
    ],
)
def test_arithmetic_of_kernels_equals_a_count_by_hand(
    columns: dict[str, Any], flops: float, moved_bytes: float
) -> None:
    assert float(columns["flops"]) == pytest.approx(flops)
    assert float(columns["bytes"]) == pytest.approx(moved_bytes)


def test_a_published_step_lies_in_the_interval_of_its_prediction() -> None:
    row = fc_row(precision="bfloat16")

    seconds = published_seconds(row, "TPU v2")
    estimate = estimate_step_time(row, "tpu v2")

    assert seconds is not None
    assert estimate.low <= seconds <= estimate.high
    assert any("Emma926/paradnn" in source for source in estimate.sources)


@pytest.mark.parametrize(
    ("precision", "cache"),
    [
        pytest.param("bfloat16", "bfloat16", id="16-bit weights"),
        pytest.param("fp8", "fp8", id="8-bit weights"),
        pytest.param("nvfp4", "fp8", id="4-bit weights"),
    ],
)
def test_a_generation_reads_a_cache_with_at_least_8_bits_per_value(
    precision: str, cache: str
) -> None:
    row = gpt_row(precision=precision, mode="generate")
    row |= {"generate.prompt": 1000, "generate.tokens": 8000, "batch_size": 64}

    estimate = estimate_step_time(row, "B200", "TensorRT-LLM")

    assert estimate.parts["attention"] > 0.05
    assert any(f"decode in {cache} on B200" in source for source in estimate.sources)


def test_an_unpublished_step_has_no_published_time() -> None:
    row = fc_row(precision="bfloat16")

    assert published_seconds({**row, "model.nodes": 513}, "TPU v2") is None


def test_the_step_time_grows_with_the_batch() -> None:
    small = estimate_step_time(gpt_row(batch_size=4), "NVIDIA H200")
    large = estimate_step_time(gpt_row(batch_size=64), "NVIDIA H200")

    assert 2 < large.seconds / small.seconds < 20
    assert sum(large.parts.values()) == pytest.approx(1, abs=0.1)
    assert large.why == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param(
            {"precision": "float32"},
            "no matrix products were timed in float32 on this device",
            id="precision",
        ),
        pytest.param(
            {"model.layers": 120, "model.width": 20480, "mode": "train"},
            # 604 G parameters of 4 bytes, plus 8 bytes each for the optimizer's variables.
            "it needs 6,940 GiB or more, and H200 (SXM) has 141 GiB",
            id="memory",
        ),
        pytest.param({"devices": "2"}, "use devices=1", id="devices"),
        pytest.param(
            {"optimizer.name": "lion", "mode": "train"},
            "optimizer.name=lion is unknown to this version",
            id="optimizer-of-another-version",
        ),
        pytest.param(
            {"mode": "distill"}, "mode=distill is unknown to this version", id="unknown-mode"
        ),
    ],
)
def test_a_step_that_cannot_be_predicted_has_a_reason(changes: dict[str, Any], why: str) -> None:
    estimate = estimate_step_time(gpt_row(**changes), "H200")

    assert estimate.seconds is None
    assert why in estimate.why


def test_an_unknown_family_is_rejected() -> None:
    row = gpt_row(family="perceiver")

    with pytest.raises(ConfigError, match="model=perceiver: is not a model family of this version"):
        estimate_step_time(row, "H200")


def test_a_timed_product_is_predicted_closely() -> None:
    timings = load().find_group("H200", "gemm", "bfloat16", "vLLM").timings

    for timing in timings[timings["seconds"] > 2e-5].head(4).to_dict("records"):
        sizes = {f"model.{name}": timing[name] for name in "mnk"}
        row = {"family": "gemm", **sizes, "batch_size": 1, "precision": "bfloat16"}
        estimate = estimate_step_time(row, "H200")
        assert estimate.seconds == pytest.approx(timing["seconds"], rel=0.15)
        assert estimate.high / estimate.low < 2


@pytest.mark.parametrize(("engine", "precision"), [("vLLM", "fp8_block"), ("TensorRT-LLM", "fp8")])
def test_the_call_overhead_in_product_timings_is_subtracted(engine: str, precision: str) -> None:
    tiny = [make_operation("gemm", product(8, 256, 256, 2))]
    group = load().find_group("H200", "gemm", precision, engine)

    within_step = float(np.exp(group.predict(tiny).mean[0])) + group.overhead_seconds
    as_timed = float(np.exp(group.predict(tiny, as_timed=True).mean[0]))

    assert within_step < 5e-6
    assert as_timed > 1e-5


def test_a_model_of_the_user_is_predicted_from_its_products(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    model = read_point(
        {"model": {"name": "own", "build": f"{tmp_path}/mine.py:net", "heads": 3}}
    ).model

    layers = [layer for layer in traced_layers("tensorflow", model, 5) if layer.products]

    sizes = [
        (product.rows, product.outputs, product.inputs, product.pairs)
        for [product] in (layer.products for layer in layers)
    ]

    assert sizes == [
        (5 * 64, 8, 27, 0),
        (5 * 64, 12, 8, 0),
        (5 * 64, 12, 8, 0),
        (5 * 64, 12, 8, 0),
        (64, 64, 4, 15),
        (64, 4, 64, 15),
        (5 * 64, 8, 12, 0),
        (5, 10, 512, 0),
    ]

    options = {f"model.{key}": value for key, value in vars(model).items()}
    row = {"family": "own", **options, "batch_size": 5, "precision": "bfloat16", "mode": "train"}
    estimate = estimate_step_time(row, "H200")

    assert estimate.low < estimate.seconds < estimate.high
    assert "counted in a trace" in estimate.extrapolated[0]


def test_a_device_without_timings_is_scaled_from_the_most_similar_one() -> None:
    row = gpt_row(batch_size=64)

    # An A30 has half the arithmetic rate of an A100 and 0.46 of its bandwidth.
    timed = estimate_step_time(row, "A100")
    scaled = estimate_step_time(row, "A30")

    assert 1.3 < scaled.seconds / timed.seconds < 3.5
    assert scaled.high / scaled.low > 3.5
    assert scaled.extrapolated[0].startswith("A30 was not timed: the timings are those of ")
    with pytest.raises(ConfigError, match=r"^--to=TPU v4: has no published timings"):
        estimate_step_time(row, "TPU v4", option="--to")


def test_the_estimate_notes_that_input_and_dispatch_set_the_published_time() -> None:
    """All small models take the same time on the archive's V100, because their input limits it."""
    estimate = estimate_step_time(fc_row(precision="float16", **{"model.nodes": 128}), "V100")

    assert estimate.notes[0].startswith(
        "input and dispatch under TensorFlow 1.x determine the published time, not the V100"
    )


def test_a_step_limited_by_the_device_has_no_overhead_note() -> None:
    row = fc_row(precision="float16", batch_size=64, **{"model.nodes": 8192})

    assert published_overhead_note(row, "V100") == ""
    assert published_overhead_note({**row, "model.nodes": 128, "batch_size": 512}, "V100")


@pytest.mark.parametrize(
    ("precision", "comparison"),
    [
        pytest.param("float16", r"fc 4x128 b512 float32 takes .* of this time", id="whole-step"),
        pytest.param("float32", r"fc 4x128 b512 float16 takes .* times as long", id="kernels"),
    ],
)
def test_sources_that_disagree_are_stated(precision: str, comparison: str) -> None:
    row = fc_row(precision=precision, **{"model.nodes": 128})

    estimate = estimate_step_time(row, "V100")

    [note] = [note for note in estimate.notes if note.startswith("sources disagree")]

    assert pd.Series([note]).str.contains(comparison).all()


def test_sources_that_agree_are_not_mentioned() -> None:
    assert estimate_step_time(fc_row(precision="bfloat16"), "TPU v2").notes == ()
    assert estimate_step_time(gpt_row(), "H200").notes == ()


def test_ask_prints_its_answer_and_writes_it_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.json"

    assert ask(["--device", "H200", "--json", str(file), *GPT_OVERRIDES]) == 0

    answer = json.loads(file.read_text())
    assert {"device", "seconds", "low", "high", "sources", "extrapolated", "notes"} <= set(answer)
    assert answer["device"] == "H200"
    assert answer["low"] < answer["seconds"] < answer["high"]
    assert "from ai-dynamo/aiconfigurator" in capsys.readouterr().out


def test_ask_without_an_answer_exits_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(["--device", "TPU v2", *GPT_OVERRIDES]) == 1
    assert "not known" in capsys.readouterr().out


def test_ask_prints_notes(capsys: pytest.CaptureFixture[str]) -> None:
    model_sizes = [
        "model.layers=4",
        "model.nodes=128",
        "model.input_size=2000",
        "model.output_size=1000",
    ]
    overrides = ["model=fc", *model_sizes, "batch_size=512"]

    assert ask(["--device", "V100", *overrides, "precision=float16"]) == 0

    assert "note, V100: input and dispatch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "prompt_tokens"),
    [
        pytest.param(["model.sequence_length=1024"], 1024 - 64, id="fills-the-sequence"),
        pytest.param(
            ["model.sequence_length=1024", "generate.tokens=24"], 1000, id="leaves-room-for-tokens"
        ),
        pytest.param(
            ["model.sequence_length=1024", "generate.prompt=10"], 10, id="explicit-prompt"
        ),
        pytest.param([], 64, id="default-sequence"),
    ],
)
def test_the_prompt_length_fills_the_sequence_unless_it_is_given(
    overrides: list[str], prompt_tokens: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.json"
    point = ["model=gpt", "mode=generate", "precision=bfloat16", *overrides]

    assert ask(["--device", "H200", "--json", str(file), *point]) == 0

    assert json.loads(file.read_text())["prompt_tokens"] == prompt_tokens

    out = capsys.readouterr().out
    assert f"prompt of {prompt_tokens:,} tokens, read in" in out
    assert ") per token: " in out


#: Pairs of the arguments of `ask` and a part of the error line.
REJECTED = [
    ("model=gpt", "--device"),
    ("--device H200", "no model is given"),
    ("--device H200 model=gtp", "did you mean gpt"),
    ("--device H200 --price H200=-1 model=gpt", "is not a positive price"),
    ("--device H200 --tokens ten model=gpt", "--tokens=ten: must be positive; for example, write"),
    (
        "--device H20 model=gpt precision=bfloat16",
        "H20: has no published timings; did you mean H200",
    ),
    ('--device "Intel(R) Xeon(R) Processor, 2 cores" model=gpt', "has no published timings"),
    (
        "--device H200 --engine vlm model=gpt",
        "--engine=vlm: is not an engine with published timings; did you mean vLLM",
    ),
    (
        "--device H200 --version-of 9 model=gpt",
        "--version-of=9: has no published timings of matrix products; choose one of",
    ),
    ("--device H200 --price H100=2 model=gpt", "H100: is not one of the --device names"),
    ("--device H200 --from H100 model=gpt", "the store has none; measure some"),
    ("--device H200 --system calculon", "needs a single --device, --json FILE, and no KEY=VALUE"),
    ("--device H200 --system calculon --json /none/no.json", "--json=/none/no.json: cannot be"),
    ("--device 'Arc Pro B60' --versions --json /none/no.json", "--json=/none/no.json: cannot be"),
    (
        (
            "--device H200 --json /none/no.json model=gpt batch_size=8 precision=bfloat16 "
            "mode=inference"
        ),
        "--json=/none/no.json: there is no folder /none",
    ),
    ("--device 'Arc Pro B60' --system calculon --json no.json", "has no specifications"),
    (
        "--device L40 model=gpt precision=bfloat16",
        "--device=L40: has no published timings; did you mean L40S",
    ),
    ("--device 'H200; Z80' model=gpt precision=bfloat16", "--device=Z80: has no published timings"),
    (
        "--device H200 model=gpt precision=fp4",
        "precision=fp4: was not timed on any device; did you mean nvfp4",
    ),
]


@pytest.mark.parametrize(
    ("words", "line"), [pytest.param(words, line, id=words) for words, line in REJECTED]
)
def test_invalid_arguments_print_one_line(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(shlex.split(words)) == 2

    captured = capsys.readouterr()
    assert line in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


def test_published_steps_are_normal_and_scaled_ones_are_slow_or_fast() -> None:
    """Judge 100 steps per factor; a calibrated rule calls about 5% of unscaled steps abnormal."""
    counts = planted("TPU v2", (5.0, 0.05), 100)

    assert 100 - counts[1.0]["normal"] <= 8
    assert counts[5.0]["slow"] >= 95
    assert counts[0.05]["fast"] >= 95


@pytest.mark.parametrize(
    "deleted_rows",
    [
        pytest.param("params WHERE key = 'batch_size'", id="batch-size"),
        pytest.param("params", id="params"),
        pytest.param("latest_metrics", id="metrics"),
        pytest.param("tags", id="tags"),
    ],
)
def test_a_run_without_step_time_or_batch_size_is_not_judged(
    deleted_rows: str, store: str, tmp_path: Path
) -> None:
    uri = copy_of(store, tmp_path)
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database, database:
        database.execute(
            "UPDATE latest_metrics SET key = 'step_time_ms' WHERE key = 'examples_per_second'"
        )
        database.execute(f"DELETE FROM {deleted_rows}")

    with pytest.raises(ConfigError, match="the store has no run of a timed step"):
        find_run(None, uri)


def product_columns(sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the atlas's columns for n matrix products of sizes (n, 3)."""
    return {**dict.fromkeys(COLUMNS, np.ones(len(sizes))), **product(*sizes.T, 2)}


def test_a_change_between_versions_timed_at_different_shapes_is_found() -> None:
    """The planted regression: version 2.0 takes 1.3 times as long, but only below 4,096 rows."""
    group = load().find_group("H200", "gemm", "bfloat16", "vLLM")
    random = np.random.default_rng(0)
    versions = []
    for version, factor in (("1.0", 1.0), ("2.0", 1.3)):
        sizes = np.exp(random.uniform(np.log(32), np.log(16384), (300, 3))).astype(int)
        frame = pd.DataFrame(product_columns(sizes))
        seconds = 3e-6 + np.maximum(frame["flops"] / 7e14, frame["bytes"] / 4e12)
        seconds *= np.where(sizes[:, 0] < 4096, factor, 1)
        seconds *= np.exp(0.02 * random.standard_normal(300))
        timings = frame.assign(seconds=seconds, variant="")
        versions.append(
            replace(group, version=version, timings=timings, kernels=[f"kernel of {version}"])
        )
    before, after = versions

    change = compare_versions(before, after)

    assert change.low < 1.3 < 1.03 * change.high < 1.4
    assert change.verdict == "slower"
    assert 0.65 < change.slower < 0.9
    assert "kernels: kernel of 1.0 before, kernel of 2.0 after" in str(change)


def test_versions_with_equal_timings_are_called_the_same() -> None:
    group = load().find_group("H200", "gemm", "bfloat16", "vLLM")

    change = compare_versions(group, replace(group, version="99"))

    assert change.verdict == "the same within 3%"


def test_changes_between_versions_are_printed_and_written_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "versions.json"

    assert ask(["--device", "Arc Pro B60", "--versions", "--json", str(file)]) == 0

    changes = json.loads(file.read_text())
    compared = {(change["precision"], change["before"], change["after"]) for change in changes}

    assert ("bfloat16", "0.12.0", "0.20.0") in compared
    assert all(change["low"] <= change["times"] <= change["high"] for change in changes)
    assert capsys.readouterr().out.count("times as long as") == len(changes)


def test_a_device_with_one_version_has_no_changes() -> None:
    assert ask(["--device", "T4", "--versions"]) == 1


@pytest.mark.parametrize(
    ("simulator", "flops", "bandwidth"),
    [
        pytest.param(
            "calculon",
            lambda system: system["matrix"]["bfloat16"]["tflops"] * 1e12,
            lambda system: system["mem1"]["GBps"] * 1e9,
            id="calculon",
        ),
        pytest.param(
            "llm-viewer",
            lambda system: system["H200"]["FP16"],
            lambda system: system["H200"]["bandwidth"],
            id="llm-viewer",
        ),
        pytest.param(
            "astra-sim",
            lambda system: system["peak-perf"] * 1e12,
            lambda system: system["local-mem-bw"] * 1e9,
            id="astra-sim",
        ),
    ],
)
def test_a_simulator_file_contains_measured_rates_and_their_intervals(
    tmp_path: Path, simulator: str, flops: Any, bandwidth: Any
) -> None:
    file = tmp_path / "h200.json"

    assert ask(["--device", "H200", "--system", simulator, "--json", str(file)]) == 0

    system = json.loads(file.read_text())
    intervals = json.loads((tmp_path / "h200-intervals.json").read_text())["intervals"]

    # The data sheet states 989.4 TFLOP/s for 16-bit products and 4.8 TB/s.
    assert 0.6 * 989.4e12 < flops(system) < 989.4e12
    assert 0.6 * 4.8e12 < bandwidth(system) < 4.8e12
    assert any(low < flops(system) < high for low, high in intervals["flops_per_second"])

    for network in system.get("networks", []):
        assert network["size"] == 8
        assert "collective_minus1_scalar" not in network, "Calculon rejects unknown keys"
        # NVLink bandwidth in GB/s per direction.
        assert 100 < network["bandwidth"] < 450
