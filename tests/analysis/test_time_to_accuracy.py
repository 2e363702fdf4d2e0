"""Time to accuracy of planted trainings, by SciPy's trimmed mean and plain arithmetic."""

import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.stats import mstats

from analysis.analyses.time_to_accuracy import TimeToAccuracyOptions, olympic_mean
from analysis.analyses.time_to_accuracy import time_to_accuracy as summarize
from analysis.result import Result
from tests.analysis.planted import ROW
from tests.analysis.rejected import assert_rejected


def training_run(
    seconds: float, seed: int = 0, batch_size: int = 64, device: str = "A", **more: Any
) -> dict[str, Any]:
    """Return a training that reaches its target after `seconds`; infinity means never.

    An epoch takes 2 s.
    """
    has_reached = math.isfinite(seconds)
    run_id = f"{device}-{batch_size}-{seed}"
    identity = {
        "run_id": run_id,
        "device": device,
        "environment_id": device,
        "batch_size": batch_size,
        "seed": seed,
    }
    times = {
        "seconds_to_target": seconds,
        "epochs_to_target": seconds / 2,
        "examples_to_target": 1000 * seconds,
    }
    times = {key: value if has_reached else math.nan for key, value in times.items()}
    results = {
        "model.nodes": 128,
        "learn.target": 0.97,
        "best_accuracy": 0.98 if has_reached else 0.9,
        **times,
    }
    results["epochs_below_target"] = 1.0 if seed == 1 else 0.0
    return {**ROW, **identity, **results, "outcome": "ok" if has_reached else "timeout", **more}


def score_table(rows: list[dict[str, Any]], **options: Any) -> pd.DataFrame:
    return summarize(pd.DataFrame(rows), TimeToAccuracyOptions(**options)).table


@pytest.mark.parametrize("unfinished", [0, 1])
@pytest.mark.parametrize("count", [4, 5, 8, 20])
def test_the_score_is_a_trimmed_mean_with_nominal_coverage(count: int, unfinished: int) -> None:
    """The coverage is also nominal if the slowest training never ends."""
    draws = np.sort(np.random.default_rng(count).normal(100, 20, size=(1000, count)))
    score = mstats.trimmed_mean(draws, (1 / count, 1 / count), axis=1)
    draws[:, count - unfinished :] = np.inf
    found = np.array([olympic_mean(row.tolist()) for row in draws])

    assert found[:, 0] == pytest.approx(np.asarray(score))
    assert ((found[:, 1] <= 100) & (found[:, 2] >= 100)).mean() > 0.93


def test_one_run_gets_the_interval_of_the_prior() -> None:
    score = olympic_mean([3.0])

    # The prior has a scatter of 0.4 with 4 degrees of freedom.
    half_width = stats.t.ppf(0.975, 4) * 0.4

    assert score.value == 3.0
    assert score.low == pytest.approx(3.0 * math.exp(-half_width))
    assert score.high == pytest.approx(3.0 * math.exp(half_width))


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        pytest.param([30.0, 31.0], 30.5, id="two runs are averaged"),
        pytest.param([3.0, 100.0, 5.0], 5.0, id="three runs are trimmed"),
        pytest.param([1.0, 2.0, 3.0, math.inf], 2.5, id="one run that never ends is trimmed"),
        pytest.param([1.0, 2.0, math.inf, math.inf], math.inf, id="two are not"),
    ],
)
def test_two_runs_are_averaged_and_more_are_trimmed(values: list[float], mean: float) -> None:
    assert olympic_mean(values).value == mean


def runs_of_two_platforms() -> list[dict[str, Any]]:
    """Return trainings with five seeds and two batch sizes; B takes half as long as A."""
    rows = [training_run(10.0 + seed, seed, batch, "A") for seed in range(5) for batch in (32, 64)]
    return rows + [
        training_run(5.0 + seed / 2, seed, batch, "B") for seed in range(5) for batch in (32, 64)
    ]


def test_settings_are_scored_over_seeds() -> None:
    found = score_table(runs_of_two_platforms(), price=("A=3.6",))

    assert found["seconds"].tolist() == [12.0, 12.0, 6.0, 6.0]
    assert found["reached"].tolist() == [5] * 4
    assert found["cost"].tolist()[:2] == pytest.approx([0.012, 0.012])
    assert found["below"].tolist() == [1] * 4
    assert found["speedup"].tolist() == [1.0] * 4


def test_platforms_are_compared() -> None:
    result = summarize(pd.DataFrame(runs_of_two_platforms()))

    # The runs have no start times, so the platforms may have run in separate sessions.
    assert result.answer is not None
    assert result.answer.verdict == "slower"
    assert result.answer.ratio == pytest.approx(0.5)
    assert result.answer.ahead == 0
    assert result.answer.points == 2
    assert "sessions" in result.answer.basis
    sentence = r"B reaches the target 2x as fast as A \(95% CI 1\.\d+x to 2\.\d+x\), which takes 2x"
    assert re.search(sentence, result.text()), result.text()


