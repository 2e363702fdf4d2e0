"""Questions that an analysis cannot answer, as command lines.

Each is rejected with one line that states the reason and a remedy.
"""

import shlex
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from analysis.cli import make_parser
from analysis.options import read_arguments
from analysis.result import Result
from paradnn.core.errors import ParadnnError
from tests.analysis import (
    test_boxplot,
    test_compare,
    test_figure_of_merit,
    test_frontier,
    test_heatmap,
    test_infeed,
    test_latency,
    test_memory,
    test_parameters,
    test_predict,
    test_roofline,
    test_scaling,
    test_sensitivity,
    test_software,
    test_speedup,
    test_time_to_accuracy,
)
from tests.analysis.conftest import refusals


def whole(where: slice | np.ndarray | list[int] | None = None, **columns: object) -> pd.DataFrame:
    frame = test_predict.whole().assign(**columns)
    if where is None:
        return frame
    return frame.iloc[where].reset_index(drop=True)


def sweep(**columns: object) -> pd.DataFrame:
    return test_sensitivity.sweep(np.random.default_rng(13)).assign(**columns)


def compared() -> pd.DataFrame:
    return pd.concat(test_compare.planted(1.5, 8, 1, seed=14), ignore_index=True)


def paired() -> pd.DataFrame:
    return pd.concat(test_speedup.grid((0.5, 0.0), 0.0), ignore_index=True)


def software(*others: pd.DataFrame, **columns: object) -> pd.DataFrame:
    return test_software.both(test_software.version("2.9", **columns), *others)


def served() -> pd.DataFrame:
    return pd.DataFrame([test_latency.queue(1.0)]).drop(columns="scheduled_queries_per_second")


def apart_in_settings() -> pd.DataFrame:
    half = np.arange(200) % 2 == 0
    return sweep(
        **{"generate.prompt": np.where(half, 8.0, np.nan), "devices": np.where(half, np.nan, 2.0)}
    )


OOM = {"outcome": "oom_device", "step_time_ms": np.nan, "examples_per_second": np.nan}
boxes = test_boxplot.runs
grid = test_heatmap.grid
merit = test_figure_of_merit.both
three = test_frontier.three


def scaled():
    return test_scaling.planted(0.1)


version = test_software.version
trained = test_time_to_accuracy.trained


def newer():
    return software(version("2.16", 2.0))


def apart():
    return software(version("2.16").assign(batch_size=7))


def roofs():
    return test_roofline.planted().assign(point_id=range(31), artifact_uri="")


def elsewhere():
    return software(version("2.9", precision="bfloat16", device="Other"))


def asked(words: str, frame: pd.DataFrame) -> Result:
    """Return an analysis's answer about the runs for a command line."""
    given = make_parser().parse_args(shlex.split(words))
    assert given.sub_command.analysis
    return given.sub_command.analysis(frame, read_arguments(given.sub_command.options, given))


