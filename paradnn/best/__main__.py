"""`python -m paradnn.best`: find the best settings for a model on this machine."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from paradnn.best.arguments import make_parser as make_parser
from paradnn.best.arguments import read_arguments
from paradnn.cli.command import run_command
from paradnn.cli.program import program
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted, in_seconds

if TYPE_CHECKING:
    from paradnn.best.objective import WinnerLimits
    from paradnn.best.race import Candidate
    from paradnn.best.report import RaceAnswer
    from paradnn.config.point import Point
    from paradnn.config.settings import Settings
    from paradnn.config.tasks import SweepInfo
    from paradnn.session.design import Summary

#: Maximum number of candidates. The first round measures all of them, and takes some seconds for
#: each.
_MAX_CANDIDATES = 500
_TIME = re.compile(r"(\d+(?:\.\d+)?) *(us|ms|s)?")
_MS_PER_UNIT = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@program
def main() -> int:
    """Find the best of the combinations of settings that the command line gives.

    Returns:
        The exit code: 0 if the race is decided, 1 if it is undecided or had a problem, 2 for wrong
        input, 130 after an interruption.
    """
    options = read_arguments(sys.argv[1:])

    def task(config: DictConfig) -> int:
        from paradnn.config.tasks import read_task

        settings, points, info = read_task(config)
        assert info is not None, "a multirun has a sweep"
        return _race(options, settings, points, info)

    # Hydra composes and checks all candidates at once, like a multirun.
    sys.argv[1:] = ["-m", *options.overrides, "hydra/sweeper=race"]
    return run_command(task)


def _race(
    options: argparse.Namespace, settings: Settings, points: Sequence[Point], info: SweepInfo
) -> int:
    """Measure and record the candidates, and report the best one.

    Args:
        options: The options of the command line.
        settings: The settings of the session.
        points: The valid candidates. A candidate is one combination of settings.
        info: The sweep in which the measurements are recorded, with its invalid candidates.

    Returns:
        The exit code of `main`.
    """
    from paradnn.best.objective import objective_of
    from paradnn.best.race import Race
    from paradnn.best.report import RaceAnswer, epoch_examples
    from paradnn.session.session import follow_design
    from paradnn.statistics.elimination import EliminationRule

    limits = _limits(options, points)
    settings, points = _with_price(options, settings, points)
    if limits.memory_bytes is not None:
        points = [_with_memory_limit(point, limits.memory_bytes) for point in points]
    candidates = _candidates(options, points, info)
    race = Race(
        info.sweep_id,
        candidates,
        objective_of(options.goal, points),
        limits=limits,
        rule=EliminationRule(margin=options.margin),
        seconds=60 * options.minutes,
    )
    answer = RaceAnswer(
        race,
        epoch=epoch_examples(points, options.epoch),
        currency=settings.price.currency or "",
    )
    race.conclude = answer.conclusion
    families = "+".join(dict.fromkeys(point.model.name for point in points))
    info = replace(info, name=f"best of {counted(len(candidates), 'candidate')}, {families}")
    # The measurement of peak performance takes a minute, and the answer does not need it.
    settings = replace(settings, ceilings=False)
    with contextlib.ExitStack() as stack:
        if options.quiet:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        summary = follow_design(race, settings, info)
    return _report(answer, summary, options)


def _report(answer: RaceAnswer, summary: Summary, options: argparse.Namespace) -> int:
    """Write and print the answer of a race.

    Args:
        answer: The best candidate, and how certain it is.
        summary: Counts, duration and place of the recorded measurements.
        options: The options of the command line.

    Returns:
        The exit code of `main`.
    """
    from paradnn.best.report import print_answer
    from paradnn.store.files import write_json

    document = answer.document() | {
        "interrupted": summary.interrupted,
        "seconds": summary.seconds,
        "run": summary.parent,
    }
    if options.json:
        write_json(options.json, document)
    # The answer already names the candidates that were not measured, so the counts omit them.
    counts = replace(summary, total=summary.measured).counts()
    closing = [
        f"{counted(len(answer.race.candidates), 'candidate')}, "
        f"{counted(answer.race.rounds, 'round')}, "
        f"{counted(len(summary.rows), 'measurement')} in {in_seconds(summary.seconds)}: "
        f"{counts}. Run {summary.parent} in {summary.where}"
    ]
    print_answer(answer, closing, is_quiet=options.quiet)
    if summary.problem:
        print(f"error: {summary.problem}", file=sys.stderr)
    if summary.interrupted:
        print("interrupted; all finished measurements are recorded", file=sys.stderr)
        return 130
    return int(answer.verdict != "best" or bool(summary.problem))


def _candidates(
    options: argparse.Namespace, points: Sequence[Point], info: SweepInfo
) -> list[Candidate]:
    """Return the distinct candidates, including invalid candidates.

    Args:
        options: The options of the command line.
        points: The valid combinations of settings. Some may be equal.
        info: The sweep, with the invalid combinations.

    Raises:
        ConfigError: If there is only one candidate, there are too many, or a value is invalid in
            every combination.
    """
    from paradnn.best.race import (
        Candidate,
        axis_values,
        is_combination_invalid,
        label_candidates,
    )
    from paradnn.config.identity import digest, point_request

    # An axis may contain a value twice, or two values with the same meaning.
    distinct = list({digest(point_request(point)): point for point in points}.values())
    configs = [point_request(point) for point in distinct]
    configs += [dict(each.config) for each in info.invalid_points]
    if len(configs) < 2:
        raise ConfigError(
            "candidates",
            " ".join(options.words),
            "is only one candidate",
            "give a key several values, such as compile=graph,xla",
        )
    if len(configs) > _MAX_CANDIDATES:
        raise ConfigError(
            "candidates",
            f"{len(configs):,}",
            f"exceeds the maximum of {_MAX_CANDIDATES} candidates",
            "give fewer values, or set sweep.sample=100",
        )
    axes = axis_values(configs, options.axes)
    for number, invalid in enumerate(info.invalid_points):
        if not is_combination_invalid(len(distinct) + number, axes, valid=len(distinct)):
            raise invalid.error
    known_points = [*distinct, *(None for _ in info.invalid_points)]
    labels = label_candidates(axes, known_points)
    candidates = [
        Candidate(label, point) for label, point in zip(labels, known_points, strict=True)
    ]
    for candidate, invalid in zip(candidates[len(distinct) :], info.invalid_points, strict=True):
        candidate.exclude("invalid", str(invalid.error))
    return candidates


def _limits(options: argparse.Namespace, points: Sequence[Point]) -> WinnerLimits:
    """Return the limits that --memory and --p99 set.

    Raises:
        ConfigError: If a limit is invalid, or the candidates do not measure the limited metric.
    """
    from paradnn.best.objective import WinnerLimits
    from paradnn.config.identity import point_request
    from paradnn.core.schema import memory_bytes

    memory = None
    if options.memory is not None:
        memory = memory_bytes(options.memory, "--memory")
        if memory is None:
            raise ConfigError(
                "--memory", options.memory, "is not a size", "write a size such as 8GiB"
            )
    p99_ms = None
    if options.p99 is not None:
        match = _TIME.fullmatch(options.p99.strip())
        p99_ms = float(match[1]) * _MS_PER_UNIT[match[2] or "ms"] if match else 0.0
        if not p99_ms > 0:
            raise ConfigError("--p99", options.p99, "is not a time", "write a time such as 20ms")
        if any(point_request(point).get("mode") == "train" for point in points):
            raise ConfigError(
                "--p99",
                options.p99,
                "limits the time of single steps, which is recorded only in inference",
                "add mode=inference, or omit --p99",
            )
    return WinnerLimits(memory, p99_ms)


def _with_memory_limit(point: Point, limit: int) -> Point:
    """Return a point whose memory limit is at most `limit` bytes.

    A point that does not run on a CPU is unchanged, because it has no memory limit.
    """
    from paradnn.core.schema import memory_bytes

    if point.platform.name != "cpu":
        return point
    own_limit = memory_bytes(point.measure.memory_limit, "measure.memory_limit") or limit
    return replace(point, measure=replace(point.measure, memory_limit=str(min(limit, own_limit))))


def _with_price(
    options: argparse.Namespace, settings: Settings, points: Sequence[Point]
) -> tuple[Settings, Sequence[Point]]:
    """Apply --price, and check that `--for cost` has a price.

    Returns:
        The settings and the points with the given price.

    Raises:
        ConfigError: If the price is invalid, or `--for cost` has no price.
    """
    from paradnn.config.price import load_prices, positive_price

    if options.price is not None:
        if re.fullmatch(r"[-+.\de]+", options.price):
            price = positive_price("--price", options.price, options.price, "--price 1.5")
            points = [
                replace(point, platform=replace(point.platform, price_per_hour=price))
                for point in points
            ]
        else:
            settings = replace(settings, price=load_prices(options.price, "--price"))
    has_price = settings.price.per_hour or any(
        point.platform.price_per_hour is not None for point in points
    )
    if options.goal == "cost" and not has_price:
        raise ConfigError(
            "--for", "cost", "needs a price, but none is known", "add --price, as in --price 1.5"
        )
    return settings, points


if __name__ == "__main__":
    sys.exit(main())
