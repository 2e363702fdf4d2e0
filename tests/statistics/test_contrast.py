"""Contrasts of planted evidence: processes, shares, quantiles and bounds."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from paradnn.statistics.contrast import Contrast, Evidence, judge
from paradnn.statistics.dependence import Component
from paradnn.statistics.effects import Effect, Schedule, SessionVariance
from paradnn.statistics.priors import scatter_priors

PRIORS = scatter_priors()
POINTS = 40


def runs_of(side: int, points: int) -> pd.DataFrame:
    """Return one run per point in random order within one session."""
    hours = (2 * np.arange(points) + side) / 60
    start = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(3600 * hours, unit="s")
    return pd.DataFrame({"start_time": start, "sweep_id": "s", "sweep_order": "random"})


def evidence(variance: np.ndarray, **changes: object) -> Evidence:
    """Return the evidence of points whose sides share a session; variances are (2, p)."""
    points = variance.shape[1]
    schedule = Schedule.of(runs_of(0, points), runs_of(1, points), np.tile(np.arange(points), 2))
    fields = {
        "schedule": schedule,
        "family": np.repeat("fc", 2 * points),
        "session": SessionVariance(*PRIORS.session.update()),
        "point": np.arange(points),
        "variance": variance,
        "mean_variance": variance,
        "freedom": np.full(variance.shape, 10.0),
        "data_freedom": np.full(variance.shape, 6.0),
    }
    return Evidence(**fields | changes)  # type: ignore[arg-type]


def contrast(ratios: np.ndarray, found: Evidence | None, family: str = "all") -> Contrast:
    pairs = pd.DataFrame(
        {
            "family": "fc",
            "speedup": ratios,
            "point": np.arange(len(ratios)),
            "model.nodes": 2.0 ** np.arange(len(ratios)),
            "batch_size": 64,
        }
    )
    return Contrast(pairs, found, family)


def test_processes_add_the_mean_variance_of_the_rows() -> None:
    """The second point has two rows, so its share of the mean is a half."""
    variance = np.array([[0.01, 0.02, 0.04], [0.02, 0.01, 0.03]])
    freedom = np.array([[5.0, 6.0, 7.0], [8.0, 9.0, 4.0]])
    mean_variance = 1.5 * variance

    found = evidence(variance, freedom=freedom, mean_variance=mean_variance).process_effect(
        np.arange(3), np.array([1, 2, 1])
    )

    shares = np.array([1 / 16, 1 / 4, 1 / 16])
    parts = (shares * variance).ravel()
    satterthwaite = parts.sum() ** 2 / np.sum(parts**2 / freedom.ravel())
    limit = PRIORS.process.freedom + 36
    assert found.variance == pytest.approx(np.sum(shares * mean_variance))
    assert found.freedom == pytest.approx(satterthwaite)
    assert found.freedom < limit
    assert found.prior_share == pytest.approx(PRIORS.process.freedom / limit)


def test_processes_have_no_more_degrees_of_freedom_than_data_and_prior() -> None:
    known = evidence(np.full((2, 3), 0.01), data_freedom=np.full((2, 3), 1.0))

    found = known.process_effect(np.arange(3), np.ones(3))

    assert found.freedom == PRIORS.process.freedom + 6


def test_a_mean_has_students_interval_of_the_processes() -> None:
    ratios = np.exp(np.random.default_rng(1).normal(0.1, 0.2, POINTS))

    found = contrast(ratios, evidence(np.full((2, POINTS), 0.01)))

    error = math.sqrt(2 * 0.01 / POINTS)
    freedom = found.effects[0].freedom
    half = stats.t.ppf(0.975, freedom) * error
    middle = stats.gmean(ratios)
    mean = found.mean()
    assert [effect.name for effect in found.effects] == ["processes"]
    assert mean == pytest.approx((middle, middle * math.exp(-half), middle * math.exp(half)))
    assert found.error.freedom == pytest.approx(freedom)


def test_a_bias_widens_the_mean_to_both_sides() -> None:
    ratios = np.full(POINTS, 1.2)
    variance = np.full((2, POINTS), 0.01)

    plain = contrast(ratios, evidence(variance)).mean()
    biased = contrast(ratios, evidence(variance, selection={"fc": 0.05, "rnn": 0.5}))

    assert biased.bias == 0.05
    assert biased.shift == 0.05
    assert biased.mean().high == pytest.approx(plain.high * math.exp(0.05))
    assert biased.mean().low == pytest.approx(plain.low / math.exp(0.05))


def test_without_evidence_there_is_no_interval() -> None:
    found = contrast(np.array([1.1, 1.2]), None)

    assert found.mean().value == pytest.approx(math.sqrt(1.32))
    assert math.isnan(found.mean().low)
    assert math.isnan(found.quantile().low)
    assert (found.bias, found.shift, found.missing_by_side) == (0.0, 0.0, (0, 0))


def test_no_points_have_no_mean() -> None:
    found = contrast(np.zeros(0), evidence(np.zeros((2, 0))))

    assert math.isnan(found.mean().value)
    assert math.isnan(found.share().value)
    assert math.isnan(found.quantile().value)
    assert found.bias == 0.0


def test_an_equal_point_is_no_win() -> None:
    found = contrast(np.array([0.9, 1.0, 1.0, 1.2]), evidence(np.full((2, 4), 1e-6)))

    assert found.share().value == 0.25
    assert found.row()["wins"] == 1


def test_the_share_of_wins_scatters_as_its_points_do() -> None:
    """Each point is above the bound with a normal probability; wins are drawn from these."""
    random = np.random.default_rng(2)
    logs = random.normal(0.02, 0.1, POINTS)

    share = contrast(np.exp(logs), evidence(np.full((2, POINTS), 0.002))).share(1.05)

    distance = logs - math.log(1.05)
    wins = random.random((40_000, POINTS)) < stats.norm.cdf(distance / math.sqrt(0.004))
    reach = 1.96 * wins.mean(axis=1).std()
    assert share.value == (distance > 0).mean()
    assert share.high - share.value == pytest.approx(reach, rel=0.02)
    assert share.value - share.low == pytest.approx(reach, rel=0.02)


@pytest.mark.parametrize(
    ("ratio", "end"), [pytest.param(1.001, "high", id="all"), pytest.param(0.999, "low", id="none")]
)
def test_a_share_is_between_none_and_all(ratio: float, end: str) -> None:
    share = contrast(np.full(4, ratio), evidence(np.full((2, 4), 0.1))).share()

    assert getattr(share, end) == share.value
    assert 0 <= share.low < share.high <= 1


def test_a_common_shift_widens_a_share_to_the_shares_that_it_would_give() -> None:
    logs = np.linspace(-0.099, 0.201, 31)
    shifted = evidence(np.full((2, 31), 1e-12), selection={"fc": 0.0503})

    share = contrast(np.exp(logs), shifted).share()

    assert share.value == np.mean(logs > 0)
    assert share.low == pytest.approx(np.mean(logs > 0.0503))
    assert share.high == pytest.approx(np.mean(logs > -0.0503))


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_quantile_scatters_as_in_a_parametric_bootstrap(share: float) -> None:
    logs = np.random.default_rng(3).normal(0, 0.1, POINTS)
    found = contrast(np.exp(logs), evidence(np.full((2, POINTS), 0.005)))

    quantile = found.quantile(share)

    noise = np.random.default_rng(4).normal(0, 0.1, (4000, POINTS))
    error = np.quantile(logs + noise, share, axis=1).std()
    half = stats.t.ppf(0.975, found.effects[0].freedom) * error
    assert quantile.value == pytest.approx(np.quantile(np.exp(logs), share))
    assert math.log(quantile.high / quantile.value) == pytest.approx(half, rel=0.15)
    assert quantile.high / quantile.value == pytest.approx(quantile.value / quantile.low)


@pytest.mark.parametrize("missing", [(1, 0), (1, 1), (1, 2)])
def test_bounds_hold_for_all_results_of_missing_points(missing: tuple[int, int]) -> None:
    """A missing ratio is the smallest or largest measured one, or for the bounds any ratio."""
    ratios = np.array([0.8, 1.1, 1.3, 1.7])
    known = evidence(np.full((2, 4), 0.01), missing={"fc": missing, "rnn": (5, 5)})

    found = contrast(ratios, known, family="fc")
    bounds = found.bounds()

    count = sum(missing)
    extremes = [*itertools.product([1e-9, 1e9], repeat=count)]
    filled = [np.append(ratios, values) for values in extremes]
    furthest = [*itertools.product([1 / 1.7, 1.7], repeat=count)]
    means = [stats.gmean(np.append(ratios, values)) for values in furthest]
    shares = [(values > 1).mean() for values in filled]
    assert (found.missing_by_side, found.missing) == (missing, count)
    assert (bounds["share_least"], bounds["share_most"]) == (min(shares), max(shares))
    assert (bounds["mean_least"], bounds["mean_most"]) == pytest.approx((min(means), max(means)))
    medians = [np.quantile(values, 0.5, method="lower") for values in filled]
    assert bounds["median_least"] == min(medians)
    medians = [np.quantile(values, 0.5, method="higher") for values in filled]
    assert bounds["median_most"] == max(medians)


def test_points_of_all_families_are_missing_together() -> None:
    known = evidence(np.full((2, 2), 0.01), missing={"fc": (1, 2), "rnn": (3, 4)})

    assert contrast(np.ones(2), known).missing_by_side == (4, 6)
    assert contrast(np.ones(2), known, family="conv").missing_by_side == (0, 0)


def test_the_widest_interaction_shifts_all_families() -> None:
    known = evidence(
        np.full((2, 3), 0.01),
        interaction={
            "fc": Effect("sessions and sides", 0.002, 5.0),
            "rnn": Effect("sessions and sides", 0.5, 5.0),
        },
    )

    found = contrast(np.ones(3), known).effects

    assert [effect.name for effect in found] == ["processes", "sessions and sides"]
    assert found[1].variance == 0.002


def test_several_families_have_their_largest_interaction_and_bias() -> None:
    known = evidence(
        np.full((2, 3), 0.01),
        interaction={
            "conv": Effect("sessions and sides", 0.001, 5.0),
            "fc": Effect("sessions and sides", 0.002, 5.0),
            "rnn": Effect("sessions and sides", 0.5, 5.0),
        },
        selection={"conv": 0.02, "fc": 0.05, "rnn": 0.3},
    )
    pairs = contrast(np.ones(3), None).pairs.assign(family=["conv", "fc", "conv"])

    found = Contrast(pairs, known)

    assert [effect.variance for effect in found.shared] == [0.002]
    assert found.bias == 0.05


def test_a_row_has_the_quartiles_of_the_ratios() -> None:
    ratios = np.random.default_rng(5).lognormal(0, 0.3, 9)

    row = contrast(ratios, evidence(np.full((2, 9), 0.01))).row()

    expected = np.quantile(ratios, [0, 0.25, 0.5, 0.75, 1])
    names = ("minimum", "q25", "median", "q75", "maximum")
    assert [row[name] for name in names] == pytest.approx(expected)
    assert row["wins"] == (ratios > 1).sum()
    assert row["points"] == 9


def test_a_contrast_of_a_family_has_its_pairs_and_the_common_evidence() -> None:
    pairs = contrast(np.array([1.1, 1.2, 1.3]), None).pairs.assign(family=["fc", "rnn", "fc"])
    pairs.attrs["evidence"] = evidence(np.full((2, 3), 0.01))

    family = Contrast.of(pairs, "fc")
    all_families = Contrast.of(pairs, "all")

    assert family.ratios.tolist() == [1.1, 1.3]
    assert all_families.ratios.tolist() == [1.1, 1.2, 1.3]
    assert family.evidence is all_families.evidence is pairs.attrs["evidence"]
    assert Contrast.of(contrast(np.ones(2), None).pairs, "fc").evidence is None


def test_a_quantile_is_the_median_by_default() -> None:
    ratios = np.array([0.8, 1.1, 1.3, 1.7])

    quantile = contrast(ratios, evidence(np.full((2, 4), 0.01))).quantile()

    assert quantile.value == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("scatter", "variance"),
    [
        pytest.param(0.2, 1e-4, id="points scatter more than processes"),
        pytest.param(1e-3, 0.5, id="processes scatter more than points"),
    ],
)
def test_other_models_have_the_wider_of_two_intervals_of_the_mean(
    scatter: float, variance: float
) -> None:
    """Each point is another model, so SciPy's interval of the mean logarithm is that of points."""
    logs = np.random.default_rng(6).normal(0.1, scatter, 9)
    found = contrast(np.exp(logs), evidence(np.full((2, 9), variance)))

    population = found.population_mean()

    half_of_points = stats.t.ppf(0.975, 8) * stats.sem(logs)
    half_of_processes = stats.t.ppf(0.975, found.effects[0].freedom) * math.sqrt(2 * variance / 9)
    half = max(half_of_points, half_of_processes)
    assert population.value == pytest.approx(math.exp(logs.mean()))
    assert math.log(population.high / population.value) == pytest.approx(half)
    assert math.log(population.value / population.low) == pytest.approx(half)


