"""The command line of the analyses: options, exports, errors, help, and logged results."""

import json
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import COMMANDS, main
from analysis.store.frame import units
from analysis.store.load import load
from tests.analysis.conftest import copy_of
from tests.conftest import ROOT


def test_the_runs_command_counts_the_runs_of_the_store(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--store", store, "--unfinished", "--csv", "-"]) == 0

    table = pd.read_csv(StringIO(capsys.readouterr().out)).set_index(["family", "device"])
    assert list(table) == ["runs", "ok", "oom_device", "unfinished", "first", "last"]
    assert list(table.loc[("fc", "Test CPU, 2 cores")])[:4] == [31, 25, 5, 1]
    assert list(table.loc[("lstm", "Test GPU")])[:4] == [4, 4, 0, 0]
    assert table.loc[("fc", "Test CPU, 2 cores"), "first"] == "2025-10-09 08:54"
    assert main(["runs", "--store", store, "--family", "lstm,gru"]) == 0

    out = capsys.readouterr().out
    assert "lstm    Test GPU     4" in out
    assert out.startswith("4 runs of lstm on Test GPU, all measured.\n")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        pytest.param("--platform cpu --outcome ok", 25, id="platform and outcome"),
        pytest.param(
            "--device 'Test CPU, 2 cores' --since 2025-10-09T09:00", 24, id="device and start time"
        ),
        pytest.param(
            "--tag sweep_id=s1 --where 'batch_size>=48' --where model.layers=1,2",
            6,
            id="tag and conditions",
        ),
        pytest.param("--where precision!=float32 --reader api", 2, id="other reader"),
        pytest.param("--where 'device=Test CPU, 2 cores'", 30, id="value with a comma"),
        pytest.param("--experiment other --experiment paradnn", 35, id="two experiments"),
    ],
)
def test_selection_options_choose_runs(
    store: str, options: str, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "frame.csv"
    assert main(["export", str(path), "--store", store, *shlex.split(options)]) == 0
    assert len(pd.read_csv(path)) == count


def test_an_exported_parquet_file_keeps_types_and_units(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frame.parquet"
    assert main(["export", str(path), "--store", store]) == 0

    frame = load(store)
    pd.testing.assert_frame_equal(pd.read_parquet(path), frame)
    assert pd.read_parquet(path).attrs["units"] == units(frame.columns)
    assert capsys.readouterr().out == f"34 runs with {frame.shape[1]} columns written to {path}\n"


#: Pairs of a command line and a part of its error line; {folder} is replaced by an empty folder.
REJECTED = [
    (
        "runs --store sqlite:////nowhere/x.db",
        "no tracking store at sqlite:////nowhere/x.db: measure first",
    ),
    ("runs --experiment nope", "experiment=nope: no such experiment in the store"),
    ("runs --where batchsize=1", "--where=batchsize=1: these runs have no column batchsize"),
    (
        "runs --where model.layers=many",
        "--where=model.layers=many: 'many' is not a value of model.layers",
    ),
    ("runs --where nonsense", "--where=nonsense: is not a condition; for example, write"),
    ("compare a b", "A=a: is not a condition; for example, write 'model.nodes>=1024'"),
    ("boxplot --figure", "--figure: needs a value; python -m analysis boxplot --help shows how"),
    ("runs --since when", "since=when: is not a time"),
    ("runs --tag x", "'x' does not have the form "),
    ("runs --reader psychic", "--reader=psychic: no such choice"),
    ("runs --family ,", "--family"),
    ("runs --family fcc", "--family=fcc: unknown value; did you mean fc? choose from fc"),
    ("heatmap --y nodes --family fcc,fc", "--family=fcc: unknown value; did you mean fc?"),
    (
        "boxplot --family fc --figure '{folder}/out.gif'",
        "out.gif: has an unsupported suffix; name a .png, .svg or .pdf file",
    ),
    (
        "boxplot --family fc --width 3.3",
        "--width=3.3: needs a figure; name its file with --figure",
    ),
    (
        "boxplot --family fc --figure '{folder}/out.png' --width 1",
        "--width=1.0: must be at least 2.5",
    ),
    (
        "claims --only 15",
        (
            "--only=15: there is no such claim; choose one of 1, 2, 3, 4, 5, 6, 7, 8, 9, "
            "10, 11, 12, 13, 14"
        ),
    ),
    (
        "boxplot --family gru",
        "no run matches among 34 runs in the store; --family gru: the store has fc, lstm",
    ),
    (
        "boxplot --device 'Test GPUs'",
        "--device Test GPUs: did you mean Test GPU? the store has Test CPU",
    ),
    ("boxplot --outcome okk", "--outcome=okk: unknown value; did you mean ok? choose from ok"),
    ("boxplot --platform gpuu", "--platform=gpuu: unknown value; did you mean gpu? choose"),
    ("boxplot --family fc --platform gpu", "no run satisfies all of --family fc --platform gpu"),
    (
        "runs --store /none",
        "no tracking store at /none: give the path of an mlflow.db, of a Parquet store or",
    ),
    ("runs --store /nowhere", "no tracking store at /nowhere: give the path of an mlflow.db"),
    ("runs --store /tmp", "no tracking store at sqlite:////tmp/mlflow.db: measure first"),
    ("runs --csv /nowhere/x.csv", "--csv=/nowhere/x.csv: there is no folder /nowhere"),
    (
        "export frame.xlsx",
        "FILE=frame.xlsx: has an unsupported suffix; name a .csv, .parquet or .zip file",
    ),
    ("export /nowhere/x.csv", "FILE=/nowhere/x.csv: there is no folder /nowhere"),
    (
        "report --out /nowhere/report.html",
        "--out=/nowhere/report.html: there is no folder /nowhere; name a",
    ),
    ("report --out '{folder}'", "is a folder; name a file in a folder that exists"),
    ("report --out '{folder}/report.txt'", "has an unsupported suffix; name a .html file"),
    (
        "report --out '{folder}/r.html' --family gru",
        "no run matches among 34 runs in the store; --family gru: the store has",
    ),
    (
        "report --out '{folder}/r.html' --experiment Default",
        "no run in the store; measure first, with python",
    ),
    (
        "report --out '{folder}/r.html' --price V100=2",
        "no run used that device; name one of Test CPU",
    ),
    (
        "report --out '{folder}/r.html' --price 'Test GPU=-1'",
        "is not a positive price; for example, write 'V100=2'",
    ),
    (
        "import-dawnbench",
        (
            "DIR=(none): import-dawnbench reads files that the package does not contain; "
            "give a clone of"
        ),
    ),
    ("import-dawnbench /no/such/folder", "/no/such/folder: is not a folder; give a clone of"),
    (
        "import-vidur /no/such/folder",
        (
            "DIR=/no/such/folder: import-vidur takes no folder, because the package contains "
            "its runs; omit it"
        ),
    ),
    ("import-archive /no/such/folder", "DIR=/no/such/folder: import-archive takes no folder"),
    ("import-deepbench .", "DIR=.: import-deepbench takes no folder"),
    ("import-tiny .", "DIR=.: import-tiny takes no folder"),
    ("import-layers .", "DIR=.: import-layers takes no folder"),
    ("import-archive --experiment a --experiment b", "runs can be written to only one experiment"),
]


@pytest.mark.parametrize(
    ("words", "message"), [pytest.param(words, message, id=words) for words, message in REJECTED]
)
def test_invalid_commands_print_one_line(
    store: str, words: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = shlex.split(words.format(folder=tmp_path))
    if "--store" not in arguments:
        arguments += ["--store", store]

    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


#: Program that prints the help of every command and then the names of the imported modules.
HELP_PROGRAM = """
import contextlib, sys
from analysis.cli import COMMANDS, main

for name in (None, *(command.name for command in COMMANDS)):
    with contextlib.suppress(SystemExit):
        main([name, "--help"] if name else ["--help"])
    print(end="\\0")
print(*sys.modules)
"""


def test_every_command_has_help_without_heavy_imports() -> None:
    *texts, modules = subprocess.check_output(
        [sys.executable, "-c", HELP_PROGRAM], cwd=ROOT, text=True
    ).split("\0")
    for text, command in zip(texts, (None, *COMMANDS), strict=True):
        assert (command.example if command else "import-archive") in text

    assert not {"mlflow", "pandas", "matplotlib"} & {*modules.split()}


def test_a_closed_pipe_is_not_an_error_of_the_module(store: str) -> None:
    command = f"{sys.executable} -m analysis runs --store '{store}' --csv - | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "0\n"
    assert done.stderr == ""


def test_shipped_runs_are_logged_once(blank: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After the import, `breakdown` shows the imported tables of layer types."""
    for logged, present in ((8, "0 already there"), (0, "8 already there")):
        assert main(["import-layers", "--store", blank]) == 0
        hint = "Look at them: python -m analysis breakdown --experiment layers\n"
        assert capsys.readouterr().out == f"logged {logged} published runs, {present}\n{hint}"
    selection = ["--experiment", "layers", "--device", "Jetson TK1 (CPU)"]

    assert main(["breakdown", "--store", blank, *selection]) == 0
    assert "vgg16, 1 profiled point: Convolution 93%" in capsys.readouterr().out


def test_width_sets_the_width_of_a_printed_figure(store: str, tmp_path: Path) -> None:
    pdf = tmp_path / "out.pdf"
    png = tmp_path / "out.png"
    command = ["boxplot", "--store", store, "--family", "fc"]

    assert main([*command, "--figure", str(pdf), "--figure", str(png), "--width", "3.3"]) == 0

    box = re.search(rb"/MediaBox \[ ([\d.]+) [\d.]+ ([\d.]+) [\d.]+ \]", pdf.read_bytes())
    assert float(box[2]) - float(box[1]) == pytest.approx(3.3 * 72)
    assert int.from_bytes(png.read_bytes()[16:20]) == 990  # 300 dots per inch


def test_a_logged_result_links_its_sources(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = copy_of(store, tmp_path)
    assert main(["boxplot", "--store", uri, "--tag", "sweep_id=s1", "--log"]) == 0

    run_id = capsys.readouterr().err.removeprefix("logged as run ").strip()
    logged = load(uri, kind="analysis")

    assert list(logged["run_id"]) == [run_id]

    row = logged.iloc[0]
    sources = load(uri, tags={"sweep_id": "s1"})

    assert row["sources"] == ",".join(sources["run_id"])
    assert (row["source_count"], row["source_sweeps"], row["analysis"]) == ("25", "s1", "boxplot")
    assert row["command_line"].endswith("boxplot --store " + uri + " --tag sweep_id=s1 --log")

    folder = Path(row["artifact_uri"].removeprefix("file://"))
    names = {
        "result.json",
        "result.txt",
        "sources.json",
        "quality.json",
        "figure.png",
        "figure.svg",
    }

    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "sources.json").read_text()) == list(sources["run_id"])
    assert len(load(uri)) == len(load(store)), "a logged result must not count as a point"
