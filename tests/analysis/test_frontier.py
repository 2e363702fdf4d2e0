"""Frontiers of planted choices, compared with brute force over the corners of their intervals."""

import itertools
import math
import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from analysis import FrontierOptions, frontier
from analysis.analyses.frontier import (
    BEATEN,
    ON,
    UNDECIDED,
    Ordering,
    dominance,
    frontiers,
    standings,
)
from analysis.result import Result
from paradnn.core.errors import ConfigError, InsufficientData
from tests.analysis.planted import ROW
from tests.analysis.rejected import assert_rejected


class Box(NamedTuple):
    """Values and intervals of n choices in k quantities, (n, k) each; less is better."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def standings(self) -> list[str]:
        """Return the standings that the analysis gives the choices."""
        orders = [
            Ordering.of_intervals(*quantity) for quantity in np.stack(self).transpose(2, 0, 1)
        ]
        return standings(*dominance(orders))


def by_hand(box: Box) -> list[str]:
    """Compare every choice at every corner with all others at every corner."""

    def dominated(point: tuple[float, ...], others: list[tuple[float, ...]]) -> bool:
        return any(
            all(a <= b for a, b in zip(other, point, strict=True)) and other != point
            for other in others
        )

    found = []
    corners = [
        list(itertools.product(*zip(box.low[i], box.high[i], strict=True)))
        for i in range(len(box.low))
    ]
    for place in range(len(corners)):
        others = itertools.product(*(each for other, each in enumerate(corners) if other != place))
        verdicts = {dominated(mine, list(corner)) for corner in others for mine in corners[place]}
        found.append(UNDECIDED if len(verdicts) > 1 else BEATEN if verdicts == {True} else ON)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_standings_are_those_of_brute_force(seed: int) -> None:
    generator = np.random.default_rng(seed)
    middle = generator.integers(0, 6, (4, 2))
    half = generator.integers(0, 2, (4, 2))
    box = Box(middle.astype(float), (middle - half).astype(float), (middle + half).astype(float))
    assert box.standings() == by_hand(box)


def test_nothing_is_sure_of_a_choice_without_an_interval() -> None:
    nothing = math.nan
    box = Box(
        np.array([[1.0, 1.0], [9.0, 9.0]]),
        np.array([[1.0, nothing], [9.0, 9.0]]),
        np.array([[1.0, nothing], [9.0, 9.0]]),
    )
    # The other choice is surely worse in the first quantity, so it does not beat this one. This
    # choice may or may not beat the other.
    assert box.standings() == [ON, UNDECIDED]
    neither = Box(box.value, np.full((2, 2), nothing), np.full((2, 2), nothing))
    assert neither.standings() == [UNDECIDED, UNDECIDED]
    one_sided = Box(box.value, box.low, np.array([[1.0, 2.0], [9.0, 9.0]]))
    assert one_sided.standings() == [ON, BEATEN]


def served(
    device: str, batch: int, rate: float, latency: float, width: float = 1.02, **more: Any
) -> dict[str, Any]:
    """Return a run that found a server's highest rate with these batches, and its latency there."""
    run_id = f"{device}-{batch}-{rate}-{more.get('seed', 0)}"
    known = ROW | {
        "run_id": run_id,
        "model.nodes": 64,
        "device": device,
        "environment_id": device,
        "mode": "inference",
    }
    asked = {
        "scenario": "server",
        "server.rate": "peak",
        "server.batch": batch,
        "batch_size": batch,
        "task": "step",
    }
    rates = {
        "peak_queries_per_second": rate,
        "peak_queries_per_second_low": rate,
        "scheduled_queries_per_second": rate,
    }
    times = {
        "latency_p99_ms": latency,
        "latency_p99_low_ms": latency / width,
        "latency_p99_high_ms": latency * width,
    }
    others = {
        "batch_size_per_device": float(batch),
        "compile_seconds": rate / 7 + latency,
        "platform.name": "gpu",
    }
    return {
        **known,
        **asked,
        **rates,
        "peak_queries_per_second_high": rate * width,
        **times,
        **others,
        **more,
    }


def three() -> pd.DataFrame:
    """Return three devices: A is fast and expensive, B slow and cheap, C slow and expensive."""
    return pd.DataFrame(
        [served("A", 8, 1000.0, 5.0), served("B", 8, 800.0, 20.0), served("C", 8, 100.0, 30.0)]
    )


