"""The shared options: which store, and which of its runs."""

from __future__ import annotations

import argparse
import difflib
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["add_selection", "add_store", "load_chosen", "select"]

_CONDITION = re.compile(r"\s*(.+?)\s*(>=|<=|!=|=|>|<)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "!=": operator.ne,
}


def add_store(parser: argparse.ArgumentParser) -> None:
    """--store and --experiment."""
    group = parser.add_argument_group("store")
    group.add_argument(
        "--store", metavar="URI", help="tracking URI (default: MLFLOW_TRACKING_URI, else this checkout's)"
    )
    group.add_argument(
        "--experiment", metavar="NAME", action="append", help="MLflow experiment, repeatable (default: paradnn)"
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The options that choose runs; all of them must hold."""
    group = parser.add_argument_group("which runs (F, P and O take several: A,B)")
    group.add_argument(
        "--family", metavar="F", type=_several, help="model family: fc, residual, bottleneck, rnn, lstm, gru, gpt, ..."
    )
    group.add_argument("--platform", metavar="P", type=_several, help="kind of device: cpu, gpu, tpu")
    group.add_argument("--device", metavar="D", help="one device by its name, such as 'TPU v2'")
    group.add_argument(
        "--outcome", metavar="O", type=_several, help="how runs ended, such as ok or oom_device (default: all)"
    )
    group.add_argument("--since", metavar="TIME", help="started at or after, such as 2026-01-31 (UTC)")
    group.add_argument("--until", metavar="TIME", help="started before")
    group.add_argument(
        "--tag", metavar="KEY=VALUE", action="append", default=[], type=_pair, help="tag of the runs, repeatable"
    )
    conditions = "condition on any column, with = != < <= > >=, repeatable: 'model.nodes>=1024'"
    group.add_argument("--where", metavar="COLUMN=VALUE", action="append", default=[], help=conditions)
    group.add_argument("--unfinished", action="store_true", help="also runs that have no outcome")
    group.add_argument("--pool", action="store_true", help="treat runs of unlike environments or protocols as alike")
    readers = "how the store is read (default: its tables where it has any, else MLflow's search)"
    group.add_argument("--reader", choices=("auto", "sql", "api"), default="auto", help=readers)


def load_chosen(args: argparse.Namespace, columns: Collection[str] | None = None) -> pd.DataFrame:
    """The frame of the runs that the options choose; `columns` limits what is read."""
    from analysis.store.load import load

    tags = dict(args.tag)
    if args.device:
        tags["device"] = args.device
    if columns is not None:
        columns = {*columns, *(_parse(condition)[0] for condition in args.where)}
    frame = load(
        args.store,
        experiments=args.experiment or ("paradnn",),
        family=args.family,
        platform=args.platform,
        outcome=args.outcome,
        since=args.since,
        until=args.until,
        tags=tags,
        unfinished=args.unfinished,
        columns=columns,
        reader=args.reader,
    )
    return select(frame, args.where)


def select(frame: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """The rows that meet every condition, such as "model.nodes>=1024" or "device=TPU v2,V100".

    ConfigError for a column that is not there or a value of another type. A missing value meets no condition but !=.
    """
    for condition in conditions:
        name, sign, text = _parse(condition)
        if name not in frame:
            close = difflib.get_close_matches(name, list(frame.columns), n=1)
            raise ConfigError(
                "--where",
                condition,
                f"these runs have no column {name}",
                f"did you mean {close[0]}?" if close else "see python -m analysis export",
            )
        column, equality = frame[name], sign in ("=", "!=")
        # A comma divides values, unless it is part of one, as in the name of a device.
        parts = text.split(",") if equality and text not in set(column.dropna().astype("str")) else [text]
        values = [_value(part.strip(), column, condition) for part in parts]
        chosen = column.isin(values) == (sign == "=") if equality else _COMPARE[sign](column, values[0])
        frame = frame[chosen.fillna(False).astype(bool)]
    return frame.reset_index(drop=True)


def _parse(condition: str) -> tuple[str, str, str]:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ConfigError("--where", condition, "is not a condition", "write for example --where 'model.nodes>=1024'")
    return match[1], match[2], match[3]


def _value(text: str, column: pd.Series, condition: str) -> Any:
    """A condition's value as the column's own type."""
    from pandas.api import types

    try:
        if types.is_bool_dtype(column):
            return {"true": True, "false": False}[text.lower()]
        if types.is_numeric_dtype(column):
            return float(text)
        if types.is_datetime64_any_dtype(column):
            import pandas as pd

            stamp = pd.Timestamp(text)
            return stamp if stamp.tz is not None else stamp.tz_localize("UTC")
    except (KeyError, ValueError):
        raise ConfigError(
            "--where", condition, f"{text!r} is no value of {column.name}", f"that column holds {column.dtype}"
        ) from None
    return text


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
