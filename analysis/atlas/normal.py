"""`paradnn normal`: whether the measured rate of a run is what its device should reach.

  paradnn normal                      the last measured run
  paradnn normal 3f2a91               the run whose id begins with 3f2a91
  paradnn normal --json normal.json

A run on a device with published timings is compared with an estimate from these. Any other run is
compared with the other runs of this machine. Leave-one-out predictions of these runs determine the
width of the interval. The exit code is 0 if the rate is normal, 1 if it is not, and 3 if this is
unknown.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.atlas.ask import estimate_from_runs
from analysis.atlas.estimate import StepTimeEstimate, estimate_step_time
from analysis.atlas.points import model_from_row
from analysis.format import format_number
from analysis.lazy import pd
from paradnn.cli.console import say
from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError
from paradnn.store.files import write_json

_EXIT_CODES = {"normal": 0, "slow": 1, "fast": 1, "unknown": 3}
_VERDICTS = {
    "normal": "which is normal",
    "slow": "which is slower than expected",
    "fast": "which is faster than expected",
}
#: Share of the expected rate below which precision and threads are named as a cause.
_MUCH_SLOWER = 0.6
#: Share of a step that waits for input above which the input is named as a cause.
_INPUT_BOUND = 0.1


@dataclass(frozen=True)
class NormalityCheck:
    """Comparison of a run with the rate of examples/s that its device should reach.

    Attributes:
        run_id: Id of the run.
        point: Model, batch size, precision and mode as text, such as "fc 8x512 b32 float32".
        device: Name of the device.
        value: Measured examples per second.
        low: Lower end of the 95% interval of the expected rate; None if it is not known.
        high: Upper end of that interval; None if it is not known.
        verdict: "normal", "slow", "fast" or "unknown".
        sources: Sources of the expected rate.
        look_at: Typical causes of the difference. Causes that the run recorded come first.
        why: Reason why the expected rate is unknown; empty if it is known.
    """

    run_id: str
    point: str
    device: str
    value: float
    low: float | None
    high: float | None
    verdict: str
    sources: Sequence[str]
    look_at: Sequence[str] = ()
    why: str = ""

    @property
    def sentence(self) -> str:
        """The verdict as a sentence, with the expected and the measured rate."""
        about = f"{self.point} on {self.device}"
        measured = _format_rate(self.value)
        if self.low is None or self.high is None:
            return f"{about}: {measured}; the expected rate is unknown: {self.why}"
        return (
            f"{about}: expected {_format_rate(self.low)} to {_format_rate(self.high)}, "
            f"measured {measured}, {_VERDICTS[self.verdict]}"
        )

    @property
    def ratio(self) -> float | None:
        """Measured rate / geometric mean of the ends of the expected interval.

        None if the expected rate is unknown.
        """
        if self.low is None or self.high is None:
            return None
        return self.value / math.sqrt(self.low * self.high)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object, with the keys that all analyses share."""
        shared = {
            "answer": self.sentence,
            "ratio": self.ratio,
            "ahead": None,
            "points": 1,
            "basis": "; ".join(self.sources),
        }
        return {**shared, **vars(self)}


