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

#: Units of work per day on all of Titan's nodes and on those of a planned machine. Source: Stevens,
#: "Performance and benchmarking of deep learning" (lecture), "Example FOM Calculation".
TITAN = np.array([7_475.0, 74_752.0, 37_376.0])
PLANNED = np.array([24 / 4, 24 / 0.5, 24 / 0.25]) * 94_000
POINTS = pd.DataFrame({"model.nodes": [64, 128, 256], "model.layers": 4, "batch_size": 32}).astype(
    "Int64"
)
FAMILIES = ["fc", "residual", "lstm"]


def side(device: str, rates: np.ndarray, error: float = 0.0, **columns: object) -> pd.DataFrame:
    step = 32e3 / rates
    spread = {
        "step_time_low_ms": step * (1 - error),
        "step_time_high_ms": step * (1 + error),
        "processes": 8.0,
    }
    rows = {
        "family": FAMILIES,
        "examples_per_second": rates,
        "step_time_ms": step,
        **(spread if error else {}),
    }
    return runs(POINTS, device=device, **{**rows, **columns})


def both(error: float = 0.0) -> pd.DataFrame:
    return pd.concat(
        [side("Titan", TITAN, error), side("Planned", PLANNED, error)], ignore_index=True
    )


def test_candles_figure_of_merit() -> None:
    found = figure_of_merit(both(), FigureOfMeritOptions(baseline="Titan"))
    titan, planned = found.table.to_dict("records")
    assert titan["harmonic"] == pytest.approx(1_676_313_600 / 97_177)
    assert planned["harmonic"] == pytest.approx(27_072_000 / 19)
    assert planned["merit"] == pytest.approx(68_509_785 / 829_426)
    assert round(planned["merit"], 3) == 82.599
    assert planned["mean_ratio"] == pytest.approx(125.747, abs=0.004)
    assert "82.6 times Titan" in found.text()
    assert set(found.sources) == set(both()["run_id"])


def test_intervals_are_those_of_the_measurements() -> None:
    """Three rates with an uncertainty of 4% each: the slowest dominates the harmonic mean.

    The error of the ratio of two means is larger by a factor of the square root of two.
    """
    table = figure_of_merit(both(error=0.04), FigureOfMeritOptions(baseline="Titan")).table
    weights = (1 / TITAN) / (1 / TITAN).sum()
    freedom = 7 * (weights**2).sum() ** 2 / (weights**4).sum()
    expected = stats.t.ppf(0.975, freedom) * 0.04 / 2.365 * np.sqrt((weights**2).sum())
    half = np.log(table.loc[0, "harmonic_high"] / table.loc[0, "harmonic_low"]) / 2
    assert half == pytest.approx(expected, rel=0.01)
    assert table.loc[0, "merit_low"] == table.loc[0, "merit_high"] == 1
    assert table.loc[1, "merit_low"] < table.loc[1, "merit"] < table.loc[1, "merit_high"]


def test_rates_without_an_error_have_the_interval_of_the_priors() -> None:
    result = figure_of_merit(both(), FigureOfMeritOptions())

    row = result.table.loc[1]
    assert row["merit_low"] < row["merit"] < row["merit_high"]
    assert result.answer is not None
    assert "prior" in result.answer.basis
    assert "Further processes are expected to scatter by 5%" in result.text()
    for processes, said in ((8.0, False), (1.0, True)):
        text = figure_of_merit(
            both(error=0.04).assign(processes=processes), FigureOfMeritOptions()
        ).text()
        assert ("Points timed in a single process: 3 of Planned, 3 of Titan" in text) == said


def test_only_points_of_all_sides_are_the_suite() -> None:
    frame = both().drop(index=5)
    found = figure_of_merit(frame, FigureOfMeritOptions(baseline="Titan"))
    assert found.table["points"].tolist() == [2, 2]
    assert "1 of Titan" in found.text()


def in_turn(seed: int, processes: int, replicates: int) -> pd.DataFrame:
    """Return two equal platforms in one sweep, whose slowest point dominates.

    Every process of every run has an error of 3%.
    """
    random = np.random.default_rng(seed)
    parts = []
    for number in range(replicates):
        for device in ("A", "B"):
            logs = random.normal(np.log([[20.0], [900.0], [1200.0]]), 0.03, (3, processes))
            step = 32e3 / np.exp(logs.mean(axis=1))
            spread = logs.std(axis=1, ddof=1) if processes > 1 else np.nan
            half = stats.t.ppf(0.975, processes - 1) * spread / np.sqrt(processes)
            times = pd.to_datetime(random.permutation(3) + 10 * number, unit="m", utc=True)
            known = {
                "step_time_low_ms": step * np.exp(-half),
                "step_time_high_ms": step * np.exp(half),
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
                    **known,
                )
            )
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(run_id=[f"run {number}" for number in range(len(frame))])


@depth(20, 60)
@pytest.mark.parametrize(("processes", "replicates"), [(3, 1), (1, 2)])
def test_equal_platforms_rarely_differ(processes: int, replicates: int, draws: int) -> None:
    """Few processes or replicates estimate their own scatter poorly.

    A nominal error rate of 5% may still not reach 12%.
    """
    false = 0
    for seed in range(draws):
        merit = figure_of_merit(
            in_turn(seed, processes, replicates), FigureOfMeritOptions(baseline="A")
        ).table.iloc[1]
        false += not merit["merit_low"] <= 1 <= merit["merit_high"]
    assert false <= 2 + draws / 10


