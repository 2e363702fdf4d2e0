"""Evaluation of claims, from a YAML file to the printed answer.

Covers planted answers, invalid files, a store, and the paper's fourteen observations.
"""

import json
import re
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.claims import answered
from analysis.claims.evaluate import ClaimVerdict, Data, judge, summary, table
from analysis.claims.kinds import KINDS
from analysis.claims.load import load_claims, observations, parse_claims
from analysis.cli import main
from analysis.store.load import load
from paradnn.core.errors import ConfigError, DataError
from tests.analysis.conftest import Writer, copy_of, fc
from tests.analysis.planted import BATCH, POINTS, SIZE, runs, side
from tests.conftest import ROOT

NOISE = np.exp(0.05 * np.random.default_rng(3).standard_normal(len(POINTS)))
FLAT = np.full(len(POINTS), 100.0)


def printed_text(verdicts: tuple[ClaimVerdict, ...]) -> str:
    return answered(verdicts, (), "").text()


def answer(
    check: str, frame: pd.DataFrame, operations: pd.DataFrame | None = None, pool: bool = False
) -> tuple[str, str]:
    """Judge one check, written in YAML, and return its answer and the missing data."""
    claims = parse_claims(f"- id: x\n  says: something\n  checks:\n    - {check}\n", "test")
    read_operations = None if operations is None else lambda _: operations
    finding = judge(claims, Data(frame, read_operations, pool))[0].findings[0]
    return finding.answer, finding.missing


YES = "supported"
NO = "refuted"
UNSURE = "undecided"
NO_DATA = "no data"
SPEED = "metric: examples_per_second"
TPU_GPU = "a: {platform.name: tpu}, b: {platform.name: gpu}"


def two_sides(speedup: np.ndarray, **columns: object) -> pd.DataFrame:
    """Return runs of a TPU and a GPU; `speedup` is the TPU's factor at each point, before noise."""
    return pd.concat(
        [
            side("tpu", POINTS, FLAT * speedup * NOISE, **columns),
            side("gpu", POINTS, FLAT, **columns),
        ],
        ignore_index=True,
    )


def speed_by_size(exponent: float) -> pd.DataFrame:
    """Return runs whose speed is a power law in `model.nodes` and in the batch size."""
    return side("tpu", POINTS, NOISE * BATCH**0.3 * SIZE**exponent)


def speed_by_three_axes() -> pd.DataFrame:
    """Return runs whose speed is batch size^-0.5 x nodes^0.5 x layers^0.1."""
    layers = POINTS["model.layers"].to_numpy(dtype=float)
    return side("tpu", POINTS, BATCH**-0.5 * SIZE**0.5 * layers**0.1 * NOISE)


def speedup_by_batch(exponent: float) -> pd.DataFrame:
    return two_sides(BATCH**exponent)


def constant_speedup(factor: float) -> pd.DataFrame:
    return two_sides(np.full(len(POINTS), factor))


def runs_won_by_tpu(share: float, missing: int = 0) -> pd.DataFrame:
    """Return runs where the TPU is three times as fast as the GPU at a share of the points.

    At the other points it is a third as fast. The last `missing` GPU runs ran out of memory.
    """
    is_won = np.arange(len(POINTS)) < share * len(POINTS)
    frame = two_sides(np.where(is_won, 3.0, 1 / 3))
    if not missing:
        return frame
    failed = frame.index >= len(frame) - missing
    return frame.assign(
        outcome=np.where(failed, "oom_device", "ok"),
        examples_per_second=frame["examples_per_second"].mask(failed),
    )


def runs_on_one_and_eight_devices(serial_fraction: float) -> pd.DataFrame:
    """Return runs on one and on eight devices; `serial_fraction` of the step does not scale."""
    speedup = NOISE / (serial_fraction + (1 - serial_fraction) / 8)
    sides = [
        runs(POINTS, devices=count, examples_per_second=FLAT * gain)
        for count, gain in ((1, 1.0), (8, speedup))
    ]
    return pd.concat(sides)


def sides_without_common_points() -> pd.DataFrame:
    """Return runs of a TPU three times as fast as a GPU that ran other models."""
    other_points = POINTS.assign(**{"model.nodes": POINTS["model.nodes"] + 1})
    return pd.concat(
        [side("tpu", POINTS, 300 * NOISE), side("gpu", other_points, 100 * NOISE)],
        ignore_index=True,
    )


