"""The questions, the most telling first. Each answers in a line with details, or raises Wrong or Skipped."""

from __future__ import annotations

import csv
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


#: A small point of each family, as a grid of a sweep: a small part of a GPU, a second of a CPU.
GRIDS = {
    "fc": "{model: fc, model.nodes: 512, batch_size: 256}",
    "residual": "{model: residual, model.image_size: 32, batch_size: 16}",
    "bottleneck": "{model: bottleneck, model.image_size: 32, batch_size: 16}",
    "rnn": "{model: rnn, model.embedding_size: 100, batch_size: 64}",
    "lstm": "{model: lstm, model.embedding_size: 100, batch_size: 64}",
    "gru": "{model: gru, model.embedding_size: 100, batch_size: 64}",
    "gpt": "{model: gpt, model.layers: 1, model.width: 64, batch_size: 4}",
    "vit": "{model: vit, model.layers: 1, model.image_size: 64, batch_size: 4}",
    "transformer": "{model: transformer, model.layers: 1, model.width: 64, batch_size: 4}",
    "resnet50": "{model: resnet50, model.image_size: 64, batch_size: 2}",
    "densenet121": "{model: densenet121, model.image_size: 64, batch_size: 2}",
    "mobilenet": "{model: mobilenet, model.image_size: 64, batch_size: 2}",
    "squeezenet": "{model: squeezenet, model.image_size: 64, batch_size: 2}",
    "retinanet": "{model: retinanet, model.image_size: 64, batch_size: 1}",
}
SMALL = ("fc", "residual", "lstm", "gpt", "vit")
OTHERS = ("bottleneck", "rnn", "gru", "transformer")
REAL = ("resnet50", "densenet121", "mobilenet", "squeezenet", "retinanet")
BRIEF = ("measure.min_seconds=0.2", "measure.warmup_seconds=0.5", "measure.max_seconds=4")
SHORT = ("measure=quick", "measure.processes=1", *BRIEF)


def grids(*families: str) -> str:
    return f"sweep.grids=[{','.join(GRIDS[family] for family in families)}]"


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


def sweep(framework: str, compile: str, *families: str) -> Callable[[Session], Answer]:
    """A point of each family, profiled."""

    def ask(session: Session) -> Answer:
        session.need(framework)
        chosen = (f"framework={framework}", f"compile={compile}", "measure.timeout=100")
        runs = session.measured(120.0, grids(*families), *chosen, *SHORT)
        details = {run.name: _summary(run) for run in runs}
        if all(run.outcome == "unavailable" for run in runs):
            raise Skipped(runs[0].reason)
        bad = [f"{run.family} {run.outcome}: {run.reason}" for run in runs if run.outcome != "ok"]
        bad += [f"{run.family} has no operations: {run.tags.get('profile')}" for run in runs if _lacks_profile(run)]
        if bad:
            raise Wrong("; ".join([f"{len(runs)} of {len(families)} points were measured", *bad[:6]]), details)
        if len(runs) < len(families):  # a slow machine; a point that hangs is a timeout
            raise Skipped(f"the time was up after {len(runs)} of {len(families)} points, all ok", details)
        unexplained = statistics.median(run.metrics["profile_unexplained_share"] for run in runs)
        return Answer(f"{len(runs)} runs ok and profiled, no operation in {unexplained:.0%} of the step", details)

    return ask


def command_buffers(session: Session) -> Answer:
    """Whether XLA's command buffers, in which kernels have no names of their own, empty JAX's operation tables."""
    session.gpu_only()
    session.need("jax")
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
    _shared(session)
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
        # Whether a ratio is 1 is not decided by so short a look: it is told.
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
