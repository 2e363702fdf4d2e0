"""Errors: one line with the problem, required values, and groups without data."""

import pytest

from paradnn.core.errors import (
    ConfigError,
    InsufficientData,
    UnavailableError,
    require_value,
    reraise_as_unavailable,
)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param("no such file\nin ...", "it: no such file; try", id="first line"),
        pytest.param("", "it: OSError; try", id="no message"),
    ],
)
def test_an_expected_exception_becomes_an_unavailable_error(message: str, reason: str) -> None:
    with (
        pytest.raises(UnavailableError) as caught,
        reraise_as_unavailable("it", OSError, remedy="; try"),
    ):
        raise OSError(message)

    assert str(caught.value) == reason


def test_other_exceptions_are_not_converted() -> None:
    with pytest.raises(KeyError), reraise_as_unavailable("it", OSError):
        raise KeyError("x")


def test_a_required_value_has_a_default_remedy() -> None:
    require_value("compile", "xla", required="xla", reason="never")

    with pytest.raises(ConfigError, match=r"^profile=true: is new; set profile=false$"):
        require_value("profile", True, required=False, reason="is new")
    with pytest.raises(ConfigError, match=r"^devices=2: is for one; omit it$"):
        require_value("devices", 2, required=1, reason="is for one", remedy="omit it")


def test_groups_with_the_same_problem_are_named_together() -> None:
    group_errors = [
        *(InsufficientData("no run has latency", group=f"fc {nodes}") for nodes in range(5)),
        InsufficientData("there is one point", group="lstm"),
    ]

    error = InsufficientData("nothing to compare", groups=group_errors, remedy="measure more")

    assert str(error) == (
        "nothing to compare: no run has latency (fc 0, fc 1, fc 2 and 2 more); "
        "lstm: there is one point; measure more"
    )