TREND = "kind: trend, metric: examples_per_second"
RANKING = "kind: ranking, metric: examples_per_second"
COMPARE = f"kind: compare, {TPU_GPU}"
RATIO = f"kind: ratio, {TPU_GPU}"
THRESHOLD = "kind: threshold, metric: examples_per_second"
CASES = [
    pytest.param(
        f"{TREND}, of: model.nodes, direction: rises", speed_by_size(0.5), YES, id="rises"
    ),
    pytest.param(
        f"{TREND}, of: model.nodes, direction: falls", speed_by_size(0.5), NO, id="rises, not falls"
    ),
    pytest.param(
        f"{TREND}, of: model.nodes, direction: rises",
        speed_by_size(-0.5),
        NO,
        id="falls, not rises",
    ),
    pytest.param(
        f"{TREND}, of: model.nodes, direction: falls", speed_by_size(-0.5), YES, id="falls"
    ),
    pytest.param(
        f"{TREND}, of: model.nodes, direction: rises", speed_by_size(0.0), UNSURE, id="no trend"
    ),
    pytest.param(
        f"{TREND}, {TPU_GPU}, of: batch_size, direction: rises",
        speedup_by_batch(0.2),
        YES,
        id="speedup rises",
    ),
    pytest.param(
        f"{TREND}, {TPU_GPU}, of: batch_size, direction: rises",
        speedup_by_batch(-0.2),
        NO,
        id="speedup falls, not rises",
    ),
    pytest.param(
        f"{RANKING}, larger: batch_size, than: model.layers",
        speed_by_three_axes(),
        YES,
        id="only the magnitudes of the weights count",
    ),
    pytest.param(
        f"{RANKING}, larger: model.layers, than: batch_size",
        speed_by_three_axes(),
        NO,
        id="smaller weight",
    ),
    pytest.param(
        f"{RANKING}, larger: batch_size, than: [model.layers, model.nodes]",
        speed_by_three_axes(),
        UNSURE,
        id="equal weights",
    ),
    pytest.param(f"{COMPARE}, at_least: 0.5", runs_won_by_tpu(0.9), YES, id="most points won"),
    pytest.param(f"{COMPARE}, at_least: 0.5", runs_won_by_tpu(0.1), NO, id="few points won"),
    pytest.param(f"{COMPARE}, at_most: 0.5", runs_won_by_tpu(0.1), YES, id="few won, at most half"),
    pytest.param(
        f"{COMPARE}, at_least: 0.5", runs_won_by_tpu(0.5), YES, id="half of the points won"
    ),
    pytest.param(
        f"{COMPARE}, between: [0.22, 0.78]", runs_won_by_tpu(0.5), YES, id="half won, between"
    ),
    pytest.param(
        f"{COMPARE}, at_least: 0.5, margin: 4", runs_won_by_tpu(0.9), NO, id="none won by 400%"
    ),
    pytest.param(
        f"{COMPARE}, at_most: 0.5, margin: 4",
        runs_won_by_tpu(0.1),
        YES,
        id="none won by 400%, at most",
    ),
    pytest.param(
        f"{COMPARE}, at_least: 0.5, margin: 4",
        runs_won_by_tpu(0.9, missing=8),
        NO,
        id="refuted whatever the eight missing points would show",
    ),
    pytest.param(
        f"{COMPARE}, at_least: 0.5, margin: 2",
        runs_won_by_tpu(0.45, missing=8),
        YES,
        id="the points measured on both sides decide",
    ),
    pytest.param(
        f"{RATIO}, quantile: 0.5, at_least: 1.8",
        constant_speedup(2.0),
        YES,
        id="median ratio above",
    ),
    pytest.param(
        f"{RATIO}, quantile: 0.5, at_least: 2.2", constant_speedup(2.0), NO, id="median ratio below"
    ),
    pytest.param(
        f"{RATIO}, quantile: 0.5, at_least: 2",
        constant_speedup(2.0),
        UNSURE,
        id="median ratio at the bound",
    ),
    pytest.param(
        f"{RATIO}, quantile: 0.5, between: [1.8, 2.2]",
        constant_speedup(2.0),
        YES,
        id="median ratio between",
    ),
    pytest.param(
        f"{RATIO}, quantile: 0.9, at_least: 1.9", constant_speedup(2.0), YES, id="90th percentile"
    ),
    pytest.param(
        f"{RATIO}, quantile: 0.5, paired: false, at_least: 2",
        sides_without_common_points(),
        YES,
        id="ratio of medians above",
    ),
    pytest.param(
        f"{RATIO}, quantile: 0.5, paired: false, at_least: 4",
        sides_without_common_points(),
        NO,
        id="ratio of medians below",
    ),
    pytest.param(f"{THRESHOLD}, at_least: 70", constant_speedup(1.0), YES, id="threshold reached"),
    pytest.param(f"{THRESHOLD}, at_most: 70", constant_speedup(1.0), NO, id="threshold exceeded"),
    pytest.param(
        f"{THRESHOLD}, at_least: 95",
        constant_speedup(1.0),
        UNSURE,
        id="threshold within the scatter of sessions",
    ),
    pytest.param(
        "kind: scaling, at_least: 0.1",
        runs_on_one_and_eight_devices(0.3),
        YES,
        id="large serial fraction",
    ),
    pytest.param(
        "kind: scaling, at_least: 0.1",
        runs_on_one_and_eight_devices(0.05),
        NO,
        id="small serial fraction",
    ),
    pytest.param(
        "kind: scaling, at_least: 0.1",
        runs_on_one_and_eight_devices(0.1),
        UNSURE,
        id="serial fraction at the bound",
    ),
]