def test_effects_on_all_points_widen_the_mean_of_other_models() -> None:
    """Independent half widths add up as squares (Zou and Donner 2008)."""
    logs = np.random.default_rng(6).normal(0.1, 0.2, 9)
    shift = Effect("sessions and sides", 0.03, 4.0)

    population = contrast(
        np.exp(logs), evidence(np.full((2, 9), 1e-4), interaction={"fc": shift})
    ).population_mean()

    half_of_points = stats.t.ppf(0.975, 8) * stats.sem(logs)
    half_of_shift = stats.t.ppf(0.975, 4) * math.sqrt(0.03)
    half = math.hypot(half_of_points, half_of_shift)
    assert math.log(population.high / population.value) == pytest.approx(half)


@pytest.mark.parametrize(
    ("points", "is_known"),
    [pytest.param(5, False, id="too few"), pytest.param(6, True, id="fewest")],
)
def test_few_points_say_nothing_about_other_models(points: int, is_known: bool) -> None:
    ratios = np.exp(np.linspace(-0.1, 0.2, points))

    found = contrast(ratios, evidence(np.full((2, points), 0.01))).population_mean()
    without_evidence = contrast(ratios, None).population_mean()

    assert found.value == pytest.approx(stats.gmean(ratios))
    assert math.isfinite(found.low) == math.isfinite(found.high) == is_known
    assert math.isnan(without_evidence.low)


