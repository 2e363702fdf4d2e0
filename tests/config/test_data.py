"""Real input on the driver's side: its metrics by hand, and a run."""

from pathlib import Path

import pytest
from PIL import Image

from paradnn.core.messages import InputMeasurement, PipelinePart
from paradnn.session.measured import balance_metrics
from tests.conftest import Store, run

BLOCKS = [1.0, 1.0]
INPUT = InputMeasurement(
    waits=[0.25, 0.75],
    threads=2,
    free_step_seconds=[0.1] * 6,
    fed_step_seconds=[0.15, 0.2, 0.2, 0.2, 0.25, 0.2],
    alone=[PipelinePart(examples=100, seconds=2.0, cpu_seconds=0.4)] * 6,
)


def test_metrics_are_worked_out_by_hand() -> None:
    found = balance_metrics(INPUT, BLOCKS, 10, "cpu")
    assert found["infeed_fraction"] == 0.5
    assert (found["infeed_gain"], found["infeed_gain_low"]) == pytest.approx((1.0, 0.5))
    assert found["infeed_gain_high"] == pytest.approx(1.5)
    assert found["input_free_examples_per_second"] == pytest.approx(100)
    assert found["input_examples_per_second"] == 50
    assert found["input_cpu_ms_per_example"] == pytest.approx(4)
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
    assert {"infeed_gain", "phase_input_seconds", "phase_balance_seconds"} <= set(metrics)
    assert metrics["input_threads"] == 1
    assert store.values("params", found["run_id"])["data.path"] == str(tmp_path / "set")
