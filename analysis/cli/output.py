"""What becomes of a result: printed, written as a table or a figure, put back into the store."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.cli.screen import show, write_csv
from analysis.cli.typeset import ENDINGS, typeset
from analysis.options import Arguments, Selection, option
from paradnn.cli.console import say
from paradnn.errors import ConfigError
from paradnn.store.files import whole_file

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.result import Result

__all__ = ["FigureOutput", "Output", "deliver"]

_KINDS = (".png", ".svg", ".pdf")
_TAG_LENGTH = 5000  # what every MLflow server accepts as a tag's value


_GROUP = "output"


@dataclass(frozen=True, kw_only=True)
class Output(Arguments):
    """Where a result goes beside the terminal."""

    csv: str | None = option(None, "write the table to a file, - for standard output", metavar="FILE", group=_GROUP)
    typeset: str | None = option(
        None, "write the table for a paper: LaTeX (.tex) or Markdown (.md)", metavar="FILE", group=_GROUP
    )
    log: bool = option(
        False, "put the result into the store, as a run of kind=analysis that names its sources", group=_GROUP
    )


@dataclass(frozen=True, kw_only=True)
class FigureOutput(Output):
    """The same of a result that has a figure."""

    figure: tuple[str, ...] = option(
        (),
        "draw the figure, as PNG, SVG or PDF by the file's ending, repeatable",
        metavar="FILE",
        several="repeat",
        group=_GROUP,
    )
    width: float | None = option(
        None,
        "set the figure for print, exactly so many inches wide, such as 3.3 for a column and 7 for a page",
        metavar="INCHES",
        least=2.5,
        group=_GROUP,
    )


def deliver(
    command: str,
    result: Result,
    frame: pd.DataFrame,
    selection: Selection,
    output: FigureOutput,
    command_line: Sequence[str],
) -> None:
    """Print the result of an analysis and write what the options ask for.

    `frame` holds the runs it rests on. What cannot be drawn or written is refused before anything is printed.
    """
    table = _writable(output.csv, "--csv") if output.csv and output.csv != "-" else None
    paper = _named(output.typeset, "--typeset", ENDINGS, "a .tex or .md file") if output.typeset else None
    pictures = [_named(path, "--figure", _KINDS, "a .png, .svg or .pdf file") for path in output.figure]
    if output.width is not None and not pictures:
        raise ConfigError("--width", output.width, "there is no figure to set", "name its file with --figure")
    if pictures and not result.drawable:
        raise ConfigError("--figure", str(pictures[0]), "there is nothing to draw", "choose other runs")
    figures = [(result.figure(output.width), path) for path in pictures]
    if output.csv == "-":
        write_csv(result.table, sys.stdout)
        if result.set_aside is not None:
            say(result.set_aside, sys.stderr)
    else:
        show(result)
    if table is not None:
        with whole_file(table, "--csv") as making:
            write_csv(result.table, making)
    if paper is not None:
        with whole_file(paper, "--typeset") as making:
            making.write_text(typeset(result.table, paper), encoding="utf-8")
    for figure, path in figures:
        with whole_file(path, "--figure") as making:
            _save(figure, making, exact=output.width is not None)
    if output.log:
        print(f"logged as run {_log(command, result, frame, selection, command_line)}", file=sys.stderr)


def _writable(path: str, option: str) -> Path:
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        problem = "is a folder" if target.is_dir() else f"there is no folder {target.parent}"
        raise ConfigError(option, path, problem, "name a file in a folder that exists")
    return target


def _named(path: str, option: str, endings: Sequence[str], such: str) -> Path:
    """A file that can be written, of one of these endings."""
    target = _writable(path, option)
    if target.suffix.lower() not in endings:
        raise ConfigError(option, path, "is of no known kind", f"name {such}")
    return target


def _save(figure: Figure, path: Path, exact: bool = False) -> None:
    """Write a figure in the format of the file's ending; `exact` keeps its size, else the margins are trimmed."""
    figure.savefig(path, bbox_inches=None if exact else "tight", dpi=300 if exact else 150)


def _log(name: str, result: Result, frame: pd.DataFrame, selection: Selection, command_line: Sequence[str]) -> str:
    """Put a result into the store; returns the run's id. All source runs stand in sources.json, and in the tag
    `sources` where they fit; `source_sweeps` names the sweeps they come from."""
    from analysis.store.writer import held, open_experiment, writing
    from paradnn.store.address import address_of
    from paradnn.store.runs import ANALYSIS_OUTCOME

    client, experiment_id = open_experiment(selection.written, next(iter(selection.experiment), "paradnn"))
    sources = list(result.sources)
    with writing(address_of(selection.written).uri), tempfile.TemporaryDirectory() as folder:
        tags = _tags(name, result, frame, command_line)
        run_id: str = client.create_run(experiment_id, run_name=name, tags={**tags, **held()}).info.run_id
        files = Path(folder)
        table = json.loads(result.table.to_json(orient="split", index=False, date_format="iso", double_precision=15))
        (files / "result.json").write_text(json.dumps(table), encoding="utf-8")
        (files / "sources.json").write_text(json.dumps(sources), encoding="utf-8")
        if result.quality is not None:
            (files / "quality.json").write_text(json.dumps(result.quality.as_json()), encoding="utf-8")
        (files / "result.txt").write_text(result.text() + "\n", encoding="utf-8")
        if result.drawable:
            figure = result.figure()
            for kind in (".png", ".svg"):
                _save(figure, files / f"figure{kind}")
        client.log_artifacts(run_id, folder)
        client.set_tag(run_id, ANALYSIS_OUTCOME, "ok")
        client.set_terminated(run_id, "FINISHED", int(time.time() * 1000))
    return run_id


def _tags(name: str, result: Result, frame: pd.DataFrame, command_line: Sequence[str]) -> dict[str, Any]:
    from paradnn.store.address import without_secrets
    from paradnn.store.runs import SCHEMA_VERSION

    sources = result.sources
    used = frame[frame["run_id"].isin(sources)]
    sweeps = sorted(set(used["sweep_id"].dropna())) if "sweep_id" in used else []
    listed = ",".join(sources)
    tags = {
        "kind": "analysis",
        "schema_version": SCHEMA_VERSION,
        "analysis": name,
        "command_line": shlex.join(map(without_secrets, command_line))[:_TAG_LENGTH],
        "source_count": str(len(sources)),
        "sources": listed if len(listed) <= _TAG_LENGTH else "see sources.json",
        "source_sweeps": ",".join(sweeps)[:_TAG_LENGTH],
    }
    told = {"pooled": result.pooled, "left_out": result.quality.text() if result.quality else ""}
    told["set_aside"] = str(result.set_aside or "")
    return tags | {name: words[:_TAG_LENGTH] for name, words in told.items() if words}
