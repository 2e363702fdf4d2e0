"""An analysis in one file of another package, found by its entry point, is in help, command line and report."""

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

#: What a user does, in a process that finds the package.
PROGRAM = """
import contextlib, io, json, sys
import matplotlib
from analysis.cli import main

said = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    said.append([code, printed.getvalue()])
print(json.dumps(said))
"""


def test_an_analysis_of_another_package_is_in_everything(store: str, tmp_path: Path) -> None:
    chosen = ["--store", store, "--family", "fc"]
    page, table = tmp_path / "report.html", tmp_path / "spread.csv"
    lines = [
        ["--help"],
        ["spread", "--help"],
        ["spread", *chosen, "--csv", str(table), "--figure", str(tmp_path / "spread.png")],
        ["report", *chosen, "--out", str(page)],
    ]
    environ = {"PYTHONPATH": str(Path(__file__).with_name("plugin")), "PATH": "", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, json.dumps(lines)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told, own, found, _ = json.loads(done.stdout)
    assert "how far apart the runs of a family are" in told[1]
    assert "--metric M" in own[1]
    # 10 x batch / layers: from 10 x 16 / 5 to 10 x 80.
    assert "fc is spread by a factor of 25." in found[1]
    assert table.read_text().splitlines()[1] == "fc,32.0,800.0,25.0"
    assert (tmp_path / "spread.png").stat().st_size > 0
    written = page.read_text()
    assert written.index("Spread of the families") < written.index("What performance depends on")
    assert "python -m analysis spread" in written
