"""What an analysis and a choice of runs take: frozen dataclasses whose fields say how they are
given.

A field made by `option` holds its help text, its bounds and how it stands on a command line.
`add_arguments` makes a parser of it, `read_arguments` reads what was parsed, `command_line` writes
options as such a line.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from paradnn.core.errors import ConfigError
from paradnn.core.schema import as_bounded, as_text
from paradnn.core.schema import option as option

ArgumentsT = TypeVar("ArgumentsT", bound="Arguments")
_COLUMN = re.compile(r"([\w.]+)\s*[=<>!]")  # of a condition
_RUNS = "which runs (F, P and O take several: A,B)"


def unit_option() -> Any:
    """What every analysis takes whose intervals are over points."""
    return option(
        "crossed",
        "what is taken as a sample: models and batch sizes (crossed), models at these batch sizes "
        "(model), or each point as if it stood alone (point)",
    )


def column_option(default: Any, text: str, metavar: str = "COLUMN") -> Any:
    """An option that names columns."""
    return option(default, text, metavar=metavar, names="columns")


def metric_option(what: str) -> Any:
    """What is shown, explained or predicted."""
    how = "default: flops_utilization, else flops_per_second, else examples_per_second"
    return column_option(None, f"{what} ({how})", "M")


class Argument(NamedTuple):
    """A field as an argument: its `kind` is that of one value, `pairs` are KEY=VALUE.

    A field's `option` may hold beside its bounds: `metavar`, `positional`, `group` (the heading in
    --help), `several` of a tuple: "commas" (A,B in one value, the default), "repeat" or "words";
    `shared` for what another class has the flag of; `names`, what its words are: "columns", or
    "conditions" on columns.
    """

    name: str
    flag: str
    kind: type
    default: Any
    several: str
    pairs: bool
    choices: tuple[str, ...]
    how: dict[str, Any]

    def words(self, value: Any) -> list[str]:
        """A value as it stands on a command line; nothing for the default."""
        positional = self.how.get("positional")
        if value is None or (value == self.default and not positional):
            return []
        if self.kind is bool:
            return [self.flag]
        values = [
            "=".join(part) if self.pairs else str(part)
            for part in (value if self.several else [value])
        ]
        values = [",".join(values)] if self.several == "commas" else values
        if positional or self.several == "words":
            return values if positional else [self.flag, *values]
        # A value that begins with a dash would be taken for a flag.
        each = (
            [f"{self.flag}={text}"] if text.startswith("-") else [self.flag, text]
            for text in values
        )
        return [word for words in each for word in words]

    def add_to(self, parser: Any) -> None:
        """Make it an argument of a parser. None stands for what was not given: the default is the
        dataclass's.
        """
        positional = self.how.get("positional")
        more: dict[str, Any] = {} if positional else {"default": None, "dest": self.name}
        if self.kind is bool:
            more["action"] = "store_true"
        else:
            parts = _parts if self.several == "commas" else self.kind
            kind = partial(_pair, self.how["metavar"]) if self.pairs else parts
            more |= {
                "metavar": self.how.get("metavar"),
                "choices": self.choices or None,
                "type": kind,
            }
            more |= {"repeat": {"action": "append"}, "words": {"nargs": "+"}}.get(self.several, {})
            if not positional:
                more["required"] = self.default is dataclasses.MISSING
            elif self.default is None:
                more["nargs"] = "?"
        known = self.default not in (dataclasses.MISSING, None, False, ()) and not positional
        if known:
            default = f" (default: {','.join(self.default) if self.several else self.default})"
        else:
            default = ""
        parser.add_argument(
            self.name if positional else self.flag, help=self.how["help"] + default, **more
        )


def arguments(cls: type[Arguments]) -> list[Argument]:
    """The fields of a class, but for those that are `shared`."""
    kinds = get_type_hints(cls)
    found = []
    for entry in (entry for entry in dataclasses.fields(cls) if "shared" not in entry.metadata):
        kind = kinds[entry.name]
        kind = get_args(kind)[0] if NoneType in get_args(kind) else kind
        inner = get_args(kind)
        how = dict(entry.metadata)
        if get_origin(kind) is tuple:
            several = how.get("several", "commas")
        else:
            several = ""
        pairs = bool(several) and get_origin(inner[0]) is tuple
        choices = tuple(inner) if get_origin(kind) is Literal else ()
        if pairs or choices:
            one = str
        elif several:
            one = inner[0]
        else:
            one = kind
        flag = "--" + entry.name.replace("_", "-")
        found.append(Argument(entry.name, flag, one, entry.default, several, pairs, choices, how))
    return found


def add_arguments(parser: argparse.ArgumentParser, *classes: type[Arguments]) -> None:
    """An argument for each field of the classes, under the heading that the field names."""
    groups: dict[str, Any] = {"": parser}
    for argument in (argument for cls in classes for argument in arguments(cls)):
        title = argument.how.get("group", "")
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        argument.add_to(groups[title])


def read_arguments(cls: type[ArgumentsT], given: argparse.Namespace) -> ArgumentsT:
    """The options that a parsed command line gives; what it leaves out keeps its default."""
    given_values = {
        entry.name: getattr(given, entry.name, None) for entry in dataclasses.fields(cls)
    }
    return cls(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given_values.items()
            if value is not None
        }
    )


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise argparse.ArgumentTypeError(
            f"{text!r} names nothing; write one value or several with commas between them"
        )
    return parts


def _pair(shape: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not {shape}")
    return key, value


def command_line(options: Arguments) -> list[str]:
    """Options as the words of a command line that gives the same options; what is left at its
    default is left out.
    """
    known = sorted(
        arguments(type(options)), key=lambda argument: not argument.how.get("positional")
    )
    return [word for argument in known for word in argument.words(getattr(options, argument.name))]


def columns_named(options: Arguments) -> set[str]:
    """The columns that options are about: of fields that name columns, and of conditions such as
    "device=V100".
    """
    found: set[str] = set()
    for argument in arguments(type(options)):
        value = getattr(options, argument.name)
        kind = argument.how.get("names")
        if value is not None and kind:
            texts = value if argument.several else (value,)
        else:
            texts = ()
        found.update(
            texts
            if kind == "columns"
            else (name for text in texts for name in _COLUMN.findall(text))
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Fields made by `option`; ConfigError for a value beyond a bound or none of the choices."""

    def __post_init__(self) -> None:
        for argument in arguments(type(self)):
            value = getattr(self, argument.name)
            if argument.choices:
                as_text(value, {"choices": argument.choices}, argument.flag)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, (int, float)):
                    as_bounded(number, argument.how, argument.flag)


