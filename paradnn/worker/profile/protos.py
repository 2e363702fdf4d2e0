"""The fields that are read of XSpace (a profiler's trace) and HLO (a compiled program), by their
public numbers.

TensorFlow ships classes for both in private modules that move between versions, JAX ships neither;
the numbers are fixed by the formats (openxla: xplane.proto, hlo.proto, xla_data.proto). Fields that
are not in `protos.txtpb` are skipped.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format


def _classes() -> dict[str, Any]:
    """Every message of the file by its name."""
    text = Path(__file__).with_suffix(".txtpb").read_text(encoding="utf-8")
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    messages = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(message) for name, message in messages.items()}


CLASSES = _classes()
XSpace = CLASSES["XSpace"]
HloProto = CLASSES["HloProto"]
HloModuleProto = CLASSES["HloModuleProto"]
