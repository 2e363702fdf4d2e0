"""Names of protocols, and analyses of the largest homogeneous group of runs.

Each answer prints the commands for the other groups.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from analysis.cli import main
from analysis.store.load import load
from paradnn.config.identity import protocol_id
from paradnn.config.paths import CONFIG
from paradnn.config.point import Measure
from paradnn.core.schema import read
from paradnn.store.runs import PUBLISHED, protocol_name
from tests.analysis.conftest import Writer, copy_of, fc

QUICK, STANDARD = (
    protocol_id(
        read(Measure, yaml.safe_load((CONFIG / "measure" / f"{name}.yaml").read_text()), "measure")
    )
    for name in ("quick", "standard")
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """Return the URI of a heterogeneous store, as after a first hour of use.

    It contains 16 points of protocol quick, one of protocol standard, and one of protocol standard
    in another environment.
    """
    folder = tmp_path_factory.mktemp("mixed")
    uri = blank_store(folder / "mlflow.db")
    writer = Writer(uri, "paradnn", folder / "artifacts")
    phases = {"phase_measure_seconds": 1.0, "phase_start_seconds": 0.5, "overhead_seconds": 0.1}
    work = {
        "flops_per_second": 1e9,
        "arithmetic_intensity": 3.0,
        "flops_per_step": 1e6,
        "flops_utilization": 0.1,
    }
    peaks = {"peak_flops_per_second": 1e11, "peak_bytes_per_second": 1e10, "parameters": 1e4}
    for layers in (1, 2, 4, 8):
        for position, batch in enumerate((16, 32, 64, 128)):
            speed = 1000.0 * (position + 1) / layers + 7 * layers * position
            metrics = {
                "examples_per_second": speed,
                **phases,
                **work,
                **peaks,
                "flops_utilization": speed / 1e5,
            }
            writer.run(fc(layers, batch), metrics, protocol_id=QUICK)
    metrics = {"examples_per_second": 99.0, **phases, **work, **peaks}
    writer.run(fc(4, 256), metrics, protocol_id=STANDARD)
    writer.run(
        fc(4, 256),
        metrics,
        protocol_id=STANDARD,
        environment_id="env-b",
        version__tensorflow="2.20.0",
    )
    return uri


USED_GROUP = re.compile(
    r"Of these 18 runs, 16 of one protocol and environment were used: .*protocol quick\. Not used"
)
ANALYSES = {"heatmap": ["--y", "layers"], "overhead": []}


def test_a_protocol_is_named_after_its_file() -> None:
    assert [protocol_name(identity) for identity in (QUICK, STANDARD, PUBLISHED)] == [
        "quick",
        "standard",
        "published",
    ]
    assert protocol_name("0123456789abcdef") == "01234567"


@pytest.mark.parametrize("name", ANALYSES)
def test_the_largest_group_is_analyzed_and_commands_for_the_others_are_printed(
    name: str, mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [name, *ANALYSES[name]]
    assert main([*command, "--protocol", "quick", "--store", mixed, "--all"]) == 0

    expected = capsys.readouterr().out.splitlines()
    assert main([*command, "--store", mixed, "--all"]) == 0

    lines = capsys.readouterr().out.splitlines()
    begin = next(number for number, line in enumerate(lines) if USED_GROUP.match(line))
    commands = [
        line.partition(": python -m analysis ")[2]
        for line in lines
        if ": python -m analysis " in line
    ]
    notice = lines[begin : begin + 1 + len(commands)]
    answer = [line for line in lines if line not in notice]

    assert answer == expected, "the answer must be that of one group alone"
    assert len(commands) == 2
    assert {word for line in commands for word in shlex.split(line)} >= {
        name,
        "--protocol",
        "standard",
    }

    for line in commands:
        assert main([*shlex.split(line)]) in (0, 2), (
            "the command must be valid, although one run may be too few"
        )
        assert "--protocol" not in capsys.readouterr().err


def test_pooled_or_selected_runs_are_all_used(
    mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (["--pool"], ["--protocol", "quick"], ["--where", "protocol=quick"]):
        assert main(["boxplot", "--by", "family", "--store", mixed, *options]) == 0
        assert "were used" not in capsys.readouterr().out


def test_runs_are_all_used_if_grouped_by_protocol_and_environment(
    mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metric = ["--metric", "examples_per_second"]
    command = ["boxplot", "--by", "protocol,environment_id", *metric, "--csv", "-"]

    assert main([*command, "--store", mixed]) == 0

    out = capsys.readouterr()
    assert len(out.out.strip().splitlines()) == 4
    assert "were used" not in out.out + out.err


def test_the_log_names_the_excluded_groups(mixed: str, tmp_path: Path) -> None:
    uri = copy_of(mixed, tmp_path)
    assert main(["overhead", "--log", "--store", uri]) == 0

    [notice] = load(uri, kind="analysis")["set_aside"]
    assert USED_GROUP.match(notice)


def test_an_error_states_whether_it_concerns_only_the_largest_group(
    mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sensitivity", "--where", "batch_size=256", "--store", mixed]) == 2

    error = capsys.readouterr().err
    assert "heterogeneous" not in error
    assert "fc" in error

    selection = ["--where", "batch_size>=128", "--where", "model.layers>=4"]
    assert main(["sensitivity", *selection, "--store", mixed]) == 2

    error_of_part = capsys.readouterr().err
    assert "these runs are heterogeneous: " in error_of_part
    assert "or pool them with --pool. The largest homogeneous part fails too: " in error_of_part


def test_a_smaller_group_is_analyzed_if_the_largest_lacks_the_metric(
    writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    for batch in (16, 32, 64, 128):
        writer.run(fc(1, batch), {"examples_per_second": 9.0}, protocol_id=QUICK)
    for layers in (1, 2):
        writer.run(fc(layers, 16), {"latency_p99_ms": 3.0}, protocol_id=STANDARD)

    assert (
        main(["heatmap", "--y", "layers", "--metric", "latency_p99_ms", "--store", writer.uri]) == 0
    )

    notice = r"Of these 6 runs, 2 of one protocol and environment were used: .*protocol standard\. Not used"
    assert re.search(notice, capsys.readouterr().out)


def test_the_error_of_an_unknown_protocol_lists_the_known_ones(
    mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--protocol", "quikc", "--store", mixed]) == 2

    expected = (
        "error: --protocol=quikc: no run has this protocol; did you mean quick? these runs have "
        "quick (16), standard (2)\n"
    )
    assert capsys.readouterr().err == expected


def test_a_comparison_uses_the_protocol_of_most_runs(
    writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    for protocol, batches in ((QUICK, range(16, 129, 16)), (STANDARD, (16, 32))):
        for batch in batches:
            for factor, mode in ((1.0, "graph"), (2.0, "xla")):
                point = fc(2, batch) | {"compile": mode}
                writer.run(point, {"examples_per_second": batch * factor}, protocol_id=protocol)
    assert (
        main(["compare", "compile=xla", "compile=graph", "--csv", "-", "--store", writer.uri]) == 0
    )

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + 8
    assert re.search(
        r"16 of one protocol( and environment)? were used: .*protocol quick\. Not used",
        captured.err,
    )
    assert len(load(writer.uri)) == 20
