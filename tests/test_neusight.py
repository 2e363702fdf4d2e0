"""NeuSight's folders: a planted GPU whose models are sums of its operations is found again."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.extrapolation import models, timed_operations

GPU = "Planted GPU"
PEAK = 1e13
BANDWIDTH = 5e11
CALL = 2e-5
BINARY = ("add", "mul", "div", "pow")
UNARY = ("addu", "mulu", "divu", "powu", "tanh", "relu", "gelu", "softmax", "ln")
LAYERS = 12
BATCH = 4
LENGTH = 256
WIDTH = 512
HEADS = 8
ROWS = BATCH * LENGTH


def product(b: int, m: int, n: int, k: int) -> float:
    """M x N by N x K, as NeuSight names them."""
    return max(2.0 * b * m * n * k / PEAK, 4.0 * b * (m * n + n * k + m * k) / BANDWIDTH)


def moved(elements: float) -> float:
    return 4.0 * elements / BANDWIDTH


def written(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def timings() -> Iterator[tuple[str, list[dict[str, object]]]]:
    random = np.random.default_rng(0)

    def size(low: int, high: int) -> int:
        return int(np.exp(random.uniform(np.log(low), np.log(high))))

    for kind in ("linear", "bmm"):
        shapes = [
            (1 if kind == "linear" else size(4, 64), *(size(30, 3000) for _ in range(3)))
            for _ in range(80)
        ]
        yield (
            kind,
            [
                dict(zip("BMNK", shape, strict=True), Latency=1e3 * (CALL + product(*shape)))
                for shape in shapes
            ],
        )
    for kind in (*BINARY, *UNARY):
        pairs = [(size(100, 10000), size(10, 4000)) for _ in range(30)]
        tensors = 3 if kind in BINARY else 2
        yield (
            kind,
            [{"B": b, "H": h, "Latency": 1e3 * (CALL + moved(tensors * b * h))} for b, h in pairs],
        )


def graph() -> list[dict[str, object]]:
    """An embedding, a layer of four operations between the names that NeuSight repeats, and a last
    product.
    """
    tokens = (BATCH, LENGTH, WIDTH)
    scores = (BATCH, HEADS, LENGTH, LENGTH)
    rows = [
        ("transformer_wte", [["MEM", ((ROWS, 1), (ROWS, WIDTH))]], [tokens], tokens),
        ("transformer_h_0_ln_1", [["VECln", (ROWS, WIDTH)]], [tokens], tokens),
        (
            "addmm",
            [["Linear", (ROWS, WIDTH, 3 * WIDTH)]],
            [(3 * WIDTH,), tokens],
            (BATCH, LENGTH, 3 * WIDTH),
        ),
        ("matmul", [["BMM", (BATCH * HEADS, LENGTH, WIDTH // HEADS, LENGTH)]], [], scores),
        ("truediv", [["VECdiv", (BATCH * HEADS * LENGTH, LENGTH)]], [scores, (1,)], scores),
        ("add_15", [["VECadd", (ROWS, WIDTH)]], [tokens, tokens], tokens),
        ("lm_head", [["Linear", (ROWS, WIDTH, 1000)]], [tokens], (BATCH, LENGTH, 1000)),
    ]
    names = ("Name", "FwOps", "InputShapes", "OutputShape")
    return [{**dict(zip(names, row, strict=True)), "BwOps": [], "AccOps": []} for row in rows]


def whole() -> float:
    """Seconds of the planted model: of its layer so many times."""
    products = product(1, ROWS, WIDTH, 3 * WIDTH) + product(
        BATCH * HEADS, LENGTH, WIDTH // HEADS, LENGTH
    )
    others = (
        moved(2 * ROWS * WIDTH) + moved(2 * BATCH * HEADS * LENGTH**2) + moved(3 * ROWS * WIDTH)
    )
    return (
        moved(ROWS * (WIDTH + 1))
        + LAYERS * (products + others)
        + product(1, ROWS, WIDTH, 1000)
        + CALL
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("neusight")
    base = root / "scripts" / "asplos"
    for kind, rows in timings():
        written(base / "data/dataset/train/collect" / kind / "p2.1.0" / f"{GPU}.csv", rows)
    name = f"gpt9-inf-{LENGTH}-{BATCH}"
    written(base / "results/opgraph" / f"{name}.csv", graph())
    for place, told in (("label", {"num_layer": LAYERS}), ("results/prediction", {})):
        path = (
            base
            / place
            / "Planted_GPU"
            / ("neusight" if "prediction" in place else "")
            / f"{name}.json"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**told, "e2e_latency": 1e3 * whole()}))
    (base / "label" / "Planted_GPU" / f"{name}-fusion.json").write_text("{}")  # is left out
    return root


def test_a_product_has_its_own_sides(folder: Path) -> None:
    """What NeuSight calls N is summed over."""
    with (
        folder / "scripts/asplos/data/dataset/train/collect/linear/p2.1.0" / f"{GPU}.csv"
    ).open() as handle:
        first = next(csv.DictReader(handle))
    operation, seconds = timed_operations(folder, GPU)["linear"][0]
    assert (operation.m, operation.k, operation.n) == tuple(int(first[name]) for name in "MNK")
    assert seconds == pytest.approx(float(first["Latency"]) / 1e3)


def test_a_planted_model_is_predicted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = models(folder, GPU, most=60)
    assert row["ratio"] == pytest.approx(1, abs=0.05)
    assert row["held"]
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("NeuSight's 1.000")
    assert told[-1].startswith("Planted GPU: 1 models;")
