"""`python -m paradnn.sync FOLDER`: log results that were kept as files into the tracking store.

It may be given again at any time, also after an interruption: a file whose run the store holds already is passed over.
Damaged files are named and left where they are, the others are logged; the exit code is then 1. Files are kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paradnn.config.point import Tracking
from paradnn.errors import ParadnnError
from paradnn.tracking.offline import default_folder
from paradnn.tracking.upload import sync

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every file is in the store, 1 when some are damaged, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m paradnn.sync", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), help="default: %(default)s")
    parser.add_argument("--uri", help="tracking URI; default: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db")
    parser.add_argument("--experiment", default="paradnn", help="MLflow experiment (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        counts, problems = sync(given.folder, Tracking(uri=given.uri, experiment=given.experiment))
    except ParadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    for problem in problems:
        print(f"refused: {problem}", file=sys.stderr)
    known = counts["known"] + counts["superseded"]
    print(f"{counts['logged']} logged, {known} in the store already, {len(problems)} refused")
    if counts["superseded"]:
        print(f"{counts['superseded']} of them were measured by another driver too, meanwhile; not logged twice")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
