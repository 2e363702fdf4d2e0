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
    """Return one run per point of side 0 or 1; the sides alternate in one randomized sweep."""
    hours = (2 * np.arange(points) + side) / 60
    start = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(3600 * hours, unit="s")
    return pd.DataFrame({"start_time": start, "sweep_id": "s", "sweep_order": "random"})


def evidence(variance: np.ndarray, **changes: object) -> Evidence:
    """Return evidence about points whose sides share a session.

    `variance` has shape (2, points). `changes` override fields of the evidence.
    """
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


def contrast(ratios: np.ndarray, known: Evidence | None, family: str = "all") -> Contrast:
    pairs = pd.DataFrame(
        {
            "family": "fc",
            "speedup": ratios,
            "point": np.arange(len(ratios)),
            "model.nodes": 2.0 ** np.arange(len(ratios)),
            "batch_size": 64,
        }
    )
    return Contrast(pairs, known, family)


def test_processes_add_the_variance_of_the_mean_of_the_rows() -> None:
    """The second point has two of four rows, so its weight in the mean is a half."""
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


def test_a_mean_has_students_interval_for_the_scatter_of_processes() -> None:
    ratios = np.exp(np.random.default_rng(1).normal(0.1, 0.2, POINTS))

    found = contrast(ratios, evidence(np.full((2, POINTS), 0.01)))

    error = math.sqrt(2 * 0.01 / POINTS)
    freedom = found.effects[0].freedom
    half_width = stats.t.ppf(0.975, freedom) * error
    middle = stats.gmean(ratios)
    mean = found.mean()

    assert [effect.name for effect in found.effects] == ["processes"]
    assert mean == pytest.approx(
        (middle, middle * math.exp(-half_width), middle * math.exp(half_width))
    )
    assert found.error.freedom == pytest.approx(freedom)


def test_a_bias_widens_the_interval_of_the_mean_on_both_sides() -> None:
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


def test_a_point_with_ratio_1_is_not_a_win() -> None:
    found = contrast(np.array([0.9, 1.0, 1.0, 1.2]), evidence(np.full((2, 4), 1e-6)))

    assert found.share().value == 0.25
    assert found.row()["wins"] == 1


def test_the_interval_of_a_share_follows_from_the_scatter_of_its_points() -> None:
    """Compare with simulated wins; each point exceeds the bound with a normal probability."""
    random = np.random.default_rng(2)
    logs = random.normal(0.02, 0.1, POINTS)

    share = contrast(np.exp(logs), evidence(np.full((2, POINTS), 0.002))).share(1.05)

    distance = logs - math.log(1.05)
    wins = random.random((40_000, POINTS)) < stats.norm.cdf(distance / math.sqrt(0.004))
    half_width = 1.96 * wins.mean(axis=1).std()

    assert share.value == (distance > 0).mean()
    assert share.high - share.value == pytest.approx(half_width, rel=0.02)
    assert share.value - share.low == pytest.approx(half_width, rel=0.02)


@pytest.mark.parametrize(
    ("ratio", "end"),
    [
        pytest.param(1.001, "high", id="all points win"),
        pytest.param(0.999, "low", id="no point wins"),
    ],
)
def test_the_interval_of_a_share_stays_between_0_and_1(ratio: float, end: str) -> None:
    share = contrast(np.full(4, ratio), evidence(np.full((2, 4), 0.1))).share()

    assert getattr(share, end) == share.value
    assert 0 <= share.low < share.high <= 1


def test_a_common_shift_widens_a_share_to_the_shares_of_shifted_points() -> None:
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
    half_width = stats.t.ppf(0.975, found.effects[0].freedom) * error

    assert quantile.value == pytest.approx(np.quantile(np.exp(logs), share))
    assert math.log(quantile.high / quantile.value) == pytest.approx(half_width, rel=0.15)
    assert quantile.high / quantile.value == pytest.approx(quantile.value / quantile.low)


