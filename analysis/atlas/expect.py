"""How long a step would take on a device of the atlas: its operations, each predicted from
published timings, summed.

A whole step that was published (`fc` on TPU v2 and V100) is predicted as one. Of other models the
products follow from the layers, with exact shapes; the two products of an attention are one kernel
where the device ran such. What is left of the step's traffic is moved at the speed of elementwise
kernels, or of products that memory limits. Kernels stood alone: what a framework adds between them
is not in the sum. Draws of all operations are joint, so that a sum is as uncertain as it must be: a
fit errs in all its operations together.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.atlas import Atlas, Group, load, operation
from analysis.atlas.kernels import attention, decode, product
from analysis.lazy import np, pd
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.layers import COMPUTE_BYTES, Layer, Multiply, sum_costs
from paradnn.families import FAMILIES, Model, model_of, optimizer_slots
from paradnn.families.operations import (
    Operation,
    RepeatedOperation,
    elementwise_operation,
    product_operations,
)
from paradnn.platform.specifications import Hardware, find_hardware
from paradnn.store.files import read_json

#: Draws of a sum.
_DRAWS = 2000
#: Standard deviations of logarithms: how far operations of a step are off together beside kernels
#: of theirs that ran alone, and beside others that they are taken for; how far a step as a whole is
#: off (docs/explanation/extrapolation.md).
_OF_KERNELS = 0.1
_OF_OTHERS = 0.35
_WHOLE = 0.1
#: An interval whose ends are further apart than this factor says nothing.
_WIDEST = 30.0
#: Seconds in which a framework without graphs calls an operation, and the standard deviation of
#: their logarithm.
_CALL = 1e-5
_CALLS_DIFFER = 0.5
#: The backward pass of fused attention has five products for the two of the forward pass (Dao 2023,
#: section 3.1).
_BACKWARD = 2.5
#: What is said of a model whose operations are counted.
_COUNTED = "what it multiplies was counted in a trace here, convolutions as products; what is between is a guess"
#: Parts of a step below this share are not worth a word.
_WORTH_SAYING = 0.05
#: Kind of kernel -> the group that timed it there, if any.
_Find = Callable[[str], Group | None]


@dataclass(frozen=True)
class StepTimeEstimate:
    """Seconds of a step with the ends of their 95% interval, None where it is not known, for the
    reason in `why`.

    sources: where the numbers come from. extrapolated: what the timings do not hold, in words.
    prompt: seconds of reading a prompt, of a generation. parts: name -> share of the step.
    is_dispatch_floor: whether the assumed cost of dispatching operations exceeds the predicted time
    of the kernels, so that the estimate is a lower bound that hardly depends on the model's sizes.
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


@dataclass(frozen=True)
class StepPart:
    """Operations that the timings of one group are of, or those that they stand in for, which is
    said `instead`; parts of one name are off together.
    """

    name: str
    group: Group
    counted: Sequence[RepeatedOperation]
    instead: str = ""


