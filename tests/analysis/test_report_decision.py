"""Decisions in the report: verdict, results, systems, and proposed measurements."""

import json
import math
import re
import shlex
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.options import Selection
from analysis.point_names import model_name
from analysis.prices import PRICE, PriceList, with_costs
from analysis.report.comparisons import compare_populations
from analysis.report.findings import key_findings
from analysis.report.populations import Population, common_overrides, split
from analysis.report.results import PageTable, results, systems
from analysis.report.sections import Context, PopulationReport, outline
from paradnn.config.paths import CONFIG
from paradnn.config.point import Measure
from paradnn.core.schema import read
from tests.analysis.planted import grid, runs
from tests.conftest import Store, run


def protocol_columns(measure: Measure) -> dict[str, object]:
    """Return the settings of a protocol as columns of a frame."""
    return {f"measure.{key}": value for key, value in asdict(measure).items() if value is not None}


STANDARD = protocol_columns(Measure())
QUICK = protocol_columns(
    read(Measure, yaml.safe_load((CONFIG / "measure" / "quick.yaml").read_text()), "measure")
)
QUICK |= {
    "measure.timeout": 3.0,
    "platform.name": "cpu",
    "framework.name": "tensorflow",
    "software.name": "current",
}
START = pd.Timestamp("2026-01-01", tz="UTC")


def measured(points: pd.DataFrame | None = None, **columns: object) -> pd.DataFrame:
    """Return runs of the points, by default of the factorial, with the columns of a stored run.

    The speed is 1e4 x batch^0.5 / (nodes x layers)^0.8.
    """
    if points is None:
        points = grid()
    work = points["model.nodes"].astype("float64") * points["model.layers"].astype("float64")
    speed = 1e4 * points["batch_size"].astype("float64") ** 0.5 / work**0.8
    stored = {
        "run_name": "a point",
        "artifact_uri": "",
        "start_time": START,
        "replicate": 0,
        "parameters": work,
    }
    return runs(points, **{"examples_per_second": speed, **stored, **columns})


def population(**columns: object) -> Population:
    (found,) = split(measured(**{**QUICK, **columns}), Selection())
    return found


def table_text(found: PageTable | None) -> str:
    """Return the header and the rows of a table, one line each."""
    lines = [found.head, *([cell.words for cell in row] for row in found.rows)]
    return "\n".join("|".join([*map(str, line), ""]) for line in lines)


