"""The look of the analysis' figures: the project's own, and colours that a name keeps in every figure."""

from __future__ import annotations

from collections.abc import Sequence

from paradnn.style import COLOURS, MARKERS, SEQUENTIAL, figure, finish, quantity

__all__ = ["COLOURS", "MARKERS", "SEQUENTIAL", "colour_of", "figure", "finish", "marker_of", "quantity"]

_FAMILIES = ("fc", "residual", "bottleneck", "rnn", "lstm", "gru", "gpt", "vit")


def colour_of(name: str, among: Sequence[str] = ()) -> str:
    """The colour of a name: a family always has the same, others by their place in `among`."""
    return COLOURS[_place(name, among) % len(COLOURS)]


def marker_of(name: str, among: Sequence[str] = ()) -> str:
    """The marker of a name, chosen as its colour is."""
    return MARKERS[_place(name, among) % len(MARKERS)]


def _place(name: str, among: Sequence[str]) -> int:
    if name in among:
        return list(among).index(name)
    return _FAMILIES.index(name) if name in _FAMILIES else len(_FAMILIES)
