"""Import of DAWNBench files, including damaged ones.

The test files follow the description in DAWNBench's README.
"""

import random
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.published import source
from analysis.published.dawnbench import read_dawnbench
from paradnn.core.errors import DataError

DETAILS = '{"model": "ResNet 9", "hardware": "V100", "costPerHour": 3, "timestamp": "2018-11-06"}'
FILES = {
    "CIFAR10/train/one.tsv": (
        "\ufeffepoch\thours\ttop1Accuracy\n1\t0.5\t90\n2\t1.0\t94.0\n3\t1.5\t93.9\n4\t2\t94.1\n"
    ),
    "CIFAR10/train/one.json": DETAILS,
    "CIFAR10/train/broken.tsv": "epoch\thours\ttop1Accuracy\n1\tsoon\t90\n",
    "ImageNet/train/two.tsv": (
        "hours\tepoch\ttop1Accuracy\ttop5Accuracy\n1\t0\t70\t92\n2\t1\t75\t93.5\n"
    ),
    "ImageNet/train/two.json": DETAILS.replace("3,", "null,").replace("9", "50"),
    "SQuAD/train/three.tsv": "epoch\tf1Score\thours\n1\t0.7\t1\n2\t0.74\t3\n",
}
#: Invalid or extreme values, written as in JSON and in tables. No published file contains them.
ODD_VALUES = [
    "1" + "0" * 400,
    "[" * 100_000,
    "9" * 5_000,
    f'"{"x" * 200_000}"',
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


def write_entries(folder: Path, **changes: str) -> Path:
    """Write FILES below a folder; `changes` overrides contents by file name."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changes.get(name, text))
    return folder


def test_the_time_to_target_ends_at_the_first_entry_that_reaches_it(tmp_path: Path) -> None:
    folder = read_dawnbench(write_entries(tmp_path))

    cifar, imagenet, squad = (run.metrics for run in folder.runs)

    assert cifar["seconds_to_target"] == 3600
    assert cifar["epochs_below_target"] == 1
    assert imagenet["epochs_below_target"] == 0
    assert "seconds_to_target" not in squad


def test_epochs_that_begin_at_zero_are_counted_from_one(tmp_path: Path) -> None:
    folder = read_dawnbench(write_entries(tmp_path))

    assert folder.runs[1].metrics["epochs_to_target"] == 2


def test_a_damaged_entry_is_skipped_with_its_reason(tmp_path: Path) -> None:
    folder = read_dawnbench(write_entries(tmp_path))

    assert folder.skipped_entries == ["broken.tsv: could not convert string to float: 'soon'"]


def test_entries_are_logged_once_and_keep_their_prices(
    tmp_path: Path, blank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_entries(tmp_path / "entries")

    assert main(["import-dawnbench", str(folder), "--store", blank]) == 0

    first = capsys.readouterr().out
    assert main(["import-dawnbench", str(folder), "--store", blank]) == 0

    second = capsys.readouterr().out
    assert main(["time-to-accuracy", "--store", blank, "--experiment", "dawnbench"]) == 0

    table = capsys.readouterr().out

    skipped = "skipped 1 damaged entry"

    assert f"logged 3 published runs, 0 already there, {skipped}" in first
    assert f"logged 0 published runs, 3 already there, {skipped}" in second
    assert "ResNet 9 on V100" in table
    assert "cost 3 USD" in table


def damage(text: str, generator: random.Random) -> str:
    """Return a text with a number or a character replaced, or truncated."""
    position = generator.randrange(len(text))
    starts = [
        number
        for number, character in enumerate(text)
        if character.isdigit() and not text[number - 1].isdigit()
    ]
    start = generator.choice(starts)
    end = start
    while end < len(text) and text[end].isdigit():
        end += 1
    other_number = text[:start] + generator.choice(ODD_VALUES) + text[end:]
    other_character = generator.choice('[]{}",\t\n\x00\x1b0-:é')
    damaged = [
        other_number,
        text[:position] + other_character + text[position + 1 :],
        text[:position],
    ]
    [damaged_text] = generator.choices(damaged, weights=(6, 2, 1))
    return damaged_text


@pytest.mark.parametrize("name", ["CIFAR10/train/one.tsv", "CIFAR10/train/one.json"])
def test_a_damaged_file_is_read_or_reported_in_one_line(name: str, tmp_path: Path) -> None:
    generator = random.Random(name)
    lines: list[str] = []

    for _ in range(40):
        folder = write_entries(tmp_path, **{name: damage(FILES[name], generator)})
        lines += read_dawnbench(folder).skipped_entries

    # Each of the 40 readings also reports broken.tsv.
    assert len(lines) >= 40
    assert all(len(line.splitlines()) == 1 for line in lines)
    assert all(len(line) < 1_000 for line in lines)


def test_a_folder_without_entries_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no DAWNBench results"):
        read_dawnbench(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_dawnbench(tmp_path / "missing")


def test_files_beyond_the_size_limit_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_FILE_BYTES", 10)

    with pytest.raises(DataError, match="contains no DAWNBench results"):
        read_dawnbench(write_entries(tmp_path))
