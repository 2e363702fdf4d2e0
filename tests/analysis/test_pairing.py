import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.statistics.pairing import RESULT_COLUMNS, moderated, pair
from benchmarks.published.archive import read_archive
from paradnn.core.errors import ConfigError
from tests.analysis.published import frame_of
from tests.analysis.test_archive import write
from tests.conftest import ROOT

SHAPE = ["model.layers", "model.nodes", "model.input_size", "model.output_size", "batch_size"]


def side(rates: Any, device: str = "A", **columns: Any) -> pd.DataFrame:
    """A run for each entry of `rates` (points x replicates); points differ in layers and batch size.

    Sides are measured in one sweep, in turn: the n-th run of each begins at the same time.
    """
    rates = np.atleast_2d(np.asarray(rates, float))
    points, replicates = rates.shape
    number = np.repeat(np.arange(points), replicates)
    frame = {
        "run_id": [f"{device}{i}" for i in range(rates.size)],
        "family": "fc",
        "device": device,
        "outcome": "ok",
        "model.layers": 2 ** (2 + number % 3),
        "batch_size": 64 * (1 + number // 3),
        "precision": "float32",
        "replicate": np.tile(np.arange(replicates), points),
        "examples_per_second": rates.ravel(),
        "sweep_id": "sweep",
        "start_time": pd.to_datetime(np.arange(rates.size), unit="m", utc=True),
        "step_time_ms": 1e3 * 64 * (1 + number // 3) / rates.ravel(),
    }
    return pd.DataFrame(frame | columns)


def published_folder(tmp_path: Path) -> Path:
    """The published files: where PARADNN_ARCHIVE says, beside this checkout, or small ones of the same layout."""
    beside = ROOT.parent / "shared" / "reference" / "paradnn"
    if "PARADNN_ARCHIVE" in os.environ:
        return Path(os.environ["PARADNN_ARCHIVE"])
    return beside if beside.is_dir() else write(tmp_path)


def published(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The frames of TPU v2 and V100 as the importer reads them."""
    frame = frame_of(read_archive(folder))
    return frame[frame["device"] == "TPU v2"], frame[frame["device"] == "V100"]


def plain_pairs(folder: Path) -> pd.DataFrame:
    """TPU over V100 of the published files by plain pandas, with the five sizes read from the labels."""
    tables = []
    for name in ("tpu_fc", "gpu_fc"):
        content = json.loads((folder / f"{name}.json").read_text())
        tables.append(pd.Series(content["example_per_sec"], index=content["labels"]))
    pairs = pd.concat(tables, axis=1, join="inner", keys=["tpu", "gpu"])
    pairs[SHAPE] = [[int(number) for number in re.findall(r"\d+", label)] for label in pairs.index]
    return pairs.assign(speedup=pairs["tpu"] / pairs["gpu"])


def test_published_pairs_are_those_of_the_files(tmp_path: Path) -> None:
    folder = published_folder(tmp_path)
    tpu, gpu = published(folder)
    pairs, plain = pair(tpu, gpu), plain_pairs(folder)
    merged = pairs.merge(plain, on=SHAPE, suffixes=("", "_plain"), validate="one_to_one")
    assert len(pairs) == len(plain) == len(merged)
    np.testing.assert_allclose(merged["speedup"], merged["speedup_plain"], rtol=1e-12)
    assert set(pairs["interval_source"]) == {"none"}
    assert pairs.attrs["differ"]["precision"] == ("bfloat16", "float16")
    assert pairs.attrs["unpaired_a"] == (tpu["outcome"] == "ok").sum() - len(plain)
    if len(plain) > 2:  # the real files
        assert len(pairs) == 176
        assert (pairs["speedup"] > 1).sum() == 136  # 77.3%
        assert (pairs.attrs["unpaired_a"], pairs.attrs["unpaired_b"]) == (1548, 0)


def test_replicates_are_brought_to_medians_with_welchs_interval() -> None:
    rng = np.random.default_rng(1)
    ours, side_b = 300 * rng.lognormal(0, 0.05, (5, 4)), 200 * rng.lognormal(0, 0.02, (5, 3))
    pairs = pair(side(ours, "A"), side(side_b, "B"))
    assert list(pairs)[-len(RESULT_COLUMNS) :] == list(RESULT_COLUMNS)
    order = np.lexsort((np.arange(5) // 3, np.arange(5) % 3))  # by batch size within layers
    places = pairs.sort_values(["model.layers", "batch_size"])
    np.testing.assert_allclose(places["speedup"], (np.median(ours, 1) / np.median(side_b, 1))[order])
    np.testing.assert_allclose(places["a_spread"], (ours.std(1, ddof=1) / ours.mean(1))[order])
    for (_, row), point in zip(places.iterrows(), order, strict=True):
        test = stats.ttest_ind(np.log(ours[point]), np.log(side_b[point]), equal_var=False)
        low, high = np.exp(test.confidence_interval(0.95))
        assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((low, high))
        assert row["p_value"] == pytest.approx(test.pvalue)
    assert set(pairs["interval_source"]) == {"replicates"}
    assert (pairs["a_count"].tolist(), pairs["b_count"].tolist()) == ([4] * 5, [3] * 5)


def test_variances_of_many_points_are_drawn_towards_each_other() -> None:
    """Of 2,000 planted ones, s0^2 d0 / chi^2(d0) with d0 = 6, known with two degrees of freedom each: closer to
    the truth, and t of the degrees that are told is below 5% in 5% of the points."""
    random = np.random.default_rng(0)
    truth = 4.0 * 6 / random.chisquare(6, 2000)
    values = random.normal(0, np.sqrt(truth)[:, None], (2000, 3))
    found = moderated(values.var(axis=1, ddof=1), np.full(2000, 2.0))
    assert np.log(found.variance / truth).std() < 0.7 * np.log(values.var(axis=1, ddof=1) / truth).std()
    assert found.freedom[0] == pytest.approx(8, abs=2)
    p = 2 * stats.t.sf(np.abs(values.mean(axis=1)) / np.sqrt(found.variance / 3), found.freedom)
    assert 0.04 <= (p <= 0.05).mean() <= 0.06
    few = np.array([1.0, 2.0, 3.0])
    assert moderated(few, few).variance is few


def test_a_lower_step_time_is_a_speedup() -> None:
    by_rate = pair(side([[300.0], [100]]), side([[200.0], [200]], "B"))
    by_time = pair(side([[300.0], [100]]), side([[200.0], [200]], "B"), metric="step_time_ms")
    assert by_rate["speedup"].tolist() == [1.5, 0.5]
    np.testing.assert_allclose(by_time["speedup"], by_rate["speedup"])
    np.testing.assert_allclose(by_time["a"], 1e3 * 64 / by_rate["a"])


def test_intervals_cover_at_their_rate() -> None:
    """2,000 points whose true ratio is 1.3, by 3 and by 5 replicates of unlike spread."""
    rng = np.random.default_rng(2)
    a = side(130 * rng.lognormal(0, 0.10, (2000, 3)), "A")
    b = side(100 * rng.lognormal(0, 0.03, (2000, 5)), "B")
    pairs = pair(a, b)
    covered = pairs["speedup_low"].le(1.3) & pairs["speedup_high"].ge(1.3)
    assert 0.935 <= covered.mean() <= 0.985
    assert (pairs["speedup_low"] <= pairs["speedup"]).all()
    assert (pairs["speedup"] <= pairs["speedup_high"]).all()


@pytest.mark.parametrize("metric", ["examples_per_second", "step_time_ms", "flops_per_second"])
def test_intervals_within_a_process_cover_too(metric: str) -> None:
    """One run a side; each with an exact 95% interval of its own, of lognormal rates."""
    rng = np.random.default_rng(3)
    sides = []
    for device, true, spread in (("A", 80.0, 0.05), ("B", 100.0, 0.02)):
        rates = true * rng.lognormal(0, spread, (3000, 1))
        reach = np.exp(1.96 * spread)
        frame = side(rates, device, flops_per_second=7 * rates.ravel())
        time = frame["step_time_ms"]
        sides.append(frame.assign(step_time_low_ms=time / reach, step_time_high_ms=time * reach))
    pairs = pair(*sides, metric=metric)
    covered = pairs["speedup_low"].le(0.8) & pairs["speedup_high"].ge(0.8)
    assert set(pairs["interval_source"]) == {"within process"}
    assert 0.94 <= covered.mean() <= 0.96


def test_an_uneven_interval_reaches_where_it_should() -> None:
    """A's rate is known to lie in 90..200, B's exactly: so does the ratio, whichever metric says it."""
    rate = {"examples_per_second_low": 90.0, "examples_per_second_high": 200.0}
    exact = {"examples_per_second_low": 50.0, "examples_per_second_high": 50.0}
    for metric in ("examples_per_second", "step_time_ms"):
        pairs = pair(side([[100.0]], **rate), side([[50.0]], "B", **exact), metric=metric)
        assert pairs[["speedup_low", "speedup_high"]].iloc[0].tolist() == pytest.approx([1.8, 4.0])
        swapped = pair(side([[50.0]], "B", **exact), side([[100.0]], **rate), metric=metric)
        assert swapped[["speedup_low", "speedup_high"]].iloc[0].tolist() == pytest.approx([1 / 4, 1 / 1.8])


def test_only_what_is_measured_and_on_both_sides_is_paired() -> None:
    a, b = side([[1.0], [2], [3], [4]]), side([[2.0], [2], [2]], "B")
    a.loc[0, "outcome"] = "oom_device"
    b.loc[1, "examples_per_second"] = np.nan
    pairs = pair(a, b)
    assert pairs["speedup"].tolist() == [1.5]
    assert {name: pairs.attrs[name] for name in ("unpaired_a", "unpaired_b", "unusable_a", "unusable_b")} == {
        "unpaired_a": 2,
        "unpaired_b": 1,
        "unusable_a": 0,
        "unusable_b": 1,
    }
    assert len(pair(a, b.assign(outcome="crash"))) == 0


def test_what_sets_the_sides_apart_is_not_joined_on() -> None:
    a = side([[3.0], [4]], precision="bfloat16", seed=1, **{"measure.min_seconds": 1.0, "platform.threads": 2})
    b = side([[2.0], [2]], "B", precision="float16", seed=2, **{"measure.min_seconds": 0.5, "platform.threads": None})
    pairs = pair(a, b)
    assert set(pairs).isdisjoint({"precision", "platform.threads", "seed", "measure.min_seconds", "device"})
    assert pairs["speedup"].tolist() == [1.5, 2.0]
    assert pairs.attrs["differ"]["platform.threads"] == ("2", "(none)")


@pytest.mark.parametrize(("column", "values"), [("precision", ("float32", "bfloat16")), ("platform.threads", (1, 2))])
def test_values_of_both_sides_are_paired_with_their_own(column: str, values: tuple[object, object]) -> None:
    sides = []
    for device, rates in (("A", (1.0, 6.0)), ("B", (2.0, 2.0))):
        parts = [side([[rate], [rate]], f"{device}{n}", **{column: values[n]}) for n, rate in enumerate(rates)]
        sides.append(pd.concat(parts).assign(device=device))
    pairs = pair(*sides)
    assert dict(zip(pairs[column], pairs["speedup"], strict=True)) == {values[0]: 0.5, values[1]: 3.0}


def test_types_and_missing_values_do_not_part_a_pair() -> None:
    a = side([[3.0], [4]], **{"optimizer.momentum": [None, 0.9], "model.blocks": "[1, 1]"})
    b = side([[2.0], [2]], "B", **{"optimizer.momentum": [np.nan, 0.9], "model.blocks": "[1, 1]"})
    b["batch_size"] = b["batch_size"].astype("float64")
    assert pair(a.astype({"batch_size": "Int64"}), b)["speedup"].tolist() == [1.5, 2.0]


def test_runs_that_are_no_replicates_are_refused() -> None:
    swept = side([[3.0, 4.0]], **{"optimizer.learning_rate": [0.1, 0.2]})
    published = side([[2.0]], "B", **{"optimizer.learning_rate": None})
    with pytest.raises(ConfigError, match=r"runs of A=optimizer.learning_rate = 0.1, 0.2: are no replicates of one"):
        pair(swept, published)
    one = swept[swept["optimizer.learning_rate"] == 0.1]
    assert pair(one, published)["speedup"].tolist() == [1.5]


def test_families_of_one_side_do_not_stand_in_the_way_of_others() -> None:
    """Models of A that differ in a key of their own are no replicates, but nothing is asked of them."""
    alone = side([[5.0], [6]], "A").assign(family="lstm", run_id=["l1", "l2"], batch_size=64)
    alone["model.layers"] = None
    mixed = pd.concat([side([[3.0], [4]]), alone.assign(**{"model.embedding_size": [50, 200]})], ignore_index=True)
    side_b = side([[2.0], [2]], "B")
    for pairs, name, other in ((pair(mixed, side_b), "a", "b"), (pair(side_b, mixed), "b", "a")):
        assert pairs["family"].tolist() == ["fc", "fc"]
        assert (pairs.attrs[f"unpaired_{name}"], pairs.attrs[f"unpaired_{other}"]) == (2, 0)
        assert pairs.attrs["alone"] == {name: ("lstm",), other: ()}
        assert "model.embedding_size" not in pairs.attrs["differ"]
    assert pair(mixed, side_b)["speedup"].tolist() == [1.5, 2.0]


def test_points_without_a_counterpart_need_not_be_replicates() -> None:
    """B has no learning rate at all; A swept it where B measured nothing."""
    swept = side([[3.0], [4.0]]).assign(**{"optimizer.learning_rate": 0.1})
    other = side([[9.0], [9.0], [9.0]]).query("`model.layers` == 16").assign(run_id="A9")
    swept = pd.concat([swept, *(other.assign(**{"optimizer.learning_rate": rate}) for rate in (0.1, 0.2))])
    pairs = pair(swept, side([[2.0], [2]], "B", **{"optimizer.learning_rate": None}))
    assert pairs["speedup"].tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("metric", "on", "message"),
    [
        ("nonsense", None, "metric=nonsense: is no registered metric"),
        ("parameters", None, "metric=parameters: is neither better high nor low"),
        ("flops_per_second", None, "metric=flops_per_second: the runs of A do not hold it"),
        ("examples_per_second", ["model.width"], "on=model.width: the runs of A have no such column"),
    ],
)
def test_what_cannot_be_paired_is_named(metric: str, on: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair(side([[1.0]], parameters=1.0), side([[1.0]], "B", parameters=1.0), metric, on)


def test_columns_to_join_on_can_be_given_and_what_shares_no_value_is_told() -> None:
    a, b = side([[3.0]], precision="float16"), side([[2.0]], "B")
    assert pair(a, b, on=["batch_size", "model.layers"])["speedup"].tolist() == [1.5]
    pairs = pair(a, b, on=["batch_size", "precision"])
    assert len(pairs) == 0
    assert pairs.attrs["disjoint"] == {"precision": ("float16", "float32")}


def test_replicates_that_do_not_differ_have_no_p() -> None:
    pairs = pair(side([[3.0, 3.0]]), side([[2.0, 2.0]], "B"))
    assert pairs[["speedup_low", "speedup_high"]].iloc[0].tolist() == pytest.approx([1.5, 1.5])
    assert pairs["p_value"].isna().all()


THREADS = "platform.threads"


def test_where_some_points_have_a_key_and_others_none_each_is_paired_with_its_own() -> None:
    """A was measured with one thread and with all of them, B with all alone."""
    all_threads = side([[3.0], [4.0]], **{THREADS: None})
    one_thread = side([[1.0], [1.0], [1.0]], "A", **{THREADS: 1.0}).assign(run_id=["t1", "t2", "t3"])
    mixed = pd.concat([all_threads, one_thread], ignore_index=True)
    side_b = side([[2.0], [2.0], [2.0]], "B", **{THREADS: None})
    for pairs, name, other in ((pair(mixed, side_b), "a", "b"), (pair(side_b, mixed), "b", "a")):
        assert pairs[name].tolist() == [3.0, 4.0]
        assert (pairs.attrs[f"unpaired_{name}"], pairs.attrs[f"unpaired_{other}"]) == (3, 1)
        assert THREADS not in {**pairs.attrs["differ"], **pairs.attrs["disjoint"]}
        assert pairs.attrs["mixed"] == {}


def test_points_whose_runs_nothing_tells_apart_are_left_out_and_counted() -> None:
    """A swept the learning rate at one of three points, B says none: the other two are still compared."""
    rate = "optimizer.learning_rate"
    swept = side([[3.0], [4.0], [5.0]], **{rate: 0.1})
    swept = pd.concat([swept, swept.head(1).assign(**{rate: 0.2, "run_id": "A9"})], ignore_index=True)
    side_b = side([[2.0], [2.0], [2.0]], "B", **{rate: None})
    for pairs, name in ((pair(swept, side_b), "a"), (pair(side_b, swept), "b")):
        assert pairs[name].tolist() == [4.0, 5.0]
        assert (pairs.attrs["unpaired_a"], pairs.attrs["unpaired_b"]) == (1, 1)
        assert pairs.attrs["mixed"] == {rate: 1}
    with pytest.raises(ConfigError, match="are no replicates of one point"):
        pair(swept, side_b, on=["model.layers", "batch_size"])