def expect(
    row: Mapping[Any, Any],
    device: str,
    engine: str | None = None,
    version: str | None = None,
    atlas: Atlas | None = None,
) -> StepTimeEstimate:
    """The step of a point (keys of a frame's row) on a device of an atlas, with an engine and
    version where named; on another that has specifications, as `scaled` has it.
    """
    atlas = atlas or load()
    if not atlas.named(device) and (beside := scaled(atlas, device, str(row["precision"]))):
        return _stands_in(expect(row, beside[0], engine, version, beside[1]), device, beside[0])
    model = model_in(row, "KEY=VALUE")
    name = atlas.device(device)
    point = words_of(row, model)
    batch = int(row["batch_size"])
    precision = str(row["precision"])
    mode = _told(row, "mode", "train")
    why = _beyond(row, model, mode, device if atlas is load() else "")
    if why:
        return StepTimeEstimate(name, point, why=why)
    whole = atlas.find(name, "fc", precision, engine, version)
    if whole is not None and model.name == "fc" and mode == "train":
        costs = model.costs(batch_size=batch, precision=precision, mode=mode, optimizer="rmsprop")
        columns = {
            **_fc(model, batch),
            "flops": costs.flops_per_step,
            "bytes": costs.bytes_per_step,
        }
        return _answer(
            name,
            point,
            [
                StepPart(
                    "whole step",
                    whole,
                    [RepeatedOperation("", operation("fc", columns, mode), 1.0)],
                )
            ],
        )

    def find(kind: str) -> Group | None:
        """Of the precision; attention, which is 16-bit beside narrower weights, of any; versions
        are of products.
        """
        if kind not in ("gemm", "conv2d") or precision == "float16":
            others = ("bfloat16",)
        else:
            others = ()
        of_kind = version if kind == "gemm" else None
        groups = (atlas.find(name, kind, each, engine, of_kind) for each in (precision, *others))
        return next(filter(None, groups), None)

    if find("gemm") is None:
        there = sorted(
            {(one.kind, one.precision) for one in atlas.groups if one.device == name}, reverse=True
        )
        known = [numbers for kind, numbers in there if kind == "gemm"] or [
            " in ".join(one) for one in there
        ]
        return StepTimeEstimate(
            name, point, why=f"no products were timed in {precision} there, but {', '.join(known)}"
        )
    try:
        steps = [
            *_steps(
                row, model, mode, batch, precision if precision in COMPUTE_BYTES else "bfloat16"
            )
        ]
    except NotEnoughData as problem:
        return StepTimeEstimate(name, point, why=str(problem))
    *first, step = (_answer(name, point, _parts(find, model, *each, batch)) for each in steps)
    if model.is_counted:
        notes = (_COUNTED, *step.extrapolated)
    else:
        notes = step.extrapolated
    return replace(step, prompt=first[0].seconds if first else None, extrapolated=notes)


def _steps(
    row: Mapping[Any, Any], model: Model, mode: str, batch: int, precision: str
) -> Iterator[tuple[Sequence[RepeatedOperation], float]]:
    """What is asked for, of a generation the reading of the prompt before a token: products, and
    the bytes that these do not move. NotEnoughData for a model of one's own that cannot be built
    here.
    """
    about: dict[str, Any] = {"batch_size": batch, "precision": precision}
    optimizer = _told(row, "optimizer.name", "rmsprop")
    if mode == "generate":
        prompt, tokens = (int(row[f"generate.{key}"]) for key in ("prompt", "tokens"))
        lengths = {**about, "prompt": prompt, "tokens": tokens}
        layers = model.prefill_layers(prompt, prompt + tokens), model.decode_layers(prompt + tokens)
        costs = [model.prefill_costs(**lengths), model.costs(**lengths, mode=mode, optimizer="sgd")]
        found = [product_operations(each, **about, mode="inference") for each in layers]
    elif model.is_counted:
        own = traced_layers(_told(row, "framework.name", "tensorflow"), model, batch)
        costs = [sum_costs(own, 1, precision, mode, slots=optimizer_slots(optimizer, 0.9))]
        found = [product_operations(own, 1, precision, mode)]
    else:
        costs = [model.costs(**about, mode=mode, optimizer=optimizer)]
        if model.is_kernel:
            one = [RepeatedOperation("", model.as_operation(**about), 1.0)]
        else:
            one = None
        found = [one or model.product_list(**about, mode=mode)]
    for products, cost in zip(found, costs, strict=True):
        multiplied = [each for each in products if each.operation.kind in ("gemm", "conv2d")]
        moved = sum(each.count * each.operation.bytes for each in multiplied)
        yield multiplied, max(0.0, cost.bytes_per_step - moved)


