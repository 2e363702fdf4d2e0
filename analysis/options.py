"""Options of analyses, as frozen dataclasses that also define command-line arguments.

A field made by `option` holds its help text, its bounds and its form on a command line.
`add_arguments` adds the fields of a class to a parser, `read_arguments` reads the parsed ones, and
`command_line` writes options as the words of a command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from paradnn.core.errors import ConfigError
from paradnn.core.schema import as_bounded, as_text
from paradnn.core.schema import option as option

ArgumentsT = TypeVar("ArgumentsT", bound="Arguments")
#: The column of a condition such as "model.nodes>=1024".
_CONDITION_COLUMN = re.compile(r"([\w.]+)\s*[=<>!]")
_RUNS = "selection of runs (F, P and O may be lists such as A,B)"


def unit_option() -> Any:
    """Return a dataclass field for the option that sets the sampling unit of confidence intervals.

    The sampling units are models and batch sizes ("crossed"), models at their batch sizes
    ("model"), or single configurations ("point").
    """
    return option(
        "crossed",
        "what counts as a sample in intervals: models and batch sizes (crossed), models at these "
        "batch sizes (model), or single points (point)",
    )


def column_option(default: Any, text: str, metavar: str = "COLUMN", **settings: Any) -> Any:
    """Return a dataclass field for an option whose value names columns.

    Args:
        default: Default of the option.
        text: Its help text.
        metavar: Placeholder of the value in --help.
        **settings: Further entries of `Argument.metadata`.
    """
    return option(default, text, metavar=metavar, names="columns", **settings)


def color_option(text: str) -> Any:
    """Return a dataclass field for the option that names the column by which marks are colored.

    Args:
        text: Its help text.
    """
    return column_option(None, text, "C", aliases=("--colour",))


def metric_option(purpose: str) -> Any:
    """Return a dataclass field for the option that names a metric.

    Args:
        purpose: Start of the help text, such as "metric to predict".
    """
    default = "default: flops_utilization, else flops_per_second, else examples_per_second"
    return column_option(None, f"{purpose} ({default})", "M")


class Argument(NamedTuple):
    """A field of a class of options as an argument of a command line.

    Attributes:
        name: Name of the field.
        flag: The flag, such as --steady-only. If the name of the field ends with an underscore to
            differ from a keyword of Python, the flag omits the underscore.
        kind: Type of a single value.
        default: Default of the field.
        several: How several values are written: "commas" (A,B in one value), "repeat" (the flag is
            repeated) or "words" (separate words); empty if the field has a single value.
        pairs: Whether values are KEY=VALUE.
        choices: The allowed values; empty for any.
        metadata: What `option` recorded: `help`, bounds, `metavar`, `positional`, `group` (heading
            in --help), `shared` (whether another class adds the flag), `names` (whether values name
            "columns", or "conditions" on columns) and `aliases` (other flags of the argument).
    """

    name: str
    flag: str
    kind: type
    default: Any
    several: str
    pairs: bool
    choices: tuple[str, ...]
    metadata: dict[str, Any]

    @property
    def is_positional(self) -> bool:
        """Whether the argument has no flag."""
        return bool(self.metadata.get("positional"))

    @property
    def display_name(self) -> str:
        """The name in messages: the flag, or the name of a positional argument in --help."""
        if self.is_positional:
            return str(self.metadata.get("metavar") or self.name)
        return self.flag

    def to_words(self, value: Any) -> list[str]:
        """Return the words of a command line that set a value, such as ["--margin", "0.1"].

        Args:
            value: The value of the field.

        Returns:
            The words; empty if the value is None or the default. A positional argument is written
            even if it has its default.
        """
        if value is None or (value == self.default and not self.is_positional):
            return []
        if self.kind is bool:
            return [self.flag]
        parts = value if self.several else [value]
        texts = ["=".join(part) if self.pairs else str(part) for part in parts]
        if self.several == "commas":
            texts = [",".join(texts)]
        if self.is_positional:
            return texts
        if self.several == "words":
            return [self.flag, *texts]
        words = []
        for text in texts:
            # A separate word that begins with a dash would be parsed as a flag.
            words += [f"{self.flag}={text}"] if text.startswith("-") else [self.flag, text]
        return words

    def add_to(self, parser: Any) -> None:
        """Add the argument to a parser or to an argument group of `argparse`.

        An argument that is absent from the command line is parsed as None. It then gets the default
        of the dataclass.

        Args:
            parser: The parser or group.
        """
        settings: dict[str, Any] = {"help": self._help_text()}
        if self.kind is bool:
            settings["action"] = "store_true"
        else:
            settings |= self._value_settings()
        if self.is_positional:
            if self.default is None:
                settings["nargs"] = "?"
            parser.add_argument(self.name, **settings)
            return
        if self.kind is not bool:
            settings["required"] = self.default is dataclasses.MISSING
        aliases = self.metadata.get("aliases", ())
        parser.add_argument(self.flag, *aliases, default=None, dest=self.name, **settings)

    def _value_settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `add_argument` for an argument that takes values."""
        parse: Any = self.kind
        if self.pairs:
            parse = partial(_parse_pair, self.metadata["metavar"])
        elif self.several == "commas":
            parse = _parse_commas
        settings: dict[str, Any] = {
            "metavar": self.metadata.get("metavar"),
            "choices": self.choices or None,
            "type": parse,
        }
        if self.several == "repeat":
            settings["action"] = "append"
        elif self.several == "words":
            settings["nargs"] = "+"
        return settings

    def _help_text(self) -> str:
        text = str(self.metadata["help"])
        if self.is_positional or self.default in (dataclasses.MISSING, None, False, ()):
            return text
        default = ",".join(self.default) if self.several else self.default
        return f"{text} (default: {default})"