@pytest.mark.parametrize(("check", "frame", "expected"), CASES)
def test_a_check_finds_the_planted_effect(check: str, frame: pd.DataFrame, expected: str) -> None:
    assert answer(f"{{{check}}}", frame, pool=True)[0] == expected


def test_the_difference_of_weights_equals_that_of_plain_least_squares() -> None:
    speed = BATCH**-0.5 * SIZE**0.3 * NOISE
    claims = parse_claims(
        "- id: x\n  says: s\n  checks: [{kind: ranking, metric: examples_per_second, "
        "larger: batch_size, than: model.nodes}]",
        "test",
    )
    found = judge(claims, Data(side("tpu", POINTS, speed)))[0].findings[0]
    ranks = [
        pd.Series(values).rank() for values in (BATCH, SIZE, POINTS["model.layers"].astype(float))
    ]
    design = np.column_stack([(column - column.mean()) / column.std() for column in ranks])
    response = pd.Series(speed).rank()
    weights = np.linalg.lstsq(design, (response - response.mean()) / response.std(), rcond=None)[0]

    assert found.value == pytest.approx(abs(weights[0]) - abs(weights[1]))
    assert found.low < found.value < found.high


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        pytest.param((1, 1.5, 3), YES, id="each version is faster"),
        pytest.param((1, 0.7, 3), NO, id="the second version is slower"),
        pytest.param((1, 1.5, 1.5), UNSURE, id="the third version is equally fast"),
    ],
)
def test_every_version_is_compared_with_its_predecessor(
    speeds: tuple[float, ...], expected: str
) -> None:
    parts = []
    for number, version in enumerate(("2.8", "2.9", "2.10")):  # as text, 2.10 would sort before 2.9
        columns = {"version.tensorflow": version, "environment_id": version}
        parts.append(side("cpu", POINTS, FLAT * speeds[number] * np.roll(NOISE, number), **columns))
    check = "{kind: ratio, successive: version.tensorflow, at_least: 1}"

    assert answer(check, pd.concat(parts, ignore_index=True))[0] == expected
    assert answer(check, parts[0]) == (
        NO_DATA,
        "all runs have version.tensorflow=2.8, but successive versions need at least two",
    )


def operation_table(
    frame: pd.DataFrame, shares: dict[str, float], rate: float = 1.0
) -> pd.DataFrame:
    rows = [
        {
            "run_id": run,
            "type": kind,
            "share": share,
            "flops_per_second": rate * (1 + number % 3),
            "arithmetic_intensity": 100.0 if kind == "MatMul" else 0.5,
        }
        for number, run in enumerate(frame["run_id"])
        for kind, share in shares.items()
    ]
    return pd.DataFrame(rows)


