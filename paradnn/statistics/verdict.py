"""The verdict on two sides, whether of a race of rounds or of recorded runs."""

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict on A, the first side, relative to B."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNDECIDED = "undecided"
