"""The commands of the suite: what is typed after `paradnn`."""

import csv
from pathlib import Path

with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _table:
    #: Command -> its module, which `python -m` runs too, and what it does.
    COMMANDS = {row["command"]: (row["module"], row["does"]) for row in csv.DictReader(_table)}
