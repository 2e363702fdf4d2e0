"""The questions, the most telling first. Each answers in a line with details, or raises Wrong or Skipped."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paradnn.hardware.specifications import find_hardware
from tests.gpu.board import read_board, sampled_power, throttled
from tests.gpu.commands import Run, Session, Skipped, Wrong

__all__ = ["QUESTIONS", "Answer", "Question"]


@dataclass(frozen=True)
class Answer:
    """A line for the table, and what it rests on."""

    line: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """`ask(session)` answers within about `seconds`; it is not asked where less time is left."""

    name: str
    seconds: float
    ask: Callable[[Session], Answer]


#: Sizes that fill a small part of a GPU and take a CPU a second.
GRIDS = {
    "fc": "{model: fc, model.nodes: 512, batch_size: 256}",
    "cnn": "{model: 'residual,bottleneck', model.filters: 16, model.image_size: 64, batch_size: 16}",
    "recurrent": "{model: 'rnn,lstm,gru', model.embedding_size: 100, batch_size: 64}",
    "attention": "{model: 'gpt,transformer', model.layers: 1, model.width: 64, batch_size: 4},"
    "{model: vit, model.layers: 1, model.image_size: 64, batch_size: 4}",
    "real": "{model: 'resnet50,densenet121,mobilenet,squeezenet', model.image_size: 64, batch_size: 2},"
    "{model: retinanet, model.image_size: 64, batch_size: 1}",
}
FAMILIES = {"fc": 1, "cnn": 2, "recurrent": 3, "attention": 3, "real": 5}
SMALL = ("fc", "cnn", "recurrent", "attention")
SHORT = ("measure=quick", "measure.min_seconds=0.3", "measure.warmup_seconds=1")


def grids(*names: str) -> str:
    return f"sweep.grids=[{','.join(GRIDS[name] for name in names)}]"


def machine(session: Session) -> Answer:
    """Whether each framework sees the device, and with which version of Keras."""
    tests = {
        "jax": "import jax; print(jax.__version__, jax.devices())",
        "torch": "import torch; print(torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name())",
        "tensorflow": "import tensorflow as tf; print(tf.__version__, tf.config.list_physical_devices('GPU'))",
    }
    found = {}
    for name in session.frameworks:
        code = f"{tests[name]}; import keras; print(keras.__version__)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=_environ(KERAS_BACKEND=name),
        )
        text = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        found[name] = ", Keras ".join(text) if done.returncode == 0 else f"FAILS: {text[-1]}"
    if bad := [name for name, text in found.items() if text.startswith("FAILS")]:
        raise Wrong("; ".join(f"{name}: {found[name]}" for name in bad))
    return Answer("; ".join(f"{name} {text}" for name, text in found.items()), found)


def board(session: Session) -> Answer:
    """Clocks, power, modes, and whether anything holds the clocks down at rest."""
    session.gpu_only()
    found = read_board()
    if not found:
        raise Wrong("nvidia-smi says nothing")
    reasons = throttled(found.get("throttle_bits", "0x0"))
    line = (
        f"{found.get('name')}, driver {found.get('driver')}, {found.get('sm_mhz')} of {found.get('sm_max_mhz')} MHz, "
        f"{found.get('temperature_c')} C, {found.get('power_w')} of {found.get('power_limit_w')} W"
    )
    return Answer(f"{line}{', held down: ' + ', '.join(reasons) if reasons else ''}", dict(found))


def sweep(framework: str, compile: str, *names: str) -> Callable[[Session], Answer]:
    """Every family of some grids, profiled."""

    def ask(session: Session) -> Answer:
        _need(session, framework)
        runs = session.measured(
            150.0, grids(*names), f"framework={framework}", f"compile={compile}", "measure.timeout=60", *SHORT
        )
        details = {run.name: _summary(run) for run in runs}
        bad = [f"{run.family} {run.outcome}: {run.reason}" for run in runs if run.outcome != "ok"]
        bad += [f"{run.family} has no operations: {run.tags.get('profile')}" for run in runs if _lacks_profile(run)]
        wanted = sum(FAMILIES[name] for name in names)
        if bad or len(runs) < wanted:
            raise Wrong(f"{len(runs)} of {wanted} runs; " + "; ".join(bad[:6]), details)
        fraction = statistics.median(run.metrics["profile_unexplained_share"] for run in runs)
        return Answer(f"{len(runs)} runs ok and profiled, no operation in {fraction:.0%} of the step (median)", details)

    return ask


def command_buffers(session: Session) -> Answer:
    """Whether XLA's command buffers, in which kernels have no names of their own, empty JAX's operation tables."""
    _need(session, "jax")
    session.gpu_only()
    rows = {}
    for label, flag in (("as it comes", None), ("without", "--xla_gpu_enable_command_buffer=")):
        env = [f'+framework.env.XLA_FLAGS="{flag}"'] if flag else []
        (run,) = session.measured(60.0, grids("fc"), "framework=jax", *env, *SHORT)
        rows[label] = _summary(run)
    text = ", ".join(
        f"{label}: {row['operations']} operations, {row['step_ms']:.3g} ms, {row['unexplained']:.0%} unexplained"
        if row["outcome"] == "ok" and row["unexplained"] is not None
        else f"{label}: {row['outcome']} {row['reason']}"
        for label, row in rows.items()
    )
    if not all(row["operations"] for row in rows.values()):
        raise Wrong(text, rows)
    return Answer(text, rows)


def out_of_memory(framework: str) -> Callable[[Session], Answer]:
    """A point that takes several times the device's memory ends as oom_device, and the next point is measured."""

    def ask(session: Session) -> Answer:
        _need(session, framework)
        limits: tuple[str, ...] = ("measure.predict_oom=false",)
        if session.platform == "gpu":
            wanted, memory = "oom_device", float(read_board()["memory_total_mib"]) * 2**20
        else:
            # The host's limit stands in for the device's.
            wanted, memory = "oom_host", 3 * 2.0**30
            limits += ("measure.memory_limit=3GiB",)
        nodes = 4096
        batch = int(memory / (4 * nodes))  # each activation as large as the memory
        grid = (
            f"sweep.grids=[{{model: fc, model.input_size: 8, model.nodes: {nodes}, batch_size: {batch}}},"
            "{model: fc, model.input_size: 8, model.nodes: 64, batch_size: 64}]"
        )
        compiled = "compile=eager" if framework == "torch" else "compile=graph"
        runs = session.measured(90.0, grid, "sweep.order=given", f"framework={framework}", compiled, *limits, *SHORT)
        said = [f"{run.outcome}: {run.reason or ''}"[:160] for run in runs]
        outcomes = sorted(run.outcome for run in runs)
        if outcomes != sorted([wanted, "ok"]):
            raise Wrong(f"wanted {wanted} and ok, got {'; '.join(said)}")
        return Answer(f"{wanted}, then ok", {"said": said})

    return ask


