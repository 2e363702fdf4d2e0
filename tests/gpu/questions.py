"""The questions, the most telling first. Each answers in a line with details, or raises Wrong or Skipped."""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from paradnn.platform.specifications import find_hardware
from tests.gpu.board import read_board, sampled_power, throttled
from tests.gpu.commands import Answer, Session, Skipped, Wrong
from tests.gpu.sweeps import OTHERS, REAL, SHORT, SMALL, command_buffers, grids, summary, sweep

__all__ = ["QUESTIONS", "Question"]


@dataclass(frozen=True)
class Question:
    """`ask(session)` answers within about `seconds`; it is not asked where less time is left."""

    name: str
    seconds: float
    ask: Callable[[Session], Answer]


#: Expressions for the names of the GPUs that a framework sees.
SEEN = {
    "jax": "[device.device_kind for device in jax.devices() if device.platform == 'gpu']",
    "torch": "[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]",
    "tensorflow": "[device.name for device in tensorflow.config.list_physical_devices('GPU')]",
}


def machine(session: Session) -> Answer:
    """Whether each framework sees the device, and with which version of Keras."""
    found = {}
    for name in session.frameworks:
        code = f"import json, {name}, keras; print(json.dumps([{name}.__version__, keras.__version__, {SEEN[name]}]))"
        # Another's share of the board must not be in the way of a look at it.
        environ = {**os.environ, "KERAS_BACKEND": name, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False, env=environ
        )
        gpus = []
        if done.returncode:
            found[name] = f"{name} FAILS: {(done.stderr.strip().splitlines() or ['says nothing'])[-1]}"
        else:
            version, keras, gpus = json.loads(done.stdout.splitlines()[-1])
            found[name] = f"{name} {version}, Keras {keras}, {', '.join(gpus) or 'no GPU'}"
        if done.returncode or (session.platform == "gpu" and not gpus):
            session.blind.add(name)
    line = "; ".join(found.values())
    if session.blind:
        raise Wrong(line, found)
    return Answer(line, found)


def board(session: Session) -> Answer:
    """Clocks, power, modes, and whether anything holds the clocks down at rest."""
    found = _board(session)
    reasons = throttled(found.get("throttle_bits", "0x0"))
    line = (
        f"{found.get('name')}, driver {found.get('driver')}, {found.get('sm_mhz')} of {found.get('sm_max_mhz')} MHz, "
        f"{found.get('temperature_c')} C, {found.get('power_w')} of {found.get('power_limit_w')} W, "
        f"{found.get('memory_used_mib')} of {found.get('memory_total_mib')} MiB in use"
    )
    return Answer(f"{line}{', held down: ' + ', '.join(reasons) if reasons else ''}", dict(found))


def out_of_memory(framework: str) -> Callable[[Session], Answer]:
    """A point that takes several times the device's memory ends as oom_device, and the next point is measured."""

    def ask(session: Session) -> Answer:
        session.need(framework)
        limits: tuple[str, ...] = ("measure.predict_oom=false",)
        if session.platform == "gpu":
            wanted, memory = "oom_device", _memory(_board(session))
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
    before = _board(session)
    if "power_w" not in before:
        raise Skipped("nvidia-smi shows no power")
    idle = float(before["power_w"])
    framework = session.framework()
    large = "sweep.grids=[{model: fc, model.nodes: 8192, batch_size: 4096}]"
    long = ("measure=quick", "measure.profile=false", "measure.min_seconds=6")
    with sampled_power() as power:
        runs = session.measured(90.0, large, f"framework={framework}", "precision=bfloat16", *long)
    after = read_board()
    (run,) = runs
    if run.outcome != "ok":
        raise Wrong(f"{run.outcome}: {run.reason}")
    joules, seconds = run.metrics.get("energy_per_step_joules"), run.metrics["step_time_ms"] / 1e3
    details = {"before": before, "after": after, "run": summary(run), "samples": power.samples}
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
    """Two sweeps of the same point at once on one board: both end well; what they take from each other is reported."""
    _shared(session)
    framework = session.framework()
    point = (grids("fc"), f"framework={framework}", "measure=quick", "measure.profile=false", "measure.min_seconds=3")
    (alone,) = session.measured(60.0, *point)
    commands = [session.train(*point, f"platform={session.platform}") for _ in range(2)]
    for command in commands:
        command.wait(max(1.0, min(90.0, session.left)))
    runs = [run for command in commands for run in command.runs()]
    details = {"alone": summary(alone), "together": [summary(run) for run in runs]}
    if [run.outcome for run in (alone, *runs)] != ["ok"] * 3:
        raise Wrong("; ".join(f"{run.outcome}: {run.reason}" for run in (alone, *runs)), details)
    rates = [run.metrics["examples_per_second"] / alone.metrics["examples_per_second"] for run in runs]
    return Answer(f"{rates[0]:.2f} and {rates[1]:.2f} of the rate alone, {sum(rates):.2f} together", details)


