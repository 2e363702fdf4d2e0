"""Generating tokens (`mode=generate`): a prompt is read at once, then one token follows the other
(docs/how-to/generation.md).

A timed step is one decode step: a token of each example; what reading the prompts took stands
beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules
from paradnn.core.channel import plain_fields
from paradnn.core.errors import ConfigError, require_value
from paradnn.core.layers import Costs
from paradnn.core.messages import Answer, Compilation, Timing, WorkloadMessage, messages_of_kind
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option, read
from paradnn.core.words import rounded
from paradnn.core.workload import Workload
from paradnn.forecast.workload import PhaseForecast
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.generate.metrics import METRICS

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun


@dataclass(frozen=True)
class Generation(WorkloadMessage):
    """What reading the prompts took, to the first token; the timed steps are those after it."""

    wire_name: ClassVar[str] = "generation"

    prefill: Timing
    compilation: Compilation
    cache_bytes: int


@dataclass(frozen=True)
class Generate(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """The length of a prompt, and of what is generated for it; every example of a batch has the
    same.
    """

    name = "generate"
    group = "generate"
    key = "mode"
    order = 10
    mode = "generate"
    unit = "token of each example"
    step_ignores_keys = False
    declared_metrics = METRICS
    message_types = (Generation,)
    rates: ClassVar[Mapping[str, str]] = {"tokens_per_second": "tokens/s"}
    phases: ClassVar[Mapping[str, str]] = {"prefill": "compile"}
    contention_prefixes: ClassVar[Mapping[str, str]] = {"prefill": "while prompts were read: "}
    objectives = ("cost_per_million_tokens", "tokens_per_second", "time_per_output_token_ms")
    is_profile_complete = False  # products of one token are small, and many are fused with others

    prompt: int = option(
        64, "mode=generate: tokens of each prompt, read at once", low=1, high=1_000_000
    )
    tokens: int = option(
        64, "mode=generate: tokens generated for it, one after the other", low=1, high=1_000_000
    )

    def reject_unused_keys(self, config: Mapping[str, Any]) -> None:
        """Its keys stand in every configuration, so that `mode` need not be a group; they must be
        at their defaults.
        """
        given = read(Generate, config.get("generate", {}), "generate")
        for name, value in vars(given).items():
            if value != getattr(GENERATE, name) and config.get("mode") != "generate":
                remedy = "add mode=generate, or leave it out"
                raise ConfigError(f"generate.{name}", value, "is for mode=generate", remedy)

    def check(self, point: Point) -> None:
        if not point.model.generates:
            reason = f"model={point.model.name} generates no tokens"
            raise ConfigError(
                "mode", "generate", reason, "choose model=gpt or model=llama, or mode=inference"
            )
        require_value(
            "devices", point.devices, required=1, reason="mode=generate is for one device"
        )
        require_value(
            "data",
            point.data.name,
            required="synthetic",
            reason="mode=generate takes prompts of its own",
        )
        most = int(asdict(point.model)["sequence_length"])
        length = self.prompt + self.tokens
        if length > most:
            reason = f"with generate.prompt={self.prompt} is more than the model's {most} positions"
            remedy = f"raise model.sequence_length to {length}, or ask for less"
            raise ConfigError("generate.tokens", self.tokens, reason, remedy)

    def cost_options(self) -> dict[str, int]:
        return asdict(self)

    def measure(self, run: PointRun) -> None:
        from paradnn.worker.measure import compile_steps
        from paradnn.worker.step import choose_types, product_flops, synthetic_batch
        from paradnn.workloads.generate.decoder import Decoder

        point = run.request
        framework = run.framework
        size = run.request["batch_size"]
        with run.phases("build"):
            # What only generates keeps its weights in the products' type.
            choose_types(point, framework, mixed=False)
            with framework.scope():
                decoder = Decoder(point["model"], size, self.prompt, self.tokens, point["compile"])
            prefill, decode = (
                framework.make_step(workload, synthetic_batch(workload, size, point["seed"]), point)
                for workload in (decoder.prefill, decoder.decode)
            )
        with run.phases("compile"):
            reading, _ = compile_steps(prefill)
            compilation, _ = compile_steps(decode)
            products = product_flops(decode)
        run.memory.compiled()
        read, _, disturbed = run.time(prefill.run, prefill, lambda _: run.phases("prefill"))
        run.note_contention("prefill", disturbed)
        run.note(work=Generation(read, reading, decoder.cache_bytes))
        run.note_measured(run.time(decode.run, decode), decoder.decode, compilation, products)
        run.note_latencies(decode.run)
        run.look_closer(decode)

    def name_parts(self, point: Point) -> list[str]:
        return ["generate", f"{self.prompt}+{self.tokens}"]

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """The decode step as time and rate of a token, with an interval where the step has one; the
        prompts.
        """
        given = messages_of_kind(measured.answers, Generation)
        costs = measured.costs
        step = known.get("step_time_ms")
        if not given or step is None:
            return {}
        found = self._prefill_metrics(measured.point, given, known)
        for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
            milliseconds = known.get(f"step_time{end}_ms")
            if milliseconds:
                found[f"time_per_output_token{end}_ms"] = milliseconds
                found[f"tokens_per_second_per_user{other}"] = 1e3 / milliseconds
                found[f"tokens_per_second{other}"] = measured.point.batch_size * 1e3 / milliseconds
        found |= {
            "cache_bytes": costs.cache_bytes,
            "decode_flops": costs.flops_per_step,
            "decode_bytes": costs.bytes_per_step,
            "prefill_compile_seconds": statistics.median(
                sum(entry.compilation.seconds) for entry in given
            ),
        }
        bandwidth = known.get("peak_bytes_per_second")
        if bandwidth:
            found["decode_bandwidth_fraction"] = costs.bytes_per_step / (step / 1e3) / bandwidth
        return found | {"generation_ms": found["time_to_first_token_ms"] + (self.tokens - 1) * step}

    def _prefill_metrics(
        self, point: Point, given: Sequence[Generation], known: Mapping[str, float]
    ) -> dict[str, float]:
        """Time to the first token with its interval, and what reading the prompts comes to."""
        from paradnn.config.point import prefill_costs
        from paradnn.session.measured import summarise

        costs = prefill_costs(point)
        timings = [entry.prefill for entry in given]
        times = summarise([timing.step_times for timing in timings])
        found = {
            "time_to_first_token_ms": times.value * 1e3,
            "prompt_tokens_per_second": point.batch_size * self.prompt / times.value,
            "prefill_flops": costs.flops_per_step,
            "prefill_bytes": costs.bytes_per_step,
            "prefill_intensity": costs.flops_per_step / costs.bytes_per_step,
            "prefill_flops_per_second": costs.flops_per_step / times.value,
        }
        if times.low is not None and times.high is not None:
            found |= {
                "time_to_first_token_low_ms": times.low * 1e3,
                "time_to_first_token_high_ms": times.high * 1e3,
            }
        peak = known.get("peak_flops_per_second")
        if peak:
            found["prefill_flops_utilization"] = found["prefill_flops_per_second"] / peak
        return found

    def tags(self, measured: Measured) -> dict[str, str]:
        timings = [entry.prefill for entry in messages_of_kind(measured.answers, Generation)]
        if not timings:
            return {}
        reasons = dict.fromkeys(timing.steady_reason for timing in timings if not timing.steady)
        words = "; ".join(reasons) or timings[0].steady_reason
        return {"prefill_steady": str(not reasons).lower(), "prefill_steady_reason": words}

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        given = messages_of_kind(measured.answers, Generation)
        if given:
            return {
                "prefill.json": {"unit": "s", "processes": [plain_fields(entry) for entry in given]}
            }
        return {}

    def find_contradictions(self, costs: Costs, answer: Answer) -> list[str]:
        found = [
            each.cache_bytes
            for each in messages_of_kind([answer], Generation)
            if each.cache_bytes != costs.cache_bytes
        ]
        return [
            f"the cache has {count} bytes, the analytic count is {costs.cache_bytes}"
            for count in found
        ]

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "generation_ms" not in metrics:
            return None
        clauses = [
            f"first token after {metrics['time_to_first_token_ms']:.3f} ms, "
            f"then {metrics['time_per_output_token_ms']:.3f} ms a token",
            f"{rounded(metrics['tokens_per_second'])} tokens/s, "
            f"{rounded(metrics['tokens_per_second_per_user'])} for each user",
        ]
        if "decode_bandwidth_fraction" in metrics:
            share = metrics["decode_bandwidth_fraction"]
            clauses.append(f"{share:.1%} of the measured bandwidth at what a token must move")
        return ResultText("generation", clauses)

    def forecast_phases(self, points: Any, step: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        """Prompts are timed as decode steps are: blocks of the same seconds, unless one is longer
        than a block.
        """
        generating = (points.text("mode") == "generate")[:, None]
        if generating.any():
            return {"prefill": (known["warmup"] + known["measure"]) * generating}
        return {}


GENERATE = Generate()
