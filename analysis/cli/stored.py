"""Commands about the store itself: taking its runs elsewhere, importing those of others and the published ones."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.cli.screen import write_csv
from analysis.cli.selection import load_chosen
from analysis.options import Arguments, Options, Selection, option
from paradnn.cli.console import Ticker, say
from paradnn.core.words import counted
from paradnn.errors import ConfigError
from paradnn.store.files import whole_file

if TYPE_CHECKING:
    import pandas as pd

    from analysis.published.runs import Imported

__all__ = [
    "ArchiveOptions",
    "DawnbenchOptions",
    "DeepBenchOptions",
    "ExportOptions",
    "ImportOptions",
    "RcpOptions",
    "VidurOptions",
    "export",
    "import_archive",
    "import_bundle",
    "import_dawnbench",
    "import_deepbench",
    "import_mlperf_rcp",
    "import_vidur",
]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Where the frame goes."""

    command = "export"

    file: str = option(
        text="a .csv or .parquet file for the frame, a .zip for the runs with all their files",
        metavar="FILE",
        positional=True,
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Arguments):
    """Which bundle."""

    command = "import"

    file: str = option(text="a .zip that `export` wrote", metavar="FILE", positional=True)


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(Arguments):
    """Where the published files are."""

    command = "import-archive"

    dir: str = option(text="folder with tpu_fc.json, gpu_fc.json, fc_trace_10sec*.json", metavar="DIR", positional=True)


@dataclass(frozen=True, kw_only=True)
class DeepBenchOptions(Arguments):
    """Where DeepBench's spreadsheets are."""

    command = "import-deepbench"

    dir: str = option(text="folder with DeepBench_*.xlsx, in it or below", metavar="DIR", positional=True)


@dataclass(frozen=True, kw_only=True)
class VidurOptions(Arguments):
    """Where Vidur's timings are."""

    command = "import-vidur"

    dir: str = option(
        text="a clone of microsoft/vidur, or its folder data/profiling/network", metavar="DIR", positional=True
    )


@dataclass(frozen=True, kw_only=True)
class DawnbenchOptions(Arguments):
    """Where DAWNBench's entries are."""

    command = "import-dawnbench"

    dir: str = option(text="a clone of stanford-futuredata/dawn-bench-entries", metavar="DIR", positional=True)


@dataclass(frozen=True, kw_only=True)
class RcpOptions(Arguments):
    """Where MLPerf's reference points are."""

    command = "import-mlperf-rcp"

    dir: str = option(text="a clone of mlcommons/logging", metavar="DIR", positional=True)


def export(options: ExportOptions, selection: Selection) -> None:
    """Write the frame of the chosen runs to a CSV or Parquet file."""
    path = Path(options.file)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet", ".zip"):
        raise ConfigError("FILE", options.file, "is of no known kind", "name a .csv, .parquet or .zip file")
    if not path.parent.is_dir():
        raise ConfigError("FILE", options.file, f"there is no folder {path.parent}", "make it first")
    frame = load_chosen(selection)
    if suffix == ".zip":
        _export_bundle(frame, path, selection)
        return
    with whole_file(path, "FILE") as making:
        if suffix == ".csv":
            write_csv(frame, making)
        else:
            frame.to_parquet(making, index=False)
    print(f"{counted(len(frame), 'run')} with {frame.shape[1]} columns written to {path}")


def _export_bundle(frame: pd.DataFrame, path: Path, selection: Selection) -> None:
    from analysis.store.bundles import export_bundle

    count = export_bundle(frame, path, selection.store, selection.experiment or ("paradnn",))
    size = path.stat().st_size / 1e6
    print(f"{counted(count, 'run')}, {len(frame):,} of them chosen, with their files written to {path} ({size:.1f} MB)")
    print(f"Open it anywhere: python -m analysis report --store {shlex.quote(str(path))}")


def import_bundle(options: ImportOptions, selection: Selection) -> None:
    """Log the runs of a bundle into a store."""
    from analysis.store.bundles import import_bundle as log_bundle

    logged, present = log_bundle(Path(options.file), selection.written, _one_experiment(selection), Ticker("runs"))
    print(f"{counted(logged, 'run')} logged, {present:,} were there already")


