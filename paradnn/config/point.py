"""The configuration, typed and checked once.

Hydra composes plain nested mappings; here they become frozen dataclasses. Every field carries its help text and its
bounds, so that the checks, `--help` and the documentation speak of the same thing. An error names the dotted key, the
value and the remedy (`paradnn.errors.ConfigError`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from typing import Any

from paradnn.config.consistent import check_hosts, check_latency, check_processes, check_software
from paradnn.config.data import Input, Synthetic, check_input, inputs, with_whole_path
from paradnn.config.outcome import OUTCOMES
from paradnn.config.price import Prices, check_prices
from paradnn.config.sweep import Largest, Sweep, check_design
from paradnn.core.schema import memory_bytes, option, read
from paradnn.core.workload import USUAL, WORKLOADS, Workload, asked_for, choices, key_groups
from paradnn.errors import ConfigError
from paradnn.families import FAMILIES, Model
from paradnn.families.layers import COMPUTE_BYTES
from paradnn.worker.affinity import core_list, core_text
from paradnn.worker.versions import FRAMEWORKS

__all__ = [
    "LARGEST",
    "SETTINGS_KEYS",
    "Framework",
    "Measure",
    "Optimizer",
    "Platform",
    "Point",
    "Settings",
    "Software",
    "Sweep",
    "Tracking",
    "asked_keys",
    "point_keys",
    "read_point",
    "read_settings",
    "read_smallest",
]

# Variables that frameworks read when they are imported. An allow-list, since what is set here is also recorded.
ENV_PREFIXES = (
    "TF_",
    "XLA_",
    "OMP_",
    "KMP_",
    "ONEDNN_",
    "DNNL_",
    "MKL_",
    "OPENBLAS_",
    "CUDA_",
    "NVIDIA_TF32",
    "JAX_",
    "TORCH",
    "PYTORCH_",
    "MALLOC_",
    "GLIBC_TUNABLES",
)

# What a requirement may be: a name, extras, versions, a marker. Never an option of the installer or an address, which
# may hold a password, and what is written here is recorded.
REQUIREMENT = r"[A-Za-z0-9][\w.-]*(\[[\w,. -]+\])? *([<>=!~]=?[^@/;]+)?(;[^@/]+)?"


@dataclass(frozen=True)
class Optimizer:
    """The optimizer, by default with the constants of the paper's published programs."""

    name: str = option("rmsprop", "the update rule", choices=("rmsprop", "momentum", "sgd", "adam"))
    learning_rate: float = option(0.1, "step size", low=0.0)
    decay: float = option(0.9, "decay of the mean square (rmsprop, adam)", low=0.0, high=1.0)
    momentum: float = option(0.9, "momentum (rmsprop, momentum), decay of the mean (adam)", low=0.0, high=1.0)
    epsilon: float = option(1.0, "added to the mean square (rmsprop) or to its root (adam)", low=0.0)


