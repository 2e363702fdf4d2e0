"""DAWNBench's files, written here as its README describes them, what becomes of them, and files
that are damaged.
"""

import random
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.published import source
from analysis.published.dawnbench import read_dawnbench
from paradnn.core.errors import DataError

ABOUT = '{"model": "ResNet 9", "hardware": "V100", "costPerHour": 3, "timestamp": "2018-11-06"}'
FILES = {
    "CIFAR10/train/one.tsv": "\ufeffepoch\thours\ttop1Accuracy\n1\t0.5\t90\n2\t1.0\t94.0\n3\t1.5\t93.9\n4\t2\t94.1\n",
    "CIFAR10/train/one.json": ABOUT,
    "CIFAR10/train/broken.tsv": "epoch\thours\ttop1Accuracy\n1\tsoon\t90\n",
    "ImageNet/train/two.tsv": "hours\tepoch\ttop1Accuracy\ttop5Accuracy\n1\t0\t70\t92\n2\t1\t75\t93.5\n",
    "ImageNet/train/two.json": ABOUT.replace("3,", "null,").replace("9", "50"),
    "SQuAD/train/three.tsv": "epoch\tf1Score\thours\n1\t0.7\t1\n2\t0.74\t3\n",
}
#: Values that no published file has, as they stand in JSON and in tables.
ODD = [
    "1" + "0" * 400,
    "[" * 100_000,
    "9" * 5_000,
    f'"{"x" * 200_000}"',
    '"\\ud800"',
    "Infinity",
    "NaN",
    "-1",
    "1e-320",
]
ODD += ["1e400", "null", "{}", "[]"]


def written(folder: Path, **changed: str) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(changed.get(name, text))
    return folder


def test_times_are_those_of_the_first_entry_at_the_threshold(tmp_path: Path) -> None:
    found = read_dawnbench(written(tmp_path))
    one, two, three = (run.metrics for run in found.runs)
    assert (one["seconds_to_target"], one["epochs_below_target"], two["epochs_below_target"]) == (
        3600,
        1,
        0,
    )
    # Epochs that are counted from 0 were two when the second had ended.
    assert two["epochs_to_target"] == 2
    assert "seconds_to_target" not in three
    assert found.left_out == ["broken.tsv: could not convert string to float: 'soon'"]


def test_they_are_logged_once_and_with_prices(
    tmp_path: Path, blank: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "entries")
    for logged, said in (
        (3, "none were there before, left out 1 damaged entry"),
        (0, "3 were there already"),
    ):
        assert main(["import-dawnbench", str(folder), "--store", blank]) == 0
        assert f"logged {logged} published runs, {said}" in capsys.readouterr().out
    assert main(["time-to-accuracy", "--store", blank, "--experiment", "dawnbench"]) == 0
    out = capsys.readouterr().out
    assert "ResNet 9 on V100" in out
    assert "cost 3 USD" in out


def damaged(text: str, chance: random.Random) -> str:
    """A text with a value or a sign of it changed, or cut."""
    place = chance.randrange(len(text))
    starts = [
        number
        for number, sign in enumerate(text)
        if sign.isdigit() and not text[number - 1].isdigit()
    ]
    start = chance.choice(starts)
    end = next(
        (number for number in range(start, len(text)) if not text[number].isdigit()), len(text)
    )
    kinds = [
        text[:start] + chance.choice(ODD) + text[end:],
        text[:place] + chance.choice('[]{}",\t\n\x00\x1b0-:é') + text[place + 1 :],
        text[:place],
    ]
    return chance.choices(kinds, (6, 2, 1))[0]


@pytest.mark.parametrize("name", ["CIFAR10/train/one.tsv", "CIFAR10/train/one.json"])
def test_whatever_stands_in_a_file_it_is_read_or_one_line(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    said = list[str]()
    for _ in range(40):
        found = read_dawnbench(written(tmp_path, **{name: damaged(FILES[name], chance)}))
        said += found.left_out
    assert len(said) >= 40, "one is damaged each time"
    assert all(len(line.splitlines()) == 1 and len(line) < 1_000 for line in said)


def test_another_folder_or_files_beyond_the_bound_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="holds no series of DAWNBench"):
        read_dawnbench(tmp_path)
    monkeypatch.setattr(source, "LARGEST", 10)
    with pytest.raises(DataError, match="holds no series"):
        read_dawnbench(written(tmp_path))
