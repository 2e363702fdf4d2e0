"""What the command line says of wrong input: Hydra's and OmegaConf's errors as one line with a remedy.

Some overrides make Hydra raise plain ValueErrors or TypeErrors; whatever is raised from inside its parser or composer
is the input's fault, and everything else is a fault of this tool.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from paradnn.cli.checks import no_such_key, no_such_option
from paradnn.errors import ConfigError, ParadnnError

_PARSERS = {"hydra", "omegaconf", "antlr4", "yaml", "argparse.py"}


def split_overrides(arguments: Sequence[str]) -> list[str]:
    """`overrides="a=1 b=2"` as the overrides it holds: a project's parameter arrives as one word."""
    overrides: list[str] = []
    for argument in arguments:
        if argument.startswith("overrides="):
            try:
                overrides += shlex.split(argument.removeprefix("overrides="))
            except ValueError as error:
                raise ConfigError("overrides", argument, f"cannot be split ({error})", "close the quotation") from None
        else:
            overrides.append(argument)
    return overrides


def as_axes(arguments: Sequence[str]) -> list[str]:
    """In a multirun, every key of a model as an axis, if only of one value: `model.nodes=8` as `model.nodes=choice(8)`.

    Hydra first composes a configuration from what is not swept. With `model=lstm,gru` swept, a key of one of them would
    meet the default model there and be refused.
    """
    if not {"-m", "--multirun"} & set(arguments):
        return list(arguments)
    parser = OverridesParser.create()
    axes = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        try:
            single = key.startswith("model.") and equals and not parser.parse_override(argument).is_sweep_override()
        except HydraException:
            single = False  # Hydra itself will say what is wrong with it
        axes.append(f"{key}=choice({value})" if single else argument)
    return axes


def is_input_error(error: BaseException) -> bool:
    """Whether the user can mend it."""
    if isinstance(error, (ParadnnError, HydraException, OmegaConfBaseException)):
        return True
    return isinstance(error, Exception) and bool(_PARSERS & set(Path(_innermost(error.__traceback__)).parts))


def one_line(error: BaseException, arguments: Sequence[str] | None = None) -> str:
    """The message on one line; Hydra's commonest are put in words that name key, value and remedy.

    `arguments` are the words that it is about, where those are not the command line's.
    """
    text, words = str(error), sys.orig_argv if arguments is None else arguments
    if isinstance(error, ParadnnError):
        return text
    options = re.search(
        r"Could not (?:find|load) '([^']+)/([^'/]*)'\s*Available options in '[^']+':\s*(.*?)\n\s*Config", text, re.S
    )
    if options:
        return str(no_such_option(options[1], options[2], options[3].split()))
    if match := re.search(r"Could not override '([^']+)'", text):
        return no_such_key(_as_typed(match[1], words), match[1], words)
    if "Ambiguous value for argument" in text:
        argument = re.search(r"'(.*?)'\s", text, re.S)
        shown = argument[1] if argument else "a value"
        return f"{shown}: several values are a sweep; add -m, or write a list as key=[a,b]"
    return " ".join(f"{text} {error.__cause__ or ''}".split())[:500] or type(error).__name__


def _as_typed(key: str, words: Sequence[str]) -> str:
    return next((entry for entry in words if entry.lstrip("+~").startswith(f"{key}=")), key)


def _innermost(trace: TracebackType | None) -> str:
    """The file in which the error was raised."""
    file = ""
    while trace is not None:
        file, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return file
