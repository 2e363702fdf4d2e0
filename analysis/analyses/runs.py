"""`runs`: how many runs of each model family a store holds on each device, by outcome."""

from __future__ import annotations

from analysis.lazy import pd
from analysis.options import Options
from analysis.registry import analysis
from analysis.result import Result
from analysis.store.frame import is_ok
from paradnn.core.words import counted


@analysis(
    Options,
    summary="what the store holds: runs by family, device and outcome",
    example="python -m analysis runs --unfinished",
    columns=(),
    accepts_no_runs=True,
    has_figure=False,
    gate="none",
)
def runs(frame: pd.DataFrame, options: Options) -> Result:
    """Runs of each family on each device by outcome, and when the first and the last of them
    started.
    """
    del options  # nothing to choose: every run counts
    if frame.empty:
        return Result(numbers=frame[["family", "device"]], sentences=["no run matches"], sources=())
    lacking = {"family": "(none)", "device": "(none)", "outcome": "unfinished"}
    named = frame.assign(**{name: frame[name].fillna(word) for name, word in lacking.items()})
    groups = named.groupby(["family", "device"])
    counts = pd.crosstab([named["family"], named["device"]], named["outcome"])
    order = sorted(counts.columns, key=lambda name: (name != "ok", name == "unfinished", name))
    table = pd.concat(
        [
            groups.size().rename("runs"),
            counts[order],
            groups["start_time"].agg(first="min", last="max"),
        ],
        axis=1,
    )
    for name in ("first", "last"):
        table[name] = table[name].dt.strftime("%Y-%m-%d %H:%M")
    words = f"{counted(len(frame), 'run')}, {is_ok(frame).sum()} of them measured"
    return Result(numbers=table.reset_index(), sentences=[words], sources=tuple(frame["run_id"]))
