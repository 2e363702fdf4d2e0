"""`paradnn ask`: how long a step of a model would take on devices that you do not have.

  paradnn ask --device H200 model=gpt2 batch_size=8 precision=bfloat16 mode=inference
  paradnn ask --device H100 --device A100 --price H100=3.5 --price A100=1.8 model=llama3-8b precision=bfloat16 mode=generate batch_size=1,8,64     compare machines
  paradnn ask --device H100 model=llama3-70b precision=bfloat16 mode=generate devices=4,8 parallel=tensor     several devices
  paradnn ask --device H100 model=gpt2 precision=bfloat16 batch_size=64 --tokens 1e10     time and cost of a job
  paradnn ask --device 'H200; B200' model=own model.build=nets.py:make_net precision=bfloat16     your own model
  paradnn ask --device H200 --engine vLLM --versions         how fast the versions of an engine are
  paradnn ask --device here model=fc model.nodes=512         from the runs of this machine in the tracking store
  paradnn ask --device 'Tesla V100' model=fc batch_size=32   from kernels of the store that ran on this device
  paradnn ask --device 'Tesla V100' --from T4 model=fc       from few such kernels, with a similar device as prior

The answer is a sentence, its limits, and a table of times with 95% intervals, throughput, cost and
memory. In addition to the keys of `paradnn train`, devices=2,4,8 selects several devices, which
share each batch (parallel=data) or each product of a transformer (parallel=tensor). If the store
has kernels (timed operations) of a device, its times are estimated from these; measure them with
paradnn train -m experiment=kernels. The exit code is 1 if no time can be estimated.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.atlas import load as load_atlas
from analysis.atlas import version_key
from analysis.atlas.changes import HardwareChange, read_change
from analysis.atlas.estimate import StepTimeEstimate, estimate_step_time
from analysis.atlas.offer_table import offer_result
from analysis.atlas.offers import Offer, rank_offers
from analysis.atlas.own import load_kernels, own_atlas
from analysis.atlas.parallel import PARALLEL
from analysis.atlas.points import format_point, model_from_row, model_label
from analysis.atlas.systems import SYSTEMS, system_file
from analysis.atlas.versions import version_changes
from analysis.cli.output import FigureOutput, emit_result
from analysis.lazy import np, pd
from analysis.options import Selection
from analysis.store.lazy_step_inputs import step_inputs
from paradnn.cli.console import say
from paradnn.cli.parser import Parser, number
from paradnn.cli.program import program
from paradnn.config.price import load_prices, positive_price
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.layers import COMPUTE_BYTES
from paradnn.core.words import counted, did_you_mean
from paradnn.store.files import write_json

_HERE = "here"
#: Separates several devices in one argument. The name of a CPU has a comma before its cores.
_DEVICE_SEPARATOR = re.compile(r"\s*(?:;|,(?! \d+ cores?$))\s*")
#: Smallest number of runs of this machine from which `--device here` predicts.
_MIN_RUNS_HERE = 3
#: Keys of a point that this command parses itself, since the driver rejects some of their values.
_ASK_KEYS = ("precision", "devices", "parallel")
_MAX_DEVICES = 100_000


def make_parser() -> Parser:
    """Return the argument parser of `paradnn ask`."""
    parser = Parser("paradnn ask", __doc__)
    add = parser.add_argument
    add("points", nargs="*", metavar="KEY=VALUE", help="the point, as for `paradnn train`")
    add(
        "--device",
        action="append",
        metavar="NAME",
        help="device from --list, device with kernels in the store, or `here` for this machine; "
        "repeatable",
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
        help="a similar device, whose timings are the prior if the store has few kernels",
    )
    add(
        "--price",
        action="append",
        default=[],
        metavar="DEVICE=PER_HOUR",
        help="price of an hour of one device, or the name of a table in conf/price; repeatable",
    )
    add("--tokens", type=number("--tokens"), metavar="N", help="state time and cost of N tokens")
    add(
        "--examples",
        type=number("--examples"),
        metavar="N",
        help="state time and cost of N examples",
    )
    add(
        "--epochs",
        type=number("--epochs"),
        metavar="N",
        help="with --examples: the number of passes over them",
    )
    add(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="also estimate for a changed device, such as bandwidth=2 or peak=2,memory=1.5; "
        "repeatable",
    )
    add(
        "--list",
        action="store_true",
        help="list the devices with published timings, and their kernels",
    )
    add(
        "--versions",
        action="store_true",
        help="compare each version of an engine with the previous one",
    )
    add(
        "--system",
        choices=[*SYSTEMS],
        metavar="NAME",
        help=f"write the system file of a simulator to --json: {', '.join(SYSTEMS)}",
    )
    add(
        "--store",
        metavar="URI",
        help="store of your runs and kernels (default: MLFLOW_TRACKING_URI, else the store of this "
        "checkout)",
    )
    add("--json", metavar="FILE", help="write answer and rows as JSON, - for standard output")
    add("--csv", metavar="FILE", help="write the rows as CSV, - for standard output")
    add(
        "--figure",
        action="append",
        default=[],
        metavar="FILE",
        help="draw cost or throughput against step time as PNG, SVG or PDF; repeatable",
    )
    add("--all", action="store_true", help="print all rows, sources and caveats")
    return parser


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `paradnn ask`.

    Args:
        arguments: The command-line arguments; None for those of the process.

    Returns:
        The exit code: 0; 1 if no time can be estimated; 2 for invalid input.
    """
    options = make_parser().parse_intermixed_args(arguments)
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
    _check_job(options)
    changes = [HardwareChange(), *map(read_change, options.what_if)]
    if len(changes) > 1 and _HERE in options.device:
        raise ConfigError(
            "--what-if",
            options.what_if[0],
            "cannot be combined with '--device here', which estimates from runs, not from kernels",
            "use python -m analysis whatif",
        )
    kernels = load_kernels(options.store)
    offers = []
    for row in rows:
        model = model_from_row(row, "model")
        for device, change in itertools.product(options.device, changes):
            estimate = _answer(row, device, kernels, options, change)
            offer = Offer(
                row=row,
                model=model,
                label=model_label(model),
                estimate=estimate,
                price=_price(prices, device, estimate.devices),
            )
            offers.append(replace(offer, amount=_job_amount(options, offer)))
    result = offer_result(rank_offers(offers), everything=options.all)
    output = FigureOutput(
        csv=options.csv,
        json=options.json,
        all=options.all,
        figure=tuple(options.figure),
    )
    emit_result(
        "ask", result, frame=pd.DataFrame(), selection=Selection(), output=output, command_line=()
    )
    if any(offer.seconds is not None for offer in offers):
        return 0
    return 1