def test_trainings_that_differ_only_in_the_seed_are_one_setting() -> None:
    rows = [
        training_run(10.0, seed, **{"optimizer.learning_rate": rate})
        for seed in range(3)
        for rate in (0.1, 0.01)
    ]
    found = score_table(rows)

    assert found["choice"].tolist() == ["learning_rate=0.01", "learning_rate=0.1"]
    assert found["runs"].tolist() == [3, 3]


def test_a_resumed_training_is_one_run() -> None:
    def point_run(seed: int, seconds: float, **more: Any) -> dict[str, Any]:
        columns = {"point_id": str(seed), "replicate": 0, "learn.epochs": 40, "epochs": 10.0}
        return training_run(seconds, seed, **columns | more)

    complete = [point_run(seed, 10.0 + seed) for seed in range(4)]
    interrupted = [point_run(seed, math.inf) for seed in range(2)] + [
        point_run(3, 9.0, outcome="crash")
    ]
    [row] = score_table(interrupted + complete).to_dict("records")

    assert (row["runs"], row["reached"], row["seconds"]) == (4, 4, 11.5)

    # Trainings did not reach the target if they were interrupted for good, used all their epochs,
    # or diverged to NaN.
    for further in (
        point_run(5, math.inf),
        point_run(1, math.inf, epochs=40.0),
        point_run(1, math.inf, outcome="nan"),
    ):
        [row] = score_table([further, *complete]).to_dict("records")
        assert (row["runs"], row["reached"]) == (5, 4)


def test_a_processor_and_a_gpu_are_compared() -> None:
    rows = [
        training_run(10.0 + seed / 4, seed, device="A", **{"platform.name": "cpu"})
        for seed in range(6)
    ]
    rows += [
        training_run(5.0 + seed / 8, seed, device="B", **{"platform.name": "gpu"})
        for seed in range(6)
    ]

    assert "reaches the target 2x as fast as A" in summarize(pd.DataFrame(rows)).text()


def test_settings_implied_by_an_optimizer_are_omitted() -> None:
    optimizers = {"adam": (0.999, 0.001), "sgd": (0.9, 0.1), "slow": (0.9, 0.01)}
    rows = [
        training_run(
            10.0,
            **{"optimizer.decay": decay, "optimizer.learning_rate": rate, "optimizer.name": name},
        )
        for name, (decay, rate) in optimizers.items()
    ]

    assert score_table(rows)["choice"].tolist() == [
        f"optimizer={name}" for name in sorted(optimizers)
    ]


def runs_of_three_settings() -> list[dict[str, Any]]:
    """Return four trainings per batch size; those with batch size 128 do not reach the target."""
    rows = [training_run(10.0 + seed, seed, batch) for seed in range(4) for batch in (32, 64)]
    return rows + [training_run(math.inf, seed, 128) for seed in range(4)]


@pytest.fixture(scope="module")
def priced_settings() -> Result:
    return summarize(pd.DataFrame(runs_of_three_settings()), TimeToAccuracyOptions(price=("A=36",)))


def test_the_answer_names_the_fastest_setting_and_settings_without_a_score(
    priced_settings: Result,
) -> None:
    text = priced_settings.text()

    assert "fc on A: 12 runs of 3 settings; fastest to the target: batch size 32, in 11.5 s" in text
    assert (
        "batch size 128: no score, 0 of 4 runs reached the target; median best accuracy 0.9000"
        in text
    )


def test_the_price_of_an_option_has_no_currency(priced_settings: Result) -> None:
    text = priced_settings.text()

    assert "cost 0.115;" in text or "cost 0.115\n" in text, "--price states no currency"


def test_a_recorded_price_has_its_currency() -> None:
    recorded = {"platform.price_per_hour": 36.0, "price_currency": "EUR"}
    rows = [row | recorded for row in runs_of_three_settings()]

    assert "cost 0.115 EUR" in summarize(pd.DataFrame(rows)).text()


def test_times_and_epochs_have_a_panel_each(priced_settings: Result) -> None:
    panels = priced_settings.figure().axes

    assert [axes.get_title(loc="left") for axes in panels] == [
        "Time to the target",
        "Epochs to the target",
    ]


def test_the_interval_of_whole_epochs_covers_the_true_mean() -> None:
    """Trainings take whole epochs, mostly eight, but the true mean is not a whole number."""
    draws = np.round(np.random.default_rng(3).normal(8.2, 0.5, (20_000, 5)))
    truth = np.sort(draws)[:, 1:-1].mean()
    found = [olympic_mean(row.tolist(), 1.0) for row in draws[:400]]

    assert np.mean([score.low <= truth <= score.high for score in found]) > 0.93


def test_scores_of_equal_epochs_have_proportional_intervals() -> None:
    """Five seeds take the same number of epochs, and the seconds are proportional to the epochs."""
    row = score_table([training_run(20.0, seed) for seed in range(5)]).iloc[0]
    half_width = row["epochs_high"] - row["epochs"]

    assert half_width > 0
    assert row["seconds_high"] - row["seconds"] == pytest.approx(2 * half_width)


