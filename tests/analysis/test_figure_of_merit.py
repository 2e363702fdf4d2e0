"""Figures of merit: CANDLE's worked example, intervals and rejected inputs."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.analyses.figure_of_merit import FigureOfMeritOptions, figure_of_merit
from paradnn.core.errors import ConfigError
from paradnn.session.measured import summarize
from paradnn.worker.series import block_interval
from tests.analysis.planted import runs
from tests.analysis.rejected import assert_rejected
from tests.conftest import depth

#: Units of work per day on all nodes of Titan and of a planned machine. Source: Stevens,
#: "Performance and benchmarking of deep learning" (lecture), "Example FOM Calculation".
TITAN = np.array([7_475.0, 74_752.0, 37_376.0])
PLANNED = np.array([24 / 4, 24 / 0.5, 24 / 0.25]) * 94_000
POINTS = pd.DataFrame({"model.nodes": [64, 128, 256], "model.layers": 4, "batch_size": 32}).astype(
    "Int64"
)
FAMILIES = ["fc", "residual", "lstm"]


def side(device: str, rates: np.ndarray, error: float = 0.0, **columns: object) -> pd.DataFrame:
    """Return one run per point with these rates; `error` is the half-width, as a fraction."""
    step = 32e3 / rates
    interval = {
        "step_time_low_ms": step * (1 - error),
        "step_time_high_ms": step * (1 + error),
        "processes": 8.0,
    }
    rows = {
        "family": FAMILIES,
        "examples_per_second": rates,
        "step_time_ms": step,
        **(interval if error else {}),
    }
    return runs(POINTS, device=device, **{**rows, **columns})


def two_machines(error: float = 0.0) -> pd.DataFrame:
    return pd.concat(
        [side("Titan", TITAN, error), side("Planned", PLANNED, error)], ignore_index=True
    )


def test_candles_example_is_reproduced_from_rates() -> None:
    result = figure_of_merit(two_machines(), FigureOfMeritOptions(baseline="Titan"))
    titan, planned = result.table.to_dict("records")

    assert titan["harmonic"] == pytest.approx(1_676_313_600 / 97_177)
    assert planned["harmonic"] == pytest.approx(27_072_000 / 19)
    assert planned["merit"] == pytest.approx(68_509_785 / 829_426)
    assert round(planned["merit"], 3) == 82.599
    assert planned["mean_ratio"] == pytest.approx(125.747, abs=0.004)
    assert "82.6 times Titan" in result.text()
    assert set(result.sources) == set(two_machines()["run_id"])


def test_the_interval_combines_the_errors_of_the_rates() -> None:
    """Three rates have an error of 4% each. The slowest one dominates the harmonic mean."""
    table = figure_of_merit(two_machines(error=0.04), FigureOfMeritOptions(baseline="Titan")).table
    weights = (1 / TITAN) / (1 / TITAN).sum()
    freedom = 7 * (weights**2).sum() ** 2 / (weights**4).sum()
    expected = stats.t.ppf(0.975, freedom) * 0.04 / 2.365 * np.sqrt((weights**2).sum())
    half_width = np.log(table.loc[0, "harmonic_high"] / table.loc[0, "harmonic_low"]) / 2

    assert half_width == pytest.approx(expected, rel=0.01)
    assert table.loc[0, "merit_low"] == table.loc[0, "merit_high"] == 1
    assert table.loc[1, "merit_low"] < table.loc[1, "merit"] < table.loc[1, "merit_high"]


def test_rates_without_an_error_have_the_interval_of_the_priors() -> None:
    result = figure_of_merit(two_machines(), FigureOfMeritOptions())

    row = result.table.loc[1]

    assert row["merit_low"] < row["merit"] < row["merit_high"]
    assert result.answer is not None
    assert "prior" in result.answer.basis
    assert "Further processes are expected to scatter by 5%" in result.text()

    for processes, is_reported in ((8.0, False), (1.0, True)):
        text = figure_of_merit(
            two_machines(error=0.04).assign(processes=processes), FigureOfMeritOptions()
        ).text()
        assert ("Points timed in a single process: 3 of Planned, 3 of Titan" in text) == is_reported


def test_only_points_measured_on_all_sides_count() -> None:
    frame = two_machines().drop(index=5)
    found = figure_of_merit(frame, FigureOfMeritOptions(baseline="Titan"))

    assert found.table["points"].tolist() == [2, 2]
    assert "1 of Titan" in found.text()


def equal_platforms(seed: int, processes: int, replicates: int) -> pd.DataFrame:
    """Return runs of two equally fast platforms, A and B, in one sweep.

    The slowest of three points dominates the figure of merit. Each process has a noise of 3%.
    """
    random = np.random.default_rng(seed)
    parts = []
    for number in range(replicates):
        for device in ("A", "B"):
            logs = random.normal(np.log([[20.0], [900.0], [1200.0]]), 0.03, (3, processes))
            step = 32e3 / np.exp(logs.mean(axis=1))
            spread = logs.std(axis=1, ddof=1) if processes > 1 else np.nan
            half_width = stats.t.ppf(0.975, processes - 1) * spread / np.sqrt(processes)
            times = pd.to_datetime(random.permutation(3) + 10 * number, unit="m", utc=True)
            interval = {
                "step_time_low_ms": step * np.exp(-half_width),
                "step_time_high_ms": step * np.exp(half_width),
            }
            rates = {
                "examples_per_second": 32e3 / step,
                "step_time_ms": step,
                "processes": float(processes),
            }
            parts.append(
                runs(
                    POINTS,
                    device=device,
                    family=FAMILIES,
                    sweep_id="s",
                    start_time=times,
                    **rates,
                    **interval,
                )
            )
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(run_id=[f"run {number}" for number in range(len(frame))])


@depth(20, 60)
@pytest.mark.parametrize(
    ("processes", "replicates"),
    [
        pytest.param(3, 1, id="three processes"),
        pytest.param(1, 2, id="two replicates of one process"),
    ],
)
def test_equal_platforms_are_rarely_called_different(
    processes: int, replicates: int, draws: int
) -> None:
    """A few processes or replicates give a poor estimate of their scatter.

    The nominal rate of false differences is 5%. Allow a rate of 10% plus two draws.
    """
    false_differences = 0
    for seed in range(draws):
        merit = figure_of_merit(
            equal_platforms(seed, processes, replicates), FigureOfMeritOptions(baseline="A")
        ).table.iloc[1]
        false_differences += not merit["merit_low"] <= 1 <= merit["merit_high"]

    assert false_differences <= 2 + draws / 10


@pytest.mark.parametrize(
    ("blocks", "correlation"),
    [
        pytest.param(10, 0.0, id="10 independent blocks"),
        pytest.param(20, 0.5, id="20 correlated blocks"),
    ],
)
def test_the_interval_of_one_process_follows_from_its_blocks(
    blocks: int, correlation: float
) -> None:
    """The interval covers the true harmonic mean of twelve points in most of 20 draws.

    Each rate is from the median of the blocks of one process.
    """
    points = pd.DataFrame(
        {"model.nodes": 2 ** np.arange(12), "model.layers": 4, "batch_size": 32}
    ).astype("Int64")
    covered = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        series = random.normal(0, 0.03, (12, blocks))
        for block in range(1, blocks):
            series[:, block] = (
                correlation * series[:, block - 1] + np.sqrt(1 - correlation**2) * series[:, block]
            )
        steps = [np.exp(row) * 32 for row in series]
        ends = np.array([block_interval(list(row)) or (np.nan, np.nan) for row in steps])
        columns = {
            "step_time_low_ms": ends[:, 0],
            "step_time_high_ms": ends[:, 1],
            "processes": 1.0,
            "blocks": blocks,
        }
        columns["step_time_error"] = np.array([summarize([list(row)]).error for row in steps])
        step = np.array([np.median(row) for row in steps])
        frame = runs(
            points,
            device="A",
            family="fc",
            examples_per_second=32e3 / step,
            step_time_ms=step,
            **columns,
        )
        row = figure_of_merit(frame, FigureOfMeritOptions(baseline="A")).table.iloc[0]
        covered += row["harmonic_low"] <= 1000 <= row["harmonic_high"]

    assert covered >= 17


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--baseline Summit",
            "--baseline=Summit: no run has this device; choose one of Planned, Titan",
            id="--baseline Summit",
        ),
        pytest.param(
            "--metric step_time_ms",
            "--metric=step_time_ms: is not a rate",
            id="--metric step_time_ms",
        ),
        pytest.param(
            "--by tractor",
            "--by=tractor: these runs have no such hyperparameter",
            id="--by tractor",
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = two_machines()
    assert_rejected(f"figure-of-merit {options}", frame, message)


def test_sides_without_a_common_point_are_rejected() -> None:
    assert_rejected(
        "figure-of-merit",
        two_machines().assign(**{"model.nodes": range(6)}),
        "no point was measured with all values of device",
    )


def test_platforms_measured_at_different_times_have_wider_intervals() -> None:
    frame = equal_platforms(0, 3, 1)
    separate_sweeps = frame.assign(sweep_id=frame["device"].map({"A": "one", "B": "two"}))
    widths = []
    for both_sides in (frame, separate_sweeps):
        answer = figure_of_merit(both_sides).answer
        assert answer is not None
        assert answer.low is not None
        assert answer.high is not None
        widths.append(math.log(answer.high / answer.low))

    assert widths[1] > 2 * widths[0]
    assert "sessions" in answer.basis

    end_ratios = []
    for shift in (0.0, 0.1):
        parts = [
            equal_platforms(number, 3, 1).assign(
                sweep_id=f"{number}", run_id=[f"{number} {run}" for run in range(6)]
            )
            for number in range(8)
        ]
        for number, part in enumerate(parts):
            part["start_time"] += pd.Timedelta(hours=number)
            part["examples_per_second"] *= np.exp(shift * np.sin(number))
        sides = [part[part["device"] == "AB"[number % 2]] for number, part in enumerate(parts)]
        found = figure_of_merit(pd.concat(sides, ignore_index=True))
        assert "No interval" not in found.text()
        end_ratios.append(found.table.loc[1, "merit_high"] / found.table.loc[1, "merit_low"])

    assert end_ratios[1] > 1.1 * end_ratios[0]


def test_candles_example_is_reproduced_from_units_of_work() -> None:
    """The lecture's example states hours per unit on one node, and the nodes of both machines."""
    options = FigureOfMeritOptions(
        work=(("Titan", "60,6,12"), ("A", "4,0.5,0.25")),
        nodes=(("Titan", "18688"), ("A", "94000")),
    )
    assert figure_of_merit.load_frame is not None

    frame = figure_of_merit.load_frame(options)
    found = figure_of_merit(frame, options)
    titan, planned = found.table.to_dict("records")

    # The lecture rounds the first rate of Titan, 7,475.2 units a day, to 7,475.
    assert [titan["unit_1"], titan["unit_2"], titan["unit_3"]] == [7_475.2, 74_752, 37_376]
    assert [planned[f"unit_{number}"] for number in (1, 2, 3)] == list(PLANNED)

    expected = stats.hmean(PLANNED) / stats.hmean([7_475.2, 74_752, 37_376])
    assert planned["merit"] == pytest.approx(expected)
    assert planned["merit"] == pytest.approx(82.599, rel=3e-5)
    assert "18,688 of Titan, 94,000 of A" in found.text()


