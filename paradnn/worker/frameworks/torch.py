"""PyTorch: forward pass, gradients and update in a plain loop, the loss read once a block.

`compile=eager` is PyTorch as it comes: Keras' optimizers update whole lists of tensors, an
operation for each list. `compile=graph` is `torch.compile`: the loss of a batch is one compiled
function, forward and backward, and the update another, in which the operations on a weight are
fused. There is no XLA.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Read when PyTorch is imported. Asking NVML for devices leaves CUDA untouched, which a fork would
# not survive; nor would a pool of compiling processes.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import keras
import torch
import torch._dynamo.utils as dynamo
import torch._inductor.compile_fx  # seconds that are paid before the fork
import torch._inductor.config as inductor
from torch._inductor import cpu_vec_isa
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from paradnn.core.errors import UnavailableError
from paradnn.core.words import counted
from paradnn.families import make_model
from paradnn.families.built import BuiltModel
from paradnn.worker.frameworks import Batch, Framework, Step
from paradnn.worker.frameworks.torch_products import GraphProducts, products
from paradnn.worker.optimizers import make_optimizer
from paradnn.worker.peak_rates import REPEATS
from paradnn.worker.profile.kineto import FILE, read_kineto
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.trace import WINDOW, Trace

# The compiler would stop at what it makes there, and leave most of a model uncompiled: it is one
# operation to it.
torch.compiler.allow_in_graph(keras.ops.pad)
_COMPILERS = ("g++", "clang++", "c++")
#: The first line of a reason that torch.compile names: the rest is advice.
_REASON_LENGTH = 160


class Torch(Framework):
    """See `paradnn.worker.frameworks.Framework`."""

    name = "torch"
    compile_modes: tuple[str, ...] = ("eager",)

    def __init__(self) -> None:
        self._device = torch.device("cpu")

    def open_device(self, platform: Mapping[str, Any]) -> None:
        kind = platform["name"]
        index = int(platform["index"])
        if platform["threads"]:
            torch.set_num_threads(int(platform["threads"]))
        if kind == "cpu":
            if index:
                raise UnavailableError(
                    f"PyTorch {torch.__version__} sees 1 cpu device, not number {index}"
                )
            return
        if kind != "gpu":
            raise UnavailableError(f"PyTorch {torch.__version__} has no {kind} here")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            raise UnavailableError(
                f"PyTorch {torch.__version__} sees {count} gpu device(s), not number {index}"
            )
        # Keras places its variables on "cuda", which is the current device.
        torch.cuda.set_device(index)
        self._device = torch.device("cuda", index)

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        inputs, targets = (
            [torch.as_tensor(array).to(self._device) for array in arrays] for arrays in batch
        )
        inputs = workload.prepare(inputs)
        model = workload.model
        loss_of = workload.loss

        def compiled(function: Any) -> Any:
            if point["compile"] == "eager":
                return function
            mode = point["framework"].get("compile", "default")
            return _compiled(function, point["compile"], self._device, mode)

        forward = compiled(lambda batch: model(batch, training=False))
        if point["mode"] != "train":
            return _Step(forward, (inputs, targets), self._device, point)
        compute = compiled(lambda batch: loss_of(targets, model(batch, training=True)))
        variables = model.trainable_variables
        optimizer = make_optimizer(point, variables)

        def update(gradients: Any) -> None:
            optimizer.apply(gradients, variables)

        # Loss scaling decides on the host at every step, between what could be compiled.
        if point["precision"] == "float16":
            update = update
        else:
            update = compiled(update)
        parameters = [variable.value for variable in variables]

        def train_step(batch: Any) -> Any:
            for parameter in parameters:
                parameter.grad = None
            loss = compute(batch)
            optimizer.scale_loss(loss).backward()
            with torch.no_grad():
                update([parameter.grad for parameter in parameters])
            return loss.detach()

        learned = [*model.variables, *optimizer.variables]
        return _Step(train_step, (inputs, targets), self._device, point, learned, forward)

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        dtype = getattr(torch, precision)
        device = self._device
        if name == "matmul":
            left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

            def call() -> None:
                torch.mm(left, right)
        else:
            total = torch.zeros(size, dtype=dtype, device=device)
            values = torch.ones(size, dtype=dtype, device=device)

            def call() -> None:
                for _ in range(REPEATS):
                    total.add_(values)

        def run(times: int) -> None:
            for _ in range(times):
                call()
            _wait(device)

        return run

    @contextlib.contextmanager
    def trace(self, folder: Path) -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            yield lambda: torch.profiler.record_function(WINDOW)
        profiler.export_chrome_trace(str(folder / FILE))

    def read_trace(self, folder: Path) -> Trace:
        return read_kineto(folder, on_device=self._device.type == "cuda")

    def peak_device_memory(self) -> int | None:
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return None

    def out_of_memory(self, error: BaseException) -> str | None:
        text = str(error)
        if (
            isinstance(error, torch.OutOfMemoryError)
            or "CUDA out of memory" in text
            or "_ALLOC_FAILED" in text
        ):
            return "oom_device"
        if isinstance(error, RuntimeError) and "can't allocate memory" in text:
            return "oom_host"
        return None


class _Step(Step):
    """A function over a batch that stays on the device, in place of which others are put where it
    is fed.
    """

    def __init__(
        self,
        function: Any,
        batches: Batch,
        device: Any,
        point: Mapping[str, Any],
        variables: Sequence[Any] = (),
        forward: Any = None,
    ) -> None:
        self.function = function
        self._batches = batches
        self._device = device
        self._variables = variables
        self._forward = forward
        inputs = batches[0]
        self._batch = inputs[0] if len(inputs) == 1 else list(inputs)
        self._training = point["mode"] == "train"
        self._compiled = point["compile"] != "eager"
        #: Whether no arithmetic knows the model's FLOPs.
        self._needs_counting = "model" in point and make_model(point["model"]).is_counted

    def run(self, steps: int) -> float | None:
        function = self.function
        batch = self._batch
        if self._training:
            for _ in range(steps):
                loss = function(batch)
            # Queued behind the last update on the device's stream: reading it waits for all.
            return float(loss)
        with torch.inference_mode():
            for _ in range(steps):
                function(batch)
            _wait(self._device)
        return None

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        # The targets are part of what was compiled: batches go where the first one is.
        for _ in range(steps):
            for places, arrays in zip(self._batches, take(), strict=True):
                for place, array in zip(places, arrays, strict=True):
                    place.copy_(torch.from_numpy(array))
            loss = self.function(self._batch)
        return float(loss)

    def values(self) -> list[Any]:
        return [variable.value.detach().cpu().numpy().copy() for variable in self._variables]

    def outputs(self, inputs: Sequence[Any]) -> Any:
        arrays = [torch.from_numpy(array).to(self._device) for array in inputs]
        with torch.no_grad():
            return (
                self._forward(arrays[0] if len(arrays) == 1 else arrays)
                .detach()
                .float()
                .cpu()
                .numpy()
            )

    def compilations(self) -> int:
        # Of frames: what cannot be compiled, or no more often, took its time too.
        return int(dynamo.counters["frames"]["total"])

    def compile_note(self) -> str | None:
        if not self._compiled:
            return None
        # What torch.compile counted: graphs, where it had to break them, and what it compiled
        # again; the last why.
        breaks = dynamo.counters["graph_break"]
        again = [
            entry.recompile_reason
            for entry in dynamo.get_compilation_metrics()
            if entry.recompile_reason
        ]
        why = [max(breaks, key=breaks.get) if breaks else "", again[-1] if again else ""]
        told = [
            f" ({text.strip().splitlines()[0][:_REASON_LENGTH]})" if text.strip() else ""
            for text in why
        ]
        graphs = counted(dynamo.counters["stats"]["unique_graphs"], "graph")
        broken = counted(sum(breaks.values()), "graph break")
        repeated = counted(len(again), "recompilation")
        return f"torch.compile: {graphs}, {broken}{told[0]}, {repeated}{told[1]}"

    def products(self) -> Sequence[Cost]:
        if not self._compiled:
            with products:
                self.run(1)
        elif self._needs_counting and _is_partly_compiled():
            # Inductor saw a part of the model, or one part twice: count an uncompiled step.
            products.costs.clear()
            with torch.compiler.set_stance("force_eager"), products:
                self.run(1)
        return products.costs


def _is_partly_compiled() -> bool:
    """Whether torch.compile left a part of this process's functions uncompiled, or repeated one."""
    frames = dynamo.counters["frames"]
    is_repeated = any(entry.recompile_reason for entry in dynamo.get_compilation_metrics())
    return frames["ok"] < frames["total"] or bool(dynamo.counters["graph_break"]) or is_repeated


