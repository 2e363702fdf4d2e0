"""`paradnn normal`: whether a measured number is what is to be expected of its device.

  paradnn normal                      the last measured run
  paradnn normal 3f2a91               the run whose id begins so
  paradnn normal --json normal.json

A run on a device of the atlas is held against published kernels; elsewhere against the other runs
of this machine, each of which is predicted from the others to see how wide the interval has to be.
Exit code 0 where it is normal, 1 where it is not, 3 where nothing is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.atlas.ask import measured_here
from analysis.atlas.expect import expect, model_in
from analysis.format import short
from analysis.lazy import pd
from paradnn.cli.console import say
from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError
from paradnn.store.files import write_json

_CODES = {"normal": 0, "slow": 1, "fast": 1, "unknown": 3}


@dataclass(frozen=True)
class Normal:
    """A run beside what is expected of it: examples per second, and the ends of their 95% interval.

    verdict: normal, slow, fast or unknown, for the reason in `why`. look_at: what is typically
    wrong, in words.
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


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser("paradnn normal", __doc__)
    text = "the beginning of a run's id (default: the last run)"
    parser.add_argument("run_id", nargs="?", metavar="RUN_ID", help=text)
    parser.add_argument(
        "--store", metavar="URI", help="where the run is (default: as for analysis)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the answer")
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: the exit codes of the verdicts, 2 for bad input."""
    given = make_parser().parse_args(arguments)
    found = judge(_run(given.run_id, given.store), given.store)
    if given.json:
        write_json(given.json, vars(found))
    if found.low is None or found.high is None:
        say(
            f"{found.point} on {found.device}: {_rate(found.value)}; not known whether that is normal: {found.why}"
        )
    else:
        said = {
            "normal": "which is normal",
            "slow": "which is too slow",
            "fast": "which is faster than it should be",
        }
        say(f"{found.point} on {found.device}: expected {_rate(found.low)} to {_rate(found.high)}, you have "
            f"{_rate(found.value)}, {said[found.verdict]}")  # fmt: skip
    for line in (
        *(f"from {source}" for source in found.sources),
        *(f"look at {what}" for what in found.look_at),
    ):
        say(f"  {line}")
    return _CODES[found.verdict]


def _run(run_id: str | None, store: str | None) -> Mapping[Any, Any]:
    from analysis.store.load import load

    runs = load(store, outcome="ok")  # by their start
    needed = {"step_time_ms", "batch_size"} <= set(runs)
    if needed:
        known = runs[runs["step_time_ms"].gt(0) & runs["batch_size"].gt(0)]
    else:
        known = runs[:0]
    if run_id is not None:
        known = known[known["run_id"].str.startswith(run_id)]
    if known.empty or (run_id is not None and len(known) > 1):
        if run_id is None:
            none = "no run of a timed step is in the store"
        else:
            none = "begins the id of no run of a timed step"
        count = f"begins the ids of {len(known)} runs" if len(known) else none
        raise ConfigError(
            "RUN_ID",
            run_id or "(the last)",
            count,
            "see run_id in python -m analysis export runs.csv",
        )
    return dict(known.iloc[-1])


def judge(run: Mapping[Any, Any], store: str | None = None) -> Normal:
    """A row of a frame against what is expected of its device."""
    answer = None
    batch = float(run["batch_size"])
    with contextlib.suppress(ConfigError):
        # A kernel alone is called, which one within a step is not.
        if model_in(run).is_kernel:
            answer = None
        else:
            answer = expect(run, str(run["device"]))
    if answer is None or answer.seconds is None:
        answer = measured_here(run, store, without=str(run["run_id"]))
    value = batch * 1e3 / float(run["step_time_ms"])
    about = (str(run["run_id"]), answer.point, str(run["device"]), value)
    if answer.seconds is None or answer.low is None or answer.high is None:
        return Normal(*about, None, None, "unknown", (), why=answer.why)
    low = batch / answer.high
    high = batch / answer.low
    if value < low:
        verdict = "slow"
    elif value > high:
        verdict = "fast"
    else:
        verdict = "normal"
    if verdict == "slow":
        causes = tuple(_causes(run, value / (batch / answer.seconds)))
    else:
        causes = ()
    if verdict == "fast":
        fast = ("the input: an empty loop or an output that is not waited for is fast",)
    else:
        fast = ()
    return Normal(*about, low, high, verdict, answer.sources, causes or fast)


def _causes(run: Mapping[Any, Any], share: float) -> Iterator[str]:
    """What is typically wrong, of what the run itself recorded first."""

    def number(name: str) -> float:
        value = run.get(name)
        if value is not None and not pd.isna(value):
            return float(value)
        return float("nan")

    for kind, word in (("flops", "arithmetic"), ("bytes", "memory bandwidth")):
        peak = number(f"peak_{kind}_per_second")
        done = number(f"{kind}_per_step") / number("step_time_ms") * 1e3
        if done / peak > 0:
            yield f"the ceilings: the step reaches {short(done / peak, share=True)} of the measured {word}"
    if str(run.get("contended")) == "True" or number("load_average") > 2 * (
        number("cpu_count") or 1
    ):
        yield "other work on the machine: it was not alone while it was measured (paradnn check)"
    if number("infeed_fraction") > 0.1:
        yield f"the input: the step waits for it {short(number('infeed_fraction'), share=True)} of the time"
    if str(run.get("compile")) == "eager":
        yield "compile=eager: operations are called one by one"
    if share < 0.6:
        yield "precision and threads: float32 in place of bfloat16, or one thread in place of all, is often so much"
    yield "clocks and the power cap (paradnn check)"


def _rate(value: float) -> str:
    return f"{short(value, digits=3)} examples/s"
