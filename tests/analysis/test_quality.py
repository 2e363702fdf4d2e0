"""Data quality checks: they find, count and report planted faults.

Valid data pass unchanged.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.compare import CompareOptions
from analysis.analyses.compare import compare as command
from analysis.store import quality as quality_module
from analysis.store.quality import Quality, find_copies, usable_runs
from tests.analysis.test_pairing import side


def measured(
    replicates: int = 3, points: int = 9, seed: int = 0, noise: float = 0.01, device: str = "A"
) -> pd.DataFrame:
    """Return steady runs in one environment; replicates scatter by `noise`, as a fraction."""
    random = np.random.default_rng(seed)
    frame = side(
        random.lognormal(5, 1, (points, 1)) * random.lognormal(0, noise, (points, replicates)),
        device,
    )
    point = (frame["model.layers"].astype(str) + "-" + frame["batch_size"].astype(str)).to_numpy()
    cv = random.uniform(0.005, 0.02, len(frame))
    return frame.assign(
        point_id=point,
        environment_id=f"env-{device}",
        step_time_cv=cv,
        checks="passed",
        steady=True,
    )


def test_valid_runs_pass_unchanged_without_a_note() -> None:
    frame = measured()
    kept, quality = usable_runs(frame)

    pd.testing.assert_frame_equal(kept, frame)
    assert quality == Quality(runs=27)
    assert quality.text() == ""


def test_impossible_intervals_are_removed() -> None:
    """Only the first of five intervals is valid, for steps of 10 ms with blocks of 8 to 12 ms.

    The second one exceeds the slowest block, and the third is wider than its value. The fourth does
    not contain the step time, and the fifth not the rate.
    """
    ends = {
        "step_time_low_ms": [9.0, 9.0, 0.5, 11.0, 9.0],
        "step_time_high_ms": [11.0, 15.0, 30.0, 12.0, 11.0],
    }
    blocks = {
        "step_time_min_ms": [8.0, 8.0, np.nan, 8.0, 8.0],
        "step_time_max_ms": [12.0, 12.0, np.nan, 12.0, 12.0],
    }
    frame = measured(1, 5).assign(
        step_time_ms=10.0, examples_per_second_low=[1.0] * 4 + [1e9], **ends, **blocks
    )
    kept, quality = usable_runs(frame)

    assert kept["step_time_low_ms"].isna().tolist() == [False, True, True, True, True]
    assert kept["examples_per_second_low"].isna().tolist() == [False, True, True, True, True]
    assert (
        "4 runs whose interval is excluded, since it extends far beyond every block"
        in quality.text()
    )


def test_copies_are_found_despite_rounding() -> None:
    frame = measured(replicates=1)
    for digits in (5, 6, 9, 17):
        copied = frame.assign(run_id=frame["run_id"] + "copy")
        for name in ("examples_per_second", "step_time_ms", "step_time_cv"):
            copied[name] = [float(f"{value:.{digits}g}") for value in frame[name]]
        with_copies = pd.concat(
            [frame, copied, copied.assign(run_id=copied["run_id"] + "s")], ignore_index=True
        )
        np.testing.assert_array_equal(
            find_copies(with_copies), np.repeat([False, True, True], len(frame))
        )
        kept, quality = usable_runs(with_copies)
        assert list(kept["run_id"]) == list(frame["run_id"])
        assert quality.text() == "Excluded: 18 copies of other runs."
    elsewhere = pd.concat(
        [frame, frame.assign(run_id="other", environment_id="env-B")], ignore_index=True
    )

    assert find_copies(elsewhere).sum() == 0, "equal values in another environment are not copies"
    assert find_copies(measured(points=10_000, noise=0.001)).sum() == 0, (
        "real replicates differ in some digit"
    )


def test_copies_among_many_runs_of_a_point_are_found_with_few_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = measured(points=1, replicates=500, noise=0.02)
    copied = frame.iloc[::10].assign(run_id=frame["run_id"].iloc[::10] + "copy")
    with_copies = pd.concat([frame, copied.map(rounded)], ignore_index=True)
    compared = []
    compare = quality_module._have_equal_timings

    def count(*arguments: Any) -> bool:
        compared.append(arguments)
        return compare(*arguments)

    monkeypatch.setattr(quality_module, "_have_equal_timings", count)

    is_copy = find_copies(with_copies)

    np.testing.assert_array_equal(np.flatnonzero(is_copy), np.arange(len(frame), len(with_copies)))
    assert len(compared) < len(with_copies)  # instead of 150,000 pairs


def rounded(value: object) -> object:
    """Return a number with six digits, as other programs store it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def test_a_record_with_several_copies_counts_once_even_if_they_differ() -> None:
    frame = measured(replicates=2, points=2).assign(offline_id=["x", "y", "z", "x"], origin=None)
    np.testing.assert_array_equal(find_copies(frame), [False, False, False, True])

    frame = frame.assign(offline_id=None, origin=["s1", "s1", "s1", "s2"])
    np.testing.assert_array_equal(find_copies(frame), [False, True, False, False])


