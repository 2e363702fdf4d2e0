"""Files of others that are not what they claim to be: left out or refused, with one line, in bounds."""

import json
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.published import source
from analysis.published.archive import read_archive
from analysis.published.dawnbench import read_dawnbench
from analysis.published.deepbench import read_deepbench, read_workbook
from analysis.published.vidur import read_vidur
from paradnn.core.errors import DataError
from tests.analysis.deepbench import FLOAT, SPECS, folder_of, write

#: Values that no published file has, as they stand in JSON and in tables.
HUGE, DEEP, LONG = "1" + "0" * 400, "[" * 100_000, "x" * 200_000
ODD = [
    HUGE,
    DEEP,
    "9" * 5_000,
    f'"{LONG}"',
    '"\\ud800"',
    "Infinity",
    "NaN",
    "-1",
    "1e-320",
    "1e400",
    "null",
    "{}",
    "[]",
]
READERS: dict[str, Callable[[Path], object]] = {
    "CIFAR10/train/a.tsv": read_dawnbench,
    "CIFAR10/train/a.json": read_dawnbench,
    "h100_dgx/all_reduce.csv": read_vidur,
    "tpu_fc.json": read_archive,
}
_LISTS = {"labels": ["layer_4-node_32-input_8-output_2-bs_16"], "err_jobs": [], "states": []}
_ARCHIVE = _LISTS | {"example_per_sec": [1600], "step_per_sec": [100], "flops": [2], "fl": [3], "params": [5]}
CONTENTS = {
    "CIFAR10/train/a.tsv": "epoch\thours\ttop1Accuracy\n1\t0.5\t90\n2\t1.25\t94.5\n",
    "CIFAR10/train/a.json": '{"model": "ResNet", "hardware": "V100", "costPerHour": 3, "timestamp": "2018-11-06"}',
    "h100_dgx/all_reduce.csv": "time_stats.all_reduce.median,num_workers,size,devices_per_node\n0.5,2,1024,8\n",
    "tpu_fc.json": json.dumps(_ARCHIVE | {"intensity": [7]}),
}


def written(folder: Path, changed: str = "", content: str = "") -> Path:
    for name, text in (CONTENTS | ({changed: content} if changed else {})).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def damaged(text: str, chance: random.Random) -> str:
    """A text with a value or a sign of it changed, or cut."""
    place = chance.randrange(len(text))
    starts = [number for number, sign in enumerate(text) if sign.isdigit() and not text[number - 1].isdigit()]
    start = chance.choice(starts)
    end = next((number for number in range(start, len(text)) if not text[number].isdigit()), len(text))
    kinds = [
        text[:start] + chance.choice(ODD) + text[end:],
        text[:place] + chance.choice('[]{}",\t\n\x00\x1b0-:é') + text[place + 1 :],
        text[:place],
    ]
    return chance.choices(kinds, (6, 2, 1))[0]


@pytest.mark.parametrize("name", READERS)
def test_whatever_stands_in_a_file_it_is_read_or_one_line(name: str, tmp_path: Path) -> None:
    chance, said = random.Random(name), list[str]()
    for _ in range(40):
        folder = written(tmp_path, name, damaged(CONTENTS[name], chance))
        try:
            READERS[name](folder)
        except DataError as error:
            said.append(str(error))
    assert said or name == "CIFAR10/train/a.json"
    assert all(len(line.splitlines()) == 1 and len(line) < 1_000 for line in said)


def test_a_file_beyond_the_bound_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LARGEST", 100)
    with pytest.raises(DataError, match=r"tpu_fc.json is damaged: has \d+ bytes, more than 100; fetch it again"):
        read_archive(written(tmp_path))
    path = folder_of(tmp_path / "results") / "train" / "DeepBench_NV_V100.xlsx"
    with pytest.raises(DataError, match=r"is no spreadsheet: holds [\d,]+ bytes, more than 100; fetch it again"):
        read_workbook(path)


@pytest.mark.parametrize(
    ("cell", "value", "line"),
    [
        ("A1048576", "1", "sheet 'Results' has a cell beyond row 20,000 or column 200; fetch it again"),
        ("XFD60", "1", "sheet 'Results' has a cell beyond row 20,000 or column 200; fetch it again"),
        ("C4", HUGE, "m=1000.* is no size"),
        ("I4", HUGE, "time=1000.* is no positive number"),
        ("I4", "1e400", "time=inf is no positive number"),
        ("I4", "1e-30", "time=1e-30 is no positive number"),
    ],
)
def test_a_cell_that_no_sheet_has_is_one_line(cell: str, value: str, line: str, tmp_path: Path) -> None:
    """Far away, or beyond all measures; written into the XML itself."""
    path = write(tmp_path / "DeepBench_X.xlsx", {"Specs": SPECS, "Results": FLOAT})
    with zipfile.ZipFile(path) as source:
        parts = {name: source.read(name).decode() for name in source.namelist()}
    name, own = "xl/worksheets/sheet2.xml", f'<c r="{cell}" t="n"><v>'
    row = f'<row r="{cell.strip("ACIXFD")}">{own}{value}</v></c></row></sheetData>'
    changed = re.sub(f"(?<={own})[^<]*", value, parts[name])
    parts[name] = changed if own in changed else changed.replace("</sheetData>", row)
    with zipfile.ZipFile(path, "w") as target:
        for part, content in parts.items():
            target.writestr(part, content)
    with pytest.raises(DataError, match=line):
        read_deepbench(tmp_path)
