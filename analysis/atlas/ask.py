"""`paradnn ask`: how long a step of a model would take on devices that you do not have.

  paradnn ask --device H200 model=gpt batch_size=8 precision=bfloat16 mode=inference
  paradnn ask --device H200 --device "L40S" --price H200=3.5 --price L40S=0.9 model=llama precision=fp8 mode=inference
  paradnn ask --device 'H200; B200' model=own model.build=nets.py:make_net precision=bfloat16     your own model
  paradnn ask --device H200 --engine vLLM --versions         what versions of an engine changed there
  paradnn ask --device here model=fc model.nodes=512         from the runs of this machine in the tracking store
  paradnn ask --device 'Tesla V100' model=fc batch_size=32   from kernels of the store that ran on this device
  paradnn ask --device 'Tesla V100' --from T4 model=fc       from a few of these, with a similar device as prior

A device whose kernels are in the store (paradnn train -m experiment=kernels) is answered from
these. The answer is a time with a 95% interval, its sources, and what of it is extrapolated; or
that the time is not known, and why. The exit code is 1 if no device has an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.atlas import load as load_atlas
from analysis.atlas import version_key
from analysis.atlas.estimate import StepTimeEstimate, estimate_step_time
from analysis.atlas.own import load_kernels, own_atlas
from analysis.atlas.points import format_point, model_from_row
from analysis.atlas.systems import SYSTEMS, system_file
from analysis.atlas.versions import version_changes
from analysis.format import format_seconds
from analysis.lazy import np, pd
from analysis.store.lazy_step_inputs import step_inputs
from paradnn.cli.console import say
from paradnn.cli.parser import Parser
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.layers import COMPUTE_BYTES
from paradnn.core.words import did_you_mean
from paradnn.store.files import write_json

_HERE = "here"
#: Separates several devices in one argument. The name of a CPU has a comma before its cores.
_DEVICE_SEPARATOR = re.compile(r"\s*(?:;|,(?! \d+ cores?$))\s*")
#: Runs of this machine that a prediction from them takes.
_MIN_RUNS_HERE = 3
#: Parts of a step below this share are not printed.
_MIN_SHARE = 0.01


def make_parser() -> Parser:
    """Make the parser of the command."""
    parser = Parser("paradnn ask", __doc__)
    add = parser.add_argument
    add("points", nargs="*", metavar="KEY=VALUE", help="the point, as for `paradnn train`")
    add(
        "--device",
        action="append",
        metavar="NAME",
        help="repeatable; a device that --list shows or that the store has; `here` is this machine",
    )
    add(
        "--engine",
        metavar="NAME",
        help="vLLM, SGLang, TensorRT-LLM or PyTorch (default: the first of these with timings)",
    )
    add("--version-of", metavar="VERSION", help="version of the engine (default: the newest)")
    add(
        "--from",
        dest="similar",
        metavar="NAME",
        help="a similar device, if the store has few kernels of this one",
    )
    add("--price", action="append", default=[], metavar="DEVICE=PER_HOUR", help="repeatable")
    add("--list", action="store_true", help="list the devices and what was timed there")
    add(
        "--versions",
        action="store_true",
        help="compare each version of an engine with the one before",
    )
    add(
        "--system",
        choices=[*SYSTEMS],
        metavar="NAME",
        help=f"write the system file of a simulator to --json: {', '.join(SYSTEMS)}",
    )
    add("--store", metavar="URI", help="store of your runs and kernels (default: as for analysis)")
    add("--json", type=Path, metavar="FILE", help="write the answer; a list if there are several")
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, 1 if nothing is known, or 2 for wrong input."""
    options = make_parser().parse_args(arguments)
    options.device = _split_devices(options.device or ())
    if options.list:
        _print_devices()
        return 0
    if not options.device:
        raise ConfigError(
            "--device", "(none)", "is missing", "name one, such as --device H200; --list shows them"
        )
    _check_engine(options)
    if options.system:
        return _write_system_file(options)
    if options.versions:
        return _compare_versions(options)
    return _answer_points(options)


def _split_devices(arguments: Sequence[str]) -> list[str]:
    names = (name for text in arguments for name in _DEVICE_SEPARATOR.split(text))
    return list(dict.fromkeys(name for name in names if name))


