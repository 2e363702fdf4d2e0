"""From a point of `mode=generate` to its two steps, ready to be compiled and timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paradnn.worker.data import synthetic_batch
from paradnn.worker.frameworks import Framework, Step
from paradnn.worker.generation.decoder import Decoder, build_decoder

__all__ = ["GenerationSteps", "prepare_generation"]


@dataclass(frozen=True)
class GenerationSteps:
    """`prefill` reads the prompts again each time, `decode` makes the next token of each."""

    decoder: Decoder
    prefill: Step
    decode: Step


def prepare_generation(point: Mapping[str, Any], framework: Framework) -> GenerationSteps:
    """Both steps of `point`, the prompts drawn from its seed; the dtype policy is set, nothing is compiled yet."""
    lengths, size = point["generate"], point["batch_size"]
    with framework.scope():
        decoder = build_decoder(point["model"], size, lengths["prompt"], lengths["tokens"], point["compile"])
    prefill, decode = (
        framework.make_step(workload, synthetic_batch(workload, size, point["seed"]), point)
        for workload in (decoder.prefill, decoder.decode)
    )
    return GenerationSteps(decoder, prefill, decode)
