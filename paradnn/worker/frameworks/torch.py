"""PyTorch: forward pass, gradients and update in a plain loop. The loss is read once per block.

`compile=eager` is PyTorch without a compiler: Keras' optimizers update lists of tensors, with one
operation per list. `compile=graph` is `torch.compile` with two compiled functions. The first
computes the loss of a batch, and its gradients. The second updates the weights, and fuses the
operations on each weight. `compile=xla` is unavailable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# PyTorch reads these variables when it is imported. Neither an initialized CUDA nor Inductor's pool
# of compiler processes survives a fork. With NVML, PyTorch counts devices without initializing
# CUDA. With one compile thread, PyTorch creates no pool.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import keras
import torch
import torch._dynamo.utils as dynamo
import torch._inductor.compile_fx  # takes seconds, so import it once, before the worker forks
import torch._inductor.config as inductor
from torch._inductor import cpu_vec_isa
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from paradnn.core.errors import UnavailableError
from paradnn.core.words import counted
from paradnn.families import make_model
from paradnn.families.built import BuiltModel
from paradnn.worker.affinity import pin_to_cores
from paradnn.worker.frameworks import Batch, Framework, Member, Step
from paradnn.worker.frameworks.torch_products import GraphProducts, products
from paradnn.worker.optimizers import make_optimizer
from paradnn.worker.peak_rates import REPEATS
from paradnn.worker.process_group import host_and_port, interface_of
from paradnn.worker.profile.kineto import FILE, read_kineto
from paradnn.worker.profile.shapes import Cost
from paradnn.worker.profile.trace import WINDOW, Trace

# Without this call, the compiler breaks the graph within `pad` and leaves most of a model
# uncompiled.
torch.compiler.allow_in_graph(keras.ops.pad)
_COMPILERS = ("g++", "clang++", "c++")
#: Largest number of characters that a note quotes from a reason of torch.compile.
_REASON_CHARS = 160


class Torch(Framework):
    """PyTorch on one device."""

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
                    f"PyTorch {torch.__version__} sees 1 cpu device, "
                    f"so there is no platform.index={index}: "
                    "choose another platform.index or platform"
                )
            return
        if kind != "gpu":
            raise UnavailableError("ParaDnn runs PyTorch only on CPUs and GPUs: set framework=jax")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            raise UnavailableError(
                f"PyTorch {torch.__version__} sees {counted(count, 'gpu device')}, "
                f"so there is no platform.index={index}: "
                "choose another platform.index or platform"
            )
        # Keras places its variables on "cuda", which is the current device.
        torch.cuda.set_device(index)
        self._device = torch.device("cuda", index)

    def processes_per_host(self, devices: int, hosts: int) -> int:
        return devices  # DistributedDataParallel has one process per device

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        inputs = workload.prepare(self._place(batch[0]))
        targets = self._place(batch[1])
        model = workload.model

        def compiled(function: Any) -> Any:
            if point["compile"] == "eager":
                return function
            mode = point["framework"].get("compile", "default")
            return _compiled(function, point["compile"], self._device, mode)

        forward = compiled(lambda batch: model(batch, training=False))
        if point["mode"] != "train":
            return _Step(forward, (inputs, targets), self._device, point)
        replica = self._training_callable(model)
        compute = compiled(lambda batch: workload.loss(targets, replica(batch, training=True)))
        variables = model.trainable_variables
        optimizer = make_optimizer(point, variables)

        def update(gradients: Any) -> None:
            optimizer.apply(gradients, variables)

        # The loss scaling of float16 makes a decision on the host at every step, which breaks a
        # compiled update.
        if point["precision"] != "float16":
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

        state = [*model.variables, *optimizer.variables]
        step = _Step(train_step, (inputs, targets), self._device, point, state, forward)
        step.uncompiled_run = self._uncompiled_run(workload, inputs, targets)
        return step

    def _training_callable(self, model: Any) -> Any:
        """Return the callable that replaces `model` in a training step.

        A subclass returns a wrapper that exchanges gradients with other processes.
        """
        return model

    def _uncompiled_run(
        self, workload: BuiltModel, inputs: Sequence[Any], targets: Sequence[Any]
    ) -> Callable[[], object] | None:
        """Return a function that computes one training step without compilation.

        Running this function allows PyTorch to count the matrix products and convolutions of the
        step.

        Args:
            workload: The model and its loss.
            inputs: Input tensors of the batch.
            targets: Target tensors of the batch.

        Returns:
            The function; None if PyTorch can count them while it runs the compiled step.
        """
        return None

    def _place(self, arrays: Sequence[Any]) -> list[Any]:
        return [torch.as_tensor(array).to(self._device) for array in arrays]

    def make_kernel(
        self, name: str, size: int, precision: str, compile: str
    ) -> Callable[[int], None]:
        dtype = getattr(torch, precision)
        device = self._device
        if name == "matmul":
            left = torch.randn(size, size, device=device).to(dtype)
            right = torch.randn(size, size, device=device).to(dtype)

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
        is_device_message = "CUDA out of memory" in text or "_ALLOC_FAILED" in text
        if is_device_message or isinstance(error, torch.OutOfMemoryError):
            return "oom_device"
        if isinstance(error, RuntimeError) and "can't allocate memory" in text:
            return "oom_host"
        return None


class _Step(Step):
    """A step that calls a function on a batch that stays on the device.

    `feed` overwrites the batch in place.

    Args:
        function: The timed function of the inputs. In training, it returns the loss.
        batches: The input tensors, and the target tensors.
        device: The device of the tensors.
        point: The configuration to measure, as nested mappings of plain values.
        variables: Variables of the model, then of the optimizer; empty in inference.
        forward: The forward pass as a function of the inputs; None if the method `outputs` is not
            needed.
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
        #: Computes one step uncompiled, so that `products` can count its matrix products. None to
        #: run the step itself.
        self.uncompiled_run: Callable[[], object] | None = None
        #: Whether the FLOPs must be counted, because the model has no analytic FLOP count.
        self._needs_counting = "model" in point and make_model(point["model"]).is_counted

    def run(self, steps: int) -> float | None:
        function = self.function
        batch = self._batch
        if self._training:
            for _ in range(steps):
                loss = function(batch)
            # Reading the last loss waits for all work that the device has queued.
            return float(loss)
        with torch.inference_mode():
            for _ in range(steps):
                function(batch)
            _wait(self._device)
        return None

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float | None:
        # The compiled loss refers to the tensors of the first targets, so overwrite these tensors.
        for _ in range(steps):
            for tensors, arrays in zip(self._batches, take(), strict=True):
                for tensor, array in zip(tensors, arrays, strict=True):
                    tensor.copy_(torch.from_numpy(array))
            loss = self.function(self._batch)
        return float(loss)

    def values(self) -> list[Any]:
        return [variable.value.detach().cpu().numpy().copy() for variable in self._variables]

    def outputs(self, inputs: Sequence[Any]) -> Any:
        tensors = [torch.from_numpy(array).to(self._device) for array in inputs]
        with torch.no_grad():
            outputs = self._forward(tensors[0] if len(tensors) == 1 else tensors)
        return outputs.detach().float().cpu().numpy()

    def compilations(self) -> int:
        # Count all frames, because failed compilations take time too.
        return int(dynamo.counters["frames"]["total"])

    def compile_note(self) -> str | None:
        if not self._compiled:
            return None
        breaks = dynamo.counters["graph_break"]
        break_reason = max(breaks, key=breaks.get) if breaks else ""
        recompile_reasons = [
            entry.recompile_reason
            for entry in dynamo.get_compilation_metrics()
            if entry.recompile_reason
        ]
        last_recompile_reason = recompile_reasons[-1] if recompile_reasons else ""
        graphs = counted(dynamo.counters["stats"]["unique_graphs"], "graph")
        graph_breaks = counted(sum(breaks.values()), "graph break")
        recompilations = counted(len(recompile_reasons), "recompilation")
        return (
            f"torch.compile: {graphs}, {graph_breaks}{_in_parentheses(break_reason)}, "
            f"{recompilations}{_in_parentheses(last_recompile_reason)}"
        )

    def products(self) -> Sequence[Cost]:
        run = self.uncompiled_run or partial(self.run, 1)
        if not self._compiled:
            with products:
                run()
        elif self._needs_counting and _is_partly_compiled():
            # Inductor compiled only a part of the model, or compiled a part twice. Count the
            # products of an uncompiled step instead.
            products.costs.clear()
            with torch.compiler.set_stance("force_eager"), products:
                run()
        return products.costs


