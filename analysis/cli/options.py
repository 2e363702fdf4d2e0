"""The shared options: which store, and which of its runs."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import TYPE_CHECKING

from analysis.store.conditions import parse, select

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["add_selection", "add_store", "load_chosen"]


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
    group.add_argument("--pool", action="store_true", help="pool runs of different environments or protocols")
    readers = "how the store is read (default: its tables where it has any, else MLflow's search)"
    group.add_argument("--reader", choices=("auto", "sql", "api"), default="auto", help=readers)


def load_chosen(args: argparse.Namespace, columns: Collection[str] | None = None) -> pd.DataFrame:
    """The frame of the runs that the options choose; `columns` limits what is read."""
    from analysis.store.load import load

    tags = dict(args.tag)
    if args.device:
        tags["device"] = args.device
    if columns is not None:
        columns = {*columns, *(parse(condition).column for condition in args.where)}
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


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