def traced_layers(framework: str, model: Model, batch: int) -> list[Layer]:
    """The layers of a model that `paradnn.worker.count` builds and traces, for a whole batch.

    Of b products m x k by k x n the elements of both operands and the result are b m k, b k n and b
    m n, and half of the FLOPs are b m n k; of a convolution, whose images are not unrolled, k n, m
    n and the FLOPs say the same. What is no single product is taken for a cube. What passes between
    products is not seen: each result is taken to be read and written once more. NotEnoughData where
    the model cannot be built.
    """
    found = _traced(json.dumps({"framework": framework, "model": vars(model), "batch_size": batch}))
    if "why" in found:
        raise NotEnoughData(found["why"])
    layers: list[Layer] = []
    for category, flops, operands in found["products"]:
        macs = flops / 2
        left, right, result = operands if len(operands) == 3 else [macs ** (2 / 3)] * 3
        sizes = (macs / right, macs / result, macs / left, left * right * result / macs**2)
        if category == "convolution":
            sizes = (*sizes[:2], result * right / macs, 1.0)
        m, k, n, own = (max(1, round(size)) for size in sizes)
        one = Multiply(m, k, n, own=own if own > 1 else 0)
        rows = 0 if own > 1 else k * n
        inputs = None if layers else 0  # the first has none with a gradient
        layers.append(
            Layer(
                "",
                round(macs),
                inputs,
                rows=rows,
                read=own * m * k,
                written=3 * own * m * n,
                products=(one,),
            )
        )
    read = sum(
        layer.rows or 0 for layer in layers
    )  # of tables, which are parameters too, a forward pass reads little
    return [*layers, Layer("weights", parameters=found["parameters"], rows=read)]


@functools.cache  # several devices are asked for one model
def _traced(asked: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "paradnn.worker.count"]
    ended = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(ended.stdout))
    except ValueError:
        return {"why": f"the process that builds the model ended with {ended.returncode}"}


def _beyond(row: Mapping[Any, Any], model: Model, mode: str, device: str) -> str:
    """Why no atlas holds such a step, or the memory of the device not its weights; empty where they
    may.
    """
    if model.is_communication or (
        model.is_kernel and model.name not in ("gemm", "conv2d", "elementwise")
    ):
        return f"{model.name} is no part of a step that was timed by itself; ask for a model, such as gpt"
    if _told(row, "devices", "1") not in ("1", "1.0"):
        return "a step over several devices is not in the atlas; ask for devices=1"
    if mode == "generate" and not model.generates:
        return f"{model.name} generates no tokens; ask for mode=inference, or for gpt"
    part = find_hardware(device)
    costs = model.costs(batch_size=1, precision="float32", mode="inference", optimizer="sgd")
    weights = _width(str(row["precision"])) * costs.parameters
    if part and part.memory_bytes and weights > part.memory_bytes:
        return f"its weights take {weights / 2**30:,.0f} GiB, and {part.name} has {part.memory_bytes / 2**30:,.0f}"
    return ""


def _width(precision: str) -> float:
    """Bytes of a weight; what is narrower than 16 bits is of weights alone."""
    return COMPUTE_BYTES.get(precision, 0.5 if "4" in precision else 1.0)


def scaled(atlas: Atlas, device: str, precision: str) -> tuple[str, Atlas] | None:
    """The device whose specifications are most like those of one that was not timed, in their ridge
    point first, and its timings as the ratios of peak arithmetic and of bandwidth have them; None
    without specifications.
    """
    found = []
    for name in {
        group.device
        for group in atlas.groups
        if (group.kind, group.precision) == ("gemm", precision)
    }:
        own = find_hardware(device) or find_hardware(f"NVIDIA {device}")
        there = find_hardware(name)
        if own is None or there is None or own.kind != there.kind:
            continue
        peaks = [_peak(one, precision) for one in (own, there)]
        if all(peaks) and own.bandwidth and there.bandwidth:
            ratios = peaks[0] / peaks[1], own.bandwidth / there.bandwidth
            apart = abs(math.log(ratios[0] / ratios[1])) + 0.5 * abs(math.log(ratios[1]))
            found.append((apart, name, ratios))
    if not found:
        return None
    _, name, ratios = min(found)
    chosen = [one for one in atlas.groups if one.device == name and one.kind != "fc"]
    return name, Atlas(tuple(replace(one, faster=ratios) for one in chosen))


