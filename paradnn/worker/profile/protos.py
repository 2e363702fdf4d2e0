"""Protocol buffers of XSpace (a profiler's trace) and HLO (a compiled program).

TensorFlow ships classes for these formats in private modules that move between versions. JAX ships
no classes for them. The formats fix the field numbers (openxla: xplane.proto, hlo.proto,
xla_data.proto). `protos.txtpb` describes only the fields that profiles need. Parsing skips all
other fields.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format


def _message_classes() -> dict[str, Any]:
    """Return the class of every message of `protos.txtpb`, by name."""
    text = Path(__file__).with_suffix(".txtpb").read_text(encoding="utf-8")
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    messages = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(message) for name, message in messages.items()}


#: The class of every message by name.
CLASSES = _message_classes()
XSpace = CLASSES["XSpace"]
HloProto = CLASSES["HloProto"]
HloModuleProto = CLASSES["HloModuleProto"]
