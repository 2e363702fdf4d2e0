"""Histories with planted changes: null ones are left alone, steps are found where and as large as
they were planted.
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
from paradnn.core.errors import ConfigError, NotEnoughData
from tests.analysis.planted import runs


def history(seed: int, step: float = 1.0, sessions: int = 16, replicates: int = 3) -> pd.DataFrame:
    """Runs of a point in sessions two days apart, each session off by some 3%, each run by 1%, and
    a step.
    """
    draw = np.random.default_rng(seed)
    number = np.repeat(np.arange(sessions), replicates)
    of_session = 0.03 * draw.standard_normal(sessions)[number] + np.where(
        number < sessions // 2, 0.0, np.log(step)
    )
    names = pd.Series(number.astype(str))
    frame = runs(
        pd.DataFrame({"model.nodes": 64}, index=range(len(number))),
        examples_per_second=100 * np.exp(of_session + 0.01 * draw.standard_normal(len(number))),
        environment_id="env-" + names,
        sweep_id="s" + names,
        start_time=pd.Timestamp("2026-01-01") + pd.to_timedelta(2 * number, unit="D"),
        git_commit="c" + names,
    )
    return frame.assign(
        source="measured",
        host="a",
        point_id="p",
        run_name="fc",
        run_id=names + frame.index.astype(str),
    )


def page(
    seed: int, step: float = 1.0, sessions: int = 16, series: int = 1
) -> list[tuple[str, pd.DataFrame]]:
    """As what such histories come to: a value a session."""
    draw = np.random.default_rng(seed)
    labels = [f"c{number}" for number in range(sessions)]
    level = np.where(np.arange(sessions) < sessions // 2, 0.0, np.log(step))
    noise = 0.03 * draw.standard_normal((series, sessions)) + 0.01 * draw.standard_t(
        3, (series, sessions)
    )
    return [
        (str(k), pd.DataFrame({"value": level + one, "label": labels}))
        for k, one in enumerate(noise)
    ]


@pytest.mark.parametrize(("series", "pages"), [(1, 200), (8, 25)])
def test_null_histories_are_left_alone(series: int, pages: int) -> None:
    alarms = sum(
        bool(change_points(page(seed, sessions=8 + seed % 13, series=series)))
        for seed in range(pages)
    )
    assert alarms <= stats.binom.ppf(0.99, pages, 0.05)


def test_a_step_of_ten_percent_is_found_where_it_is() -> None:
    found = [change_points(page(seed, 1.1)) for seed in range(100)]
    seen = [rows[0] for rows in found if len(rows) == 1]
    assert len(seen) >= 80
    assert np.mean([(row["before"], row["after"]) == ("c7", "c8") for row in seen]) > 0.7
    assert np.mean([row["low"] <= 1.1 <= row["high"] for row in seen]) > 0.85


def test_runs_are_sessions_and_every_change_has_its_size() -> None:
    frame = pd.concat(
        [history(1, 1.2), history(2, 1.2).assign(git_commit=lambda of: "d" + of["git_commit"])]
    )
    later = frame["git_commit"].str.startswith("d")
    frame["start_time"] += pd.to_timedelta(90 * later.astype(int), unit="D")
    result = changes(
        frame.assign(sweep_id=frame["git_commit"], run_id=[str(row) for row in range(len(frame))])
    )
    assert list(result.table["after"]) == ["c8", "dc0", "dc8"]
    assert result.table["sessions"].tolist() == [32] * 3
    assert result.table["ratio"].to_numpy() == pytest.approx([1.2, 1 / 1.2, 1.2], rel=0.06)
    assert "fc on Test CPU: +" in result.text()
    assert "between c7 and c8" in result.text()


def test_the_statistic_is_that_of_the_paper() -> None:
    values = np.random.default_rng(3).standard_normal(11)
    best = {}
    for at, end in [(n, n + m) for n in range(3, 9) for m in range(3, 12 - n)]:
        x = values[:at]
        y = values[at:end]
        within = [
            np.abs(np.subtract.outer(z, z))[np.triu_indices(len(z), 1)].mean() for z in (x, y)
        ]
        distance = 2 * np.abs(np.subtract.outer(x, y)).mean() - sum(within)
        best[len(x) * len(y) / end * distance] = at
    [place], [found] = _divergence(values[None])
    assert (place, found) == (best[max(best)], pytest.approx(max(best)))


def test_versions_are_in_their_order_and_few_sessions_say_so() -> None:
    frame = history(5, 1.3)
    versions = frame["git_commit"].map(lambda commit: f"2.{(int(commit[1:]) * 7) % 16}")
    level = np.where(versions.map(lambda text: int(text[2:]) >= 9), 150.0, 100.0)
    frame = frame.assign(**{"version.tensorflow": versions, "examples_per_second": level})
    [row] = changes(frame, ChangesOptions(by="version.tensorflow")).table.to_dict("records")
    assert (row["before"], row["after"], row["ratio"]) == ("2.8", "2.9", pytest.approx(1.5))
    with pytest.raises(NotEnoughData, match="no series has 8 sessions, the longest has 7"):
        changes(history(5, sessions=7))
    with pytest.raises(ConfigError, match="--by=nothing: these runs have no such column"):
        changes(frame, ChangesOptions(by="nothing"))


def gates(path: Path) -> Path:
    lines = []
    for number in range(12):
        where = {
            "commit": f"c{number}",
            "date": f"2026-01-{number + 1:02}T08:00:00+00:00",
            "machine": "m",
        }
        ratio = (1.0 if number < 6 else 0.8) * (1 + 0.01 * (-1) ** number)
        lines.append(
            {**where, "command": "./bench", "metric": "seconds", "base": "v1", "ratio": ratio}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_history_of_gates_needs_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gates(tmp_path / "gates.jsonl")
    assert main(["changes", "--history", str(path)]) == 0
    assert "./bench against v1, seconds on m: -20% (95% interval -2" in (
        said := capsys.readouterr().out
    )
    assert "between c5 and c6" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [("[" * 100_000, "line 1: is not of"), ('{"ratio": 1}', "line 1: is not"), ("", "no gate")],
)
def test_no_history_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text(text)
    assert main(["changes", "--history", str(tmp_path / "x")]) == 2
    assert message in (said := capsys.readouterr().err)
    assert said.count("\n") == 1
