"""What every analysis shares that can speak of a whole space: its options, and what is said of the prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.options import Options, option
from analysis.result import Paragraph
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.methods.prediction import Completed
    from analysis.methods.space import Space

__all__ = ["PredictedOptions", "SpaceOptions", "completed_of", "told_of"]

_LISTED = 4  # keys of which it is said that the space goes beyond what was measured


@dataclass(frozen=True, kw_only=True)
class SpaceOptions(Options):
    """Which space it is about."""

    space: str | None = option(
        None,
        "the points of the space: axes of a sweep, such as 'model=fc model.nodes=32,64 batch_size=64,256' or "
        "experiment=paper_fc, or a CSV file with a column for each key (default: the grid that the runs span)",
        metavar="SPACE",
    )


@dataclass(frozen=True, kw_only=True)
class PredictedOptions(SpaceOptions):
    """The same for an analysis that is otherwise about the runs alone."""

    predicted: bool = option(
        False, "about the whole space: what was not measured is predicted, and intervals hold that as well"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space is not None and not self.predicted:
            raise ConfigError("--space", self.space, "says what to predict", "add --predicted")


def completed_of(frame: pd.DataFrame, metric: str | None, options: SpaceOptions) -> Completed:
    """The spaces of a frame, completed as the options say; without a metric in the one that the runs have."""
    from analysis.methods.columns import choose_metric, find_metric
    from analysis.methods.prediction import PREDICTABLE, complete
    from analysis.store.frame import is_ok
    from analysis.store.spaces import read_space

    given = None if options.space is None else read_space(options.space)
    if not is_ok(frame).any():  # which is then said of every group
        return complete(frame, next(iter(PREDICTABLE)), given, options.pool)
    chosen = find_metric(frame, metric) if metric else choose_metric(frame)
    return complete(frame, chosen, given, options.pool)


def told_of(completed: Sequence[Completed]) -> tuple[Paragraph, ...]:
    """In words: how much of each space was measured, how good its prediction is, and where it extrapolates."""
    found: dict[str, list[str]] = {}
    for one in completed:
        for space in one.spaces:
            points = found.setdefault(f"{_measured(space)}{_rest(space)}.", [])
            points += [text for text in (_trust(one, space), *_beyond(space)) if text not in points]
        for lacking in one.lacking:
            found.setdefault(f"{lacking}: nothing is predicted.", [])
    return tuple(Paragraph(head, tuple(points)) for head, points in found.items())


def _measured(space: Space) -> str:
    share = 100 * space.measured / space.total
    percent = f"{share:.0f}%" if share >= 10 else f"{share:.2g}%"
    return f"{space.name}: {space.measured:,} of {space.total:,} points were measured, {percent}"


def _trust(completed: Completed, space: Space) -> str:
    trust = completed.trust[space.name]
    return (
        f"Of {trust.points:,} measured points, left out of the fit in turn, the predicted {completed.metric} was off "
        f"by {trust.error:.1%} in the median, and {trust.inside:.0%} lay within their 95% interval."
    )


def _rest(space: Space) -> str:
    """What became of the other points."""
    predicted = len(space.others) - space.excluded
    parts = [f"{space.failed:,} did not run"] if space.failed else []
    parts += [f"{space.excluded:,} are taken to be out of memory"] if space.excluded else []
    parts += [f"{predicted:,} are predicted"] if predicted else []
    return f"; {', '.join(parts)}" if parts else ""


def _beyond(space: Space) -> Iterator[str]:
    listed = [f"{name} {words}" for name, words in space.beyond.items()]
    if listed:
        more = f" and {len(listed) - _LISTED} keys more" if len(listed) > _LISTED else ""
        shown = f"{'; '.join(listed[:_LISTED])}{more}"
        yield f"Extrapolated, beyond all that was measured: {shown}. Measure a few points there."
