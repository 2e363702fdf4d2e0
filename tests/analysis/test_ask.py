"""`paradnn ask`: ranked devices, prices, jobs, parallel devices, mixtures, and eager launches."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.atlas import load
from analysis.atlas.ask import main as ask
from analysis.atlas.estimate import estimate_step_time
from analysis.atlas.offers import PositiveInterval
from analysis.atlas.parallel import gradient_messages, tensor_layers, tensor_messages
from paradnn.core.layers import sum_costs
from paradnn.families import make_model

LLAMA_70B = {
    "name": "llama",
    "layers": 80,
    "width": 8192,
    "heads": 64,
    "key_heads": 8,
    "feed_forward": 28672,
    "sequence_length": 8192,
    "vocab_size": 128256,
}
POINT = "model=gpt batch_size=64,1,8 precision=bfloat16 mode=inference"
DEVICES = "--device H200 --device L40S"
PRICED = f"{DEVICES} --price H200=3 --price L40S=1"

RunAsk = Callable[[str], dict[str, Any]]


@pytest.fixture
def run_ask(tmp_path: Path) -> RunAsk:
    """Return a function that runs `ask` and returns its JSON output."""

    def run(words: str) -> dict[str, Any]:
        file = tmp_path / "answer.json"
        assert ask([*shlex.split(words), "--json", str(file)]) == 0
        answer: dict[str, Any] = json.loads(file.read_text())
        return answer

    return run


def llama_row(**changes: Any) -> dict[str, Any]:
    sizes = {f"model.{key}": value for key, value in LLAMA_70B.items() if key != "name"}
    generation = {"mode": "generate", "generate.prompt": 1000, "generate.tokens": 200}
    row = {"family": "llama", "batch_size": 8, "precision": "bfloat16"}
    return {**row, **sizes, **generation, **changes}


def test_rows_keep_the_order_of_the_command_line(priced_rows: list[dict[str, Any]]) -> None:
    rows = [(row["batch_size"], row["device"]) for row in priced_rows]
    expected = [(batch, device) for batch in (64, 1, 8) for device in ("H200", "L40S")]

    assert rows == expected


def test_keys_and_options_may_be_mixed_in_any_order(run_ask: RunAsk) -> None:
    first, rest = POINT.split(" ", 1)

    mixed_order = run_ask(f"{first} {DEVICES} {rest}")

    assert mixed_order["rows"] == run_ask(f"{DEVICES} {POINT}")["rows"]


@pytest.fixture(scope="module")
def priced_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the rows of an answer with prices: three batch sizes on two devices."""
    file = tmp_path_factory.mktemp("priced") / "answer.json"
    assert ask([*shlex.split(f"{PRICED} {POINT}"), "--json", str(file)]) == 0
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


def test_costs_follow_from_times_and_prices(priced_rows: list[dict[str, Any]]) -> None:
    for row in priced_rows:
        tokens = row["batch_size"] * 128
        price = {"H200": 3, "L40S": 1}[row["device"]]
        assert row["tokens_per_second"] == pytest.approx(tokens / row["seconds"])
        assert row["tokens_per_second_low"] == pytest.approx(tokens / row["high"])
        expected = price * row["seconds"] / 3600 / tokens * 1e6
        assert row["cost_per_million"] == pytest.approx(expected)


def test_the_cheapest_row_is_marked(priced_rows: list[dict[str, Any]]) -> None:
    cheapest = min(priced_rows, key=lambda row: row["cost_per_million"])

    assert cheapest["verdict"] == "cheapest"
    assert [row["verdict"] for row in priced_rows].count("cheapest") == 1


