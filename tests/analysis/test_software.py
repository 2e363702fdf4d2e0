"""Comparison of software versions, precisions and compile modes over common points."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.software import SoftwareOptions, software
from analysis.cli.output import print_result
from analysis.result import Result
from paradnn.core.errors import ConfigError
from paradnn.statistics.verdict import Verdict
from tests.analysis.planted import POINTS, runs

BASE_RATE = 10 ** np.random.default_rng(1).uniform(2, 5, len(POINTS))
SPREAD = np.exp(0.2 * np.random.default_rng(2).standard_normal(len(POINTS)))


def run_software(
    frame: pd.DataFrame, by: str | None = None, baseline: str | None = None, **options: Any
) -> Result:
    return software(frame, SoftwareOptions(by=(by,) if by else None, baseline=baseline, **options))


def version(name: str, speedup: Any = 1.0, **columns: Any) -> pd.DataFrame:
    """Return all points with one TensorFlow version; `speedup` is relative to BASE_RATE."""
    return runs(
        POINTS,
        examples_per_second=BASE_RATE * speedup,
        **{"version.tensorflow": name, "environment_id": f"env-{name}", **columns},
    )


def with_unique_ids(*frames: pd.DataFrame) -> pd.DataFrame:
    """Concatenate frames; make run ids unique, and point ids unique per family."""
    frame = pd.concat(frames, ignore_index=True)
    frame["run_id"] = [str(number) for number in range(len(frame))]
    frame["point_id"] += frame["family"]
    return frame


@pytest.fixture(scope="module")
def versions() -> pd.DataFrame:
    """Return fc and lstm with TensorFlow 2.9 and 2.16, and fc with 2.21.

    2.16 is faster by 2 * SPREAD for fc and by 3 for lstm; 2.21 has half the speed of 2.9.
    """
    return with_unique_ids(
        version("2.9"),
        version("2.16", 2 * SPREAD),
        version("2.21", 0.5),
        version("2.9", family="lstm"),
        version("2.16", 3.0, family="lstm"),
    )


@pytest.fixture(scope="module")
def compared_versions(versions: pd.DataFrame) -> Result:
    return run_software(versions)


def test_versions_are_compared_with_the_oldest_one_per_family(compared_versions: Result) -> None:
    table = compared_versions.table

    assert list(zip(table["value"], table["family"], strict=True)) == [
        ("2.16", "fc"),
        ("2.16", "lstm"),
        ("2.16", "all"),
        ("2.21", "fc"),
    ]
    assert set(table["over"]) == {"2.9"}


def test_a_family_has_quantiles_of_its_speedups(compared_versions: Result) -> None:
    row = compared_versions.table.set_index(["value", "family"]).loc[("2.16", "fc")]

    assert row["median"] == pytest.approx(np.median(2 * SPREAD))
    assert row["p90"] == pytest.approx(np.quantile(2 * SPREAD, 0.9))
    assert row["median_low"] < row["median"] < row["median_high"]
    assert row["p90_low"] < row["p90"] < row["p90_high"]
    assert row["faster"] == np.mean(2 * SPREAD > 1)


def test_each_version_and_family_has_its_planted_speedup(compared_versions: Result) -> None:
    table = compared_versions.table.set_index(["value", "family"])

    assert table.loc[("2.16", "lstm"), "median"] == pytest.approx(3)
    assert table.loc[("2.21", "fc"), "faster"] == 0


def test_all_families_of_a_version_have_a_common_row(compared_versions: Result) -> None:
    all_families = compared_versions.table.set_index(["value", "family"]).loc[("2.16", "all")]

    assert all_families["median"] == pytest.approx(
        np.median([*(2 * SPREAD), *np.full(len(POINTS), 3.0)])
    )
    assert all_families["pairs"] == 2 * len(POINTS)


def test_every_compared_run_is_a_source(versions: pd.DataFrame, compared_versions: Result) -> None:
    assert set(compared_versions.sources) == set(versions["run_id"])


def test_precisions_are_compared_within_each_environment() -> None:
    frame = with_unique_ids(
        version("2.9"),
        version("2.16", 2.0),
        version("2.9", 1.5, precision="bfloat16"),
        version("2.16", 2.0 * 4, precision="bfloat16"),
    )
    table = run_software(frame, "precision").table.set_index("device")

    assert table["median"].to_dict() == pytest.approx({"Test CPU, 2.9": 1.5, "Test CPU, 2.16": 4.0})
    assert list(table.index) == ["Test CPU, 2.9", "Test CPU, 2.16"]
    assert set(table["value"]) == {"bfloat16"}
    assert set(table["over"]) == {"float32"}


def test_the_speedup_is_the_same_for_rates_and_times() -> None:
    frame = with_unique_ids(version("2.9"), version("2.9", 1.25, compile="xla"))
    frame["step_time_ms"] = 1e6 / frame["examples_per_second"]

    assert run_software(frame).table["column"].tolist() == ["compile"]

    for metric in ("examples_per_second", "step_time_ms"):
        assert run_software(frame, metric=metric).table["median"].tolist() == pytest.approx([1.25])


def test_families_with_one_compile_mode_are_reported() -> None:
    one_mode = version("2.9", family="lstm").rename(columns={"model.nodes": "model.embedding_size"})
    found = run_software(
        with_unique_ids(version("2.9"), version("2.9", 1.25, compile="xla"), one_mode)
    )

    assert found.table["family"].tolist() == ["fc"]

    (notice,) = (
        line
        for line in found.text().splitlines()
        if line.startswith("Not compared") and "lstm" in line
    )
    assert (
        notice
        == "Not compared: compile on Test CPU: no point of lstm was measured with both xla and graph."
    )


def test_named_software_is_compared_instead_of_its_versions() -> None:
    frame = with_unique_ids(
        version("2.9", **{"software.name": "old"}),
        version("2.16", 2.0, **{"software.name": "current"}),
    )
    row = run_software(frame).table.iloc[0]

    assert (row["column"], row["value"], row["over"]) == ("software.name", "old", "current")


def few_points(count: int, families: tuple[str, ...] = ("fc",)) -> pd.DataFrame:
    """Return two precisions of a few points, with two replicates in random order of one sweep."""
    random = np.random.default_rng(count)
    parts = []
    for family in families:
        for replicate in (0, 1):
            for precision in ("float32", "bfloat16"):
                rate = 100 * np.exp(0.1 * random.standard_normal(count))
                parts.append(
                    runs(
                        POINTS.head(count),
                        family=family,
                        precision=precision,
                        replicate=replicate,
                        examples_per_second=rate,
                        host="host",
                        sweep_id="sweep",
                    )
                )
    frame = with_unique_ids(*parts)
    minutes = random.permutation(len(frame))
    return frame.assign(start_time=pd.Timestamp("2026-01-01") + pd.to_timedelta(minutes, unit="m"))


@pytest.mark.parametrize("count", [3, 5])
def test_sentence_and_table_agree_for_few_points(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_software(few_points(count))

    print_result(result)

    assert result.table["verdict"].tolist() == [Verdict.UNDECIDED]

    output = capsys.readouterr().out
    assert output.startswith("undecided: precision=bfloat16 over precision=float32 is ")
    assert f" on {count} points on Test CPU" in output
    assert "inf" not in output


def test_one_point_is_reported_in_the_singular() -> None:
    assert "faster at 0 of 1 point (0%, interval 0% to " in run_software(few_points(1)).text()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [1, 2, 6, 8])
def test_open_intervals_of_repeated_sessions_raise_no_warning(count: int) -> None:
    frame = few_points(count, ("fc", "lstm"))
    frame["sweep_id"] = "sweep" + frame["replicate"].astype(str)

    table = run_software(frame).table

    assert (table["median_low"] <= table["median"]).all()
    assert (table["median_high"] >= table["median"]).all()


def test_the_error_of_a_missing_column_lists_the_columns() -> None:
    frame = with_unique_ids(version("2.9"), version("2.10")).drop(columns="version.tensorflow")

    with pytest.raises(ConfigError, match=r"--by=version\.tensorflow: ") as raised:
        run_software(frame, by="version.tensorflow")

    assert str(raised.value).endswith("choose one of precision, compile")
