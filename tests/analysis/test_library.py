"""`analysis` as a library: public names, cost of imports, notebooks and plug-in analyses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.cli import COMMANDS
from analysis.result import Result
from tests.analysis.planted import BATCH, POINTS, SIZE, runs
from tests.conftest import ROOT


def planted() -> pd.DataFrame:
    """Return the factorial on two devices; device One is faster at large batch sizes."""
    sides = [
        runs(
            POINTS,
            device=device,
            environment_id=device,
            examples_per_second=BATCH**power / SIZE,
            parameters=SIZE**2,
        )
        for device, power in (("One", 0.7), ("Two", 0.5))
    ]
    frame = pd.concat(sides, ignore_index=True)
    return frame.assign(
        run_id=frame.index.astype("str"), start_time=pd.Timestamp("2026-01-31", tz="UTC")
    )


def test_every_public_name_exists_and_every_analysis_is_public() -> None:
    assert all(getattr(analysis, name) is not None for name in analysis.__all__)
    assert set(analysis.__all__) <= set(dir(analysis))

    analyses = [command for command in COMMANDS if command.analysis is not None]
    assert {command.analysis.__name__ for command in analyses if command.analysis} <= set(
        analysis.__all__
    )
    with pytest.raises(AttributeError, match="no attribute 'sensitivities'"):
        _ = analysis.sensitivities


def test_importing_options_and_reading_a_store_avoid_heavy_imports(
    store: str,
) -> None:
    code = "import sys; from analysis import SensitivityOptions, sensitivity; print(*sys.modules)\n"
    code += "from analysis.store.load import load; load(sys.argv[1]); print(*sys.modules)"
    done = subprocess.check_output([sys.executable, "-c", code, store], cwd=ROOT, text=True)
    options, reading = (set(line.split()) for line in done.splitlines())

    assert not {"mlflow", "pandas", "numpy", "matplotlib"} & options
    assert not {"mlflow", "tensorflow", "keras", "matplotlib"} & reading


def test_the_example_of_the_documentation_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The example loads planted runs instead of those of a store."""
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "analysis.md").read_text(), re.DOTALL
    )
    monkeypatch.setattr("analysis.store.load.load", lambda **_: planted())
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "docs/reference/analysis.md", "exec"), names)
    results = {name: value for name, value in names.items() if isinstance(value, Result)}

    assert {type(result).__name__ for result in results.values()} == {"Result", "Compared"}
    assert all(result.figure().axes for result in results.values())


def test_a_result_shows_table_and_sentences_in_a_notebook() -> None:
    frame = planted()
    result = analysis.compare(frame, analysis.CompareOptions(a="device=One", b="device=Two"))
    page = result._repr_html_()
    ratio = np.exp(np.log(BATCH**0.2).mean())

    assert page.startswith(f"<p>One is {ratio:.3g}x faster than Two (95% CI ")
    assert page.index("</p><table") < page.index("<p>One is faster on ")
    assert repr(result) == result.text()

    ratio = BATCH**0.2
    row = result.families.iloc[0]

    assert (row["points"], row["wins"]) == (len(POINTS), (ratio > 1).sum())


#: Program that runs command lines in one process and prints their exit codes and outputs.
PROGRAM = """
import contextlib, io, json, sys
import matplotlib
from analysis.cli import main

outcomes = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
    outcomes.append([code, printed.getvalue()])
print(json.dumps(outcomes))
"""


def test_a_plug_in_analysis_appears_in_help_commands_and_the_report(
    store: str, tmp_path: Path
) -> None:
    selection = ["--store", store, "--family", "fc"]
    page = tmp_path / "report.html"
    table = tmp_path / "spread.csv"
    lines = [
        ["--help"],
        ["spread", "--help"],
        ["spread", *selection, "--csv", str(table), "--figure", str(tmp_path / "spread.png")],
        ["report", *selection, "--out", str(page)],
    ]
    environ = {
        "PYTHONPATH": str(Path(__file__).with_name("plugin")),
        "PATH": "",
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps(lines)]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr

    help_of_all, help_of_plugin, answer, _ = json.loads(done.stdout)
    assert "how far apart the runs of a family are" in help_of_all[1]
    assert "--metric M" in help_of_plugin[1]
    # The speeds are 10 x batch / layers, so they range from 10 x 16 / 5 to 10 x 80.
    assert "fc is spread by a factor of 25." in answer[1]
    assert table.read_text().splitlines()[1] == "fc,32.0,800.0,25.0"
    assert (tmp_path / "spread.png").stat().st_size > 0

    report = page.read_text()
    assert report.index("Spread of the families") < report.index("What performance depends on")
    assert "python -m analysis spread" in report