def arguments(cls: type[Arguments]) -> list[Argument]:
    """Return the command-line arguments of a class of options.

    Fields that are `shared`, since another class defines their arguments, are omitted.
    """
    hints = get_type_hints(cls)
    return [
        _make_argument(field, hints[field.name])
        for field in dataclasses.fields(cls)
        if "shared" not in field.metadata
    ]


def _make_argument(field: dataclasses.Field[Any], hint: Any) -> Argument:
    if NoneType in get_args(hint):
        hint = get_args(hint)[0]
    inner = get_args(hint)
    metadata = dict(field.metadata)
    several = ""
    kind = hint
    pairs = False
    choices: tuple[str, ...] = ()
    if get_origin(hint) is tuple:
        several = metadata.get("several", "commas")
        pairs = get_origin(inner[0]) is tuple
        kind = str if pairs else inner[0]
    elif get_origin(hint) is Literal:
        choices = tuple(inner)
        kind = str
    return Argument(
        name=field.name,
        flag="--" + field.name.rstrip("_").replace("_", "-"),
        kind=kind,
        default=field.default,
        several=several,
        pairs=pairs,
        choices=choices,
        metadata=metadata,
    )


def add_arguments(parser: argparse.ArgumentParser, *classes: type[Arguments]) -> None:
    """Add the arguments of classes of options to a parser, under the headings that they name.

    Args:
        parser: The parser.
        *classes: Classes of options, whose fields are the arguments.
    """
    groups: dict[str, Any] = {"": parser}
    for cls in classes:
        for argument in arguments(cls):
            title = argument.metadata.get("group", "")
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            argument.add_to(groups[title])


def read_arguments(cls: type[ArgumentsT], parsed: argparse.Namespace) -> ArgumentsT:
    """Create options from a parsed command line; options that were not given have defaults.

    Args:
        cls: Class of the options.
        parsed: Result of a parser with the arguments of the class.

    Raises:
        ConfigError: If a value is out of bounds, or not among the choices.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        value = getattr(parsed, field.name, None)
        if value is not None:
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _parse_commas(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise argparse.ArgumentTypeError(
            f"{text!r} contains no value; write one or more values, separated by commas"
        )
    return parts


def _parse_pair(metavar: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form {metavar}")
    return key, value


def command_line(options: Arguments) -> list[str]:
    """Return the words of a command line that sets options, such as ["--margin", "0.1"].

    Args:
        options: The options. Those with their default are omitted.
    """
    ordered = sorted(arguments(type(options)), key=lambda argument: not argument.is_positional)
    words = []
    for argument in ordered:
        words += argument.to_words(getattr(options, argument.name))
    return words


def columns_named(options: Arguments) -> set[str]:
    """Return the columns that options name, directly or in conditions such as "device=V100"."""
    columns: set[str] = set()
    for argument in arguments(type(options)):
        value = getattr(options, argument.name)
        kind = argument.metadata.get("names")
        if value is None or not kind:
            continue
        texts: Iterable[str] = value if argument.several else (value,)
        if kind == "columns":
            columns.update(texts)
        else:
            for text in texts:
                columns.update(_CONDITION_COLUMN.findall(text))
    return columns


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Base of classes of options, whose fields are made by `option`.

    Raises:
        ConfigError: If a value is out of bounds, or not among the choices.
    """

    def __post_init__(self) -> None:
        # These functions also check the configuration of a sweep.
        for argument in arguments(type(self)):
            value = getattr(self, argument.name)
            if argument.choices and value is not None:
                as_text(value, {"choices": argument.choices}, argument.flag)
            values = value if isinstance(value, tuple) else (value,)
            for number in values:
                if isinstance(number, int | float):
                    as_bounded(number, argument.metadata, argument.flag)


