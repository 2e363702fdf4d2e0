"""In which types the products of a compiled step multiply, and whether the processor has instructions for that."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path

from paradnn.worker.frameworks import Step

__all__ = ["has_instructions", "product_flops", "shares"]

#: How /proc/cpuinfo calls the instructions that multiply in a type: x86 (AVX-512, AMX) and Arm.
_INSTRUCTIONS = {"bfloat16": {"avx512_bf16", "amx_bf16", "bf16"}, "float16": {"avx512_fp16", "amx_fp16", "asimdhp"}}


def product_flops(step: Step) -> dict[str, float]:
    """FLOPs of the step's products by the type of their operands; empty where they cannot be known.

    A point is not lost to it: what goes wrong is written to standard error.
    """
    try:
        return step.product_flops()
    except Exception:
        traceback.print_exc()
        return {}


def shares(flops: Mapping[str, float]) -> dict[str, float]:
    """Each value as a share of all."""
    total = sum(flops.values())
    return {name: value / total for name, value in flops.items()} if total else {}


def has_instructions(precision: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Whether this processor multiplies in `precision` by itself; None where the system does not tell."""
    if precision not in _INSTRUCTIONS:
        return True
    try:
        rows = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    for row in rows:
        name, _, words = row.partition(":")
        if name.strip() in ("flags", "Features"):
            return bool(_INSTRUCTIONS[precision] & set(words.split()))
    return None
