"""Measured ceilings of devices: find those that are too low, and replace them from the store.

A ceiling is the peak FLOP/s or the memory bandwidth that a device reached in a measurement. If
other work ran during the measurement, the ceiling is only a lower bound. Utilizations relative to
such a ceiling are too high.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from analysis.lazy import np, pd
from paradnn.core.errors import ParadnnError
from paradnn.core.words import counted

#: Columns of a run that hold the ceilings of its devices, in FLOP/s and B/s.
PEAK = "peak_flops_per_second"
BANDWIDTH = "peak_bytes_per_second"
#: Metrics that are computed from measured ceilings.
CEILING_METRICS = (
    "flops_utilization",
    "roofline_fraction",
    "decode_bandwidth_fraction",
    "prefill_flops_utilization",
    PEAK,
    BANDWIDTH,
)

#: A rate that exceeds the measured peak by more than this share shows that the peak is too low.
_TOLERANCE = 0.05
_CONTENDED = "ceilings_contended"
_CEILINGS_RUN = "ceilings_run"


def has_low_ceilings(frame: pd.DataFrame, column: str | None = None) -> np.ndarray:
    """Return a mask of the runs whose ceilings are known to be too low.

    A ceiling is the measured peak FLOP/s or memory bandwidth of the run's devices. Both are too low
    if other work used the machine while they were measured. A peak is also too low if the run
    exceeded it by more than 5%.

    Args:
        frame: One row per run.
        column: `PEAK` or `BANDWIDTH` to check only that ceiling; None to check both.

    Returns:
        A boolean array (n,), true for each of the n runs with a ceiling that is too low.
    """
    is_low = np.zeros(len(frame), dtype=bool)
    if _CONTENDED in frame:
        is_low |= frame[_CONTENDED].notna().to_numpy(dtype=bool)
    if column != BANDWIDTH and {PEAK, "flops_per_second"} <= set(frame):
        rates = frame["flops_per_second"].astype("float64").to_numpy()
        peaks = frame[PEAK].astype("float64").to_numpy()
        is_low |= rates > (1 + _TOLERANCE) * peaks
    return is_low


def ceiling_caveat(frame: pd.DataFrame, metrics: Collection[str]) -> str:
    """Return a caveat about metrics relative to a peak FLOP/s or bandwidth that is too low.

    Args:
        frame: The runs of a result, one row each.
        metrics: The metrics that the result is about.

    Returns:
        A sentence with the remedy. It is empty if no metric is in `CEILING_METRICS`. It is also
        empty if no run with such a metric has a peak or bandwidth that is too low.
    """
    used = [name for name in CEILING_METRICS if name in metrics and name in frame]
    if not used:
        return ""
    rows = frame[frame[used].notna().any(axis=1)]
    is_low = has_low_ceilings(rows)
    if not is_low.any():
        return ""
    relative = [name for name in used if name not in (PEAK, BANDWIDTH)]
    text = (
        f"The measured ceilings of {counted(int(is_low.sum()), 'run')} are too low: other work ran "
        "while they were measured, or the run exceeded its peak. "
    )
    if relative:
        text += f"Values relative to these ceilings are too high ({', '.join(relative)}). "
    return f"{text}Measure the ceilings again on a quiet machine: {remeasure_command(rows[is_low])}"


def remeasure_command(rows: pd.DataFrame) -> str:
    """Return the command that measures the peak FLOP/s and bandwidth of the runs' devices again.

    If the runs recorded exactly one command for this purpose, that command is returned. Otherwise
    the command is `python -m paradnn.ceilings`, with the platform and the framework if all runs
    share them.

    Args:
        rows: One row per run.
    """
    if "ceilings_remedy" in rows:
        commands = rows["ceilings_remedy"].dropna().unique()
        if len(commands) == 1:
            return str(commands[0])
    words = []
    for option, column in (("platform", "platform.name"), ("framework", "framework.name")):
        values = list(rows[column].dropna().unique()) if column in rows else []
        if len(values) == 1:
            words.append(f"{option}={values[0]}")
    return shlex.join(["python", "-m", "paradnn.ceilings", *words])


def with_best_ceilings(frame: pd.DataFrame, store: Sequence[str]) -> pd.DataFrame:
    """Replace a peak FLOP/s or bandwidth that is too low with a better measurement from the store.

    A user may measure these ceilings again after a sweep. A measurement qualifies if it has the
    same devices, environment and framework as the recorded one. The latest measurement without
    other work on the machine replaces the recorded value. If other work disturbed all measurements,
    the highest replaces it, since each of them is a lower bound.

    Args:
        frame: One row per run.
        store: Addresses of the MLflow stores that contain the runs; empty for the default store.

    Returns:
        A frame with updated `PEAK` and `BANDWIDTH`. `flops_utilization` is not recomputed.
    """
    if _CEILINGS_RUN not in frame or PEAK not in frame:
        return frame
    is_low = has_low_ceilings(frame) & frame[_CEILINGS_RUN].notna().to_numpy(dtype=bool)
    if not is_low.any():
        return frame
    known = _read_ceilings(frame[is_low], store)
    improved = frame.copy()
    # Many runs share the same ceilings: look up each of them once.
    for ceilings_run, runs in frame[is_low].groupby(_CEILINGS_RUN, sort=False):
        own = known[known["run_id"].eq(ceilings_run)]
        if own.empty:
            continue
        identity = ["point_id", "environment_id"]
        replicates = known[known[identity].eq(own[identity].iloc[0]).all(axis=1)]
        is_sound = replicates["contended"].ne(True).to_numpy(dtype=bool)
        scaled = [(BANDWIDTH, BANDWIDTH, runs.index)]
        if "precision" in runs:
            for precision, part in runs.groupby("precision", sort=False):
                scaled.append((PEAK, f"{PEAK}.{precision}", part.index))
        for column, source, index in scaled:
            if column in frame and source in replicates:
                best = _best_value(replicates[source], is_sound)
                # A run records the sum over its devices; a measurement is of one device.
                improved.loc[index, column] *= best / float(own[source].iloc[0])
        if is_sound.any() and _CONTENDED in frame:
            improved.loc[runs.index, _CONTENDED] = None
    return improved


def _best_value(values: pd.Series, is_sound: np.ndarray) -> float:
    """Return the latest undisturbed value, or the highest value if all were disturbed.

    Args:
        values: (n,) values in chronological order; missing values are ignored.
        is_sound: (n,) whether each measurement was undisturbed.
    """
    sound = values[is_sound].dropna()
    if len(sound):
        return float(sound.iloc[-1])
    return float(values.max())


def _read_ceilings(rows: pd.DataFrame, store: Sequence[str]) -> pd.DataFrame:
    """Return the successful measurements of ceilings, one row each; possibly none.

    The ceilings are the peak FLOP/s and the memory bandwidth of a device.

    Args:
        rows: Runs, whose experiments are searched for the measurements.
        store: Addresses of the stores; empty for the default store.
    """
    from analysis.store.load import load

    nothing = pd.DataFrame(columns=["run_id", "point_id", "environment_id", "contended"])
    if "experiment" in rows:
        experiments = tuple(rows["experiment"].dropna().unique())
    else:
        experiments = ()
    try:
        measured = load(store or None, experiments=experiments or ("paradnn",), kind="ceilings")
    except ParadnnError:
        return nothing
    if "ceilings_outcome" not in measured:
        return nothing
    measured = measured[measured["ceilings_outcome"].eq("ok").fillna(False)]
    return measured.reindex(columns=[*dict.fromkeys([*measured, *nothing])])