def test_a_share_adds_up_the_selected_operations() -> None:
    frame = side(
        "tpu",
        POINTS,
        FLAT,
        **{"op_share.MatMul": 0.7, "op_share.AllReduce": 0.2, "op_share.Add": 0.1},
    )
    check = "{kind: share, at_least: 0.25, operations: "

    assert answer(check + "{type: [AllReduce, Add]}}", frame)[0] == YES
    assert answer(check + "{type: '*Reduce'}}", frame)[0] == NO
    assert answer(check + "{type: Conv2D}}", frame)[0] == NO, (
        "an operation that never ran took no time"
    )

    unrecorded = "the operation tables do not record arithmetic_intensity"
    assert answer(check + "{arithmetic_intensity: '<75'}}", frame) == (NO_DATA, unrecorded)

    table_with_intensity = operation_table(frame, {"MatMul": 0.7, "AllReduce": 0.2, "Add": 0.1})
    assert answer(check + "{arithmetic_intensity: '<75'}}", frame, table_with_intensity)[0] == YES

    unprofiled = (
        "no profile was recorded in 64 runs; measure the points again with measure.profile=true"
    )
    assert answer(check + "{type: Add}}", side("tpu", POINTS, FLAT)) == (NO_DATA, unprofiled)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        pytest.param(
            "{type: MatMul, arithmetic_intensity: '>=75'}, between: [1.9, 2.1]}",
            (YES, ""),
            id="a type above an intensity",
        ),
        pytest.param("{type: Add}, at_least: 2.5}", (NO, ""), id="another type"),
        pytest.param(
            "{type: Conv2D}, at_least: 2.5}",
            (NO_DATA, "no operation satisfies type=Conv2D"),
            id="a missing type",
        ),
    ],
)
def test_speedups_of_operations_are_paired_by_point_and_type(
    conditions: str, expected: tuple[str, str]
) -> None:
    frame = two_sides(np.ones(len(POINTS)), **{"op_share.MatMul": 0.5})
    tpu, gpu = (frame[frame["platform.name"] == name] for name in ("tpu", "gpu"))
    tables = pd.concat(
        [
            operation_table(tpu, {"MatMul": 0.5, "Add": 0.5}, 2.0),
            operation_table(gpu, {"MatMul": 0.5, "Add": 0.1}),
        ]
    )
    check = f"{{kind: ratio, {TPU_GPU}, metric: flops_per_second, operations: {conditions}"

    assert answer(check, frame, tables) == expected


def test_an_outcome_share_counts_only_points_tried_on_both_sides() -> None:
    large = SIZE > 500
    is_ok_on_cpu = np.arange(len(POINTS)) % 4
    gpu = side(
        "gpu", POINTS, np.where(large, np.nan, 100.0), outcome=np.where(large, "oom_device", "ok")
    )
    cpu = side("cpu", POINTS, FLAT)
    untried = (
        "32 points ended as oom_host|oom_device|oom_predicted with platform.name=gpu, "
        "but none was tried with platform.name=cpu"
    )
    for gpu_runs, cpu_runs, expected in (
        (gpu, cpu, (YES, "")),
        (gpu, cpu.assign(outcome="oom_host"), (NO, "")),
        (gpu, cpu.assign(outcome=np.where(is_ok_on_cpu, "ok", "oom_host")), (YES, "")),
        (gpu, cpu[~large], (NO_DATA, untried)),
        (
            gpu[~large],
            cpu,
            (NO_DATA, "no point with platform.name=gpu has the outcome oom_host or "),
        ),
    ):
        check = "{kind: outcome, a: {platform.name: cpu}, b: {platform.name: gpu}, at_least: 0.6}"
        found, missing = answer(check, pd.concat([gpu_runs, cpu_runs]))
        assert (found, missing[: len(expected[1])]) == expected


@pytest.mark.parametrize(
    ("check", "missing"),
    [
        pytest.param(
            "{kind: threshold, metric: parameters, at_least: 1}",
            "no parameters was recorded in 64 runs",
            id="metric",
        ),
        pytest.param(
            "{kind: threshold, metric: parameters, at_least: 1, where: {family: rnn}}",
            "no run satisfies family=rnn",
            id="family",
        ),
        pytest.param(
            "{kind: threshold, metric: parameters, at_least: 1, where: {devices: 8}}",
            "no run records devices",
            id="column",
        ),
        pytest.param(
            "{kind: trend, metric: examples_per_second, of: model.filters, direction: rises}",
            "no run records model.filters",
            id="hyperparameter",
        ),
        pytest.param(
            "{kind: trend, metric: examples_per_second, of: seed, direction: rises}",
            "seed does not vary in these 64 points",
            id="constant column",
        ),
        pytest.param(
            "{kind: trend, metric: examples_per_second, of: precision, direction: rises}",
            "precision is a column of text, not of numbers",
            id="text column",
        ),
        pytest.param(
            "{kind: scaling, at_least: 0.1}",
            (
                "devices: no measured run records this count; measure the same points with "
                "devices=1 and with a larger count"
            ),
            id="device counts",
        ),
    ],
)
def test_a_finding_names_the_missing_data(check: str, missing: str) -> None:
    assert answer(check, side("tpu", POINTS, NOISE, seed=0)) == (NO_DATA, missing)


def test_sides_without_a_common_point_are_reported() -> None:
    missing = answer(f"{{kind: ratio, {TPU_GPU}, at_least: 2.5}}", sides_without_common_points())[1]
    assert missing == "no point was measured on both sides: A has 64 runs and B has 64"


#: Bounds of a check of throughput, by the outcome of the check for runs at 100 examples/s.
THRESHOLDS = {
    "true": "at_least: 50",
    "false": "at_least: 500",
    "undecided": "at_least: 100",
    "without data": "at_least: 50, where: {family: rnn}",
}