@pytest.mark.parametrize("missing", [(1, 0), (1, 1), (1, 2)])
def test_bounds_include_all_possible_results_of_missing_points(missing: tuple[int, int]) -> None:
    """Compare with all extreme ratios of the missing points.

    For the mean, a missing ratio is at most as extreme as the most extreme measured one. For the
    share and the median, it may be any number.
    """
    ratios = np.array([0.8, 1.1, 1.3, 1.7])
    known = evidence(np.full((2, 4), 0.01), missing={"fc": missing, "rnn": (5, 5)})

    found = contrast(ratios, known, family="fc")
    bounds = found.bounds()

    count = sum(missing)
    extremes = [*itertools.product([1e-9, 1e9], repeat=count)]
    with_extremes = [np.append(ratios, values) for values in extremes]
    measured_extremes = [*itertools.product([1 / 1.7, 1.7], repeat=count)]
    means = [stats.gmean(np.append(ratios, values)) for values in measured_extremes]
    shares = [(values > 1).mean() for values in with_extremes]

    assert (found.missing_by_side, found.missing) == (missing, count)
    assert (bounds["share_least"], bounds["share_most"]) == (min(shares), max(shares))
    assert (bounds["mean_least"], bounds["mean_most"]) == pytest.approx((min(means), max(means)))

    medians = [np.quantile(values, 0.5, method="lower") for values in with_extremes]
    assert bounds["median_least"] == min(medians)

    medians = [np.quantile(values, 0.5, method="higher") for values in with_extremes]
    assert bounds["median_most"] == max(medians)


def test_missing_points_of_all_families_are_added_up() -> None:
    known = evidence(np.full((2, 2), 0.01), missing={"fc": (1, 2), "rnn": (3, 4)})

    assert contrast(np.ones(2), known).missing_by_side == (4, 6)
    assert contrast(np.ones(2), known, family="conv").missing_by_side == (0, 0)


def test_families_without_pairs_add_no_interaction() -> None:
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


def test_several_families_get_the_largest_interaction_and_bias_among_them() -> None:
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


def test_a_contrast_of_a_family_has_only_its_pairs_but_all_evidence() -> None:
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
def test_the_population_mean_has_the_wider_of_two_intervals(
    scatter: float, variance: float
) -> None:
    """Each point is a different model, so SciPy gives the interval over models."""
    logs = np.random.default_rng(6).normal(0.1, scatter, 9)
    found = contrast(np.exp(logs), evidence(np.full((2, 9), variance)))

    population = found.population_mean()

    half_width_of_points = stats.t.ppf(0.975, 8) * stats.sem(logs)
    half_width_of_processes = stats.t.ppf(0.975, found.effects[0].freedom) * math.sqrt(
        2 * variance / 9
    )
    half_width = max(half_width_of_points, half_width_of_processes)

    assert population.value == pytest.approx(math.exp(logs.mean()))
    assert math.log(population.high / population.value) == pytest.approx(half_width)
    assert math.log(population.value / population.low) == pytest.approx(half_width)


def test_effects_on_all_points_widen_the_population_mean() -> None:
    """Half-widths of independent errors add in quadrature (Zou and Donner 2008)."""
    logs = np.random.default_rng(6).normal(0.1, 0.2, 9)
    shift = Effect("sessions and sides", 0.03, 4.0)

    population = contrast(
        np.exp(logs), evidence(np.full((2, 9), 1e-4), interaction={"fc": shift})
    ).population_mean()

    half_width_of_points = stats.t.ppf(0.975, 8) * stats.sem(logs)
    half_width_of_shift = stats.t.ppf(0.975, 4) * math.sqrt(0.03)
    half_width = math.hypot(half_width_of_points, half_width_of_shift)

    assert math.log(population.high / population.value) == pytest.approx(half_width)


@pytest.mark.parametrize(
    ("points", "is_known"),
    [pytest.param(5, False, id="too few models"), pytest.param(6, True, id="just enough models")],
)
def test_few_points_give_no_interval_of_the_population_mean(points: int, is_known: bool) -> None:
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
            id="speeds corrected to one machine speed",
        ),
        pytest.param(
            {"fc", "rnn"},
            {"fc": Component(0.002, 7.0), "rnn": Component(0.5, 3.0)},
            "reference speed",
            (0.5, 3.0),
            id="the wider of two families",
        ),
        pytest.param(
            {"fc", "rnn"},
            {"rnn": Component(0.5, 3.0)},
            "sessions",
            None,
            id="one of two families corrected",
        ),
        pytest.param(
            {"fc"},
            {"rnn": Component(0.5, 3.0)},
            "sessions",
            None,
            id="only another family corrected",
        ),
    ],
)
def test_speeds_corrected_to_one_machine_speed_replace_the_effect_of_sessions(
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


#: Rows of a page: geometric mean, standard error of its logarithm, degrees of freedom, bias, and
#: two verdicts at a margin of 5%. The first verdict is corrected for all rows; the second is not.
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


def test_rows_of_a_page_are_judged_by_two_tests_with_holms_correction() -> None:
    """SciPy gives the expected p values, and statsmodels gives Holm's correction."""
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
def test_a_row_of_a_page_has_a_corrected_and_an_uncorrected_verdict(
    position: int, verdict: str, by_itself: str
) -> None:
    found = judge(page()).iloc[position]

    assert (found["verdict"], found["by_itself"]) == (verdict, by_itself)
