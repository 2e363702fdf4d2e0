"""Every analysis begins with its answer: on the terminal, as JSON, and with a short table."""

import contextlib
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.cli.output import FigureOutput, emit_result
from analysis.options import Options, Selection
from analysis.registry import ANALYSES
from analysis.result import AnalysisAnswer, Result
from paradnn.core.errors import ConfigError
from tests.analysis.planted import grid, runs

KEYS = [
    "answer",
    "verdict",
    "ratio",
    "low",
    "high",
    "ahead",
    "points",
    "basis",
    "limits",
    "rows",
]


def _two_platforms() -> pd.DataFrame:
    """Return 36 points on two devices in one sweep; A runs at 1 to 3 times the speed of B."""
    points = grid(nodes=(64, 256, 1024), layers=(4, 8, 16), batches=(64, 256, 1024, 4096))
    size = points["model.nodes"].to_numpy(dtype=float)
    random = np.random.default_rng(1)
    factors = {"A": (size / 64) ** 0.4, "B": np.ones(len(points))}
    sides = []
    for position, (device, factor) in enumerate(factors.items()):
        rate = 1e6 / size * factor * random.lognormal(0, 0.02, len(points))
        minutes = pd.Series(2 * np.arange(len(points)) + position)
        times = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(minutes, unit="min")
        columns = {
            "examples_per_second": rate,
            "parameters": size**2,
            "device": device,
            "environment_id": device,
            "sweep_id": "s",
            "start_time": times,
            "outcome": "ok",
        }
        sides.append(runs(points, **columns))
    return pd.concat(sides, ignore_index=True)


def _channel() -> pd.DataFrame:
    from tests.analysis import test_channel

    transports = [test_channel.channel_runs(), test_channel.channel_runs("grpc", 5.0, seed=4)]
    return pd.concat(transports, ignore_index=True)


def _latency() -> pd.DataFrame:
    from tests.analysis import test_latency

    rates = (100.0, 300.0, 500.0, 700.0, 900.0)
    return pd.DataFrame([test_latency.queue(rate, batch=1) for rate in rates])


def _trainings() -> pd.DataFrame:
    from tests.analysis import test_time_to_accuracy

    rows = [
        test_time_to_accuracy.training_run(seconds + seed, seed, batch_size)
        for batch_size, seconds in ((64, 20.0), (256, 10.0))
        for seed in range(5)
    ]
    return pd.DataFrame(rows)


def _software() -> pd.DataFrame:
    from tests.analysis import test_software

    return test_software.with_unique_ids(
        test_software.version("2.9"), test_software.version("2.16", 2.0)
    )


def _scaling() -> pd.DataFrame:
    from tests.analysis import test_scaling

    return test_scaling.planted(0.1, 0.05)


def _profiled() -> pd.DataFrame:
    shares = np.random.default_rng(4).dirichlet(np.arange(1, 15), 36)
    points = grid(nodes=(64, 256, 1024), layers=(4, 8, 16), batches=(64, 256, 1024, 4096))
    return runs(points, **{f"op_share.Operation{n}": shares[:, n] for n in range(14)})


def _compare_published() -> pd.DataFrame:
    frame = _two_platforms()
    return frame[frame["device"] == "A"].assign(precision="float32", mode="train", compile="graph")


def _extrapolated() -> pd.DataFrame:
    from tests.analysis import test_extrapolate

    return test_extrapolate.models("Host", 7.0)


def _frontier() -> pd.DataFrame:
    from tests.analysis import test_frontier

    return test_frontier.three_devices()


def _history() -> pd.DataFrame:
    from tests.analysis import test_changes

    return test_changes.history(5, step=1.3)


def _overhead() -> pd.DataFrame:
    from tests.analysis import test_overhead

    return test_overhead.points().assign(device="D", environment_id="e")


def _memory() -> pd.DataFrame:
    from tests.analysis import test_memory

    return test_memory.planted()


def _infeed() -> pd.DataFrame:
    from tests.analysis import test_infeed

    return test_infeed.planted()


def _roofline() -> pd.DataFrame:
    from tests.analysis import test_roofline

    return test_roofline.planted().assign(point_id=lambda table: table["run_id"])


def _sensitivity() -> pd.DataFrame:
    from tests.analysis import test_sensitivity

    return test_sensitivity.sweep(np.random.default_rng(1))


def _predict() -> pd.DataFrame:
    from tests.analysis import test_predict

    return test_predict.sample_runs(test_predict.factorial_runs(), 30)


def _figure_of_merit() -> pd.DataFrame:
    from tests.analysis import test_figure_of_merit

    return test_figure_of_merit.two_machines(error=0.04)


