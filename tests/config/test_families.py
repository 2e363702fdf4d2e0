"""Every place that lists families agrees with the registry; what a new family still lacks is named."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import yaml

from analysis import drawing as style
from paradnn.cli.help import known_keys
from paradnn.config.families import FAMILIES, Family
from paradnn.config.families.synthetic import FullyConnected
from paradnn.costs import model_costs
from tests.conftest import ROOT


def named_in(path: str, table: str) -> set[str]:
    """The keys of a table of functions; the file is read, since importing a model imports Keras."""
    for node in ast.parse((ROOT / path).read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == table and isinstance(node.value, ast.Dict):  # type: ignore[attr-defined]
            return {ast.literal_eval(key) for key in node.value.keys if key}  # type: ignore[attr-defined]
    raise AssertionError(f"{path} has no table {table}")


def yaml_problem(family: Family) -> str:
    """What is wrong with the default configuration of a family."""
    path = Path("conf", "model", f"{family.name}.yaml")
    if not (ROOT / path).exists():
        return f"{path} is missing"
    given = yaml.safe_load((ROOT / path).read_text())
    options = {field.name for field in dataclasses.fields(family.options)}
    if given.get("name") != family.name or set(given) != options:
        return f"{path} must have name: {family.name} and the keys {', '.join(sorted(options))}"
    return ""


def problems() -> list[str]:
    """Everything that the registry and the other places do not agree in, a line each."""
    models = {name for name, family in FAMILIES.items() if not family.is_kernel}
    built = {name for name, family in FAMILIES.items() if not family.is_communication}
    tables = {
        ("paradnn/costs/__init__.py", "_LAYERS"): ("a cost function", models),
        ("paradnn/costs/kernels.py", "KERNELS"): ("a cost function", FAMILIES.keys() - models),
        ("paradnn/worker/models/__init__.py", "_BUILDERS"): ("a build function", built),
    }
    lines = []
    for (path, table), (what, wanted) in tables.items():
        names = named_in(path, table)
        lines += [f"{name} has no entry in {table} of {path}, {what}" for name in sorted(wanted - names)]
        lines += [f"{name} in {table} of {path} is not in FAMILIES" for name in sorted(names - FAMILIES.keys())]
    lines += [problem for family in FAMILIES.values() if (problem := yaml_problem(family))]
    readme = (ROOT / "README.md").read_text()
    lines += [f"{name} is not among the models in README.md" for name in FAMILIES if f"`{name}`" not in readme]
    return lines


def test_every_place_knows_every_family() -> None:
    assert problems() == []


def test_what_a_new_family_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "tomorrow", Family("tomorrow", FullyConnected, "vectors"))
    assert [line.partition(" of ")[0] for line in problems()] == [
        "tomorrow has no entry in _LAYERS",
        "tomorrow has no entry in _BUILDERS",
        "conf/model/tomorrow.yaml is missing",
        "tomorrow is not among the models in README.md",
    ]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_an_entry_is_whole(family: Family) -> None:
    fields = {field.name: field for field in dataclasses.fields(family.options)}
    assert family.name in fields["name"].metadata["choices"]
    assert isinstance(family.options(name=family.name).size, str)
    assert family.data in ("vectors", "images", "tokens")
    assert set(family.swept) <= set(fields)
    assert bool(family.swept) == bool(family.sweep)
    keys = [word.partition("=")[0] for word in family.sweep.split()]
    assert set(keys) <= set(known_keys())
    assert family.swept or family.is_real


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_family_has_costs_and_a_look_of_its_own(family: Family) -> None:
    model = dataclasses.asdict(family.options(name=family.name))
    costs = model_costs(model, batch_size=2, precision="float32", mode="train", optimizer="rmsprop")
    assert (costs.parameters == 0) == family.is_kernel
    assert (costs.flops_per_step == 0) == family.is_communication
    others = [name for name in FAMILIES if name != family.name]
    look = (style.colour_of(family.name), style.marker_of(family.name))
    assert look not in [(style.colour_of(name), style.marker_of(name)) for name in others]
