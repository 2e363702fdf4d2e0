"""`paradnn best`: find the best settings for a model on this machine.

  paradnn best model=lstm batch_size=16,64,256 compile=graph,xla precision=float32,bfloat16
  paradnn best model=fc mode=inference batch_size=1 framework=tensorflow,jax --for latency
  paradnn best model=fc batch_size=64,256,1024 --memory 2GiB --minutes 2
  paradnn best model=resnet50 compile=graph,xla --for cost --price 1.5

Every word is an override of python -m paradnn.train (its --help lists them). Keys with several
values are the axes, and every combination of their values is a candidate. Invalid combinations are
reported and dropped.

Every round measures all remaining candidates once, each in a fresh process. A candidate that can no
longer be the best is dropped. The race ends once it is 95% certain that no other candidate is
better than the leader by more than the margin. All measurements are runs of one sweep.

Exit code: 0 the race is decided; 1 the race is undecided, or no candidate could be measured;
2 wrong input; 130 interrupted.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from paradnn.cli.overrides import is_axis, split_overrides
from paradnn.cli.parser import Parser, number, share
from paradnn.core.errors import ConfigError, ParadnnError

#: Default of --minutes.
MINUTES = 10.0
#: Default of --margin.
MARGIN = 0.05
_GOALS = ("throughput", "latency", "memory", "cost")
#: Keys that a user cannot set in a race -> the reason or the remedy in the error message.
_RESERVED_KEYS = {
    **dict.fromkeys(
        ("replicate", "measure.processes", "measure.relative_interval", "resume", "retry"),
        "omit it, because each round measures the remaining candidates again, in fresh processes",
    ),
    **dict.fromkeys(
        ("sweep.design", "sweep.points", "sweep.error"),
        "omit it, because paradnn best chooses the measurements and decides when to stop",
    ),
    "sweep.minutes": "use --minutes",
    "hydra/sweeper": "omit it, because paradnn best chooses the sweeper",
}


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line of `paradnn best`.

    Args:
        arguments: The words of the command line, without the name of the program.

    Returns:
        The options. `overrides` is a list of single overrides, including the default protocol;
        `axes` is a list of the keys with several values.

    Raises:
        ParadnnError: If the command line is invalid.
        SystemExit: After --help.
    """
    options = make_parser().parse_intermixed_args(list(arguments))
    overrides = split_overrides([word for word in options.words if word != "--"])
    keys = [override.partition("=")[0].lstrip("+~") for override in overrides]
    for key, override in zip(keys, overrides, strict=True):
        if key in _RESERVED_KEYS:
            value = override.partition("=")[2]
            raise ConfigError(key, value, "cannot be set with paradnn best", _RESERVED_KEYS[key])
    if not overrides:
        raise ParadnnError(
            "name the candidates, such as model=fc compile=graph,xla; "
            "paradnn best --help has examples"
        )
    if "measure" not in keys:
        overrides.insert(0, "measure=quick")
    options.overrides = overrides
    options.axes = [
        override.partition("=")[0].lstrip("+~") for override in overrides if is_axis(override)
    ]
    return options


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn best`."""
    parser = Parser(
        "paradnn best",
        __doc__,
        usage="%(prog)s [options] OVERRIDE [OVERRIDE ...]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="OVERRIDE",
        help="key=value, or key=value,value for an axis of the candidates",
    )
    parser.add_argument(
        "--for",
        dest="goal",
        choices=_GOALS,
        default="throughput",
        help="what to optimize; latency is the time of one step or request (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=number("--minutes"),
        default=MINUTES,
        metavar="M",
        help="time limit: start no measurement that would end later (default: %(default)g)",
    )
    parser.add_argument(
        "--margin",
        type=share("--margin"),
        default=MARGIN,
        metavar="SHARE",
        help="candidates whose difference is at most this share count as equal (default: 5%%)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="exclude candidates whose peak memory is larger, as in 8GiB",
    )
    parser.add_argument(
        "--p99",
        metavar="TIME",
        help="exclude candidates with a larger 99th percentile of the latency, as in 20ms; "
        "needs mode=inference",
    )
    parser.add_argument(
        "--price",
        metavar="PRICE",
        help="price of an hour of this machine, the name of a table in conf/price, or a YAML file",
    )
    parser.add_argument(
        "--epoch",
        type=number("--epoch", int, 1),
        metavar="N",
        help="number of examples per epoch, to report the time per epoch",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the answer and all candidates to FILE"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print only the answer, without table and progress"
    )
    return parser
