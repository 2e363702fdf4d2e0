"""Sweeps of small points: is every family measured and profiled, and are its operations there?"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from tests.gpu.commands import Answer, Run, Session, Skipped, Wrong

__all__ = ["GRIDS", "OTHERS", "REAL", "SHORT", "SMALL", "command_buffers", "grids", "summary", "sweep"]

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
    """The override that sweeps a small point of each family."""
    return f"sweep.grids=[{','.join(GRIDS[family] for family in families)}]"


def sweep(framework: str, compile: str, *families: str) -> Callable[[Session], Answer]:
    """A point of each family, profiled."""

    def ask(session: Session) -> Answer:
        session.need(framework)
        chosen = (f"framework={framework}", f"compile={compile}", "measure.timeout=100")
        runs = session.measured(120.0, grids(*families), *chosen, *SHORT)
        details = {run.name: summary(run) for run in runs}
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
        rows[label] = summary(run)
    text = ", ".join(
        f"{label}: {row['operations']} operations, {row['step_ms']:.3g} ms, {row['unexplained']:.0%} unexplained"
        if row["outcome"] == "ok" and row["unexplained"] is not None
        else f"{label}: {row['outcome']} {row['reason']}"
        for label, row in rows.items()
    )
    if not all(row["operations"] for row in rows.values()):
        raise Wrong(text, rows)
    return Answer(text, rows)


def _lacks_profile(run: Run) -> bool:
    return run.outcome == "ok" and not run.operations


def summary(run: Run) -> dict[str, Any]:
    """What is kept of a run."""
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