def _one_experiment(selection: Selection, usual: str = "paradnn") -> str:
    if len(selection.experiment) > 1:
        raise ConfigError("--experiment", list(selection.experiment), "an import goes into one experiment", "name one")
    return next(iter(selection.experiment), usual)


def import_archive(options: ArchiveOptions, selection: Selection) -> None:
    """Log the published measurements of a folder."""
    from analysis.published.archive import import_archive as log_archive

    _import(log_archive, options.dir, selection)


def import_deepbench(options: DeepBenchOptions, selection: Selection) -> None:
    """Log the timings of a folder's spreadsheets."""
    from analysis.published.deepbench import import_deepbench as log_timings

    _import(log_timings, options.dir, selection)


def import_vidur(options: VidurOptions, selection: Selection) -> None:
    """Log Vidur's timings of NCCL."""
    from analysis.published.vidur import EXPERIMENT
    from analysis.published.vidur import import_vidur as log_timings

    experiment = _import(log_timings, options.dir, selection, EXPERIMENT)
    print(f"Fit them: python -m analysis channel --experiment {shlex.quote(experiment)}")


def _import(log: Callable[..., Imported], folder: str, selection: Selection, usual: str = "paradnn") -> str:
    """Log what a folder holds, and say how much that was; the experiment that holds it now."""
    experiment = _one_experiment(selection, usual)
    done = log(Path(folder), selection.written, experiment, progress=Ticker("runs"))
    for line in done.left_out:
        say(f"damaged: {line}", sys.stderr)
    there = f"{done.present:,} were there already" if done.present else "none were there before"
    there += f" ({done.completed} of them gained metrics)" if done.completed else ""
    print(f"logged {counted(done.logged, 'published run')}, {there}, left out {_entries(len(done.left_out))}")
    return experiment


def import_dawnbench(options: DawnbenchOptions, selection: Selection) -> None:
    """Log DAWNBench's training entries, and say how long each took and what its metric did afterwards."""
    from analysis.published.dawnbench import EXPERIMENT
    from analysis.published.dawnbench import import_dawnbench as log_series

    experiment = _one_experiment(selection, EXPERIMENT)
    done = log_series(Path(options.dir), selection.written, experiment, Ticker("series"))
    for line in done.runs.left_out:
        say(f"damaged: {line}", sys.stderr)
    for entry in done.series:
        place = entry.reached
        text = "threshold not reached" if place is None else f"{entry.hours[place]:.2f} h to the threshold"
        later = f", {'1 entry' if entry.below == 1 else f'{entry.below} entries'} below it later" if entry.below else ""
        say(f"{entry.task} {entry.name}: {text}{later}")
    below, often = (sum(entry.below >= least for entry in done.series) for least in (1, 2))
    counts = f"{done.runs.logged} series logged, {done.runs.present} were there already"
    print(f"{counts}; {below} fall below their threshold after reaching it, {often} of them in more than one entry")
    print(f"Score them: python -m analysis time-to-accuracy --experiment {shlex.quote(experiment)}")


def import_mlperf_rcp(options: RcpOptions, selection: Selection) -> None:
    """Log MLPerf's reference convergence points, and say of each benchmark which of its batch sizes decide."""
    from analysis.analyses.time_to_accuracy import convergence, prune
    from analysis.published.rcp import EXPERIMENT, import_rcp

    done = import_rcp(Path(options.dir), selection.written, _one_experiment(selection, EXPERIMENT), Ticker("points"))
    for line in done.runs.left_out:
        say(f"damaged: {line}", sys.stderr)
    for (round_, benchmark), group in itertools.groupby(done.points, key=lambda point: (point.round, point.benchmark)):
        points = list(group)
        kept = prune(convergence(point.batch_size, point.took, point.dropped) for point in points)
        shown = ", ".join(f"{point.batch_size:,} ({point.mean:.4g})" for point in kept)
        say(f"{round_} {benchmark}: {counted(len(points), 'point')}, deciding {shown} {points[0].unit}")
    counts = f"{counted(done.runs.logged, 'point')} logged, {done.runs.present} were there already"
    print(f"{counts}; {counted(done.files, 'file')}, {len(done.runs.left_out)} damaged")


def _entries(count: int) -> str:
    return "1 damaged entry" if count == 1 else f"{count} damaged entries"