def _compiled(function: Any, compile: str, device: Any, mode: str) -> Any:
    """The function under torch.compile in one of its modes; UnavailableError where it cannot be."""
    if compile == "xla":
        raise UnavailableError(
            "PyTorch has no XLA here: compile=graph is torch.compile, compile=eager runs uncompiled"
        )
    compilers = [os.environ["CXX"]] if "CXX" in os.environ else _COMPILERS
    if not any(shutil.which(name) for name in compilers):
        raise UnavailableError(
            f"torch.compile needs a C++ compiler, and there is none of {', '.join(compilers)}"
        )
    if device.type == "cuda" and not torch.utils._triton.has_triton():
        raise UnavailableError("torch.compile on a GPU needs the package triton")
    if device.type == "cpu":
        # What the processor has is found out by compiling for it, some ten seconds: once a machine,
        # not in each folder.
        cpu_vec_isa.pick_vec_isa()
    # Every point compiles again, as the other frameworks do; the folder goes with the worker's.
    # Importing PyTorch names a folder for all processes: another one is the user's choice, or this
    # point's already.
    shared = default_cache_dir()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", shared) == shared:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(
            tempfile.mkdtemp(prefix="inductor-", dir=".")
        )
    # The profiler sees the compiler's own kernels by name.
    inductor.cpp.enable_kernel_profile = True
    inductor.post_grad_custom_pre_pass = GraphProducts()
    return torch.compile(function, dynamic=False, mode=mode)


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


FRAMEWORK = Torch