@dataclass(frozen=True)
class Platform:
    """The device the model runs on."""

    name: str = option("cpu", "kind of device", choices=("cpu", "gpu", "tpu"))
    threads: int | None = option(
        None,
        "threads within an operation, of each device; null: every core that may be used, shared by the devices",
        low=1,
        high=4096,
    )
    index: int = option(0, "which device of that kind", low=0, high=1023)
    cores: str | int | None = option(
        None,
        "cores of the host that a point on one device is bound to, as in '0-3,6'; null: all that may be used",
        low=0,
        pattern=(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", "write numbers and ranges of them, as in '0-3,6'"),
    )
    price_per_hour: float | None = option(
        None, "what an hour of it costs, recorded and no part of the point; null: as price= says", low=1e-9, high=1e9
    )


@dataclass(frozen=True)
class Framework:
    """The framework below Keras, with the variables it reads when it is imported."""

    name: str = option(
        "tensorflow", "Keras backend, or an engine that serves models (docs/engines.md)", choices=tuple(FRAMEWORKS)
    )
    env: Mapping[str, str] = option(
        {}, "environment variables of the worker, such as TF_ENABLE_ONEDNN_OPTS", prefixes=ENV_PREFIXES
    )


@dataclass(frozen=True)
class Software:
    """The interpreter under test: this one, one that the user made, or a stack that is made on first use."""

    name: str = option("current", "name of the software stack")
    python: str | None = option(None, "path of the interpreter that has the framework; null: this one")
    requirements: tuple[str, ...] = option(
        (),
        "packages of a stack that is made on first use, such as tensorflow-cpu==2.16.2",
        pattern=(REQUIREMENT, "write a package with its version, as in tensorflow-cpu==2.16.2"),
    )
    python_version: str | None = option(
        None,
        "Python of such a stack; null: the version that runs the driver",
        pattern=(r"3\.\d+", "write for example '3.11', in quotes"),
    )


@dataclass(frozen=True)
class Measure:
    """The protocol of one point.

    Limits (`timeout`, `memory_limit`, `predict_oom`) and extras (`profile`, `keep_trace`) do not change what is timed.
    """

    min_seconds: float = option(1.0, "measure at least this long", low=0.0, high=86_400.0)
    min_blocks: int = option(10, "and at least so many blocks", low=1, high=100_000)
    max_seconds: float = option(120.0, "measure no longer than this, however few the blocks", low=0.0, high=864_000.0)
    block_seconds: float = option(
        0.1, "shortest block: enough steps between two synchronisations to last it", low=0.0, high=3600.0
    )
    warmup_seconds: float = option(10.0, "stop warming up after this long, steady or not", low=0.0, high=86_400.0)
    relative_interval: float | None = option(
        None,
        "measure on until half the 95% interval is below this share, within max_seconds or max_processes; null: do not",
        low=0.0001,
        high=1.0,
    )
    reference: bool | float = option(
        False,
        "between blocks run fixed kernels that tell how fast the machine is: false, true (a fifth of the time), or "
        "a smaller share of it",
        low=0.0,
        high=0.2,
    )
    processes: int = option(
        1,
        "short processes of a point, spread over the sweep: the interval holds the spread between them",
        low=1,
        high=1000,
    )
    max_processes: int = option(
        30, "with several processes and relative_interval: measure in more of them, up to so many", low=1, high=1000
    )
    timeout: float = option(
        600.0, "seconds for a process of a point; longer is outcome timeout", low=0.001, high=864_000.0
    )
    memory_limit: str | int = option(
        "auto", "host memory a point may take: bytes, 8GiB, 500MB, or auto (90% of what is free)"
    )
    predict_oom: bool = option(True, "skip a point whose analytic memory bound alone exceeds the limit")
    profile: bool = option(False, "after timing, profile some steps: a table of operations and a figure on the run")
    keep_trace: bool = option(False, "profile, and keep the trace with the run (TensorBoard's profiler opens it)")
    cold_caches: bool = option(
        False, "mode=inference on a CPU: before each step whose latency is timed, empty the processor's caches"
    )


@dataclass(frozen=True)
class Point:
    """One model at one kind of work, measured once in one way: everything that decides what a run measures."""

    model: Model
    workload: Workload = field(default_factory=lambda: next(iter(WORKLOADS.values())))
    batch_size: int = option(
        256, "examples of a step (paper: fc 64..16384, cnn 64..1024, rnn 16..1024); largest: search", low=1, high=2**40
    )
    precision: str = option(
        "float32",
        "16-bit types are Keras mixed policies; int8 is an engine's, with calibration or without (int8_dynamic)",
        choices=tuple(COMPUTE_BYTES),
    )
    compile: str = option(
        "graph",
        "graph (tf.function, jax.jit, torch.compile), xla (jit_compile; jax.jit) or eager",
        choices=("graph", "xla", "eager"),
    )
    devices: int = option(
        1, "devices that share each step, data parallel: every one has batch_size / devices examples", low=1, high=4096
    )
    transport: str = option(
        "local",
        "how several devices communicate: local (in one process) or grpc (a process for each, TensorFlow on a CPU)",
        choices=("local", "grpc"),
    )
    hosts: int = option(
        1,
        "hosts with as many of its processes each (transport=grpc, model=channel): docs/clusters.md",
        low=1,
        high=4096,
    )
    optimizer: Optimizer = field(default_factory=Optimizer)
    platform: Platform = field(default_factory=Platform)
    framework: Framework = field(default_factory=Framework)
    software: Software = field(default_factory=Software)
    data: Input = field(default_factory=Synthetic)
    measure: Measure = field(default_factory=Measure)
    replicate: int = option(
        0, "repetition of the same point; sweep it for the spread between processes", low=0, high=2**31
    )
    seed: int = option(0, "random seed of weights and data", low=0, high=2**31 - 1)


@dataclass(frozen=True)
class Tracking:
    """Where runs are recorded."""

    name: str = option("mlflow", "mlflow: a tracking store; offline: one file a point", choices=("mlflow", "offline"))
    uri: str | None = option(None, "tracking URI; null: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db")
    experiment: str = option("paradnn", "MLflow experiment")
    folder: str | None = option(
        None, "files of tracking=offline, and of a sweep whose store went away; null: mlruns/offline"
    )
    patience: float = option(
        120.0,
        "seconds to wait for a store that went away before points are measured without a claim",
        low=0.0,
        high=86_400.0,
    )


@dataclass(frozen=True)
class Settings:
    """What the driver needs beside the points themselves."""

    resume: bool | str = option(
        True,
        "skip what has an outcome; re-measure everything; or re-measure the outcomes named in retry",
        choices=("retry",),
    )
    ceilings: bool = option(
        True, "state utilisation against this machine's measured ceilings; measured once where there are none"
    )
    retry: tuple[str, ...] = option(
        ("crash", "timeout", "unavailable"), "outcomes that resume=retry measures again", choices=tuple(OUTCOMES)
    )
    tracking: Tracking = field(default_factory=Tracking)
    sweep: Sweep = field(default_factory=Sweep)
    largest: Largest = field(default_factory=Largest)
    price: Prices = field(default_factory=Prices)


#: What `batch_size` may be instead of a number where it is searched for.
LARGEST = "largest"
SETTINGS_KEYS = tuple(Settings.__dataclass_fields__)
_ASKED = {
    "mode": "a training step, a forward pass alone, or tokens one after the other (docs/generation.md)",
    "task": "what is measured: a step, or learning to an accuracy (docs/learning.md)",
    "scenario": "who asks for inference, as MLPerf defines it (docs/serving.md)",
}


@cache
def asked_keys() -> type[Any]:
    """The keys that ask for a kind of work, as a dataclass."""
    entries = [(key, str, option(USUAL[key], text, choices=choices(key))) for key, text in _ASKED.items()]
    return make_dataclass("Asked", entries, frozen=True)


def point_keys() -> tuple[str, ...]:
    """The first words of all keys of a point."""
    own = (key for key in Point.__dataclass_fields__ if key != "workload")
    return (*own, *USUAL, *key_groups())


def read_point(config: Mapping[str, Any]) -> Point:
    """The point in a composed configuration; raises ConfigError for the first value that is wrong."""
    model = config.get("model")
    name = model.get("name") if isinstance(model, Mapping) else model
    if not isinstance(model, Mapping) or not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError("model.name", name, "no such family", f"choose one of {', '.join(FAMILIES)}")
    given = {"model": FAMILIES[name].options.configured(model), "data": _read_data(config)}
    rest = {key: config[key] for key in point_keys() if key not in (*given, *USUAL, *key_groups()) and key in config}
    if rest.get("batch_size") == LARGEST:
        raise ConfigError("batch_size", LARGEST, "is what python -m paradnn.train searches for", "give numbers here")
    point = read(Point, rest, "", given={**given, "workload": _read_workload(config)})
    point.workload.check_model(point.model)
    point.workload.check_keys(config)
    point = point.workload.fitted(point)
    point = point.model.in_point(point)
    check_input(point.data, point.workload, point.model, point.devices)
    memory_bytes(point.measure.memory_limit, "measure.memory_limit")
    check_software(point.software)
    if point.batch_size % point.devices:
        raise ConfigError(
            "devices",
            point.devices,
            f"does not divide batch_size={point.batch_size}",
            "choose a batch_size that is a multiple of devices: each gets as many examples",
        )
    point.workload.check(point)
    check_latency(point)
    check_processes(point.measure)
    check_hosts(point)
    if point.platform.cores is not None:
        point = replace(point, platform=_with_cores(point))
    # One device communicates with no other: it is the same point either way.
    return point if point.devices > 1 or point.transport == "local" else replace(point, transport="local")


def _read_workload(config: Mapping[str, Any]) -> Workload:
    read(asked_keys(), {key: config[key] for key in USUAL if key in config}, "")
    asked = asked_for(config)
    for other in WORKLOADS.values():
        if other is not asked:
            other.left_out(config)
    return asked.of(config)


def read_smallest(config: Mapping[str, Any]) -> Point:
    """The point in a configuration whose batch_size is LARGEST, with the smallest batch that it can have."""
    return read_point({**config, "batch_size": config.get("devices", 1)})


def read_settings(config: Mapping[str, Any]) -> Settings:
    """What is no part of a point; raises ConfigError, for a key that is neither one's nor the other's too."""
    unknown = [key for key in config if key not in point_keys() + SETTINGS_KEYS]
    if unknown:
        raise ConfigError(unknown[0], config[unknown[0]], "no such key", "see python -m paradnn.train --help")
    settings = read(Settings, {key: config[key] for key in SETTINGS_KEYS if key in config}, "")
    check_design(settings.sweep)
    check_prices(settings.price)
    return settings


def _read_data(config: Mapping[str, Any]) -> Input:
    data = config.get("data", {"name": "synthetic"})
    name = data.get("name") if isinstance(data, Mapping) else data
    if not isinstance(data, Mapping) or not isinstance(name, str) or name not in inputs():
        raise ConfigError("data.name", name, "no such choice", f"choose one of {', '.join(inputs())}")
    return with_whole_path(read(inputs()[str(name)], data, "data"))


def _with_cores(point: Point) -> Platform:
    """The platform with `cores` written in the one way that stands for them: 0,1,2,6 as 0-2,6."""
    given = point.platform.cores
    cores = core_list(str(given))
    if not cores:
        raise ConfigError("platform.cores", given, "names no core", "write the smaller number first, as in '0-3'")
    if point.devices > 1:
        raise ConfigError(
            "platform.cores", given, f"is for one device, not for devices={point.devices}", "leave one of them out"
        )
    return replace(point.platform, cores=core_text(cores))