@pytest.mark.parametrize(
    ("families", "leveled", "name", "component"),
    [
        pytest.param({"fc"}, {}, "sessions", None, id="measured speeds"),
        pytest.param(
            {"fc"},
            {"fc": Component(0.002, 7.0), "rnn": Component(0.5, 3.0)},
            "reference speed",
            (0.002, 7.0),
            id="one speed of the machine",
        ),
        pytest.param(
            {"fc", "rnn"},
            {"fc": Component(0.002, 7.0), "rnn": Component(0.5, 3.0)},
            "reference speed",
            (0.5, 3.0),
            id="the widest of two families",
        ),
        pytest.param(
            {"fc", "rnn"}, {"rnn": Component(0.5, 3.0)}, "sessions", None, id="one of two families"
        ),
        pytest.param({"fc"}, {"rnn": Component(0.5, 3.0)}, "sessions", None, id="another family"),
    ],
)
def test_speeds_at_one_speed_of_the_machine_have_no_effect_of_sessions(
    families: set[str],
    leveled: dict[str, Component],
    name: str,
    component: tuple[float, float] | None,
) -> None:
    """The sides were measured in two sessions."""
    second = runs_of(1, 3).assign(sweep_id="later")
    schedule = Schedule.of(runs_of(0, 3), second, np.tile(np.arange(3), 2))
    known = evidence(np.full((2, 3), 0.01), schedule=schedule, leveled=leveled)

    [effect] = known.shared_effects(families, np.arange(3))

    assert effect.name == name
    assert component in (None, tuple(effect.component))