def _price(prices: Mapping[str, float], device: str, devices: int) -> float | None:
    """Return the price per hour of all devices together; None if it is unknown.

    Args:
        prices: Price per hour of one device, by name of the device.
        device: Name of the device.
        devices: Number of devices.
    """
    if device not in prices:
        return None
    return devices * prices[device]


def _check_job(options: argparse.Namespace) -> None:
    """Check that the size of the job is neither ambiguous nor incomplete.

    Args:
        options: The parsed command line.

    Raises:
        ConfigError: If both tokens and examples are given, or epochs without examples.
    """
    if options.tokens and options.examples:
        raise ConfigError(
            "--tokens",
            f"{options.tokens:g}",
            "cannot be combined with --examples, which also states the size of the job",
            "omit one of them",
        )
    if options.epochs and not options.examples:
        raise ConfigError(
            "--epochs",
            f"{options.epochs:g}",
            "needs --examples, the number of examples in an epoch",
            "for example, add --examples 1281167",
        )


def _job_amount(options: argparse.Namespace, offer: Offer) -> float | None:
    """Return the size of the job in the unit of an offer, tokens or examples.

    Args:
        options: The parsed command line.
        offer: A model configuration on a device.

    Returns:
        The size; None if the command line states no job.

    Raises:
        ConfigError: If tokens are requested for a model that is counted in examples.
    """
    if options.tokens:
        if offer.unit != "token":
            raise ConfigError(
                "--tokens",
                f"{options.tokens:g}",
                f"does not apply to {offer.label}, whose work is counted in examples",
                "use --examples N instead",
            )
        return float(options.tokens)
    if not options.examples:
        return None
    amount = float(options.examples) * (options.epochs or 1.0)
    if offer.is_generation:
        return amount * int(offer.row["generate.tokens"])
    return amount * offer.units_per_example


