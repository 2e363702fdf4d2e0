"""`paradnn ask`: how long a step of a model would take on devices that one does not have.

  paradnn ask --device H200 model=gpt batch_size=8 precision=bfloat16 mode=inference
  paradnn ask --device H200 --device "L40S" --price H200=3.5 --price L40S=0.9 model=llama precision=fp8 mode=inference
  paradnn ask --device 'H200; B200' model=own model.build=nets.py:make_net precision=bfloat16     a model of one's own
  paradnn ask --device H200 --engine vLLM --versions         what versions of an engine changed there
  paradnn ask --device here model=fc model.nodes=512         from the runs of this machine in the tracking store
  paradnn ask --device 'Tesla V100' model=fc batch_size=32   from kernels that ran on this device, of the store
  paradnn ask --device 'Tesla V100' --from T4 model=fc       from a few of these, beside what a similar device does

A device whose kernels are in the store (paradnn train -m experiment=kernels) is answered from
these. The answer is a time with a 95% interval, what it is made from, and what of it is
extrapolated; or that it is not known, and why. Exit code 1 where no device has an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.atlas import load as load_atlas
from analysis.atlas import order_of
from analysis.atlas.expect import StepTimeEstimate, expect, model_in, words_of
from analysis.atlas.own import kernels_in, own_atlas
from analysis.atlas.systems import SYSTEMS, system_file
from analysis.atlas.versions import changes
from analysis.format import seconds
from analysis.lazy import np, pd
from analysis.store.lazy_past import past
from paradnn.cli.console import say
from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.layers import COMPUTE_BYTES
from paradnn.core.words import did_you_mean
from paradnn.store.files import write_json

_HERE = "here"
#: Between several devices in one argument; a CPU's name has a comma before its cores.
_SEVERAL = re.compile(r"\s*(?:;|,(?! \d+ cores?$))\s*")


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser("paradnn ask", __doc__)
    add = parser.add_argument
    add("points", nargs="*", metavar="KEY=VALUE", help="the point, as `paradnn train` takes it")
    text = "repeatable; --list names them, or as the store has it; `here` is this machine"
    add("--device", action="append", metavar="NAME", help=text)
    add(
        "--engine",
        metavar="NAME",
        help="vLLM, SGLang, TensorRT-LLM or PyTorch (default: most timings)",
    )
    add("--version-of", metavar="VERSION", help="of the engine (default: the newest)")
    add(
        "--from",
        dest="similar",
        metavar="NAME",
        help="a similar device, where the store has few kernels",
    )
    add("--price", action="append", default=[], metavar="DEVICE=PER_HOUR", help="repeatable")
    add("--list", action="store_true", help="list the devices with what was timed there")
    add(
        "--versions",
        action="store_true",
        help="compare each version of an engine with the one before",
    )
    text = f"write a simulator's file to --json: {', '.join(SYSTEMS)}"
    add("--system", choices=[*SYSTEMS], metavar="NAME", help=text)
    add("--store", metavar="URI", help="of one's own runs and kernels (default: as for analysis)")
    add("--json", type=Path, metavar="FILE", help="write the answer, a list of several")
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0, 1 where nothing is known, 2 for bad input."""
    given = make_parser().parse_args(arguments)
    given.device = [
        *dict.fromkeys(name for text in given.device or () for name in _SEVERAL.split(text) if name)
    ]
    if given.list:
        _list()
        return 0
    if not given.device:
        raise ConfigError(
            "--device", "(none)", "is missing", "name one, such as --device H200; --list shows them"
        )
    _check_engine(given)
    if given.system:
        return _system(given)
    if given.versions:
        return _versions(given)
    prices = dict(_price(text) for text in given.price)
    others = sorted(set(prices) - set(given.device))
    if others:
        raise ConfigError(
            "--price", others[0], "is no device that is asked for", f"add --device '{others[0]}'"
        )
    rows = _rows(given.points)
    kernels = kernels_in(given.store)
    shown = []
    for row, device in itertools.product(rows, given.device):
        answer = _answer(row, device, kernels, given)
        price = prices.get(device, prices.get(answer.device))
        if price is None or answer.seconds is None:
            cost = None
        else:
            cost = price / 3600 * answer.seconds
        shown.append({**vars(answer), "price_per_hour": price, "cost": cost})
    if given.json:
        write_json(given.json, shown[0] if len(shown) == 1 else shown)
    for one in shown:
        _print(one)
    known = [one for one in shown if one["seconds"] is not None]
    if len(known) > 1 and len(rows) == 1:
        _rank(known)
    return 0 if known else 1


