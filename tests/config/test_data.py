"""Real input on the driver's side: its keys, what they make of a point's identity, its metrics."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from paradnn.config.identity import digest, point_id, protocol_id
from paradnn.config.point import Measure, read_point
from paradnn.core.errors import ConfigError
from paradnn.core.messages import InputMeasurement, PipelinePart
from paradnn.session.measured import balance_metrics
from tests.conftest import Store, run


def given(model: str = "residual", **data: object) -> dict[str, object]:
    return {"model": {"name": model}, "data": data}


@pytest.mark.parametrize(
    ("model", "identity"), [("fc", "57f7f9f40bab5f25"), ("residual", "de4ed4255be4dcfe"), ("lstm", "d95fb7d27a4fc28e")]
)
def test_points_with_synthetic_data_are_those_of_before(model: str, identity: str) -> None:
    assert point_id(read_point(given(model, name="synthetic"))) == identity
    assert point_id(read_point({"model": {"name": model}})) == identity


def test_every_key_of_the_input_makes_another_point() -> None:
    changes = {
        "threads": 1,
        "readers": 2,
        "shuffle": 3,
        "prefetch": 4,
        "cache": "decoded",
        "path": "/x",
        "augment": False,
        "examples": 9,
        "width": 99,
        "height": 99,
    }
    found = {point_id(read_point(given(name="images", **{key: value}))) for key, value in changes.items()}
    assert len(found | {point_id(read_point(given(name="images")))}) == len(changes) + 1


def test_a_path_is_the_same_from_every_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_point(given(name="images", path="set")).data.path == str(tmp_path / "set")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (given("fc", name="images"), "data=images: model=fc takes no images; choose another model, or data=synth"),
        (given("lstm", name="images"), "data=images: model=lstm takes no images"),
        (given(name="jpeg"), "data.name=jpeg: no such choice; choose one of synthetic, images"),
        (given(name="images", thread=1), "data.thread=1: no such key; did you mean threads?"),
        (given(name="synthetic", threads=1), "data.threads=1: no such key; keys of data: name"),
        (given(name="images", cache="all"), "data.cache=all: no such choice; choose one of none, encoded, decoded"),
    ],
)
def test_a_wrong_input_is_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_point(config)
    assert str(caught.value).startswith(message)


BLOCKS = [1.0, 1.0]
INPUT = InputMeasurement(
    waits=[0.25, 0.75],
    threads=2,
    free_step_seconds=[0.1] * 6,
    fed_step_seconds=[0.15, 0.2, 0.2, 0.2, 0.25, 0.2],
    alone=[PipelinePart(examples=100, seconds=2.0, cpu_seconds=0.4)] * 6,
    stages={"read": 0.001},
)


def test_metrics_are_worked_out_by_hand() -> None:
    found = balance_metrics(INPUT, BLOCKS, 10, "cpu")
    assert found["infeed_fraction"] == 0.5
    assert (found["infeed_gain"], found["infeed_gain_low"]) == pytest.approx((1.0, 0.5))
    assert found["infeed_gain_high"] == pytest.approx(1.5)
    assert found["input_free_examples_per_second"] == pytest.approx(100)
    assert found["input_examples_per_second"] == 50
    assert found["input_cpu_ms_per_example"] == pytest.approx(4)
    assert found["input_stage_ms.read"] == 1
    # Of a device that works while the host waits: half of a step that takes twice as long.
    assert balance_metrics(INPUT, BLOCKS, 10, "gpu")["infeed_fraction"] == pytest.approx(0.5)


@pytest.mark.framework
def test_a_point_with_input_is_a_run_like_others(store: Store, tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / "set" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (30 * number, 0, 0)).save(folder / f"{number}.jpg")
    tiny = [
        "model=residual",
        "model.blocks=[1,1,1]",
        "model.filters=4",
        "model.image_size=32",
        "batch_size=4",
        "ceilings=false",
        "measure.processes=1",
        "measure.min_seconds=0.05",
        "measure.block_seconds=0.01",
        "measure.warmup_seconds=0.3",
    ]
    done = run(["paradnn.train", "-m", *tiny, "data=images,synthetic", "data.examples=8"], store)
    assert "data.examples=8: no key of data=images,synthetic, which has none" in done.stderr
    done = run(["paradnn.train", *tiny, "data=images", f"data.path={tmp_path / 'set'}", "data.threads=1"], store)
    assert done.returncode == 0, done.stderr
    (found,) = store.runs()
    assert (found["outcome"], found["checks"]) == ("ok", "passed")
    metrics = store.values("latest_metrics", found["run_id"])
    assert 0 <= metrics["infeed_fraction"] <= 1
    assert {"infeed_gain", "input_stage_ms.decode", "phase_input_seconds", "phase_balance_seconds"} <= set(metrics)
    assert metrics["input_threads"] == 1
    assert store.values("params", found["run_id"])["data.path"] == str(tmp_path / "set")


def test_a_protocol_is_that_of_before_unless_it_stops_at_an_interval() -> None:
    plain = Measure()
    keys = ("min_seconds", "min_blocks", "max_seconds", "block_seconds", "warmup_seconds")
    assert protocol_id(plain) == digest({key: getattr(plain, key) for key in keys})
    assert protocol_id(replace(plain, relative_interval=0.02)) != protocol_id(plain)
