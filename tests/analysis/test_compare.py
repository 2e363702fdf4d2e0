"""Two-sided comparison: verdicts on planted differences, equivalence, and unpaired points."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.analyses.compare import CompareOptions, compare_points
from analysis.analyses.compare import compare as command
from analysis.sides import Compared
from paradnn.statistics.contrast import Contrast, Evidence
from paradnn.statistics.decision import adjust_p_values, equivalent
from paradnn.statistics.effects import Schedule, SessionVariance
from paradnn.statistics.verdict import Verdict
from tests.analysis.rejected import assert_rejected
from tests.analysis.test_pairing import side


def planted(
    ratio: Any, points: int, replicates: int, seed: int, noise: float = 0.02
) -> tuple[pd.DataFrame, ...]:
    """Return sides A and B; A is faster by `ratio`, a number or one number per point.

    Speeds vary between points. Each replicate has a noise of `noise`, as a fraction.
    """
    random = np.random.default_rng(seed)
    base = random.lognormal(5, 1, (points, 1))
    scatter = random.lognormal(0, noise, (2, points, replicates))
    return side(np.reshape(ratio, (-1, 1)) * base * scatter[0]), side(base * scatter[1], "B")


def test_false_discovery_rates_equal_a_hand_computation() -> None:
    p_values = np.array([0.010, np.nan, 0.020, 0.039, 0.005, 0.600])
    # Sorted: 0.005 0.010 0.020 0.039 0.600. Multiply by 5/1 5/2 5/3 5/4 5/5, then take the running
    # minimum from the right (Benjamini and Hochberg 1995).
    expected = [0.025, np.nan, 1 / 30, 0.04875, 0.025, 0.6]

    np.testing.assert_allclose(adjust_p_values(p_values, discoveries=True), expected)


def test_adjusted_p_values_keep_the_order_of_the_p_values() -> None:
    np.testing.assert_allclose(adjust_p_values(np.array([0.9, 0.8]), discoveries=True), [0.9, 0.9])


def test_an_unknown_p_value_stays_unknown() -> None:
    assert np.isnan(adjust_p_values(np.array([np.nan]), discoveries=True)).all()


def test_adjusted_p_values_equal_holms_method_of_statsmodels() -> None:
    known = np.array([0.010, 0.020, 0.039, 0.005, 0.600])

    np.testing.assert_allclose(adjust_p_values(known), multipletests(known, method="holm")[1])


@pytest.mark.parametrize(
    ("ratio", "replicates", "verdict"),
    [
        pytest.param([1.5, 1.4, 1.3], 3, "faster", id="A ahead on 3 points"),
        pytest.param([0.5, 0.4, 0.3], 3, "slower", id="B ahead on 3 points"),
        pytest.param([1.5, 0.67, 1.5, 0.67], 3, "equal", id="points disagree around 1"),
        pytest.param([1.5, 1.4, 1.3], 1, "faster", id="one run of each of three points"),
        pytest.param([1.5], 1, "faster", id="one run of one point"),
        pytest.param([1.1], 1, "undecided", id="one run of one point, a small ratio"),
    ],
)
def test_few_points_have_a_verdict(ratio: list[float], replicates: int, verdict: str) -> None:
    found = compare_points(*planted(ratio, len(ratio), replicates, seed=7, noise=0.01))

    assert found.families["verdict"].tolist() == [verdict]
    assert found.total["verdict"] == verdict


def test_one_run_per_side_gets_the_interval_of_the_prior() -> None:
    """Both sides have a prior scatter of 5% with 4 degrees of freedom: 2.776 x sqrt(2) x 5%."""
    total = compare_points(side([[1.5]]), side([[1.0]], "B")).total

    half_width = np.log(total["geometric_mean_high"] / total["geometric_mean"])

    assert half_width == pytest.approx(stats.t.ppf(0.975, 4) * np.sqrt(2) * 0.05)


def test_points_measured_on_one_side_do_not_widen_the_interval() -> None:
    a, b = planted(1.5, 12, 3, seed=5)
    partly_failed = b.assign(outcome=b["outcome"].mask(b["batch_size"] > 192, "oom_device"))

    without_failures = compare_points(a[a["batch_size"] <= 192], b[b["batch_size"] <= 192]).total
    with_failures = compare_points(a, partly_failed).total

    ends = ["geometric_mean_low", "geometric_mean_high"]

    assert [with_failures[end] for end in ends] == pytest.approx(
        [without_failures[end] for end in ends]
    )
    assert with_failures["missing_a"] == 3
    assert with_failures["share_least"] == 9 / 12


def run_compare(*sides: pd.DataFrame, **options: Any) -> Compared:
    """Return the result of the sub-command, by default for devices A and B."""
    arguments = CompareOptions(**({"a": "device=A", "b": "device=B"} | options))
    return command(pd.concat(sides, ignore_index=True), arguments)


@pytest.fixture(scope="module")
def four_families() -> pd.DataFrame:
    """Return sides A and B of four families.

    fc is twice as fast on B, lstm is noisy, gru is twice as fast on A, and rnn ran only on A.
    """
    a, b = planted(0.5, 8, 3, seed=10)
    noisy = [
        frame.assign(family="lstm", run_id=frame["run_id"] + "l")
        for frame in planted(1.0, 8, 1, seed=11, noise=0.2)
    ]
    few = [
        frame.assign(family="gru", run_id=frame["run_id"] + "g")
        for frame in planted(2.0, 2, 1, seed=12, noise=0)
    ]
    only_on_a = side([[1.0]], "A", family="rnn").assign(run_id="r")
    return pd.concat([a, noisy[0], few[0], only_on_a, b, noisy[1], few[1]])


@pytest.fixture(scope="module")
def comparison(four_families: pd.DataFrame) -> Compared:
    is_a = four_families["device"] == "A"
    return run_compare(four_families[is_a], four_families[~is_a])


def test_the_first_line_answers_for_all_families(comparison: Compared) -> None:
    assert comparison.text().startswith("B is 1.2")
    assert comparison.answer is not None
    assert (comparison.answer.verdict, comparison.answer.points) == ("slower", 18)


@pytest.mark.parametrize(
    ("family", "beginning", "end"),
    [
        pytest.param("fc", "fc: B 2.0", "; B is ahead on 8 of 8 points.", id="faster on B"),
        pytest.param("lstm", "lstm: undecided, ", "", id="undecided"),
        pytest.param("gru", "gru: A 2x faster (95% CI 1.7", "", id="faster on A"),
    ],
)
def test_each_family_has_a_line(
    comparison: Compared, family: str, beginning: str, end: str
) -> None:
    lines = {line.partition(":")[0]: line for line in comparison.text().splitlines()}

    assert lines[family].startswith(beginning)
    assert lines[family].endswith(end)


def test_a_family_of_one_side_has_a_line(comparison: Compared) -> None:
    assert "rnn: no point was measured on both sides." in comparison.text().splitlines()


def test_the_table_has_a_row_per_pair(comparison: Compared) -> None:
    assert len(comparison.table) == 18


def test_every_compared_run_is_a_source(comparison: Compared, four_families: pd.DataFrame) -> None:
    assert set(comparison.sources) == set(four_families["run_id"])


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        pytest.param("device=B", "B", id="equal"),
        pytest.param("device!=A", "B", id="unequal"),
        pytest.param("device!=A & batch_size>64", "device!=A & batch_size>64", id="two conditions"),
    ],
)
def test_a_side_with_one_device_is_named_after_it(condition: str, name: str) -> None:
    result = run_compare(*planted(0.5, 8, 3, seed=10), b=condition)

    assert result.answer is not None
    assert re.match(rf"{re.escape(name)} is \S+x faster than A ", result.answer.sentence)


def test_the_command_reports_other_differences_and_failures() -> None:
    a, b = planted(1.5, 8, 1, seed=13)
    b.loc[0, "outcome"] = "oom_device"

    text = run_compare(
        a.assign(precision="bfloat16", source="published"), b.assign(source="measured")
    ).text()

    assert text.startswith("A is 1.4")
    assert (
        "A and B also differ in precision (bfloat16 / float32): the ratios include these effects."
        in text
    )
    assert (
        "The sides were timed in different ways (source published / measured); see "
        "docs/validation/published-data.md." in text
    )
    assert "Without a counterpart: 1 point of A, 0 of B." in text
    assert "1 run of B without a measurement: 1 oom_device." in text
    assert "1 point ran only on A: including them, A is ahead on 88% to 100% of the points" in text
    assert "The sessions are not recorded: the interval allows each session a shift of 7.5%" in text


def test_the_basis_names_the_prior_that_dominates() -> None:
    separate_sweeps = [
        frame.assign(sweep_id=name) for name, frame in zip("AB", planted(2, 9, 3, 1), strict=True)
    ]

    separate = run_compare(*separate_sweeps).answer
    shared = run_compare(*planted(2, 9, 3, seed=1)).answer

    assert separate is not None
    assert shared is not None
    assert separate.basis == "scatter of sessions (mostly the prior)"
    assert shared.basis == "scatter of processes"


def test_equal_means_are_called_the_same_only_within_the_margin() -> None:
    """Draws are called equivalent in 5% of cases at the margin, and nearly always far inside it."""
    random = np.random.default_rng(0)
    for true_difference, low, high in ((np.log(1.05), 0.03, 0.07), (0.0, 0.95, 1.0)):
        logs = random.normal(0, 0.02, (2, 4000, 12))
        error = np.sqrt(logs.var(axis=2, ddof=1).sum(axis=0) / 12)
        difference = true_difference + logs[0].mean(axis=1) - logs[1].mean(axis=1)
        p_values = equivalent(difference, difference, error, np.full(4000, 22.0), 0.05)
        assert low <= np.mean(p_values <= 0.05) <= high


def test_sides_within_the_margin_are_called_equal() -> None:
    sides = planted(1.0, 20, 8, seed=4, noise=0.01)

    found = compare_points(*sides)

    assert found.families["verdict"].tolist() == [Verdict.EQUAL]
    assert found.families["same"].iloc[0] >= 18
    assert run_compare(*sides).text().startswith("A and B are equally fast within 5%: ")
    assert compare_points(*sides, margin=0.001).total["verdict"] == Verdict.UNDECIDED


def contrast_of(ratios: np.ndarray, weight: float, variance: float = 0.0) -> Contrast:
    """Return the contrast of points with these ratios.

    Args:
        ratios: Ratio of A to B per point, shape (n,).
        weight: 0 if the sides share a session, 2 if each side has its own session.
        variance: Variance of the logarithm between sessions.
    """
    count = len(ratios)
    numbers = np.arange(count)
    a = pd.DataFrame({"sweep_id": ["s"] * count, "sweep_order": "random"})
    b = a if weight == 0 else a.assign(sweep_id="t")
    evidence = Evidence(
        schedule=Schedule.of(a, b, np.tile(numbers, 2)),
        family=np.repeat("fc", 2 * count),
        session=SessionVariance(variance, 1e9),
        point=numbers,
        variance=np.full((2, count), 1e-18),
        mean_variance=np.full((2, count), 1e-18),
        freedom=np.full((2, count), 1e9),
        data_freedom=np.full((2, count), 1e9),
    )
    pairs = pd.DataFrame(
        {"speedup": ratios, "family": "fc", "point": numbers, "model.nodes": numbers}
    )
    return Contrast(pairs, evidence)


def test_a_shift_of_a_session_moves_all_points_together() -> None:
    """A shift of 0.05 x 1.96 x sqrt(2) widens the mean, the median and the share in full.

    Averaging over points does not reduce it.
    """
    ratios = np.geomspace(0.9, 1.3, 40)
    shift = 0.05 * np.sqrt(2) * stats.norm.ppf(0.975)

    one_session = contrast_of(ratios, 0)
    shifted = contrast_of(ratios, 2, variance=0.0025)

    assert np.log(one_session.mean()) == pytest.approx([np.log(ratios).mean()] * 3, abs=1e-6)

    middle = np.log(ratios).mean()
    assert np.log(shifted.mean()) == pytest.approx(
        [middle, middle - shift, middle + shift], abs=1e-6
    )

    middle = np.log(np.median(ratios))
    assert np.log(shifted.quantile()) == pytest.approx(
        [middle, middle - shift, middle + shift], abs=1e-6
    )

    logs = np.log(ratios)
    expected = [(logs > 0).mean(), (logs > shift).mean(), (logs > -shift).mean()]

    assert [*shifted.share()] == pytest.approx(expected)
    assert [*one_session.share()] == pytest.approx(expected[:1] * 3)


def test_the_population_mean_treats_the_points_as_a_sample() -> None:
    """Independent points have Student's interval of their logarithms."""
    logs = np.random.default_rng(3).normal(0.5, 0.3, 20)

    found = np.log(contrast_of(np.exp(logs), 0).population_mean())

    half_width = stats.t.ppf(0.975, 19) * logs.std(ddof=1) / np.sqrt(20)

    assert found == pytest.approx(
        [logs.mean(), logs.mean() - half_width, logs.mean() + half_width], abs=1e-6
    )
    assert np.isnan(contrast_of(np.exp(logs[:5]), 0).population_mean().low)


