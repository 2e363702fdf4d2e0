"""Commands about the store itself: taking its runs elsewhere, importing the published measurements."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.cli.selection import load_chosen
from analysis.options import Arguments, Options, Selection, option
from paradnn.errors import ConfigError

__all__ = ["ArchiveOptions", "ExportOptions", "export", "import_archive"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Where the frame goes."""

    command = "export"

    file: str = option(text="a .csv or .parquet file", metavar="FILE", positional=True)


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(Arguments):
    """Where the published files are."""

    command = "import-archive"

    dir: str = option(text="folder with tpu_fc.json, gpu_fc.json, fc_trace_10sec*.json", metavar="DIR", positional=True)


def export(options: ExportOptions, selection: Selection) -> None:
    """Write the frame of the chosen runs to a CSV or Parquet file."""
    path = Path(options.file)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ConfigError("FILE", options.file, "is of no known kind", "name a .csv or .parquet file")
    if not path.parent.is_dir():
        raise ConfigError("FILE", options.file, f"there is no folder {path.parent}", "make it first")
    frame = load_chosen(selection)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    print(f"{len(frame)} runs with {frame.shape[1]} columns written to {path}")


def import_archive(options: ArchiveOptions, selection: Selection) -> None:
    """Log the published measurements of a folder."""
    from analysis.store.archive import import_archive as log_archive

    if len(selection.experiment) > 1:
        raise ConfigError("--experiment", list(selection.experiment), "an import goes into one experiment", "name one")
    interactive = sys.stderr.isatty()
    experiment = next(iter(selection.experiment), "paradnn")
    done = log_archive(Path(options.dir), selection.store, experiment, progress=_show if interactive else None)
    if interactive and done.logged:
        print(file=sys.stderr)
    for line in done.damaged:
        print(f"damaged: {line}", file=sys.stderr)
    there = f"{done.present} were there already" if done.present else "none were there before"
    there += f" ({done.completed} of them gained metrics)" if done.completed else ""
    print(f"logged {done.logged} published runs, {there}, left out {len(done.damaged)} damaged entries")


def _show(done: int, total: int) -> None:
    if done % 20 == 0 or done == total:
        print(f"\r{done} of {total} runs", end="", file=sys.stderr, flush=True)
