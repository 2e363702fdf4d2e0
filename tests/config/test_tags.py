"""User-defined tags: valid names and values, and protection of ParaDnn's own tags."""

import pytest

from paradnn.config.tags import read_tags
from paradnn.core.errors import ConfigError

PARAMETERS = ("model", "batch_size")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("vision", "vision", id="text"),
        pytest.param(7, "7", id="number"),
        pytest.param(True, "true", id="boolean as Hydra writes it"),
        pytest.param("x" * 5000, "x" * 5000, id="longest allowed text"),
    ],
)
def test_values_of_tags_become_text(value: object, text: str) -> None:
    assert read_tags({"team": value}, PARAMETERS) == {"team": text}


def test_a_null_value_removes_the_tag() -> None:
    assert read_tags({"team": None, "ticket": "A-1"}, PARAMETERS) == {"ticket": "A-1"}


def test_nested_names_are_joined_with_dots() -> None:
    assert read_tags({"ci": {"job": {"id": 5}}}, PARAMETERS) == {"ci.job.id": "5"}


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        pytest.param({"outcome": "ok"}, "reserved for ParaDnn", id="own tag"),
        pytest.param({"mlflow": {"user": "me"}}, "reserved for ParaDnn", id="tag of MLflow"),
        pytest.param({"version": {"keras": 1}}, "reserved for ParaDnn", id="version"),
        pytest.param({"batch_size": 1}, "reserved for ParaDnn", id="parameter"),
        pytest.param({"model": {"name": 1}}, "reserved for ParaDnn", id="dotted parameter"),
        pytest.param({"a=b": 1}, "not a valid name", id="sign"),
        pytest.param({"x" * 251: 1}, "not a valid name", id="long name"),
        pytest.param({"team": [1, 2]}, "expects one value", id="list"),
        pytest.param({"team": "x" * 5001}, "is too long", id="long value"),
        pytest.param("team", "expects names with values", id="not a mapping"),
    ],
)
def test_invalid_tags_are_rejected(tags: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_tags(tags, PARAMETERS)