def _peak(part: Hardware, precision: str) -> float:
    """FLOP/s; of narrower types as of 16 bits, which their ratio is usually like. 0 where it is not
    known.
    """
    if precision == "float32":
        names = ("float32",)
    else:
        names = ("bfloat16", "float16")
    return max((part.peak_flops.get(name, 0.0) for name in names), default=0.0)


def _stands_in(answer: StepTimeEstimate, device: str, name: str) -> StepTimeEstimate:
    """An answer of one device for another: as far off as kernels that stand in for others."""
    note = f"{device} was not timed: all is {name}'s, scaled by the ratios of peak arithmetic and bandwidth"
    if answer.seconds is None or answer.low is None or answer.high is None:
        return replace(answer, device=device)
    off = math.log(answer.high / answer.low) / 2, 1.96 * _OF_OTHERS
    wider = math.exp(math.hypot(*off))
    notes = (note, *answer.extrapolated)
    return replace(
        answer,
        device=device,
        low=answer.seconds / wider,
        high=answer.seconds * wider,
        extrapolated=notes,
    )


def published(row: Mapping[Any, Any], device: str) -> float | None:
    """Seconds of the very step of a row, where it was published of the device."""
    if row["family"] != "fc" or _told(row, "mode", "train") != "train":
        return None
    group = load().find(device, "fc", str(row["precision"]))
    if group is None:
        return None
    rows = group.timings
    shape = _fc(model_in(row), int(row["batch_size"]))
    found = rows[
        np.logical_and.reduce(
            [rows[name].eq(value) for name, value in shape.items() if name != "k"]
        )
    ]
    return float(found["seconds"].iloc[0]) if len(found) else None


def model_in(row: Mapping[Any, Any], option: str = "family") -> Model:
    """The model of a frame's row; ConfigError, of the `option` that chose it, for a family that
    this version lacks.
    """
    name = str(row.get("family"))
    if name not in FAMILIES:
        raise ConfigError(option, name, "is no family that this version knows", "choose other runs")
    given = {
        key: value
        for key, value in row.items()
        if str(key).startswith("model.") and not _is_missing(value)
    }
    return model_of(
        {
            **{key.removeprefix("model."): _plain(value) for key, value in given.items()},
            "name": name,
        }
    )


def _told(row: Mapping[Any, Any], name: str, otherwise: str) -> str:
    """A value as text, `otherwise` where the row has none."""
    return otherwise if _is_missing(row.get(name)) else str(row[name])


def _is_missing(value: Any) -> bool:
    return value is None or (not isinstance(value, (list, tuple)) and bool(pd.isna(value)))


def _plain(value: Any) -> Any:
    """Of a frame's cell: text of a list or number as these; a count that others in its column made
    a float, whole.
    """
    if isinstance(value, str):
        try:
            return read_json(value)
        except ValueError:
            return value
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    return plain


def words_of(row: Mapping[Any, Any], model: Model) -> str:
    """The point in the words of a list of runs."""
    mode = _told(row, "mode", "train")
    return f"{model.name} {model.size} b{row['batch_size']} {row['precision']}{'' if mode == 'train' else f' {mode}'}"


def _fc(model: Model, batch: int) -> dict[str, int]:
    """A fully connected step as the columns of its published timing."""
    sizes = vars(model)
    beside = {
        "calls": sizes["layers"],
        "images": sizes["input_size"],
        "window": sizes["output_size"],
    }
    return {"m": batch, "n": sizes["nodes"], "k": sizes["nodes"], **beside}


