"""How long a step would take on a device of the atlas: its operations, each predicted from published timings, summed.

    answer = expect(row, "H200")           # a row as `analysis.store.past.read_space` gives it

A whole step that was published (`fc` on TPU v2 and V100) is predicted as one. Of other models the products follow from
the layers, with exact shapes; the two products of an attention are one kernel where the device ran such. What is left
of the step's traffic is moved at the speed of elementwise kernels, or of products that memory limits. Kernels stood
alone: what a framework adds between them is not in the sum, and the interval says how far sums were off (`_WHOLE`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.atlas import Atlas, Group, load, operation
from analysis.atlas.kernels import attention, decode, moved, product
from analysis.lazy import np
from paradnn.families import FAMILIES, Model, model_of
from paradnn.families.layers import COMPUTE_BYTES, Costs
from paradnn.families.operations import Counted, Operation, product_operations

_DRAWS, _SEED = 600, 0
#: Standard deviations of logarithms: how far a step is off as a whole beside its kernels, and a part that the timings
#: are of, or that stands in for another (46 steps of 2026 and their kernels; see docs/method.md).
_WHOLE, _TIMED, _STANDS_IN = 0.1, 0.1, 0.35
#: Seconds that a kernel takes within a step at the least, which timings of calls do not hold; an interval whose ends
#: are further apart than this factor says nothing.
_KERNEL, _WIDEST = 2e-6, 30.0
#: Seconds in which a framework without graphs calls an operation, and the standard deviation of their logarithm.
_CALL, _CALLS_DIFFER = 1e-5, 0.5
#: The backward pass of fused attention has five products for the two of the forward pass (Dao 2023, section 3.1).
_BACKWARD = 2.5
#: Parts of a step below this share are not worth a word.
_WORTH_SAYING = 0.05


@dataclass(frozen=True)
class Answer:
    """Seconds of a step with the ends of their 95% interval, None where it is not known, for the reason in `why`.

    sources: where the numbers come from. extrapolated: what the timings do not hold, in words. prompt: seconds of
    reading a prompt, of a generation. parts: name -> share of the step.
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


@dataclass(frozen=True)
class _Part:
    """Operations of one group, how often each runs, and what they stand in for, if anything."""

    name: str
    group: Group
    operations: Sequence[Operation]
    counts: Sequence[float]
    instead: str = ""


def expect(row: Mapping[str, Any], device: str, engine: str | None = None, version: str | None = None) -> Answer:
    """The step of a point (keys of a frame's row) on a device of the atlas, with an engine and version where named."""
    atlas, model = load(), model_in(row)
    name, point = atlas.device(device), words_of(row, model)
    batch, precision, mode = int(row["batch_size"]), str(row["precision"]), str(row.get("mode", "train"))
    if not FAMILIES[str(row["family"])].has_layers or model.is_kernel or model.is_communication:
        return Answer(name, point, why=f"{model.name} is no model with layers; ask for one")
    if str(row.get("devices", 1)) not in ("1", "1.0"):
        return Answer(name, point, why="a step over several devices is not in the atlas; ask for devices=1")
    whole = atlas.find(name, "fc", precision, engine, version)
    if whole is not None and model.name == "fc" and mode == "train":
        return _answer(name, point, [_whole_step(model, batch, precision, whole)])
    finder = _Finder(atlas, name, precision, engine, version)
    if finder.group("gemm") is None:
        there = sorted({(one.precision, one.kind) for one in atlas.groups if one.device == name})
        known = ", ".join(dict.fromkeys(f"{kind} in {numbers}" for numbers, kind in there))
        return Answer(name, point, why=f"no products were timed in {precision} there; the atlas has {known}")
    if mode != "generate":
        layers = model.product_list(batch_size=batch, precision=_counted(precision), mode=mode)
        costs = model.costs(batch_size=batch, precision=_counted(precision), mode=mode, optimizer=_optimizer(row))
        return _answer(name, point, _parts(finder, model, layers, costs, batch, mode))
    prompt, tokens = (int(row[f"generate.{key}"]) for key in ("prompt", "tokens"))
    lengths: dict[str, Any] = {
        "batch_size": batch,
        "precision": _counted(precision),
        "prompt": prompt,
        "tokens": tokens,
    }
    reading = model.prefill_layers(prompt, prompt + tokens), model.prefill_costs(**lengths)
    writing = model.decode_layers(prompt + tokens), model.costs(**lengths, mode=mode, optimizer="sgd")
    found = []
    for made, costs in (reading, writing):
        counted = product_operations(made, batch, _counted(precision), "inference")
        found.append(_answer(name, point, _parts(finder, model, counted, costs, batch, "inference")))
    first, step = found
    return Answer(**{**vars(step), "prompt": first.seconds})


