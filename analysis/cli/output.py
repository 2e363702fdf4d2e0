"""What becomes of a result: printed, written as CSV, PNG or SVG, put back into the store."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.summaries.result import Result

__all__ = ["add_output", "deliver"]

_PRINTED = 50  # rows of a table that are printed
_TAG_LENGTH = 5000  # what every MLflow server accepts as a tag's value


def add_output(parser: argparse.ArgumentParser, figures: bool) -> None:
    """--csv and --log, and --png and --svg where there is a figure."""
    group = parser.add_argument_group("output")
    group.add_argument("--csv", metavar="FILE", help="write the table to a file, - for standard output")
    if figures:
        group.add_argument("--png", metavar="FILE", help="draw the figure as PNG")
        group.add_argument("--svg", metavar="FILE", help="draw the figure as SVG")
    logged = "put the result into the store, as a run of kind=analysis that names its sources"
    group.add_argument("--log", action="store_true", help=logged)


def deliver(result: Result, frame: pd.DataFrame, args: argparse.Namespace) -> None:
    """Print a result and write what the options ask for. `frame` holds the runs it rests on."""
    if args.csv == "-":
        result.table.to_csv(sys.stdout, index=False)
    else:
        _print(result)
    if args.csv and args.csv != "-":
        result.table.to_csv(_writable(args.csv, "--csv"), index=False)
    for kind in ("png", "svg"):
        path = getattr(args, kind, None)
        if path:
            _draw(result, _writable(path, f"--{kind}"), kind)
    if args.log:
        print(f"logged as run {_log(result, frame, args)}", file=sys.stderr)


def _print(result: Result) -> None:
    table = result.table
    if len(table):
        print(table.head(_PRINTED).to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep="-"))
    if len(table) > _PRINTED:
        print(f"... and {len(table) - _PRINTED} rows more; --csv FILE writes all of them")
    if result.text:
        print(result.text)


def _writable(path: str, option: str) -> Path:
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        problem = "is a folder" if target.is_dir() else f"there is no folder {target.parent}"
        raise ConfigError(option, path, problem, "name a file in a folder that exists")
    return target


def _draw(result: Result, path: Path, kind: str) -> None:
    if result.figure is None:
        raise ConfigError(f"--{kind}", str(path), "there is nothing to draw", "choose other runs")
    result.figure().savefig(path, format=kind, bbox_inches="tight", dpi=150)


def _log(result: Result, frame: pd.DataFrame, args: argparse.Namespace) -> str:
    """Put a result into the store; returns the run's id. All source runs stand in sources.json, and in the tag
    `sources` where they fit; `source_sweeps` names the sweeps they come from."""
    from analysis.store.writer import open_experiment, writing
    from paradnn.store.address import address_of
    from paradnn.store.schema import ANALYSIS_OUTCOME

    experiment = (args.experiment or ["paradnn"])[0]
    client, experiment_id = open_experiment(args.store, experiment)
    sources = list(frame["run_id"] if result.sources is None else result.sources)
    with writing(address_of(args.store).uri), tempfile.TemporaryDirectory() as folder:
        run_id: str = client.create_run(
            experiment_id, run_name=args.command.name, tags=_tags(sources, result.pooled, frame, args)
        ).info.run_id
        files = Path(folder)
        table = json.loads(result.table.to_json(orient="split", index=False, date_format="iso", double_precision=15))
        (files / "result.json").write_text(json.dumps(table), encoding="utf-8")
        (files / "sources.json").write_text(json.dumps(sources), encoding="utf-8")
        if result.text:
            (files / "result.txt").write_text(result.text + "\n", encoding="utf-8")
        if result.figure is not None:
            for kind in ("png", "svg"):
                _draw(result, files / f"figure.{kind}", kind)
        client.log_artifacts(run_id, folder)
        client.set_tag(run_id, ANALYSIS_OUTCOME, "ok")
        client.set_terminated(run_id, "FINISHED", int(time.time() * 1000))
    return run_id


def _tags(sources: list[str], pooled: str, frame: pd.DataFrame, args: argparse.Namespace) -> dict[str, Any]:
    from paradnn.store.address import without_secrets
    from paradnn.store.schema import SCHEMA_VERSION

    used = frame[frame["run_id"].isin(sources)]
    sweeps = sorted(set(used["sweep_id"].dropna())) if "sweep_id" in used else []
    listed = ",".join(sources)
    tags = {
        "kind": "analysis",
        "schema_version": SCHEMA_VERSION,
        "analysis": args.command.name,
        "command_line": shlex.join(map(without_secrets, args.command_line))[:_TAG_LENGTH],
        "source_count": str(len(sources)),
        "sources": listed if len(listed) <= _TAG_LENGTH else "see sources.json",
        "source_sweeps": ",".join(sweeps)[:_TAG_LENGTH],
    }
    return tags | ({"pooled": pooled[:_TAG_LENGTH]} if pooled else {})
