"""Overrides of a command line: check them before Hydra reads them, and explain Hydra's errors.

Without these checks, Hydra would exit with the messages of its parser, or misread an unknown word.
Some overrides make Hydra raise a ValueError or TypeError. An exception from inside Hydra's parser
or composer counts as an error of the user. Every other exception is a bug in ParaDnn.
"""

import contextlib
import itertools
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from omegaconf.errors import OmegaConfBaseException

from paradnn.cli.help import known_keys
from paradnn.cli.parser import split_quoted
from paradnn.config.groups import group_names, option_content, option_names
from paradnn.config.hydra_releases import INFO_TOPICS
from paradnn.config.paths import CONFIG
from paradnn.config.tags import KEY as TAGS_KEY
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import did_you_mean
from paradnn.core.workload import workloads_by_group
from paradnn.families import FAMILIES

#: Options of Hydra that add a folder of configuration files, which may add options to any group.
_FOLDER_OPTIONS = {"--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"}
#: Packages and modules whose exceptions report an error of the user.
_PARSERS = {"hydra", "omegaconf", "antlr4", "yaml", "argparse.py"}
#: Key that a user must not set -> the reason and the remedy.
_REJECTED_KEYS = {
    "sweep.plan": ("is internal", "omit it"),
}
#: Launcher -> the extra of this package that installs it; empty if no extra is needed.
_LAUNCHERS = {
    "basic": "",
    "joblib": "joblib",
    "submitit_local": "slurm",
    "submitit_slurm": "slurm",
    "ray": "ray",
    "ray_aws": "ray",
}
#: Sweepers that plan or run every point. Hydra's other sweepers minimize a return value.
_SWEEPERS = ("paradnn", "plan", "race", "basic")
#: Maximum number of values of one override that are checked.
_MAX_CHECKED_VALUES = 1_000
#: Maximum length of a message of Hydra in characters.
_MAX_ERROR_CHARS = 500
#: Maximum number of options that a message suggests.
_MAX_SUGGESTIONS = 4
#: Hydra's message about an unknown option of a group.
_NO_SUCH_OPTION = re.compile(
    r"Could not (?:find|load) '([^']+)/([^'/]*)'\s*"
    r"Available options in '[^']+':\s*(.*?)\n\s*Config",
    re.DOTALL,
)

_parser = cache(OverridesParser.create)


@dataclass(frozen=True)
class _HydraOption:
    """An option of Hydra's command line.

    Attributes:
        takes_value: Whether the option takes a value.
        choices: The valid values; empty if any text is valid.
        default: The value if the command line gives none; None if a value is required.
    """

    takes_value: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None


_FLAG = _HydraOption()
_WITH_TEXT = _HydraOption(takes_value=True)
_CFG = _HydraOption(takes_value=True, choices=("job", "hydra", "all"))
_INFO = _HydraOption(takes_value=True, choices=INFO_TOPICS, default="all")
#: Options of Hydra (https://hydra.cc/docs/advanced/hydra-command-line-flags). Hydra has no public
#: function that lists them, so a test compares this table with --hydra-help.
HYDRA_OPTIONS = {
    **dict.fromkeys(("--help", "-h", "--hydra-help", "--version", "--resolve"), _FLAG),
    **dict.fromkeys(("--run", "-r", "--multirun", "-m", "--shell-completion", "-sc"), _FLAG),
    **dict.fromkeys(("--cfg", "-c"), _CFG),
    **dict.fromkeys(("--info", "-i"), _INFO),
    **dict.fromkeys(("--package", "-p", "--experimental-rerun"), _WITH_TEXT),
    **dict.fromkeys(sorted(_FOLDER_OPTIONS), _WITH_TEXT),
}


def split_overrides(arguments: Sequence[str]) -> list[str]:
    """Split each argument `overrides="a=1 b=2"` into overrides, and keep all other arguments.

    `mlflow run` passes the overrides in this form, as one parameter of the project.

    Args:
        arguments: The words of the command line, without the name of the program.

    Raises:
        ConfigError: If a quotation mark is not closed.
    """
    overrides: list[str] = []
    for argument in arguments:
        if not argument.startswith("overrides="):
            overrides.append(argument)
            continue
        overrides += split_quoted("overrides", argument.removeprefix("overrides="))
    return overrides


def is_axis(override: str) -> bool:
    """Return whether an override, such as `batch_size=16,64`, has several values.

    The result is False if the override is invalid. Hydra reports the error later.
    """
    with contextlib.suppress(HydraException, RecursionError):
        return bool(_parser().parse_override(override).is_sweep_override())
    return False


def is_multirun(arguments: Sequence[str]) -> bool:
    """Return whether a command line requests a sweep, by -m, --multirun or `hydra.mode`."""
    return bool({"-m", "--multirun", "hydra.mode=MULTIRUN"} & set(arguments))


