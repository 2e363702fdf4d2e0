"""Every sub-command: those of the analyses, and those about the store itself.

These take its runs elsewhere, log those of others and the published ones, make the report, or read
other harnesses.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.audit import AuditOptions, audit
from analysis.cli.answer import answer, load_chosen
from analysis.cli.output import FigureOutput, Output, deliver, named, write_csv
from analysis.options import (
    Arguments,
    Options,
    Selection,
    StoreChoice,
    add_arguments,
    option,
    read_arguments,
)
from analysis.prices import price_option, read_prices
from analysis.published.catalog import SOURCES, PublishedSource
from analysis.registry import ANALYSES, Analysis
from paradnn.cli.console import Ticker, say, si
from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError
from paradnn.core.tables import rows
from paradnn.core.words import counted
from paradnn.store.files import whole_file

if TYPE_CHECKING:
    from analysis.published.source import ImportedFolder


class SubCommand(NamedTuple):
    """A sub-command: an analysis, or a function `act` of options and a selection, whose docstring
    --help shows.

    Without `selects` it takes no options that choose runs.
    """

    name: str
    options: type[Arguments]
    summary: str
    example: str
    act: Callable[[Any, Any], None] | None = None
    analysis: Analysis[Any, Any] | None = None
    selects: bool = True

    @property
    def description(self) -> str:
        """What --help says of it."""
        if self.analysis:
            return self.analysis.description
        return cleandoc(self.act.__doc__ or "")

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments and the shared ones."""
        if self.analysis is None:
            output = ()
        else:
            output = (FigureOutput if self.analysis.has_figure else Output,)
        add_arguments(parser, Selection if self.selects else StoreChoice, self.options, *output)

    def execute(self, args: argparse.Namespace, command_line: list[str]) -> None:
        """Do it, and print, write and log what came out."""
        options = read_arguments(self.options, args)
        selection = read_arguments(Selection, args)
        if self.act is not None:
            self.act(options, selection)
        if self.analysis is not None:
            one = self.analysis
            output = read_arguments(FigureOutput, args)
            assert isinstance(options, Options), "what an analysis takes"
            frame = one.load_frame(options) if one.load_frame else None
            if frame is None:
                frame = load_chosen(selection, one.columns, may_be_empty=one.accepts_no_runs)
            result = answer(one, frame, options, selection)
            deliver(self.name, result, frame, selection, output, command_line)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Where the frame goes."""

    file: str = option(
        text="a .csv or .parquet file for the frame, a .zip for the runs with all their files",
        metavar="FILE",
        positional=True,
    )


def _export(options: ExportOptions, selection: Selection) -> None:
    """CSV and Parquet have one row a run with params, metrics and tags; Parquet keeps types and
    units. A .zip holds the runs with all their files: every command takes it as --store, `import`
    logs it.
    """
    path = named(
        options.file, "FILE", (".csv", ".parquet", ".zip"), "a .csv, .parquet or .zip file"
    )
    suffix = path.suffix.lower()
    frame = load_chosen(selection)
    if suffix == ".zip":
        from analysis.store.write import export_bundle

        count = export_bundle(
            frame, path, selection.store, selection.experiment or (default_experiment(),)
        )
        size = path.stat().st_size
        chosen = f"{len(frame):,} of them chosen"
        print(
            f"{counted(count, 'run')}, {chosen}, with their files written to {path} ({si(size)}B)"
        )
        print(f"Open it anywhere: python -m analysis report --store {shlex.quote(str(path))}")
        return
    from analysis.store.frame import units

    with whole_file(path, "FILE") as making:
        if suffix == ".csv":
            write_csv(frame, making)
        else:
            frame.attrs["units"] = units(frame.columns)
            frame.to_parquet(making, index=False)
    print(f"{counted(len(frame), 'run')} with {frame.shape[1]} columns written to {path}")


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Arguments):
    """Which bundle."""

    file: str = option(text="a .zip that `export` wrote", metavar="FILE", positional=True)


def _import_bundle(options: ImportOptions, selection: Selection) -> None:
    """Log runs that were measured elsewhere, with their files, into a store. What is there is not
    logged again; the tag origin holds a run's id of before. To look at a .zip alone, give it as
    --store.
    """
    from analysis.store.write import import_bundle

    experiment = _one_experiment(selection, default_experiment())
    logged, present = import_bundle(
        Path(options.file), selection.written, experiment, Ticker("runs")
    )
    print(f"{counted(logged, 'run')} logged, {present:,} were there already")


def _one_experiment(selection: Selection, usual: str) -> str:
    if len(selection.experiment) > 1:
        raise ConfigError(
            "--experiment",
            list(selection.experiment),
            "an import goes into one experiment",
            "name one",
        )
    return next(iter(selection.experiment), usual)


@dataclass(frozen=True, kw_only=True)
class FolderOptions(Arguments):
    """Where published measurements are."""

    dir: str | None = option(
        None, "the folder, if the package does not contain them", metavar="DIR", positional=True
    )


def _import_command(source: PublishedSource) -> SubCommand:
    """The command that logs the measurements of a source into an experiment."""

    def act(options: Any, selection: Selection) -> None:
        from analysis.published.source import log_published

        experiment = _one_experiment(selection, source.experiment)
        folder = _read_published(source, options.dir)
        logged, present = log_published(folder, selection.written, experiment, Ticker(source.unit))
        for line in folder.skipped_entries:
            say(f"damaged: {line}", sys.stderr)
        parts = [f"logged {counted(logged, 'published run')}"]
        parts.append(f"{present:,} were there already" if present else "none were there before")
        skipped = len(folder.skipped_entries)
        if skipped:
            entries = "entry" if skipped == 1 else "entries"
            parts.append(f"skipped {skipped} damaged {entries}")
        print(", ".join(parts))
        if source.next_step:
            print(f"{source.next_step} --experiment {shlex.quote(experiment)}")

    if source.folder:
        location = f"DIR is a {source.folder}"
    else:
        location = f"They come with the package (from {source.origin}), so there is no DIR"
    summary = source.summary[0].upper() + source.summary[1:]
    act.__doc__ = (
        f"{summary}, marked source=published, into the experiment\n{source.experiment} unless "
        f"--experiment names another. {location}.\n"
        "Runs that the store already holds are not logged again."
    )
    example = f"python -m analysis import-{source.name}"
    if source.folder:
        example += " ../dawn-bench-entries"
    return SubCommand(
        f"import-{source.name}", FolderOptions, source.summary, example, act, selects=False
    )


def _read_published(source: PublishedSource, folder: str | None) -> ImportedFolder:
    """The measurements of a source: from the user's folder, or from the package.

    Raises:
        ConfigError: The folder is missing, or the source takes none.
    """
    from analysis.published.source import load_shipped

    command = f"import-{source.name}"
    if not source.folder:
        if folder:
            raise ConfigError(
                "DIR",
                folder,
                f"{command} reads no folder: its runs come with the package",
                "omit it",
            )
        return load_shipped(source.name)
    if not folder:
        raise ConfigError(
            "DIR",
            "(none)",
            f"{command} reads files that the package does not contain",
            f"give a {source.folder}",
        )
    reader = import_module(f"analysis.published.{source.name}")
    return getattr(reader, f"read_{source.name}")(Path(folder))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Where the page goes, and what an hour costs."""

    price: tuple[str, ...] = price_option("adds the cost of a million examples")
    out: str = option("report.html", "the page to write", metavar="FILE")