def published(row: Mapping[str, Any], device: str) -> float | None:
    """Seconds of the very step of a row, where it was published of the device."""
    if row["family"] != "fc" or row.get("mode", "train") != "train":
        return None
    group = load().find(device, "fc", str(row["precision"]))
    if group is None:
        return None
    sizes = vars(model_in(row))
    shape = {"m": int(row["batch_size"]), "n": sizes["nodes"], "calls": sizes["layers"],
             "images": sizes["input_size"], "window": sizes["output_size"]}  # fmt: skip
    rows = group.timings
    found = rows[np.logical_and.reduce([rows[name].eq(value) for name, value in shape.items()])]
    return float(found["seconds"].iloc[0]) if len(found) else None


def model_in(row: Mapping[str, Any]) -> Model:
    """The model of a frame's row; ValueError for a family that this version does not know."""
    if row["family"] not in FAMILIES:
        raise ValueError(f"{row['family']} is no family that this version knows")
    fields = FAMILIES[str(row["family"])].options.__dataclass_fields__
    given = {str(key).removeprefix("model."): value for key, value in row.items() if str(key).startswith("model.")}
    known = {key: _plain(value) for key, value in given.items() if key in fields}
    return model_of({**{key: value for key, value in known.items() if value is not None}, "name": str(row["family"])})


def _plain(value: Any) -> Any:
    """Of a frame's cell: text of a list as the list, a float that is a count as a count, None for what is missing."""
    if isinstance(value, str):
        return json.loads(value) if value.startswith("[") else value
    if isinstance(value, (list, tuple)):
        return value
    if value is None or value != value:
        return None
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def words_of(row: Mapping[str, Any], model: Model) -> str:
    """The point in the words of a list of runs."""
    mode = "" if row.get("mode", "train") == "train" else f" {row['mode']}"
    return f"{model.name} {model.size} b{row['batch_size']} {row['precision']}{mode}"


def _optimizer(row: Mapping[str, Any]) -> str:
    name = row.get("optimizer.name")
    return name if isinstance(name, str) else "rmsprop"


def _counted(precision: str) -> str:
    """The precision in which the arithmetic counts bytes: what is narrower than 16 bits is of weights alone."""
    return precision if precision in COMPUTE_BYTES else "bfloat16"


@dataclass(frozen=True)
class _Finder:
    atlas: Atlas
    device: str
    precision: str
    engine: str | None
    version: str | None

    def group(self, kind: str) -> Group | None:
        """Of the precision; attention, which is 16-bit beside narrower weights, of any; versions are of products."""
        others = ("bfloat16",) if kind not in ("gemm", "conv2d", "experts") or self.precision == "float16" else ()
        version = self.version if kind == "gemm" else None
        for precision in (self.precision, *others):
            if found := self.atlas.find(self.device, kind, precision, self.engine, version):
                return found
        return None


def _whole_step(model: Model, batch: int, precision: str, group: Group) -> _Part:
    costs = model.costs(batch_size=batch, precision=precision, mode="train", optimizer="rmsprop")
    sizes = vars(model)
    shape = {
        "m": batch,
        "n": sizes["nodes"],
        "k": sizes["nodes"],
        "calls": sizes["layers"],
        "images": sizes["input_size"],
    }
    columns = {**shape, "window": sizes["output_size"], "flops": costs.flops_per_step, "bytes": costs.bytes_per_step}
    return _Part("whole step", group, [operation("fc", columns, "train")], [1.0])


def _parts(
    finder: _Finder, model: Model, layers: Sequence[Counted], costs: Costs, batch: int, mode: str
) -> list[_Part]:
    """Every product of the step in the group that timed its like, and the rest of the traffic."""
    gemm = finder.group("gemm")
    assert gemm is not None
    beside = [each for each in layers if each.operation.kind == "gemm" and each.operation.batch > 1]
    plain = [each for each in layers if each.operation.kind == "gemm" and each.operation.batch == 1]
    convolved = [each for each in layers if each.operation.kind == "conv2d"]
    parts = [*_of(gemm, "products", plain, "gemm")]
    conv = finder.group("conv2d")
    if conv is not None:
        backward = [each for each in convolved if each.operation.variant != "forward"]
        parts += _of(conv, "convolutions", [each for each in convolved if each not in backward])
        parts += _of(conv, "backward convolutions", backward, instead="are predicted as forward ones")
    else:
        parts += _of(gemm, "convolutions", convolved, "gemm", "are predicted as products, none was timed there")
    parts += _attention(finder, model, beside, batch)
    explained = sum(each.count * each.operation.bytes for each in layers)
    left, count = max(0.0, costs.bytes_per_step - explained), max(1, len(layers))
    own = finder.group("elementwise")
    if own is not None:
        one = operation("elementwise", moved(max(1.0, left / count / 12), 4), "product")
        parts.append(_Part("other traffic", own, [one], [float(count)]))
    elif left:
        # A product by one column is traffic and nothing else.
        side = max(1.0, math.sqrt(left / count / 2))
        one = operation("gemm", product(1, side, side, 2))
        parts.append(_Part("other traffic", gemm, [one], [float(count)], "is moved as fast as a product's operands"))
    return parts


