"""The commands of the suite: what is typed after `paradnn`."""

from paradnn.core.tables import rows

#: Command -> its module, which `python -m` runs too, and what it does.
COMMANDS = {row["command"]: (row["module"], row["does"]) for row in rows(__file__)}