def asked(
    frame: pd.DataFrame,
    *limits: tuple[str, str],
    price: tuple[str, ...] = ("A=36", "B=3.6", "C=36"),
) -> Result:
    return frontier(frame, FrontierOptions(price=price, limit=limits))


def test_cost_against_latency_with_prices() -> None:
    result = asked(three())
    table = result.table.set_index("choice")
    # 3.6 per hour is 0.001 per second: a million queries at 800 per second take 1,250 s.
    assert table.loc["B", "cost_per_million_queries"] == pytest.approx(1.25)
    assert table["standing"].to_dict() == {"A": ON, "B": ON, "C": BEATEN}
    assert list(table.index) == ["B", "A", "C"]
    assert "2 on the frontier, 0 undecided, 1 beaten" in result.text()
    assert result.figure().axes[0].get_title(loc="left") == "fc inference, server"


def test_which_to_choose_for_a_limit() -> None:
    text = asked(three(), ("latency_p99_ms", "15")).text()
    why = "of the lowest cost per million queries among those that qualify with certainty"
    assert f"For latency p99 at most 15 ms choose A, {why}: cost per million queries 10" in text
    assert "To get a recommendation" not in text
    assert "state a requirement, such as --limit latency_p99_ms=" in asked(three()).text()
    assert "choose B, " in asked(three(), ("latency_p99_ms", "25")).text()
    hopeless = asked(three(), ("latency_p99_ms", "1")).text()
    assert "no choice of fc inference, server qualifies; the nearest is A" in hopeless
    rows = pd.DataFrame(
        [served("A", 8, 1000.0, 5.0), served("B", 8, 1001.0, 6.0), served("C", 8, 10.0, 1.0)]
    )
    tied = asked(rows, ("latency_p99_ms", "15"), price=("A=36", "B=36", "C=36")).text()
    assert "May be as good: A." in tied
    unsure = asked(three(), ("latency_p99_ms", "20.1"))
    assert "choose A, " in unsure.text()
    assert "May be as good: B." in unsure.text()


def test_a_separate_session_may_explain_a_difference_of_choices() -> None:
    """Exact runs differ by 6% or by 30%.

    A difference of 6% is decisive in one sweep in random order, but not between sessions. A
    difference of 30% is decisive in both cases.
    """
    start = {"start_time": pd.Timestamp("2026-01-01", tz="UTC"), "sweep_order": "random"}
    for rate, apart in ((940.0, UNDECIDED), (700.0, BEATEN)):
        for sweeps, standing in (("ss", BEATEN), ("st", apart)):
            rows = [
                served(name, 8, speed, 5e3 / speed, 1.001, sweep_id=sweep, **start)
                for name, speed, sweep in zip("AB", (1000.0, rate), sweeps, strict=True)
            ]
            result = frontier(pd.DataFrame(rows))
            assert result.table.set_index("choice").loc["B", "standing"] == standing
            assert ("separate sessions" in result.text()) == (standing is UNDECIDED)


def test_models_do_not_compete_and_policies_do() -> None:
    rows = [
        served("A", batch, rate, rate / 100, **{"model.nodes": nodes})
        for nodes in (64, 128)
        for batch, rate in ((1, 100.0), (8, 900.0))
    ]
    found = frontiers(pd.DataFrame(rows))
    assert [one.task for one in found] == [
        "fc 4x64 inference, server",
        "fc 4x128 inference, server",
    ]
    assert found[0].table["choice"].tolist() == ["batch size 8", "batch size 1"]


def test_rates_that_a_schedule_set_are_equal_however_often_they_were_measured() -> None:
    asked_for = {f"peak_queries_per_second{end}": math.nan for end in ("", "_low", "_high")}
    rows = [served("A", 8, 50.1, 5.0 + seed / 100, seed=seed, **asked_for) for seed in range(3)]
    (one,) = frontiers(pd.DataFrame([*rows, served("B", 8, 50.1, 20.0, **asked_for)]))
    assert one.table.set_index("choice")["standing"].to_dict() == {"A": ON, "B": BEATEN}