def test_a_target_reached_in_the_first_epoch_bounds_the_time() -> None:
    rows = [training_run(2.0 + seed / 100, seed, epochs_to_target=1.0) for seed in range(5)]

    row = score_table(rows).iloc[0]
    text = summarize(pd.DataFrame(rows)).text()

    assert row["is_upper_bound"]
    assert row["seconds_low"] == row["epochs_low"] == 0.0
    assert row["seconds"] <= row["seconds_high"]
    assert row["epochs"] == row["epochs_high"] == 1.0
    assert "at most 2.02 s (0 to " in text
    assert "reached in the first epoch" in text


def test_a_score_is_no_bound_if_one_run_needed_a_second_epoch() -> None:
    rows = [training_run(2.0, seed, epochs_to_target=1.0) for seed in range(4)]
    rows.append(training_run(4.0, seed=4, epochs_to_target=2.0))

    row = score_table(rows).iloc[0]

    assert not row["is_upper_bound"]
    assert row["epochs_low"] > 0


def test_platforms_whose_times_are_upper_bounds_get_no_verdict() -> None:
    rows = [
        training_run(seconds, seed, device=device, epochs_to_target=1.0)
        for device, seconds in (("A", 2.0), ("B", 20.0))
        for seed in range(5)
    ]

    text = summarize(pd.DataFrame(rows)).text()

    assert "A and B: undecided, because the target was reached in the first epoch" in text
    assert "raise learn.target" in text
    assert "as fast" not in text


def test_an_upper_bound_has_no_speedup() -> None:
    rows = [
        training_run(seconds, seed, batch_size, epochs_to_target=epochs)
        for batch_size, seconds, epochs in ((32, 2.0, 1.0), (64, 1.0, 2.0), (128, 4.0, 3.0))
        for seed in range(4)
    ]

    speedups = score_table(rows)["speedup"].tolist()

    assert speedups == pytest.approx([math.nan, 1.0, 0.25], nan_ok=True)


@pytest.mark.parametrize(
    ("options", "frame", "message"),
    [
        pytest.param(
            "--price C=36",
            pd.DataFrame([training_run(1.0)]),
            "--price=C: no run used that device",
            id="no run of a priced device",
        ),
        pytest.param(
            "",
            pd.DataFrame([training_run(1.0)]).drop(columns="best_accuracy"),
            "task=learn",
            id="no training",
        ),
    ],
)
def test_frames_without_a_priced_device_or_a_training_are_rejected(
    options: str, frame: pd.DataFrame, message: str
) -> None:
    assert_rejected(f"time-to-accuracy {options}", frame, message)


@pytest.mark.parametrize("count", [2, 4, 7])
def test_equal_times_have_an_interval_of_positive_width(count: int) -> None:
    score = olympic_mean([3.0] * count)

    assert score.value == 3.0
    assert score.low < 3.0
    assert score.high > 3.0


@pytest.mark.parametrize("count", [4, 6, 10])
def test_the_ratio_of_platforms_is_covered_if_seeds_have_two_modes(count: int) -> None:
    """A third of the seeds take twice as long on either platform. B is as fast as A."""
    random = np.random.default_rng(count)
    covered = 0
    for _ in range(100):
        logs = math.log(2) * (random.random((2, count)) < 1 / 3)
        seconds = 10 * np.exp(logs + random.normal(0, 0.05, (2, count)))
        rows = [
            training_run(float(seconds[side, seed]), seed, 32, "AB"[side], sweep_id="s", host="h")
            for side in (0, 1)
            for seed in range(count)
        ]
        answer = summarize(pd.DataFrame(rows)).answer
        assert answer is not None
        assert answer.low is not None
        assert answer.high is not None
        covered += answer.low <= 1 <= answer.high

    assert covered >= 90


@pytest.mark.parametrize("count", [4, 6, 10])
@pytest.mark.parametrize("share", [1 / 6, 1 / 3, 1 / 2])
def test_the_mean_score_is_covered_if_seeds_have_two_modes(count: int, share: float) -> None:
    """A share of the seeds takes twice as long. The truth is the mean of many scores."""
    random = np.random.default_rng(count)

    def draw(rows: int) -> np.ndarray:
        is_slow = random.random((rows, count)) < share
        return np.exp(math.log(2) * is_slow + random.normal(0, 0.05, (rows, count)))

    truth = float(np.sort(draw(20_000), axis=1)[:, 1:-1].mean())
    scores = [olympic_mean(list(row)) for row in draw(300)]

    covered = np.mean([score.low <= truth <= score.high for score in scores])

    # If the true coverage is 95%, 1% of samples of 300 fall below 92%. The seed is fixed.
    assert covered >= 0.92


def test_the_interval_of_similar_seeds_allows_for_an_unseen_mode() -> None:
    agreeing = olympic_mean([1.0, 1.01, 1.02, 1.03])
    assert agreeing.high / agreeing.value > 1.3
