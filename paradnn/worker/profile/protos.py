"""The fields that are read of XSpace (a profiler's trace) and HLO (a compiled program), by their public numbers.

TensorFlow ships classes for both in private modules that move between versions, JAX ships neither; the numbers are
fixed by the formats (openxla: xplane.proto, hlo.proto, xla_data.proto). Fields that are not named here are skipped.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: Message -> field -> (number, type). A type that is itself a message here is repeated; scalars ending in * are too;
#: a message in brackets is single; {} is a map from int64.
FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "XSpace": {"planes": (1, "XPlane")},
    "XPlane": {
        "name": (2, "string"), "lines": (3, "XLine"), "event_metadata": (4, "{XEventMetadata}"),
        "stat_metadata": (5, "{XStatMetadata}"),
    },
    "XLine": {"name": (2, "string"), "timestamp_ns": (3, "int64"), "events": (4, "XEvent")},
    "XEvent": {
        "metadata_id": (1, "int64"), "offset_ps": (2, "int64"), "duration_ps": (3, "int64"), "stats": (4, "XStat"),
    },
    "XStat": {
        "metadata_id": (1, "int64"), "double_value": (2, "double"), "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"), "str_value": (5, "string"), "bytes_value": (6, "bytes"),
        "ref_value": (7, "uint64"),
    },
    "XEventMetadata": {"id": (1, "int64"), "name": (2, "string"), "stats": (5, "XStat")},
    "XStatMetadata": {"id": (1, "int64"), "name": (2, "string")},
    "HloProto": {"hlo_module": (1, "[HloModuleProto]")},
    "HloModuleProto": {"name": (1, "string"), "computations": (3, "HloComputationProto")},
    "HloComputationProto": {"name": (1, "string"), "instructions": (2, "HloInstructionProto"), "id": (5, "int64")},
    "HloInstructionProto": {
        "name": (1, "string"), "opcode": (2, "string"), "shape": (3, "[ShapeProto]"), "window": (15, "[Window]"),
        "convolution_dimension_numbers": (16, "[ConvolutionDimensionNumbers]"), "custom_call_target": (28, "string"),
        "dot_dimension_numbers": (30, "[DotDimensionNumbers]"), "id": (35, "int64"), "operand_ids": (36, "int64*"),
        "called_computation_ids": (38, "int64*"), "batch_group_count": (58, "int64"),
    },
    "ShapeProto": {"element_type": (2, "int32"), "dimensions": (3, "int64*"), "tuple_shapes": (4, "ShapeProto")},
    "Window": {"dimensions": (1, "WindowDimension")},
    "WindowDimension": {
        "size": (1, "int64"), "stride": (2, "int64"), "padding_low": (3, "int64"),
        "window_dilation": (5, "int64"), "base_dilation": (6, "int64"),
    },
    "ConvolutionDimensionNumbers": {
        "kernel_input_feature_dimension": (3, "int64"), "output_spatial_dimensions": (12, "int64*"),
    },
    "DotDimensionNumbers": {"lhs_contracting_dimensions": (1, "int64*")},
}  # fmt: skip

_SCALARS = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "string": 9, "bytes": 12}
_PACKAGE = "paradnn.profile"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="paradnn_profile.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in FIELDS}


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=1)
    inner = kind.strip("[]{}*")
    if kind.startswith("{"):
        # A map is a repeated entry of key and value, in a nested message that bears the option map_entry.
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "int64")
        _add_field(entry, "value", 2, f"[{inner}]")
        field.label, field.type = 3, 11
        field.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
    elif inner in _SCALARS:
        field.type = _SCALARS[inner]
        field.label = 3 if kind.endswith("*") else 1
    else:
        field.type, field.type_name = 11, f".{_PACKAGE}.{inner}"
        field.label = 1 if kind.startswith("[") else 3


_CLASSES = _classes()
XSpace = _CLASSES["XSpace"]
HloProto = _CLASSES["HloProto"]
HloModuleProto = _CLASSES["HloModuleProto"]