def _check_engine(options: argparse.Namespace) -> None:
    """Replace the engine in the options with the atlas's spelling, and check the version.

    Args:
        options: The parsed command line, which is changed in place.

    Raises:
        ConfigError: If the atlas has no such engine, or no such version of it.
    """
    groups = load_atlas().groups
    if options.engine is not None:
        names = {group.engine.lower(): group.engine for group in groups}
        if options.engine.lower() not in names:
            hint = did_you_mean(options.engine, names.values())
            raise ConfigError(
                "--engine",
                options.engine,
                "is not an engine with published timings",
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
            "has no published timings of matrix products",
            f"choose one of {known}",
        )


def _answer(
    row: Mapping[Any, Any],
    device: str,
    kernels: pd.DataFrame,
    options: argparse.Namespace,
    change: HardwareChange,
) -> StepTimeEstimate:
    """Estimate a step from the user's own measurements of the device, else from the atlas.

    Own measurements are the runs of this machine for the device `here`, and kernels in the store
    for any other device.

    Args:
        row: The point, as a mapping from configuration keys to values.
        device: Name of the device on the command line.
        kernels: The kernels in the user's store, as `load_kernels` returns them.
        options: The parsed command line.
        change: How the device is changed.
    """
    if device == _HERE:
        return estimate_from_runs(row, options.store)
    missing = ""
    if kernels["device"].eq(device).any():
        try:
            atlas = own_atlas(kernels, device, row, options.similar)
            return estimate_step_time(row, device, atlas=atlas, change=change)
        except InsufficientData as problem:
            missing = str(problem)
    elif options.similar:
        raise ConfigError(
            "--from",
            options.similar,
            f"needs kernels that you measured on {device}, but the store has none",
            "measure some: paradnn train -m experiment=kernels",
        )
    try:
        return estimate_step_time(row, device, options.engine, options.version_of, change=change)
    except ConfigError:
        if missing:
            point = format_point(row, model_from_row(row))
            return StepTimeEstimate(device, point, why=missing)
        raise


def _read_points(words: Sequence[str]) -> list[Mapping[Any, Any]]:
    """Return the points (combinations of values) that a command line names, in its order.

    The keys "precision", "devices" and "parallel" are parsed here, all other keys as in `paradnn
    train`. The precision may be one that only published timings have, such as a precision of
    weights. The devices need not exist on this machine.

    Args:
        words: KEY=VALUE words.

    Raises:
        ConfigError: If no point is named, or a value is invalid.
    """
    driver_words = [word for word in words if word.partition("=")[0] not in _ASK_KEYS]
    if not driver_words:
        raise ConfigError(
            "KEY=VALUE", "(none)", "no model is given", "for example, write model=gpt batch_size=8"
        )
    precisions = _read_precisions(words)
    device_counts = _read_device_counts(words)
    parallels = _read_parallels(words)
    if "parallel" in _keys(words) and device_counts == [1]:
        raise ConfigError(
            "parallel",
            ",".join(parallels),
            "needs several devices",
            "for example, add devices=8",
        )
    # The driver's default order is random.
    table = step_inputs.points_from_words(["sweep.order=given", *driver_words], is_measured=False)
    rows = [_with_following_prompt(row, driver_words) for row in table.to_dict("records")]
    return [
        {**row, "precision": precision, "devices": devices, "parallel": parallel}
        for row in rows
        for precision in precisions or [row["precision"]]
        for devices in device_counts
        for parallel in (parallels if devices > 1 else [""])
    ]


def _keys(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in words]


def _values(words: Sequence[str], key: str) -> list[str]:
    """Return the distinct values of a key, in the order of the command line.

    Args:
        words: KEY=VALUE words, with several values separated by commas.
        key: The key whose values are returned.
    """
    values = [
        value
        for word in words
        if word.startswith(f"{key}=")
        for value in word.partition("=")[2].split(",")
    ]
    return list(dict.fromkeys(values))


def _read_device_counts(words: Sequence[str]) -> list[int]:
    counts = []
    for text in _values(words, "devices"):
        if not text.isdecimal() or not 1 <= int(text) <= _MAX_DEVICES:
            problem = f"is not a whole number from 1 to {_MAX_DEVICES:,}"
            raise ConfigError("devices", text, problem, "for example, write devices=8")
        counts.append(int(text))
    return counts or [1]


