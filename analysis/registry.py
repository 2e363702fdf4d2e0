"""Registration of analyses: functions of a frame and options, with attributes for the interfaces.

    @analysis(OverheadOptions, summary="where the wall time goes", title="Overhead", order=120, ...)
    def overhead(frame: pd.DataFrame, options: OverheadOptions) -> Result: ...

The command line, its help, the sections of the report and `from analysis import overhead` use the
registration. The registry imports every module of `analysis.analyses`, and the modules of other
packages that are entry points of the group `paradnn.analyses`.
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
from paradnn.core.errors import InsufficientData
from paradnn.core.registry import Registry

OptionsT = TypeVar("OptionsT", bound=Options)
ResultT = TypeVar("ResultT", bound=Result, covariant=True)
#: What an analysis uses of runs, which determines the runs that it gets.
#: "steps": times of steps; a run of a scenario counts for the steps that it timed, unless options
#: name a metric of its queries.
#: "queries": results of scenarios.
#: "untimed": neither times nor steadiness matter.
#: "none": all runs; no check excludes any.
Gate = Literal["steps", "queries", "untimed", "none"]


@dataclass(frozen=True)
class SectionSpec:
    """A section of the HTML report that shows one analysis.

    Attributes:
        options: Options of the analysis; None for its defaults.
        title: Heading; empty for the title of the analysis.
        reading: One or two sentences on how to read the section; empty for `Analysis.reading`.
        families: Model families that the section is about; empty for all.
        key: Anchor of the section; empty for the name of the analysis.
    """

    options: Options | None = None
    title: str = ""
    reading: str = ""
    families: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True, eq=False)
class Analysis(Generic[OptionsT, ResultT]):
    """A function (frame, options) -> result, with attributes for the command line and the report.

    Attributes:
        options: Class of the options.
        function: The function itself.
        summary: One line for the list of commands.
        example: A command line for --help.
        description: Text of --help; by default the module's docstring after the command's name.
        gate: What the analysis uses of runs: times of "steps", results of "queries", neither
            ("untimed"), or all runs without quality checks ("none"). The quality checks depend on
            it.
        title: Heading in the report.
        reading: One or two sentences on how to read the result.
        section: Whether the report has a section per system, one for all systems, or one per pair
            of systems; empty if it has no section.
        order: Position among the sections of the report.
        list_sections: Returns the sections for which the given runs have data; None for a single
            section.
        has_figure: Whether the result has a figure.
        columns: Columns to read from the store; None for all.
        requires_one_protocol: Whether the command line passes only runs of one timing protocol. Set
            for an analysis that would reject runs of several protocols group by group.
        accepts_no_runs: Whether an empty frame is a valid input.
        load_frame: Returns the frame from a different source if the options name one, else None.
        name: Name of the command; by default the name of the function, with dashes.
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
    order: int = 0
    list_sections: Callable[[pd.DataFrame], Iterable[SectionSpec]] | None = None
    has_figure: bool = True
    columns: tuple[str, ...] | None = None
    requires_one_protocol: bool = False
    accepts_no_runs: bool = False
    load_frame: Callable[[Any], pd.DataFrame | None] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        function = self.function
        # Derived attributes are set through __dict__, since the class is frozen.
        attributes = self.__dict__
        attributes["name"] = self.name or function.__name__.replace("_", "-")
        attributes["description"] = self.description or _module_description(function)
        attributes["__doc__"] = function.__doc__
        attributes["__name__"] = function.__name__
        attributes["__module__"] = function.__module__
        attributes["__wrapped__"] = function

    def __call__(self, frame: pd.DataFrame, options: OptionsT | None = None) -> ResultT:
        """Analyze the runs of a frame, after excluding those that fail the quality checks.

        Args:
            frame: One row per run.
            options: Options of the analysis; None for the defaults.

        Returns:
            The result. Its `quality` reports which runs were excluded or flagged.

        Raises:
            InsufficientData: If no run passes the checks, or too few do for this analysis.
        """
        options = options or self.options()
        if self.gate == "none":
            return self.function(frame, options)
        from analysis.ceilings import ceiling_caveat
        from analysis.columns import scenario_runs_as_steps
        from analysis.store.quality import usable_runs

        runs, quality = usable_runs(frame, steady_only=options.steady_only)
        if len(frame) and not len(runs):
            reasons = quality.text().rstrip(".")
            raise InsufficientData(
                f"no run is left to analyze ({reasons[:1].lower()}{reasons[1:]}); "
                "choose other runs, or measure again"
            )
        if self.gate != "queries":
            runs, count = scenario_runs_as_steps(runs, columns_named(options))
            quality = replace(quality, scenarios=count)
        if self.gate == "untimed" and not options.steady_only:
            quality = replace(quality, unsteady=0, contended=0, scenarios=0)
        result = self.function(runs, options)
        metrics = {*columns_named(options), *result.metrics, *map(str, result.table.columns)}
        used = runs[runs["run_id"].isin(result.sources)] if "run_id" in runs else runs
        caveat = ceiling_caveat(used, metrics)
        caveats = (*result.caveats, caveat) if caveat else result.caveats
        return replace(result, quality=quality, caveats=caveats)

    def sections(self, rows: pd.DataFrame) -> Iterator[SectionSpec]:
        """Yield the report sections for which runs have data, with options, title and reading set.

        Args:
            rows: One row per run.
        """
        if self.list_sections is None:
            specs: Iterable[SectionSpec] = (SectionSpec(),)
        else:
            specs = self.list_sections(rows)
        for spec in specs:
            yield replace(
                spec,
                options=spec.options or self.options(),
                title=spec.title or self.title,
                reading=spec.reading or self.reading,
            )


def _module_description(function: Callable[..., object]) -> str:
    """Return the docstring of a function's module as help text, without the name of the command."""
    docstring = sys.modules[function.__module__].__doc__ or ""
    _, _, text = docstring.partition("`: ")
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return "\n\n".join(textwrap.fill(paragraph, 100) for paragraph in text.split("\n\n"))


def analysis(
    options: type[OptionsT], **attributes: Any
) -> Callable[[Callable[[pd.DataFrame, OptionsT], ResultT]], Analysis[OptionsT, ResultT]]:
    """Return a decorator that registers a function as an analysis.

    Args:
        options: Class of the options that the function takes as its second argument.
        **attributes: Further attributes of `Analysis`, such as `summary` and `title`.
    """

    def register(
        function: Callable[[pd.DataFrame, OptionsT], ResultT],
    ) -> Analysis[OptionsT, ResultT]:
        return Analysis(options=options, function=function, **attributes)

    return register


#: All analyses by name, in the order of the report.
ANALYSES: Registry[Analysis[Any, Any]] = Registry(
    Analysis, "analysis.analyses", group="paradnn.analyses"
)