def test_runs_that_agree_to_the_last_digit_show_no_spread() -> None:
    rows = [
        learnt(nodes, seconds, accuracy, seed)
        for nodes, seconds, accuracy in ((8, 10.0, 0.9), (64, 30.0, 0.89))
        for seed in range(2)
    ]
    (one,) = frontiers(pd.DataFrame(rows))
    # Three times the seconds exceed any scatter, but the accuracies have no interval.
    assert one.table["standing"].tolist() == [ON, UNDECIDED]
    assert one.table["best_accuracy_high"].isna().all()
    assert one.x == "learning_seconds"  # without prices


def learnt(
    nodes: int, seconds: float, accuracy: float, seed: int, reached: bool = True
) -> dict[str, Any]:
    """Return a training at a price of 36 per hour."""
    known = {
        "run_id": f"{nodes}-{seed}",
        "model.nodes": nodes,
        "device": "A",
        "batch_size": 64,
        "task": "learn",
    }
    learnt = {
        "learn.metric": "accuracy",
        "learning_seconds": seconds,
        "best_accuracy": accuracy,
        "data.name": "digits",
    }
    return {
        **ROW,
        **known,
        **learnt,
        "outcome": "ok" if reached else "timeout",
        "platform.price_per_hour": 36.0,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "--limit parameters=3",
            "--limit=parameters: has no better direction",
            id="--limit parameters=3",
        ),
        pytest.param(
            "--limit latency=3",
            "--limit=latency: is not a metric; choose one that python -m paradnn list",
            id="--limit latency=3",
        ),
        pytest.param(
            "--limit latency_p99_ms=soon",
            "--limit=latency_p99_ms=soon: is not a number",
            id="--limit latency_p99_ms=soon",
        ),
        pytest.param(
            "--limit latency_p99_ms=nan",
            "--limit=latency_p99_ms=nan: is not a number",
            id="--limit latency_p99_ms=nan",
        ),
        pytest.param(
            "--price D=2",
            "--price=D: no run used that device; name one of A, B, C",
            id="--price D=2",
        ),
        pytest.param(
            "--price exampel",
            "--price=exampel: is neither a price nor a table of prices; did you mean ex",
            id="--price exampel",
        ),
        pytest.param(
            "--price example",
            "--price=example: has prices of a device or a host; runs are of A, B, C",
            id="--price example",
        ),
    ],
)
def test_invalid_options_give_one_line(options: str, message: str) -> None:
    frame = three()
    assert_rejected(f"frontier {options}", frame, message)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        pytest.param(three().head(1), "1 choice with", id="one choice"),
        pytest.param(three().assign(protocol_id=["p", "q", "p"]), "protocol", id="two protocols"),
    ],
)
def test_unsuitable_runs_are_reported(frame: pd.DataFrame, message: str) -> None:
    assert_rejected("frontier", frame, message)


def test_models_compete_to_learn_and_recorded_prices_count() -> None:
    noise = np.random.default_rng(3).normal(0, 1, (12, 2))
    rows = []
    for place, (first, second) in enumerate(noise):
        nodes, seconds, accuracy = ((8, 10.0, 0.90), (64, 30.0, 0.98), (256, 90.0, 0.95))[
            place // 4
        ]
        given = seconds * (1 + first / 1000), accuracy + second / 10000
        rows.append(learnt(nodes, *given, seed=place % 4, reached=nodes > 8))
    result = frontier(pd.DataFrame(rows), FrontierOptions(limit=(("best_accuracy", "0.97"),)))
    table = result.table.set_index("choice")
    assert table["standing"].tolist() == [ON, ON, BEATEN]
    assert table["cost_of_learning"].tolist() == pytest.approx([0.1, 0.3, 0.9], rel=0.01)
    why = "of the lowest cost of learning among those that qualify with certainty"
    assert (
        f"For best accuracy at least 0.97 choose nodes=64, {why}: cost of learning 0.3"
        in result.text()
    )
    dearer = frontier(pd.DataFrame(rows), FrontierOptions(price=("A=72",)))
    assert dearer.table["cost_of_learning"].min() == pytest.approx(0.2, rel=0.01)
    assert "override those that runs recorded" in dearer.text()


