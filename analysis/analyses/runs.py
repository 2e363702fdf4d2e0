"""`runs`: the number of runs in a store by model family, device and outcome."""

from __future__ import annotations

from analysis.labels import label
from analysis.lazy import pd
from analysis.options import Options
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Result
from analysis.store.frame import is_ok
from paradnn.core.words import counted

_UNFINISHED = "unfinished"


@analysis(
    Options,
    summary="the runs in the store, counted by family, device and outcome",
    example="python -m analysis runs --unfinished",
    columns=(),
    accepts_no_runs=True,
    has_figure=False,
    gate="none",
)
def runs(frame: pd.DataFrame, options: Options) -> Result:
    """Count the runs of each family on each device by outcome.

    Args:
        frame: Runs, one per row; may be empty.
        options: Not used.

    Returns:
        The result. Its table has a row for each family and device: family, device, runs, a column
        for each outcome (such as ok), and the UTC times at which the first and the last run
        started.
    """
    del options  # the analysis has no options
    if frame.empty:
        answer = AnalysisAnswer(sentence="No run matches.", points=0)
        return Result(numbers=frame[["family", "device"]], answer=answer, sources=())
    named = frame.assign(
        family=frame["family"].fillna("(none)"),
        device=frame["device"].fillna("(none)"),
        outcome=frame["outcome"].fillna(_UNFINISHED),
    )
    groups = named.groupby(["family", "device"])
    counts = pd.crosstab([named["family"], named["device"]], named["outcome"])
    # Ok comes first and unfinished last.
    outcomes = sorted(counts.columns, key=lambda name: (name != "ok", name == _UNFINISHED, name))
    times = groups["start_time"].agg(first="min", last="max")
    for name in times:
        times[name] = times[name].dt.strftime("%Y-%m-%d %H:%M")
    table = pd.concat([groups.size().rename("runs"), counts[outcomes], times], axis=1)
    return Result(
        numbers=table.reset_index(),
        answer=_answer(named),
        sources=tuple(frame["run_id"]),
    )


def _answer(runs: pd.DataFrame) -> AnalysisAnswer:
    """State the number of runs, their families and devices, and their outcomes.

    Args:
        runs: Runs, one per row, without missing families, devices and outcomes.
    """
    measured = int(is_ok(runs).sum())
    ended = "all"
    if measured < len(runs):
        ended = f"{measured:,} of them"
    devices = runs["device"].unique()
    where = counted(len(devices), "device")
    if len(devices) == 1:
        where = str(devices[0])
    others = runs.loc[~is_ok(runs), "outcome"].value_counts()
    failures = "".join(f", {count:,} {label(str(name))}" for name, count in others.items())
    families = runs["family"].nunique()
    family_text = f"{families} families"
    if families == 1:
        family_text = str(runs["family"].iloc[0])
    sentence = (
        f"{counted(len(runs), 'run')} of {family_text} on {where}, {ended} measured{failures}."
    )
    return AnalysisAnswer(sentence=sentence, points=len(runs))
