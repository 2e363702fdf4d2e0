"""Change points of planted histories.

Histories without a step rarely raise an alarm. Steps are found with their place and size.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import changes
from analysis.analyses.changes import ChangesOptions, _divergence, change_points
from analysis.cli import main
from paradnn.core.errors import ConfigError, InsufficientData
from tests.analysis.planted import runs


def history(seed: int, step: float = 1.0, sessions: int = 16, replicates: int = 3) -> pd.DataFrame:
    """Return runs of one point in sessions two days apart, with a step in the middle.

    `step` is the ratio of the speeds after and before. Sessions scatter by 3%, and runs within a
    session by 1%.
    """
    random = np.random.default_rng(seed)
    session = np.repeat(np.arange(sessions), replicates)
    session_shift = 0.03 * random.standard_normal(sessions)[session]
    level = np.where(session < sessions // 2, 0.0, np.log(step))
    noise = 0.01 * random.standard_normal(len(session))
    names = pd.Series(session.astype(str))
    frame = runs(
        pd.DataFrame({"model.nodes": 64}, index=range(len(session))),
        examples_per_second=100 * np.exp(session_shift + level + noise),
        environment_id="env-" + names,
        sweep_id="s" + names,
        start_time=pd.Timestamp("2026-01-01") + pd.to_timedelta(2 * session, unit="D"),
        git_commit="c" + names,
    )
    return frame.assign(
        source="measured",
        host="a",
        point_id="p",
        run_name="fc",
        run_id=names + frame.index.astype(str),
    )


def session_means(
    seed: int, step: float = 1.0, sessions: int = 16, series: int = 1
) -> list[tuple[str, pd.DataFrame]]:
    """Return series of session means with the same step in the middle and heavy-tailed noise."""
    random = np.random.default_rng(seed)
    labels = [f"c{number}" for number in range(sessions)]
    level = np.where(np.arange(sessions) < sessions // 2, 0.0, np.log(step))
    shape = (series, sessions)
    noise = 0.03 * random.standard_normal(shape) + 0.01 * random.standard_t(3, shape)
    return [
        (str(number), pd.DataFrame({"value": level + row, "label": labels}))
        for number, row in enumerate(noise)
    ]


@pytest.mark.parametrize(
    ("series", "histories"),
    [pytest.param(1, 200, id="one series"), pytest.param(8, 25, id="eight series")],
)
def test_histories_without_a_change_rarely_raise_an_alarm(series: int, histories: int) -> None:
    alarms = 0
    for seed in range(histories):
        means = session_means(seed, sessions=8 + seed % 13, series=series)
        alarms += bool(change_points(means))

    assert alarms <= stats.binom.ppf(0.99, histories, 0.05)


def test_a_step_of_ten_percent_is_found_with_its_place_and_size() -> None:
    results = [change_points(session_means(seed, 1.1)) for seed in range(100)]

    single = [rows[0] for rows in results if len(rows) == 1]

    assert len(single) >= 80

    places = [(row["before"], row["after"]) == ("c7", "c8") for row in single]
    assert np.mean(places) > 0.7

    covered = [row["low"] <= 1.1 <= row["high"] for row in single]
    assert np.mean(covered) > 0.85


def test_each_of_several_changes_has_its_own_size() -> None:
    early = history(1, 1.2)
    late = history(2, 1.2)
    late["git_commit"] = "d" + late["git_commit"]
    late["start_time"] += pd.Timedelta(days=90)
    frame = pd.concat([early, late])
    frame["sweep_id"] = frame["git_commit"]
    frame["run_id"] = [str(number) for number in range(len(frame))]

    result = changes(frame)

    # Speeds: 1.0, 1.2 (c8), 1.0 (dc0, the start of the second history), 1.2 (dc8).
    assert list(result.table["after"]) == ["c8", "dc0", "dc8"]
    assert result.table["sessions"].tolist() == [32] * 3
    assert result.table["ratio"].to_numpy() == pytest.approx([1.2, 1 / 1.2, 1.2], rel=0.06)
    assert "fc on Test CPU: +" in result.text()
    assert "between c7 and c8" in result.text()


def mean_pair_distance(values: np.ndarray) -> float:
    """Return the mean |X - X'| of all pairs of two different values."""
    pairs = np.triu_indices(len(values), 1)
    return float(np.abs(np.subtract.outer(values, values))[pairs].mean())