def _whatif() -> pd.DataFrame:
    from tests.analysis import test_whatif

    return test_whatif.planted()


#: Per analysis: a function that returns runs with a known answer, options, and a part of the
#: answer.
CASES: dict[str, tuple[Callable[[], pd.DataFrame], dict[str, Any], str]] = {
    "compare-published": (_compare_published, {"platform_of": ("V100",)}, "V100"),
    "boxplot": (
        _two_platforms,
        {"metric": "examples_per_second", "by": ("device",)},
        "is highest for A",
    ),
    "breakdown": (_profiled, {}, "The largest part of the profiled step is Operation13"),
    "changes": (_history, {}, "The throughput changed by +"),
    "channel": (_channel, {}, "tcp latency has the shortest start-up"),
    "claims": (_two_platforms, {}, "14 claims: "),
    "compare": (_two_platforms, {"a": "device=A", "b": "device=B"}, "x faster than B (95% CI "),
    "extrapolate": (
        _extrapolated,
        {"to": ("H200",)},
        "No step of 2 points can be predicted on another device",
    ),
    "figure-of-merit": (
        _figure_of_merit,
        {"baseline": "Titan"},
        "x as fast as Titan",
    ),
    "frontier": (_frontier, {"price": ("A=36", "B=3.6", "C=36")}, "of 3 choices"),
    "heatmap": (_two_platforms, {"y": "nodes"}, "Throughput ranges from"),
    "infeed": (_infeed, {}, ", wait for their input for more than"),
    "latency": (_latency, {}, "its knee is at 500/s"),
    "memory": (_memory, {}, "tried points ran out of memory, the smallest fc "),
    "overhead": (_overhead, {}, "Measuring takes 5"),
    "parameters": (_two_platforms, {}, "models have from 4.1k (fc) to 1.05M (fc)"),
    "predict": (_predict, {"metric": "step_time_ms"}, "of 34 points is predicted from 30 measured"),
    "roofline": (_roofline, {}, "Memory bandwidth limits 14 of 31 points"),
    "runs": (_two_platforms, {}, "72 runs of fc on 2 devices, all measured."),
    "scaling": (_scaling, {}, "fc runs on 8 devices at "),
    "sensitivity": (_sensitivity, {"log_scale": "none"}, "depends most on layers"),
    "software": (_software, {}, ""),
    "speedup": (_two_platforms, {"a": ("device=A",), "b": ("device=B",)}, "x faster than B"),
    "whatif": (_whatif, {"bandwidth": 2.0}, "2x the memory bandwidth would make 60 points of made"),
    "time-to-accuracy": (_trainings, {}, "reaches its target in 12 s"),
}


def emit(result: Result, **outputs: Any) -> None:
    """Print a result like the command line."""
    emit_result(
        "analysis",
        result,
        frame=pd.DataFrame(),
        selection=Selection(),
        output=FigureOutput(**outputs),
        command_line=[],
    )


def printed_lines(result: Result, capsys: pytest.CaptureFixture[str], **outputs: Any) -> list[str]:
    """Return the lines that the command line prints for a result."""
    emit(result, **outputs)
    return capsys.readouterr().out.splitlines()


def parse_strict_json(text: str) -> Any:
    """Parse JSON; reject NaN and Infinity, which Python accepts although JSON does not."""

    def reject(constant: str) -> float:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=reject)


@dataclass(frozen=True)
class Printed:
    """What the command line printed for planted runs, as text and as JSON.

    Attributes:
        result: Result of the analysis.
        expected: Text that the answer must contain.
        lines: Printed lines.
        document: Parsed JSON.
    """

    result: Result
    expected: str
    lines: list[str]
    document: dict[str, Any]

    def paragraphs(self) -> list[list[str]]:
        """Return the lines of each paragraph: the answer with its limits, then the tables."""
        return [block.splitlines() for block in "\n".join(self.lines).split("\n\n")]


@pytest.fixture(scope="module", params=list(ANALYSES))
def printed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Printed:
    """Run an analysis on its planted runs and print the result."""
    frame, options, expected = CASES[request.param]
    path = tmp_path_factory.mktemp("answer") / "answer.json"
    arguments: Options = ANALYSES[request.param].options(**options)
    result = ANALYSES[request.param](frame(), arguments)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        emit(result, json=str(path))
    return Printed(
        result=result,
        expected=expected,
        lines=out.getvalue().splitlines(),
        document=parse_strict_json(path.read_text(encoding="utf-8")),
    )