def make_parser() -> Parser:
    """Return the argument parser of `paradnn normal`."""
    parser = Parser("paradnn normal", __doc__)
    parser.add_argument(
        "run_id",
        nargs="?",
        metavar="RUN_ID",
        help="the first characters of a run's id (default: the last run)",
    )
    parser.add_argument(
        "--store",
        metavar="URI",
        help="store of the run (default: MLFLOW_TRACKING_URI, else the store of this checkout)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer as JSON")
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `paradnn normal`.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        The exit code of the verdict: 0 if normal, 1 if slow or fast, 3 if unknown; 2 for invalid
            input.
    """
    options = make_parser().parse_args(arguments)
    check = check_run(find_run(options.run_id, options.store), options.store)
    if options.json:
        write_json(options.json, check.as_json())
    say(check.sentence)
    for source in check.sources:
        say(f"  from {source}")
    for cause in check.look_at:
        say(f"  look at {cause}")
    return _EXIT_CODES[check.verdict]


def find_run(run_id: str | None, store: str | None) -> Mapping[Any, Any]:
    """Return a run that timed a step, as a mapping from columns to values.

    Args:
        run_id: The first characters of the run's id; None for the last run.
        store: Address of the store; None for the default one.

    Raises:
        ConfigError: If no run, or more than one, matches.
    """
    from analysis.store.load import load

    # The runs are in order of their start.
    runs = load(store, outcome="ok")
    if {"step_time_ms", "batch_size"} <= set(runs):
        timed = runs[runs["step_time_ms"].gt(0) & runs["batch_size"].gt(0)]
    else:
        timed = runs[:0]
    if run_id is None:
        if timed.empty:
            raise ConfigError(
                "RUN_ID",
                "(none)",
                "the store has no run of a timed step",
                "measure a point with python -m paradnn.train",
            )
        return dict(timed.iloc[-1])
    matches = timed[timed["run_id"].str.startswith(run_id)]
    if matches.empty:
        raise _run_error(run_id, "matches no run with timed steps")
    if len(matches) > 1:
        raise _run_error(run_id, f"matches {len(matches)} runs")
    return dict(matches.iloc[0])


def _run_error(run_id: str, problem: str) -> ConfigError:
    return ConfigError(
        "RUN_ID",
        run_id,
        problem,
        "write an id from the column run_id of python -m analysis export runs.csv",
    )


def check_run(run: Mapping[Any, Any], store: str | None = None) -> NormalityCheck:
    """Compare a run with the rate of examples/s that its device should reach.

    Args:
        run: The run, as a mapping from columns to values.
        store: Address of the store with other runs of this machine; None for the default one.
    """
    estimate = _expected_time(run, store)
    batch = float(run["batch_size"])
    value = batch * 1e3 / float(run["step_time_ms"])
    about: dict[str, Any] = {
        "run_id": str(run["run_id"]),
        "point": estimate.point,
        "device": str(run["device"]),
        "value": value,
    }
    if estimate.seconds is None or estimate.low is None or estimate.high is None:
        return NormalityCheck(
            **about, low=None, high=None, verdict="unknown", sources=(), why=estimate.why
        )
    low = batch / estimate.high
    high = batch / estimate.low
    causes: Sequence[str] = ()
    if value < low:
        verdict = "slow"
        causes = tuple(_causes_of_slowness(run, value * estimate.seconds / batch))
    elif value > high:
        verdict = "fast"
        causes = ("the timed code: it may do no work, or not wait for the result",)
    else:
        verdict = "normal"
    return NormalityCheck(
        **about,
        low=low,
        high=high,
        verdict=verdict,
        sources=estimate.sources,
        look_at=causes,
    )


def _expected_time(run: Mapping[Any, Any], store: str | None) -> StepTimeEstimate:
    """Estimate the step time of a run from published timings, else from other runs of this machine.

    Args:
        run: The run, as a mapping from columns to values.
        store: Address of the store with other runs; None for the default one.
    """
    with contextlib.suppress(ConfigError):
        # The run of a single kernel includes its call from Python, which the atlas excludes.
        if not model_from_row(run).is_kernel:
            estimate = estimate_step_time(run, str(run["device"]))
            if estimate.seconds is not None:
                return estimate
    return estimate_from_runs(run, store, excluded_run=str(run["run_id"]))


def _causes_of_slowness(run: Mapping[Any, Any], share: float) -> Iterator[str]:
    """Yield typical causes of slowness; causes that the run itself recorded come first.

    Args:
        run: The run, as a mapping from columns to values.
        share: Measured rate / expected rate.
    """
    for kind, resource in (("flops", "arithmetic"), ("bytes", "memory bandwidth")):
        peak = _number(run, f"peak_{kind}_per_second")
        rate = _number(run, f"{kind}_per_step") / _number(run, "step_time_ms") * 1e3
        if peak > 0 and rate > 0:
            yield (
                f"the ceilings: the step reaches {format_number(rate / peak, share=True)} of the "
                f"measured {resource}"
            )
    cores = _number(run, "cpu_count") or 1
    if str(run.get("contended")) == "True" or _number(run, "load_average") > 2 * cores:
        yield "other work: the machine ran other processes during the measurement (paradnn check)"
    waiting = _number(run, "infeed_fraction")
    if waiting > _INPUT_BOUND:
        yield f"the input: the step waits {format_number(waiting, share=True)} of its time for it"
    if str(run.get("compile")) == "eager":
        yield "compile=eager: operations are launched one by one"
    if share < _MUCH_SLOWER:
        yield (
            "precision and threads: float32 instead of bfloat16, or one thread instead of all, "
            "often costs this much"
        )
    yield "clocks and the power cap (paradnn check)"


def _number(run: Mapping[Any, Any], name: str) -> float:
    """Return a numeric field of a run as a float; NaN if it is missing.

    Args:
        run: The run, as a mapping from columns to values.
        name: Column of the field.
    """
    value = run.get(name)
    if value is None or pd.isna(value):
        return math.nan
    return float(value)


def _format_rate(value: float) -> str:
    return f"{format_number(value, digits=3)} examples/s"
