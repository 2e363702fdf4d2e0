"""Pairs of points of two sides: joined columns, medians of replicates, and intervals."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.pairing import RESULT_COLUMNS, pair
from paradnn.core.errors import ConfigError
from paradnn.statistics.variances import moderate_variances, rarer_level
from tests.conftest import depth


def side(rates: Any, device: str = "A", **columns: Any) -> pd.DataFrame:
    """Return one run per entry of `rates`, an array of shape (points, replicates).

    Points differ in layers and batch size. All sides belong to one sweep, and the n-th runs of all
    sides begin at the same time.
    """
    rates = np.atleast_2d(np.asarray(rates, float))
    points, replicates = rates.shape
    point_number = np.repeat(np.arange(points), replicates)
    run_ids = [f"{device}{i}" for i in range(rates.size)]
    batch = 64 * (1 + point_number // 3)
    point = {
        "model.layers": 2 ** (2 + point_number % 3),
        "batch_size": batch,
        "precision": "float32",
        "family": "fc",
    }
    measured = {
        "examples_per_second": rates.ravel(),
        "step_time_ms": 1e3 * batch / rates.ravel(),
        "outcome": "ok",
    }
    replicate = np.tile(np.arange(replicates), points)
    start = pd.to_datetime(np.arange(rates.size), unit="m", utc=True)
    schedule = {"sweep_id": "sweep", "start_time": start, "replicate": replicate, "device": device}
    return pd.DataFrame({"run_id": run_ids, **point, **measured, **schedule, **columns})


def test_the_speedup_is_the_ratio_of_the_medians_of_replicates() -> None:
    rng = np.random.default_rng(1)
    rates_a = 300 * rng.lognormal(0, 0.05, (5, 4))
    rates_b = 200 * rng.lognormal(0, 0.02, (5, 3))

    pairs = pair(side(rates_a, "A"), side(rates_b, "B"))

    assert list(pairs)[-len(RESULT_COLUMNS) :] == list(RESULT_COLUMNS)

    # Sort by layers, and by batch size for equal layers.
    order = np.lexsort((np.arange(5) // 3, np.arange(5) % 3))
    sorted_pairs = pairs.sort_values(["model.layers", "batch_size"])

    np.testing.assert_allclose(
        sorted_pairs["speedup"], (np.median(rates_a, 1) / np.median(rates_b, 1))[order]
    )
    np.testing.assert_allclose(
        sorted_pairs["a_spread"], (rates_a.std(1, ddof=1) / rates_a.mean(1))[order]
    )
    assert set(pairs["interval_source"]) == {"replicates"}
    assert (pairs["a_count"].tolist(), pairs["b_count"].tolist()) == ([4] * 5, [3] * 5)


def test_a_few_points_share_one_variance_with_the_prior_of_processes() -> None:
    """The prior has 4 degrees of freedom at 5%; the data of the sides have 15 and 10."""
    rng = np.random.default_rng(1)
    logs = [rng.normal(0, 0.05, (5, 4)), rng.normal(0, 0.04, (5, 3))]

    pairs = pair(side(300 * np.exp(logs[0]), "A"), side(200 * np.exp(logs[1]), "B"))

    variances = []
    freedoms = []
    for values in logs:
        freedom = 5 * (values.shape[1] - 1)
        squares = values.var(axis=1, ddof=1).sum() * (values.shape[1] - 1)
        variances.append((4 * 0.05**2 + squares) / (4 + freedom) / values.shape[1])
        freedoms.append(4 + freedom)
    half_widths = stats.t.ppf(0.975, freedoms) * np.sqrt(variances)
    found = np.log(pairs["speedup_high"] / pairs["speedup_low"]) / 2

    # The interval is around the mean, and is widened to include the ratio of the medians.
    assert found.to_numpy() == pytest.approx(np.full(5, np.hypot(*half_widths)), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("slope", 8e3, id="slope too large"),
        pytest.param("slope", -1.0, id="negative slope"),
        pytest.param("speed", 1e-300, id="speed too small"),
        pytest.param("own", 1e3, id="own effect too large"),
    ],
)
def test_runs_with_an_impossible_reference_are_compared_without_correction(
    name: str, value: float
) -> None:
    valid = {"slope": 0.5, "speed": 0.9, "own": 0.0, "slope_seen": 0.5, "slope_error": 0.1}
    for tested_value, speedup in ((valid[name], 1.0), (value, 1.5)):
        reference = valid | {name: tested_value}
        columns = {f"reference_{key}": number for key, number in reference.items()}
        columns |= {"environment_id": "e", "examples_per_second_at_reference": 1.0}
        sides = [
            side([[rate], [2 * rate]], device, **columns)
            for rate, device in ((3.0, "A"), (2.0, "B"))
        ]
        assert pair(*sides)["speedup"].tolist() == pytest.approx([speedup] * 2)


def test_variances_of_many_points_are_shrunk_towards_each_other() -> None:
    """Moderated variances are closer to the true variances than the 2,000 sample variances are.

    The true variances follow s0^2 d0 / chi^2(d0) with d0 = 6. Each sample variance has two degrees
    of freedom. A t test with the reported degrees of freedom gives p < 5% at 5% of the points.
    """
    random = np.random.default_rng(0)
    truth = 4.0 * 6 / random.chisquare(6, 2000)
    values = random.normal(0, np.sqrt(truth)[:, None], (2000, 3))
    found = moderate_variances(values.var(axis=1, ddof=1), np.full(2000, 2.0))

    assert (
        np.log(found.variance / truth).std()
        < 0.7 * np.log(values.var(axis=1, ddof=1) / truth).std()
    )
    assert found.freedom[0] == pytest.approx(8, abs=2)

    p_values = 2 * stats.t.sf(
        np.abs(values.mean(axis=1)) / np.sqrt(found.variance / 3), found.freedom
    )
    assert 0.04 <= (p_values <= 0.05).mean() <= 0.06

    few = np.array([1.0, 2.0, 3.0])
    assert moderate_variances(few, few).variance is few


def test_the_frequency_of_a_rarer_level_is_estimated() -> None:
    random = np.random.default_rng(0)
    normal = random.normal(0, random.lognormal(0, 1, (500, 1)), (500, 4))
    levels = random.normal(0, 0.01, (500, 3)) + (random.random((500, 3)) < 0.2)

    assert rarer_level(list(normal))[0] < 0.05
    assert rarer_level(list(levels)) == pytest.approx((0.23, 1.03), abs=0.06)
    assert rarer_level(list(levels[:5])) == (0, 0)

    pairs = pair(side(np.exp(levels[:250])), side(np.exp(levels[250:]), "B"))
    assert pairs["p_value"].min() > 0.005, (
        "by chance, all three replicates of a point may be at the rarer level on one side only"
    )


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param([1.0] * 27, id="equal scatter"),
        pytest.param([10.0, 3, 1] * 9, id="scatter by group"),
        pytest.param([10.0, 10, 10] + [1.0] * 24, id="three noisy points"),
    ],
)
def test_points_with_unequal_scatter_have_the_nominal_false_discovery_rate(
    noise: list[float],
) -> None:
    """In about 5% of 400 draws, at most, some of 27 equal points is called different.

    Each point has three replicates per side.
    """
    random = np.random.default_rng(1)
    found = 0
    for values in random.normal(0, np.array(noise)[:, None], (400, 2, 27, 3)):
        moderated = [
            moderate_variances(
                side_values.var(axis=1, ddof=1) / 3, np.full(27, 2.0), [np.arange(27) % 3]
            )
            for side_values in values
        ]
        variance = moderated[0].variance + moderated[1].variance
        freedom = variance**2 / sum(entry.variance**2 / entry.freedom for entry in moderated)
        t = np.abs(np.diff(values.mean(axis=2), axis=0)[0]) / np.sqrt(variance)
        found += stats.false_discovery_control(2 * stats.t.sf(t, freedom)).min() <= 0.05

    assert found <= stats.binom.isf(0.01, 400, 0.05)


@depth(300, 2000)
def test_intervals_have_their_nominal_coverage(draws: int) -> None:
    """The true ratio is 1.3. The sides have 3 and 5 replicates with unequal scatter."""
    rng = np.random.default_rng(2)
    a = side(130 * rng.lognormal(0, 0.10, (draws, 3)), "A")
    b = side(100 * rng.lognormal(0, 0.03, (draws, 5)), "B")
    pairs = pair(a, b)
    covered = pairs["speedup_low"].le(1.3) & pairs["speedup_high"].ge(1.3)

    assert abs(covered.mean() - 0.96) <= 1.1 / np.sqrt(draws) * 0.5
    assert pairs["speedup"].between(pairs["speedup_low"], pairs["speedup_high"]).all()


@pytest.mark.parametrize("metric", ["examples_per_second", "step_time_ms", "flops_per_second"])
def test_intervals_of_single_processes_combine_the_prior_and_their_blocks(metric: str) -> None:
    """Each side has one run, whose blocks scatter by 5% or 2% within its process."""
    rng = np.random.default_rng(3)
    sides = []
    for device, true_rate, spread in (("A", 80.0, 0.05), ("B", 100.0, 0.02)):
        rates = true_rate * rng.lognormal(0, np.hypot(spread, 0.05), (3000, 1))
        end_factor = np.exp(1.96 * spread)
        frame = side(rates, device, flops_per_second=7 * rates.ravel())
        time = frame["step_time_ms"]
        sides.append(
            frame.assign(step_time_low_ms=time / end_factor, step_time_high_ms=time * end_factor)
        )

    pairs = pair(*sides, metric=metric)

    covered = pairs["speedup_low"].le(0.8) & pairs["speedup_high"].ge(0.8)

    assert set(pairs["interval_source"]) == {"prior"}
    assert covered.mean() >= 0.95

    half_widths = stats.t.ppf(0.975, 4) * np.hypot([0.05, 0.02], 0.05)
    found = np.log(pairs["speedup_high"] / pairs["speedup"])

    assert found.to_numpy() == pytest.approx(np.full(3000, np.hypot(*half_widths)), rel=1e-6)


RATE = "optimizer.learning_rate"
THREADS = "platform.threads"


def one_side(*parts: pd.DataFrame) -> pd.DataFrame:
    """Return the parts as runs of device A with unique ids."""
    return pd.concat(parts, ignore_index=True).assign(
        device="A", run_id=lambda runs: [f"A{row}" for row in runs.index]
    )


#: Per case: two sides, the ratios of their pairs, and the reported counts of the other runs.
JOINED: dict[str, tuple[pd.DataFrame, pd.DataFrame, list[float], dict[str, Any]]] = {
    "failed, unmeasured and one-sided points are not paired": (
        side([[1.0], [2], [3], [4]], outcome=["oom_device", "ok", "ok", "ok"]),
        side([[2.0], [2], [2], [2]], "B", examples_per_second=[2.0, np.nan, 2.0, 0.0]),
        [1.5],
        {"unpaired_a": 2, "unpaired_b": 1, "unusable_a": 0, "unusable_b": 2},
    ),
    "settings that differ between the sides do not separate points": (
        side(
            [[3.0], [4]], precision="bfloat16", seed=1, **{"measure.min_seconds": 1.0, THREADS: 2}
        ),
        side(
            [[2.0], [2]],
            "B",
            precision="float16",
            seed=2,
            **{"measure.min_seconds": 0.5, THREADS: None},
        ),
        [1.5, 2.0],
        {"unpaired_a": 0, "unpaired_b": 0},
    ),
    "column types and missing values do not separate points": (
        side([[3.0], [4]], **{"optimizer.momentum": [None, 0.9], "model.blocks": "[1, 1]"}),
        side(
            [[2.0], [2]], "B", **{"optimizer.momentum": [np.nan, 0.9], "model.blocks": "[1, 1]"}
        ).astype({"batch_size": "float64"}),
        [1.5, 2.0],
        {"unpaired_a": 0, "unpaired_b": 0},
    ),
    "a family that only one side ran": (
        one_side(
            side([[3.0], [4]]),
            side(
                [[5.0], [6]],
                family="lstm",
                batch_size=64,
                **{"model.layers": None, "model.embedding_size": [50, 200]},
            ),
        ),
        side([[2.0], [2]], "B"),
        [1.5, 2.0],
        {"unpaired_a": 2, "unpaired_b": 0, "alone_a": ("lstm",), "alone_b": ()},
    ),
    "a thread count that only one side varied": (
        one_side(
            side([[3.0], [4.0]], **{THREADS: None}), side([[1.0], [1.0], [1.0]], **{THREADS: 1.0})
        ),
        side([[2.0], [2.0], [2.0]], "B", **{THREADS: None}),
        [1.5, 2.0],
        {"unpaired_a": 3, "unpaired_b": 1, "mixed": {}},
    ),
    "a learning rate that one side swept at one point": (
        one_side(side([[3.0], [4.0], [5.0]], **{RATE: 0.1}), side([[3.0]], **{RATE: 0.2})),
        side([[2.0], [2.0], [2.0]], "B", **{RATE: None}),
        [2.0, 2.5],
        {"unpaired_a": 1, "unpaired_b": 1, "mixed": {RATE: 1}},
    ),
}


@pytest.mark.parametrize(("a", "b", "ratios", "reported"), JOINED.values(), ids=JOINED)
def test_points_are_paired_by_common_columns(
    a: pd.DataFrame, b: pd.DataFrame, ratios: list[float], reported: dict[str, Any]
) -> None:
    for pairs, names, power in ((pair(a, b), "ab", 1), (pair(b, a), "ba", -1)):
        assert pairs["speedup"].tolist() == pytest.approx([ratio**power for ratio in ratios])
        found = {**pairs.attrs, **{f"alone_{name}": pairs.attrs["alone"][name] for name in "ab"}}
        swapped = dict(zip("ab", names, strict=True))
        assert reported == {
            name: found[name[:-1] + swapped[name[-1]] if name[-2:] in ("_a", "_b") else name]
            for name in reported
        }
        assert not {"model.embedding_size"} & {*pairs.attrs["differ"]}
    assert len(pair(a, b.assign(outcome="crash"))) == 0


@pytest.mark.parametrize(
    ("column", "values"),
    [
        pytest.param("precision", ("float32", "bfloat16"), id="precision"),
        pytest.param("platform.threads", (1, 2), id="threads"),
    ],
)
def test_a_setting_with_equal_values_on_both_sides_separates_points(
    column: str, values: tuple[object, object]
) -> None:
    sides = []
    for device, rates in (("A", (1.0, 6.0)), ("B", (2.0, 2.0))):
        parts = [
            side([[rate], [rate]], f"{device}{n}", **{column: values[n]})
            for n, rate in enumerate(rates)
        ]
        sides.append(pd.concat(parts).assign(device=device))
    pairs = pair(*sides)

    assert dict(zip(pairs[column], pairs["speedup"], strict=True)) == {
        values[0]: 0.5,
        values[1]: 3.0,
    }


def test_runs_that_are_not_replicates_are_rejected() -> None:
    swept = side([[3.0, 4.0]], **{"optimizer.learning_rate": [0.1, 0.2]})
    published = side([[2.0]], "B", **{"optimizer.learning_rate": None})

    with pytest.raises(
        ConfigError,
        match=r"optimizer.learning_rate of A=0.1, 0.2: the runs of a point in A have",
    ):
        pair(swept, published)


def test_join_columns_can_be_chosen() -> None:
    a = side([[3.0]], precision="float16")
    b = side([[2.0]], "B")

    assert pair(a, b, on=["batch_size", "model.layers"])["speedup"].tolist() == [1.5]


def test_disjoint_join_columns_are_reported() -> None:
    a = side([[3.0]], precision="float16")
    b = side([[2.0]], "B")

    pairs = pair(a, b, on=["batch_size", "precision"])

    assert len(pairs) == 0
    assert pairs.attrs["disjoint"] == {"precision": ("float16", "float32")}


def test_identical_replicates_have_an_interval_from_the_prior() -> None:
    """Per side, the prior has 4 degrees of freedom at 5%, and the data have one at 0%."""
    pairs = pair(side([[3.0, 3.0]]), side([[2.0, 2.0]], "B"))

    error = np.sqrt(4 * 0.05**2 / 5 / 2)
    half_width = np.sqrt(2) * stats.t.ppf(0.975, 5) * error

    assert pairs[["speedup_low", "speedup_high"]].iloc[0].tolist() == pytest.approx(
        [1.5 * np.exp(-half_width), 1.5 * np.exp(half_width)]
    )