def _answer_points(options: argparse.Namespace) -> int:
    prices = _read_prices(options)
    rows = _read_points(options.points)
    kernels = load_kernels(options.store)
    answers = []
    for row in rows:
        of_point = [
            _with_cost(_answer(row, device, kernels, options), device, prices)
            for device in options.device
        ]
        answers.append(of_point)
    written = list(itertools.chain.from_iterable(answers))
    if options.json:
        write_json(options.json, written[0] if len(written) == 1 else written)
    for of_point in answers:
        for answer in of_point:
            _print_answer(answer)
        known = [answer for answer in of_point if answer["seconds"] is not None]
        if len(known) > 1:
            _print_ranking(known, name_point=len(rows) > 1)
    if any(answer["seconds"] is not None for answer in written):
        return 0
    return 1


def _check_engine(options: argparse.Namespace) -> None:
    """Spell the engine as the atlas does.

    Raises:
        ConfigError: The atlas has no such engine, or no such version of it.
    """
    groups = load_atlas().groups
    if options.engine is not None:
        names = {group.engine.lower(): group.engine for group in groups}
        if options.engine.lower() not in names:
            hint = did_you_mean(options.engine, names.values())
            raise ConfigError(
                "--engine",
                options.engine,
                "is in no table",
                f"{hint}choose one of {', '.join(names.values())}",
            )
        options.engine = names[options.engine.lower()]
    versions = {
        group.version
        for group in groups
        if group.kind == "gemm" and options.engine in (None, group.engine)
    }
    if options.version_of not in (None, *versions):
        known = ", ".join(sorted(versions, key=version_key))
        raise ConfigError(
            "--version-of",
            options.version_of,
            "has no table of products",
            f"choose one of {known}",
        )


def _answer(
    row: Mapping[Any, Any], device: str, kernels: pd.DataFrame, options: argparse.Namespace
) -> StepTimeEstimate:
    """Estimate the step from the device's kernels in the store if there are enough, else from the
    atlas.
    """
    if device == _HERE:
        return estimate_from_runs(row, options.store)
    missing = ""
    if kernels["device"].eq(device).any():
        try:
            atlas = own_atlas(kernels, device, row, options.similar)
            return estimate_step_time(row, device, atlas=atlas)
        except InsufficientData as problem:
            missing = str(problem)
    elif options.similar:
        raise ConfigError(
            "--from",
            options.similar,
            f"complements kernels of {device}, and the store has none",
            "measure some: paradnn train -m experiment=kernels",
        )
    try:
        return estimate_step_time(row, device, options.engine, options.version_of)
    except ConfigError:
        if missing:
            point = format_point(row, model_from_row(row))
            return StepTimeEstimate(device, point, why=missing)
        raise


def _read_points(words: Sequence[str]) -> list[Mapping[Any, Any]]:
    """The points that a command line names.

    The driver's grammar reads all words but the precision. A precision may be one of published
    weights alone, which the driver does not know.

    Args:
        words: KEY=VALUE words.

    Returns:
        Rows in ascending order of their values.
    """
    driver_words = [word for word in words if not word.startswith("precision=")]
    if not driver_words:
        raise ConfigError(
            "KEY=VALUE", "(none)", "names no point", "write for example model=gpt batch_size=8"
        )
    precisions = _read_precisions(words)
    table = step_inputs.points_from_words(driver_words)
    rows = [
        _with_following_prompt(row, driver_words)
        for row in sorted(table.to_dict("records"), key=_sort_key)
    ]
    return [
        {**row, "precision": precision}
        for row in rows
        for precision in precisions or [row["precision"]]
    ]


def _read_precisions(words: Sequence[str]) -> list[str]:
    precisions = [
        name
        for word in words
        if word.startswith("precision=")
        for name in word.partition("=")[2].split(",")
    ]
    known = sorted({*COMPUTE_BYTES, *(group.precision for group in load_atlas().groups)})
    for name in precisions:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                "precision",
                name,
                "was not timed on any device",
                f"{hint}choose one of {', '.join(known)}",
            )
    return precisions


def _sort_key(row: Mapping[Any, Any]) -> list[tuple[bool, float, str]]:
    """Numbers in ascending order, then texts in alphabetical order."""
    key = []
    for value in row.values():
        try:
            key.append((False, float(value), ""))
        except (TypeError, ValueError):
            key.append((True, 0.0, str(value)))
    return key


