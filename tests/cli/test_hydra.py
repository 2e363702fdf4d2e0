"""Options and override functions of Hydra work as Hydra documents them."""

import csv
import re
from pathlib import Path

import pytest
import yaml

from paradnn.cli.overrides import HYDRA_OPTIONS
from tests.conftest import TINY, Store, process, run, succeeded


def swept_models(tmp_path: Path, *overrides: str) -> set[str]:
    """Return the families of a sweep's points, as listed by `paradnn.plan`."""
    path = tmp_path / "points.csv"
    command = ["paradnn.plan", f"plan.out={path}", *overrides]
    succeeded(command, Store(tmp_path))
    with path.open() as file:
        return {row["model.name"] for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("pattern", "families"),
    [
        pytest.param("glob(rn*)", {"rnn", "rnn_kernel"}, id="one pattern"),
        pytest.param("glob([rnn,l*m])", {"rnn", "lstm"}, id="several patterns"),
        pytest.param("glob(r*,exclude=re*)", {"rnn", "rnn_kernel"}, id="exclusion"),
        pytest.param(
            "glob(r*,exclude=[ret*,resnet*,rnn])",
            {"residual", "rnn_kernel"},
            id="several exclusions",
        ),
    ],
)
def test_glob_selects_matching_options(pattern: str, families: set[str], tmp_path: Path) -> None:
    assert swept_models(tmp_path, "-m", f"model={pattern}") == families


def test_hydra_mode_selects_a_multirun(tmp_path: Path) -> None:
    models = swept_models(tmp_path, "hydra.mode=MULTIRUN", "model=lstm,gru", "model.layers=2")
    assert models == {"lstm", "gru"}


def test_axes_can_be_set_as_sweeper_params(tmp_path: Path) -> None:
    axes = "hydra.sweeper.params={model:'lstm,gru'}"
    assert swept_models(tmp_path, "-m", axes) == {"lstm", "gru"}


def test_options_may_follow_overrides(tmp_path: Path) -> None:
    assert swept_models(tmp_path, "model=lstm,gru", "-m", "model.layers=2") == {"lstm", "gru"}


@pytest.mark.parametrize("command", ["train", "plan", "ceilings"])
def test_cfg_prints_the_composed_configuration_and_measures_nothing(
    command: str, tmp_path: Path
) -> None:
    done = succeeded([f"paradnn.{command}", *TINY, "--cfg", "job", "model=fc"], Store(tmp_path))

    composed = yaml.safe_load(done.stdout)

    assert composed["model"] == {
        "name": "fc",
        "layers": 1,
        "nodes": 8,
        "input_size": 16,
        "output_size": 4,
    }
    assert composed["measure"]["processes"] == 1
    assert not list(tmp_path.iterdir()), "the command must not create a store"


def test_cfg_with_a_package_prints_only_the_package(tmp_path: Path) -> None:
    done = succeeded(["paradnn.train", "--cfg", "job", "--package", "model"], Store(tmp_path))
    assert done.stdout.startswith("# @package model\nname: fc\n")


@pytest.mark.parametrize("command", ["train", "plan", "ceilings"])
@pytest.mark.parametrize(
    ("words", "heading"),
    [
        pytest.param(["--info"], "Config search path", id="all topics"),
        pytest.param(["--info", "model=lstm"], "| model/lstm ", id="before an override"),
        pytest.param(["model=lstm", "--info", "defaults"], "| model/lstm ", id="one topic"),
        pytest.param(["--info=plugins"], "ParadnnSweeper", id="plug-ins"),
    ],
)
def test_info_describes_the_composition_and_measures_nothing(
    command: str, words: list[str], heading: str, tmp_path: Path
) -> None:
    done = run([f"paradnn.{command}", *words], Store(tmp_path))

    assert done.returncode == 0
    assert heading in done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "the command must not create a store"


def test_the_known_options_equal_those_of_the_installed_hydra(tmp_path: Path) -> None:
    page = process(["paradnn.train", "--hydra-help"], Store(tmp_path)).stdout

    listed = re.findall(r"^(-[-\w]+(?:,-[-\w]+)*) : (.*)$", page, re.MULTILINE)
    choices = {}
    for names, text in listed:
        values = re.search(r"\[(\w+(?:\|[\w-]+)+)\]", text)
        for name in names.split(","):
            choices[name] = tuple(values[1].split("|")) if values else ()

    assert choices == {name: option.choices for name, option in HYDRA_OPTIONS.items()}