#: Rows of a page: geometric mean, standard error in logarithms, degrees of freedom, bias, verdict
#: of the page and of only the row, at a margin of 5%.
PAGE = [
    pytest.param(1.20, 0.020, 20.0, 0.0, "faster", "faster", id="faster"),
    pytest.param(0.80, 0.020, 20.0, 0.0, "slower", "slower", id="slower"),
    pytest.param(1.001, 0.005, 50.0, 0.0, "equal", "equal", id="equal"),
    pytest.param(1.10, 0.042, 20.0, 0.0, "undecided", "faster", id="faster alone, not on the page"),
    pytest.param(1.00, 0.026, 20.0, 0.0, "undecided", "equal", id="equal alone, not on the page"),
    pytest.param(1.10, 0.020, 20.0, 0.2, "undecided", "undecided", id="within the bias"),
    pytest.param(1.001, 0.005, 50.0, 0.05, "undecided", "undecided", id="bias beyond the margin"),
]


def page() -> pd.DataFrame:
    names = ("geometric_mean", "error", "freedom", "bias")
    return pd.DataFrame([case.values[:4] for case in PAGE], columns=list(names))


def holm(p_values: np.ndarray) -> np.ndarray:
    return np.asarray(multipletests(p_values, method="holm")[1])


def test_a_page_is_judged_by_two_tests_with_holms_correction() -> None:
    """The p values are from SciPy, and Holm's correction is from statsmodels."""
    rows = page()
    logs = np.log(rows["geometric_mean"])
    students = stats.t(rows["freedom"], scale=rows["error"])
    distance = np.maximum(np.abs(logs) - rows["bias"], 0)
    different = 2 * students.sf(distance)
    equal = students.sf(math.log(1.05) - np.abs(logs) - rows["bias"])

    found = judge(rows)

    for column, p_different, p_equal in (
        ("by_itself", different, equal),
        ("verdict", holm(different), holm(equal)),
    ):
        expected = np.where(logs > 0, "faster", "slower").astype(object)
        expected[p_different > 0.05] = "undecided"
        expected[p_equal <= 0.05] = "equal"
        assert found[column].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("position", "verdict", "by_itself"),
    [
        pytest.param(position, *case.values[4:], id=str(case.id))
        for position, case in enumerate(PAGE)
    ],
)
def test_a_row_of_a_page_has_its_verdict(position: int, verdict: str, by_itself: str) -> None:
    found = judge(page()).iloc[position]

    assert (found["verdict"], found["by_itself"]) == (verdict, by_itself)