#: The runs that each analysis receives in refusals.yaml.
FRAMES: dict[str, Callable[[], pd.DataFrame]] = {
    "boxplot": boxes,
    "compare": compared,
    "figure-of-merit": merit,
}
FRAMES |= {
    "frontier": three,
    "heatmap": grid,
    "infeed": test_infeed.planted,
    "latency": served,
    "predict": whole,
}
FRAMES |= {
    "roofline": roofs,
    "scaling": scaled,
    "sensitivity": sweep,
    "software": software,
    "speedup": paired,
}
REFUSED = [
    (words, FRAMES[words.partition(" ")[0]], message) for words, message in refusals("analyses")
]
REFUSED += [
    ("boxplot", lambda: boxes().head(0), "no run matches"),
    (
        "boxplot",
        lambda: boxes().assign(checks="failed: rates"),
        "no run is left to analyze (excluded: ",
    ),
    (
        "boxplot --steady-only",
        lambda: boxes().assign(steady="false"),
        "without a steady state",
    ),
    ("boxplot --a device=A", lambda: paired(), "--b=(none): both sides are needed"),
    ("channel", lambda: whole(), "no run measured messages; measure some"),
    (
        "figure-of-merit",
        lambda: merit().assign(**{"model.nodes": range(6)}),
        "no point was measured with every device",
    ),
    ("frontier", lambda: three().head(1), "1 choice with"),
    ("frontier", lambda: three().assign(protocol_id=["p", "q", "p"]), "protocol"),
    (
        "infeed",
        lambda: test_infeed.planted().iloc[:0],
        "there are no runs; measure with a real input pipeline",
    ),
    (
        "latency",
        lambda: served()[["run_id", "outcome"]].assign(family=None),
        "queries by a schedule",
    ),
    (
        "memory",
        lambda: test_memory.planted(device="D")[:1],
        "fc on D: no size varies among the points that were tried",
    ),
    ("parameters", lambda: test_parameters.models().head(0), "no run matches"),
    (
        "predict",
        lambda: whole([0]),
        "fc on Test CPU: all runs are of one point, so the space is one point",
    ),
    (
        "predict",
        lambda: whole([0, 1]),
        "fc on Test CPU: the space is 2 points, there is nothing between them to pre",
    ),
    (
        "predict",
        lambda: whole([0, 5, 63]),
        "fc on Test CPU: 3 measured points, a prediction takes 5",
    ),
    ("predict", lambda: whole(**OOM), "fc on Test CPU: no point was measured (64 oom_device)"),
    (
        "predict --metric peak_memory_bytes",
        lambda: whole(peak_memory_bytes=1.0),
        "does not follow from the time of a",
    ),
    ("roofline", lambda: test_roofline.planted().head(0), "no run matches"),
    (
        "scaling",
        lambda: scaled().drop(columns="devices"),
        "devices: no measured run records how many",
    ),
    (
        "scaling",
        lambda: scaled().query("devices == 1"),
        "devices = 1: scaling needs points on 1 and on more",
    ),
    (
        "scaling",
        lambda: scaled().query("devices > 1"),
        "devices = 2, 4, 8: scaling needs points on 1 and on more",
    ),
    (
        "scaling",
        lambda: scaled().assign(outcome="oom_device"),
        "devices: no measured run records how many",
    ),
    (
        "scaling",
        lambda: scaled().assign(batch_size=range(256)),
        "no point was measured with devices=1 and with more",
    ),
    ("sensitivity", apart_in_settings, "no measured run has all of "),
    ("sensitivity", lambda: sweep(flops_utilization=0.5), "the metric is the same in all 200 rows"),
    (
        "sensitivity",
        lambda: sweep(outcome="timeout"),
        "no measured run has flops_utilization, flops_per_second",
    ),
    ("sensitivity", lambda: sweep().iloc[:0], "no measured run has"),
    (
        "sensitivity --log-scale both",
        lambda: sweep(flops_utilization=-1.0),
        "--log-scale=flops_utilization: holds -",
    ),
    (
        "sensitivity --log-scale both",
        lambda: sweep(batch_size=range(200)),
        "--log-scale=batch_size: holds 0, which",
    ),
    ("software", lambda: software(outcome="crash"), "software: no measured run to compare"),
    (
        "software --by version.tensorflow --baseline 3",
        newer,
        "--baseline=3: is not a value of version.tensorflow; choose",
    ),
    (
        "software",
        apart,
        "version.tensorflow on Test CPU: no point was measured with both 2.16 and 2.9",
    ),
    (
        "software",
        elsewhere,
        "precision on Other: all runs have bfloat16; precision on Test CPU: all runs",
    ),
    (
        "time-to-accuracy --price C=36",
        lambda: pd.DataFrame([trained(1.0)]),
        "--price=C: no run is of that device",
    ),
    (
        "time-to-accuracy",
        lambda: pd.DataFrame([trained(1.0)]).drop(columns="best_accuracy"),
        "task=learn",
    ),
]


@pytest.mark.parametrize(
    ("words", "frame", "message"), REFUSED, ids=[f"{row[0]}: {row[2]}" for row in REFUSED]
)
def test_what_cannot_be_answered_is_one_line(
    words: str, frame: Callable[[], pd.DataFrame], message: str
) -> None:
    with pytest.raises(ParadnnError) as caught:
        asked(words, frame())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