def verdicts_of_thresholds(outcomes: Sequence[str]) -> Sequence[ClaimVerdict]:
    """Judge a claim with one check per outcome in THRESHOLDS."""
    start = "kind: threshold, metric: examples_per_second"
    checks = [f"{{{start}, {THRESHOLDS[outcome]}}}" for outcome in outcomes]
    claims = parse_claims(f"- {{id: 1, says: it, checks: [{', '.join(checks)}]}}", "test")
    return judge(claims, Data(side("tpu", POINTS, FLAT * NOISE)))


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param(["true", "without data"], "supported", id="one has no data"),
        pytest.param(["true", "false"], "refuted", id="one is false"),
        pytest.param(["undecided", "false"], "refuted", id="undecided and false"),
        pytest.param(["true", "undecided"], UNSURE, id="one is undecided"),
        pytest.param(["without data"], NO_DATA, id="none has data"),
    ],
)
def test_a_claim_needs_all_checks_with_data_and_is_refuted_by_one(
    outcomes: list[str], expected: str
) -> None:
    verdicts = verdicts_of_thresholds(outcomes)

    assert verdicts[0].answer == expected
    assert f"1. it: {expected.upper()}" in printed_text(verdicts)
    assert list(table(verdicts)["claim_answer"]) == [expected] * len(outcomes)


def test_a_claim_reports_checks_without_data() -> None:
    report = printed_text(verdicts_of_thresholds(["true", "without data"]))

    assert "as far as measured: 1 of 2 checks" in report
    assert "no data: no run satisfies family=rnn (1 check)" in report


def test_a_claim_is_about_the_points_that_both_sides_measured() -> None:
    """The TPU wins all complete pairs, but 40 of the 64 points that the GPU tried crashed.

    A second number bounds the share over all tried points, between 38% and 100%.
    """
    frame = two_sides(np.full(len(POINTS), 3.0))
    has_crashed = frame["platform.name"].eq("gpu") & (
        frame.groupby("platform.name").cumcount() < 40
    )
    frame.loc[has_crashed, ["outcome", "examples_per_second"]] = ["crash", np.nan]

    assert answer(f"{{kind: compare, {TPU_GPU}, at_least: 0.5}}", frame) == (YES, "")
    assert answer(f"{{kind: ratio, {TPU_GPU}, at_least: 2}}", frame) == (YES, "")

    claims = parse_claims(
        f"- id: x\n  says: s\n  checks:\n    - {{kind: compare, {TPU_GPU}, at_least: 0.3}}\n",
        "test",
    )
    assert "between 0.375 and 1 with the 40 points that only one side measured" in printed_text(
        judge(claims, Data(frame))
    )


