"""Two-sided comparison: verdicts on planted differences, equivalence, and unpaired points."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.analyses.compare import CompareOptions, compare_points
from analysis.analyses.compare import compare as command
from analysis.sides import Compared
from paradnn.statistics.contrast import Contrast, Verdict
from paradnn.statistics.decision import adjust_p_values, equivalent
from paradnn.statistics.dependence import Component
from paradnn.statistics.sessions import Sampling
from tests.analysis.rejected import assert_rejected
from tests.analysis.test_pairing import side


def planted(
    ratio: Any, points: int, replicates: int, seed: int, noise: float = 0.02
) -> tuple[pd.DataFrame, ...]:
    """Return two sides whose points differ by `ratio`.

    Each point has its own speed, and processes scatter by `noise`.
    """
    random = np.random.default_rng(seed)
    base = random.lognormal(5, 1, (points, 1))
    scatter = random.lognormal(0, noise, (2, points, replicates))
    return side(np.reshape(ratio, (-1, 1)) * base * scatter[0]), side(base * scatter[1], "B")


def test_adjusted_p_values_equal_hand_computation_and_statsmodels() -> None:
    p = np.array([0.010, np.nan, 0.020, 0.039, 0.005, 0.600])
    # Sorted: 0.005 0.010 0.020 0.039 0.600. Multiply by 5/1 5/2 5/3 5/4 5/5, then take the running
    # minimum from the right (Benjamini and Hochberg 1995).
    expected = [0.025, np.nan, 1 / 30, 0.04875, 0.025, 0.6]
    np.testing.assert_allclose(adjust_p_values(p, discoveries=True), expected)
    np.testing.assert_allclose(adjust_p_values(np.array([0.9, 0.8]), discoveries=True), [0.9, 0.9])
    assert np.isnan(adjust_p_values(np.array([np.nan]), discoveries=True)).all()
    known = p[~np.isnan(p)]
    np.testing.assert_allclose(adjust_p_values(known), multipletests(known, method="holm")[1])


@pytest.mark.parametrize(
    ("ratio", "replicates", "verdict", "basis"),
    [
        pytest.param([1.5, 1.4, 1.3], 3, "A better", "tests", id="A ahead on 3 points"),
        pytest.param([0.5, 0.4, 0.3], 3, "B better", "tests", id="B ahead on 3 points"),
        pytest.param([1.5, 0.5, 1.5], 3, "no difference shown", "tests", id="points disagree"),
        pytest.param([1.5, 1.4, 1.3], 2, "not enough data", "nothing", id="two replicates"),
        pytest.param([1.5], 1, "not enough data", "nothing", id="one point"),
        pytest.param(
            [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5],
            2,
            "A better",
            "points",
            id="eight points without replicates",
        ),
    ],
)
def test_few_points_need_replicates(
    ratio: list[float], replicates: int, verdict: str, basis: str
) -> None:
    found = compare_points(*planted(ratio, len(ratio), replicates, seed=7, noise=0.01))
    row = found.families.iloc[0]
    assert (row["verdict"], row["basis"]) == (verdict, basis)
    assert (
        (found.cells["verdict"] == "not tested").all()
        == found.cells["p_value"].isna().all()
        == (replicates < 3)
    )


def ask(*sides: pd.DataFrame, **options: Any) -> Compared:
    """Return the sub-command's text for two devices A and B."""
    asked = CompareOptions(**({"a": "device=A", "b": "device=B"} | options))
    return command(pd.concat(sides, ignore_index=True), asked)


def test_the_command_gives_one_sentence_a_family() -> None:
    a, b = planted(0.5, 8, 3, seed=10)
    alike = [
        frame.assign(family="lstm", run_id=frame["run_id"] + "l")
        for frame in planted(1.0, 8, 1, seed=11, noise=0.2)
    ]
    few = [
        frame.assign(family="gru", run_id=frame["run_id"] + "g")
        for frame in planted(2.0, 2, 1, seed=12, noise=0)
    ]
    alone = side([[1.0]], "A", family="rnn").assign(run_id="r")
    result = ask(pd.concat([a, alike[0], few[0], alone]), pd.concat([b, alike[1], few[1]]))
    lines = {line.partition(":")[0]: line for line in result.text().splitlines()}
    assert lines["fc"].startswith("fc: B faster: geometric mean 2")
    assert lines["fc"].endswith("; B is ahead in 8.")
    assert lines["lstm"].startswith("lstm: no difference shown: geometric mean ")
    assert (
        "gru: not enough data (a verdict needs 6 points, or 3 replicates of each on both sides)"
        in lines["gru"]
    )
    assert "geometric mean 2 (too few points for an interval) over 2 points" in lines["gru"]
    assert lines["rnn"] == "rnn: not enough data, no point was measured on both sides."
    assert (
        "Of 8 cells tested (Welch's t on logarithms) A is faster in 0, B in 8, 0 are the same"
        in result.text()
    )
    assert (
        "10 of 18 cells are not tested: a test takes 3 replicates on both sides." in result.text()
    )
    assert len(result.table) == 18
    assert set(result.sources) == set(pd.concat([a, *alike, *few, alone, b])["run_id"])


