"""`python -m paradnn.sync FOLDER`: upload results that were saved as files to the tracking store.

The command may be repeated, even after an interruption: it skips files whose runs are already in
the store. If the store has a different measurement of the same point, the file is listed but not
recorded, unless `--repeats` is given. If a file is damaged, it is listed, the other files are
recorded, and the exit code is 1. No file is removed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from paradnn.cli.console import say
from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.config.settings import Tracking
from paradnn.core.words import counted
from paradnn.store.journal import folder_of
from paradnn.store.mlflow_store import Uploaded
from paradnn.store.tracker import sync, sync_command

_MAX_LISTED = 10


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn sync`."""
    parser = Parser("python -m paradnn.sync", __doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=folder_of(Tracking()), help="default: %(default)s"
    )
    parser.add_store("--uri")
    text = "also record measurements of points that the store already has, as repetitions"
    parser.add_argument("--repeats", action="store_true", help=text)
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Upload the results in a folder of files to the tracking store.

    Args:
        arguments: The words of the command line; None for those of this process.

    Returns:
        The exit code: 0, 1 if a file is damaged, 2 for invalid input, or 130 after an interruption.
    """
    given = make_parser().parse_args(arguments)
    settings = Tracking(uri=given.uri, experiment=given.experiment)
    try:
        done, problems = sync(given.folder, settings, repeats=given.repeats)
    except KeyboardInterrupt:
        print("interrupted; repeat the command to continue", file=sys.stderr)
        return 130
    for problem in problems:
        say(f"rejected: {problem}", sys.stderr)
    logged, known, withheld = (
        [entry for entry in done if entry[1].state == state]
        for state in ("logged", "known", "withheld")
    )
    counts = f"{len(logged)} logged, {len(known)} logged before, {len(withheld)} not logged"
    print(f"{counts}, {len(problems)} rejected")
    _explain(withheld, sync_command(given.folder, settings))
    return 1 if problems else 0


def _explain(withheld: Sequence[tuple[Path, Uploaded]], command: str) -> None:
    """Print why files were not recorded, and how to record them.

    Args:
        withheld: Each file that was not recorded, with the result of its upload.
        command: The command line that records the files if `--repeats` is added.
    """
    points = [entry for entry in withheld if entry[1].record.tags.get("kind", "point") == "point"]
    if len(withheld) > len(points):
        count = counted(len(withheld) - len(points), "measurement")
        print(f"{count} of peak performance not logged: already in the store")
    if not points:
        return
    count = counted(len(points), "point")
    print(f"{count} not logged: the store has a measurement of the same point and environment:")
    for path, uploaded in points[:_MAX_LISTED]:
        say(f"  {uploaded.record.name}: run {uploaded.run_id}, {path.name} here")
    if len(points) > _MAX_LISTED:
        print(f"  and {len(points) - _MAX_LISTED:,} more")
    print(f"The files are kept. To log them as repetitions: {command} --repeats")
    print("To measure a point again on purpose, set replicate=1 or resume=false")


if __name__ == "__main__":
    sys.exit(main())
