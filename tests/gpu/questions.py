"""Checks of a GPU machine, the most informative first; `python3 -m tests.gpu` runs them.

Each check reports a line with details, fails, or is skipped with a reason.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from paradnn.platform.specifications import find_hardware
from tests.gpu.board import above_idle, read_board, sampled_power, throttled
from tests.gpu.commands import Run, Session

ReportAnswer = Callable[..., None]

#: Expression for the names of the GPUs that a framework sees, by framework.
SEEN = {
    "jax": "[device.device_kind for device in jax.devices() if device.platform == 'gpu']",
    "torch": "[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]",
    "tensorflow": "[device.name for device in tensorflow.config.list_physical_devices('GPU')]",
}
REAL = ("resnet50", "densenet121", "mobilenet", "squeezenet", "retinanet")
#: Options of a small point of each family. It uses a small part of a GPU, or a second of a CPU.
SIZES = {
    "fc": "model.nodes: 512, batch_size: 256",
    **dict.fromkeys(("residual", "bottleneck"), "model.image_size: 32, batch_size: 16"),
    **dict.fromkeys(("rnn", "lstm", "gru"), "model.embedding_size: 100, batch_size: 64"),
    **dict.fromkeys(("gpt", "transformer"), "model.layers: 1, model.width: 64, batch_size: 4"),
    "vit": "model.layers: 1, model.image_size: 64, batch_size: 4",
    **dict.fromkeys(REAL, "model.image_size: 64, batch_size: 2"),
}
SMALL = ("fc", "residual", "lstm", "gpt", "vit")
OTHERS = ("bottleneck", "rnn", "gru", "transformer")
BRIEF = ("measure.min_seconds=0.2", "measure.warmup_seconds=0.5", "measure.max_seconds=4")
SHORT = ("measure=quick", "measure.processes=1", *BRIEF)


def grids(*families: str) -> str:
    """Return the override that sweeps a small point of each family."""
    points = ",".join(f"{{model: {family}, {SIZES[family]}}}" for family in families)
    return f"sweep.grids=[{points}]"


def summary(run: Run) -> dict[str, Any]:
    """Return the details of a run for the result file."""
    metrics = (
        "step_time_ms",
        "compile_seconds",
        "profile_unexplained_share",
        "peak_device_memory_bytes",
    )
    return {
        "outcome": run.outcome,
        "reason": run.reason,
        "operations": len(run.operations),
        "slowest": [row[:1] for row in run.operations[:3]],
        **{name: run.metrics.get(name) for name in (*metrics, "energy_per_step_joules")},
        **{name: run.tags.get(name) for name in ("profile", "checks", "steady")},
    }


def test_frameworks_see_the_device(machine: Session, report_answer: ReportAnswer) -> None:
    """Report the versions of every framework and of Keras, and the devices."""
    lines_by_framework = {}
    for name in machine.frameworks:
        code = f"import json, {name}, keras; print(json.dumps([{name}.__version__, keras.__version__, {SEEN[name]}]))"
        # Without preallocation, the check works even if another process uses most of the memory.
        environ = {**os.environ, "KERAS_BACKEND": name, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        completed = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            env=environ,
        )
        gpus = []
        if completed.returncode:
            lines_by_framework[name] = (
                f"{name} FAILS: {(completed.stderr.strip().splitlines() or ['no message'])[-1]}"
            )
        else:
            version, keras, gpus = json.loads(completed.stdout.splitlines()[-1])
            lines_by_framework[name] = (
                f"{name} {version}, Keras {keras}, {', '.join(gpus) or 'no GPU'}"
            )
        if completed.returncode or (machine.platform == "gpu" and not gpus):
            machine.blind.add(name)
    report_answer("; ".join(lines_by_framework.values()), lines_by_framework)
    assert not machine.blind, "; ".join(lines_by_framework.values())


def test_the_idle_board_reports_its_state(machine: Session, report_answer: ReportAnswer) -> None:
    """Report clocks, power, memory and the reasons for low clocks."""
    fields = _board(machine)
    reasons = throttled(fields.get("throttle_bits", "0x0"))
    line = (
        f"{fields.get('name')}, driver {fields.get('driver')}, "
        f"{fields.get('sm_mhz')} of {fields.get('sm_max_mhz')} MHz, "
        f"{fields.get('temperature_c')} C, "
        f"{fields.get('power_w')} of {fields.get('power_limit_w')} W, "
        f"{fields.get('memory_used_mib')} of {fields.get('memory_total_mib')} MiB in use"
    )
    report_answer(f"{line}{', limited by: ' + ', '.join(reasons) if reasons else ''}", fields)


def sweep_case(framework: str, compile: str, families: tuple[str, ...], seconds: int) -> Any:
    return pytest.param(
        framework,
        compile,
        families,
        marks=pytest.mark.seconds(seconds),
        id=f"{framework}-{compile}",
    )


SWEEPS = [
    sweep_case("jax", "graph", SMALL, 40),
    sweep_case("torch", "eager", SMALL, 30),
    sweep_case("torch", "graph", ("fc", "gpt"), 40),
    sweep_case("tensorflow", "graph", SMALL, 60),
]
MORE_SWEEPS = [
    sweep_case("torch", "eager", (*OTHERS, *REAL), 50),
    sweep_case("jax", "graph", OTHERS, 40),
    sweep_case("jax", "graph", REAL, 80),
]


@pytest.mark.parametrize(("framework", "compile", "families"), SWEEPS)
def test_a_point_of_each_family_is_measured_and_profiled(
    machine: Session,
    report_answer: ReportAnswer,
    framework: str,
    compile: str,
    families: tuple[str, ...],
) -> None:
    """Report the median share of a step that the profile does not explain."""
    machine.need(framework)
    chosen = (f"framework={framework}", f"compile={compile}", "measure.timeout=100")
    runs = machine.measured(120.0, grids(*families), *chosen, *SHORT)
    if all(run.outcome == "unavailable" for run in runs):
        pytest.skip(runs[0].reason or "unavailable")
    bad = [
        f"{run.family} {run.outcome}: {run.reason or run.tags.get('profile')}, {len(run.operations)} operations"
        for run in runs
        if run.outcome != "ok" or not run.operations
    ]
    shares = [run.metrics.get("profile_unexplained_share", 1.0) for run in runs]
    line = f"{len(runs)} of {len(families)} points, no operation in {statistics.median(shares):.0%} of the step"
    report_answer(line, {run.name: summary(run) for run in runs})
    assert not bad, "; ".join(bad[:6])
    # A machine may be too slow for all points. A point that hangs has the outcome timeout.
    if len(runs) < len(families):
        pytest.skip(f"time limit after {len(runs)} of {len(families)} points, all ok")


@pytest.mark.seconds(25)
def test_profiles_with_xla_command_buffers_list_operations(
    machine: Session, report_answer: ReportAnswer
) -> None:
    """Compare a profile with command buffers, whose kernels have no names, and one without."""
    machine.gpu_only()
    machine.need("jax")
    rows = {}
    for label, flag in (("default", None), ("without", "--xla_gpu_enable_command_buffer=")):
        env = [f'+framework.env.XLA_FLAGS="{flag}"'] if flag else []
        (run,) = machine.measured(60.0, grids("fc"), "framework=jax", *env, *SHORT)
        rows[label] = summary(run)
    line = "; ".join(
        f"{label}: {row['outcome']} {row['reason'] or ''}, {row['operations']} operations, step "
        f"{row['step_time_ms']} ms, unexplained {row['profile_unexplained_share']}"
        for label, row in rows.items()
    )
    report_answer(line, rows)
    assert all(row["operations"] for row in rows.values()), line


@pytest.mark.seconds(20)
@pytest.mark.parametrize("framework", ["jax", "torch", "tensorflow"])
def test_out_of_memory_is_an_outcome(
    machine: Session, report_answer: ReportAnswer, framework: str
) -> None:
    """Measure a point that needs several times the device's memory, and a small point after it.

    On a CPU, `measure.memory_limit` replaces the memory of the device.
    """
    machine.need(framework)
    limits: tuple[str, ...] = ("measure.predict_oom=false",)
    if machine.platform == "gpu":
        expected_outcome = "oom_device"
        memory = _memory(_board(machine))
    else:
        expected_outcome = "oom_host"
        memory = 3 * 2.0**30
        limits += ("measure.memory_limit=3GiB",)
    nodes = 4096
    batch = int(memory / (4 * nodes))  # each activation is as large as the memory
    grid = (
        f"sweep.grids=[{{model: fc, model.input_size: 8, model.nodes: {nodes}, batch_size: {batch}}},"
        "{model: fc, model.input_size: 8, model.nodes: 64, batch_size: 64}]"
    )
    if framework == "torch":
        compile_option = "compile=eager"
    else:
        compile_option = "compile=graph"
    runs = machine.measured(
        90.0, grid, "sweep.order=given", f"framework={framework}", compile_option, *limits, *SHORT
    )
    line = [f"{run.outcome}: {run.reason or ''}"[:160] for run in runs]
    report_answer("; ".join(line))
    assert sorted(run.outcome for run in runs) == sorted([expected_outcome, "ok"]), line


@pytest.mark.seconds(30)
@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_ceilings_are_a_share_of_the_data_sheet(
    machine: Session, report_answer: ReportAnswer, framework: str
) -> None:
    """Report product rates and memory bandwidth, and compare them with the data sheet."""
    machine.need(framework)
    command = machine.ceilings(framework)
    machine.ended(command, 120.0)
    runs = command.runs()
    assert runs, command.last_line()
    assert runs[0].outcome == "ok", runs[0].reason
    metrics = runs[0].metrics
    device = runs[0].tags.get("device", "")
    peaks = {key.rpartition(".")[2]: value for key, value in metrics.items() if "peak_flops" in key}
    bandwidth = metrics.get("peak_bytes_per_second", 0.0)
    rates = ", ".join(f"{precision} {rate / 1e12:.3g}" for precision, rate in peaks.items())
    line = f"{rates} TFLOP/s, memory {bandwidth / 1e9:.0f} GB/s"
    sheet = find_hardware(device)
    shares = {}
    if sheet:
        shares = {key: peaks[key] / peak for key, peak in sheet.peak_flops.items() if key in peaks}
        shares |= {"memory": bandwidth / sheet.bandwidth} if sheet.bandwidth else {}
    ratios = ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
    if sheet:
        comparison = f"shares of the data sheet: {ratios}"
    else:
        comparison = f"the data sheet of {device} is unknown"
    report_answer(f"{line}; {comparison}", metrics)
    # float32 is omitted, since JAX and TensorFlow multiply in TF32, which is faster than float32.
    assert all(0.5 <= share <= 1.05 for key, share in shares.items() if key != "float32"), ratios


@pytest.mark.seconds(20)
def test_energy_agrees_with_the_power_of_nvidia_smi(
    machine: Session, report_answer: ReportAnswer
) -> None:
    """Report power from the counter and from nvidia-smi, and what limited the clocks under load."""
    before = _board(machine)
    if "power_w" not in before:
        pytest.skip("nvidia-smi reports no power")
    idle = float(before["power_w"])
    large = "sweep.grids=[{model: fc, model.nodes: 8192, batch_size: 4096}]"
    long = ("measure=quick", "measure.profile=false", "measure.min_seconds=6")
    with sampled_power() as power:
        (run,) = machine.measured(
            90.0, large, f"framework={machine.framework()}", "precision=bfloat16", *long
        )
    after = read_board()
    details = {"before": before, "after": after, "run": summary(run), "samples": power}
    assert run.outcome == "ok", run.reason
    joules = run.metrics.get("energy_per_step_joules")
    assert joules is not None, f"no energy: {run.tags.get('energy_source')}"
    counter_watts = joules / run.metrics["step_time_ms"] * 1e3
    smi_watts = statistics.median(above_idle(power, 1.2 * idle) or [float("nan")])
    line = f"{counter_watts:.0f} W by the counter, {smi_watts:.0f} W by nvidia-smi, "
    line += f"{idle:.0f} W before; after: "
    line += f"{after.get('sm_mhz')} MHz, {after.get('temperature_c')} C, "
    line += ", ".join(throttled(after.get("throttle_bits", "0x0"))) or "not limited"
    report_answer(line, details)
    assert 0.6 * smi_watts < counter_watts < 1.3 * smi_watts, line
    assert counter_watts <= 1.1 * float(before.get("power_limit_w", "inf")), line


@pytest.mark.seconds(30)
def test_the_peak_of_device_memory_is_between_its_bounds(
    machine: Session, report_answer: ReportAnswer
) -> None:
    """Compare the peak with the analytic lower bound and with the memory of the board."""
    total = _memory(_board(machine))
    details = {}
    for framework in sorted({*machine.frameworks} - machine.blind):
        grid = "sweep.grids=[{model: fc, model.nodes: 4096, batch_size: 16384}]"
        (run,) = machine.measured(
            60.0, grid, f"framework={framework}", "measure.profile=false", *SHORT
        )
        peak = run.metrics.get("peak_device_memory_bytes")
        lower_bound = run.metrics.get("memory_lower_bound_bytes", 0.0)
        details[framework] = {"peak": peak, "lower_bound": lower_bound, "outcome": run.outcome}
    line = "; ".join(
        f"{name}: {(row['peak'] or 0) / 2**30:.2f} GiB for {row['lower_bound'] / 2**30:.2f} GiB at least"
        for name, row in details.items()
    )
    report_answer(line, details)
    assert all(
        row["peak"] and 0.95 * row["lower_bound"] <= row["peak"] <= total
        for row in details.values()
    ), line


@pytest.mark.seconds(25)
def test_two_processes_share_one_board(machine: Session, report_answer: ReportAnswer) -> None:
    """Run two sweeps of the same point at once, and report how much they slow each other."""
    _require_shared_board(machine)
    point = (
        grids("fc"),
        f"framework={machine.framework()}",
        "measure=quick",
        "measure.profile=false",
    )
    point += ("measure.min_seconds=3",)
    (alone,) = machine.measured(60.0, *point)
    commands = [machine.train(*point, f"platform={machine.platform}") for _ in range(2)]
    for command in commands:
        machine.ended(command, 90.0)
    runs = [run for command in commands for run in command.runs()]
    assert [run.outcome for run in (alone, *runs)] == ["ok"] * 3, [
        run.reason for run in (alone, *runs)
    ]
    rates = [
        run.metrics["examples_per_second"] / alone.metrics["examples_per_second"] for run in runs
    ]
    details = {"alone": summary(alone), "together": [summary(run) for run in runs]}
    report_answer(
        f"{rates[0]:.2f} and {rates[1]:.2f} of the rate alone, {sum(rates):.2f} together", details
    )


@pytest.mark.seconds(40)
@pytest.mark.parametrize(("framework", "families"), [("jax", ["fc", "lstm"]), ("torch", ["fc"])])
def test_the_step_is_compared_with_a_plain_loop(
    machine: Session, report_answer: ReportAnswer, framework: str, families: list[str]
) -> None:
    """Report the ratio of throughputs; so short a run cannot decide whether it is 1."""
    machine.need(framework)
    _require_shared_board(machine)
    command = machine.fidelity(framework, families)
    machine.ended(command, 120.0)
    table = command.folder / "fidelity.csv"
    rows = list(csv.DictReader(table.open())) if table.exists() else []
    if "Unavailable: " in command.output:
        pytest.skip(command.output.partition("Unavailable: ")[2].splitlines()[0])
    line = "; ".join(f"{row['family']} {row['ours / by hand']}" for row in rows)
    report_answer(
        f"throughput relative to a plain loop: {line}", {"rows": rows, "output": command.output}
    )
    assert len(rows) >= len(families), command.last_line()


@pytest.mark.parametrize(("framework", "compile", "families"), MORE_SWEEPS)
def test_other_families_are_measured_and_profiled(
    machine: Session,
    report_answer: ReportAnswer,
    framework: str,
    compile: str,
    families: tuple[str, ...],
) -> None:
    test_a_point_of_each_family_is_measured_and_profiled(
        machine, report_answer, framework, compile, families
    )


def _board(session: Session) -> dict[str, str]:
    """Return the fields of `nvidia-smi`; skip the check without a GPU or without `nvidia-smi`."""
    session.gpu_only()
    fields = read_board()
    if not fields:
        pytest.skip("nvidia-smi is missing, or reports nothing")
    return fields


def _memory(board: dict[str, str]) -> float:
    """Return the board's memory in bytes; skip the check if a partition does not report it."""
    if "memory_total_mib" not in board:
        pytest.skip("nvidia-smi does not report the memory of the board")
    return float(board["memory_total_mib"]) * 2**20


def _require_shared_board(session: Session) -> None:
    """Skip the check if the board allows only one process at a time."""
    if session.platform == "gpu" and "exclusive" in read_board().get("compute_mode", "").lower():
        pytest.skip("the compute mode of the board allows only one process at a time")
