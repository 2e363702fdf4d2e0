"""What is typed: which words Hydra gets, what is wrong with them before it reads them, and its
errors as one line.

Hydra would end the process with its parser's own words, or take what it does not know for something
else. Some overrides make it raise plain ValueErrors or TypeErrors; whatever is raised from inside
its parser or composer is the input's fault, and everything else is a fault of this tool.
"""

import itertools
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from paradnn.cli.help import known_keys
from paradnn.config.groups import group_names, option_content, option_names
from paradnn.config.paths import CONFIG
from paradnn.config.tags import KEY as TAGS_KEY
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import did_you_mean
from paradnn.core.workload import workloads_by_group

#: Options of Hydra that add folders of configurations, which may hold any option of any group.
_FOLDERS = {"--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"}
_PARSERS = {"hydra", "omegaconf", "antlr4", "yaml", "argparse.py"}
#: Keys that are not to be set, why, and what to do.
_REFUSED = {
    "sweep.plan": ("is internal", "leave it out"),
    "hydra/launcher": (
        "nothing is launched",
        "start the same command on every host (docs/how-to/clusters.md)",
    ),
}
#: Sweepers that plan or run every point; other plug-ins of Hydra minimize a return value.
_SWEEPERS = ("paradnn", "plan", "basic")
_MOST = 1_000  # values of one override that are looked at

_parser = cache(OverridesParser.create)


def split_overrides(arguments: Sequence[str]) -> list[str]:
    """`overrides="a=1 b=2"` as the overrides it holds: a project's parameter arrives as one word."""
    overrides: list[str] = []
    for argument in arguments:
        if not argument.startswith("overrides="):
            overrides.append(argument)
            continue
        try:
            overrides += shlex.split(argument.removeprefix("overrides="))
        except ValueError as error:
            raise ConfigError(
                "overrides", argument, f"cannot be split ({error})", "close the quotation"
            ) from None
    return overrides


def is_multirun(arguments: Sequence[str]) -> bool:
    """Whether a command line asks Hydra for a multirun, by option or by `hydra.mode`."""
    return bool({"-m", "--multirun", "hydra.mode=MULTIRUN"} & set(arguments))


def arrange(arguments: Sequence[str]) -> list[str]:
    """Hydra's options first, then the overrides: argparse takes overrides in one block only.

    A user's own tags need no `+`, although they are new keys.
    """
    options, overrides = _split_options(arguments)
    own_tags = (f"{TAGS_KEY}.", f"{TAGS_KEY}=")
    return [*options, *(f"++{word}" if word.startswith(own_tags) else word for word in overrides)]


def as_axes(arguments: Sequence[str]) -> list[str]:
    """In a multirun, every key of a model as an axis, if only of one value: `model.nodes=8` as
    `model.nodes=choice(8)`.

    Hydra first composes a configuration from what is not swept. With `model=lstm,gru` swept, a key
    of one of them would meet the default model there and be refused.
    """
    if not is_multirun(arguments):
        return list(arguments)
    axes = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        try:
            single = (
                key.startswith("model.")
                and equals
                and not _parser().parse_override(argument).is_sweep_override()
            )
        except HydraException:
            single = False  # Hydra itself will say what is wrong with it
        axes.append(f"{key}=choice({value})" if single else argument)
    return axes


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise ParadnnError for the first word that no command of the suite can mean."""
    own = not any(argument.partition("=")[0] in _FOLDERS for argument in arguments)
    _, words = _split_options(arguments)
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word.endswith(",") and "=" not in following:
            joined = f"{word}{following}" if following else word.rstrip(",")
            raise ParadnnError(
                f"{word} {following}".strip()
                + f": values stand without blanks between them: {joined}"
            )
        if "=" not in word and not word.startswith("~"):
            raise ParadnnError(
                f"{word or repr(word)}: is no override; write key=value, such as batch_size=64"
            )
        try:
            override = _parser().parse_override(word)
        except HydraException:
            remedy = "close every bracket and quote, and quote text with blanks or signs, as in \"key='a b'\""
            raise ParadnnError(f"{' '.join(word.split())}: cannot be read; {remedy}") from None
        key = override.key_or_group
        if key in _REFUSED:
            raise ConfigError(key, word.partition("=")[2], *_REFUSED[key])
        if key == "hydra/sweeper" and override.value() not in _SWEEPERS:
            raise ConfigError(
                key,
                word.partition("=")[2],
                "is not a sweeper of ParaDnn, which has no single value to optimize",
                "use sweep.design=adaptive or batch_size=largest (docs/reference/hydra.md)",
            )
        if own and not key.startswith("hydra"):
            _check_options(override)


def _split_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate Hydra's own options, with their values, from the overrides.

    Raises:
        ParadnnError: An option is unknown, or its value is missing or is no choice of it.
    """
    known = {
        name: action for action in get_args_parser()._actions for name in action.option_strings
    }
    options: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            overrides.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in known:
            raise _no_flag(name, value or (rest[0] if rest else ""), list(known))
        action = known[name]
        if action.nargs == 0:
            options.append(word)
            continue
        if not equals and rest and "=" not in rest[0] and not rest[0].startswith("-"):
            value = rest.pop(0)
        if not value and action.nargs == "?":
            value = str(action.const)
        choices = [str(choice) for choice in action.choices or ()]
        remedy = f"choose one of {', '.join(choices)}" if choices else f"write {name} VALUE"
        if not value:
            raise ParadnnError(f"{name}: needs a value; {remedy}")
        if choices and value not in choices:
            raise ConfigError(name, value, "no such choice", remedy)
        options += [name, value]
    return options, overrides