def device_memory(session: Session) -> Answer:
    """The peak that frameworks report of the device's memory: over what must be there, under what is there."""
    details, bad = {}, []
    total = _memory(_board(session))
    for framework in sorted({*session.frameworks} - session.blind):
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
        session.need(framework)
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


def fidelity(framework: str, *families: str) -> Callable[[Session], Answer]:
    """The worker's step beside a hand-written loop."""

    def ask(session: Session) -> Answer:
        session.need(framework)
        _shared(session)
        command = session.fidelity(framework, families)
        command.wait(max(1.0, min(120.0, session.left)))
        table = command.folder / "fidelity.csv"
        rows = list(csv.DictReader(table.open())) if table.exists() else []
        details = {"rows": rows, "output": command.output}
        if "Unavailable: " in command.output:
            raise Skipped(command.output.partition("Unavailable: ")[2].splitlines()[0])
        if len(rows) < len(families):
            raise Wrong(command.last_line(), details)
        # Whether a ratio is 1 is not decided by so short a look: it is only reported.
        line = "; ".join(f"{row['family']} {row['ours / by hand']}" for row in rows)
        return Answer(f"throughput over that of a loop by hand: {line}", details)

    return ask


def _board(session: Session) -> dict[str, str]:
    """What `nvidia-smi` says. Raises Skipped where there is none."""
    session.gpu_only()
    found = read_board()
    if not found:
        raise Skipped("nvidia-smi is not there, or says nothing")
    return found


def _memory(board: dict[str, str]) -> float:
    """Bytes of the board's memory; a part of a board does not say how many it has. Raises Skipped."""
    if "memory_total_mib" not in board:
        raise Skipped("nvidia-smi does not say how much memory the board has")
    return float(board["memory_total_mib"]) * 2**20


def _shared(session: Session) -> None:
    """Raise Skipped where the board serves only one process at a time."""
    if session.platform == "gpu" and "exclusive" in read_board().get("compute_mode", "").lower():
        raise Skipped("the board's compute mode allows one process at a time")


QUESTIONS = (
    Question("frameworks see the device", 10, machine),
    Question("the board at rest", 2, board),
    Question("sweep, JAX", 40, sweep("jax", "graph", *SMALL)),
    Question("sweep, PyTorch eager", 30, sweep("torch", "eager", *SMALL)),
    Question("XLA's command buffers", 25, command_buffers),
    Question("out of memory, JAX", 20, out_of_memory("jax")),
    Question("out of memory, PyTorch", 20, out_of_memory("torch")),
    Question("ceilings, JAX", 30, ceilings("jax")),
    Question("energy and clocks", 20, clocks_and_energy),
    Question("peak device memory", 30, device_memory),
    Question("two processes on one board", 25, two_processes),
    Question("sweep, PyTorch compiled", 40, sweep("torch", "graph", "fc", "gpt")),
    Question("fidelity, JAX", 40, fidelity("jax", "fc", "lstm")),
    Question("fidelity, PyTorch", 40, fidelity("torch", "fc")),
    Question("sweep, TensorFlow", 60, sweep("tensorflow", "graph", *SMALL)),
    Question("out of memory, TensorFlow", 20, out_of_memory("tensorflow")),
    Question("ceilings, PyTorch", 30, ceilings("torch")),
    Question("other families, PyTorch eager", 50, sweep("torch", "eager", *OTHERS, *REAL)),
    Question("other families, JAX", 40, sweep("jax", "graph", *OTHERS)),
    Question("real models, JAX", 80, sweep("jax", "graph", *REAL)),
)