def test_the_proposed_command_has_points_to_measure(empty_database: Path, tmp_path: Path) -> None:
    """`paradnn.plan` with the arguments of the proposed command finds points to measure."""
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    findings = key_findings([PopulationReport(population(**{PRICE: None}), [])], [], [])
    (command,) = [finding.command for finding in findings if "train" in finding.command]
    python, flag, module, *arguments = shlex.split(command)

    assert (python, flag, module) == ("python", "-m", "paradnn.train")

    done = run(["paradnn.plan", *arguments], Store(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(r"to measure +[1-9]", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("columns", "overrides"),
    [
        pytest.param({}, ["measure=quick"], id="quick protocol"),
        pytest.param(
            {"measure.min_seconds": 0.02},
            ["measure=quick", "measure.min_seconds=0.02"],
            id="changed duration",
        ),
        pytest.param(
            {"measure.processes": 3},
            ["measure=quick", "measure.processes=3"],
            id="changed processes",
        ),
        pytest.param({"framework.name": "jax"}, ["framework=jax", "measure=quick"], id="framework"),
        pytest.param(STANDARD | {"measure.processes": 5}, [], id="standard protocol"),
    ],
)
def test_a_proposed_command_has_the_common_overrides_of_its_runs(
    columns: dict[str, object], overrides: list[str]
) -> None:
    """The overrides omit limits such as measure.timeout. The standard protocol needs none."""
    assert list(common_overrides(population(**columns))) == overrides


def test_models_have_the_names_of_their_runs() -> None:
    known = {
        "family": "residual",
        "model.blocks": "[1, 2, 2, 1]",
        "model.filters": 16,
        "model.image_size": 64,
    }
    assert model_name(known) == "residual 1-2-2-1x16 64px"
    assert (
        model_name(
            {"family": "fc", "model.layers": 4, "model.nodes": 256, "model.output_size": pd.NA}
        )
        == "fc 4x256"
    )
    assert model_name({"family": "of tomorrow", "model.layers": 4}) == "of tomorrow"

    generated = {"family": "gpt", "generate.prompt": 64.0, "generate.tokens": 8.0}
    assert model_name(generated) == "gpt 4x256 h4 t128 generate 64+8"


def test_results_have_the_time_and_the_price_of_a_million_examples() -> None:
    points = grid(nodes=(64, 256), layers=(4,), batches=(32, 64))
    rows = measured(
        points,
        examples_per_second=[1000.0, 2000.0, 250.0, 500.0],
        examples_per_second_low=[900.0, 1800.0, 225.0, 450.0],
        examples_per_second_high=[1100.0, 2200.0, 275.0, 550.0],
        peak_memory_bytes=2.0**31,
        energy_per_step_joules=3.6,
        energy_per_example_above_idle_joules=0.072,
        parameters=[1e3, 1e3, 1e6, 1e6],
        steady=True,
    )
    (unpriced,) = split(rows, Selection())
    (priced,) = split(with_costs(rows, PriceList({"Test CPU": 3.6})), Selection())
    table, _ = results([priced], "")

    assert "precision = float32" in table.note
    assert "quality = steady, single process" in table.note

    # A million examples at 1,000 per second take 1,000 s, which cost 1 at 3.6 per hour. 3.6 J per
    # step of 32 examples are 0.03125 kWh per million. 0.072 J per example above idle are 0.02 kWh
    # per million.
    cells = dict(zip(table.head, (cell.words for cell in table.rows[0]), strict=True))
    assert [*cells.values()] == [
        "fc 4x64",
        "32",
        "1",
        "1k",
        "900\u00a0to\u00a01.1k",
        "16.67",
        "0.03125",
    ]
    assert "above idle (kWh) = 0.02" in table.note
    assert "peak memory (GiB) = 2" in table.note
    assert "cost" not in table_text(results([unpriced], "")[0])


def test_systems_show_the_properties_of_their_runs(tmp_path: Path) -> None:
    cards = [{"name": "Card", "memory": "80 GB", "driver": "1.2"}] * 2
    hardware = {
        "processor": "Test 9000",
        "cores": 8,
        "physical_cores": 4,
        "memory_gib": 32,
        "accelerators": cards,
    }
    environment = {
        "hardware": hardware,
        "host": {"system": "Linux", "kernel": "6.1", "virtualised": True},
    }
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    store = f"sqlite:///{tmp_path}/mlflow.db"
    page = str(systems([population(artifact_uri=tmp_path.as_uri(), host="n1")], store))
    for text in (
        "Test 9000",
        "8 (4 physical)",
        "32 GiB",
        "2 x Card, 80 GB, driver 1.2",
        "Linux 6.1",
        "n1, virtual",
    ):
        assert text in page

    assert "single process, at least 0.5 s and 6 blocks each" in page

    without_environment = str(systems([population(artifact_uri="")], None))
    assert "Processor" not in without_environment


@pytest.fixture(scope="module")
def two_devices() -> pd.DataFrame:
    """Return runs of two cards in one session.

    X1 is twice as fast as Y2, and the largest models do not fit into Y2.
    """
    points = grid()
    fast, slow = (
        measured(points, device=name, environment_id=name, sweep_id="s1", host="n1")
        for name in ("X1", "Y2")
    )
    fast["examples_per_second"] = 2 * slow["examples_per_second"]
    does_not_fit = slow["model.nodes"].eq(slow["model.nodes"].max()) & slow["batch_size"].eq(
        slow["batch_size"].max()
    )
    slow.loc[does_not_fit, "outcome"] = "oom_device"
    slow.loc[does_not_fit, "examples_per_second"] = float("nan")
    return pd.concat([fast, slow], ignore_index=True)


def first_screen(frame: pd.DataFrame, prices: PriceList | None = None) -> str:
    """Return the findings on the first screen of a report, one line each.

    Findings of the analyses of single systems are omitted.
    """
    if prices is None:
        prices = PriceList()
    frame = with_costs(frame, prices)
    context = Context((), False)
    populations = split(frame, Selection())
    choices = context.sections(
        outline("all", frame, prices.given), frame, Selection(), "all", "all runs"
    )
    comparisons = compare_populations(populations, frame, Selection(), context)
    findings = key_findings(
        [PopulationReport(entry, []) for entry in populations], comparisons, choices
    )
    return "\n".join(f"{finding.topic}: {finding.words} {finding.command}" for finding in findings)


def test_the_verdict_names_devices_and_other_differences(two_devices: pd.DataFrame) -> None:
    two_precisions = two_devices.assign(
        precision=two_devices["device"].map({"X1": "bfloat16", "Y2": "float32"})
    )
    verdict = first_screen(two_precisions)

    assert verdict.startswith(
        "Which is faster: X1 is faster on fc models: X1 runs 2 times as fast as Y2 (95% CI 1.95 to 2.05)"
    )
    assert "did not fit into memory: the smallest is fc 4x4096 at batch size" in verdict
    assert (
        "X1 and Y2 also differ in precision (bfloat16 / float32): the ratios include these effects."
        in verdict
    )
    assert not re.search(r"\b[AB]\b", verdict)


def test_the_first_screen_of_one_machine_has_findings_and_a_command() -> None:
    """The speed grows with the square root of the batch size, by a factor of 8 from 64 to 4,096.

    Intervals of 10% do not hide this growth.
    """
    rows = measured(steady=True, contended=[True] + [False] * 63, roofline_fraction=0.3, **QUICK)
    speed = rows["examples_per_second"]
    rows = rows.assign(examples_per_second_low=0.9 * speed, examples_per_second_high=1.1 * speed)
    rows["flops_per_second"] = 1e9
    rows["flops_utilization"] = 0.5
    text = first_screen(rows.assign(ceilings_contended="too low"))
    for sentence in (
        "fc 4x64 at batch size 4,096: 7,580 examples/s (95% interval 6,820 to 8,340), the highest of 64 points.",
        "1 GFLOP/s, 50% of this machine's measured peak (which was measured under contention, and is too low).",
        "Mostly neither arithmetic nor memory is the limit: the median point reaches 30% of the rate",
        "Batch size 4,096 instead of 64: 8 times the throughput on each of the 16 models measured with both. The",
        "model.nodes=64,1024,4096 batch_size=8192,16384 measure=quick",
        "64 measured points, including 1 on a contended machine. The half width of their 95% intervals is 10% in the",
        "utilizations are too high.",
    ):
        assert sentence in text, text

    assert "cannot be compared" not in text


def test_the_highest_of_equal_rates_is_reported_as_one_of_several() -> None:
    rows = measured(**QUICK)
    rows = rows.assign(
        examples_per_second=100.0, examples_per_second_low=90.0, examples_per_second_high=110.0
    )
    text = first_screen(rows)

    assert (
        "100 examples/s (95% interval 90.0 to 110), the highest of 64 points; 63 other points"
        in text
    )


def test_the_highest_of_noisy_rates_is_shrunk() -> None:
    speed = 100 * np.exp(np.random.default_rng(1).normal(0, 0.05, 64))
    rows = measured(**QUICK).assign(examples_per_second=speed)
    rows = rows.assign(
        examples_per_second_low=speed / math.exp(0.098),
        examples_per_second_high=speed * math.exp(0.098),
    )
    text = first_screen(rows)
    found = re.search(r"([\d.]+) examples/s \(95% interval ([\d.]+) to ([\d.]+)\)", text)

    assert found

    value, low, high = map(float, found.groups())
    assert low < 100 < high
    assert value < speed.max()
    assert f"{speed.max():.3g} was measured, but the highest of several is biased upward." in text


def test_the_cost_comes_before_the_speed_if_prices_are_known(two_devices: pd.DataFrame) -> None:
    """X1 is twice as fast as Y2.

    If X1 has three times the price, Y2 is cheaper by a factor of 1.5. At equal prices, X1 is
    cheaper by a factor of 2.
    """
    for price, sentence in (
        (
            21.6,
            "Y2 is cheaper: the same work on fc models costs 1.5 times as much on X1 (95% CI 1.46 to 1.54).",
        ),
        (
            7.2,
            "X1 is cheaper: the same work on fc models costs 2 times as much on Y2 (95% CI 1.95 to 2.05).",
        ),
    ):
        prices = PriceList({"X1": price, "Y2": 7.2}, "EUR")
        text = first_screen(two_devices, prices)
        assert text.startswith(f"What it costs: {sentence}"), text
        assert "Y2: A million examples cost from " in text
        assert " at a price of 7.2 EUR an hour." in text
        assert text.index("What it costs") < text.index("Which is faster")
    assert "cost" not in first_screen(two_devices)


def test_devices_without_a_common_point_get_no_verdict() -> None:
    """Devices that ran different sizes of one family get a sentence instead of a verdict.

    One side records `devices`, and the other does not.
    """
    x1_runs = measured(grid(nodes=(64, 256)), device="X1", environment_id="X1", devices=1)
    y2_runs = measured(grid(nodes=(128, 512)), device="Y2", environment_id="Y2")
    frame = pd.concat([x1_runs, y2_runs], ignore_index=True)

    sentence = "No point was measured on more than one of X1, Y2, so they cannot be compared."
    assert sentence in first_screen(frame)
