"""Generation of tokens (`mode=generate`, docs/how-to/generation.md).

The model reads a whole prompt at once (prefill), then generates one token after another (decode). A
timed step is one decode step: one token for each example of the batch. The prefill is timed
separately.
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
    """The message that reports the measured prefill of one process to the driver.

    The prefill reads the whole prompts. The timed steps of the process's answer are decode steps.

    Attributes:
        prefill: Times of the prefill, which also generates the first token.
        compilation: Compilation of the prefill.
        cache_bytes: Size of the key-value cache in bytes.
    """

    wire_name: ClassVar[str] = "generation"

    prefill: Timing
    compilation: Compilation
    cache_bytes: int


@dataclass(frozen=True)
class Generate(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """Generate tokens for a batch of prompts, all with equal prompt and answer lengths."""

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
    # A profile misses matrix products: those of a single token are small, and compilers fuse many.
    is_profile_complete = False

    prompt: int = option(64, "mode=generate: tokens of each prompt", low=1, high=1_000_000)
    tokens: int = option(
        64, "mode=generate: tokens to generate, one after another", low=1, high=1_000_000
    )

    def reject_unused_keys(self, config: Mapping[str, Any]) -> None:
        """Raise ConfigError if a key of `generate` is set without mode=generate.

        Every configuration contains these keys, whatever its mode. Only the choice of a Hydra
        configuration group could add keys, and `mode` is not such a group.

        Args:
            config: The composed configuration, as nested mappings.
        """
        if config.get("mode") == "generate":
            return
        options = read(Generate, config.get("generate", {}), "generate")
        for name, value in vars(options).items():
            if value != getattr(GENERATE, name):
                remedy = "omit it, or set mode=generate"
                raise ConfigError(f"generate.{name}", value, "needs mode=generate", remedy)

    def check(self, point: Point) -> None:
        if not point.model.generates:
            reason = f"model={point.model.name} cannot generate tokens"
            remedy = "choose model=gpt or model=llama, or mode=inference"
            raise ConfigError("mode", "generate", reason, remedy)
        require_value(
            "devices", point.devices, required=1, reason="mode=generate is for one device"
        )
        require_value(
            "data",
            point.data.name,
            required="synthetic",
            reason="mode=generate draws random prompts",
        )
        positions = int(asdict(point.model)["sequence_length"])
        length = self.prompt + self.tokens
        if length > positions:
            reason = f"with generate.prompt={self.prompt} exceeds the model's {positions} positions"
            remedy = f"raise model.sequence_length to {length}, or generate fewer tokens"
            raise ConfigError("generate.tokens", self.tokens, reason, remedy)

    def cost_options(self) -> dict[str, int]:
        return asdict(self)

    def measure(self, run: PointRun) -> None:
        from paradnn.worker.measure import compile_steps
        from paradnn.worker.step import choose_types, product_flops, synthetic_batch
        from paradnn.workloads.generate.decoder import Decoder

        point = run.request
        framework = run.framework
        batch_size = point["batch_size"]

        def make_step(workload: Any) -> Any:
            batch = synthetic_batch(workload, batch_size, point["seed"])
            return framework.make_step(workload, batch, point)

        with run.phases("build"):
            # A model that is not trained keeps its weights in the type of its matrix products.
            choose_types(point, framework, mixed=False)
            with framework.scope():
                decoder = Decoder(
                    point["model"],
                    batch_size,
                    prompt=self.prompt,
                    tokens=self.tokens,
                    compile=point["compile"],
                )
            prefill = make_step(decoder.prefill)
            decode = make_step(decoder.decode)
        with run.phases("compile"):
            prefill_compilation, _ = compile_steps(prefill)
            compilation, _ = compile_steps(decode)
            products = product_flops(decode)
        run.memory.begin_steps()
        timed_prefill = run.time(prefill.run, prefill, lambda _: run.phases("prefill"))
        run.note_contention("prefill", timed_prefill.contention)
        run.note(work=Generation(timed_prefill.timing, prefill_compilation, decoder.cache_bytes))
        run.note_measured(run.time(decode.run, decode), decoder.decode, compilation, products)
        run.note_latencies(decode.run)
        run.note_memory_and_profile(decode)

    def name_parts(self, point: Point) -> list[str]:
        return ["generate", f"{self.prompt}+{self.tokens}"]

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of decoding, of the prefill, and of the whole generation.

        Times and rates of tokens have a 95% interval if the step time has one.

        Args:
            measured: Results of all processes of one measured configuration.
            known: Metrics that are computed already, such as those of the timed decode steps.
        """
        generations = messages_of_kind(measured.answers, Generation)
        step_ms = known.get("step_time_ms")
        if not generations or step_ms is None:
            return {}
        metrics = self._prefill_metrics(measured.point, generations, known)
        # The lower end of a rate is computed from the upper end of the step time, and vice versa.
        for end, opposite in (("", ""), ("_low", "_high"), ("_high", "_low")):
            milliseconds = known.get(f"step_time{end}_ms")
            if milliseconds:
                user_rate = 1e3 / milliseconds
                metrics[f"time_per_output_token{end}_ms"] = milliseconds
                metrics[f"tokens_per_second_per_user{opposite}"] = user_rate
                metrics[f"tokens_per_second{opposite}"] = measured.point.batch_size * user_rate
        costs = measured.costs
        compile_seconds = [sum(entry.compilation.seconds) for entry in generations]
        metrics |= {
            "cache_bytes": costs.cache_bytes,
            "decode_flops": costs.flops_per_step,
            "decode_bytes": costs.bytes_per_step,
            "prefill_compile_seconds": statistics.median(compile_seconds),
            "generation_ms": metrics["time_to_first_token_ms"] + (self.tokens - 1) * step_ms,
        }
        bandwidth = known.get("peak_bytes_per_second")
        if bandwidth:
            decode_bandwidth = costs.bytes_per_step / (step_ms / 1e3)
            metrics["decode_bandwidth_fraction"] = decode_bandwidth / bandwidth
        return metrics

    def _prefill_metrics(
        self, point: Point, generations: Sequence[Generation], known: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the time to the first token with its interval, and work and rates of the prefill.

        Args:
            point: The measured configuration.
            generations: The prefill of each process.
            known: Metrics that are computed already, by name. `peak_flops_per_second` is used if it
                is present.
        """
        from paradnn.config.point import prefill_costs
        from paradnn.session.measured import summarize

        costs = prefill_costs(point)
        times = summarize([entry.prefill.step_times for entry in generations])
        metrics = {
            "time_to_first_token_ms": times.value * 1e3,
            "prompt_tokens_per_second": point.batch_size * self.prompt / times.value,
            "prefill_flops": costs.flops_per_step,
            "prefill_bytes": costs.bytes_per_step,
            "prefill_intensity": costs.flops_per_step / costs.bytes_per_step,
            "prefill_flops_per_second": costs.flops_per_step / times.value,
        }
        if times.low is not None and times.high is not None:
            metrics["time_to_first_token_low_ms"] = times.low * 1e3
            metrics["time_to_first_token_high_ms"] = times.high * 1e3
        peak = known.get("peak_flops_per_second")
        if peak:
            metrics["prefill_flops_utilization"] = metrics["prefill_flops_per_second"] / peak
        return metrics

    def tags(self, measured: Measured) -> dict[str, str]:
        generations = messages_of_kind(measured.answers, Generation)
        timings = [entry.prefill for entry in generations]
        if not timings:
            return {}
        problems = dict.fromkeys(timing.steady_reason for timing in timings if not timing.steady)
        return {
            "prefill_steady": str(not problems).lower(),
            "prefill_steady_reason": "; ".join(problems) or timings[0].steady_reason,
        }

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        generations = messages_of_kind(measured.answers, Generation)
        if not generations:
            return {}
        processes = [plain_fields(entry) for entry in generations]
        return {"prefill.json": {"unit": "s", "processes": processes}}

    def find_contradictions(self, costs: Costs, answer: Answer) -> list[str]:
        return [
            f"the cache has {entry.cache_bytes} bytes, the analytic count is {costs.cache_bytes}"
            for entry in messages_of_kind([answer], Generation)
            if entry.cache_bytes != costs.cache_bytes
        ]

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "generation_ms" not in metrics:
            return None
        user_rate = rounded(metrics["tokens_per_second_per_user"])
        clauses = [
            f"first token after {metrics['time_to_first_token_ms']:.3f} ms, "
            f"then {metrics['time_per_output_token_ms']:.3f} ms per token",
            f"{rounded(metrics['tokens_per_second'])} tokens/s, {user_rate} per user",
        ]
        if "decode_bandwidth_fraction" in metrics:
            share = metrics["decode_bandwidth_fraction"]
            clauses.append(f"{share:.1%} of the measured bandwidth for compulsory traffic")
        return ResultText("generation", clauses)

    def forecast_phases(self, points: Any, step: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        """Predict the duration of the phase `prefill` of planned points (configurations).

        Warm-up and timing of the prefill are assumed to take as long as those of the decode steps.
        The forecast is too low if a single prefill takes longer than that.

        Args:
            points: The planned points, of all kinds of work.
            step: Ignored.
            known: Seconds predicted so far by phase name, as arrays with one row per point. Only
                `warmup` and `measure` are used.

        Returns:
            Seconds of the phase `prefill`, which are 0 for points without generation; empty if no
            point generates tokens.
        """
        is_own = (points.text("mode") == "generate")[:, None]
        if not is_own.any():
            return {}
        return {"prefill": (known["warmup"] + known["measure"]) * is_own}


GENERATE = Generate()