def test_the_command_reports_other_differences_and_failures() -> None:
    a, b = planted(1.5, 8, 1, seed=13)
    b.loc[0, "outcome"] = "oom_device"
    text = ask(
        a.assign(precision="bfloat16", source="published"), b.assign(source="measured")
    ).text()
    assert (
        "A and B also differ in precision (bfloat16 / float32): the ratios include these effects."
        in text
    )
    assert (
        "They were not timed in the same way: source published / measured, see docs/validation/published-data.md."
        in text
    )
    assert (
        "Without a counterpart: 1 point of A, 0 of B.\nOf the runs of B 1 have no measurement (1 oom_dev"
        in text
    )
    assert "No cell is tested, since the sessions of the sides carry no verdict." in text
    assert "fc: no verdict: geometric mean" in text
    assert "No verdict for fc: when these were measured is not recorded" in text
    assert "python -m paradnn.compare" in text
    text = ask(*planted(1.5, 8, 1, seed=13)).text()
    assert "No cell is tested: that takes 3 replicates of a point on both sides" in text


def test_equal_means_are_called_the_same_only_within_the_margin() -> None:
    """Equivalence is concluded in 5% of draws at the margin, and nearly always well within it."""
    random = np.random.default_rng(0)
    for true, low, high in ((np.log(1.05), 0.03, 0.07), (0.0, 0.95, 1.0)):
        logs = random.normal(0, 0.02, (2, 4000, 12))
        error = np.sqrt(logs.var(axis=2, ddof=1).sum(axis=0) / 12)
        difference = true + logs[0].mean(axis=1) - logs[1].mean(axis=1)
        assert (
            low
            <= np.mean(equivalent(difference, difference, error, np.full(4000, 22.0), 0.05) <= 0.05)
            <= high
        )


def test_the_same_within_a_margin() -> None:
    sides = planted(1.0, 20, 8, seed=4, noise=0.01)
    found = compare_points(*sides)
    assert found.families["verdict"].iloc[0] == Verdict.SAME
    assert found.families["same"].iloc[0] >= 18
    assert "fc: the same within 5%: geometric mean" in ask(*sides).text()
    assert compare_points(*sides, margin=0.001).families["verdict"].iloc[0] == Verdict.NOT_SHOWN


def test_what_sessions_add_widens_a_share_and_a_quantile_and_moves_neither() -> None:
    """Session effects may shift all ratios, which span 0.9 to 1.3, by a tenth.

    The share above 1 gets the bounds that such a shift would give it.
    """
    ratios = np.geomspace(0.9, 1.3, 40)
    pairs = pd.DataFrame(
        {"speedup": ratios, "family": "fc", "comparable": True, "model.nodes": range(40)}
    )
    alone = Contrast(pairs, Sampling())
    shifted = Contrast(pairs, Sampling(between=(Component(0.0025, 1e9),)))
    value, low, high = alone.share()
    least, most = ((np.log(ratios) > 0.05 * stats.norm.ppf(end)).mean() for end in (0.975, 0.025))
    ends = (
        value - np.hypot(value - low, value - least),
        min(value + np.hypot(high - value, most - value), 1.0),
    )
    assert [*shifted.share()] == pytest.approx([value, *ends])
    value, low, high = np.log(alone.quantile())
    ends = (value - np.hypot(value - low, 0.098), value + np.hypot(high - value, 0.098))
    assert np.log(shifted.quantile()) == pytest.approx([value, *ends], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            "device=A device=C",
            "B=device=C: no run matches; device is A, B",
            id="device=A device=C",
        ),
        pytest.param(
            "devise=A device=B",
            "A=devise=A: these runs have no column devise; did you mean device?",
            id="devise=A device=B",
        ),
        pytest.param(
            "device=A 'device=A & batch_size=64'",
            "A and B=3 runs: are on both sides",
            id="device=A 'device=A & batch_size=64'",
        ),
        pytest.param(
            "device=A device=B --rate 5",
            "--rate=5.0: must be above 0 and below 1",
            id="device=A device=B --rate 5",
        ),
        pytest.param(
            "device=A device=B --metric parameters",
            "metric=parameters: is neither better high nor low",
            id="device=A device=B --metric parameters",
        ),
        pytest.param(
            "device=A device=B --metric nonsense",
            "metric=nonsense: is no registered metric",
            id="device=A device=B --metric nonsense",
        ),
        pytest.param(
            "device=A device=B --metric flops_per_second",
            "metric=flops_per_second: the runs of A do not hold it",
            id="device=A device=B --metric flops_per_second",
        ),
    ],
)
def test_invalid_options_give_one_line(options: str, message: str) -> None:
    frame = pd.concat(planted(1.5, 8, 1, seed=14), ignore_index=True)
    assert_rejected(f"compare {options}", frame, message)


def test_bounds_as_by_hand() -> None:
    def of(ratios: list[float], missing: tuple[int, int] = (0, 0)) -> dict[str, float]:
        pairs = pd.DataFrame({"speedup": ratios, "family": "fc", "comparable": True})
        return Contrast(pairs, Sampling(missing=missing)).bounds()

    found = of([0.5, 2.0, 4.0], (1, 1))
    assert (found["share_least"], found["share_most"]) == (2 / 5, 4 / 5)
    assert (found["median_least"], found["median_most"]) == (0.5, 4.0)
    assert [found["mean_least"], found["mean_most"]] == pytest.approx(
        [(4 / 16) ** 0.2, (4 * 16) ** 0.2]
    )
    assert of([2.0])["share_least"] == 1
    even = of([0.5, 2.0, 4.0], (1, 0))  # the middle lies between two values
    assert (even["median_least"], even["median_most"]) == (0.5, 4.0)