def _check_engine(given: argparse.Namespace) -> None:
    """The engine as the atlas spells it. ConfigError where it has none such, or no such version of
    it.
    """
    groups = load_atlas().groups
    if given.engine is not None:
        names = {group.engine.lower(): group.engine for group in groups}
        if given.engine.lower() not in names:
            hint = did_you_mean(given.engine, names.values())
            raise ConfigError(
                "--engine",
                given.engine,
                "is in no table",
                f"{hint}choose one of {', '.join(names.values())}",
            )
        given.engine = names[given.engine.lower()]
    versions = {
        group.version
        for group in groups
        if group.kind == "gemm" and given.engine in (None, group.engine)
    }
    if given.version_of not in (None, *versions):
        there = ", ".join(sorted(versions, key=order_of))
        raise ConfigError(
            "--version-of", given.version_of, "has no table of products", f"choose one of {there}"
        )


def _answer(
    row: Mapping[Any, Any], device: str, kernels: pd.DataFrame, given: argparse.Namespace
) -> StepTimeEstimate:
    """The step on a device: from its kernels in the store where these are enough, else from the
    atlas.
    """
    if device == _HERE:
        return measured_here(row, given.store)
    lacking = ""
    if kernels["device"].eq(device).any():
        try:
            return expect(row, device, atlas=own_atlas(kernels, device, row, given.similar))
        except NotEnoughData as problem:
            lacking = str(problem)
    elif given.similar:
        wrong = f"helps kernels of {device}, and the store has none"
        raise ConfigError(
            "--from", given.similar, wrong, "measure some: paradnn train -m experiment=kernels"
        )
    try:
        return expect(row, device, given.engine, given.version_of)
    except ConfigError:
        if lacking:
            return StepTimeEstimate(device, words_of(row, model_in(row)), why=lacking)
        raise


def _rows(words: Sequence[str]) -> list[Mapping[Any, Any]]:
    """The points of a command line. The precision is put in after the driver's grammar has read the
    others: it may be one of published weights alone, and a model in a file has but its own to the
    driver.
    """
    kept = [word for word in words if not word.startswith("precision=")]
    if not kept:
        raise ConfigError(
            "KEY=VALUE", "(none)", "names no point", "write for example model=gpt batch_size=8"
        )
    named = [
        name
        for word in words
        if word.startswith("precision=")
        for name in word.partition("=")[2].split(",")
    ]
    known = sorted({*COMPUTE_BYTES, *(group.precision for group in load_atlas().groups)})
    unknown = [name for name in named if name not in known]
    if unknown:
        remedy = f"{did_you_mean(unknown[0], known)}choose one of {', '.join(known)}"
        raise ConfigError("precision", unknown[0], "was timed nowhere", remedy)
    rows = past.points_of(kept).to_dict("records")
    return [{**row, "precision": name} for row in rows for name in named or [row["precision"]]]


