"""The verdict on two sides, from paired rounds or from recorded runs."""

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict on A, the first side, relative to B."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNDECIDED = "undecided"
