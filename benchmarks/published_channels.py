"""python -m benchmarks.published_channels FOLDER [--large 65536]

How well lines over the size explain published times of collectives: FOLDER is a clone of github.com/microsoft/vidur
(MIT License), as for `python -m analysis import-vidur`: all-reduce and send/receive on A40, A100 and H100. For each
machine and number of devices the fit is made from every other size and tried on those between; errors are
|measured / predicted - 1|.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.statistics.transfers import fit_transfers, fitted
from benchmarks.common import RESULTS, save
from benchmarks.published.vidur import read_vidur
from paradnn.core.errors import DataError


def series(folder: Path) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
    """What tells each machine, pattern and number of devices and hosts from others, and its columns size and us."""
    found = read_vidur(folder)
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    runs = found.runs
    keys = ["device", "pattern", "devices", "hosts"]
    table = pd.DataFrame(
        {
            "device": [run.tags["device"] for run in runs],
            "pattern": [run.params["model.pattern"] for run in runs],
            "devices": [int(run.params["model.processes"]) for run in runs],
            "hosts": [int(run.params["model.hosts"]) for run in runs],
            "size": [int(run.params["model.bytes"]) for run in runs],
            "us": [run.metrics["transfer_us"] for run in runs],
        }
    )
    for values, rows in table.groupby(keys):
        yield dict(zip(keys, values, strict=True)), rows.groupby("size")[["us"]].mean().reset_index()


def tried(rows: pd.DataFrame, large: int) -> dict[str, object]:
    """Errors of a fit to every other size on the sizes between, and of one line; breaks in KiB."""
    rows = rows.sort_values("size")
    known, others = rows[::2], rows[1::2]
    fit = fit_transfers(known["size"], known["us"])
    errors = np.abs(others["us"].to_numpy() / fitted(fit.pieces, others["size"]) - 1)
    line = np.abs(others["us"].to_numpy() / fit.line.at(others["size"]) - 1)
    beyond = (others["size"] >= large).to_numpy()
    return {
        "sizes": len(rows),
        "start_up_us": round(fit.latency.value, 1),
        "GB_per_second": round(fit.bandwidth.value / 1e9, 1),
        "breaks_KiB": " ".join(f"{size / 1024:.0f}" for size in fit.breaks),
        "median_error": round(float(np.median(errors[beyond])), 4),
        "p90_error": round(float(np.quantile(errors[beyond], 0.9)), 4),
        "below_median_error": round(float(np.median(errors[~beyond])), 4) if (~beyond).any() else "",
        "one_line_median_error": round(float(np.median(line[beyond])), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a clone of microsoft/vidur")
    parser.add_argument(
        "--large", type=int, default=65536, help="bytes from which on errors are given (default: 65536)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    try:
        for where, part in series(given.folder):
            rows.append({**where, **tried(part, given.large)})
    except DataError as error:
        parser.error(str(error))
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=200).print(table)
    errors = [float(str(row["median_error"])) for row in rows]
    print(
        f"median errors from {given.large} bytes on: {np.median(errors):.1%} in the median, {max(errors):.1%} at most"
    )
    save("published_channels", rows, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