def generated(batch: int, step_ms: float, width: float = 1.001, **more: Any) -> dict[str, Any]:
    """Return a generation whose decode step takes `step_ms` for `batch` users at once."""
    user = 1000 / step_ms
    rates = {"tokens_per_second": batch * user, "tokens_per_second_per_user": user}
    ends = {
        f"{name}_{end}": value * factor
        for name, value in rates.items()
        for end, factor in (("low", 1 / width), ("high", width))
    }
    known = {
        "run_id": f"{batch}-{step_ms}",
        "family": "gpt2",
        "mode": "generate",
        "batch_size": batch,
        "step_time_ms": step_ms,
        "sweep_id": "s",
        "sweep_order": "random",
        "start_time": pd.Timestamp("2026-01-01", tz="UTC"),
    }
    return {**ROW, **known, **rates, **ends, **more}


def test_throughput_against_interactivity() -> None:
    # Batch 16 takes as long as batch 32, so it is worse in throughput and equal in interactivity.
    steps = {1: 10.0, 8: 12.0, 16: 22.0, 32: 20.0}
    rows = pd.DataFrame([generated(batch, step) for batch, step in steps.items()])
    options = FrontierOptions(x="tokens_per_second", y="tokens_per_second_per_user")
    result = frontier(rows, options)
    table = result.table.set_index("choice")
    assert table["standing"].to_dict() == {
        "batch size 32": ON,
        "batch size 16": BEATEN,
        "batch size 8": ON,
        "batch size 1": ON,
    }
    assert list(table.index) == ["batch size 32", "batch size 16", "batch size 8", "batch size 1"]
    assert table.loc["batch size 8", "tokens_per_second_per_user"] == pytest.approx(1000 / 12)
    axes = result.figure().axes[0]
    assert "tokens per second" in axes.get_xlabel()
    assert "per user" in axes.get_ylabel()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"x": "tokens"}, "--x=tokens: is not a metric", id="unknown"),
        pytest.param({"y": "flops_per_step"}, "--y=.*has no better direction", id="neutral"),
        pytest.param(
            {"x": "step_time_ms", "y": "step_time_ms"}, "--y=.*the same as --x", id="equal"
        ),
    ],
)
def test_quantities_that_cannot_be_compared_are_rejected(
    options: dict[str, str], problem: str
) -> None:
    rows = pd.DataFrame([generated(1, 10.0), generated(8, 12.0)])
    with pytest.raises(ConfigError, match=problem):
        frontier(rows, FrontierOptions(**options))


def test_a_quantity_that_equals_the_other_default_is_rejected() -> None:
    rows = pd.DataFrame([generated(1, 10.0), generated(8, 12.0)])
    with pytest.raises(InsufficientData, match="name --y, too"):
        frontier(rows, FrontierOptions(x="time_per_output_token_ms"))


#: Batch size -> true decode step in ms. Batch 64 and 16 are beaten, by batch 32 and 8.
TRUE_STEPS = {1: 10.0, 4: 10.4, 8: 11.0, 16: 27.0, 32: 18.0, 64: 40.0, 128: 52.0}


def simulated(generator: np.random.Generator, replicates: int = 4) -> pd.DataFrame:
    """Return replicates of the true steps, each with 2% noise of its process."""
    rows = []
    for batch, step in TRUE_STEPS.items():
        for replicate in range(replicates):
            noisy = step * math.exp(generator.normal(0, 0.02))
            run = generated(batch, noisy, replicate=replicate)
            rows.append(run | {"run_id": f"{batch}-{replicate}"})
    return pd.DataFrame(rows)


@pytest.mark.long
def test_a_planted_frontier_is_inside_its_intervals() -> None:
    """All intervals of a task hold at once, and no standing contradicts the truth, in 95%."""
    generator = np.random.default_rng(11)
    truth = pd.DataFrame([generated(batch, step) for batch, step in TRUE_STEPS.items()])
    truth = truth.set_index("batch_size")[["tokens_per_second", "tokens_per_second_per_user"]]
    efficient = {
        batch: not ((truth >= row).all(axis=1) & (truth > row).any(axis=1)).any()
        for batch, row in truth.iterrows()
    }
    repeats = 400
    held = 0
    right = 0
    for _ in range(repeats):
        (one,) = frontiers(
            simulated(generator), x="tokens_per_second", y="tokens_per_second_per_user"
        )
        batches = one.table["choice"].str.removeprefix("batch size ").astype(int)
        inside = True
        for name in truth:
            true = truth.loc[batches, name].to_numpy()
            inside &= bool(one.table[f"{name}_low"].le(true).all())
            inside &= bool(one.table[f"{name}_high"].ge(true).all())
        held += inside
        contradiction = {True: BEATEN, False: ON}
        standings_found = zip(batches, one.table["standing"], strict=True)
        right += all(contradiction[efficient[batch]] != each for batch, each in standings_found)
    # A true share of 95% falls below 92.9% of 400 in 2.5% of the cases; the seed is fixed.
    assert held / repeats >= 0.929
    assert right / repeats >= 0.95


