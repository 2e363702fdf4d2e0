"""Loading of the chosen runs, and the choice among runs of several environments or protocols.

Runs of different environments or timing protocols are analyzed together only on request (--pool).
If an analysis rejects such runs, it is repeated with fewer runs: first with one protocol per
environment, then with one protocol and environment per device, then with one protocol and
environment.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.lazy import pd
from analysis.options import Options, Selection, command_line
from analysis.registry import Analysis
from analysis.result import Paragraph, Result
from analysis.store.conditions import filter_by_text, parse_condition, possible_texts
from paradnn.config.outcome import OUTCOMES
from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError, HeterogeneousError, ParadnnError
from paradnn.core.words import counted, did_you_mean
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    from analysis.report.populations import Population

_PLATFORMS = ("cpu", "gpu", "tpu")
_MAX_LISTED = 4  # populations named in a message, each with its command


def load_selection(
    selection: Selection,
    columns: Collection[str] | None = None,
    *,
    may_be_empty: bool = False,
    options: Options | None = None,
) -> pd.DataFrame:
    """Load the runs that the options of a command line choose.

    Args:
        selection: The options that choose runs.
        columns: Columns to read; None for all.
        may_be_empty: Whether a frame without runs is returned instead of an error.
        options: Options of the analysis. If they name the devices of a comparison, only runs of
            these devices are read. None to read runs of all devices.

    Returns:
        One row per run.

    Raises:
        ConfigError: If an option has an unknown value.
        ParadnnError: If no run matches.
    """
    if columns is not None:
        columns = {*columns, *(parse_condition(text).column for text in selection.where)}
    loaded = None
    device_groups = _device_groups(selection, options)
    if device_groups:
        loaded = _load(selection, columns, set().union(*device_groups))
        present = set(loaded["device"].dropna())
        if any(present.isdisjoint(group) for group in device_groups):
            # Load all runs, so that an error can name the devices that the store has.
            loaded = None
    if loaded is None:
        loaded = _load(selection, columns)
    frame = filter_by_text(loaded, selection.where)
    _check_values(selection, frame)
    if frame.empty and not may_be_empty:
        raise ParadnnError(_no_match_reason(selection))
    return frame


def _check_values(selection: Selection, frame: pd.DataFrame) -> None:
    """Reject unknown values of --family, --platform and --outcome.

    Among several values, a typing error would go unnoticed otherwise.

    Args:
        selection: The options that choose runs.
        frame: The chosen runs, whose families are known values.

    Raises:
        ConfigError: If a value is unknown.
    """
    present = {str(name) for name in frame["family"].dropna().unique()}
    known_families = [*FAMILIES, *sorted(present.difference(FAMILIES))]
    for option, values, known in (
        ("--family", selection.family, known_families),
        ("--platform", selection.platform, _PLATFORMS),
        ("--outcome", selection.outcome, OUTCOMES),
    ):
        for value in values:
            if value not in known:
                remedy = f"{did_you_mean(value, known)}choose from {', '.join(known)}"
                raise ConfigError(option, value, "unknown value", remedy)


def _device_groups(selection: Selection, options: Options | None) -> list[set[str]]:
    """Return sets of devices; the analysis needs runs of each set, and of no other device.

    An empty list means that any device may be needed.

    Args:
        selection: The options that choose runs.
        options: Options of the analysis, which may name the devices of a comparison.
    """
    from analysis.sides import PairedOptions

    groups = options.side_devices() if isinstance(options, PairedOptions) else []
    chosen = possible_texts(selection.where, "device")
    if chosen is None:
        return groups
    return [group & chosen for group in groups] or [chosen]


def _load(
    selection: Selection, columns: Collection[str] | None, devices: Collection[str] = ()
) -> pd.DataFrame:
    from analysis.store.load import load

    tags: dict[str, str | Sequence[str]] = dict(selection.tag)
    if devices:
        tags.setdefault("device", sorted(devices))
    if selection.device:
        tags["device"] = selection.device
    return load(
        selection.store,
        experiments=selection.experiment or (default_experiment(),),
        tags=tags,
        columns=columns,
        family=selection.family,
        platform=selection.platform,
        outcome=selection.outcome,
        since=selection.since,
        until=selection.until,
        protocol=selection.protocol,
        unfinished=selection.unfinished,
        reader=selection.reader,
    )


def _no_match_reason(selection: Selection) -> str:
    """State which requested values occur in no run, and which values the store has."""
    everything = Selection(store=selection.store, experiment=selection.experiment)
    frame = _load(everything, ("platform.name",))
    if frame.empty:
        return (
            "no run in the store; measure first, with python -m paradnn.train -m experiment=quick"
        )
    requested: dict[str, Sequence[str]] = {
        "family": selection.family,
        "platform.name": selection.platform,
        "outcome": selection.outcome,
        "device": [selection.device] if selection.device else [],
    }
    reasons = []
    for column, values in requested.items():
        if column in frame:
            present = sorted({str(value) for value in frame[column].dropna()})
        else:
            present = []
        option = f"--{column.removesuffix('.name')}"
        for value in values:
            if value not in present:
                hint = did_you_mean(value, present)
                known = ", ".join(present) or "none"
                reasons.append(f"{option} {value}: {hint}the store has {known}")
    if not reasons:
        conditions = shlex.join(command_line(replace(selection, store=(), experiment=())))
        reasons.append(f"no run satisfies all of {conditions}")
    return f"no run matches among {counted(len(frame), 'run')} in the store; {'; '.join(reasons)}"


def answer(
    analysis: Analysis[Any, Result], frame: pd.DataFrame, options: Options, selection: Selection
) -> Result:
    """Apply an analysis to all runs, or if it rejects them, to the largest part that it accepts.

    Most analyses reject runs that differ in their environment or timing protocol.

    Args:
        analysis: The analysis.
        frame: One row per run.
        options: Options of the analysis.
        selection: The options that chose the frame. The commands that the result proposes for the
            other parts narrow this selection.

    Returns:
        The result. If some runs were not used, its `set_aside` names them.

    Raises:
        ParadnnError: If the analysis accepts no part. The error is about all runs, or about the
            largest part and the differences between the parts.
    """
    rejection = None
    errors: list[ParadnnError] = []
    if options.pool or not analysis.requires_one_protocol:
        try:
            return analysis(frame, options)
        except HeterogeneousError as error:
            rejection = error
    for part in _homogeneous_parts(frame, selection):
        if not part.others and rejection is None:
            return analysis(frame, options)
        used_runs = {run for population in part.used for run in population.rows["run_id"]}
        is_used = frame["run_id"].isin(used_runs)
        try:
            result = analysis(frame[is_used].reset_index(drop=True), options)
        except ParadnnError as error:
            if rejection is None:
                raise
            if not isinstance(error, HeterogeneousError):
                errors.append(error)
            continue
        words = ["python", "-m", "analysis", analysis.name, *command_line(options)]
        return replace(result, set_aside=_describe_part(frame, part, words))
    if len({str(error) for error in errors}) == 1:
        raise errors[0]
    if errors:
        message = f"{rejection}. The largest homogeneous part fails too: {errors[0]}"
        raise HeterogeneousError(message) from errors[0]
    assert rejection is not None
    raise rejection


class _HomogeneousPart(NamedTuple):
    """Runs that are analyzed together, and the remaining runs.

    A population consists of the runs of one device, environment and timing protocol.

    Attributes:
        used: Populations that are analyzed together.
        others: The remaining populations.
        shared: What the used populations have in common, as text.
    """

    used: list[Population]
    others: list[Population]
    shared: str


def _homogeneous_parts(frame: pd.DataFrame, selection: Selection) -> Iterator[_HomogeneousPart]:
    """Yield parts of a frame, each with fewer differences among its runs than the previous one.

    Populations (runs of one device, environment and protocol) with more ok runs have precedence;
    among equally large ones, the newest has precedence.

    Args:
        frame: All runs.
        selection: The options that chose them.
    """
    from analysis.report.populations import split
    from analysis.store.frame import is_ok

    populations = split(frame, selection)
    sizes = {population.key: int(is_ok(population.rows).sum()) for population in populations}
    populations.sort(
        key=lambda population: (sizes[population.key], population.rows["start_time"].max()),
        reverse=True,
    )
    protocol_sizes: Counter[str | None] = Counter()
    for population in populations:
        protocol_sizes[population.value("protocol_id")] += sizes[population.key]
    by_protocol = sorted(
        populations, key=lambda population: -protocol_sizes[population.value("protocol_id")]
    )

    def first_of_each(
        ordered: Sequence[Population], keys: Sequence[str], shared: str
    ) -> _HomogeneousPart:
        found: dict[object, Population] = {}
        for population in ordered:
            found.setdefault(tuple(population.value(key) for key in keys), population)
        used = list(found.values())
        others = [population for population in populations if population not in used]
        return _HomogeneousPart(used, others, shared)

    yield first_of_each(by_protocol, ("device", "environment_id"), "one protocol")
    yield first_of_each(populations, ("device",), "one protocol and environment")
    for population in populations:
        yield first_of_each([population], (), "one protocol and environment")


def _describe_part(frame: pd.DataFrame, part: _HomogeneousPart, words: Sequence[str]) -> Paragraph:
    """State which runs were used, and the commands that analyze the other runs.

    Args:
        frame: All runs.
        part: The part that was used.
        words: The command line, without options that choose runs.
    """
    count = sum(len(population.rows) for population in part.used)
    names = "; ".join(population.name for population in part.used[:_MAX_LISTED])
    points = []
    for population in part.others[:_MAX_LISTED]:
        command = shlex.join([*words, *command_line(population.selection)])
        points.append(f"{counted(len(population.rows), 'run')} of {population.name}: {command}")
    omitted = len(part.others) - len(points)
    if omitted:
        groups = counted(omitted, "more group")
        points.append(f"and {groups}; python -m analysis report shows each separately")
    head = (
        f"Of these {counted(len(frame), 'run')}, {count:,} of {part.shared} were used: {names}. "
        "Not used:"
    )
    return Paragraph(head, tuple(points))