def _with_following_prompt(row: Mapping[Any, Any], words: Sequence[str]) -> Mapping[Any, Any]:
    """The point of a generation, with a prompt that fills the sequence.

    If the command line sets model.sequence_length and not generate.prompt, the default prompt would
    hide the length that it asks for.
    """
    names = {word.partition("=")[0] for word in words}
    if (
        row.get("mode") != "generate"
        or "model.sequence_length" not in names
        or "generate.prompt" in names
    ):
        return row
    prompt = int(row["model.sequence_length"]) - int(row["generate.tokens"])
    return {**row, "generate.prompt": prompt}


def _read_prices(options: argparse.Namespace) -> dict[str, float]:
    """Prices per hour by device."""
    prices = dict(_read_price(text) for text in options.price)
    for name in sorted(prices):
        if name not in options.device:
            raise ConfigError(
                "--price", name, "is not one of the devices", f"add --device '{name}'"
            )
    return prices


def _read_price(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    with contextlib.suppress(ValueError):
        if name and 0 < float(value) < 1e9:
            return name, float(value)
    raise ConfigError("--price", text, "is not a price", "write DEVICE=PER_HOUR, such as H200=3.5")


def _with_cost(
    answer: StepTimeEstimate, device: str, prices: Mapping[str, float]
) -> dict[str, Any]:
    """The fields of an answer, with the price per hour and the cost of a step."""
    price = prices.get(device)
    cost = None
    if price is not None and answer.seconds is not None:
        cost = price / 3600 * answer.seconds
    return {**vars(answer), "price_per_hour": price, "cost": cost}


def estimate_from_runs(
    row: Mapping[Any, Any], store: str | None, excluded_run: str = ""
) -> StepTimeEstimate:
    """Estimate the step on this machine from the runs of the store.

    Args:
        row: The point.
        store: Address of the store; None for the default one.
        excluded_run: Id of a run that is not used.

    Returns:
        The estimate for the device of the newest measured run, from all runs on that device.
    """
    from analysis.store.load import load
    from paradnn.forecast.predict import StepTimeModel

    point = format_point(row, model_from_row(row))
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
    runs = runs[runs["device"].eq(device) & runs["run_id"].ne(excluded_run)]
    if len(runs) < _MIN_RUNS_HERE:
        return StepTimeEstimate(
            device,
            point,
            why=f"the store has {len(runs)} of the {_MIN_RUNS_HERE} runs that an estimate needs",
        )
    seconds = runs["step_time_ms"].to_numpy(dtype="float64") / 1e3
    rates = step_inputs.device_rates(runs, seconds)
    model = StepTimeModel.fit(
        step_inputs.make_step_table(runs, rates), seconds, step_inputs.stated_run_noise(runs)
    )
    environment = runs["environment_id"].iloc[-1]
    question = pd.DataFrame([{**row, "environment_id": environment, "sweep_id": "asked"}])
    prediction = model.predict(step_inputs.make_step_table(question, rates))
    low, high = prediction.interval()
    family = row["family"]
    family_runs = int(runs["family"].eq(family).sum())
    extrapolated: tuple[str, ...] = ()
    if not family_runs:
        extrapolated = (f"no run of {family} was measured here",)
    return StepTimeEstimate(
        device=device,
        point=point,
        seconds=float(np.exp(prediction.mean[0])),
        low=float(np.exp(low[0])),
        high=float(np.exp(high[0])),
        sources=(f"{len(runs)} runs on {device} in the store, {family_runs} of {family}",),
        extrapolated=extrapolated,
        precision=str(row["precision"]),
    )


def _print_answer(answer: Mapping[str, Any]) -> None:
    about = f"{answer['point']} on {answer['device']}"
    if answer["seconds"] is None:
        say(f"{about}: not known: {answer['why']}")
        return
    is_generation = answer["prompt"] is not None
    unit = "token" if is_generation else "step"
    interval = f"{format_seconds(answer['low'])} to {format_seconds(answer['high'])}"
    say(f"{about}: {format_seconds(answer['seconds'])} per {unit}, {interval}")
    for line in _answer_details(answer, unit):
        say(f"  {line}")


def _answer_details(answer: Mapping[str, Any], unit: str) -> Iterator[str]:
    if answer["prompt"] is not None:
        yield (
            f"prompt of {answer['prompt_tokens']:,} tokens, read in "
            f"{format_seconds(answer['prompt'])}; {answer['generated_tokens']:,} generated tokens"
        )
    if len(answer["parts"]) > 1:
        parts = sorted(answer["parts"].items(), key=lambda part: -part[1])
        shares = ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= _MIN_SHARE)
        yield f"of it {shares}"
    if answer["cost"] is not None:
        yield (
            f"at {answer['price_per_hour']:g} per hour a million {unit}s cost "
            f"{1e6 * answer['cost']:.3g}"
        )
    for source in answer["sources"]:
        yield f"from {source}"
    for note in answer["notes"]:
        yield f"note: {note}"
    for note in answer["extrapolated"]:
        yield f"extrapolated: {note}"