LAYERS = (1, 2, 3, 4)
BATCHES = (16, 32, 64, 128)
USER_CLAIMS = str(Path(__file__).with_name("claims_mine.yaml"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """Return the URI of a read-only store of 16 points.

    Each point ran on one device with TensorFlow 2.9, on two devices with 2.9, and on one device
    with 2.16.
    """
    folder = tmp_path_factory.mktemp("measured")
    uri = blank_store(folder / "mlflow.db")
    writer = Writer(uri, "paradnn", folder / "artifacts")
    for layers in LAYERS:
        for batch in BATCHES:
            one_device_speed = 1000.0 * batch**0.5 / layers
            metrics = {
                "flops_per_step": 1e6 * layers * batch,
                "infeed_fraction": max(0.0, 0.5 - 0.15 * layers),
            }
            for devices, version, speed in (
                (1, "2.9", one_device_speed),
                (2, "2.9", one_device_speed / 0.6),
                (1, "2.16", 1.5 * one_device_speed),
            ):
                params = {"devices": str(devices), "measure.predict_oom": "true", "mode": "train"}
                writer.run(
                    fc(layers, batch) | params,
                    {"examples_per_second": speed, "op_share.MatMul": 0.6, **metrics},
                    [["MatMul", 0.6]],
                    version__tensorflow=version,
                    environment_id=f"env-{version}",
                    sweep_order="random",
                    point_id=f"p-{layers}-{batch}-{devices}",
                )
    return uri


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main([*arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_scaling_reports_the_planted_serial_fraction(
    measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "scaling.csv"
    figure = tmp_path / "scaling.png"
    old_version = ("--store", measured, "--tag", "environment_id=env-2.9")

    out = run(capsys, "scaling", *old_version, "--csv", str(table), "--figure", str(figure))

    # 1 / speedup = 0.6 = s + (1 - s) / 2, so s = 0.2.
    assert re.search(
        r"fc: over 16 points on 2 against 1 \(devices\), 20% \([\d.]+% to [\d.]+%\) of the step does "
        "not run in parallel",
        out,
    )
    assert pd.read_csv(table)["fraction"].tolist() == pytest.approx([0.2] * 16)
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_software_reports_the_faster_version(
    measured: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, "software", "--store", measured, "--where", "devices=1")

    assert "ahead on 16 of 16 points" in out


def test_software_compares_with_the_chosen_baseline(
    measured: str, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = ("--by", "version.tensorflow", "--baseline", "2.16")
    selection = ("--store", measured, "--where", "devices=1")

    csv = run(capsys, "software", *selection, *baseline, "--csv", "-")

    assert pd.read_csv(StringIO(csv))["median"].tolist() == pytest.approx([2 / 3])


def test_a_baseline_without_a_column_is_rejected(
    measured: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run(capsys, "software", "--store", measured, "--baseline", "2.9", code=2)

    assert (
        error == "error: --baseline=2.9: needs --by with exactly one column; "
        "for example, write --by version.tensorflow\n"
    )


def test_infeed_reports_the_input_bound_points(
    measured: str, capsys: pytest.CaptureFixture[str]
) -> None:
    selection = ("--tag", "environment_id=env-2.9", "--where", "devices=1")

    out = run(capsys, "infeed", "--store", measured, *selection)

    assert "fc on Test CPU, 2 cores: 8 of 16 points are input-bound, 50% (6.08% to 93.9%)" in out


def test_the_claims_command_evaluates_a_file_of_the_user(
    measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    png = tmp_path / "claims.png"
    command = (
        "claims",
        "--store",
        measured,
        "--tag",
        "environment_id=env-2.9",
        "--where",
        "devices=1",
    )
    out = run(capsys, *command, "--file", USER_CLAIMS, "--figure", str(png))

    assert out.startswith("2 claims: 1 supported, 1 refuted, 0 undecided, 0 no data.\n")
    assert (
        "wide. Batches pay: SUPPORTED\n  supported: examples_per_second rises with batch_size: rank "
    ) in out
    assert "small. Small batches pay: REFUTED" in out

    overview = out.split("\n\n")[1].splitlines()
    assert [" ".join(line.split()) for line in overview] == [
        "claim answer",
        "wide. Batches pay supported",
        "small. Small batches pay refuted",
        "The same in all rows: checks with data 1 of 1",
    ]
    assert png.read_bytes().startswith(b"\x89PNG")

    csv = run(capsys, *command, "--file", USER_CLAIMS, "--only", "small", "--csv", "-")
    assert pd.read_csv(StringIO(csv))["claim"].tolist() == ["small"]

    single_claim = run(capsys, *command, "--file", USER_CLAIMS, "--only", "small")
    assert single_claim.startswith("Claim small is refuted.\n")
    assert run(capsys, *command, "--file", str(tmp_path), code=2).startswith(
        f"error: {tmp_path}: Is a directory"
    )


def test_the_observations_are_checked_and_logged_with_their_sources(
    measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    uri = copy_of(measured, tmp_path)
    cpu_claims = tmp_path / "of_cpu.yaml"
    cpu_claims.write_text(
        (ROOT / "analysis/claims/observations.yaml").read_text().replace("name: tpu", "name: cpu")
    )
    out = run(
        capsys,
        "claims",
        "--store",
        uri,
        "--only",
        "14",
        "--file",
        str(cpu_claims),
        "--where",
        "devices=1",
        "--log",
    )

    assert out.startswith("Claim 14 is supported, as far as measured: 1 of 3 checks.\n")
    assert "in each update (Figure 12): SUPPORTED, as far as measured: 1 of 3 checks" in out
    assert re.search(r"median speedup 1\.5 \(.+ to .+\) over 16 points", out)

    logged = load(uri, kind="analysis").iloc[0]
    sources = json.loads(
        (Path(logged["artifact_uri"].removeprefix("file://")) / "sources.json").read_text()
    )

    assert logged["source_count"] == str(len(sources)) == "32"


COMPARISON = "{kind: compare, a: {x: 1}, b: {x: 2}, at_least: 0.5}"


def claim(check: str) -> str:
    """Return the content of a claims file that has one claim with one check."""
    return f"- {{id: 1, says: it, checks: [{check}]}}"


@pytest.mark.parametrize(
    ("message", "content"),
    [
        pytest.param("claims.yaml line 1: is not YAML: ", "{", id="not YAML"),
        pytest.param(
            "claims.yaml: does not contain a list of claims; begin each with '- id: ...'",
            "a: 1",
            id="not a list",
        ),
        pytest.param(
            "claims.yaml: claim 1=3: is not a mapping; write its keys: id, says, checks",
            "- 3",
            id="claim not a mapping",
        ),
        pytest.param(
            "claims.yaml: claim 1: id=1: appears twice; give each claim a unique id",
            2 * f"{claim(COMPARISON)}\n",
            id="id twice",
        ),
        pytest.param(
            "claims.yaml: claim 1: sais=it: is an unknown key; did you mean says?",
            claim(COMPARISON).replace("says", "sais"),
            id="misspelled key",
        ),
        pytest.param(
            "claims.yaml: claim 1: says=(none): is missing; write says: ...",
            claim(COMPARISON).replace("says: it, ", ""),
            id="says missing",
        ),
        pytest.param(
            "claims.yaml: claim 1: says=3: expects a line of text; quote it",
            claim(COMPARISON).replace("it", "3"),
            id="says a number",
        ),
        pytest.param(
            "claim 1: check 1: kind=contrast: is not a kind of check; choose one of trend, ",
            claim("{kind: contrast, a: {x: 1}, b: {x: 2}, at_least: 0.5}"),
            id="unknown kind",
        ),
        pytest.param(
            "claim 1: check 1: atleast=0.5: is an unknown key; did you mean at_least?",
            claim("{kind: compare, a: {x: 1}, b: {x: 2}, atleast: 0.5}"),
            id="misspelled bound",
        ),
        pytest.param(
            "at_least or at_most or between=(none): is missing from a compare",
            claim("{kind: compare, a: {x: 1}, b: {x: 2}}"),
            id="bound missing",
        ),
        pytest.param(
            "check 1: at_least=half: expects a number",
            claim("{kind: compare, a: {x: 1}, b: {x: 2}, at_least: half}"),
            id="bound a word",
        ),
        pytest.param(
            "at_most=1: conflicts with at_least",
            claim("{kind: compare, a: {x: 1}, b: {x: 2}, at_least: 0.5, at_most: 1}"),
            id="two bounds",
        ),
        pytest.param(
            "between=[2, 1]: has its ends in the wrong order",
            claim("{kind: compare, a: {x: 1}, b: {x: 2}, between: [2, 1]}"),
            id="ends exchanged",
        ),
        pytest.param(
            "between=2: expects two numbers; for example, write between: [2.0, 2.6]",
            claim("{kind: compare, a: {x: 1}, b: {x: 2}, between: 2}"),
            id="one end",
        ),
        pytest.param(
            "check 1: b=(none): is missing from a compare; write b: ...",
            claim("{kind: compare, a: {x: 1}, at_least: 0.5}"),
            id="side missing",
        ),
        pytest.param(
            "check 1: b=gpu: is not a mapping; for example, write b: {platform.name: cpu}",
            claim("{kind: compare, a: {x: 1}, b: gpu, at_least: 0.5}"),
            id="side not a mapping",
        ),
        pytest.param(
            "check 1: b=x>many: compares with 'many', which is neither a number nor a time; for example, write",
            claim("{kind: compare, a: {x: 1}, b: {x: '>many'}, at_least: 0.5}"),
            id="condition not a number",
        ),
        pytest.param(
            "check 1: b: x={}: is not a condition",
            claim("{kind: compare, a: {x: 1}, b: {x: {}}, at_least: 0.5}"),
            id="condition a mapping",
        ),
        pytest.param(
            "margin=-1.0: must be above 0",
            claim("{kind: compare, a: {x: 1}, b: {x: 2}, at_least: 1, margin: -1}"),
            id="negative margin",
        ),
        pytest.param(
            "a, b or successive=(none): a ratio needs",
            claim("{kind: ratio, at_least: 1}"),
            id="ratio without sides",
        ),
        pytest.param(
            "quantile=90.0: must be above 0 and below 1",
            claim("{kind: threshold, metric: m, at_least: 1, quantile: 90}"),
            id="quantile above 1",
        ),
        pytest.param(
            "direction=up: no such choice; choose one of rises, falls",
            claim("{kind: trend, metric: m, of: x, direction: up}"),
            id="unknown direction",
        ),
        pytest.param(
            "checks={'kind': 'trend'}: is not a list; begin each",
            "- {id: 1, says: it, checks: {kind: trend}}",
            id="checks not a list",
        ),
        pytest.param(
            "check 1=3: is not a mapping; write its keys: kind",
            claim("3"),
            id="check not a mapping",
        ),
        pytest.param(
            "paired=maybe: expects true or false",
            claim("{kind: ratio, a: {x: 1}, b: {x: 2}, paired: maybe, at_least: 1}"),
            id="paired not a boolean",
        ),
        pytest.param(
            "paired=false: operations are always paired",
            claim(
                "{kind: ratio, a: {x: 1}, b: {x: 2}, paired: false, operations: {type: Add}, "
                "at_least: 0.5}"
            ),
            id="operations unpaired",
        ),
    ],
)
def test_an_invalid_entry_raises_a_one_line_error(message: str, content: str) -> None:
    with pytest.raises((ConfigError, DataError), match=re.escape(message)) as caught:
        parse_claims(content, "claims.yaml")
    assert "\n" not in str(caught.value)


def test_the_paper_has_fourteen_observations() -> None:
    assert [claim.id for claim in observations()] == [str(number) for number in range(1, 15)]


def test_the_observations_use_every_other_kind_of_check() -> None:
    kinds = {check.kind for claim in observations() for check in claim.checks}

    assert kinds | {"threshold", "layers"} == set(KINDS)


def test_plain_cpu_runs_have_no_data_for_the_observations() -> None:
    verdicts = judge(observations(), Data(runs(POINTS, examples_per_second=100.0)))

    assert {verdict.answer for verdict in verdicts} == {NO_DATA}
    assert all(finding.missing for verdict in verdicts for finding in verdict.findings)


def test_shipped_claims_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert {claim.id for claim in load_claims(Path("engines.yaml"))} >= {
        "int8-fc",
        "vision",
        "language",
    }
    assert {claim.id for claim in load_claims(Path("eie.yaml"))} == {"one", "batch", "density"}


def test_a_local_file_of_claims_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engines.yaml").write_text(claim(COMPARISON))

    assert load_claims(Path("engines.yaml"))[0].says == "it"


def test_a_missing_file_of_claims_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"none\.yaml: No such file or directory; name a YAML file of claims"
    ):
        load_claims(tmp_path / "none.yaml")


def test_the_summary_of_no_verdicts_says_that_no_claim_has_data() -> None:
    assert summary(()) == "No claim has data in these runs."


@pytest.mark.parametrize(
    ("check", "field"),
    [
        pytest.param("kind: trend, of: batch_size, direction: rises", "metric", id="trend"),
        pytest.param("kind: ranking, larger: a, than: b", "metric", id="ranking"),
        pytest.param("kind: threshold, at_least: 1", "metric", id="threshold"),
        pytest.param("kind: share, at_least: 1", "operations", id="share"),
    ],
)
def test_a_check_without_a_required_field_is_rejected(check: str, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}=.*is missing from a"):
        parse_claims(f"- {{id: x, says: s, checks: [{{{check}}}]}}", "test")


@pytest.mark.parametrize(
    ("check", "source", "expected"),
    [
        pytest.param(
            f"{{kind: ratio, {TPU_GPU}, quantile: 0.5, at_least: 2}}",
            "paradnn",
            r"\d+ more runs? per side$",
            id="ratio",
        ),
        pytest.param(
            f"{{kind: ratio, {TPU_GPU}, quantile: 0.5, at_least: 2}}",
            "published",
            "a second published measurement of both sides at these points would decide it",
            id="published ratio",
        ),
        pytest.param(
            f"{{kind: compare, {TPU_GPU}, margin: 2, at_least: 0.9}}",
            "published",
            "a second published measurement",
            id="published share",
        ),
        pytest.param(
            f"{{kind: trend, {TPU_GPU}, metric: examples_per_second, of: model.nodes, "
            "direction: rises}",
            "published",
            r"values of nodes instead of 4 would decide it; no other values are published",
            id="published trend",
        ),
        pytest.param(
            "{kind: trend, metric: examples_per_second, of: model.nodes, direction: rises, "
            "where: {platform.name: tpu}}",
            "paradnn",
            r"values of nodes instead of 4 would decide it; python -m paradnn.train -m model=fc .*"
            r"model.nodes=[\d,]+ ",
            id="trend",
        ),
        pytest.param(
            "{kind: threshold, metric: examples_per_second, at_least: 190, "
            "where: {platform.name: tpu}}",
            "paradnn",
            r"about \d+ sessions? would decide it: python -m paradnn.train -m model=fc .*"
            "batch_size=64,256,1024,4096",
            id="threshold",
        ),
    ],
)
def test_an_undecided_check_says_what_would_decide_it(
    check: str, source: str, expected: str
) -> None:
    shape = {"model.input_size": 2000, "model.output_size": 1000}
    frame = two_sides(np.full(len(POINTS), 2.0)).assign(source=source, **shape)
    if source == "published":
        frame = frame.drop(columns=["start_time", "sweep_id"])
    found = answer(check, frame)

    assert found[0] == UNSURE
    assert re.search(expected, found[1]), found[1]