def test_nodes_multiply_measured_rates() -> None:
    one_node = figure_of_merit(
        two_machines(error=0.04), FigureOfMeritOptions(baseline="Titan")
    ).table
    options = FigureOfMeritOptions(baseline="Titan", nodes=(("Planned", "10"),))
    ten_nodes = figure_of_merit(two_machines(error=0.04), options)
    names = ["harmonic", "merit", "merit_low", "merit_high"]

    np.testing.assert_allclose(ten_nodes.table.loc[1, names], one_node.loc[1, names] * 10)
    assert ten_nodes.table.loc[0, "harmonic"] == one_node.loc[0, "harmonic"]
    assert "Rates are totals over all nodes (1 of Titan, 10 of Planned)" in ten_nodes.text()


@pytest.mark.parametrize(
    ("work", "nodes", "problem"),
    [
        pytest.param((("A", "1,x"),), (), "--work=A=1,x: expects positive numbers", id="text"),
        pytest.param((("A", "1,0"),), (), "--work=A=1,0: expects positive numbers", id="zero"),
        pytest.param(
            (("A", "1"), ("B", "1,2")), (), "--work=B: has 2 units", id="unequal numbers of units"
        ),
        pytest.param(
            (("A", "1"),),
            (("B", "2"),),
            "--nodes=B: is not one of the compared names",
            id="unknown side",
        ),
        pytest.param((("A", "1"),), (("A", "2,3"),), "expects one number", id="two node counts"),
    ],
)
def test_units_of_work_that_cannot_be_compared_are_rejected(
    work: tuple[tuple[str, str], ...], nodes: tuple[tuple[str, str], ...], problem: str
) -> None:
    options = FigureOfMeritOptions(work=work, nodes=nodes)
    with pytest.raises(ConfigError, match=problem):
        figure_of_merit(pd.DataFrame(), options)