def clocks_and_energy(session: Session) -> Answer:
    """The energy of a step against the power that nvidia-smi shows, and what held the clocks down under load."""
    session.gpu_only()
    before = read_board()
    idle = float(before["power_w"])
    framework = session.framework()
    large = "sweep.grids=[{model: fc, model.nodes: 8192, batch_size: 4096}]"
    with sampled_power() as power:
        runs = session.measured(90.0, large, f"framework={framework}", "measure.min_seconds=6", "precision=bfloat16")
    after = read_board()
    (run,) = runs
    if run.outcome != "ok":
        raise Wrong(f"{run.outcome}: {run.reason}")
    joules, seconds = run.metrics.get("energy_per_step_joules"), run.metrics["step_time_ms"] / 1e3
    details = {"before": before, "after": after, "run": _summary(run), "samples": power.samples}
    if joules is None:
        raise Wrong(f"no energy: {run.tags.get('energy_source')}", details)
    watts, seen = joules / seconds, statistics.median(power.above_idle(1.2 * idle) or [float("nan")])
    line = f"{watts:.0f} W by the counter, {seen:.0f} W by nvidia-smi, {idle:.0f} W before; after: "
    line += f"{after.get('sm_mhz')} MHz, {after.get('temperature_c')} C, "
    line += ", ".join(throttled(after.get("throttle_bits", "0x0"))) or "not held down"
    if not 0.6 * seen < watts < 1.3 * seen or watts > 1.1 * float(before.get("power_limit_w", "inf")):
        raise Wrong(line, details)
    return Answer(line, details)


def two_processes(session: Session) -> Answer:
    """Two sweeps of the same point at once on one board: both end well; what they take from each other is told."""
    framework = session.framework()
    point = (grids("fc"), f"framework={framework}", "measure=quick", "measure.profile=false", "measure.min_seconds=3")
    (alone,) = session.measured(60.0, *point)
    commands = [session.train(*point, f"platform={session.platform}") for _ in range(2)]
    for command in commands:
        command.wait(max(1.0, min(90.0, session.left)))
    runs = [run for command in commands for run in command.runs()]
    details = {"alone": _summary(alone), "together": [_summary(run) for run in runs]}
    if [run.outcome for run in (alone, *runs)] != ["ok"] * 3:
        raise Wrong("; ".join(f"{run.outcome}: {run.reason}" for run in (alone, *runs)), details)
    rates = [run.metrics["examples_per_second"] / alone.metrics["examples_per_second"] for run in runs]
    return Answer(f"{rates[0]:.2f} and {rates[1]:.2f} of the rate alone, {sum(rates):.2f} together", details)


def device_memory(session: Session) -> Answer:
    """The peak that frameworks report of the device's memory: over what must be there, under what is there."""
    session.gpu_only()
    details, bad = {}, []
    total = float(read_board()["memory_total_mib"]) * 2**20
    for framework in session.frameworks:
        grid = "sweep.grids=[{model: fc, model.nodes: 4096, batch_size: 16384}]"
        (run,) = session.measured(60.0, grid, f"framework={framework}", "measure.profile=false", *SHORT)
        peak, least = run.metrics.get("peak_device_memory_bytes"), run.metrics.get("memory_lower_bound_bytes", 0.0)
        details[framework] = {"peak": peak, "lower_bound": least, "outcome": run.outcome}
        if peak is None or not 0.95 * least <= peak <= total:
            bad.append(framework)
    line = "; ".join(
        f"{name}: {(row['peak'] or 0) / 2**30:.2f} GiB for {row['lower_bound'] / 2**30:.2f} GiB at least"
        for name, row in details.items()
    )
    if bad:
        raise Wrong(line, details)
    return Answer(line, details)