def _is_partly_compiled() -> bool:
    """Return whether torch.compile left code of this process uncompiled, or recompiled code."""
    frames = dynamo.counters["frames"]
    is_repeated = any(entry.recompile_reason for entry in dynamo.get_compilation_metrics())
    return frames["ok"] < frames["total"] or bool(dynamo.counters["graph_break"]) or is_repeated


def _in_parentheses(reason: str) -> str:
    """Return the first line of a reason in parentheses, such as " (data-dependent branch)".

    The other lines of a reason only give advice. The result is empty if the reason is empty.
    """
    lines = reason.strip().splitlines()
    if not lines:
        return ""
    return f" ({lines[0][:_REASON_CHARS]})"


def _compiled(function: Any, compile: str, device: Any, mode: str) -> Any:
    """Wrap a function in torch.compile.

    Args:
        function: The function to compile.
        compile: The compile mode of the configuration: "graph" or "xla".
        device: The device on which the function runs.
        mode: The argument `mode` of torch.compile, such as "default".

    Raises:
        UnavailableError: If `compile` is xla, or a compiler that the device needs is missing.
    """
    if compile == "xla":
        raise UnavailableError(
            "ParaDnn runs PyTorch without XLA: set compile=graph (torch.compile), or compile=eager "
            "(no compiler)"
        )
    compilers = [os.environ["CXX"]] if "CXX" in os.environ else _COMPILERS
    if not any(shutil.which(name) for name in compilers):
        raise UnavailableError(
            f"torch.compile needs a C++ compiler, but finds no {' or '.join(compilers)}: "
            "install g++, or set compile=eager"
        )
    if device.type == "cuda" and not torch.utils._triton.has_triton():
        raise UnavailableError(
            "torch.compile on a GPU needs the package triton: install it, or set compile=eager"
        )
    if device.type == "cpu":
        # PyTorch detects the processor's instruction sets by compiling probes, which takes about
        # ten seconds. Do this while the cache is still the folder that all points share.
        cpu_vec_isa.pick_vec_isa()
    # As in the other frameworks, every point compiles its model again, so it needs an empty cache.
    # The new folder is inside the worker's folder and is deleted with it. Importing PyTorch sets
    # the variable to the shared folder. Any other value comes from the user, or from an earlier
    # call.
    shared = default_cache_dir()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", shared) == shared:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(
            tempfile.mkdtemp(prefix="inductor-", dir=".")
        )
    # Show the names of compiled CPU kernels in the profiler.
    inductor.cpp.enable_kernel_profile = True
    inductor.post_grad_custom_pre_pass = GraphProducts()
    return torch.compile(function, dynamic=False, mode=mode)


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


