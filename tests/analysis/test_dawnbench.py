"""DAWNBench's files, written here as its README describes them, and what becomes of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.published.dawnbench import read_dawnbench
from paradnn.core.errors import DataError


def written(folder: Path) -> Path:
    for task in ("CIFAR10", "ImageNet", "SQuAD"):
        (folder / task / "train").mkdir(parents=True)
    cifar, imagenet = folder / "CIFAR10" / "train", folder / "ImageNet" / "train"
    (cifar / "one.tsv").write_text(
        "\ufeffepoch\thours\ttop1Accuracy\n1\t0.5\t90\n2\t1.0\t94.0\n3\t1.5\t93.9\n4\t2\t94.1\n"
    )
    about = {"model": "ResNet 9", "hardware": "V100", "costPerHour": 3.0, "timestamp": "2018-11-06"}
    (cifar / "one.json").write_text(json.dumps(about))
    (cifar / "broken.tsv").write_text("epoch\thours\ttop1Accuracy\n1\tsoon\t90\n")
    (imagenet / "two.tsv").write_text("hours\tepoch\ttop1Accuracy\ttop5Accuracy\n1\t0\t70\t92\n2\t1\t75\t93.5\n")
    (imagenet / "two.json").write_text(json.dumps(about | {"costPerHour": None, "model": "ResNet 50"}))
    (folder / "SQuAD" / "train" / "three.tsv").write_text("epoch\tf1Score\thours\n1\t0.7\t1\n2\t0.74\t3\n")
    return folder


def test_times_are_those_of_the_first_entry_at_the_threshold(tmp_path: Path) -> None:
    found = read_dawnbench(written(tmp_path))
    one, two, three = (run.metrics for run in found.runs)
    assert (one["seconds_to_target"], one["epochs_below_target"], two["epochs_below_target"]) == (3600, 1, 0)
    # Epochs that are counted from 0 were two when the second had ended.
    assert two["epochs_to_target"] == 2
    assert "seconds_to_target" not in three
    assert found.left_out == ["broken.tsv: could not convert string to float: 'soon'"]


def test_they_are_logged_once_and_scored_with_their_prices(
    tmp_path: Path, blank_store: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = written(tmp_path / "entries"), blank_store(tmp_path / "mlflow.db")
    assert main(["import-dawnbench", str(folder), "--store", store]) == 0
    assert "logged 3 published runs, none were there before, left out 1 damaged entry" in capsys.readouterr().out
    assert main(["import-dawnbench", str(folder), "--store", store]) == 0
    assert "logged 0 published runs, 3 were there already" in capsys.readouterr().out
    assert main(["time-to-accuracy", "--store", store, "--experiment", "dawnbench"]) == 0
    out = capsys.readouterr().out
    assert "ResNet 9 on V100" in out
    assert "cost 3 USD" in out


def test_a_folder_of_another_kind_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no series of DAWNBench"):
        read_dawnbench(tmp_path)