def test_the_first_line_is_the_answer(printed: Printed) -> None:
    first = printed.lines[0]
    answer = printed.result.answer

    assert answer is not None
    assert first == printed.document["answer"]
    assert first.removesuffix(".") == answer.sentence.removesuffix(".")
    assert printed.result.text().startswith(first)
    assert printed.expected in first


def test_at_most_five_limits_follow_the_answer(printed: Printed) -> None:
    beginning = printed.paragraphs()[0]
    limits = [line for line in beginning[1:] if not line.endswith(": see --all")]

    assert len(limits) <= 5


def test_tables_are_short_and_fit_100_columns(printed: Printed) -> None:
    blocks = printed.paragraphs()[1:]
    table = [line for block in blocks for line in block]

    assert max(map(len, table)) <= 100
    assert len(table) <= 20 + 4 * len(blocks)


def test_json_has_every_row_and_column_of_the_table(printed: Printed) -> None:
    found = printed.document
    table = printed.result.table

    assert list(found) == KEYS
    assert len(found["rows"]) == len(table)
    assert all(list(row) == [*map(str, table)] for row in found["rows"])


def test_interval_and_verdict_agree_with_the_ratio(printed: Printed) -> None:
    found = printed.document

    if None not in (found["ratio"], found["low"], found["high"]):
        assert found["low"] <= found["ratio"] <= found["high"]
    if found["verdict"] == "faster":
        assert found["ratio"] > 1
    elif found["verdict"] == "slower":
        assert found["ratio"] < 1


def test_the_option_all_prints_lines_and_columns_that_the_short_form_omits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = pd.DataFrame({f"column {n}": np.arange(30.0) + n for n in range(20)})
    table["device"] = "D"
    answer = AnalysisAnswer(sentence="It is so.")
    sentences = [f"Sentence {n}." for n in range(9)]
    result = Result(sources=(), numbers=table, answer=answer, sentences=sentences)

    short = printed_lines(result, capsys)
    long = printed_lines(result, capsys, all=True)

    assert short[:7] == ["It is so.", *sentences[:5], "4 more lines: see --all"]
    assert short[-2:] == [
        "The same in all rows: device D",
        "10 more rows, 10 more columns (column 10 and 9 more): "
        "--all prints them, --csv FILE writes them",
    ]
    assert len(short) == 7 + 1 + 1 + 20 + 2
    assert long[:10] == ["It is so.", *sentences]
    assert long[11].split()[-3:] == ["column", "19", "device"]
    assert len(long) == 10 + 1 + 1 + 30


def test_json_has_no_value_that_strict_parsers_reject(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame(
        {
            "point": ["a", None],
            "count": pd.array([1, pd.NA], dtype="Int64"),
            "rate": [math.inf, math.nan],
            "is_bound": [True, False],
            "at": [pd.Timestamp("2026-01-31 12:00", tz="UTC"), pd.NaT],
            "runs": [["r1", "r2"], []],
        }
    )
    answer = AnalysisAnswer(sentence="It is.", ratio=2.0, low=-math.inf, high=math.nan, points=1)
    result = Result(sources=(), numbers=table, answer=answer, caveats=("Take care.",))

    found = parse_strict_json("\n".join(printed_lines(result, capsys, json="-")))

    assert found == {
        "answer": "It is.",
        "verdict": None,
        "ratio": 2.0,
        "low": "-Infinity",
        "high": None,
        "ahead": None,
        "points": 1,
        "basis": "",
        "limits": ["Take care."],
        "rows": [
            {
                "point": "a",
                "count": 1,
                "rate": "Infinity",
                "is_bound": True,
                "at": "2026-01-31T12:00:00+00:00",
                "runs": ["r1", "r2"],
            },
            {
                "point": None,
                "count": None,
                "rate": None,
                "is_bound": False,
                "at": None,
                "runs": [],
            },
        ],
    }


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        pytest.param(
            {"json": "-", "csv": "-"},
            "--json=-: --csv already writes to standard output; name a file for one of them",
            id="JSON and CSV on standard output",
        ),
        pytest.param(
            {"json": "nowhere/a.json"}, "--json=.*: there is no folder nowhere", id="no folder"
        ),
    ],
)
def test_outputs_that_cannot_be_written_are_rejected_before_anything_is_printed(
    outputs: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = AnalysisAnswer(sentence="It is.")
    result = Result(sources=(), numbers=pd.DataFrame({"a": [1]}), answer=answer)

    with pytest.raises(ConfigError, match=message):
        printed_lines(result, capsys, **outputs)

    assert capsys.readouterr().out == ""
