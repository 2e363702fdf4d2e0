"""The verdict on two sides, from paired rounds or from recorded runs."""

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict on A, the first side, in comparison with B, the second side."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNDECIDED = "undecided"
