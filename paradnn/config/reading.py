"""Conversion of a composed configuration to a point: parsing, checks and canonical form."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paradnn.config.data import ImageFiles, with_absolute_path
from paradnn.config.point import Platform, Point, selector_keys
from paradnn.config.rules import PointRules, input_types
from paradnn.config.settings import LARGEST
from paradnn.core.errors import ConfigError
from paradnn.core.schema import memory_bytes, read
from paradnn.core.words import core_list, core_text
from paradnn.core.workload import (
    DEFAULT_KEYS,
    WORKLOADS,
    Workload,
    check_selectors,
    requested_workload,
)
from paradnn.families import FAMILIES


def read_point(config: Mapping[str, Any], *, is_measured: bool = True) -> Point:
    """Return the point (one configuration to measure) that Hydra's configuration describes.

    The point is in canonical form, in which equal measurements are equal points.

    Args:
        config: The composed configuration, as nested mappings of plain values.
        is_measured: Whether to reject points that ParaDnn can predict but not measure.

    Raises:
        ConfigError: If a value is invalid, or two values contradict each other. The error names
            the first such value.
    """
    return canonical_point(parse_point(config), is_measured=is_measured)


def parse_point(config: Mapping[str, Any]) -> Point:
    """Return the point that a configuration describes, without converting it to canonical form.

    The function checks single values, but not whether they contradict each other.

    Args:
        config: The composed configuration, as nested mappings of plain values.

    Raises:
        ConfigError: If a value is invalid.
    """
    family = _checked_name(config.get("model"), "model.name", "family", FAMILIES)
    model = FAMILIES[family].options.from_config(config["model"])
    data_keys = config.get("data", {"name": "synthetic"})
    input_type = input_types()[_checked_name(data_keys, "data.name", "choice", input_types())]
    if config.get("batch_size") == LARGEST:
        reason = "is a search, which only paradnn train runs"
        raise ConfigError("batch_size", LARGEST, reason, "give numbers here")
    parts = {
        "model": model,
        "data": with_absolute_path(read(input_type, data_keys, "data")),
        "workload": _read_workload(config),
    }
    other_keys = {
        key: config[key] for key in Point.__dataclass_fields__ if key in config and key not in parts
    }
    point: Point = read(Point, other_keys, "", given=parts)
    point.workload.role(PointRules).check_model(point.model)
    check_selectors(point.workload, config)
    return point


def canonical_point(point: Point, *, is_measured: bool = True) -> Point:
    """Return a configuration in canonical form, in which equal measurements are equal points.

    Args:
        point: The point, as `parse_point` returns it.
        is_measured: Whether to reject points that ParaDnn can predict but not measure.

    Raises:
        ConfigError: If two values of the point contradict each other.
    """
    rules = point.workload.role(PointRules)
    point = point.model.canonical_point(rules.canonical(point))
    if is_measured:
        point.model.check_measurable(point)
    rules = point.workload.role(PointRules)
    _check_input(point)
    memory_bytes(point.measure.memory_limit, "measure.memory_limit")
    point = _with_canonical_parallel(point)
    if point.batch_size % point.replicas:
        reason = f"does not divide batch_size={point.batch_size}"
        if point.batch_size % point.devices:
            remedy = f"set batch_size to a multiple of {point.replicas}"
            raise ConfigError("devices", point.devices, reason, remedy)
        remedy = f"choose a batch_size that is a multiple of hosts x devices = {point.device_count}"
        raise ConfigError("hosts", point.hosts, reason, remedy)
    rules.check(point)
    _check_software(point)
    _check_protocol(point)
    _check_hosts(point)
    if point.platform.cores is not None:
        point = replace(point, platform=_with_canonical_cores(point))
    return point


def _with_canonical_parallel(point: Point) -> Point:
    """Return a point with `parallel` in canonical form, which is "data" for a single device.

    Args:
        point: One configuration to measure.

    Raises:
        ConfigError: If ParaDnn does not support the value of `parallel`, or supports it only on one
            host and the point has several.
    """
    if point.parallel == "pipeline":
        reason = "is not possible: Keras does not divide a model's layers among devices"
        raise ConfigError("parallel", "pipeline", reason, "set parallel=data or parallel=model")
    if point.parallel == "model" and point.hosts > 1:
        reason = "is not possible with parallel=model, which divides the weights among devices of one host"
        raise ConfigError("hosts", point.hosts, reason, "set hosts=1 or parallel=data")
    if point.devices == 1:
        return replace(point, parallel="data")
    return point


def _checked_name(keys: object, key: str, kind: str, known: Mapping[str, Any]) -> str:
    """Check the name in a group of configuration keys, such as `model.name`, and return it.

    Args:
        keys: The keys of the group.
        key: Dotted key of the name, for the error message.
        kind: Noun for the named object, such as "family", for the error message.
        known: Mapping whose keys are the valid names.

    Raises:
        ConfigError: If the name is missing or unknown.
    """
    name = keys.get("name") if isinstance(keys, Mapping) else keys
    if not isinstance(keys, Mapping) or not isinstance(name, str) or name not in known:
        raise ConfigError(key, name, f"no such {kind}", f"choose one of {', '.join(known)}")
    return name


def _read_workload(config: Mapping[str, Any]) -> Workload:
    selectors = {key: config[key] for key in DEFAULT_KEYS if key in config}
    read(selector_keys(), selectors, "")
    requested = requested_workload(config)
    for other in WORKLOADS.values():
        if other is not requested:
            other.role(PointRules).reject_unused_keys(config)
    return requested.configured(config)


def _check_input(point: Point) -> None:
    """Check that the input (`data`) fits the kind of work, the model and the devices of a point.

    Args:
        point: One configuration to measure.

    Raises:
        ConfigError: If it does not.
    """
    data = point.data
    if not isinstance(data, ImageFiles):
        for other in WORKLOADS.values():
            is_exclusive = data.name in other.role(PointRules).own_inputs
            if is_exclusive and data.name not in point.workload.role(PointRules).own_inputs:
                reason = f"is the input of {other.key}={other.name}"
                remedy = f"add {other.key}={other.name}, or use data=synthetic"
                raise ConfigError("data", data.name, reason, remedy)
        return
    if FAMILIES[point.model.name].data not in ("images", "any"):
        reason = f"model={point.model.name} does not accept images"
        raise ConfigError("data", data.name, reason, "choose another model, or data=synthetic")
    if point.device_count > 1:
        reason = f"is for one device, and this point has {point.device_count}"
        remedy = "use devices=1 hosts=1, or data=synthetic"
        raise ConfigError("data", data.name, reason, remedy)


def _check_software(point: Point) -> None:
    """Check that the keys of a point's software and framework do not contradict each other.

    Args:
        point: One configuration to measure.

    Raises:
        ConfigError: If they do.
    """
    software = point.software
    if software.python and software.requirements:
        reason = f"cannot be combined with the requirements of software={software.name}"
        raise ConfigError(
            "software.python",
            software.python,
            reason,
            "give either the interpreter or the requirements",
        )
    if software.python_version and not software.requirements:
        remedy = "give software.requirements too"
        version = software.python_version
        reason = "applies only to a stack with requirements"
        raise ConfigError("software.python_version", version, reason, remedy)
    uses_torch_compile = point.framework.name == "torch" and point.compile == "graph"
    if point.framework.compile != "default" and not uses_torch_compile:
        reason = "is a mode of torch.compile, which this point does not use"
        remedy = "set framework=torch compile=graph, or omit it"
        raise ConfigError("framework.compile", point.framework.compile, reason, remedy)


def _check_protocol(point: Point) -> None:
    """Check that the keys of a point's timing protocol do not contradict each other.

    Args:
        point: One configuration to measure.

    Raises:
        ConfigError: If they do.
    """
    measure = point.measure
    if measure.relative_interval is not None and measure.max_processes < measure.processes:
        reason = f"is less than measure.processes={measure.processes}"
        raise ConfigError(
            "measure.max_processes",
            measure.max_processes,
            reason,
            f"set measure.max_processes={measure.processes} or more",
        )
    if measure.cache == "cold":
        reason = ""
        if not point.workload.role(PointRules).can_start_cold:
            reason = (
                "requires work that times single steps, but "
                f"{point.workload.key}={point.workload.name} does not time them"
            )
        elif point.device_count > 1:
            reason = f"is for one device, and this point has {point.device_count}"
        if reason:
            raise ConfigError("measure.cache", "cold", reason, "use measure.cache=warm")


def _check_hosts(point: Point) -> None:
    """Check that a point with several hosts can be distributed over them.

    The hosts must share the processes evenly, and must run the interpreter of this command.

    Args:
        point: One configuration to measure.

    Raises:
        ConfigError: If the point cannot be distributed.
    """
    hosts = point.hosts
    if hosts == 1:
        return
    key, processes = point.workload.role(PointRules).distributable_processes(point)
    if processes % hosts:
        reason = f"does not divide the {processes} processes of {key}"
        raise ConfigError(
            "hosts",
            hosts,
            reason,
            f"choose a divisor of {processes}",
        )
    software = point.software
    if software.name != "current" or software.python:
        selection = f"software={software.name}"
        if software.python:
            selection = f"software.python={software.python}"
        reason = (
            f"cannot be combined with {selection}, "
            "because the other hosts run the interpreter of this command"
        )
        remedy = f"omit {selection}, and start this command with the interpreter to measure"
        raise ConfigError("hosts", hosts, reason, remedy)


def _with_canonical_cores(point: Point) -> Platform:
    """Return the platform of a point with its cores in canonical form: 0,1,2,6 becomes 0-2,6.

    Args:
        point: One configuration to measure.

    Raises:
        ConfigError: If no core is named, or the point has several devices.
    """
    text = point.platform.cores
    cores = core_list(str(text))
    if not cores:
        remedy = "write the smaller number first, as in '0-3'"
        raise ConfigError("platform.cores", text, "does not name a core", remedy)
    if point.devices > 1:
        reason = f"supports only one device, but devices={point.devices}"
        raise ConfigError("platform.cores", text, reason, "omit platform.cores, or set devices=1")
    return replace(point.platform, cores=core_text(cores))
