"""`from analysis import ...` in a notebook: what there is, what it costs, what a result shows."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.cli import COMMANDS
from analysis.options import Options
from analysis.result import Result
from tests.analysis.planted import BATCH, POINTS, SIZE, runs
from tests.conftest import ROOT


def planted() -> pd.DataFrame:
    """The factorial on two devices, of which one is ahead where batches are large."""
    sides = [
        runs(POINTS, device=device, environment_id=device, examples_per_second=BATCH**power / SIZE, parameters=SIZE**2)
        for device, power in (("One", 0.7), ("Two", 0.5))
    ]
    frame = pd.concat(sides, ignore_index=True)
    return frame.assign(run_id=frame.index.astype("str"), start_time=pd.Timestamp("2026-01-31", tz="UTC"))


def test_every_name_is_there_and_every_analysis_among_them() -> None:
    assert all(getattr(analysis, name) is not None for name in analysis.__all__)
    assert set(analysis.__all__) <= set(dir(analysis))
    analyses = [command for command in COMMANDS if command.analysis is not None]
    assert {command.analysis.__name__ for command in analyses if command.analysis} <= set(analysis.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sensitivities'"):
        _ = analysis.sensitivities


def test_options_cost_no_heavy_import() -> None:
    code = "import sys; from analysis import SensitivityOptions, sensitivity; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    assert not {"mlflow", "pandas", "numpy", "matplotlib"}.intersection(loaded)


def test_the_example_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On planted runs in the place of the store's."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "analysis.md").read_text(), re.DOTALL)
    monkeypatch.setattr("analysis.store.load.load", lambda **_: planted())
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/analysis.md", "exec"), names)
    results = {name: value for name, value in names.items() if isinstance(value, Result)}
    assert {type(result).__name__ for result in results.values()} == {"Result", "Compared"}
    assert all(result.figure().axes for result in results.values())


def test_a_result_shows_table_and_sentences_in_a_notebook() -> None:
    frame = planted()
    result = analysis.compare(frame, analysis.CompareOptions(a="device=One", b="device=Two"))
    page = result._repr_html_()
    assert "<table" in page
    assert "Ratios are One over Two in examples_per_second, above 1 where One is faster." in page
    assert repr(result) == result.text()
    ratio = BATCH**0.2
    row = result.families.iloc[0]
    assert (row["points"], row["wins"]) == (len(POINTS), (ratio > 1).sum())


def test_options_are_shared() -> None:
    assert all(issubclass(command.options, Options) for command in COMMANDS if command.analysis is not None)