def with_problems() -> pd.DataFrame:
    """Return 27 runs: one with failed checks, two not steady, and one on a contended machine."""
    frame = measured()
    frame.loc[0, "checks"] = "failed: throughput is not batch size over step time"
    frame.loc[[1, 2], "steady"] = False
    frame["contended"] = np.arange(27) == 3
    return frame


def test_runs_with_failed_checks_are_excluded() -> None:
    kept, quality = usable_runs(with_problems())

    assert (len(kept), quality.excluded_runs, quality.unsteady, quality.contended) == (26, 1, 2, 1)
    assert quality.text() == (
        "Excluded: 1 run with failed checks; 2 runs are not steady; 1 run shared the machine with other work "
        "(--steady-only excludes such runs)."
    )


def test_unsteady_and_contended_runs_are_excluded_on_request() -> None:
    kept, quality = usable_runs(with_problems(), steady_only=True)

    assert (len(kept), quality.excluded_runs) == (23, 4)
    steady = "2 runs without a steady state, 1 run on a contended machine."
    assert quality.text() == f"Excluded: 1 run with failed checks, {steady}"


def test_problems_may_be_recorded_as_text() -> None:
    frame = with_problems()
    as_text = frame.assign(
        steady=frame["steady"].map(str).str.lower(), contended=frame["contended"].map(str)
    )

    assert usable_runs(as_text)[1] == usable_runs(frame)[1]


def test_steady_only_excludes_runs_that_do_not_record_other_work() -> None:
    frame = measured()
    frame["contended"] = pd.Series([None] * 2 + [False] * 25, dtype=object)
    kept, quality = usable_runs(frame)

    assert (len(kept), quality.excluded_runs) == (27, 0)

    kept, quality = usable_runs(frame, steady_only=True)
    assert (len(kept), quality.unknown_load) == (25, 2)
    assert quality.text() == "Excluded: 2 runs with an unknown load of the machine."


def test_failed_replicates_are_reported_unless_a_repetition_succeeded() -> None:
    frame = measured()
    frame.loc[frame["replicate"] > 0, "outcome"] = "timeout"
    quality = usable_runs(frame)[1]

    assert (quality.partly_failed, quality.failed) == (9, {"timeout": 18})
    assert (
        quality.text() == "9 points use only the replicates that did not fail (failed: 18 timeout)."
    )
    assert usable_runs(frame.assign(replicate=0))[1].partly_failed == 0


def test_impossible_values_become_missing() -> None:
    frame = measured()
    frame.loc[0, "examples_per_second"] = np.inf
    frame.loc[1, "step_time_ms"] = 1e300
    kept, quality = usable_runs(frame)

    assert quality.impossible == 2
    assert kept["examples_per_second"].isna().tolist() == [True] + [False] * 26
    assert kept["step_time_ms"].isna().tolist() == [False, True] + [False] * 25


def test_an_analysis_reports_excluded_runs_as_text_and_json() -> None:
    a = measured(seed=1)
    b = measured(seed=1, device="B")
    b.loc[0, "checks"] = "failed: x"
    with_copies = [a, a.assign(run_id=a["run_id"] + "c"), b]
    result = command(
        pd.concat(with_copies, ignore_index=True), CompareOptions(a="device=A", b="device=B")
    )

    assert (
        result.text().splitlines()[-1]
        == "Excluded: 1 run with failed checks, 27 copies of other runs."
    )
    assert (
        result.quality.as_json() | {"failed_checks": 1, "copies": 27, "out": 28}
        == result.quality.as_json()
    )
    assert not any(run.endswith("c") for run in result.sources)