FRAMEWORK = Torch


# With several devices there is one process per device. DistributedDataParallel averages the
# gradients over the processes while the backward pass computes them.


class GroupedTorch(Torch):
    """PyTorch with one process per device, under DistributedDataParallel.

    Args:
        member: Rank, addresses and device of this process.
    """

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._member = member

    def open_device(self, platform: Mapping[str, Any]) -> None:
        member = self._member
        own = dict(platform)
        if platform["name"] == "cpu":
            pin_to_cores(member.layout.cores)
            own["threads"] = member.layout.threads
        else:
            own["index"] = int(platform["index"]) + member.local_rank
        super().open_device(own)
        backend = "gloo" if self._device.type == "cpu" else "nccl"
        host, port = host_and_port(member.addresses[0])
        # Set the variables that torchrun sets, for models that read them.
        os.environ.update(
            RANK=str(member.rank),
            LOCAL_RANK=str(member.local_rank),
            WORLD_SIZE=str(len(member.addresses)),
            MASTER_ADDR=host,
            MASTER_PORT=str(port),
        )
        # If no interface is set, Gloo and NCCL resolve the name of the host, which may give a
        # loopback address.
        interface = interface_of(host_and_port(member.addresses[member.rank])[0])
        if interface:
            os.environ.setdefault(f"{backend.upper()}_SOCKET_IFNAME", interface)
        torch.distributed.init_process_group(backend, init_method="env://")

    def alone(self) -> Framework:
        framework = Torch()
        framework._device = self._device
        return framework

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        inputs, targets = ([self._member.share(array) for array in arrays] for arrays in batch)
        return super().make_step(workload, (inputs, targets), point)

    def _training_callable(self, model: Any) -> Any:
        devices = None if self._device.type == "cpu" else [self._device.index]
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def _uncompiled_run(
        self, workload: BuiltModel, inputs: Sequence[Any], targets: Sequence[Any]
    ) -> Callable[[], object]:
        # A whole step would wait for the other processes, which do not count their products.
        def run() -> None:
            batch = inputs[0] if len(inputs) == 1 else list(inputs)
            loss = workload.loss(targets, workload.model(batch, training=True))
            weights = [variable.value for variable in workload.model.trainable_variables]
            torch.autograd.grad(loss, weights, allow_unused=True)

        return run


GROUPED = GroupedTorch