@pytest.mark.parametrize(("blocks", "correlation"), [(10, 0.0), (20, 0.5)])
def test_runs_of_one_process_are_as_sure_as_their_blocks(blocks: int, correlation: float) -> None:
    """The interval covers the harmonic mean of twelve points.

    Each point is the median of blocks that are correlated in time.
    """
    points = pd.DataFrame(
        {"model.nodes": 2 ** np.arange(12), "model.layers": 4, "batch_size": 32}
    ).astype("Int64")
    held = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        series = random.normal(0, 0.03, (12, blocks))
        for block in range(1, blocks):
            series[:, block] = (
                correlation * series[:, block - 1] + np.sqrt(1 - correlation**2) * series[:, block]
            )
        steps = [np.exp(row) * 32 for row in series]
        ends = np.array([block_interval(list(row)) or (np.nan, np.nan) for row in steps])
        known = {
            "step_time_low_ms": ends[:, 0],
            "step_time_high_ms": ends[:, 1],
            "processes": 1.0,
            "blocks": blocks,
        }
        known["step_time_error"] = np.array([summarize([list(row)]).error for row in steps])
        step = np.array([np.median(row) for row in steps])
        frame = runs(
            points,
            device="A",
            family="fc",
            examples_per_second=32e3 / step,
            step_time_ms=step,
            **known,
        )
        row = figure_of_merit(frame, FigureOfMeritOptions(baseline="A")).table.iloc[0]
        held += row["harmonic_low"] <= 1000 <= row["harmonic_high"]
    assert held >= 17


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
def test_invalid_options_give_one_line(options: str, message: str) -> None:
    frame = both()
    assert_rejected(f"figure-of-merit {options}", frame, message)


def test_no_common_point_is_reported() -> None:
    assert_rejected(
        "figure-of-merit",
        both().assign(**{"model.nodes": range(6)}),
        "no point was measured with every device",
    )


def test_platforms_measured_at_different_times_have_wider_intervals() -> None:
    frame = in_turn(0, 3, 1)
    later = frame.assign(sweep_id=frame["device"].map({"A": "one", "B": "two"}))
    widths = []
    for runs_of_both in (frame, later):
        answer = figure_of_merit(runs_of_both).answer
        assert answer is not None
        assert answer.low is not None
        assert answer.high is not None
        widths.append(math.log(answer.high / answer.low))
    assert widths[1] > 2 * widths[0]
    assert "sessions" in answer.basis
    wide = []
    for shift in (0.0, 0.1):
        parts = [
            in_turn(number, 3, 1).assign(
                sweep_id=f"{number}", run_id=[f"{number} {place}" for place in range(6)]
            )
            for number in range(8)
        ]
        for number, part in enumerate(parts):
            part["start_time"] += pd.Timedelta(hours=number)
            part["examples_per_second"] *= np.exp(shift * np.sin(number))
        sides = [part[part["device"] == "AB"[number % 2]] for number, part in enumerate(parts)]
        found = figure_of_merit(pd.concat(sides, ignore_index=True))
        assert "No interval" not in found.text()
        wide.append(found.table.loc[1, "merit_high"] / found.table.loc[1, "merit_low"])
    assert wide[1] > 1.1 * wide[0]


def test_candles_figure_of_merit_from_units_of_work() -> None:
    """The lecture's example: hours per unit on a node, and the nodes of both machines."""
    options = FigureOfMeritOptions(
        work=(("Titan", "60,6,12"), ("A", "4,0.5,0.25")),
        nodes=(("Titan", "18688"), ("A", "94000")),
    )
    assert figure_of_merit.load_frame is not None
    frame = figure_of_merit.load_frame(options)
    found = figure_of_merit(frame, options)
    titan, planned = found.table.to_dict("records")
    # The lecture rounds the first unit of Titan to 7,475 a day; exactly it is 7,475.2.
    assert [titan["unit_1"], titan["unit_2"], titan["unit_3"]] == [7_475.2, 74_752, 37_376]
    assert [planned[f"unit_{place}"] for place in (1, 2, 3)] == list(PLANNED)
    expected = stats.hmean(PLANNED) / stats.hmean([7_475.2, 74_752, 37_376])
    assert planned["merit"] == pytest.approx(expected)
    assert planned["merit"] == pytest.approx(82.599, rel=3e-5)
    assert "18,688 of Titan, 94,000 of A" in found.text()


def test_nodes_multiply_measured_rates() -> None:
    one = figure_of_merit(both(error=0.04), FigureOfMeritOptions(baseline="Titan")).table
    options = FigureOfMeritOptions(baseline="Titan", nodes=(("Planned", "10"),))
    ten = figure_of_merit(both(error=0.04), options)
    names = ["harmonic", "merit", "merit_low", "merit_high"]
    np.testing.assert_allclose(ten.table.loc[1, names], one.loc[1, names] * 10)
    assert ten.table.loc[0, "harmonic"] == one.loc[0, "harmonic"]
    assert "Rates are of all nodes (1 of Titan, 10 of Planned)" in ten.text()


@pytest.mark.parametrize(
    ("work", "nodes", "problem"),
    [
        pytest.param((("A", "1,x"),), (), "--work=A=1,x: is not a positive", id="text"),
        pytest.param((("A", "1,0"),), (), "--work=A=1,0: is not a positive", id="zero"),
        pytest.param((("A", "1"), ("B", "1,2")), (), "--work=B: has 2 units", id="unequal"),
        pytest.param((("A", "1"),), (("B", "2"),), "--nodes=B: is not a side", id="unknown side"),
        pytest.param((("A", "1"),), (("A", "2,3"),), "several numbers", id="several"),
    ],
)
def test_units_of_work_that_cannot_be_compared_are_rejected(
    work: tuple[tuple[str, str], ...], nodes: tuple[tuple[str, str], ...], problem: str
) -> None:
    options = FigureOfMeritOptions(work=work, nodes=nodes)
    with pytest.raises(ConfigError, match=problem):
        figure_of_merit(pd.DataFrame(), options)