def _report(options: ReportOptions, selection: Selection) -> None:
    """Write one self-contained HTML page: every analysis that the runs can carry, and what is
    missing. Heterogeneous runs stand in populations of their own. Opens without network.
    """
    from rich.console import Console

    from analysis.report import make_report

    target = named(options.out, "--out", (".html", ".htm"), "a .html file").absolute()
    frame = load_chosen(selection)
    prices = read_prices(options.price, frame)
    with Console(stderr=True).status("Every analysis is tried ..."):
        page = make_report(frame, selection, options.pool, prices).encode(errors="replace")
    with whole_file(target, "--out") as making:
        making.write_bytes(page)
    print(f"{target} ({len(page) / 1e6:.1f} MB, {counted(len(frame), 'run')})")
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    print(f"Open it in a browser: {opener} {shlex.quote(str(target))}")


_PUBLISHED = (_import_command(source) for source in SOURCES)
#: The options of each command of the table, what it does, and whether that is about chosen runs.
_ACTS: dict[str, tuple[type[Arguments], Callable[[Any, Any], None], bool]] = {
    "audit": (AuditOptions, audit, False),
    "export": (ExportOptions, _export, True),
    "import": (ImportOptions, _import_bundle, False),
    "report": (ReportOptions, _report, True),
}
_STORE = (
    SubCommand(row["name"], options, row["summary"], row["example"], act, selects=selects)
    for row in rows(__file__)
    for options, act, selects in [_ACTS[row["name"]]]
)
_ANALYSES = (
    SubCommand(one.name, one.options, one.summary, one.example, analysis=one)
    for one in ANALYSES.values()
)
#: In the order of --help.
COMMANDS = tuple(sorted((*_PUBLISHED, *_STORE, *_ANALYSES), key=lambda one: one.name))
