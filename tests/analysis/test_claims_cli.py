import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.store.load import load
from tests.analysis.conftest import Writer, fc

LAYERS, BATCHES = (1, 2, 3, 4), (16, 32, 64, 128)
MINE = """
- id: wide
  says: Batches pay
  checks:
    - {kind: trend, metric: examples_per_second, of: batch_size, direction: rises}
- id: small
  says: Small batches pay
  checks:
    - {kind: trend, metric: examples_per_second, of: batch_size, direction: falls}
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """16 points on one device with TensorFlow 2.9, the same on two with it, and on one with 2.16; read only."""
    folder = tmp_path_factory.mktemp("measured")
    uri = blank_store(folder / "mlflow.db")
    writer = Writer(uri, "paradnn", folder / "artifacts")
    for layers in LAYERS:
        for batch in BATCHES:
            alone = 1000.0 * batch**0.5 / layers
            work = {"flops_per_step": 1e6 * layers * batch, "infeed_fraction": max(0.0, 0.5 - 0.15 * layers)}
            for devices, version, speed in ((1, "2.9", alone), (2, "2.9", alone / 0.6), (1, "2.16", 1.5 * alone)):
                params = {"devices": str(devices), "measure.predict_oom": "true", "mode": "train"}
                writer.run(
                    fc(layers, batch) | params,
                    {"examples_per_second": speed, "op_share.MatMul": 0.6, **work},
                    [["MatMul", 0.6]],
                    version__tensorflow=version,
                    environment_id=f"env-{version}",
                    point_id=f"p-{layers}-{batch}-{devices}",
                )
    return uri


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main([*arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_scaling_says_what_stays_serial(measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [str(tmp_path / "scaling.csv"), str(tmp_path / "scaling.png")]
    tag = ("--tag", "environment_id=env-2.9")
    chosen = ("scaling", "--store", measured, *tag, "--csv", files[0], "--figure", files[1])
    out = run(capsys, *chosen)
    # 1 / speedup = 0.6 = s + (1 - s) / 2, so s = 0.2.
    assert "fc: over 16 points on 2 against 1 (devices), 20% (20% to 20%) of the step does not run in parallel" in out
    assert "no number of devices makes it more than 5x as fast" in out
    table = pd.read_csv(files[0])
    assert table["fraction"].tolist() == pytest.approx([0.2] * 16)
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")
    taken = run(capsys, "scaling", "--store", measured)
    assert "Of these 48 runs, 32 of one protocol and environment were taken: Test CPU, 2 cores, " in taken
    assert f"python -m analysis scaling --store {measured} --tag environment_id=env-2.16" in taken
    assert "Heterogeneous runs were pooled" not in out


def test_software_says_what_a_version_brings(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("software", "--store", measured, "--where", "devices=1")
    models = run(capsys, *chosen)
    assert "median 1.5x (too few points for an interval), 90th" in models, "four models are too few"
    assert "faster in 100% of 16 points (40% to 100%)" in models
    out = run(capsys, *chosen, "--unit", "point")
    assert (
        "fc on Test CPU, 2 cores, version.tensorflow 2.16 over 2.9: faster. Geometric mean 1.5x (1.5 to 1.5), median "
        "1.5x (1.5 to 1.5), 90th percentile 1.5x (1.5 to unknown); faster in 100% of 16 points (79% to 100%)."
    ) in out
    assert "Not compared: precision: all runs have float32." in out
    csv = run(capsys, *chosen, "--by", "version.tensorflow", "--baseline", "2.16", "--csv", "-")
    assert pd.read_csv(StringIO(csv))["median"].tolist() == pytest.approx([2 / 3])
    error = run(capsys, "software", "--store", measured, "--baseline", "2.9", code=2)
    assert error == "error: --baseline=2.9: is of one column; name it: --by version.tensorflow\n"


def test_infeed_says_who_waits(measured: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("infeed", "--store", measured, "--tag", "environment_id=env-2.9", "--where", "devices=1")
    out = run(capsys, *chosen)
    assert "fc on Test CPU, 2 cores: 8 of 16 points are input-bound, 50% (6.08% to 93.9%)" in out
    assert "Input-bound models of" in out
    error = run(capsys, *chosen, "--threshold", "2", code=2)
    assert error.startswith("error: --threshold=2.0: must be above 0 and below 1")


def test_claims_answers_a_users_own(measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    png = tmp_path / "claims.png"
    chosen = ("claims", "--store", measured, "--tag", "environment_id=env-2.9", "--where", "devices=1")
    out = run(capsys, *chosen, "--file", str(mine), "--figure", str(png))
    assert "wide. Batches pay: SUPPORTED\n  supported: examples_per_second rises with batch_size: rank weight 0." in out
    assert "small. Small batches pay: REFUTED" in out
    assert "2 claims: 1 supported, 1 refuted, 0 not enough data." in out
    assert png.read_bytes().startswith(b"\x89PNG")
    csv = run(capsys, *chosen, "--file", str(mine), "--only", "small", "--csv", "-")
    assert pd.read_csv(StringIO(csv))["claim"].tolist() == ["small"]
    assert run(capsys, *chosen, "--only", "15", code=2) == (
        f"error: --only=15: there is no such claim; choose of {', '.join(str(number) for number in range(1, 15))}\n"
    )
    assert run(capsys, *chosen, "--file", str(tmp_path), code=2).startswith(f"error: {tmp_path}: Is a directory")


def test_the_observations_are_checked_and_logged_with_their_sources(
    measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy = tmp_path / "mlflow.db"
    copy.write_bytes(Path(measured.removeprefix("sqlite:///")).read_bytes())
    uri = f"sqlite:///{copy}"
    out = run(capsys, "claims", "--store", uri, "--only", "14", "--as", "tpu=cpu", "--where", "devices=1", "--log")
    assert (
        "performance improvements in each update [tpu read as cpu]: NOT ENOUGH DATA, as far as measured: 1 of 3 checks"
        in out
    )
    assert "median speedup 1.5 (no interval) over 16 points, at least 1 is needed" in out, "16 points of four models"
    logged = load(uri, kind="analysis").iloc[0]
    sources = json.loads((Path(logged["artifact_uri"].removeprefix("file://")) / "sources.json").read_text())
    assert logged["source_count"] == str(len(sources)) == "32"
    assert main(["claims", "--as", "tpu"]) == 2
    assert "'tpu' is not OLD=NEW" in capsys.readouterr().err