def ceilings(framework: str) -> Callable[[Session], Answer]:
    """Products and memory at their fastest, as a share of the data sheet."""

    def ask(session: Session) -> Answer:
        _need(session, framework)
        command = session.ceilings(framework)
        command.wait(max(1.0, min(120.0, session.left)))
        runs = command.runs()
        if not runs or runs[0].outcome != "ok":
            raise Wrong(runs[0].reason or runs[0].outcome if runs else command.last_line())
        metrics = runs[0].metrics
        peaks = {key.rpartition(".")[2]: value for key, value in metrics.items() if "peak_flops" in key}
        bandwidth = metrics.get("peak_bytes_per_second", 0.0)
        found = ", ".join(f"{precision} {rate / 1e12:.3g}" for precision, rate in peaks.items())
        line = f"{found} TFLOP/s, memory {bandwidth / 1e9:.0f} GB/s"
        device = runs[0].tags.get("device", "")
        sheet = find_hardware(device)
        if sheet is None:
            return Answer(f"{line}; no data sheet is known of {device}", dict(metrics))
        shares = {key: peaks[key] / peak for key, peak in sheet.peak_flops.items() if key in peaks}
        if sheet.bandwidth:
            shares["memory"] = bandwidth / sheet.bandwidth
        line += "; of the data sheet: " + ", ".join(f"{key} {share:.2f}" for key, share in shares.items())
        # Float32 is left out: JAX and TensorFlow multiply in TF32, which is faster than the sheet's float32.
        if any(not 0.5 <= share <= 1.05 for key, share in shares.items() if key != "float32"):
            raise Wrong(line, dict(metrics))
        return Answer(line, dict(metrics))

    return ask


def fidelity(framework: str) -> Callable[[Session], Answer]:
    """The worker's step beside a hand-written loop, two families."""

    def ask(session: Session) -> Answer:
        _need(session, framework)
        command = session.fidelity(framework, "fc,lstm", rounds=20, starts=1)
        command.wait(max(1.0, min(120.0, session.left)))
        rows = [line.strip() for line in command.output.splitlines() if line.strip().startswith(framework)]
        if len(rows) != 2 or any(":" in row for row in rows):
            raise Wrong(command.last_line(), {"output": command.output})
        # Whether a ratio is 1 is not decided by so short a look: it is told.
        return Answer(" | ".join(" ".join(row.split()[1:12]) for row in rows), {"output": command.output})

    return ask


def _need(session: Session, framework: str) -> None:
    if framework not in session.frameworks:
        raise Skipped(f"{framework} is not installed")


def _lacks_profile(run: Run) -> bool:
    return run.outcome == "ok" and not run.operations


def _summary(run: Run) -> dict[str, Any]:
    return {
        "outcome": run.outcome,
        "reason": run.reason,
        "step_ms": run.metrics.get("step_time_ms"),
        "compile_seconds": run.metrics.get("compile_seconds"),
        "operations": len(run.operations),
        "slowest": [row[:1] for row in run.operations[:3]],
        "unexplained": run.metrics.get("profile_unexplained_share"),
        "profile": run.tags.get("profile"),
        "checks": _json(run.tags.get("checks")),
        "peak_device_memory_bytes": run.metrics.get("peak_device_memory_bytes"),
        "energy_per_step_joules": run.metrics.get("energy_per_step_joules"),
        "steady": run.tags.get("steady"),
    }


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return text


def _environ(**further: str) -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **further}


QUESTIONS = (
    Question("frameworks see the device", 10, machine),
    Question("the board at rest", 2, board),
    Question("sweep, JAX", 40, sweep("jax", "graph", *SMALL)),
    Question("sweep, PyTorch eager", 40, sweep("torch", "eager", *SMALL)),
    Question("XLA's command buffers", 20, command_buffers),
    Question("out of memory, JAX", 20, out_of_memory("jax")),
    Question("out of memory, PyTorch", 20, out_of_memory("torch")),
    Question("ceilings, JAX", 30, ceilings("jax")),
    Question("energy and clocks", 20, clocks_and_energy),
    Question("peak device memory", 20, device_memory),
    Question("two processes on one board", 20, two_processes),
    Question("sweep, PyTorch compiled", 40, sweep("torch", "graph", "fc", "cnn")),
    Question("fidelity, JAX", 30, fidelity("jax")),
    Question("fidelity, PyTorch", 40, fidelity("torch")),
    Question("ceilings, PyTorch", 30, ceilings("torch")),
    Question("sweep, TensorFlow", 60, sweep("tensorflow", "graph", *SMALL)),
    Question("out of memory, TensorFlow", 20, out_of_memory("tensorflow")),
    Question("real models, JAX", 60, sweep("jax", "graph", "real")),
)