@dataclass(frozen=True, kw_only=True)
class Options(Arguments):
    """What every analysis takes.

    `store` is where tables of operations are read from; the runs themselves come as a frame.
    """

    pool: bool = option(False, "pool runs of different environments or protocols", group=_RUNS)
    steady_only: bool = option(
        False,
        "leave out runs that are not steady or shared their machine with other work",
        group=_RUNS,
    )
    store: tuple[str, ...] = option((), shared=True)


@dataclass(frozen=True, kw_only=True)
class StoreChoice(Arguments):
    """Where runs are."""

    store: tuple[str, ...] = option(
        (),
        "tracking URI, or path of an mlflow.db or of a .zip of results; repeatable: the column store then says which "
        " (default: MLFLOW_TRACKING_URI, else this checkout's)",
        metavar="URI",
        several="repeat",
        group="store",
    )

    @property
    def written(self) -> str | None:
        """The one store that is written into; ConfigError where several are named."""
        if len(self.store) > 1:
            raise ConfigError(
                "--store", list(self.store), "there are several", "name the one to write into"
            )
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
    """Which runs; all that is given must hold."""

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
        "one timing protocol: quick, standard, or the beginning of the hash of another",
        metavar="NAME",
        group=_RUNS,
    )
    outcome: tuple[str, ...] = option(
        (), "outcome of the runs, such as ok or oom_device (default: all)", metavar="O", group=_RUNS
    )
    since: str | None = option(
        None, "started at or after, such as 2026-01-31 (UTC)", metavar="TIME", group=_RUNS
    )
    until: str | None = option(None, "started before", metavar="TIME", group=_RUNS)
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
    unfinished: bool = option(False, "also runs that have no outcome", group=_RUNS)
    reader: Literal["auto", "sql", "api"] = option(
        "auto",
        "how the store is read; auto: by its tables where it has any, else by MLflow's search",
        group=_RUNS,
    )
