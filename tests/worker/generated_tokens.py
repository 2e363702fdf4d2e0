"""Generate tokens with and without a key-value cache, using the same weights.

Usage: `python -m tests.worker.generated_tokens FRAMEWORK COMPILE OUT.npz`

For both cases it writes the tokens (steps, batch) and the logits (steps, batch, vocab) that chose
them. Without a cache, the whole model reads all previous tokens again for each new token, operation
by operation.
"""

import contextlib
import sys
from typing import Any

import numpy as np

from paradnn.worker import frameworks
from tests.worker.families import MODELS
from tests.worker.one_step import draw

BATCH = 3
PROMPT = 5
TOKENS = 7
MODEL = MODELS["gpt"]
LLAMA = MODEL | {"name": "llama", "key_heads": 2, "feed_forward": 48}
#: Like Qwen3: heads wider than width / heads, normalized queries and keys, and one table for the
#: embedding and the output.
LLAMA |= {"head_width": 12, "query_key_norm": True, "tied": True}


def point(compile_mode: str, precision: str = "float32") -> dict[str, Any]:
    return {"mode": "generate", "compile": compile_mode, "precision": precision, "framework": {}}


def logits_of(framework: Any, step: Any) -> np.ndarray:
    """Return the logits of one step as float32."""
    if framework.name == "jax":
        return np.asarray(step.advance())
    if framework.name == "tensorflow":
        return step.function(*step.arguments)[-1].numpy()
    return step.function(step._batch).numpy(force=True)


def generate(
    framework: Any, compile_mode: str, model: dict[str, Any] = MODEL
) -> dict[str, np.ndarray]:
    """Process the prompt, run TOKENS steps and return the results with and without a cache.

    The last step is beyond the end of the cache. Returns tokens (steps, batch) and logits
    (steps, batch, vocab) as `CASE/tokens` and `CASE/logits`; CASE is `cached` or `whole`.
    """
    from keras import ops

    from paradnn.worker.step import synthetic_batch
    from paradnn.workloads.generate.decoder import Decoder

    decoder = Decoder(model, BATCH, prompt=PROMPT, tokens=TOKENS, compile=compile_mode)
    generator = np.random.default_rng(7)
    for variable in decoder.model.trainable_variables:
        variable.assign(2 * draw(variable, generator))
    inputs, _ = synthetic_batch(decoder.prefill, BATCH, 1)
    prefill = framework.make_step(decoder.prefill, (inputs, []), point(compile_mode))
    decode = framework.make_step(decoder.decode, ([], []), point(compile_mode))
    with inference(framework):
        cached_logits = [logits_of(framework, prefill)]
        cached_logits += [logits_of(framework, decode) for _ in range(TOKENS)]

        sequence = inputs[0]
        whole_logits = []
        for _ in cached_logits:
            padded = np.zeros((BATCH, model["sequence_length"]), "int32")
            padded[:, : sequence.shape[1]] = sequence
            logits = ops.convert_to_numpy(decoder.model(ops.convert_to_tensor(padded)))
            whole_logits.append(logits[:, sequence.shape[1] - 1])
            sequence = np.hstack([sequence, whole_logits[-1].argmax(-1)[:, None]])
    return {
        "cached/logits": np.array(cached_logits),
        "cached/tokens": np.array(cached_logits).argmax(-1),
        "whole/logits": np.array(whole_logits),
        "whole/tokens": np.array(whole_logits).argmax(-1),
    }


def inference(framework: Any) -> Any:
    if framework.name != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.inference_mode()


def main(name: str, compile_mode: str, target: str) -> None:
    framework = frameworks.load(name)
    framework.open_device({"name": "cpu", "threads": None, "index": 0})
    np.savez(target, **generate(framework, compile_mode))


if __name__ == "__main__":
    main(*sys.argv[1:])
