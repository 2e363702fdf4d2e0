"""Command lines of `paradnn compare` and `paradnn gate`: sides, options, and invalid input."""

import shlex

import pytest

from paradnn.compare import __main__ as command
from paradnn.compare import gate
from paradnn.compare.arguments import COMMAND_MINUTES, read_arguments
from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, Rule
from tests.compare.conftest import Call


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("compile=graph compile=xla -- model=fc batch_size=16,64", id="after dashes"),
        pytest.param("compile=graph compile=xla model=fc batch_size=16,64", id="without dashes"),
        pytest.param(
            "--rounds 7 compile=graph compile=xla model=fc --most=9 batch_size=16,64",
            id="options between overrides",
        ),
        pytest.param(
            "compile=graph compile=xla 'overrides=model=fc batch_size=16,64'",
            id="overrides as one parameter",
        ),
    ],
)
def test_the_first_two_words_are_the_sides_and_the_others_are_common(line: str) -> None:
    options = read_arguments(shlex.split(line))
    assert [label for label, _ in options.sides] == ["compile=graph", "compile=xla"]
    assert options.common == ["model=fc", "batch_size=16,64"]


def test_options_set_the_rule() -> None:
    options = read_arguments(shlex.split("--rounds 7 compile=graph compile=xla --most=9"))
    assert options.rule == Rule(least=7, most=9)


def test_a_side_of_several_overrides_is_one_quoted_word() -> None:
    first, second = read_arguments(
        ["framework=jax '+framework.env.JAX_X=a b'", "framework=tensorflow"]
    ).sides
    assert first[1] == ["framework=jax", "+framework.env.JAX_X=a b"]
    assert second[1] == ["framework=tensorflow"]


def test_commands_have_more_rounds_and_a_limit_in_minutes() -> None:
    settings = read_arguments(["a=1", "a=2"])
    commands = read_arguments(["one", "other"])

    assert (settings.rule, settings.minutes) == (Rule(), None)
    assert (commands.rule, commands.minutes) == (Rule(most=COMMAND_ROUNDS), COMMAND_MINUTES)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("--null", [], id="default command"),
        pytest.param("--null one", ["one"], id="one word"),
        pytest.param("--null one one", ["one"], id="one command twice"),
        pytest.param("--null -- one", ["one"], id="one word after dashes"),
        pytest.param("--null -- python -c pass", ["python -c pass"], id="words after dashes"),
        pytest.param(
            "--null --minutes 1 -- python x.py --null",
            ["python x.py --null"],
            id="option of the command",
        ),
        pytest.param("--null -- A=1 python x.py", ["A=1 python x.py"], id="variable assignment"),
        pytest.param("--commits a b -- make bench", ["make bench"], id="commits"),
    ],
)
def test_words_after_dashes_are_one_command(line: str, words: list[str]) -> None:
    assert read_arguments(shlex.split(line)).words == words


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("--null a=1 a=1 -- model=fc", id="dashes after the sides"),
        pytest.param("--null -- a=1 a=1 model=fc", id="dashes before the sides"),
        pytest.param("--null a=1 a=1 model=fc", id="without dashes"),
    ],
)
def test_null_compares_equal_settings(line: str) -> None:
    options = read_arguments(shlex.split(line))
    assert [overrides for _, overrides in options.sides] == [["a=1"], ["a=1"]]
    assert options.common == ["model=fc"]


