"""From thousands of tracked runs to statements a person can act on.

    from analysis import SensitivityOptions, load, sensitivity

    frame = load(family="fc")
    weights = sensitivity(frame, SensitivityOptions(log_scale="both"))
    weights.table, weights.figure()

Every analysis is a function of a frame and a dataclass of options, and answers with a typed result; the command
`python -m analysis` calls the same functions. A name is imported when it is first used: each part costs only itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import_module("paradnn")  # ends `python -m analysis` quietly at an early Ctrl-C

#: What each module brings; the options of `runs`, `overhead`, `breakdown` and `parameters` hold only `pool`.
_HOMES = {
    "analyses.overhead": ("OverheadOptions", "overhead"),
    "options": ("Options", "Selection"),
    "report": ("make_report",),
    "store.load": ("load", "load_table", "load_tables"),
    "summaries.boxplot": ("BoxplotOptions", "boxplot"),
    "summaries.breakdown": ("BreakdownOptions", "breakdown"),
    "summaries.channel": ("ChannelOptions", "channel"),
    "summaries.claims": ("ClaimsOptions", "check_claims"),
    "summaries.compare": ("CompareOptions", "compare"),
    "summaries.extrapolate": ("ExtrapolateOptions", "extrapolate"),
    "summaries.figure_of_merit": ("FigureOfMeritOptions", "figure_of_merit"),
    "summaries.frontier": ("FrontierOptions", "frontier"),
    "summaries.heatmap": ("HeatmapOptions", "heatmap"),
    "summaries.infeed": ("InfeedOptions", "infeed"),
    "summaries.latency": ("LatencyOptions", "latency"),
    "summaries.layers": ("LayersOptions", "layers"),
    "summaries.memory": ("MemoryOptions", "memory"),
    "summaries.parameters": ("ParametersOptions", "parameters", "read_models"),
    "summaries.predict": ("PredictOptions", "predict"),
    "summaries.roofline": ("RooflineOptions", "roofline"),
    "summaries.runs": ("RunsOptions", "runs"),
    "summaries.scaling": ("ScalingOptions", "scaling"),
    "summaries.sensitivity": ("SensitivityOptions", "sensitivity"),
    "summaries.software": ("SoftwareOptions", "software"),
    "summaries.speedup": ("SpeedupOptions", "speedup"),
    "summaries.time_to_accuracy": ("TimeToAccuracyOptions", "time_to_accuracy"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
