"""A worker's profile as what is stored: metrics, tags and tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from paradnn.worker.channel import plain
from paradnn.worker.messages import NoProfile, Profile

__all__ = ["TABLES", "precision_tags", "profile_artifacts", "profile_metrics", "profile_tags", "slowdown_note"]

#: The tables of a profile, as files on the run (`mlflow.load_table` reads them).
TABLES = ("operations", "operation_types")
#: How many types of operations have a metric of their own.
_LEADING = 10
#: A step that takes longer than this under the profiler, as a multiple of the measured one, is another step.
_SLOWDOWN = 1.1


def profile_metrics(profile: Profile, flops_per_step: float, precision: str) -> dict[str, float]:
    """Shares of the leading types and of all categories, and how far the profile agrees with what is known.

    `profile_flops_ratio` compares matmul and convolution FLOPs with the analytic count; where the kernels' shapes are
    not known (eager mode) it is left out.
    """
    metrics = {
        "profile_steps": float(profile.steps),
        "profile_step_time_ms": profile.step_seconds * 1e3,
        "profile_slowdown": profile.slowdown,
        "profile_unexplained_share": profile.unexplained_share,
    }
    if profile.product_flops and flops_per_step:
        metrics["profile_flops_ratio"] = profile.product_flops / flops_per_step
        metrics["profile_precision_share"] = profile.product_types.get(precision, 0.0)
    categories: defaultdict[str, float] = defaultdict(float)
    rows = profile.operation_types.rows()[:-1]
    for row in rows:
        categories[row["category"]] += row["share"]
    metrics |= {f"category_share.{name}": share for name, share in categories.items()}
    return metrics | {f"op_share.{_key(row['type'])}": row["share"] for row in rows[:_LEADING]}


def precision_tags(types: Mapping[str, float], precision: str, native: bool | None) -> dict[str, str]:
    """In which types the products multiply, by their share of the FLOPs, where that is known.

    A type is that of the operands; `native` says whether the processor has instructions for `precision`.
    """
    tags = {}
    share = types.get(precision, 0.0)
    if types:
        tags["matmul_types"] = ", ".join(f"{name} {part:.1%}" for name, part in types.items())
        if share < 0.99:
            tags["precision_note"] = f"{1 - share:.0%} of the products have operands of another type than {precision}"
    if native is False and (share or not types):
        tags["emulation_note"] = f"this processor has no instructions for products in {precision}: they are emulated"
    return tags


def profile_tags(profile: Profile | NoProfile) -> dict[str, str]:
    """What is no number: what the run holds beside its timing, and how far the profiler changed the step.

    The extra `limited` says that under another limit of time or memory there may be room for the profile.
    """
    if isinstance(profile, NoProfile):
        extras = f"profile keep_trace{' limited' if profile.limited else ''}"
        return {"profile": f"unavailable: {profile.unavailable}", "extras": extras}
    tags = {"profile": "ok", "extras": "profile keep_trace" if profile.trace else "profile"}
    notes = [slowdown_note(profile), _hidden_note(profile)]
    if any(notes):
        tags["profile_note"] = "; ".join(filter(None, notes))
    return tags


def slowdown_note(profile: Profile) -> str | None:
    """What a reader of the shares must know where the profiler slowed the step down."""
    if profile.slowdown <= _SLOWDOWN:
        return None
    return f"shares are of a step that took {profile.slowdown:.2f} times as long under the profiler"


def _hidden_note(profile: Profile) -> str | None:
    if not profile.command_buffers:
        return None
    return (
        f"operations in {profile.command_buffers} command buffer(s) of the GPU are not seen: "
        "framework.env.XLA_FLAGS=--xla_gpu_enable_command_buffer= shows them, at another speed"
    )


def profile_artifacts(profile: Profile) -> dict[str, Any]:
    """The tables, and the trace under the path where TensorBoard looks for it."""
    tables = {f"{name}.json": plain(getattr(profile, name)) for name in TABLES}
    return tables | {f"trace/{path}": {"base64": content} for path, content in profile.trace.items()}


def _key(kind: str) -> str:
    """A type as part of a metric's name: MLflow allows letters, digits and _ - . / : and space."""
    return "".join(letter if letter.isalnum() or letter in "_-. /:" else "_" for letter in kind)