#: Command line of an invalid gate, and a part of its error.
GATE_ERRORS = {
    "--base main --slower fast -- true": "--slower=fast: must be a share",
    "--base main --slower nan -- true": "--slower=nan: must be a share",
    "--base main": "one command is needed after --",
    "-- true": "--base",
    "--base main --metric json:score -- true": "add --higher or --lower",
}
#: Command line of an invalid comparison, and a part of its error.
COMPARE_ERRORS = {
    "--metric '(' true false": "--metric=(: is not a regular expression",
    "--metric none true false": "--metric=none: has 0 groups, but needs exactly one",
    "--metric '(two) (groups)' true false": (
        "--metric=(two) (groups): has 2 groups, but needs exactly one"
    ),
    "--metric '(.*)' true false": "does not show whether a larger number is faster",
    "--metric json:a.b true false": "does not show whether a larger number is faster",
    "--metric json:rate --higher --lower true false": "not allowed with",
    "true ''": "command=",
    "true 'no-such-program-anywhere -x'": "program no-such-program-anywhere not found",
    'true "ls \'a"': "cannot be split",
    "true": "commands=true: 2 commands are needed, 1 given",
    "--null true false": "commands=true false: 1 command is needed, 2 given",
    "true true": "both sides are equal; give two different sides, or add --null",
    "--timeout -1 true false": "--timeout=-1: must be positive",
    "--warmup -1 true false": "--warmup=-1: must be at least 1",
    "--exit-codes a true false": "--exit-codes=a: is not a list of numbers",
    "--metric cpu a.py:f a.py:g": "--metric=cpu: applies to commands, not to functions",
    "--prepare x a.py:f a.py:g": "--prepare=x: applies to commands, not to functions",
    "--prepare x compile=xla compile=graph": "--prepare=x: applies only to commands",
    "--lower compile=xla compile=graph": "--lower=true: applies only to commands",
    "--null --commits a b -- true": "options=--commits --null: --commits compares two commits, but",
    "compile=xla 'compile=graph compile=eager'": (
        "side=compile=graph compile=eager: sets compile twice; give it one"
    ),
    "compile=xla compile=xla": (
        "sides=compile=xla: both sides are equal; give two different sides, or add --null"
    ),
    "--null compile=xla compile=graph": (
        "--null=compile=xla, compile=graph: compares a setting with itself, but these two settings differ"
    ),
    "compile=xla": "a comparison needs two settings, not 1",
    "compile=xla fast": "sides=compile=xla: one side is a setting, the other a command",
    "compile=xla compile=graph batch_size=4 fast": "override=fast: is not an override",
    "compile=xla ''": ": is empty",
    "batch_size=4,8 batch_size=16": (
        "batch_size=4,8: has several values, but each side needs exactly one; write keys with several values after both sides"
    ),
    "compile=xla compile=graph compile=eager": "compile=eager: is already set by one of the two sides",
    "compile=xla compile=graph replicate=0,1": (
        "replicate=0,1: cannot be set in a comparison; omit it, because each round measures"
    ),
    "replicate=1 compile=graph": "replicate=1: cannot be set in a comparison",
    "compile=xla compile=graph sweep.sample=4": (
        "sweep.sample=4: cannot be set in a comparison; omit it, because every point"
    ),
    "compile=xla compile=graph sweep.design=adaptive": (
        "cannot be set in a comparison; omit it, because every point"
    ),
    "compile=xla compile=graph sweep.minutes=5": (
        "sweep.minutes=5: cannot be set in a comparison; use --minutes or"
    ),
    "tracking=offline compile=graph": (
        "tracking=offline: cannot differ between the two sides; write it once, after both sides"
    ),
    "compile=xla compile=graph --rounds 4": "--rounds=4: must be at least 5",
    "compile=xla compile=graph --most 6 --rounds 7": "--most=6: is less than --rounds=7; raise --most, or lower --rounds",
    "compile=xla compile=graph --within 2": "--within=2: must be a share from 0.01% to 100%",
    "compile=xla compile=graph --equivalence nan": "--equivalence=nan: must be a share",
    "compile=xla compile=graph --minutes 0": "--minutes=0: must be positive",
    "compile=xla compile=graph --most many": "--most=many: must be at least 5",
    "compile=xla compile=graph -m": (
        "unrecognized arguments: -m; python -m paradnn.compare --help shows how"
    ),
    "compile=xla compile=graph --round 7": "unrecognized arguments: --round",
    "'compile=\"xla' compile=graph": "cannot be split",
}


@pytest.mark.parametrize(("line", "message"), GATE_ERRORS.items())
def test_invalid_input_of_a_gate_prints_one_line(call: Call, line: str, message: str) -> None:
    outcome = call(gate.main, shlex.split(line))
    assert outcome.code == 2
    assert outcome.errors.count("\n") == 1
    assert message in outcome.errors


@pytest.mark.parametrize(("line", "message"), COMPARE_ERRORS.items())
def test_invalid_input_of_a_comparison_prints_one_line(call: Call, line: str, message: str) -> None:
    outcome = call(command.main, shlex.split(line))
    assert outcome.code == 2
    assert outcome.errors.count("\n") == 1
    assert message in outcome.errors
