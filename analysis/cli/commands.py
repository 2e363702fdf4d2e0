"""The sub-commands of `python -m analysis`: the analyses, and commands for the store.

The commands for the store export and import runs, log published measurements, make the report, and
audit files of other harnesses.
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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.audit import AuditOptions, audit
from analysis.cli.answer import answer, load_selection
from analysis.cli.output import FigureOutput, Output, check_file, emit_result, write_csv
from analysis.lazy import pd
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
from paradnn.core.words import counted
from paradnn.store.files import whole_file

if TYPE_CHECKING:
    from analysis.published.source import ImportedFolder


class SubCommand(NamedTuple):
    """A sub-command of `python -m analysis`: an analysis, or an action on the store.

    Attributes:
        name: Name of the command.
        options: Class of its options.
        summary: One line for the list of commands.
        example: A command line for --help.
        action: Function of the options and the selection, whose docstring is the text of --help;
            None if the command is an analysis.
        analysis: The analysis; None if the command is an action.
        selects_runs: Whether the command takes the options that choose runs.
    """

    name: str
    options: type[Arguments]
    summary: str
    example: str
    action: Callable[[Any, Any], None] | None = None
    analysis: Analysis[Any, Any] | None = None
    selects_runs: bool = True

    @property
    def description(self) -> str:
        """The text of --help."""
        if self.analysis:
            return self.analysis.description
        return cleandoc(self.action.__doc__ or "")

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command to a parser."""
        classes: list[type[Arguments]] = [Selection if self.selects_runs else StoreChoice]
        classes.append(self.options)
        if self.analysis:
            classes.append(FigureOutput if self.analysis.has_figure else Output)
        add_arguments(parser, *classes)

    def execute(self, parsed: argparse.Namespace, command_line: list[str]) -> None:
        """Run the command with parsed arguments.

        Args:
            parsed: Result of a parser that `configure` prepared.
            command_line: The words of the command line, which --log records.
        """
        options = read_arguments(self.options, parsed)
        selection = read_arguments(Selection, parsed)
        if self.action is not None:
            self.action(options, selection)
        if self.analysis is not None:
            self._execute_analysis(self.analysis, options, selection, parsed, command_line)

    def _execute_analysis(
        self,
        analysis: Analysis[Any, Any],
        options: Arguments,
        selection: Selection,
        parsed: argparse.Namespace,
        command_line: list[str],
    ) -> None:
        assert isinstance(options, Options), "the registry checks the options of an analysis"
        frame = None
        if analysis.load_frame is not None:
            frame = analysis.load_frame(options)
        if frame is None:
            may_be_empty = analysis.accepts_no_runs
            frame = load_selection(
                selection, analysis.columns, may_be_empty=may_be_empty, options=options
            )
        emit_result(
            self.name,
            answer(analysis, frame, options, selection),
            frame=frame,
            selection=selection,
            output=read_arguments(FigureOutput, parsed),
            command_line=command_line,
        )


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Options of `export`."""

    file: str | None = option(
        None,
        "a .csv or .parquet file for the table of runs, a .zip for the runs with all their files",
        metavar="FILE",
        positional=True,
    )
    parquet: str | None = option(
        None, "a Parquet store to append the runs to, instead of FILE", metavar="DIR"
    )


def _export(options: ExportOptions, selection: Selection) -> None:
    """Write the chosen runs to a file, or append them to a Parquet store.

    CSV and Parquet have one row per run with params, metrics and tags; Parquet keeps types and
    units. A .zip contains the runs with all their files. Every command can read it with --store,
    and `import` logs its runs into a store.

    --parquet appends the runs to a folder of Parquet files, partitioned by experiment, month and
    device. Every command can read the folder with --store. Runs that the folder already contains
    are skipped.
    """
    if options.parquet is not None:
        _export_parquet(options, selection)
        return
    if options.file is None:
        raise ConfigError("FILE", "(none)", "is missing", "name a FILE, or give --parquet DIR")
    path = check_file(
        options.file,
        "FILE",
        suffixes=(".csv", ".parquet", ".zip"),
        kind="a .csv, .parquet or .zip file",
    )
    frame = load_selection(selection)
    if path.suffix.lower() == ".zip":
        _export_bundle(frame, path, selection)
    else:
        _export_frame(frame, path)


def _export_parquet(options: ExportOptions, selection: Selection) -> None:
    from analysis.store.write import export_parquet

    if options.file is not None:
        problem = "cannot be combined with --parquet"
        raise ConfigError("FILE", options.file, problem, "omit FILE or --parquet")
    folder = Path(options.parquet or "").expanduser().absolute()
    experiments = selection.experiment or (default_experiment(),)
    appended, present = export_parquet(
        load_selection(selection), folder, selection.store, experiments
    )
    print(f"{counted(appended, 'run')} appended to {folder}, {present:,} already there")
    print(f"Analyze it anywhere: python -m analysis runs --store {shlex.quote(str(folder))}")


def _export_bundle(frame: pd.DataFrame, path: Path, selection: Selection) -> None:
    from analysis.store.write import export_bundle

    experiments = selection.experiment or (default_experiment(),)
    count = export_bundle(frame, path, selection.store, experiments)
    size = si(path.stat().st_size)
    print(
        f"{counted(count, 'run')}, {len(frame):,} of them chosen, with their files written to "
        f"{path} ({size}B)"
    )
    print(f"Open it anywhere: python -m analysis report --store {shlex.quote(str(path))}")


def _export_frame(frame: pd.DataFrame, path: Path) -> None:
    from analysis.store.frame import units

    with whole_file(path, "FILE") as temporary:
        if path.suffix.lower() == ".csv":
            write_csv(frame, temporary)
        else:
            frame.attrs["units"] = units(frame.columns)
            frame.to_parquet(temporary, index=False)
    print(f"{counted(len(frame), 'run')} with {frame.shape[1]} columns written to {path}")


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Arguments):
    """Options of `import`."""

    file: str = option(text="a .zip that `export` wrote", metavar="FILE", positional=True)


def _import_bundle(options: ImportOptions, selection: Selection) -> None:
    """Log runs that were measured elsewhere, with their files, into a store.

    Runs that the store already contains are skipped. The tag `origin` states the former id of a
    run. To analyze a .zip without importing it, pass it to --store.
    """
    from analysis.store.write import import_bundle

    experiment = _single_experiment(selection, default_experiment())
    logged, present = import_bundle(
        Path(options.file), selection.written, experiment, Ticker("runs")
    )
    print(f"{counted(logged, 'run')} logged, {present:,} already there")


def _single_experiment(selection: Selection, default: str) -> str:
    if len(selection.experiment) > 1:
        problem = "runs can be written to only one experiment"
        raise ConfigError("--experiment", list(selection.experiment), problem, "name one")
    return next(iter(selection.experiment), default)


@dataclass(frozen=True, kw_only=True)
class FolderOptions(Arguments):
    """Options of the commands that import published measurements."""

    dir: str | None = option(
        None,
        "folder with the measurements, if the package does not contain them",
        metavar="DIR",
        positional=True,
    )


def _import_command(source: PublishedSource) -> SubCommand:
    """Return the command that logs the published measurements of a source into an experiment."""

    def import_source(options: Any, selection: Selection) -> None:
        from analysis.published.source import log_published

        experiment = _single_experiment(selection, source.experiment)
        folder = _read_published(source, options.dir)
        logged, present = log_published(folder, selection.written, experiment, Ticker(source.unit))
        for line in folder.skipped_entries:
            say(f"damaged: {line}", sys.stderr)
        parts = [f"logged {counted(logged, 'published run')}"]
        parts.append(f"{present:,} already there")
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
        location = f"The package contains them (from {source.origin}), so omit DIR"
    summary = source.summary[0].upper() + source.summary[1:]
    import_source.__doc__ = (
        f"{summary}, marked source=published, into the experiment\n{source.experiment} unless "
        f"--experiment names another. {location}.\n"
        "Runs that the store already contains are skipped."
    )
    example = f"python -m analysis import-{source.name}"
    if source.folder:
        example += " ../dawn-bench-entries"
    return SubCommand(
        name=f"import-{source.name}",
        options=FolderOptions,
        summary=source.summary,
        example=example,
        action=import_source,
        selects_runs=False,
    )


def _read_published(source: PublishedSource, folder: str | None) -> ImportedFolder:
    """Return the measurements of a source, from the user's folder or from the package.

    Args:
        source: The source.
        folder: The folder that the user gave; None for none.

    Raises:
        ConfigError: If a required folder is missing, or the source takes no folder.
    """
    from analysis.published.source import load_shipped

    command = f"import-{source.name}"
    if not source.folder:
        if folder:
            raise ConfigError(
                "DIR",
                folder,
                f"{command} takes no folder, because the package contains its runs",
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
    """Options of `report`."""

    price: tuple[str, ...] = price_option("adds the cost of a million examples")
    out: str = option("report.html", "the page to write", metavar="FILE")


def _report(options: ReportOptions, selection: Selection) -> None:
    """Write one self-contained HTML page with every analysis that the runs allow.

    The page lists missing data. Runs that differ in device, environment or protocol are shown
    separately. The page opens without a network connection.
    """
    from rich.console import Console

    from analysis.report import make_report

    target = check_file(
        options.out, "--out", suffixes=(".html", ".htm"), kind="a .html file"
    ).absolute()
    frame = load_selection(selection)
    prices = read_prices(options.price, frame)
    with Console(stderr=True).status("Running every analysis ..."):
        page = make_report(frame, selection, pool=options.pool, prices=prices).encode(
            errors="replace"
        )
    with whole_file(target, "--out") as temporary:
        temporary.write_bytes(page)
    print(f"{target} ({len(page) / 1e6:.1f} MB, {counted(len(frame), 'run')})")
    opener = {"darwin": "open", "win32": "start"}.get(sys.platform, "xdg-open")
    print(f"Open it in a browser: {opener} {shlex.quote(str(target))}")


@dataclass(frozen=True, kw_only=True)
class SweepPageOptions(Arguments):
    """Options of `sweep-page`."""

    sweep: str | None = option(
        None,
        "sweep_id, a tag of the sweep's run (default: the newest sweep)",
        metavar="SWEEP_ID",
        positional=True,
    )
    out: str = option(".", "the folder to write into", metavar="FOLDER")
    log: bool = option(False, "also store the files with the sweep's run")
    only: Literal["page", "report"] | None = option(
        None, "write only the page with its table, or only the report"
    )


def _sweep_page(options: SweepPageOptions, selection: Selection) -> None:
    """Write the page of a sweep with interactive figures, its table of points, and its report.

    When a sweep ends, its run in MLflow gets these files. --log adds them to the run of an older
    sweep. The files open without a network connection.
    """
    from analysis.sweep_page.page import (
        log_files,
        sweep_frame,
        write_sweep_page,
        write_sweep_report,
    )

    experiment = _single_experiment(selection, default_experiment())
    sweep, frame = sweep_frame(selection.written, experiment, options.sweep)
    folder = Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created ({error.strerror})"
        raise ConfigError("--out", options.out, problem, "name a writable folder") from None
    sweep_id = str(sweep["sweep_id"].iloc[0])
    files = []
    if options.only != "report":
        files += write_sweep_page(folder, sweep, frame)
    if options.only != "page":
        chosen = Selection(
            store=selection.store, experiment=(experiment,), tag=(("sweep_id", sweep_id),)
        )
        files += write_sweep_report(folder, frame, chosen)
    if options.log:
        log_files(files, str(sweep["run_id"].iloc[0]), selection.written)
    names = ", ".join(path.name for path in files)
    print(f"{counted(len(frame), 'run')} of sweep {sweep_id}: {names} in {folder}")


#: Deprecated name of a command -> present name.
RENAMED_COMMANDS = {"beside": "compare-published"}

_STORE_COMMANDS = (
    SubCommand(
        name="audit",
        options=AuditOptions,
        summary="conclusions that the results of other harnesses support: hyperfine, "
        "pytest-benchmark, asv and others",
        example="python -m analysis audit before-*.json --against after-*.json",
        action=audit,
        selects_runs=False,
    ),
    SubCommand(
        name="export",
        options=ExportOptions,
        summary="write the chosen runs: their table as CSV or Parquet, the runs with their files "
        "as a .zip, or appended to a Parquet store",
        example="python -m analysis export fc.parquet --family fc --outcome ok",
        action=_export,
    ),
    SubCommand(
        name="import",
        options=ImportOptions,
        summary="log the runs in a .zip file from `export` into a store",
        example="python -m analysis import results.zip",
        action=_import_bundle,
        selects_runs=False,
    ),
    SubCommand(
        name="report",
        options=ReportOptions,
        summary="one HTML page with every analysis that the runs allow: figures, numbers, missing "
        "data",
        example="python -m analysis report --out report.html",
        action=_report,
    ),
    SubCommand(
        name="sweep-page",
        options=SweepPageOptions,
        summary="the page of one sweep, as in its MLflow run: interactive figures and a table of "
        "points",
        example="python -m analysis sweep-page --out sweep",
        action=_sweep_page,
        selects_runs=False,
    ),
)


def _analysis_command(analysis: Analysis[Any, Any]) -> SubCommand:
    return SubCommand(
        name=analysis.name,
        options=analysis.options,
        summary=analysis.summary,
        example=analysis.example,
        analysis=analysis,
    )


_ALL_COMMANDS = [
    *_STORE_COMMANDS,
    *(_import_command(source) for source in SOURCES),
    *(_analysis_command(entry) for entry in ANALYSES.values()),
]
#: All sub-commands, in the order of --help.
COMMANDS = tuple(sorted(_ALL_COMMANDS, key=lambda command: command.name))
