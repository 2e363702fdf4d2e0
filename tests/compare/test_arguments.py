"""The command line of a comparison: what is a side, what is common, and what is said of a wrong one."""

import pytest

from paradnn.compare.arguments import read_arguments
from paradnn.core.errors import ParadnnError


@pytest.mark.parametrize(
    "words",
    [
        ["compile=graph", "compile=xla", "--", "model=fc", "batch_size=16,64"],
        ["compile=graph", "compile=xla", "model=fc", "batch_size=16,64"],
        ["--rounds", "7", "compile=graph", "compile=xla", "model=fc", "--most=9", "batch_size=16,64"],
        ["compile=graph", "compile=xla", "overrides=model=fc batch_size=16,64"],
    ],
)
def test_the_first_two_words_are_the_sides_and_the_rest_is_common(words: list[str]) -> None:
    request = read_arguments(words)
    assert [label for label, _ in request.sides] == ["compile=graph", "compile=xla"]
    assert request.common == ["model=fc", "batch_size=16,64"]
    if "--rounds" in words:
        assert (request.rule.least, request.rule.most) == (7, 9)


def test_a_side_of_several_overrides_is_one_quoted_word() -> None:
    first, second = read_arguments(["framework=jax '+framework.env.JAX_X=a b'", "framework=tensorflow"]).sides
    assert first[1] == ["framework=jax", "+framework.env.JAX_X=a b"]
    assert second[1] == ["framework=tensorflow"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compile=xla", "two sides are needed"),
        (
            "compile=xla 'compile=graph compile=eager'",
            "side=compile=graph compile=eager: sets compile twice; give it one value",
        ),
        ("compile=xla compile=xla", "sides=compile=xla: both are the same; give two that differ, or add --null"),
        ("--null compile=xla compile=graph", "--null=compile=xla, compile=graph: the sides differ"),
        ("compile=xla fast", "sides=compile=xla: one side is a setting, the other a command"),
        ("compile=xla compile=graph batch_size=4 fast", "override=fast: is no override"),
        ("compile=xla ''", "side=''?: is empty"),
        ("batch_size=4,8 batch_size=16", "batch_size=4,8: a side is one setting; write axes after both sides"),
        ("compile=xla compile=graph compile=eager", "compile=eager: a side sets it too"),
        ("compile=xla compile=graph replicate=0,1", "replicate=0,1: is not yours to set here; a round measures"),
        ("replicate=1 compile=graph", "replicate=1: is not yours to set here"),
        ("compile=xla compile=graph sweep.sample=4", "sweep.sample=4: is not yours to set here"),
        ("compile=xla compile=graph sweep.design=adaptive", "sweep.design=adaptive: is not yours to set here; every"),
        ("compile=xla compile=graph sweep.minutes=5", "sweep.minutes=5: is not yours to set here; --minutes and"),
        ("tracking=offline compile=graph", "tracking=offline: is no setting of a side; write it after both sides"),
        ("compile=xla compile=graph --rounds 4", "--rounds=4: must be at least 5"),
        ("compile=xla compile=graph --most 6 --rounds 7", "--most=6: is less than --rounds=7; raise it"),
        ("compile=xla compile=graph --within 2", "--within=2: must be a share from 0.01% to 100%"),
        ("compile=xla compile=graph --equivalence nan", "--equivalence=nan: must be a share"),
        ("compile=xla compile=graph --minutes 0", "--minutes=0: must be positive"),
        ("compile=xla compile=graph --most many", "--most=many: must be at least 5"),
        ("compile=xla compile=graph -m", "unrecognized arguments: -m; python -m paradnn.compare --help shows how"),
        ("compile=xla compile=graph --round 7", "unrecognized arguments: --round"),
        ("'compile=\"xla' compile=graph", "cannot be split"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(words: str, message: str) -> None:
    import re
    import shlex

    with pytest.raises(ParadnnError, match=re.escape(message).replace(re.escape("''?"), "'?'?")) as caught:
        read_arguments(shlex.split(words))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
