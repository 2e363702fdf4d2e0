"""Random input gives a valid point or a one-line error, but never a traceback."""

import copy
import random
import sys
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from paradnn import completion, listing, train
from paradnn.cli.commands import COMMANDS
from paradnn.cli.help import help_text, known_keys
from paradnn.cli.program import program
from paradnn.config.hydra_releases import VERSION_BASE, register_resolver
from paradnn.config.identity import point_id, point_request
from paradnn.config.point import Point
from paradnn.config.reading import read_point
from paradnn.config.settings import read_settings
from paradnn.config.space import plain
from paradnn.core.errors import ConfigError
from paradnn.families import FAMILIES
from paradnn.plan import split_options
from paradnn.session.design import Summary
from paradnn.session.record import run_name
from tests.conftest import ROOT, depth

KEYS = """model model.layers model.nodes model.input_size model.output_size model.blocks model.filters model.vocab_size
batch_size precision compile mode optimizer optimizer.learning_rate platform platform.threads framework framework.env
measure measure.min_seconds measure.min_blocks measure.timeout measure.memory_limit measure.predict_oom replicate seed
resume retry sweep sweep.sample sweep.order tracking.experiment data software foo model.foo experiment"""
VALUES = """0 1 -1 8 64 1e9 1e400 -0.0 nan inf null true false abc ä Ω 日本 '' "" ' " [ ] [] [1,2] [3,4,6,3] {}
{a:1} {a:{b:1}} ${x} ${oc.env:HOME} 1,2 fc lstm residual xla float32 sgd 99999999999999999999 8GiB auto 0x10 1_000
../x range(1,3) choice() interval(1,2) glob(*) a=b \\ %s {0} \x07 $HOME"""


def overrides(generator: random.Random) -> list[str]:
    """Return one to three random overrides, mostly of existing keys; some follow -m."""
    words = []
    for _ in range(generator.randint(1, 3)):
        prefix = generator.choice(["", "", "", "", "", "+", "++", "~"])
        words.append(f"{prefix}{generator.choice(KEYS.split())}={generator.choice(VALUES.split())}")
    return ["-m", *words] if generator.random() < 0.3 else words


def assert_usable(point: Point) -> None:
    """Assert that a point has costs, an identity and a name."""
    step = {
        "batch_size": point.batch_size,
        "precision": point.precision,
        "mode": point_request(point)["mode"],
    }
    point.model.costs(**step, optimizer=point.optimizer.name)
    assert point_id(point)
    assert run_name(point)


@pytest.mark.slow
@depth(20, 100)
def test_random_command_lines_are_valid_or_print_one_line(
    draws: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run `paradnn train` up to the first measurement, with random overrides."""
    accepted: list[Point] = []

    def accept(points: list[Point], settings: object, sweep: object) -> Summary:
        accepted.extend(points)
        for point in points:
            assert_usable(point)
        return Summary(len(points), interrupted=False, repeated=len(points))

    monkeypatch.setattr("paradnn.session.session.measure_points", accept)
    generator = random.Random(7)
    codes = []
    for _ in range(draws):
        arguments = overrides(generator)
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        codes.append(train.main())
        captured = capsys.readouterr()
        assert codes[-1] in (0, 2), arguments
        if codes[-1] == 2:
            lines = captured.err.strip().splitlines()
            assert len(lines) == 1, (arguments, captured.err)
            assert lines[0].startswith("error: ")
            assert len(lines[0]) > len("error: ")

    assert codes.count(2) > draws / 6
    assert accepted


def set_key(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested dictionaries; replace values that are in the way."""
    *folders, last = key.split(".")
    for name in folders:
        if not isinstance(content.get(name), dict):
            content[name] = {}
        content = content[name]
    content[last] = value


def parse_yaml(text: str) -> list[Any]:
    """Return a list of the parsed value, or an empty list if `text` is not valid YAML."""
    try:
        return [yaml.safe_load(text)]
    except yaml.YAMLError:
        return []


@depth(400, 10_000)
def test_random_configurations_are_valid_or_raise_a_one_line_error(draws: int) -> None:
    """Read configurations with random values at random keys, including some that Hydra rejects."""
    with initialize_config_dir(str(ROOT / "conf"), **VERSION_BASE):
        register_resolver("paradnn_help", help_text)
        configurations = [
            plain(compose("config", overrides=[f"model={family}"])) for family in FAMILIES
        ]
    values = [value for text in VALUES.split() for value in parse_yaml(text)]
    values += ["", " ", "a\nb", "x" * 5000, (), [], [1, 2], [3, 4, 6, 3], [[1]], ["fc"]]
    values += [{}, {"a": 1}, {"a": {"b": 1}}, {1: 2}, {"name": ["fc"]}]
    values += [True, -1, 0.5, 10**30, float("nan"), float("inf")]
    generator = random.Random(8)
    keys = [*known_keys(), "foo", "model.foo", "measure.foo"]
    valid = 0
    for _ in range(draws):
        content = copy.deepcopy(generator.choice(configurations))
        for _ in range(generator.randint(1, 3)):
            set_key(content, generator.choice(keys), generator.choice(values))
        message = ""
        try:
            read_settings(content)
            assert_usable(read_point(content))
        except ConfigError as error:
            message = str(error)
        assert len(message.splitlines()) <= 1, content
        valid += not message

    assert 0.01 < valid / draws < 0.8


def test_random_words_of_commands_that_measure_nothing_print_at_most_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run `list`, `completion` and the options of `plan` with random words.

    The words include very long ones, huge numbers and bytes that are not text.
    """
    generator = random.Random(9)
    codes = []
    unusual_words = [
        *VALUES.split(),
        "x" * 300,
        "9" * 5_000,
        "\udc80",
        "../../etc",
        "a/b",
        "\x1b[31m",
        "models",
        "keys",
        "model",
    ]
    first_words = [*COMMANDS, *unusual_words]
    commands = {
        "list": lambda: listing.main(generator.choices(unusual_words, k=generator.randint(1, 3))),
        "completion": lambda: completion.main(
            [f"paradnn {generator.choice(first_words)} {generator.choice(unusual_words)}"]
        ),
        "plan": lambda: program(
            lambda: len(split_options([f"plan.out={generator.choice(unusual_words)}"])) - 2
        )(),
    }
    for _ in range(300):
        codes.append(commands[generator.choice([*commands])]())
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == (codes[-1] == 2), errors
        assert all(line.startswith("error: ") and len(line) < 3_000 for line in errors)

    assert 50 < codes.count(2) < 250
    assert set(codes) == {0, 2}