def _price(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    with contextlib.suppress(ValueError):
        if name and 0 < float(value) < 1e9:
            return name, float(value)
    raise ConfigError("--price", text, "is no price", "write DEVICE=PER_HOUR, such as H200=3.5")


def measured_here(row: Mapping[Any, Any], store: str | None, without: str = "") -> StepTimeEstimate:
    """The step on the device of the newest measured run of the store, predicted from all runs there
    (but `without`).
    """
    from analysis.store.load import load
    from paradnn.forecast.predict import StepTimeModel

    point = words_of(row, model_in(row))
    runs = load(store, outcome="ok")
    if "step_time_ms" in runs:
        runs = runs[runs["source"].eq("measured") & runs["step_time_ms"].gt(0)]
    else:
        runs = runs[:0]
    if runs.empty:
        return StepTimeEstimate(
            _HERE,
            point,
            why="no run of this machine is in the store; measure some: paradnn train -m ...",
        )
    device = str(runs["device"].iloc[-1])
    runs = runs[runs["device"].eq(device) & runs["run_id"].ne(without)]
    if len(runs) < 3:
        return StepTimeEstimate(
            device, point, why=f"of three runs that it takes the store has {len(runs)}"
        )
    times = runs["step_time_ms"].to_numpy(dtype="float64") / 1e3
    rates = past.rates_of(runs, times)
    model = StepTimeModel.fit(past.table_of(runs, rates), times, past.noise_of(runs))
    asked = pd.DataFrame(
        [{**row, "environment_id": runs["environment_id"].iloc[-1], "sweep_id": "asked"}]
    )
    found = model.predict(past.table_of(asked, rates))
    middle, low, high = (float(np.exp(end[0])) for end in (found.mean, *found.interval()))
    family = int(runs["family"].eq(row["family"]).sum())
    source = f"{len(runs)} runs on {device} in the store, {family} of {row['family']}"
    if family:
        notes = ()
    else:
        notes = (f"no run of {row['family']} was measured here",)
    return StepTimeEstimate(device, point, middle, low, high, (source,), notes)


def _print(one: Mapping[str, Any]) -> None:
    if one["seconds"] is None:
        say(f"{one['point']} on {one['device']}: not known: {one['why']}")
        return
    batch = f"{seconds(one['seconds'])} a step, {seconds(one['low'])} to {seconds(one['high'])}"
    say(f"{one['point']} on {one['device']}: {batch}")
    if one["prompt"] is not None:
        say(f"  a token; reading the prompt takes {seconds(one['prompt'])}")
    if len(one["parts"]) > 1:
        parts = sorted(one["parts"].items(), key=lambda item: -item[1])
        say("  of it " + ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= 0.01))
    for source in one["sources"]:
        say(f"  from {source}")
    for note in one["extrapolated"]:
        say(f"  extrapolated: {note}")


def _rank(known: Sequence[Mapping[str, Any]]) -> None:
    """Fastest first, cheapest where prices are known, and which are neither slower nor dearer than
    another; devices whose intervals overlap are not told apart.
    """
    if all(one["cost"] is not None for one in known):
        key = "cost"
    else:
        key = "seconds"
    first, second = sorted(known, key=lambda one: float(one[key]))[:2]
    word = {"cost": "cheapest a step", "seconds": "fastest"}[key]
    if (
        first["high"] * first[key] / first["seconds"]
        < second["low"] * second[key] / second["seconds"]
    ):
        say(
            f"{first['device']} is the {word}, {second[key] / first[key]:.3g} times before the next"
        )
    else:
        say(
            f"{first['device']} may be the {word}; the intervals of {second['device']} and it overlap"
        )
    if key == "cost":
        beaten = [
            one
            for one in known
            if any(o["cost"] < one["cost"] and o["seconds"] < one["seconds"] for o in known)
        ]
        say(
            f"no other is both faster and cheaper than {' or '.join(o['device'] for o in known if o not in beaten)}"
        )


def _system(given: argparse.Namespace) -> int:
    """A simulator's file, with the intervals of its numbers beside it."""
    name, *others = given.device
    if others or given.json is None or given.points:
        raise ConfigError(
            "--system", given.system, "takes one --device, a file and no point", "add --json FILE"
        )
    device = load_atlas().device(name)
    system, intervals = system_file(given.system, load_atlas(), device)
    beside = given.json.with_name(f"{given.json.stem}-intervals.json")
    for file, content in ((given.json, system), (beside, intervals)):
        write_json(file, content)
    say(f"{device} in 16 bits for {given.system} written to {given.json}, intervals to {beside}")
    say(f"  from {intervals['source']}")
    return 0


def _versions(given: argparse.Namespace) -> int:
    """1 where there is but one version of everything."""
    found = [
        one
        for name in given.device
        for one in changes(load_atlas(), load_atlas().device(name), given.engine)
    ]
    if given.json:
        write_json(given.json, [one.told for one in found])
    for line in map(str, found) if found else ["no engine was timed there in two versions"]:
        say(line)
    return 0 if found else 1


def _list() -> None:
    for device in load_atlas().devices:
        groups = [group for group in load_atlas().groups if group.device == device]
        names = (
            {getattr(group, name) for group in groups} for name in ("kind", "precision", "engine")
        )
        kinds, numbers, engines = (", ".join(sorted(each)) for each in names)
        say(f"{device}: {kinds} in {numbers}; {engines}")