def _no_flag(name: str, value: str, known: Sequence[str]) -> ParadnnError:
    key = name.lstrip("-")
    keys = known_keys()
    if key in keys or key in group_names():
        return ParadnnError(
            f"{name}: keys are written without dashes: {key}={value if '=' not in value else '...'}"
        )
    # A short option is like any other.
    hint = did_you_mean(
        name, [flag for flag in known if flag.startswith("--")] if name.startswith("--") else []
    )
    hint = hint or did_you_mean(key, keys)
    return ParadnnError(
        f"{name}: no such option; {hint}python -m paradnn.train --help lists keys, written key=value"
    )


def _check_options(override: Override) -> None:
    group = override.key_or_group
    options = option_names(group)
    if not options or override.is_delete():
        return
    values: list[object] = [override.value()]
    if isinstance(override.value(), Glob):
        # Hydra needs its configuration loader for this; the options are known here already.
        values = [*override.value().filter(list(options))]
        if not values:
            pattern = override.input_line.partition("=")[2]
            remedy = f"choose among {', '.join(options)}"
            raise ConfigError(group, pattern, "matches no option", remedy)
    elif override.is_sweep_override():
        if override.is_discrete_sweep():
            values = list(itertools.islice(override.sweep_string_iterator(), _MOST))
        else:
            values = []
    names = [value.strip("'\"") for value in values if isinstance(value, str)]
    wrong = [name for name in names if name and name not in options]
    if wrong:
        raise _no_such_option(group, wrong[0], options)
    if group == "experiment" and len(values) > 1:
        raise ConfigError(
            group, ",".join(names), "one experiment at a time", "give each its own command"
        )


def is_input_error(error: BaseException) -> bool:
    """Whether the user can mend it."""
    if isinstance(error, (ParadnnError, HydraException, OmegaConfBaseException, RecursionError)):
        return True
    if isinstance(error, OSError) or not isinstance(error, Exception):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and bool(_PARSERS & set(Path(frames[-1].filename).parts))


def one_line(error: BaseException, arguments: Sequence[str] | None = None) -> str:
    """The message on one line; Hydra's commonest are put in words that name key, value and remedy.

    `arguments` are the words that it is about, where those are not the command line's.
    """
    text = str(error)
    words = sys.orig_argv if arguments is None else arguments
    if isinstance(error, ParadnnError):
        return text
    if isinstance(error, RecursionError):
        deepest = max(words, key=lambda word: sum(map(word.count, "[{(")))
        return f"{deepest}: nested too deeply to be read"
    options = re.search(
        r"Could not (?:find|load) '([^']+)/([^'/]*)'\s*Available options in '[^']+':\s*(.*?)\n\s*Config",
        text,
        re.S,
    )
    if options:
        return str(_no_such_option(options[1], options[2], options[3].split()))
    match = re.search(r"Could not override '([^']+)'", text)
    if match:
        typed = next(
            (entry for entry in words if entry.lstrip("+~").startswith(f"{match[1]}=")), match[1]
        )
        return f"{typed}: {_no_such_key(match[1], words)}"
    if "Ambiguous value for argument" in text or "requires --multirun" in text:
        argument = re.search(r"'(.*?)'\s", text, re.S)
        shown = argument[1] if argument else "a value"
        return f"{shown}: several values are a sweep; add -m, or write a list as key=[a,b]"
    return " ".join(f"{text} {error.__cause__ or ''}".split())[:500] or type(error).__name__


def _no_such_option(group: str, value: str, options: Sequence[str]) -> ParadnnError:
    """What is said of an option that a group does not have; the nearest ones first."""
    hint = did_you_mean(value, options)
    return ConfigError(group, value, "no such option", f"{hint}choose one of {', '.join(options)}")


def _no_such_key(key: str, arguments: Sequence[str]) -> str:
    """What is said of a key that the composed configuration lacks."""
    group, _, name = key.partition(".")
    work = workloads_by_group().get(group)
    if work and key in known_keys():
        if "," in chosen_option(work.key, arguments):
            return f"is a key of {work.key}={work.name} alone; give each {work.key} a command of its own"
        return f"is a key of {work.key}={work.name}; add {work.key}={work.name}"
    if name:
        holders = [option for option in option_names(group) if name in keys_of(group, option)]
    else:
        holders = []
    chosen = chosen_option(group, arguments)
    if holders and chosen:
        own = ", ".join(f"{group}.{entry}" for entry in keys_of(group, chosen))
        has = f"whose keys are {own}" if own else "which has none"
        others = ", ".join(f"{group}={option}" for option in holders[:4])
        return f"no key of {group}={chosen}, {has}; it belongs to {others}"
    # A key without its group, before one that is spelt like it.
    ends = [known for known in known_keys() if known.rpartition(".")[2] == key]
    if ends:
        hint = f"did you mean {ends[0]}? "
    else:
        hint = did_you_mean(key, known_keys())
    return f"no such key; {hint}python -m paradnn.train --help lists them"


def keys_of(group: str, option: str) -> tuple[str, ...]:
    """The keys that an option of a group has, but for its name."""
    return tuple(str(key) for key in option_content(group, option) if key != "name")


def chosen_option(group: str, arguments: Sequence[str]) -> str:
    """The option of a group that a command line chooses, or the default; empty where there is
    neither.
    """
    values = [
        word.partition("=")[2] for word in arguments if word.partition("=")[0].lstrip("+~") == group
    ]
    if values:
        return values[-1]
    defaults = yaml.safe_load((CONFIG / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return next(
        (str(entry[group]) for entry in defaults if isinstance(entry, dict) and group in entry), ""
    )