def test_two_replicates_of_closed_runs_have_a_narrow_interval() -> None:
    rows = pd.DataFrame(
        [
            generated(batch, step * factor, replicate=place) | {"run_id": f"{batch}-{place}"}
            for batch, step in ((1, 10.0), (8, 12.0), (32, 20.0))
            for place, factor in enumerate((0.99, 1.02))
        ]
    )
    result = frontier(rows, FrontierOptions(x="tokens_per_second", y="tokens_per_second_per_user"))
    reach = result.table["tokens_per_second_high"] / result.table["tokens_per_second_low"]
    assert (reach < 1.5).all()


def equally_fast(generator: np.random.Generator, session: float) -> pd.DataFrame:
    """Return six batch sizes with a true rate of 100 tokens/s, three runs of 3% noise each.

    Args:
        generator: Source of the noise.
        session: Standard deviation of the batch sizes' sessions; 0 if they share one.
    """
    rows = []
    for batch in 2 ** np.arange(6):
        shift = generator.normal(0, session)
        sweep = {"sweep_id": f"s{batch}"} if session else {}
        for replicate in range(3):
            step = 10.0 * batch * math.exp(shift + generator.normal(0, 0.03))
            run = generated(batch, step, replicate=replicate, **sweep)
            rows.append(run | {"run_id": f"{batch}-{replicate}"})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("session", "luck"),
    [
        pytest.param(0.0, 0.015, id="one session"),
        pytest.param(0.08, 0.07, id="a session per choice"),
    ],
)
def test_the_best_of_equal_choices_is_drawn_to_the_others(session: float, luck: float) -> None:
    generator = np.random.default_rng(5)
    measured = []
    expected = []
    covered = 0
    draws = 6
    for _ in range(draws):
        frame = equally_fast(generator, session)
        options = {"x": "tokens_per_second", "y": "tokens_per_second_per_user"}

        (one,) = frontiers(frame, **options)

        best = one.table.iloc[0]
        measured.append(math.log(best["tokens_per_second"] / 100))
        expected.append(math.log(one.expected["tokens_per_second"] / 100))
        covered += best["tokens_per_second_low"] <= 100 <= best["tokens_per_second_high"]
        # One user is served fastest with a batch of one, by far.
        fastest = one.table["tokens_per_second_per_user"].max()
        assert one.expected["tokens_per_second_per_user"] == pytest.approx(fastest)

    # The largest of six standard normal numbers is 1.27 on average.
    assert np.mean(measured) > luck
    assert abs(np.mean(expected)) < np.mean(measured) / 2
    if not session:
        assert covered >= 5


def test_the_answer_names_the_expected_and_the_measured_value() -> None:
    frame = equally_fast(np.random.default_rng(5), session=0.0)
    options = FrontierOptions(x="tokens_per_second", y="tokens_per_second_per_user")

    result = frontier(frame, options)

    pattern = (
        r"of 6 choices the best are batch size \d+ in tokens per second: ([\d.]+)/s "
        r"\(([\d.]+) to ([\d.]+); ([\d.]+)/s as measured\), with "
    )
    found = re.search(pattern, result.text())
    assert found
    expected, low, high, measured = map(float, found.groups())
    assert low < expected < measured < high


def test_an_end_beyond_any_use_is_open() -> None:
    rows = [served("A", 8, rate, latency) for rate, latency in ((100.0, 5.0), (400.0, 50.0))]
    rows.append(served("B", 8, 90.0, 60.0))
    result = frontier(pd.DataFrame(rows))
    table = result.table.set_index("choice")
    assert math.isnan(table.loc["A", "latency_p99_ms_high"])
    assert math.isnan(table.loc["A", "latency_p99_ms_low"])
    assert "latency p99 15.8 ms (open interval)" in result.text()
    assert "1 choice with an open interval: measure longer, or replicates." in result.text()
