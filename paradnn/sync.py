"""`python -m paradnn.sync FOLDER`: log results that were kept as files into the tracking store.

It may be given again at any time, also after an interruption: a file whose run the store holds
already is passed over. A point of which the store holds another measurement is named and not
logged, unless `--repeats` asks for it. Damaged files are named too, the others are logged; the exit
code is then 1. Files are kept.
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

_LISTED = 10


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser("python -m paradnn.sync", __doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=folder_of(Tracking()), help="default: %(default)s"
    )
    parser.add_store("--uri")
    text = "log measurements of points that the store holds already too, as repetitions of them"
    parser.add_argument("--repeats", action="store_true", help=text)
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when no file is damaged, 1 when some are, 2 for bad input."""
    given = make_parser().parse_args(arguments)
    settings = Tracking(uri=given.uri, experiment=given.experiment)
    try:
        done, problems = sync(given.folder, settings, repeats=given.repeats)
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    for problem in problems:
        say(f"refused: {problem}", sys.stderr)
    logged, known, withheld = (
        [each for each in done if each[1].state == s] for s in ("logged", "known", "withheld")
    )
    counts = f"{len(logged)} logged, {len(known)} logged before, {len(withheld)} not logged"
    print(f"{counts}, {len(problems)} refused")
    _explain(withheld, sync_command(given.folder, settings))
    return 1 if problems else 0


def _explain(withheld: Sequence[tuple[Path, Uploaded]], command: str) -> None:
    """Why files were not logged, and how to log them."""
    points = [each for each in withheld if each[1].record.tags.get("kind", "point") == "point"]
    if len(withheld) > len(points):
        print(
            f"{counted(len(withheld) - len(points), 'measurement')} of ceilings not logged: the store has them"
        )
    if not points:
        return
    what = f"{counted(len(points), 'point')} not logged"
    print(f"{what}: the store holds a measurement of the same point in the same environment:")
    for path, each in points[:_LISTED]:
        say(f"  {each.record.name}: run {each.run_id}, {path.name} here")
    if len(points) > _LISTED:
        print(f"  and {len(points) - _LISTED:,} more")
    print(f"The files are kept. To log them as repetitions: {command} --repeats")
    print("To measure a point again on purpose, give it replicate=1, or resume=false")


if __name__ == "__main__":
    sys.exit(main())
