"""Files of others that are not what they claim to be: left out or refused, with one line, in bounds."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.published import source
from analysis.published.dawnbench import read_dawnbench
from paradnn.core.errors import DataError

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
}
CONTENTS = {
    "CIFAR10/train/a.tsv": "epoch\thours\ttop1Accuracy\n1\t0.5\t90\n2\t1.25\t94.5\n",
    "CIFAR10/train/a.json": '{"model": "ResNet", "hardware": "V100", "costPerHour": 3, "timestamp": "2018-11-06"}',
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


def test_a_file_beyond_the_bound_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LARGEST", 10)
    task = written(tmp_path) / "SQuAD" / "train"
    task.mkdir(parents=True)
    (task / "b.tsv").write_text("")
    with pytest.raises(DataError, match="holds no series"):
        read_dawnbench(tmp_path)
    monkeypatch.setattr(source, "LARGEST", 1_000)
    assert len(read_dawnbench(tmp_path).runs) == 1
