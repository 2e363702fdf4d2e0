"""Estimates of the step time of a model on a device, from published timings of its operations.

The published timings are the atlas. Each operation of a step is predicted, and the times are
summed. Steps whose time was published (`fc` on TPU v2 and V100) are predicted as a whole. For other
models the products follow from the layers, with exact shapes. The two products of an attention
count as one kernel if such a kernel was timed on the device. The rest of the step's traffic moves
at the rate of elementwise kernels, or of memory-bound products.

Kernels were timed alone, so the sum excludes the time that a framework spends between them. Two
exceptions are the launches of eager execution, and the time in which a serving engine schedules
requests between two tokens. All operations are drawn jointly, so that the interval of a sum
includes the errors that its operations share. Several devices also exchange messages
(`analysis.atlas.parallel`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from analysis.atlas import Atlas, TimingGroup, load, make_operation
from analysis.atlas.changes import HardwareChange, speedup_draws
from analysis.atlas.kernels import experts
from analysis.atlas.memory import device_memory_bytes, memory_bytes, memory_reason
from analysis.atlas.parallel import (
    COMMUNICATION,
    PARALLEL,
    AllReduces,
    communication_parts,
    gradient_messages,
    parallel_error,
    tensor_layers,
    tensor_messages,
    timed_device_counts,
)
from analysis.atlas.parts import StepPart, step_parts, weight_bytes
from analysis.atlas.points import format_point, get_text, model_from_row
from analysis.atlas.scaling import scaled_atlas
from analysis.atlas.traced import traced_layers
from analysis.atlas.whole_steps import fc_columns, overhead_note
from analysis.format import format_seconds
from analysis.lazy import np
from paradnn.core.errors import InsufficientData
from paradnn.core.layers import COMPUTE_BYTES, Costs, Layer, sum_costs
from paradnn.families import Model, optimizer_slots
from paradnn.families.attention import GATED_LAYERS
from paradnn.families.operations import Operation, RepeatedOperation, product_operations

#: Number of draws of the time of a step.
_DRAWS = 2000
#: Standard deviations of logarithms (docs/explanation/extrapolation.md): the error that all
#: operations of a part share if they were timed, and if substitutes were; and the error of the step
#: as a whole.
_TIMED_SPREAD = 0.1
_SUBSTITUTE_SPREAD = 0.35
_STEP_SPREAD = 0.1
#: Further error of a step in which devices wait for each other (docs/validation/atlas.md).
_SHARED_STEP_SPREAD = 0.15
#: Largest ratio of the ends of an interval; beyond it, the time counts as unknown.
_MAX_INTERVAL_FACTOR = 30.0
#: Share of a training step that the backward pass takes: two thirds of the arithmetic.
_BACKWARD_SHARE = 2 / 3
#: Seconds in which a framework without graphs dispatches an operation, and the standard deviation
#: of their logarithm.
LAUNCH_SECONDS = 1e-5
_LAUNCH_SPREAD = 0.5
#: Exponent of the power law of expert loads: the timed exponent that is closest to real loads.
_EXPERT_SKEW = 1.2
#: Name of the part of a step in which kernels wait for their launch.
LAUNCHES = "launches"
#: Engines that schedule requests on the host between two tokens.
_SERVING_ENGINES = ("vLLM", "SGLang", "TensorRT-LLM")
#: Seconds that the host of a serving engine needs for each token, further seconds for each request
#: in the batch, and the standard deviation of the logarithm of their sum
#: (docs/validation/atlas.md).
_HOST_SECONDS = 8.5e-4
_HOST_SECONDS_PER_REQUEST = 1.7e-5
_HOST_SPREAD = 0.7
#: Name of the part of a token in which the host of a serving engine schedules requests.
SCHEDULING = "scheduling"
#: Numbers of devices that a remedy proposes for a step that exceeds the memory of one device.
_DEVICE_COUNTS = (2, 4, 8)
#: Parts of a step below this share are not mentioned.
_MIN_SHARE = 0.05
#: Largest ratio of two times that different precisions may explain. Beyond it, sources disagree.
_PRECISION_FACTOR = 10.0
_TRACED_NOTE = (
    "the products were counted in a trace on this machine, with convolutions as products; "
    "the traffic between them is an assumption"
)


@dataclass(frozen=True)
class StepTimeEstimate:
    """Estimated time of a step in seconds, with its 95% interval.

    Attributes:
        device: Name of the device.
        point: The model, batch size, precision and mode as text, such as "gpt 4x256 h4 t128 b8
            bfloat16 inference".
        seconds: Time of a step, or of a token in a generation; None if unknown.
        low: Lower end of the interval; None if unknown.
        high: Upper end of the interval; None if unknown.
        sources: Sources of the timings.
        extrapolated: Operations and sizes that the timings do not cover.
        why: Reason why the time is unknown; empty if it is known.
        prompt: Seconds to process the prompt of a generation; None for any other step.
        parts: Mapping from parts of the step, such as "attention", to their shares of the time.
        is_dispatch_floor: Whether the assumed cost of dispatching operations exceeds the predicted
            time of the kernels. The estimate is then a lower bound that hardly depends on the
            model's sizes.
        notes: Caveats: the time is a lower bound, it is spent outside of the device, or sources
            disagree (the interval then spans both).
        prompt_tokens: Number of tokens of the prompt of a generation; None for any other step.
        generated_tokens: Number of tokens that a generation adds; None for any other step.
        precision: Precision of the point.
        operations: Number of operations of a step, or of a token, which eager execution launches
            one by one; None if unknown.
        eager_seconds: Seconds of the step if each operation is launched separately; None if
            unknown.
        devices: Number of devices.
        parallel: How the devices share the step, "data" or "tensor"; empty for one device.
        memory_bytes: Lower bound of the bytes of memory that the step needs on each device; None if
            unknown.
        device_memory_bytes: Bytes of memory of a device by its specification; None if unknown.
        change: How the device is changed, such as "2x bandwidth"; empty for the device as it is.
        change_speedup: Time on the unchanged device / time on the changed device; None without a
            change. Both times share the errors of the kernels.
        change_speedup_low: Lower end of the 95% interval of `change_speedup`.
        change_speedup_high: Upper end of that interval.
    """

    device: str
    point: str
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    sources: Sequence[str] = ()
    extrapolated: Sequence[str] = ()
    why: str = ""
    prompt: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    is_dispatch_floor: bool = False
    notes: Sequence[str] = ()
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    precision: str = ""
    operations: float | None = None
    eager_seconds: float | None = None
    devices: int = 1
    parallel: str = ""
    memory_bytes: float | None = None
    device_memory_bytes: float | None = None
    change: str = ""
    change_speedup: float | None = None
    change_speedup_low: float | None = None
    change_speedup_high: float | None = None


@dataclass(frozen=True)
class _Phase:
    """Work of one device in a step, or in one phase (prompt or token) of a generation.

    Attributes:
        products: Matrix products and convolutions.
        other_bytes: Bytes that the phase moves in addition to the traffic of its products.
        costs: Analytic costs of the phase, such as FLOP and bytes.
        all_reduces: All-reduces (sums over all devices) in the phase.
        tokens: Number of tokens that a mixture of experts routes; 0 without a mixture of experts.
    """

    products: Sequence[RepeatedOperation]
    other_bytes: float
    costs: Costs
    all_reduces: Sequence[AllReduces] = ()
    tokens: int = 0


@dataclass(frozen=True)
class _Question:
    """A step whose time is estimated, on a device, and the timings to use.

    Attributes:
        row: The configuration of the step, as a mapping from keys to values.
        model: The model of the step.
        atlas: Timings by device and kind of kernel.
        device: Name of the device in the atlas.
        engine: Engine whose timings are used; None for the preferred one.
        version: Version of the engine; None for the newest.
        change: How the device is changed, as factors on its properties.
    """

    row: Mapping[Any, Any]
    model: Model
    atlas: Atlas
    device: str
    engine: str | None
    version: str | None
    change: HardwareChange = field(default_factory=HardwareChange)

    @property
    def batch(self) -> int:
        """Number of examples in a step, summed over all devices."""
        return int(self.row["batch_size"])

    @property
    def device_batch(self) -> int:
        """Number of examples that each device processes in a step."""
        if self.parallel == "data":
            return self.batch // self.devices
        return self.batch

    @property
    def devices(self) -> int:
        return int(float(get_text(self.row, "devices", "1")))

    @property
    def parallel(self) -> str:
        """How several devices share the step; empty for one device, or if the row has no value."""
        if self.devices == 1:
            return ""
        return get_text(self.row, "parallel", "")

    @property
    def tensor_devices(self) -> int:
        """Number of devices that share each product."""
        if self.parallel == "tensor":
            return self.devices
        return 1

    @property
    def precision(self) -> str:
        return str(self.row["precision"])

    @property
    def compute(self) -> str:
        """Precision of the activations.

        It is the precision of the step, or bfloat16 if the step has weights narrower than 16 bits.
        """
        if self.precision in COMPUTE_BYTES:
            return self.precision
        return "bfloat16"

    @property
    def mode(self) -> str:
        return get_text(self.row, "mode", "train")

    @property
    def point(self) -> str:
        return format_point(self.row, self.model)

    @property
    def is_fc_training(self) -> bool:
        """Whether this is a training step of `fc`, for which whole steps were published."""
        return self.model.name == "fc" and self.mode == "train"

    @property
    def routes_tokens(self) -> bool:
        """Whether this is a generation in which tokens choose among experts."""
        return self.mode == "generate" and getattr(self.model, "experts", 1) > 1

    @property
    def is_eager(self) -> bool:
        """Whether the framework launches operations one by one."""
        return get_text(self.row, "compile", "graph") == "eager"

    @cached_property
    def phases(self) -> Sequence[_Phase]:
        """The phases of a step: the step as a whole, or the prompt and one token of a generation.

        Raises:
            InsufficientData: If a model that the user defined cannot be built on this machine.
        """
        return tuple(_phases(self))

    def in_precision(self, precision: str) -> _Question:
        return replace(self, row={**self.row, "precision": precision})

    def unknown(self, why: str) -> StepTimeEstimate:
        return StepTimeEstimate(
            self.device,
            self.point,
            why=why,
            precision=self.precision,
            devices=self.devices,
            parallel=self.parallel,
        )

    def find_group(self, kind: str) -> TimingGroup | None:
        """Return the timings of a kind of kernel in the precision of the step.

        If no such timings exist, timings in a related precision are used:

        - For kernels other than products and convolutions, bfloat16, since they run in 16 bits even
          if the weights are narrower. For a step in float16, bfloat16 is used for all kinds.
        - For decode kernels with weights of less than 8 bits, fp8, since such models are published
          with a cache of 8 bits.

        Args:
            kind: Kind of kernel, such as "gemm" or "decode". The version of the engine is
                considered only for "gemm".

        Returns:
            The timings; None if there are no such timings.
        """
        precisions = [self.precision]
        if kind == "decode" and weight_bytes(self.precision) < 1:
            precisions.append("fp8")
        if kind not in ("gemm", "conv2d") or self.precision == "float16":
            precisions.append("bfloat16")
        version = self.version if kind == "gemm" else None
        for precision in precisions:
            group = self.atlas.find_group(self.device, kind, precision, self.engine, version)
            if group is not None:
                return group
        return None


def estimate_step_time(
    row: Mapping[Any, Any],
    device: str,
    engine: str | None = None,
    version: str | None = None,
    atlas: Atlas | None = None,
    change: HardwareChange | None = None,
    option: str = "--device",
) -> StepTimeEstimate:
    """Estimate the step time of a model configuration on a device, from timings of its operations.

    Args:
        row: The configuration, as a mapping from keys such as "model.layers" to values.
        device: Name of the device. If the atlas has no timings of the device but its specifications
            are known, the timings of the most similar device are scaled.
        engine: Library or serving engine whose timings are used; None for the preferred engine.
        version: Version of the engine; None for the newest version.
        atlas: Timings to use; None for the published timings of the package. The memory of the
            device is checked only with the published timings.
        change: How the device is changed; None for the device as it is.
        option: Option with which the user named the device, for error messages.

    Returns:
        The estimate. If the time is unknown, `seconds` is None, and `why` states the reason.

    Raises:
        ConfigError: If the device or the model is unknown.
    """
    # The memory is checked only with the shipped atlas. A given atlas is of a device on which the
    # user has measured kernels.
    memory_device = ""
    other_device = ""
    if atlas is None:
        atlas = load()
        memory_device = device
    name = device
    if not atlas.matching_devices(device):
        scaled = scaled_atlas(atlas, device, str(row["precision"]))
        if scaled is not None:
            other_device, atlas = scaled
            name = other_device
    question = _Question(
        row=row,
        model=model_from_row(row, "model"),
        atlas=atlas,
        device=atlas.device_name(name, option),
        engine=engine,
        version=version,
        change=change or HardwareChange(),
    )
    estimate = _estimate(question, memory_device)
    estimate = replace(estimate, change=question.change.label)
    if other_device:
        return _as_substitute(estimate, device, other_device)
    return estimate


def _estimate(question: _Question, memory_device: str) -> StepTimeEstimate:
    """Estimate the time of a step.

    If the step is not supported, or does not fit into the memory of a device, the time is unknown.
    The estimate then states the reason.

    Args:
        question: The step, the device, and the timings to use.
        memory_device: Name of the device whose memory is checked; empty for no check.
    """
    why = _unsupported_reason(question)
    if why:
        return question.unknown(why)
    try:
        costs = [phase.costs for phase in question.phases]
    except InsufficientData as problem:
        return question.unknown(str(problem))
    needed = memory_bytes(costs, question.precision, question.compute, question.mode)
    available = device_memory_bytes(memory_device)
    if available is not None:
        available *= question.change.memory
    why = memory_reason(memory_device, needed, available)
    if why:
        why += _memory_remedy(question, memory_device)
    estimate = question.unknown(why) if why else _estimate_known(question)
    return replace(
        estimate,
        memory_bytes=needed or None,
        device_memory_bytes=available,
    )


def _memory_remedy(question: _Question, memory_device: str) -> str:
    """Return a remedy for a step that does not fit into the memory of a device.

    Args:
        question: The step, the device, and the timings to use.
        memory_device: Name of the device whose memory is too small for the step.

    Returns:
        Text that recommends the smallest number of devices whose memory suffices with tensor
        parallelism, such as "; use devices=4 parallel=tensor". Empty if no tried number suffices.
    """
    for devices in _DEVICE_COUNTS:
        row = {**question.row, "devices": devices, "parallel": "tensor"}
        shared = replace(question, row=row)
        if devices <= question.tensor_devices or _unsupported_reason(shared):
            continue
        costs = [phase.costs for phase in shared.phases]
        needed = memory_bytes(costs, shared.precision, shared.compute, shared.mode)
        if not memory_reason(memory_device, needed, device_memory_bytes(memory_device)):
            return f"; use devices={devices} parallel=tensor"
    return ""


def _estimate_known(question: _Question) -> StepTimeEstimate:
    """Estimate a step that is supported and fits into memory.

    There are two sources: published times of whole steps, and timings of single kernels. Whole
    steps in the precision of the step have precedence. The estimate from the second source serves
    as a check: if the two disagree, the interval spans the intervals of both, and a note states the
    difference.

    Args:
        question: The step, the device, and the timings to use.
    """
    group = _whole_step_group(question)
    if group is None:
        estimate = _estimate_from_kernels(question)
        other = _whole_step_in_other_precision(question)
    else:
        estimate = _estimate_whole_step(question, group)
        other = _kernels_in_any_precision(question)
    note = _disagreement(estimate, other)
    if note and other is not None:
        ends = [estimate.low, estimate.high, other.low, other.high]
        known_ends = [end for end in ends if end is not None]
        estimate = replace(
            estimate,
            low=min(known_ends),
            high=max(known_ends),
            notes=(*estimate.notes, note),
        )
    return estimate


def _whole_step_group(question: _Question) -> TimingGroup | None:
    if not question.is_fc_training or question.devices > 1:
        return None
    return question.atlas.find_group(
        question.device, "fc", question.precision, question.engine, question.version
    )


def _estimate_whole_step(question: _Question, group: TimingGroup) -> StepTimeEstimate:
    costs = question.model.costs(
        batch_size=question.batch,
        precision=question.precision,
        mode=question.mode,
        optimizer="rmsprop",
    )
    columns = {
        **fc_columns(question.model, question.batch),
        "flops": costs.flops_per_step,
        "bytes": costs.bytes_per_step,
    }
    operation = make_operation("fc", columns, question.mode)
    part = StepPart("whole step", group, [RepeatedOperation("", operation, 1.0)])
    estimate = _sum_estimate(question, [part])
    if estimate.seconds is not None:
        note = overhead_note(group, question.batch, estimate.seconds)
        if note:
            estimate = replace(estimate, notes=(*estimate.notes, note))
    return estimate


def _whole_step_in_other_precision(question: _Question) -> StepTimeEstimate | None:
    """Return an estimate from published whole steps on the device, in any precision.

    Args:
        question: The step, the device, and the timings to use.

    Returns:
        The estimate; None if no such steps were published for the device.
    """
    if not question.is_fc_training or question.devices > 1:
        return None
    for group in question.atlas.groups:
        if (group.device, group.kind) == (question.device, "fc"):
            return _estimate_whole_step(question.in_precision(group.precision), group)
    return None


def _kernels_in_any_precision(question: _Question) -> StepTimeEstimate | None:
    """Return an estimate from kernels on the device, preferably in the precision of the step.

    Args:
        question: The step, the device, and the timings to use.

    Returns:
        The estimate; None if no products were timed on the device.
    """
    precisions = [
        group.precision
        for group in question.atlas.groups
        if (group.device, group.kind) == (question.device, "gemm")
    ]
    precisions.sort(key=lambda precision: precision != question.precision)
    if not precisions:
        return None
    return _estimate_from_kernels(question.in_precision(precisions[0]))


def _disagreement(estimate: StepTimeEstimate, other: StepTimeEstimate | None) -> str:
    """Return a note that a second estimate contradicts the first; empty if it does not.

    A difference that different precisions may explain does not count as a contradiction.

    Args:
        estimate: The first estimate, which is reported.
        other: The estimate from a different source; None if no other source exists.
    """
    if other is None or estimate.seconds is None or other.seconds is None:
        return ""
    assert estimate.low is not None
    assert estimate.high is not None
    assert other.low is not None
    assert other.high is not None
    if other.low <= estimate.high and estimate.low <= other.high:
        return ""
    ratio = other.seconds / estimate.seconds
    if _is_explained_by_precision(estimate.precision, other.precision, ratio):
        return ""
    if ratio > 1:
        comparison = f"{ratio:.3g} times as long"
    else:
        comparison = f"1/{1 / ratio:.3g} of this time"
    explanation = "".join(f"; {note}" for note in other.notes)
    return (
        f"sources disagree: {other.point} takes {format_seconds(other.seconds)} "
        f"({format_seconds(other.low)} to {format_seconds(other.high)}), {comparison}, "
        f"according to {other.sources[0]}{explanation}"
    )


def _is_explained_by_precision(precision: str, other_precision: str, ratio: float) -> bool:
    """Return whether different precisions alone may explain a ratio of times.

    Args:
        precision: Precision of the first time.
        other_precision: Precision of the second time.
        ratio: The second time / the first time.
    """
    width_ratio = weight_bytes(other_precision) / weight_bytes(precision)
    if width_ratio == 1:
        return False
    is_wider_slower = (ratio > 1) == (width_ratio > 1)
    return is_wider_slower and 1 / _PRECISION_FACTOR < ratio < _PRECISION_FACTOR


def _estimate_from_kernels(question: _Question) -> StepTimeEstimate:
    if question.find_group("gemm") is None:
        return question.unknown(_missing_products_reason(question))
    collectives = None
    if any(phase.all_reduces for phase in question.phases):
        collectives = _collective_group(question)
    estimates = []
    for phase in question.phases:
        parts = step_parts(
            question.find_group,
            question.model,
            phase.products,
            phase.other_bytes,
            question.device_batch,
            question.tensor_devices,
        )
        if phase.tokens:
            parts.append(_experts_part(question, phase.tokens))
        if collectives is not None:
            parts += communication_parts(collectives, phase.all_reduces, question.devices)
        is_token = question.mode == "generate" and phase is question.phases[-1]
        requests = 0
        if is_token and parts[0].group.engine in _SERVING_ENGINES:
            requests = question.device_batch
        estimates.append(_sum_estimate(question, parts, requests))
    estimate = estimates[-1]
    if question.model.is_counted:
        estimate = replace(estimate, extrapolated=(_TRACED_NOTE, *estimate.extrapolated))
    if question.mode == "generate":
        estimate = replace(
            estimate,
            prompt=estimates[0].seconds,
            prompt_tokens=int(question.row["generate.prompt"]),
            generated_tokens=int(question.row["generate.tokens"]),
        )
    return estimate


def _experts_group(question: _Question) -> TimingGroup | None:
    """Return the timings of a mixture of experts (MoE), in the precision of the step.

    The fallback is timings in the block format of this precision, such as "fp8_block".

    Args:
        question: The step, the device, and the timings to use.

    Returns:
        The timings; None if experts were timed in neither format.
    """
    for precision in (question.precision, f"{question.precision}_block"):
        group = question.atlas.find_group(question.device, "experts", precision, question.engine)
        if group is not None:
            return group
    return None


def _experts_part(question: _Question, tokens: int) -> StepPart:
    """Return the experts of all layers as a part of a step on one device.

    Args:
        question: The step, the device, and the timings to use.
        tokens: Number of tokens that the step routes to experts.
    """
    group = _experts_group(question)
    assert group is not None, "the caller checks this"
    model = vars(question.model)
    columns = experts(
        tokens=tokens,
        hidden=model["width"],
        inner=model["feed_forward"],
        chosen=model["active_experts"],
        count=model["experts"],
        tensor=question.tensor_devices,
        parallel=1,
        width=weight_bytes(group.precision),
        skew=_EXPERT_SKEW,
    )
    operation = make_operation("experts", columns, f"power_law_{_EXPERT_SKEW:g}")
    return StepPart("experts", group, [RepeatedOperation("", operation, model["layers"])])


def _collective_group(question: _Question) -> TimingGroup | None:
    """Return the timings of collectives (messages between devices) on the device.

    With parallel=tensor, timings of the requested engine are preferred. Otherwise, and if the
    engine has no such timings, those of NCCL are used.

    Args:
        question: The step, the device, and the timings to use.

    Returns:
        The timings; None if the device has neither.
    """
    group = None
    if question.parallel == "tensor":
        group = question.atlas.find_group(
            question.device, "collective", "bfloat16", question.engine
        )
    if group is None:
        group = question.atlas.find_group(question.device, "collective", "bfloat16", "NCCL")
    return group


def _missing_collectives_reason(group: TimingGroup | None, question: _Question) -> str:
    """Return why the time of messages between devices is unknown, with a remedy.

    Args:
        group: The timings of collectives; None if the device has none.
        question: The step, with the number of devices.

    Returns:
        The reason; empty if a collective was timed over this number of devices.
    """
    if group is None:
        return "no collectives were timed on this device; use devices=1"
    counts = timed_device_counts(group)
    if question.devices in counts:
        return ""
    known = ",".join(map(str, counts))
    return f"collectives were not timed over {question.devices} devices; use devices={known}"


def _missing_products_reason(question: _Question) -> str:
    timed = sorted(
        {
            (group.kind, group.precision)
            for group in question.atlas.groups
            if group.device == question.device
        },
        reverse=True,
    )
    known = [precision for kind, precision in timed if kind == "gemm"]
    if not known:
        known = [f"{kind} in {precision}" for kind, precision in timed]
    return (
        f"no matrix products were timed in {question.precision} on this device; "
        f"the timed ones are in {', '.join(known)}"
    )


def _phases(question: _Question) -> Iterator[_Phase]:
    """Yield the phases of a step on one device: the whole step, or the prompt and then one token.

    Args:
        question: The step, the device, and the timings to use.

    Raises:
        InsufficientData: If a model that the user defined cannot be built on this machine.
    """
    row = question.row
    model = question.model
    batch = question.device_batch
    if model.is_kernel:
        operation = model.as_operation(batch, question.compute)
        costs = model.costs(
            batch_size=batch, precision=question.compute, mode="inference", optimizer="sgd"
        )
        yield _make_phase(question, [RepeatedOperation("", operation, 1.0)], costs)
        return
    if question.mode == "generate":
        prompt = int(row["generate.prompt"])
        length = prompt + int(row["generate.tokens"])
        # Decode kernels read only the positions that were already written: on average, the prompt
        # and half of the generated tokens.
        mean_length = length
        if question.find_group("decode") is not None:
            mean_length = prompt + math.ceil((length - prompt) / 2)
        phases = [model.prefill_layers(prompt, length), model.decode_layers(mean_length)]
    elif model.is_counted:
        framework = get_text(row, "framework.name", "tensorflow")
        phases = [traced_layers(framework, model, batch)]
        # The traced layers already process the whole batch.
        batch = 1
    else:
        phases = [model.layer_list()]
    phase_tokens = [0] * len(phases)
    if question.routes_tokens:
        phase_tokens = [batch * prompt, batch]
    for layers, tokens in zip(phases, phase_tokens, strict=True):
        yield _phase_of_layers(question, layers, batch, tokens)


def _phase_of_layers(
    question: _Question, layers: Sequence[Layer], batch: int, tokens: int
) -> _Phase:
    """Return the work of one device in a phase of a step.

    Text generation has two phases: the prompt, and one token. Other steps have a single phase.

    Args:
        question: The step, the device, and the timings to use.
        layers: Layers of the whole model.
        batch: Number of examples that the layers process.
        tokens: Number of tokens that a mixture of experts routes to its experts; 0 for a model
            without experts.
    """
    slots = 0
    product_mode = "inference"
    if question.mode == "train":
        slots = optimizer_slots(get_text(question.row, "optimizer.name", "rmsprop"), 0.9)
        product_mode = "train"
    device_layers = layers
    if question.tensor_devices > 1:
        device_layers = tensor_layers(layers, question.tensor_devices)
    costs = sum_costs(device_layers, batch, question.compute, question.mode, slots=slots)
    all_reduces: Sequence[AllReduces] = ()
    width = COMPUTE_BYTES[question.compute]
    if question.parallel == "tensor":
        all_reduces = tensor_messages(layers, batch, width, question.mode)
    elif question.parallel == "data" and question.mode == "train":
        all_reduces = gradient_messages(costs.parameters, width)
    if not tokens:
        operations = product_operations(device_layers, batch, question.compute, product_mode)
        return _make_phase(question, operations, costs, all_reduces)
    others = [layer for layer in device_layers if layer.name not in GATED_LAYERS]
    operations = product_operations(others, batch, question.compute, product_mode)
    other_costs = sum_costs(others, batch, question.compute, question.mode, slots=slots)
    dense_phase = _make_phase(question, operations, other_costs, all_reduces)
    return replace(dense_phase, costs=costs, tokens=tokens)


def _make_phase(
    question: _Question,
    operations: Sequence[RepeatedOperation],
    costs: Costs,
    all_reduces: Sequence[AllReduces] = (),
) -> _Phase:
    if question.model.is_kernel:
        products = operations
    else:
        products = [entry for entry in operations if entry.operation.kind in ("gemm", "conv2d")]
    product_bytes = sum(entry.count * entry.operation.bytes for entry in products)
    other_bytes = max(0.0, costs.bytes_per_step - product_bytes)
    return _Phase(products, other_bytes, costs, all_reduces)


def sum_parts(
    parts: Sequence[StepPart], change: HardwareChange | None = None
) -> tuple[np.ndarray, dict[str, float]]:
    """Return random draws of the time of a step, as the sum of its parts.

    Args:
        parts: All parts of the step. Each has operations and the timings that predict them.
        change: How the device is changed; None for the device as it is.

    Returns:
        Draws (n,) of the seconds of the step, and a mapping from the name of each part to its
        median seconds.
    """
    random = np.random.default_rng(0)
    total = np.full(_DRAWS, max(part.group.dispatch_seconds for part in parts))
    common_errors: dict[str, np.ndarray] = {}
    seconds: defaultdict[str, float] = defaultdict(float)
    # Overlapped parts come last, since they run at the same time as the other parts.
    for part in sorted(parts, key=lambda part: part.is_overlapped):
        # Equal operations share their prediction.
        counts: defaultdict[Operation, float] = defaultdict(float)
        for entry in part.operations:
            counts[entry.operation] += entry.count
        if part.name not in common_errors:
            spread = _SUBSTITUTE_SPREAD if part.substitution else _TIMED_SPREAD
            common_errors[part.name] = np.exp(spread * random.standard_normal(_DRAWS))
        logs = part.group.predict(list(counts)).draws(_DRAWS, random)
        each = np.exp(logs) + part.group.overhead_seconds
        drawn = np.array(list(counts.values()))[:, None] * each * common_errors[part.name]
        part_seconds = drawn.sum(axis=0)
        if change is not None and change.label:
            medians = np.median(each, axis=1)
            part_seconds = part_seconds / speedup_draws(part.group, counts, medians, change, _DRAWS)
        if part.is_overlapped:
            # The share of the part that runs during other parts is unknown, so it is drawn
            # uniformly from 0 to 1. At most the time of the backward pass can hide a part.
            hidden = np.minimum(part_seconds, _BACKWARD_SHARE * total)
            part_seconds = part_seconds - random.random(_DRAWS) * hidden
            seconds[part.name] += float(np.median(part_seconds))
        else:
            seconds[part.name] += float(np.median(part_seconds))
        total = total + part_seconds
    return total, seconds


def interval_of_draws(
    total: np.ndarray, *, is_whole_step: bool = False, is_shared: bool = False
) -> tuple[float, float, float]:
    """Return the median time of a step and the ends of its 95% interval, in seconds.

    Args:
        total: Random draws (n,) of the seconds of the step.
        is_whole_step: Whether whole steps were timed. If not, the interval includes an error for
            the sum of separately timed kernels.
        is_shared: Whether the devices of the step wait for each other, which adds a further error.
    """
    error: np.ndarray | float = 0.0
    if not is_whole_step:
        spread = math.hypot(_STEP_SPREAD, _SHARED_STEP_SPREAD if is_shared else 0.0)
        error = spread * np.random.default_rng(1).standard_normal(_DRAWS)
    low, high = np.quantile(total * np.exp(error), (0.025, 0.975))
    return float(np.median(total)), float(low), float(high)


@dataclass(frozen=True)
class _StepDraws:
    """Random draws (n,) of the seconds of a step, from joint draws of its parts.

    Attributes:
        host: Draws of the seconds in which a serving engine schedules requests; 0 without a serving
            engine.
        kernels: Draws of the seconds of all kernels plus `host`.
        eager: For each draw, the larger of `kernels` and the seconds to launch all operations one
            by one.
        part_seconds: Median seconds of each part, by name.
        operations: Number of operations.
        includes_launches: Whether the timings already include the time to launch operations.
        adds_launches: Whether the time to launch operations must be added: the framework launches
            each operation separately, and the timings exclude launches.
    """

    host: np.ndarray
    kernels: np.ndarray
    eager: np.ndarray
    part_seconds: dict[str, float]
    operations: float
    includes_launches: bool
    adds_launches: bool

    @property
    def total(self) -> np.ndarray:
        """The seconds of the step."""
        return self.eager if self.adds_launches else self.kernels


def _draw_step(question: _Question, parts: Sequence[StepPart], requests: int) -> _StepDraws:
    """Return random draws of the time of a step.

    Args:
        question: The step, the device, and the timings to use.
        parts: All parts of the step.
        requests: Number of requests that a serving engine schedules before each token; 0 without a
            serving engine.
    """
    kernels, part_seconds = sum_parts(parts, question.change)
    host = _host_draws(requests)
    if requests:
        kernels = kernels + host
        part_seconds[SCHEDULING] = float(np.median(host))
    operations = sum(entry.count for part in parts for entry in part.operations)
    launches = question.change.overhead * _launch_draws(operations)
    is_eager = question.is_eager or any(part.group.engine == "PyTorch" for part in parts)
    # Timings of whole steps, and of calls from Python, already include the launches.
    includes_launches = _is_whole_step(parts) or any(part.group.dispatch_seconds for part in parts)
    return _StepDraws(
        host=host,
        kernels=kernels,
        eager=np.maximum(kernels, launches),
        part_seconds=part_seconds,
        operations=operations,
        includes_launches=includes_launches,
        adds_launches=is_eager and not includes_launches,
    )


def _is_whole_step(parts: Sequence[StepPart]) -> bool:
    return parts[0].name == "whole step"


def _sum_estimate(
    question: _Question, parts: Sequence[StepPart], requests: int = 0
) -> StepTimeEstimate:
    """Estimate the time of a step as the sum of its parts, with interval, sources and caveats.

    The time is unknown if the interval is too wide, because the sizes are too far from the timed
    sizes.

    Args:
        question: The step, the device, and the timings to use.
        parts: All parts of the step.
        requests: Number of requests that a serving engine schedules before each token; 0 without a
            serving engine.
    """
    draws = _draw_step(question, parts, requests)
    median, low, high = interval_of_draws(
        draws.total,
        is_whole_step=_is_whole_step(parts),
        is_shared=any(part.name == COMMUNICATION for part in parts),
    )
    part_seconds = dict(draws.part_seconds)
    floor_note = ""
    if draws.adds_launches:
        kernel_median = float(np.median(draws.kernels))
        part_seconds[LAUNCHES] = max(0.0, median - kernel_median)
        if kernel_median < draws.operations * LAUNCH_SECONDS:
            floor_note = _floor_note(draws.operations)
    shares = {name: seconds / median for name, seconds in part_seconds.items()}
    lowest, highest = np.quantile(draws.total, (0.025, 0.975))
    if not highest < _MAX_INTERVAL_FACTOR * lowest:
        largest = max(parts, key=lambda part: shares[part.name])
        return question.unknown(
            f"{largest.name}: the sizes are too far from the timed sizes "
            f"({largest.group.description})"
        )
    change_speedup: tuple[float | None, ...] = (None, None, None)
    if question.change.label and not draws.adds_launches:
        change_speedup = _change_speedup(parts, draws)
    relevant = [part for part in parts if shares[part.name] >= _MIN_SHARE]
    return StepTimeEstimate(
        device=question.device,
        point=question.point,
        seconds=median,
        low=low,
        high=high,
        sources=tuple(dict.fromkeys(part.group.description for part in relevant)),
        extrapolated=tuple(_describe_extrapolations(relevant, shares)),
        parts=shares,
        is_dispatch_floor=bool(floor_note),
        notes=(floor_note,) if floor_note else (),
        precision=question.precision,
        operations=None if draws.includes_launches else draws.operations,
        eager_seconds=None if draws.includes_launches else float(np.median(draws.eager)),
        change_speedup=change_speedup[0],
        change_speedup_low=change_speedup[1],
        change_speedup_high=change_speedup[2],
        devices=question.devices,
        parallel=question.parallel,
    )


def _change_speedup(parts: Sequence[StepPart], draws: _StepDraws) -> tuple[float, ...]:
    """Return the speedup by a change of the device, and the ends of its 95% interval.

    Args:
        parts: All parts of the step.
        draws: Draws of the time of the step on the changed device.
    """
    # Both sums use the same random numbers, so the errors that they share cancel in the ratio.
    unchanged = sum_parts(parts)[0] + draws.host
    return tuple(map(float, np.quantile(unchanged / draws.total, (0.5, 0.025, 0.975))))


def _describe_extrapolations(
    parts: Sequence[StepPart], shares: Mapping[str, float]
) -> Iterator[str]:
    """Yield remarks on parts of a step that its timings do not cover.

    There is a remark on each part whose time comes from substitute kernels, and on each size that
    exceeds the largest timed size.

    Args:
        parts: The parts of the step.
        shares: Share of each part in the time of the step, by name.
    """
    for part in parts:
        if part.substitution:
            yield f"{part.name} ({shares[part.name]:.0%} of the step) {part.substitution}"
        factors = part.group.extrapolation_factors([entry.operation for entry in part.operations])
        for size, factor in factors.items():
            yield f"{part.name}: {size} is {factor:.3g} times the largest timed value"


def _host_draws(requests: int) -> np.ndarray:
    """Return random draws of the seconds in which a serving engine schedules requests.

    Args:
        requests: Number of requests in the batch. With 0, all draws are 0.
    """
    if not requests:
        return np.zeros(_DRAWS)
    random = np.random.default_rng(4)
    seconds = _HOST_SECONDS + _HOST_SECONDS_PER_REQUEST * requests
    return np.asarray(seconds * np.exp(_HOST_SPREAD * random.standard_normal(_DRAWS)))


def _launch_draws(operations: float) -> np.ndarray:
    """Return random draws of the seconds that eager execution needs to launch operations.

    An eager step takes at least this time, even if its kernels need less.

    Args:
        operations: Number of operations in the step.
    """
    random = np.random.default_rng(2)
    each = LAUNCH_SECONDS * np.exp(_LAUNCH_SPREAD * random.standard_normal(_DRAWS))
    return np.asarray(operations * each)


def _floor_note(operations: float) -> str:
    return (
        f"the time is a lower bound: dispatching {operations:,.0f} operations at about "
        f"{LAUNCH_SECONDS * 1e6:.0f} us each takes longer than running their kernels"
    )


def _unsupported_reason(question: _Question) -> str:
    """Return the reason why a step cannot be estimated, with a remedy; empty if it can.

    Args:
        question: The step, the device, and the timings to use.
    """
    row = question.row
    model = question.model
    timed_kernels = ("gemm", "conv2d", "elementwise")
    if model.is_communication or (model.is_kernel and model.name not in timed_kernels):
        return f"{model.name} was not timed as part of a step; choose a model, such as gpt"
    if question.devices > 1 and question.parallel not in PARALLEL:
        return "several devices need parallel=data or parallel=tensor; add one, or use devices=1"
    if question.mode not in ("train", "inference", "generate"):
        return f"mode={question.mode} is unknown to this version"
    if question.mode == "generate" and not model.generates:
        return f"{model.name} cannot generate tokens; use mode=inference, or model=gpt"
    if question.routes_tokens and _experts_group(question) is None:
        return f"no mixture of experts was timed in {question.precision} on this device"
    optimizer = get_text(row, "optimizer.name", "rmsprop")
    try:
        optimizer_slots(optimizer, 0.9)
    except KeyError:
        return f"optimizer.name={optimizer} is unknown to this version"
    if question.parallel == "tensor" or (question.parallel and question.mode == "train"):
        why = _missing_collectives_reason(_collective_group(question), question)
        if why:
            return why
    return parallel_error(question.model, question.batch, question.devices, question.parallel)


def _as_substitute(estimate: StepTimeEstimate, device: str, other_device: str) -> StepTimeEstimate:
    """Return the estimate for a similar device as an estimate for a device without timings.

    The interval is widened by the error that such a substitution typically causes.

    Args:
        estimate: The estimate from scaled timings of the similar device.
        device: Name of the device without timings.
        other_device: Name of the similar device, whose timings were scaled.
    """
    if estimate.seconds is None or estimate.low is None or estimate.high is None:
        return replace(estimate, device=device)
    half_width = math.log(estimate.high / estimate.low) / 2
    factor = math.exp(math.hypot(half_width, 1.96 * _SUBSTITUTE_SPREAD))
    note = (
        f"{device} was not timed: the timings are those of {other_device}, "
        "scaled by the ratios of peak arithmetic and bandwidth"
    )
    return replace(
        estimate,
        device=device,
        low=estimate.seconds / factor,
        high=estimate.seconds * factor,
        extrapolated=(note, *estimate.extrapolated),
    )