def _parts(
    find: _Find, model: Model, layers: Sequence[RepeatedOperation], left: float, batch: int
) -> list[StepPart]:
    """Every product of the step in the group that timed its like, and the `left` bytes of its
    traffic.
    """
    gemm = find("gemm")
    conv = find("conv2d")
    own = find("elementwise")
    assert gemm is not None
    products = [each for each in layers if each.operation.kind == "gemm"]
    convolved = [each for each in layers if each.operation.kind == "conv2d"]
    parts = [
        StepPart(
            "products",
            gemm,
            _as_products((each for each in products if each.operation.batch == 1), gemm),
        )
    ]
    if conv is not None:
        timed = set(conv.timings["variant"])
        backward = [each for each in convolved if each.operation.variant not in timed]
        parts.append(
            StepPart(
                "convolutions",
                conv,
                [each for each in convolved if each.operation.variant in timed],
            )
        )
        parts.append(
            StepPart("backward convolutions", conv, backward, "are predicted as forward ones")
        )
    else:
        instead = "are predicted as products, none was timed there"
        parts.append(StepPart("convolutions", gemm, _as_products(convolved, gemm), instead))
    parts += _attention(
        find, gemm, model, [each for each in products if each.operation.batch > 1], batch
    )
    count = max(1, len(layers))
    if own is not None and (left or not model.is_kernel):
        one = elementwise_operation(max(12.0, left / count), own.precision)
        instead = "is what no step can avoid, as elementwise operations"
        parts.append(StepPart("other traffic", own, [RepeatedOperation("", one, count)], instead))
    elif left:
        # A product by one column is traffic and nothing else.
        side = max(1.0, math.sqrt(left / count / 2))
        instead = "is moved as fast as a product's operands"
        one = operation("gemm", product(1, side, side, 2))
        parts.append(StepPart("other traffic", gemm, [RepeatedOperation("", one, count)], instead))
    return [part for part in parts if part.counted]


def _as_products(counted: Iterable[RepeatedOperation], group: Group) -> list[RepeatedOperation]:
    """Posed as products; of those in a row a single one, so many times. What the group timed as it
    is stays so.
    """
    found = []
    timed = set(group.timings["variant"])
    own = (
        "nn" if "nn" in timed else max(timed, default="")
    )  # published products have mostly but one, without a name
    for each in counted:
        if each.operation.kind == "gemm" and each.operation.variant in timed:
            found.append(each)
            continue
        one, (m, n, k, calls) = each.operation, each.operation.product
        if one.batch > 1:
            narrower = 0.0
        else:
            narrower = max(0.0, COMPUTE_BYTES["bfloat16"] - _width(group.precision)) * n * k
        moved = one.bytes / calls - narrower
        sizes = {
            "m": m,
            "n": n,
            "k": k,
            "batch": one.batch,
            "flops": one.flops / calls,
            "bytes": moved,
        }
        found.append(
            replace(each, operation=operation("gemm", sizes, own), count=each.count * calls)
        )
    return found


