"""The metrics of token generation (`mode=generate`)."""

from paradnn.core.metric import Metric, in_section

METRICS = (
    Metric(
        "time_to_first_token_ms",
        "ms",
        "lower",
        "time of the prefill of a batch of prompts, which generates the first token",
        has_interval=True,
    ),
    Metric(
        "time_per_output_token_ms",
        "ms",
        "lower",
        "step_time_ms of a decode step",
        has_interval=True,
    ),
    Metric(
        "tokens_per_second", "1/s", "higher", "batch_size / decode step time", has_interval=True
    ),
    *in_section(
        "generation",
        Metric(
            "tokens_per_second_per_user", "1/s", "higher", "1 / decode step time", has_interval=True
        ),
        Metric(
            "generation_ms",
            "ms",
            "lower",
            "time to first token + (generate.tokens - 1) x decode step time",
        ),
        Metric(
            "prompt_tokens_per_second",
            "1/s",
            "higher",
            "tokens of all prompts / time to first token",
        ),
        Metric(
            "decode_bandwidth_fraction",
            "1",
            "higher",
            "decode_bytes / decode step time / peak_bytes_per_second",
        ),
        Metric("prefill_intensity", "FLOP/B", None, "prefill_flops / prefill_bytes"),
        Metric(
            "prefill_flops_per_second", "FLOP/s", "higher", "prefill_flops / time to first token"
        ),
        Metric(
            "prefill_flops_utilization",
            "1",
            "higher",
            "prefill_flops_per_second / peak_flops_per_second",
        ),
    ),
    *in_section(
        "work",
        Metric(
            "cache_bytes",
            "B",
            None,
            "analytic size of the cached keys and values of all layers and examples",
        ),
        Metric(
            "decode_flops",
            "FLOP",
            None,
            "flops_per_step of a decode step, which generates one token per example",
        ),
        Metric(
            "decode_bytes",
            "B",
            None,
            "bytes_per_step of a decode step, which reads the weights and the cache once",
        ),
        Metric("prefill_flops", "FLOP", None, "analytic matmul work of the prefill"),
        Metric("prefill_bytes", "B", None, "analytic compulsory memory traffic of the prefill"),
    ),
    *in_section(
        "compile",
        Metric(
            "prefill_compile_seconds",
            "s",
            "lower",
            "time of the first prefills, up to and including the first that compiled nothing",
        ),
    ),
)