def test_the_statistic_equals_a_direct_computation_of_its_definition() -> None:
    """Maximize n m / (n + m) (2 E|X - Y| - E|X - X'| - E|Y - Y'|) over n and m.

    X are the first n values, and Y are the next m. Both have at least 3 values.
    """
    values = np.random.default_rng(3).standard_normal(11)
    candidates = []
    for n in range(3, 9):
        for m in range(3, 12 - n):
            before = values[:n]
            after = values[n : n + m]
            between = np.abs(np.subtract.outer(before, after)).mean()
            energy_distance = 2 * between - mean_pair_distance(before) - mean_pair_distance(after)
            candidates.append((n * m / (n + m) * energy_distance, n))
    expected_distance, expected_n = max(candidates)

    [n], [distance] = _divergence(values[None])

    assert n == expected_n
    assert distance == pytest.approx(expected_distance)


def test_versions_are_ordered_by_number() -> None:
    frame = history(5)
    # Shuffle the 16 versions over time. Multiples of 7 are distinct modulo 16.
    minors = frame["git_commit"].map(lambda commit: (int(commit[1:]) * 7) % 16)
    rate = np.where(minors >= 9, 150.0, 100.0)
    versions = "2." + minors.astype(str)
    frame = frame.assign(**{"version.tensorflow": versions, "examples_per_second": rate})

    [row] = changes(frame, ChangesOptions(by="version.tensorflow")).table.to_dict("records")

    assert (row["before"], row["after"]) == ("2.8", "2.9")
    assert row["ratio"] == pytest.approx(1.5)


def test_too_few_sessions_are_rejected() -> None:
    with pytest.raises(
        InsufficientData, match="a series needs 8 sessions, but the longest series has 7"
    ):
        changes(history(5, sessions=7))


def test_an_unknown_column_is_rejected() -> None:
    with pytest.raises(ConfigError, match="--by=nothing: these runs have no such column"):
        changes(history(5), ChangesOptions(by="nothing"))


def write_gates(path: Path, machines: int = 1) -> Path:
    """Write twelve daily gate results to `path`; the ratio falls by a fifth after the sixth."""
    lines = []
    for number in range(12):
        level = 1.0 if number < 6 else 0.8
        gate = {
            "commit": f"c{number}",
            "date": f"2026-01-{number + 1:02}T08:00:00+00:00",
            "machine": f"m{number % machines}",
            "command": "./bench",
            "metric": "seconds",
            "base": "v1",
            "ratio": level * (1 + 0.01 * (-1) ** number),
        }
        lines.append(json.dumps(gate) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize(
    "machines", [pytest.param(1, id="one machine"), pytest.param(12, id="hosted runners")]
)
def test_a_history_of_gates_is_read_from_a_file(
    machines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gates(tmp_path / "gates.jsonl", machines)

    assert main(["changes", "--history", str(path)]) == 0

    output = capsys.readouterr().out
    assert "./bench against v1, seconds: -20% (95% interval -2" in output
    assert "between c5 and c6" in output
    assert "Examined: examples_per_second of 1 series by git_commit." in output
    assert ("The gates ran on 12 machines" in output) == (machines == 12)


def test_each_command_metric_and_base_of_gates_is_a_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gates(tmp_path / "gates.jsonl", machines=3)
    text = path.read_text()
    variants = [
        text.replace('"v1"', '"v2"'),
        text.replace("./bench", "./other"),
        text.replace('"seconds"', '"json:rate"'),
    ]
    path.write_text("".join([text, *variants]))

    assert main(["changes", "--history", str(path)]) == 0

    assert "of 4 series" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "line 1 is not a gate result", id="nested too deeply"),
        pytest.param('{"ratio": 1}', "line 1 is not a gate result", id="fields missing"),
        pytest.param("", "has no gate results", id="empty"),
    ],
)
def test_a_file_without_gates_prints_a_one_line_error(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gates.jsonl"
    path.write_text(text)

    assert main(["changes", "--history", str(path)]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