@pytest.fixture
def priced_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed lines of the answer with prices."""
    assert ask(shlex.split(f"{PRICED} {POINT}")) == 0
    return capsys.readouterr().out.splitlines()


def test_the_answer_comes_first(priced_lines: list[str]) -> None:
    assert priced_lines[0].startswith("L40S is the cheapest for inference with gpt 4x256 h4 t128: ")


def test_the_table_fits_100_columns(priced_lines: list[str]) -> None:
    begin = next(i for i, line in enumerate(priced_lines) if line.startswith("device "))
    table = priced_lines[begin:]

    assert max(map(len, table)) <= 100
    assert sum(line.startswith(("H200", "L40S")) for line in table) == 6
    for heading in ("batch", "time/step", "95% interval", "tokens/s", "cost/1M", "verdict"):
        assert heading in table[0]


def test_the_json_answer_has_the_keys_of_every_analysis(run_ask: RunAsk) -> None:
    answer = run_ask(f"{DEVICES} {POINT}")

    assert answer["verdict"] == "faster"
    assert 1 < answer["low"] < answer["ratio"] < answer["high"]

    times = {(row["device"], row["batch_size"]): row["seconds"] for row in answer["rows"]}
    leads = [times["H200", batch] < times["L40S", batch] for batch in (64, 1, 8)]

    assert (answer["ahead"], answer["points"]) == (sum(leads), 3)
    assert answer["basis"]
    assert answer["ratio"] == pytest.approx(times["L40S", 64] / times["H200", 64])


def test_devices_without_a_price_are_ranked_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(shlex.split(f"{DEVICES} --price H200=3 {POINT}")) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("H200 is the fastest")
    assert "ranked by time, since there is no --price for L40S" in lines


def test_the_offers_on_the_frontier_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(shlex.split(f"{PRICED} {POINT}".replace("64,1,8", "64"))) == 0

    assert "no other offer is both faster and cheaper than " in capsys.readouterr().out


def test_a_price_table_is_read(tmp_path: Path, run_ask: RunAsk) -> None:
    table = tmp_path / "mine.yaml"
    table.write_text("per_hour: {h200: 4, another: 1}\n")

    answer = run_ask(f"--device H200 --price {table} {POINT}")

    assert {row["price_per_hour"] for row in answer["rows"]} == {4.0}


@pytest.mark.parametrize(
    ("mode", "job", "units"),
    [
        pytest.param("inference", "--tokens 1e9", 1e9, id="tokens"),
        pytest.param("inference", "--examples 1e6", 1e6 * 128, id="examples"),
        pytest.param("train", "--examples 1e6 --epochs 3", 3e6 * 128, id="epochs"),
    ],
)
def test_time_and_cost_of_a_job_follow_from_its_size(
    mode: str, job: str, units: float, run_ask: RunAsk
) -> None:
    words = f"--device H200 --price H200=3 {job} model=gpt precision=bfloat16 mode={mode}"

    row = run_ask(words)["rows"][0]

    assert row["job_seconds"] == pytest.approx(units / row["tokens_per_second"])
    assert row["job_cost"] == pytest.approx(units / 1e6 * row["cost_per_million"])
    assert row["job_seconds_low"] < row["job_seconds"] < row["job_seconds_high"]


def test_the_cost_of_a_generated_token_includes_its_share_of_the_prompt(run_ask: RunAsk) -> None:
    point = "model=gpt precision=bfloat16 mode=generate batch_size=8"
    words = f"--device H200 --price H200=3600 {point} generate.prompt=90 generate.tokens=10"

    row = run_ask(words)["rows"][0]

    seconds = row["prompt"] + 10 * row["seconds"]

    assert row["cost_per_million"] == pytest.approx(seconds / (8 * 10) * 1e6)
    assert row["tokens_per_second"] == pytest.approx(8 / row["seconds"])


def test_tensor_parallel_shares_add_up_to_the_model() -> None:
    model = make_model(LLAMA_70B)

    whole = sum_costs(model.layer_list(), 1, "bfloat16", "train", slots=0)
    share = sum_costs(tensor_layers(model.layer_list(), 8), 1, "bfloat16", "train", slots=0)

    # Every device holds all 161 normalizations.
    replicated = 161 * 8192

    assert 8 * (share.parameters - replicated) == whole.parameters - replicated
    assert 8 * share.flops_per_step == whole.flops_per_step


def test_tensor_parallel_messages_equal_those_of_megatron() -> None:
    """Per direction: two all-reduces of the activations per layer, and one of the embeddings."""
    model = make_model(LLAMA_70B)
    layers = model.layer_list()

    [forward] = tensor_messages(layers, batch=3, width=2, mode="inference")
    [forward_and_backward] = tensor_messages(layers, batch=3, width=2, mode="train")

    assert forward.size == forward_and_backward.size == 2 * 3 * 8192 * 8192
    assert forward.count == 2 * 80 + 1
    assert forward_and_backward.count == 2 * (2 * 80 + 1)


def test_gradients_are_sent_once() -> None:
    [buckets] = gradient_messages(parameters=100_000_000, width=2)

    assert buckets.size * buckets.count == pytest.approx(200e6)
    assert buckets.is_overlapped


def test_a_model_without_parameters_sends_no_gradients() -> None:
    assert gradient_messages(parameters=0, width=2) == []


def test_several_devices_are_faster_and_state_their_communication() -> None:
    one_device = estimate_step_time(llama_row(precision="fp8"), "H200")
    eight_devices = estimate_step_time(
        llama_row(precision="fp8", devices=8, parallel="tensor"), "H200"
    )

    assert one_device.seconds is not None
    assert eight_devices.seconds is not None
    assert 2 < one_device.seconds / eight_devices.seconds < 8
    assert "communication" not in one_device.parts
    assert 0.05 < eight_devices.parts["communication"] < 0.7


def test_data_parallel_training_takes_a_share_of_the_batch() -> None:
    row = {
        "family": "gpt",
        "model.layers": 12,
        "model.width": 1024,
        "model.heads": 16,
        "precision": "bfloat16",
        "mode": "train",
    }

    one_device = estimate_step_time({**row, "batch_size": 8}, "H100")
    eight_devices = estimate_step_time(
        {**row, "batch_size": 64, "devices": 8, "parallel": "data"}, "H100"
    )

    assert one_device.seconds is not None
    assert eight_devices.seconds is not None
    # Sending gradients takes time, which the backward pass may hide.
    assert 1 < eight_devices.seconds / one_device.seconds < 1.5
    assert eight_devices.parts["communication"] > 0


def test_the_reason_of_a_model_that_exceeds_the_memory_names_enough_devices() -> None:
    estimate = estimate_step_time(llama_row(), "H100")

    # 70,553,706,496 parameters of 2 bytes, and 8 key-value caches of 1,200 positions in 80 layers.
    weights = 2 * 70_553_706_496
    caches = 8 * 80 * 2 * 1200 * 1024 * 2

    assert estimate.seconds is None
    assert estimate.memory_bytes == pytest.approx(weights + caches, rel=0.02)
    assert estimate.why.endswith("and H100 (SXM) has 80 GiB; use devices=2 parallel=tensor")

    remedy = llama_row(devices=2, parallel="tensor")
    assert estimate_step_time(remedy, "H100").seconds is not None


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        pytest.param(
            "model=gpt batch_size=4 devices=8", "use batch_size=8", id="batch-below-devices"
        ),
        pytest.param(
            "model=gpt devices=8 parallel=tensor", "use devices=4", id="heads-below-devices"
        ),
        pytest.param("model=gpt2 devices=3", "use devices=2,4,8", id="untimed-share"),
        pytest.param(
            "model=resnet50 devices=8 parallel=tensor", "use parallel=data", id="not-a-transformer"
        ),
        pytest.param(
            "model=gpt devices=256 mode=train", "use devices=2,4,8", id="untimed-device-count"
        ),
    ],
)
def test_a_step_that_devices_cannot_share_has_a_remedy(
    words: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(["--device", "H200", "precision=bfloat16", *words.split()]) == 1

    assert remedy in capsys.readouterr().out


def test_eager_execution_takes_at_least_its_launches(run_ask: RunAsk) -> None:
    """A GPT with four layers of width 256 runs few kernels, each of some microseconds."""
    words = "--device H200 model=gpt precision=bfloat16 mode=inference batch_size=1"

    graph = run_ask(words)["rows"][0]
    eager = run_ask(f"{words} compile=eager")["rows"][0]

    assert graph["seconds"] < 3e-4
    assert eager["seconds"] == pytest.approx(graph["eager_seconds"])
    assert eager["seconds"] == pytest.approx(graph["operations"] * 1e-5, rel=0.1)
    assert eager["parts"]["launches"] == pytest.approx(
        1 - graph["seconds"] / eager["seconds"], abs=0.02
    )


def test_sources_that_disagree_widen_the_interval() -> None:
    """For this step, the published V100 time is 16.8 ms; the kernels alone take 0.28 ms."""
    sizes = {"layers": 4, "nodes": 128, "input_size": 2000, "output_size": 1000}
    row = {"family": "fc", "batch_size": 512, **{f"model.{k}": v for k, v in sizes.items()}}

    for precision in ("float16", "float32"):
        estimate = estimate_step_time({**row, "precision": precision}, "V100")
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low < 0.3e-3
        assert estimate.high > 16e-3


def test_the_figure_and_the_csv_file_are_written(tmp_path: Path) -> None:
    figure = tmp_path / "machines.png"
    table = tmp_path / "machines.csv"

    assert ask(shlex.split(f"{PRICED} {POINT} --figure {figure} --csv {table}")) == 0

    assert figure.read_bytes().startswith(b"\x89PNG")

    rows = pd.read_csv(table)
    assert len(rows) == 6
    assert rows["sources"].str.startswith("ai-dynamo/aiconfigurator: ").all()


def test_the_interval_of_a_ratio_has_its_nominal_coverage() -> None:
    """With two independent lognormal errors, the interval covers the ratio in 95% of cases."""
    random = np.random.default_rng(0)
    spreads = (0.1, 0.25)
    covered = 0
    for _ in range(2000):
        intervals = []
        for spread in spreads:
            value = float(np.exp(spread * random.standard_normal()))
            half_width = float(np.exp(1.96 * spread))
            intervals.append(PositiveInterval(value, value / half_width, value * half_width))
        ratio = intervals[0].over(intervals[1])
        covered += ratio.low < 1 < ratio.high

    assert 0.94 < covered / 2000 < 0.96


REJECTED = [
    pytest.param("parallel=tensor", "parallel=tensor: needs several devices", id="one-device"),
    pytest.param("devices=8 parallel=tensr", "did you mean tensor", id="misspelled-parallel"),
    pytest.param("devices=0", "devices=0: is not a whole number from 1 to 100,000", id="no-device"),
    pytest.param(
        "--epochs 3",
        "needs --examples, the number of examples in an epoch",
        id="epochs-without-examples",
    ),
    pytest.param(
        "--tokens 1e9 --examples 5",
        "cannot be combined with --examples, which also states",
        id="two-jobs",
    ),
    pytest.param("--price H20=2", "did you mean H200? add --device 'H20'", id="misspelled-price"),
    pytest.param("--price nothing", "--price=nothing", id="unknown-table"),
    pytest.param("--what-if bandwith=2", "did you mean bandwidth", id="misspelled-change"),
    pytest.param("--what-if peak=0", "peak=0: needs a positive factor", id="zero-factor"),
    pytest.param("--figure a.bmp", "name a .png, .svg or .pdf file", id="figure-ending"),
]


@pytest.mark.parametrize(("words", "line"), REJECTED)
def test_invalid_options_print_one_line(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"--device H200 model=gpt precision=bfloat16 mode=inference {words}"

    assert ask(shlex.split(command)) == 2

    captured = capsys.readouterr()
    assert line in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


def test_tokens_of_a_model_without_tokens_are_rejected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ask(shlex.split("--device V100 model=fc --tokens 1e9")) == 2

    assert "whose work is counted in examples; use --examples N instead" in capsys.readouterr().err


def test_an_a100_has_the_memory_of_the_timed_variant() -> None:
    """The published kernels were timed on the 80 GiB variant, so 50 GiB of weights fit."""
    row = llama_row(**{"model.layers": 28})

    estimate = estimate_step_time(row, "A100")

    assert estimate.device_memory_bytes == 80 * 2**30
    assert estimate.seconds is not None


def test_the_atlas_timed_collectives_on_the_proposed_numbers_of_devices() -> None:
    for group in load().groups:
        if group.kind == "collective":
            counts = set(group.timings["m"])
            assert {2, 4} <= counts <= {2, 4, 8}


def test_bandwidth_and_peak_speed_up_steps_that_they_limit(run_ask: RunAsk) -> None:
    """Generating a token reads each weight once; a long prompt does mostly arithmetic.

    Rows 1 and 2 double the bandwidth and the peak, respectively.
    """
    sizes = "model=llama3-8b precision=bfloat16 batch_size=1"
    change = "--what-if bandwidth=2 --what-if peak=2"

    memory_bound = run_ask(f"--device H100 {sizes} mode=generate {change}")["rows"]
    compute_bound = run_ask(
        f"--device H100 {sizes} model.sequence_length=4096 mode=inference {change}"
    )["rows"]

    for rows, helpful, useless in ((memory_bound, 1, 2), (compute_bound, 2, 1)):
        unchanged = rows[0]
        assert unchanged["change_speedup"] is None
        assert 1.5 < rows[helpful]["change_speedup"] < 2.05
        assert rows[useless]["change_speedup"] < 1.25
        ratio = unchanged["seconds"] / rows[helpful]["seconds"]
        assert rows[helpful]["change_speedup"] == pytest.approx(ratio, rel=0.03)


def test_a_larger_model_fits_in_more_memory(run_ask: RunAsk) -> None:
    words = "--device H100 model=qwen3-32b precision=bfloat16 mode=generate batch_size=256"

    unchanged, enlarged = run_ask(f"{words} generate.prompt=1000 --what-if memory=4")["rows"]

    assert (unchanged["fits"], enlarged["fits"]) == (False, True)
    assert enlarged["device_memory_bytes"] == 4 * unchanged["device_memory_bytes"]
    assert unchanged["seconds"] is None
    assert enlarged["seconds"] > 0


MIXTURE = {
    "name": "llama",
    "layers": 32,
    "width": 4096,
    "heads": 32,
    "key_heads": 8,
    "feed_forward": 14336,
    "sequence_length": 4096,
    "vocab_size": 32000,
    "experts": 8,
    "active_experts": 2,
}


def mixture_row(**changes: Any) -> dict[str, Any]:
    sizes = {f"model.{key}": value for key, value in MIXTURE.items() if key != "name"}
    return llama_row(**{name: changes.pop(name, value) for name, value in sizes.items()}, **changes)


def test_a_token_of_a_mixture_reads_the_weights_of_the_chosen_experts() -> None:
    """Weights are read at a rate between a third of 4.8 TB/s and 4.8 TB/s."""
    expert_bytes = 32 * 3 * 4096 * 14336 * 2

    one_token = estimate_step_time(mixture_row(batch_size=1), "H200")
    many_tokens = estimate_step_time(mixture_row(batch_size=64), "H200")

    for estimate, experts_read in ((one_token, 2), (many_tokens, 8)):
        assert estimate.seconds is not None
        shortest_seconds = experts_read * expert_bytes / 4.8e12
        expert_seconds = estimate.parts["experts"] * estimate.seconds
        assert shortest_seconds < expert_seconds < 3 * shortest_seconds

    assert one_token.memory_bytes == pytest.approx(2 * 46.7e9, rel=0.02)


def test_a_dense_model_of_all_experts_is_slower_than_the_mixture() -> None:
    mixture = estimate_step_time(mixture_row(batch_size=1), "H200")
    dense_row = mixture_row(batch_size=1, **{"model.experts": 1, "model.feed_forward": 8 * 14336})
    dense = estimate_step_time(dense_row, "H200")

    assert mixture.seconds is not None
    assert dense.seconds is not None
    assert 1.5 < dense.seconds / mixture.seconds < 4


def test_devices_share_each_expert() -> None:
    one_device = estimate_step_time(mixture_row(batch_size=32), "H200")
    four_devices = estimate_step_time(
        mixture_row(batch_size=32, devices=4, parallel="tensor"), "H200"
    )

    assert one_device.seconds is not None
    assert four_devices.seconds is not None

    expert_seconds = [
        estimate.parts["experts"] * estimate.seconds for estimate in (one_device, four_devices)
    ]
    assert 2 < expert_seconds[0] / expert_seconds[1] < 5


def test_a_mixture_without_timed_experts_has_no_estimate() -> None:
    estimate = estimate_step_time(mixture_row(precision="int8_wo"), "A100")

    assert estimate.seconds is None
    assert "no mixture of experts was timed in int8_wo on this device" in estimate.why


def test_a_mixture_is_found_by_its_name(run_ask: RunAsk) -> None:
    words = "--device H200 model=mixtral-8x7b mode=generate precision=bfloat16 batch_size=1,16"

    rows = run_ask(words)["rows"]

    assert [row["batch_size"] for row in rows] == [1, 16]
    assert rows[0]["seconds"] < rows[1]["seconds"]


def test_attention_reads_an_eight_bit_cache_faster() -> None:
    """At 30,000 positions, reading the cache dominates the time of attention."""
    long_prompt = {"batch_size": 8, "generate.prompt": 30_000, "devices": 4, "parallel": "tensor"}

    sixteen_bit = estimate_step_time(llama_row(**long_prompt), "H200")
    eight_bit = estimate_step_time(llama_row(**long_prompt, precision="fp8"), "H200")

    assert sixteen_bit.seconds is not None
    assert eight_bit.seconds is not None

    attention_seconds = [
        estimate.parts["attention"] * estimate.seconds for estimate in (sixteen_bit, eight_bit)
    ]
    assert 1.1 < attention_seconds[0] / attention_seconds[1] < 2.5


def test_scheduling_time_grows_with_the_requests_of_a_serving_engine() -> None:
    one_request, many_requests = (
        estimate_step_time(llama_row(batch_size=batch, devices=8, parallel="tensor"), "H200")
        for batch in (1, 256)
    )

    assert one_request.seconds is not None
    assert many_requests.seconds is not None

    scheduling_seconds = [
        estimate.parts["scheduling"] * estimate.seconds for estimate in (one_request, many_requests)
    ]
    assert 2e-4 < scheduling_seconds[0] < 2e-3
    assert scheduling_seconds[1] - scheduling_seconds[0] > 255 * 5e-6

    inference = llama_row(mode="inference", batch_size=1, **{"model.sequence_length": 128})
    assert "scheduling" not in estimate_step_time(inference, "H200").parts


def test_data_parallel_engines_schedule_their_own_requests() -> None:
    row = mixture_row(**{"model.experts": 1})
    one_engine = estimate_step_time({**row, "batch_size": 64}, "H200")
    four_engines = estimate_step_time(
        {**row, "batch_size": 256, "devices": 4, "parallel": "data"}, "H200"
    )

    assert one_engine.seconds == four_engines.seconds
