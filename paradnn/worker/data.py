"""Synthetic batches: drawn once on the host from the point's seed, then placed on the device by the framework."""

from __future__ import annotations

import numpy as np

from paradnn.families.workload import ArraySpec, Workload

__all__ = ["synthetic_batch"]


def synthetic_batch(workload: Workload, batch_size: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and targets of one step; each array has shape (batch_size, *spec.shape), a kernel's operands their own."""
    generator = np.random.default_rng(seed)
    if workload.draw:
        return workload.draw(generator, batch_size), []
    return (
        [_draw(spec, batch_size, generator) for spec in workload.inputs],
        [_draw(spec, batch_size, generator) for spec in workload.targets],
    )


def _draw(spec: ArraySpec, batch_size: int, generator: np.random.Generator) -> np.ndarray:
    shape = (batch_size, *spec.shape)
    if spec.dtype == "float32":
        return generator.standard_normal(shape, dtype=np.float32)
    if spec.zeros is None:
        return generator.integers(0, spec.high, shape, dtype=np.int32)
    values = generator.integers(1, spec.high, shape, dtype=np.int32)
    values[generator.random(shape) < spec.zeros] = 0
    return values