def _read_parallels(words: Sequence[str]) -> list[str]:
    parallels = _values(words, "parallel")
    for name in parallels:
        if name not in PARALLEL:
            hint = did_you_mean(name, PARALLEL)
            raise ConfigError(
                "parallel",
                name,
                "is not a way to divide a step among devices",
                f"{hint}choose one of {', '.join(PARALLEL)}",
            )
    return parallels or ["data"]


def _read_precisions(words: Sequence[str]) -> list[str]:
    precisions = _values(words, "precision")
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


def _with_following_prompt(row: Mapping[Any, Any], words: Sequence[str]) -> Mapping[Any, Any]:
    """Return the point, with a prompt that fills the sequence if the point is a generation.

    The prompt changes only if the command line sets model.sequence_length but not generate.prompt.
    With the default prompt, the sequence length would have no effect.

    Args:
        row: The point, as a mapping from configuration keys to values.
        words: KEY=VALUE words of the command line.
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
    """Return the price per hour of each device, by its name on the command line.

    Later values override earlier ones. Table entries for devices that are not on the command line
    are ignored.

    Args:
        options: The parsed command line.

    Raises:
        ConfigError: If a price is not a positive number, or belongs to no device of the command
            line.
    """
    devices = {name.casefold(): name for name in options.device}
    prices = {}
    for text in options.price:
        name, sign, price = text.rpartition("=")
        if not sign:
            table = load_prices(text, "--price").per_hour
            priced = {key: value for key, value in table.items() if key.casefold() in devices}
            if not priced:
                raise ConfigError(
                    "--price",
                    text,
                    f"is a table without a price of {', '.join(options.device)}; it has prices of "
                    f"{', '.join(table) or 'nothing'}",
                    "name a different table, or write DEVICE=PER_HOUR",
                )
            prices.update({devices[key.casefold()]: float(priced[key]) for key in priced})
            continue
        if name.casefold() not in devices:
            hint = did_you_mean(name, options.device)
            raise ConfigError(
                "--price", name, "is not one of the --device names", f"{hint}add --device '{name}'"
            )
        prices[devices[name.casefold()]] = positive_price("--price", text, price, "H200=3.5")
    return prices


def estimate_from_runs(
    row: Mapping[Any, Any], store: str | None, excluded_run: str = ""
) -> StepTimeEstimate:
    """Estimate the time of a step on this machine from the runs of a store.

    Args:
        row: The point to estimate, as a mapping from configuration keys to values.
        store: Address of the store; None for the default one.
        excluded_run: Id of a run to ignore; empty to use all runs.

    Returns:
        The estimate for the device of the newest measured run, from all runs on that device. If
        there are too few runs, the estimate states the reason.
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
            why=f"the store has {counted(len(runs), 'run')} of this machine, and an estimate needs "
            f"{_MIN_RUNS_HERE}",
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
        extrapolated = (f"no run of {family} was measured on this machine",)
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


def _write_system_file(options: argparse.Namespace) -> int:
    """Write the system file of a simulator, and the intervals of its numbers to a second file.

    Args:
        options: The parsed command line.

    Returns:
        The exit code 0.

    Raises:
        ConfigError: If the command line has several devices, no file, or a point.
    """
    name, *others = options.device
    if others or options.json is None or options.points:
        raise ConfigError(
            "--system",
            options.system,
            "needs a single --device, --json FILE, and no KEY=VALUE",
            f"for example, write --device '{name}' --system {options.system} --json FILE",
        )
    device = load_atlas().device_name(name)
    system, intervals = system_file(options.system, load_atlas(), device)
    file = Path(options.json)
    intervals_file = file.with_name(f"{file.stem}-intervals.json")
    write_json(file, system)
    write_json(intervals_file, intervals)
    say(
        f"{device} in 16 bits for {options.system} written to {file}, intervals to {intervals_file}"
    )
    say(f"  from {intervals['source']}")
    return 0


def _compare_versions(options: argparse.Namespace) -> int:
    """Print how the versions of engines differ in speed.

    Args:
        options: The parsed command line.

    Returns:
        The exit code: 0, or 1 if no engine was timed in two versions.
    """
    atlas = load_atlas()
    changes = [
        change
        for name in options.device
        for change in version_changes(atlas, atlas.device_name(name), options.engine)
    ]
    if options.json:
        write_json(Path(options.json), [change.as_json() for change in changes])
    for change in changes:
        say(str(change))
    if not changes:
        say(f"no engine was timed in two versions on {', '.join(options.device)}")
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
