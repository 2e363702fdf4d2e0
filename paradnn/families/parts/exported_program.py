"""Conversion of a PyTorch program in a file of `torch.export.save` to a `BuiltModel`.

Only workers import this module.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from paradnn.core.errors import UnavailableError, reraise_as_unavailable
from paradnn.families.built import ArraySpec, BuiltModel
from paradnn.families.parts.inputs import array_spec, common_batch, filled_shape
from paradnn.families.parts.user_model import torch_model

#: Pattern of the archive members that are loaded: the graph, and tensors as plain bytes.
_PLAIN_MEMBER = re.compile(
    r"[^/]+/("
    r"models/[^/]+\.json"
    r"|data/(weights|constants)/([^/]+_config\.json|(weight|tensor)_\d+)"
    r"|archive_\w+"
    r"|byteorder"
    r"|\.data/\w+"
    r")"
)


def exported_workload(path: Path, input_shape: tuple[int, ...]) -> BuiltModel:
    """Load a program that `torch.export.save` wrote as a `BuiltModel` for inference.

    Args:
        path: The file.
        input_shape: Shape of the only input, without the batch axis. It fills the sizes that the
            program leaves open; () for a program without open sizes.

    Raises:
        UnavailableError: If the file is not such a program or contains pickled tensors, or if
            ParaDnn cannot draw random values for an input. The message then names the input.
    """
    import torch

    reason = f"{path.name} is not a program that this PyTorch can load ({torch.__version__})"
    # For a damaged file, PyTorch can raise any exception.
    with reraise_as_unavailable(reason, Exception):
        program = torch.export.load(plain_archive(path))
    arguments, keyword_arguments = program.call_spec.in_spec.children()
    is_flat = all(child.is_leaf() for child in arguments.children())
    if keyword_arguments.num_leaves or not is_flat:
        raise UnavailableError(
            f"{path.name} requires keyword arguments or nested inputs: "
            "export it with tensors as positional arguments"
        )
    for entry in program.graph_signature.input_specs:
        if isinstance(entry.arg, torch.export.graph_signature.ConstantArgument):
            raise UnavailableError(_no_tensor(f"input {entry.arg.name!r} of {path.name}"))
    names = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    inputs = [node for node in nodes if node.name in names]
    if not inputs:
        raise UnavailableError(f"{path.name} has no input: export it with a batch as argument")
    specs = []
    first_axes = {}
    for node in inputs:
        label = f"input {node.name!r} of {path.name}"
        spec, batch_size = _input_spec(
            node.meta.get("val"), label, input_shape, is_only=len(inputs) == 1
        )
        specs.append(spec)
        if batch_size is not None:
            first_axes[label] = batch_size
    module: Any = program.module()
    # Keras calls `train` to switch between training and inference. An exported program cannot
    # switch, so ignore the call.
    module.train = lambda mode=True: module
    dtypes = [node.meta["val"].dtype for node in inputs]

    def cast(tensors: list[Any]) -> list[Any]:
        return [tensor.to(dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]

    return BuiltModel(
        torch_model(module), tuple(specs), prepare=cast, batch_size=common_batch(first_axes)
    )


def _input_spec(
    tensor: Any, label: str, input_shape: tuple[int, ...], *, is_only: bool
) -> tuple[ArraySpec, int | None]:
    """Specify the array that is drawn for an input of the program.

    Args:
        tensor: The example tensor that the program stores for the input.
        label: Name of the input in messages.
        input_shape: `model.input_shape`, which fills open sizes.
        is_only: Whether the program has no other input.

    Returns:
        The specification of the array; and the batch size that the program requires, or None if
        the program accepts any batch size.

    Raises:
        UnavailableError: If the input is not a tensor, not numeric, or has sizes that stay open.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise UnavailableError(_no_tensor(label))
    sizes = [size if isinstance(size, int) else None for size in tensor.shape]
    shape = filled_shape(sizes, input_shape, label, is_only=is_only)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return array_spec(shape, dtype, 2, label), sizes[0]


def _no_tensor(label: str) -> str:
    return f"{label} is not a tensor: make it a constant of the program"


def plain_archive(path: Path) -> io.BytesIO:
    """Return a copy of a program's archive without the members that PyTorch would unpickle.

    `exported_workload` loads this copy, so the loaded content is exactly the checked content.

    Args:
        path: File that `torch.export.save` wrote, a zip archive.

    Raises:
        UnavailableError: If weights or constants are pickled, or the archive is not a program of
            `torch.export.save`.
    """
    copy = io.BytesIO()
    model_members = []
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as plain:
        _require_program(path, archive.namelist())
        for name in dict.fromkeys(archive.namelist()):
            if name.endswith("_config.json") and _has_pickled_entries(archive.read(name)):
                raise UnavailableError(
                    f"{path.name} contains pickled tensors ({name}): export it with plain tensors"
                )
            if _PLAIN_MEMBER.fullmatch(name):
                plain.writestr(name, archive.read(name))
                if "/models/" in name:
                    model_members.append(name)
        for name in model_members:
            # PyTorch requires a member with example inputs. Example inputs are pickled, so replace
            # them with an empty member.
            examples = re.sub(r"/models/([^/]+)\.json", r"/data/sample_inputs/\1.pt", name)
            plain.writestr(examples, b"")
    copy.seek(0)
    return copy


def _require_program(path: Path, members: list[str]) -> None:
    """Check that an archive of PyTorch is a program of `torch.export.save`.

    Args:
        path: The archive, for the message.
        members: Names of the archive's members.

    Raises:
        UnavailableError: If it is another kind of archive, or PyTorch 2.7 or older wrote it.
    """
    remedy = "save the module with torch.export.save"
    if any("/code/" in name for name in members):
        raise UnavailableError(f"{path.name} is a TorchScript file: {remedy}")
    if any(name.endswith("/data.pkl") for name in members):
        raise UnavailableError(f"{path.name} contains pickled weights or a module: {remedy}")
    if "serialized_exported_program.json" in members:
        raise UnavailableError(
            f"{path.name} was saved by PyTorch 2.7 or older, with pickled weights: "
            "save it again with a newer PyTorch"
        )


def _has_pickled_entries(config: bytes) -> bool:
    entries = json.loads(config).get("config", {}).values()
    return any(entry.get("use_pickle") for entry in entries)
