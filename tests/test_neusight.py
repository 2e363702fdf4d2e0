"""`benchmarks.extrapolation` on a planted folder of NeuSight: a GPU with known total times."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.extrapolation import models, timed_operations

GPU = "Planted GPU"
# Rates of the planted GPU in FLOP/s and bytes/s, and its seconds per call.
PEAK = 1e13
BANDWIDTH = 5e11
CALL_SECONDS = 2e-5

BINARY_OPERATIONS = ("add", "mul", "div", "pow")
UNARY_OPERATIONS = ("addu", "mulu", "divu", "powu", "tanh", "relu", "gelu", "softmax", "ln")

# Sizes of the planted model.
LAYERS = 12
BATCH = 4
LENGTH = 256
WIDTH = 512
HEADS = 8
ROWS = BATCH * LENGTH
MODEL = f"gpt9-inf-{LENGTH}-{BATCH}"

COLLECTED = Path("scripts/asplos/data/dataset/train/collect")
LABELS = Path("scripts/asplos/label/Planted_GPU")
PREDICTIONS = Path("scripts/asplos/results/prediction/Planted_GPU/neusight")
GRAPHS = Path("scripts/asplos/results/opgraph")


def product_seconds(b: int, m: int, n: int, k: int) -> float:
    """Return the seconds of b products of (m, n) with (n, k).

    As in NeuSight, n is the summed dimension.
    """
    flops = 2.0 * b * m * n * k
    moved_bytes = 4.0 * b * (m * n + n * k + m * k)
    return max(flops / PEAK, moved_bytes / BANDWIDTH)


def traffic_seconds(elements: float) -> float:
    """Return the seconds to move a number of float32 elements."""
    return 4.0 * elements / BANDWIDTH


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def random_size(random: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(random.uniform(np.log(low), np.log(high))))


def planted_timings() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each kind of operation with the rows of its table."""
    random = np.random.default_rng(0)
    for kind in ("linear", "bmm"):
        rows = []
        for _ in range(80):
            b = 1 if kind == "linear" else random_size(random, 4, 64)
            m, n, k = (random_size(random, 30, 3000) for _ in range(3))
            latency = 1e3 * (CALL_SECONDS + product_seconds(b, m, n, k))
            rows.append({"B": b, "M": m, "N": n, "K": k, "Latency": latency})
        yield kind, rows
    for kind in (*BINARY_OPERATIONS, *UNARY_OPERATIONS):
        tensors = 3 if kind in BINARY_OPERATIONS else 2
        rows = []
        for _ in range(30):
            b = random_size(random, 100, 10000)
            h = random_size(random, 10, 4000)
            latency = 1e3 * (CALL_SECONDS + traffic_seconds(tensors * b * h))
            rows.append({"B": b, "H": h, "Latency": latency})
        yield kind, rows


def graph_row(name: str, operations: Any, inputs: Any, output: Any) -> dict[str, Any]:
    return {
        "Name": name,
        "FwOps": operations,
        "InputShapes": inputs,
        "OutputShape": output,
        "BwOps": [],
        "AccOps": [],
    }


def planted_graph() -> list[dict[str, Any]]:
    """Return the operations of an embedding, of a layer and of the last product.

    The names of the layer's first and last operation mark the part that NeuSight repeats.
    """
    tokens = (BATCH, LENGTH, WIDTH)
    scores = (BATCH, HEADS, LENGTH, LENGTH)
    head_size = WIDTH // HEADS
    return [
        graph_row("transformer_wte", [["MEM", ((ROWS, 1), (ROWS, WIDTH))]], [tokens], tokens),
        graph_row("transformer_h_0_ln_1", [["VECln", (ROWS, WIDTH)]], [tokens], tokens),
        graph_row(
            "addmm",
            [["Linear", (ROWS, WIDTH, 3 * WIDTH)]],
            [(3 * WIDTH,), tokens],
            (BATCH, LENGTH, 3 * WIDTH),
        ),
        graph_row("matmul", [["BMM", (BATCH * HEADS, LENGTH, head_size, LENGTH)]], [], scores),
        graph_row(
            "truediv", [["VECdiv", (BATCH * HEADS * LENGTH, LENGTH)]], [scores, (1,)], scores
        ),
        graph_row("add_15", [["VECadd", (ROWS, WIDTH)]], [tokens, tokens], tokens),
        graph_row("lm_head", [["Linear", (ROWS, WIDTH, 1000)]], [tokens], (BATCH, LENGTH, 1000)),
    ]


def planted_model_seconds() -> float:
    """Return the seconds of the planted model, including repetitions of its layer."""
    layer = (
        product_seconds(1, ROWS, WIDTH, 3 * WIDTH)
        + product_seconds(BATCH * HEADS, LENGTH, WIDTH // HEADS, LENGTH)
        + traffic_seconds(2 * ROWS * WIDTH)
        + traffic_seconds(2 * BATCH * HEADS * LENGTH**2)
        + traffic_seconds(3 * ROWS * WIDTH)
    )
    embedding = traffic_seconds(ROWS * (WIDTH + 1))
    last_product = product_seconds(1, ROWS, WIDTH, 1000)
    return CALL_SECONDS + embedding + LAYERS * layer + last_product


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in the layout of NeuSight's repository, with the planted GPU."""
    root = tmp_path_factory.mktemp("neusight")
    for kind, rows in planted_timings():
        write_csv(root / COLLECTED / kind / "p2.1.0" / f"{GPU}.csv", rows)
    write_csv(root / GRAPHS / f"{MODEL}.csv", planted_graph())
    latency = {"e2e_latency": 1e3 * planted_model_seconds()}
    write_json(root / LABELS / f"{MODEL}.json", {"num_layer": LAYERS, **latency})
    write_json(root / PREDICTIONS / f"{MODEL}.json", latency)
    # Labels of fused models are not parsed.
    write_json(root / LABELS / f"{MODEL}-fusion.json", {})
    return root


def test_the_sizes_of_a_product_are_converted(folder: Path) -> None:
    """NeuSight sums over N, which is k in this project."""
    with (folder / COLLECTED / "linear" / "p2.1.0" / f"{GPU}.csv").open() as handle:
        first = next(csv.DictReader(handle))

    operation, seconds = timed_operations(folder, GPU)["linear"][0]

    sizes = (operation.m, operation.k, operation.n)
    assert sizes == (int(first["M"]), int(first["N"]), int(first["K"]))
    assert seconds == pytest.approx(float(first["Latency"]) / 1e3)


def test_the_time_of_a_planted_model_is_predicted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = models(folder, GPU, most=60)

    assert row["ratio"] == pytest.approx(1, abs=0.05)
    assert row["covered"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("NeuSight's 1.000")
    assert lines[-1].startswith("Planted GPU: 1 models;")
