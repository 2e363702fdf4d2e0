"""The analyses that there are: each is one file with a function of a frame and options that is made
an `Analysis`.

    @analysis(OverheadOptions, summary="where the wall time goes", title="Benchmarking overhead", place=120, ...)
    def overhead(frame: pd.DataFrame, options: OverheadOptions) -> OverheadResult: ...

From that follow its command with --help, its sections in the report, and `from analysis import
overhead`. Files of `analysis.analyses` are found by scanning the folder; another package names a
module of its own as an entry point of the group `paradnn.analyses`, and its analyses stand beside
these.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from analysis.lazy import pd
from analysis.options import Options, columns_named
from analysis.result import Result
from paradnn.core.registry import Registry

OptionsT = TypeVar("OptionsT", bound=Options)
ResultT = TypeVar("ResultT", bound=Result, covariant=True)
#: What the runs are for an analysis: times of steps (a run of a scenario counts for the steps that
#: it timed, unless options name its queries), what scenarios gave, or no times, so that it does not
#: matter whether runs are steady. "none": every run counts, whatever became of it.
Gate = Literal["steps", "queries", "untimed", "none"]


@dataclass(frozen=True)
class SectionSpec:
    """An analysis as a section of the report tries it: with which options, how it is headed and
    read.

    `families` narrows the runs; `key` names the section where the command's name would not do.
    """

    options: Options | None = None
    title: str = ""
    reading: str = ""
    families: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True, eq=False)
class Analysis(Generic[OptionsT, ResultT]):
    """A function (frame, options) -> result with all that the command line and the report have to
    know of it.

    Called, it lets the runs through the gate first, and its result says what was left out. --help
    says what the module's docstring does unless `description` is given. `columns` limits what is
    read from the store; `one_protocol` is for one that would refuse heterogeneous runs part by
    part, `counts` for one to which no run is an answer, `read` for one that may read something
    else. In the report it stands in a `section` of each system, of all or of pairs of them, by its
    `place`; `shown` says as what, once unless given. `name` is what is typed: that of the function,
    with dashes, unless given.
    """

    options: type[OptionsT]
    function: Callable[[pd.DataFrame, OptionsT], ResultT]
    summary: str
    example: str
    description: str = ""
    gate: Gate = "steps"
    title: str = ""
    reading: str = ""
    section: Literal["system", "all", "pair", ""] = ""
    place: int = 0
    shown: Callable[[pd.DataFrame], Iterable[SectionSpec]] | None = None
    draws: bool = True
    columns: tuple[str, ...] | None = None
    one_protocol: bool = False
    counts: bool = False
    read: Callable[[Any], pd.DataFrame | None] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        of = self.function
        self.__dict__["name"] = self.name or of.__name__.replace("_", "-")
        self.__dict__.update(
            __doc__=of.__doc__, __name__=of.__name__, __module__=of.__module__, __wrapped__=of
        )
        about = (sys.modules[of.__module__].__doc__ or "").partition("`: ")[2].strip()
        parts = [textwrap.fill(part, 100) for part in (about[:1].upper() + about[1:]).split("\n\n")]
        self.__dict__["description"] = self.description or "\n\n".join(parts)

    def __call__(self, frame: pd.DataFrame, options: OptionsT | None = None) -> ResultT:
        options = options or self.options()
        if self.gate == "none":
            return self.function(frame, options)
        from analysis.columns import scenario_runs_as_steps
        from analysis.store.quality import admit

        runs, quality = admit(frame, options.steady_only)
        if self.gate != "queries":
            runs, count = scenario_runs_as_steps(runs, columns_named(options))
            quality = replace(quality, scenarios=count)
        if self.gate == "untimed" and not options.steady_only:
            quality = replace(quality, unsteady=0, contended=0, scenarios=0)
        return replace(self.function(runs, options), quality=quality)

    def shows(self, rows: pd.DataFrame) -> Iterator[SectionSpec]:
        """The sections that these runs may carry, each with options, title and reading."""
        for each in (SectionSpec(),) if self.shown is None else self.shown(rows):
            options = each.options or self.options()
            title = each.title or self.title
            yield replace(each, options=options, title=title, reading=each.reading or self.reading)


def analysis(
    options: type[OptionsT], **words: Any
) -> Callable[[Callable[[pd.DataFrame, OptionsT], ResultT]], Analysis[OptionsT, ResultT]]:
    """Makes a function an analysis; `words` are the fields of `Analysis`."""

    def register(
        function: Callable[[pd.DataFrame, OptionsT], ResultT],
    ) -> Analysis[OptionsT, ResultT]:
        return Analysis(options=options, function=function, **words)

    return register


#: Found in the files of the folder, and behind the entry points of other packages; in the order of
#: the report.
ANALYSES: Registry[Analysis[Any, Any]] = Registry(
    Analysis, "analysis.analyses", group="paradnn.analyses"
)