def _attention(
    find: _Find, gemm: Group, model: Model, beside: Sequence[RepeatedOperation], batch: int
) -> Iterator[StepPart]:
    """Pairs of products by every head, as one kernel where the device timed it, else as products
    beside each other.
    """
    forward = [each for each in beside if each.layer.endswith("forward")]
    if not forward:
        return
    is_decode = forward[0].operation.m == 1
    if is_decode:
        kind = "decode"
    elif model.predicts_tokens:
        kind = "attention"
    else:
        kind = "encoder_attention"
    group = find(kind) or (find("attention") if kind == "encoder_attention" else None)
    halves = zip(forward[::2], forward[1::2], strict=False)
    if group is None or any(one.operation.n != two.operation.k for one, two in halves):
        own = find("bmm")
        instead = "" if own else "are predicted as products beside each other"
        yield StepPart("attention", own or gemm, _as_products(beside, own or gemm), instead)
        return
    heads = getattr(model, "heads", None) or max(1, forward[0].operation.batch // batch)
    key_heads = getattr(model, "key_heads", heads)
    pairs = []
    for each in forward[::2]:
        tokens = each.operation.m
        keys = each.operation.n
        size = each.operation.k
        shape = (batch, keys if is_decode else tokens, heads, key_heads, size)
        if is_decode:
            columns = decode(*shape)
        else:
            columns = attention(*shape, causal=group.kind == "attention")
        pairs.append(replace(each, operation=operation(group.kind, columns)))
    yield StepPart("attention", group, pairs)
    if len(forward) < len(beside):
        back = [replace(each, count=_BACKWARD * each.count) for each in pairs]
        yield StepPart(
            "attention's backward pass",
            group,
            back,
            f"is taken as {_BACKWARD:g} times its forward pass",
        )


def summed(parts: Sequence[StepPart]) -> tuple[np.ndarray, dict[str, float]]:
    """(draws,) seconds of a step of all parts; by name what each takes of it."""
    random = np.random.default_rng(0)
    total = np.full(_DRAWS, max(part.group.start for part in parts))
    together = {}
    seconds: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        counts: defaultdict[Operation, float] = defaultdict(
            float
        )  # those that are the same are one
        for one in part.counted:
            counts[one.operation] += one.count
        if part.name not in together:
            spread = _OF_OTHERS if part.instead else _OF_KERNELS
            together[part.name] = np.exp(spread * random.standard_normal(_DRAWS))
        own = np.exp(part.group.predict([*counts]).draws(_DRAWS, random)) + part.group.before
        drawn = np.array([*counts.values()])[:, None] * own * together[part.name]
        total = total + drawn.sum(axis=0)
        seconds[part.name] += float(np.median(drawn, axis=1).sum())
    return total, seconds


def ends_of(total: np.ndarray, is_whole: bool = False) -> tuple[float, float, float]:
    """Seconds of a step with the ends of its 95% interval, from the draws of its sum; one that was
    timed `is_whole`.
    """
    if is_whole:
        off = 0.0
    else:
        off = _WHOLE * np.random.default_rng(1).standard_normal(_DRAWS)
    low, high = np.quantile(total * np.exp(off), (0.025, 0.975))
    return float(np.median(total)), float(low), float(high)


def _answer(device: str, point: str, parts: Sequence[StepPart]) -> StepTimeEstimate:
    """The sum of all parts."""
    total, seconds = summed(parts)
    notes = []
    is_dispatch_floor = False
    if any(part.group.engine == "PyTorch" and not part.group.start for part in parts):
        # Without graphs kernels wait for their calls where these take longer.
        calls = sum(each.count for part in parts for each in part.counted)
        each = _CALL * np.exp(_CALLS_DIFFER * np.random.default_rng(2).standard_normal(_DRAWS))
        is_dispatch_floor = bool(np.median(total) < calls * _CALL)
        if is_dispatch_floor:
            notes.append(
                f"the time is a floor: dispatching {calls:,.0f} operations at about "
                f"{_CALL * 1e6:.0f} us each takes longer than running their kernels"
            )
        total = np.maximum(total, calls * each)
    middle, low, high = ends_of(total, is_whole=parts[0].name == "whole step")
    shares = {name: own / middle for name, own in seconds.items()}
    widest, (least, most) = (
        max(parts, key=lambda part: shares[part.name]),
        np.quantile(total, (0.025, 0.975)),
    )
    if not most < _WIDEST * least:
        return StepTimeEstimate(
            device,
            point,
            why=f"{widest.name} are too far from what was timed there ({widest.group.told})",
        )
    said = [part for part in parts if shares[part.name] >= _WORTH_SAYING]
    for part in said:
        if part.instead:
            notes.append(f"{part.name} ({shares[part.name]:.0%} of the step) {part.instead}")
        for size, factor in part.group.beyond([each.operation for each in part.counted]).items():
            notes.append(f"{part.name}: {size} is {factor:.3g} times the largest that was timed")
    sources = tuple(dict.fromkeys(part.group.told for part in said))
    return StepTimeEstimate(
        device,
        point,
        seconds=middle,
        low=low,
        high=high,
        sources=sources,
        extrapolated=tuple(notes),
        parts=shares,
        is_dispatch_floor=is_dispatch_floor,
    )
