"""What every family says of itself."""

import dataclasses

import pytest

from analysis import drawing as style
from paradnn.cli.help import known_keys
from paradnn.families import FAMILIES, Family, model_of
from tests.conftest import ROOT


def test_readme_names_every_family() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in readme] == []


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_an_entry_is_whole(family: Family) -> None:
    fields = {field.name: field for field in dataclasses.fields(family.options)}
    assert isinstance(family.options(name=family.name).size, str)
    assert family.data in ("vectors", "images", "tokens", "any")
    assert set(family.swept) <= set(fields)
    assert family.sweep or not family.swept
    keys = [word.partition("=")[0] for word in family.sweep.split()]
    assert set(keys) <= set(known_keys())
    assert family.sweep or family.is_real or family.options.is_counted


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_family_has_costs_and_a_look_of_its_own(family: Family) -> None:
    model = dataclasses.asdict(family.options(name=family.name))
    costs = model_of(model).costs(batch_size=2, precision="float32", mode="train", optimizer="rmsprop")
    assert (costs.parameters == 0) == (family.is_kernel or family.options.is_counted)
    assert (costs.flops_per_step == 0) == (family.is_communication or family.options.is_counted)
    others = [name for name in FAMILIES if name != family.name]
    assert style.look(family.name) not in [style.look(name) for name in others]