def _of(group: Group, name: str, counted: Sequence[Counted], kind: str = "", instead: str = "") -> Iterator[_Part]:
    """A part of operations, posed as another kind where one is named."""
    if counted:
        operations = [each.operation for each in counted]
        counts = [each.count * (each.operation.product[-1] if kind else 1) for each in counted]
        yield _Part(name, group, [_as_product(one) for one in operations] if kind else operations, counts, instead)


def _as_product(one: Operation) -> Operation:
    """Of products that follow one another a single one."""
    m, n, k, calls = one.product
    sizes = {"m": m, "n": n, "k": k, "batch": one.batch, "flops": one.flops / calls, "bytes": one.bytes / calls}
    return operation("gemm", sizes, "nn")


def _attention(finder: _Finder, model: Model, beside: Sequence[Counted], batch: int) -> Iterator[_Part]:
    """Pairs of products by every head, as one kernel where the device timed it, else as products beside each other."""
    forward = [each for each in beside if each.layer.endswith("forward")]
    if not forward:
        return
    heads = getattr(model, "heads", None) or max(1, forward[0].operation.batch // batch)
    scores = forward[::2]
    one = scores[0].operation
    is_decode = one.m == 1
    kind = "decode" if is_decode else "attention" if model.predicts_tokens else "encoder_attention"
    group = finder.group(kind)
    if group is None and kind == "encoder_attention":
        group = finder.group("attention")
    if group is None:
        own = finder.group("bmm")
        instead = "" if own else "are predicted as products beside each other"
        yield from _of(own or finder.group("gemm"), "attention", beside, "gemm", instead)  # type: ignore[arg-type]
        return
    key_heads = getattr(model, "key_heads", heads)
    operations = []
    for each in scores:
        tokens, keys, size = each.operation.m, each.operation.n, each.operation.k
        shape = (batch, keys if is_decode else tokens, heads, key_heads, size)
        columns = decode(*shape) if is_decode else attention(*shape, causal=group.kind == "attention")
        operations.append(operation(group.kind, columns))
    counts = [each.count for each in scores]
    yield _Part("attention", group, operations, counts)
    if len(forward) < len(beside):
        times = [_BACKWARD * count for count in counts]
        instead = f"is taken as {_BACKWARD:g} times its forward pass"
        yield _Part("attention's backward pass", group, operations, times, instead)


def _answer(device: str, point: str, parts: Sequence[_Part]) -> Answer:
    """The sum of all parts, over joint draws."""
    random = np.random.default_rng(_SEED)
    total, shares, notes = np.zeros(_DRAWS), {}, []
    for part in parts:
        spread = _STANDS_IN if part.instead else _TIMED
        kinds: dict[Operation, float] = {}
        for one, count in zip(part.operations, part.counts, strict=True):
            kinds[one] = kinds.get(one, 0.0) + count
        drawn = np.exp(part.group.predict(list(kinds)).draws(_DRAWS, random))
        if part.group.call:
            drawn += _KERNEL
        own = np.array(list(kinds.values())) @ drawn * np.exp(spread * random.standard_normal(_DRAWS))
        total += own
        shares[part.name] = float(np.median(own))
    if any(part.group.call for part in parts):  # kernels wait for their calls where these take longer
        calls = sum(sum(part.counts) for part in parts)
        total = np.maximum(total, calls * _CALL * np.exp(_CALLS_DIFFER * random.standard_normal(_DRAWS)))
    middle = float(np.median(total))
    shares = {name: seconds / middle for name, seconds in shares.items()}
    for part in parts:
        if shares[part.name] >= _WORTH_SAYING:
            if part.instead:
                notes.append(f"{part.name} ({shares[part.name]:.0%} of the step) {part.instead}")
            for size, factor in part.group.beyond(part.operations).items():
                notes.append(f"{part.name}: {size} is {factor:.3g} times the largest that was timed")
    if not np.quantile(total, 0.975) < _WIDEST * np.quantile(total, 0.025):
        widest = max(parts, key=lambda part: shares[part.name])
        return Answer(device, point, why=f"{widest.name} are too far from what was timed there ({widest.group.told})")
    whole = 1.0 if parts[0].name == "whole step" else np.exp(_WHOLE * random.standard_normal(_DRAWS))
    low, high = np.quantile(total * whole, (0.025, 0.975))
    sources = tuple(dict.fromkeys(part.group.told for part in parts if shares[part.name] >= _WORTH_SAYING))
    return Answer(device, point, middle, float(low), float(high), sources, tuple(notes), parts=shares)
