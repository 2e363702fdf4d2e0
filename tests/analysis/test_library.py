"""`analysis` as a library: public names, cost of imports, notebooks and plug-in analyses."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.cli import COMMANDS
from analysis.result import Result
from analysis.sides import Compared
from tests.analysis.planted import BATCH, POINTS, SIZE, runs
from tests.conftest import ROOT
from tests.processes import PATIENCE


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


def test_every_public_name_exists() -> None:
    assert all(getattr(analysis, name) is not None for name in analysis.__all__)
    assert set(analysis.__all__) <= set(dir(analysis))


def test_every_analysis_is_public() -> None:
    analyses = [command for command in COMMANDS if command.analysis is not None]

    assert {command.analysis.__name__ for command in analyses if command.analysis} <= set(
        analysis.__all__
    )


def test_an_unknown_public_name_raises_an_attribute_error() -> None:
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


@pytest.fixture(scope="module")
def one_against_two() -> Compared:
    return analysis.compare(planted(), analysis.CompareOptions(a="device=One", b="device=Two"))


def test_a_result_shows_the_answer_then_table_and_sentences_in_a_notebook(
    one_against_two: Compared,
) -> None:
    page = one_against_two._repr_html_()
    ratio = np.exp(np.log(BATCH**0.2).mean())

    assert page.startswith(f"<p>One is {ratio:.3g}x faster than Two (95% CI ")
    assert page.index("</p><table") < page.index("<p>One is faster on ")


def test_the_representation_of_a_result_is_its_text(one_against_two: Compared) -> None:
    assert repr(one_against_two) == one_against_two.text()


def test_a_comparison_has_a_table_of_families(one_against_two: Compared) -> None:
    row = one_against_two.families.iloc[0]

    assert (row["points"], row["wins"]) == (len(POINTS), (BATCH**0.2 > 1).sum())


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


@dataclass(frozen=True)
class PluginOutputs:
    """Outputs of command lines with a plug-in analysis `spread`.

    Attributes:
        help_of_all: Output of `--help`.
        help_of_plugin: Output of `spread --help`.
        answer: Output of `spread`.
        folder: Folder of the files `spread.csv`, `spread.png` and `report.html`.
    """

    help_of_all: str
    help_of_plugin: str
    answer: str
    folder: Path


@pytest.fixture(scope="module")
def plugin(store: str, tmp_path_factory: pytest.TempPathFactory) -> PluginOutputs:
    folder = tmp_path_factory.mktemp("plugin")
    selection = ["--store", store, "--family", "fc"]
    files = ["--csv", str(folder / "spread.csv"), "--figure", str(folder / "spread.png")]
    lines = [
        ["--help"],
        ["spread", "--help"],
        ["spread", *selection, *files],
        ["report", *selection, "--out", str(folder / "report.html")],
    ]
    environ = {
        "PYTHONPATH": str(Path(__file__).with_name("plugin")),
        "PATH": "",
        "HOME": str(folder),
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps(lines)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outputs = [output for _, output in json.loads(done.stdout)]
    return PluginOutputs(
        help_of_all=outputs[0],
        help_of_plugin=outputs[1],
        answer=outputs[2],
        folder=folder,
    )


def test_a_plug_in_analysis_appears_in_the_help(plugin: PluginOutputs) -> None:
    assert "how far apart the runs of a family are" in plugin.help_of_all
    assert "--metric M" in plugin.help_of_plugin


def test_a_plug_in_analysis_is_a_command(plugin: PluginOutputs) -> None:
    # The speeds are 10 x batch / layers, so they range from 10 x 16 / 5 to 10 x 80.
    assert "fc is spread by a factor of 25." in plugin.answer
    table = (plugin.folder / "spread.csv").read_text()
    assert table.splitlines()[1] == "fc,32.0,800.0,25.0"
    assert (plugin.folder / "spread.png").stat().st_size > 0


def test_a_plug_in_analysis_is_a_section_of_the_report(plugin: PluginOutputs) -> None:
    report = (plugin.folder / "report.html").read_text()

    assert report.index("Spread of the families") < report.index("What performance depends on")
    assert "python -m analysis spread" in report