def arrange(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line with Hydra's options before all overrides.

    Hydra's parser rejects a command line in which options separate the overrides, because argparse
    requires positional arguments to be adjacent.

    Overrides of user-defined tags get the prefix `++`, because they are new keys, which Hydra
    otherwise rejects.

    Args:
        arguments: The words of the command line, without the name of the program.

    Raises:
        ParadnnError: If an option is unknown, or its value is missing or invalid.
    """
    options, overrides = _split_options(arguments)
    tags = (f"{TAGS_KEY}.", f"{TAGS_KEY}=")
    arranged = [f"++{word}" if word.startswith(tags) else word for word in overrides]
    return [*options, *arranged]


def as_axes(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a multirun with every `model` key written as an axis.

    An axis is a key whose values a multirun sweeps. For example, `model.nodes=8` becomes
    `model.nodes=choice(8)`. The arguments are unchanged if they do not request a multirun.

    Hydra first composes a configuration without the axes of the multirun. If `model` is an axis,
    as in `model=lstm,gru`, this configuration has the default model. Without the conversion, Hydra
    would reject `model.nodes=8` if the default model has no key `nodes`.

    Args:
        arguments: The words of the command line, without the name of the program.
    """
    if not is_multirun(arguments):
        return list(arguments)
    axes = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if _is_single_model_key(argument):
            axes.append(f"{key}=choice({value})")
        else:
            axes.append(argument)
    return axes


def _is_single_model_key(argument: str) -> bool:
    """Return whether an override sets a key of a model, such as `model.nodes`, to one value."""
    key, equals, _ = argument.partition("=")
    if not key.startswith("model.") or not equals:
        return False
    try:
        return not _parser().parse_override(argument).is_sweep_override()
    except HydraException:
        return False  # Hydra itself reports the error


def check_arguments(arguments: Sequence[str]) -> None:
    """Check the options and overrides of a command line, before Hydra reads them.

    Args:
        arguments: The words of the command line, without the name of the program.

    Raises:
        ParadnnError: If a word is invalid for every command. The error names the first such word.
    """
    has_own_groups = not any(
        argument.partition("=")[0] in _FOLDER_OPTIONS for argument in arguments
    )
    _, words = _split_options(arguments)
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        override = _parse_word(word, following)
        key = override.key_or_group
        value = word.partition("=")[2]
        if key in _REJECTED_KEYS:
            raise ConfigError(key, value, *_REJECTED_KEYS[key])
        if key == "hydra/launcher":
            _check_launcher(str(override.value()), arguments)
        if key == "hydra/sweeper" and override.value() not in _SWEEPERS:
            raise ConfigError(
                key,
                value,
                "is not a sweeper that ParaDnn supports",
                "to search, set sweep.design=adaptive or batch_size=largest (docs/reference/hydra.md)",
            )
        if has_own_groups and not key.startswith("hydra"):
            _check_options(override)


def _check_launcher(name: str, arguments: Sequence[str]) -> None:
    """Check that a Hydra launcher can start the drivers (measuring processes) of a sweep.

    Args:
        name: The value of `hydra/launcher`.
        arguments: The words of the command line, without the name of the program.

    Raises:
        ConfigError: If the launcher is unknown or not installed. Also if the command line requests
            no multirun or sets `hydra/sweeper=basic`, unless the launcher is `basic`.
    """
    key = "hydra/launcher"
    if name not in _LAUNCHERS:
        known = ", ".join(sorted(_LAUNCHERS))
        hint = did_you_mean(name, list(_LAUNCHERS))
        raise ConfigError(
            key, name, "is not a launcher that can start ParaDnn", f"{hint}choose one of {known}"
        )
    if name == "basic":
        return
    if not is_multirun(arguments):
        problem = "starts the processes of a sweep, but this command has no sweep"
        raise ConfigError(key, name, problem, "add -m")
    if chosen_option("hydra/sweeper", arguments) == "basic":
        problem = "cannot be combined with hydra/sweeper=basic"
        raise ConfigError(key, name, problem, "omit hydra/sweeper=basic")
    installed = Plugins.instance().discover(Launcher)
    module = f"hydra_{name.partition('_')[0]}_launcher"
    if not any(module in launcher.__module__ for launcher in installed):
        extra = _LAUNCHERS[name]
        raise ConfigError(key, name, "is not installed", f"pip install 'paradnn[{extra}]'")


def _parse_word(word: str, following: str) -> Override:
    """Parse an override.

    Args:
        word: The override.
        following: The next word of the command line; empty for the last word.

    Raises:
        ParadnnError: If the word is not an override, or if spaces separate its values.
    """
    if word.endswith(",") and "=" not in following:
        joined = f"{word}{following}" if following else word.rstrip(",")
        typed = f"{word} {following}".strip()
        raise ParadnnError(f"{typed}: values must not be separated by spaces; write {joined}")
    if "=" not in word and not word.startswith("~"):
        raise ParadnnError(
            f"{word or repr(word)}: is not an override; write key=value, such as batch_size=64"
        )
    try:
        return _parser().parse_override(word)
    except HydraException:
        raise ParadnnError(
            f"{' '.join(word.split())}: has invalid syntax; close every bracket and "
            "quotation mark, and quote values with spaces or special characters, as in \"key='a b'\""
        ) from None


def _split_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the options of Hydra, with their values, from the overrides.

    Returns:
        The words of the options, and the overrides.

    Raises:
        ParadnnError: If an option is unknown, or its value is missing or is not one of its choices.
    """
    options: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            overrides.append(word)
            continue
        name, equals, value = word.partition("=")
        option = HYDRA_OPTIONS.get(name)
        if option is None:
            following = rest[0] if rest else ""
            raise _no_such_flag(name, value or following)
        if not option.takes_value:
            options.append(word)
            continue
        if not equals and rest and "=" not in rest[0] and not rest[0].startswith("-"):
            value = rest.pop(0)
        value = value or option.default or ""
        remedy = f"write {name} VALUE"
        if option.choices:
            remedy = f"choose one of {', '.join(option.choices)}"
        if not value:
            raise ParadnnError(f"{name}: needs a value; {remedy}")
        if option.choices and value not in option.choices:
            raise ConfigError(name, value, "no such choice", remedy)
        options += [name, value]
    return options, overrides


def _no_such_flag(name: str, value: str) -> ParadnnError:
    """Return the error for an unknown command-line option, which may be a key with dashes.

    Args:
        name: The option as typed, without its value.
        value: The value as typed; empty for no value.
    """
    key = name.lstrip("-")
    keys = known_keys()
    if key in keys or key in group_names():
        shown = "..." if "=" in value else value
        return ParadnnError(f"{name}: keys are written without dashes: {key}={shown}")
    hint = ""
    if name.startswith("--"):
        # Do not suggest short options: they are too short to compare.
        long_options = [option for option in HYDRA_OPTIONS if option.startswith("--")]
        hint = did_you_mean(name, long_options)
    hint = hint or did_you_mean(key, keys)
    return ParadnnError(
        f"{name}: no such option; {hint}"
        "set keys as key=value (python -m paradnn.train --help lists them)"
    )


def _check_options(override: Override) -> None:
    """Raise ConfigError if an override chooses an option that its group does not have."""
    group = override.key_or_group
    options = option_names(group)
    if not options:
        return
    if override.is_delete():
        raise ParadnnError(
            f"~{group}: a group cannot be removed; choose one of {', '.join(options)}"
        )
    typed = str(override.input_line).partition("=")[2]
    value: object = override.value()
    values: list[object] = [value]
    if isinstance(value, Glob):
        # Resolve the pattern here, because Hydra needs its configuration loader to do so.
        values = [*value.filter(list(options))]
        if not values:
            remedy = f"choose among {', '.join(options)}"
            raise ConfigError(group, typed, "matches no option", remedy)
    elif override.is_sweep_override():
        if override.is_discrete_sweep():
            values = list(itertools.islice(override.sweep_string_iterator(), _MAX_CHECKED_VALUES))
        else:
            values = []
    is_no_text = value is None or isinstance(value, int | float)
    if is_no_text and typed not in options:
        raise _no_such_option(group, typed, options)
    names = [name.strip("'\"") for name in values if isinstance(name, str)]
    wrong = [name for name in names if name and name not in options]
    if wrong:
        raise _no_such_option(group, wrong[0], options)
    if group == "experiment" and len(values) > 1:
        raise ConfigError(
            group,
            ",".join(names),
            "only one experiment can run at a time",
            "run a separate command for each",
        )


def is_input_error(error: BaseException) -> bool:
    """Return whether an exception is an error of the user, and not a bug in ParaDnn."""
    if isinstance(error, (ParadnnError, HydraException, OmegaConfBaseException, RecursionError)):
        return True
    if isinstance(error, OSError) or not isinstance(error, Exception):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and bool(_PARSERS & set(Path(frames[-1].filename).parts))


def one_line(error: BaseException, arguments: Sequence[str] | None = None) -> str:
    """Return the message of an error in one line, with key, value and remedy if possible.

    Args:
        error: The error.
        arguments: The words of the command line that caused the error; None for the command line of
            this process.
    """
    text = str(error)
    words = sys.orig_argv if arguments is None else arguments
    if isinstance(error, ParadnnError):
        return text
    if isinstance(error, RecursionError):
        deepest = max(words, key=lambda word: sum(map(word.count, "[{(")))
        return f"{deepest}: is nested too deeply to be read; use fewer brackets"
    match = _NO_SUCH_OPTION.search(text)
    if match:
        return str(_no_such_option(match[1], match[2], match[3].split()))
    match = re.search(r"Could not override '([^']+)'", text)
    if match:
        key = match[1]
        overrides = [word for word in words if word.lstrip("+~").startswith(f"{key}=")]
        typed = overrides[0] if overrides else key
        return f"{typed}: {_no_such_key(key, words)}"
    if "Ambiguous value for argument" in text or "requires --multirun" in text:
        match = re.search(r"'(.*?)'\s", text, re.DOTALL)
        typed = match[1] if match else "a value"
        return f"{typed}: several values are a sweep; add -m, or write a list as key=[a,b]"
    match = re.search(r"full_key: (\S+)", text)
    if match and "nterpolation" in text:
        reason = text.splitlines()[0]
        return f"{match[1]}: {reason}; write a value, or ${{KEY}} with the name of a key"
    whole = f"{text} {error.__cause__ or ''}"
    return " ".join(whole.split())[:_MAX_ERROR_CHARS] or type(error).__name__


def _no_such_option(group: str, value: str, options: Sequence[str]) -> ParadnnError:
    """Return the error for a value that is not an option of a configuration group.

    The message names options with a similar spelling, if any, and then lists all options. If the
    value is the path of a model file, the message names the overrides that measure this file.

    Args:
        group: Name of the group, such as `model`.
        value: The invalid value.
        options: The valid options of the group.
    """
    overrides = _overrides_for_file(value) if group == "model" else ""
    if overrides:
        return ConfigError(group, value, "is a file, not a family", f"write {overrides}")
    hint = did_you_mean(value, options)
    return ConfigError(group, value, "no such option", f"{hint}choose one of {', '.join(options)}")


def _overrides_for_file(path: str) -> str:
    """Return the overrides with which a user can measure the model in a file.

    Args:
        path: Path of the file. The file-name extension selects the overrides.

    Returns:
        The overrides as text; empty if no family supports the extension.
    """
    for family in FAMILIES.values():
        for ending, overrides in family.files.items():
            if path.lower().endswith(ending):
                return overrides.format(path=shlex.quote(path))
    return ""


def _no_such_key(key: str, arguments: Sequence[str]) -> str:
    """Return the part of an error message that says why the configuration lacks a key.

    The text also names the option to which the key belongs, or similar keys.

    Args:
        key: The dotted key.
        arguments: The command line.
    """
    group, _, name = key.partition(".")
    work = workloads_by_group().get(group)
    if work and key in known_keys():
        if "," in chosen_option(work.key, arguments):
            remedy = f"run a separate command for each {work.key}"
            return f"is a key of {work.key}={work.name} only; {remedy}"
        return f"is a key of {work.key}={work.name}; add {work.key}={work.name}"
    chosen = chosen_option(group, arguments)
    holders = []
    if name:
        holders = [option for option in option_names(group) if name in keys_of(group, option)]
    if holders and chosen:
        keys = ", ".join(f"{group}.{known}" for known in keys_of(group, chosen))
        described = f"whose keys are {keys}" if keys else "which has no keys"
        others = ", ".join(f"{group}={option}" for option in holders[:_MAX_SUGGESTIONS])
        return f"is not a key of {group}={chosen}, {described}; it belongs to {others}"
    # Suggest keys that begin or end with the word first, then keys with a similar spelling.
    related = [known for known in known_keys() if known.startswith(f"{key}_")]
    related += [known for known in known_keys() if known.rpartition(".")[2] == key]
    if related:
        hint = f"did you mean {' or '.join(related[:2])}? "
    else:
        hint = did_you_mean(key, known_keys())
    return f"no such key; {hint}python -m paradnn.train --help lists them"


def keys_of(group: str, option: str) -> tuple[str, ...]:
    """Return the keys that an option of a configuration group sets, without `name`.

    Args:
        group: Name of the group, such as `model`.
        option: Name of the option, such as `fc`.
    """
    return tuple(str(key) for key in option_content(group, option) if key != "name")


def chosen_option(group: str, arguments: Sequence[str]) -> str:
    """Return the option of a configuration group that a command line chooses.

    Args:
        group: Name of the group, such as `model`.
        arguments: The words of the command line.

    Returns:
        The chosen option, else the default option; empty for a group without a default.
    """
    values = [
        word.partition("=")[2] for word in arguments if word.partition("=")[0].lstrip("+~") == group
    ]
    if values:
        return values[-1]
    content = yaml.safe_load((CONFIG / "config.yaml").read_text(encoding="utf-8"))
    for entry in content["defaults"]:
        if isinstance(entry, dict) and group in entry:
            return str(entry[group])
    return ""