def test_bounds_with_missing_points_equal_a_count_by_hand() -> None:
    def bounds_of(ratios: list[float], missing: tuple[int, int] = (0, 0)) -> dict[str, float]:
        contrast = contrast_of(np.array(ratios), 0)
        assert contrast.evidence is not None
        evidence = replace(contrast.evidence, missing={"fc": missing})
        return replace(contrast, evidence=evidence).bounds()

    found = bounds_of([0.5, 2.0, 4.0], (1, 1))

    assert (found["share_least"], found["share_most"]) == (2 / 5, 4 / 5)
    assert (found["median_least"], found["median_most"]) == (0.5, 4.0)
    assert [found["mean_least"], found["mean_most"]] == pytest.approx(
        [(4 / 16) ** 0.2, (4 * 16) ** 0.2]
    )
    assert bounds_of([2.0])["share_least"] == 1

    # With four points, the median lies between the two middle values.
    even = bounds_of([0.5, 2.0, 4.0], (1, 0))
    assert (even["median_least"], even["median_most"]) == (0.5, 4.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "device=A device=C",
            "B=device=C: no run matches; the values of device are A, B",
            id="device=A device=C",
        ),
        pytest.param(
            "devise=A device=B",
            "A=devise=A: these runs have no column devise; did you mean device?",
            id="devise=A device=B",
        ),
        pytest.param(
            "device=A 'device=A & batch_size=64'",
            "conditions=A and B: contain the same 3 runs",
            id="device=A 'device=A & batch_size=64'",
        ),
        pytest.param(
            "device=A device=B --rate 5",
            "--rate=5.0: must be above 0 and below 1",
            id="device=A device=B --rate 5",
        ),
        pytest.param(
            "device=A device=B --metric parameters",
            "metric=parameters: cannot be ranked: neither high nor low values are better",
            id="device=A device=B --metric parameters",
        ),
        pytest.param(
            "device=A device=B --metric nonsense",
            "metric=nonsense: is not a registered metric",
            id="device=A device=B --metric nonsense",
        ),
        pytest.param(
            "device=A device=B --metric flops_per_second",
            "metric=flops_per_second: is not recorded in the runs of A",
            id="device=A device=B --metric flops_per_second",
        ),
    ],
)
def test_invalid_options_raise_a_one_line_error(options: str, message: str) -> None:
    frame = pd.concat(planted(1.5, 8, 1, seed=14), ignore_index=True)
    assert_rejected(f"compare {options}", frame, message)