@dataclass(frozen=True, kw_only=True)
class Options(Arguments):
    """Options of every analysis.

    Attributes:
        pool: Whether runs of different environments or timing protocols are analyzed together.
        steady_only: Whether to exclude runs that are not steady, or whose machine did other work.
        store: Addresses of the stores with tables of operations; empty for the default store. The
            runs themselves are passed as a frame.
    """

    pool: bool = option(False, "pool runs of different environments or protocols", group=_RUNS)
    steady_only: bool = option(
        False,
        "exclude runs that are not steady or shared their machine with other work",
        group=_RUNS,
    )
    store: tuple[str, ...] = option((), shared=True)


@dataclass(frozen=True, kw_only=True)
class StoreChoice(Arguments):
    """Options for the store and the experiments of runs."""

    store: tuple[str, ...] = option(
        (),
        "tracking URI, or path of an mlflow.db, of a Parquet store or of a .zip of results; "
        "if repeated, the column "
        "`store` names the store of each run (default: MLFLOW_TRACKING_URI, else the store of this "
        "checkout)",
        metavar="URI",
        several="repeat",
        group="store",
    )

    @property
    def written(self) -> str | None:
        """The store to write into; None for the default store.

        Raises:
            ConfigError: If --store was given several times.
        """
        if len(self.store) > 1:
            problem = "results can be written to only one store"
            raise ConfigError("--store", list(self.store), problem, "name one store")
        return next(iter(self.store), None)

    experiment: tuple[str, ...] = option(
        (),
        "MLflow experiment, repeatable (default: paradnn)",
        metavar="NAME",
        several="repeat",
        group="store",
    )


@dataclass(frozen=True, kw_only=True)
class Selection(StoreChoice):
    """Options that choose runs; a run must meet all of them."""

    family: tuple[str, ...] = option(
        (),
        "model family: fc, residual, bottleneck, rnn, lstm, gru, gpt, ...",
        metavar="F",
        group=_RUNS,
    )
    platform: tuple[str, ...] = option(
        (), "kind of device: cpu, gpu, tpu", metavar="P", group=_RUNS
    )
    device: str | None = option(
        None, "one device by its name, such as 'TPU v2'", metavar="D", group=_RUNS
    )
    protocol: str | None = option(
        None,
        "one timing protocol: quick, standard, or the first characters of the hash of a different "
        "one",
        metavar="NAME",
        group=_RUNS,
    )
    outcome: tuple[str, ...] = option(
        (), "outcome of the runs, such as ok or oom_device (default: all)", metavar="O", group=_RUNS
    )
    since: str | None = option(
        None, "started at this time (UTC) or later, such as 2026-01-31", metavar="TIME", group=_RUNS
    )
    until: str | None = option(None, "started before this time", metavar="TIME", group=_RUNS)
    tag: tuple[tuple[str, str], ...] = option(
        (), "tag of the runs, repeatable", metavar="KEY=VALUE", several="repeat", group=_RUNS
    )
    where: tuple[str, ...] = option(
        (),
        "condition on any column, with = != < <= > >=, repeatable: 'model.nodes>=1024'",
        metavar="COLUMN=VALUE",
        several="repeat",
        group=_RUNS,
    )
    unfinished: bool = option(False, "include runs without an outcome", group=_RUNS)
    reader: Literal["auto", "sql", "api"] = option(
        "auto",
        "how to read the store: its tables (sql), MLflow's search (api), or its tables if it is a "
        "database and MLflow's search otherwise (auto)",
        group=_RUNS,
    )
