"""The command line of `paradnn best`: defaults and invalid input."""

import pytest

from paradnn.best.arguments import read_arguments
from paradnn.core.errors import ParadnnError


def test_the_protocol_is_quick_unless_another_is_given() -> None:
    quick = read_arguments(["model=fc", "compile=graph,xla", "--minutes", "3"])
    standard = read_arguments(["measure=standard", "compile=graph,xla"])

    assert quick.overrides == ["measure=quick", "model=fc", "compile=graph,xla"]
    assert quick.minutes == 3.0
    assert standard.overrides == ["measure=standard", "compile=graph,xla"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param([], "name the candidates, such as model=fc", id="nothing"),
        pytest.param(
            ["replicate=1,2"], "replicate=1,2: cannot be set with paradnn best", id="replicate"
        ),
        pytest.param(["sweep.minutes=3"], "sweep.minutes=3: cannot be set", id="sweep.minutes"),
        pytest.param(["a=1", "--minutes", "0"], "--minutes=0: must be positive", id="no time"),
        pytest.param(["a=1", "--for", "speed"], "--for=speed: no such choice", id="unknown goal"),
        pytest.param(
            ["a=1", "--margin", "2"], "--margin=2: must be a share", id="margin above 100%"
        ),
        pytest.param(
            ["a=1", "--epoch", "x"], "--epoch=x: must be at least 1", id="epoch not a number"
        ),
        pytest.param(
            ["a=1", "--minute", "3"], "unrecognized arguments: --minute", id="misspelled option"
        ),
    ],
)
def test_invalid_arguments_are_rejected(words: list[str], message: str) -> None:
    with pytest.raises(ParadnnError, match=message.replace("(", r"\(")):
        read_arguments(words)
