"""Commands about the store itself: what it holds, taking it elsewhere, bringing the published measurements in."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.cli.options import load_chosen
from analysis.summaries.command import Command, argument
from analysis.summaries.result import Result
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COMMANDS"]


def runs(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """How many runs of each family on each device ended how, and when the first and the last of them started."""
    import pandas as pd

    if frame.empty:
        return Result(frame[["family", "device"]], "no such runs in the store")
    named = frame.assign(
        **{
            name: frame[name].fillna(lacking)
            for name, lacking in (("family", "(none)"), ("device", "(none)"), ("outcome", "unfinished"))
        }
    )
    groups = named.groupby(["family", "device"])
    counts = pd.crosstab([named["family"], named["device"]], named["outcome"])
    order = sorted(counts.columns, key=lambda name: (name != "ok", name == "unfinished", name))
    table = pd.concat(
        [groups.size().rename("runs"), counts[order], groups["start_time"].agg(first="min", last="max")], axis=1
    )
    for name in ("first", "last"):
        table[name] = table[name].dt.strftime("%Y-%m-%d %H:%M")
    from analysis.store.frame import is_ok

    ok = int(is_ok(frame).sum())
    return Result(table.reset_index(), f"{len(frame)} runs, {ok} of them measured")


def export(args: argparse.Namespace) -> None:
    """Write the frame of the chosen runs to a CSV or Parquet file."""
    path = Path(args.file)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ConfigError("FILE", args.file, "is of no known kind", "name a .csv or .parquet file")
    if not path.parent.is_dir():
        raise ConfigError("FILE", args.file, f"there is no folder {path.parent}", "make it first")
    frame = load_chosen(args)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    print(f"{len(frame)} runs with {frame.shape[1]} columns written to {path}")


def import_archive(args: argparse.Namespace) -> None:
    """Log the published measurements of a folder."""
    from analysis.store.published import import_archive as log_archive

    if len(args.experiment or []) > 1:
        raise ConfigError("--experiment", args.experiment, "an import goes into one experiment", "name one")
    experiment = (args.experiment or ["paradnn"])[0]
    interactive = sys.stderr.isatty()
    done = log_archive(Path(args.dir), args.store, experiment, progress=_show if interactive else None)
    if interactive and done.logged:
        print(file=sys.stderr)
    for line in done.damaged:
        print(f"damaged: {line}", file=sys.stderr)
    there = f"{done.present} were there already" if done.present else "none were there before"
    print(f"logged {done.logged} published runs, {there}, left out {len(done.damaged)} damaged entries")


def _show(done: int, total: int) -> None:
    if done % 20 == 0 or done == total:
        print(f"\r{done} of {total} runs", end="", file=sys.stderr, flush=True)


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="import-archive",
        summary="log the published ParaDnn measurements (TPU v2, V100) as runs",
        description="Log the data files of the ParaDnn paper's artifact as runs, marked source=published.\n"
        "They are in github.com/Emma926/paradnn, folder scripts/data. What is there is not logged again.",
        example="python -m analysis import-archive ../paradnn-original/scripts/data",
        arguments=(argument("dir", metavar="DIR", help="folder with tpu_fc.json, gpu_fc.json, fc_trace_10sec*.json"),),
        act=import_archive,
        selects=False,
    ),
    Command(
        name="runs",
        summary="what the store holds: runs by family, device and outcome",
        description="Count the runs of each model family on each device by how they ended.",
        example="python -m analysis runs --unfinished",
        analyse=runs,
        columns=(),
    ),
    Command(
        name="export",
        summary="write the frame of chosen runs to a CSV or Parquet file",
        description="Write one row a run with all its params, metrics and tags. Parquet keeps types and units.",
        example="python -m analysis export fc.parquet --family fc --outcome ok",
        arguments=(argument("file", metavar="FILE", help="a .csv or .parquet file"),),
        act=export,
    ),
)