def _print_ranking(known: Sequence[Mapping[str, Any]], *, name_point: bool) -> None:
    """Print the best device of a point.

    Devices are ranked by cost if all prices are known, else by time. Devices whose intervals
    overlap are not ranked.

    Args:
        known: Answers of one point that have a time, two or more.
        name_point: Whether the sentence names the point.
    """
    unpriced = [answer["device"] for answer in known if answer["cost"] is None]
    key = "seconds" if unpriced else "cost"
    unit = "step" if known[0]["prompt"] is None else "token"
    superlative = "fastest" if unpriced else f"cheapest per {unit}"
    prefix = f"{known[0]['point']}: " if name_point else ""
    if unpriced and len(unpriced) < len(known):
        say(f"{prefix}ranked by time, since {' and '.join(unpriced)} has no --price")
    first, second = sorted(known, key=lambda answer: float(answer[key]))[:2]
    first_high = first[key] * first["high"] / first["seconds"]
    second_low = second[key] * second["low"] / second["seconds"]
    if first_high < second_low:
        factor = second[key] / first[key]
        say(f"{prefix}{first['device']} is the {superlative}, by a factor of {factor:.3g}")
    else:
        say(
            f"{prefix}{first['device']} may be the {superlative}; "
            f"its interval overlaps with that of {second['device']}"
        )
    if not unpriced:
        best = " or ".join(answer["device"] for answer in known if not _is_dominated(answer, known))
        say(f"{prefix}no other device is both faster and cheaper than {best}")


def _is_dominated(answer: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another device is both faster and cheaper."""
    return any(
        other["cost"] < answer["cost"] and other["seconds"] < answer["seconds"] for other in known
    )


def _write_system_file(options: argparse.Namespace) -> int:
    """Write the system file of a simulator, and the intervals of its numbers to a second file."""
    name, *others = options.device
    if others or options.json is None or options.points:
        raise ConfigError(
            "--system", options.system, "takes one --device, a file and no point", "add --json FILE"
        )
    device = load_atlas().device_name(name)
    system, intervals = system_file(options.system, load_atlas(), device)
    intervals_file = options.json.with_name(f"{options.json.stem}-intervals.json")
    write_json(options.json, system)
    write_json(intervals_file, intervals)
    say(
        f"{device} in 16 bits for {options.system} written to {options.json}, "
        f"intervals to {intervals_file}"
    )
    say(f"  from {intervals['source']}")
    return 0


def _compare_versions(options: argparse.Namespace) -> int:
    """Print how versions of engines differ; returns 1 if every engine has one version."""
    atlas = load_atlas()
    changes = [
        change
        for name in options.device
        for change in version_changes(atlas, atlas.device_name(name), options.engine)
    ]
    if options.json:
        write_json(options.json, [change.as_json() for change in changes])
    for change in changes:
        say(str(change))
    if not changes:
        say("no engine was timed there in two versions")
        return 1
    return 0


def _print_devices() -> None:
    atlas = load_atlas()
    for device in atlas.devices:
        groups = [group for group in atlas.groups if group.device == device]
        kinds = ", ".join(sorted({group.kind for group in groups}))
        precisions = ", ".join(sorted({group.precision for group in groups}))
        engines = ", ".join(sorted({group.engine for group in groups}))
        say(f"{device}: {kinds} in {precisions}; {engines}")
