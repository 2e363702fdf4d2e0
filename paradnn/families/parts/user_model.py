"""Conversion of a user's Keras models, PyTorch modules and JAX functions to a `BuiltModel`.

Only workers import this module. `onnx_file` reads ONNX files, and `exported_program` reads exported
PyTorch programs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from paradnn.core.errors import UnavailableError
from paradnn.core.words import counted
from paradnn.families.built import ArraySpec, BuiltModel, cross_entropy
from paradnn.families.parts.inputs import array_spec, common_batch

#: Names of sparse tensor classes in TensorFlow and JAX. A step cannot wait for such outputs.
_SPARSE_TYPES = ("SparseTensor", "BCOO", "BCSR")
_RETURNS = "return a Keras model, a torch.nn.Module, or a JAX function with its parameters"


def user_workload(
    returned: Any, name: str, input_shape: Sequence[int] = (), output: str = "auto"
) -> BuiltModel:
    """Make a `BuiltModel` from the value that a user's function returned.

    Args:
        returned: A Keras model, a `torch.nn.Module`, or a tuple of a JAX function
            f(parameters, inputs) and its parameters. An example of the input, a batch of one or
            more, may follow as the last element of the tuple.
        name: Name of the function or file in messages.
        input_shape: Shape of the only input, without the batch axis; () for the shape that the
            model declares. Ignored if there is an example.
        output: Targets in training: "classes", "numbers", or "auto", which selects classes if the
            last axis of the output is longer than one.

    Returns:
        The model. It has no targets if training is impossible; `no_loss_reason` says why.

    Raises:
        UnavailableError: If the value is not such a model, or its inputs or outputs are not
            supported. The message names the input or output.
    """
    model, example = _model_and_example(returned, name)
    inputs, batch_size = _input_specs(model, example, input_shape, name)
    prepare = _casts(model, example)

    def call_with_zeros(size: int) -> Any:
        zeros = [ops.zeros((size, *spec.shape), dtype=spec.dtype) for spec in inputs]
        return model(_as_argument(prepare(zeros)), training=False)

    example_size = batch_size or 1
    try:
        result = call_with_zeros(example_size)
    except Exception:
        _check_parameter_types(model, name)
        size = _batch_size_of_example(example)
        if size == example_size:
            raise
        # The model may work only with the batch size of its example.
        result = call_with_zeros(size)
        example_size = size
        batch_size = size
    outputs = _output_tensors(result, name)
    obstacle = _loss_obstacle(outputs, example_size)
    if obstacle:
        return BuiltModel(
            model, inputs, prepare=prepare, batch_size=batch_size, no_loss_reason=obstacle
        )
    target, loss = _target_and_loss(outputs[0][1].shape, output)
    return BuiltModel(model, inputs, (target,), loss, prepare=prepare, batch_size=batch_size)


def _batch_size_of_example(example: Any) -> int:
    if example is None:
        return 1
    first = example[0] if isinstance(example, list | tuple) else example
    return len(first)


def _check_parameter_types(model: keras.Model, name: str) -> None:
    """Check that the floating-point parameters of a PyTorch module are float32.

    Args:
        model: The Keras model that wraps the module; other models pass the check.
        name: Name of the user's function or file in messages.

    Raises:
        UnavailableError: If the module has parameters of another floating-point type.
    """
    wrapper = getattr(model, "wrapper", None)
    if wrapper is None:
        return
    types = {
        str(parameter.dtype).removeprefix("torch.")
        for parameter in wrapper.module.parameters()
        if parameter.is_floating_point()
    }
    others = sorted(types - {"float32"})
    if others:
        raise UnavailableError(
            f"{name} fails with float32 inputs, because it has {', '.join(others)} parameters: "
            "return model.float(), and set precision"
        )


def _as_argument(tensors: list[Any]) -> Any:
    """Return the first argument of a model's call: the only input, or the list of inputs."""
    if len(tensors) == 1:
        return tensors[0]
    return tensors


def _model_and_example(returned: Any, name: str) -> tuple[keras.Model, Any]:
    """Return the model as a Keras model, and the example of its input.

    Args:
        returned: The value that the user's function returned, as in `user_workload`.
        name: Name of the function or file in messages.

    Returns:
        The model, and the example, which is None if the function returned no example.

    Raises:
        UnavailableError: If the value contains no model, or a model that requires a different
            framework.
    """
    parts = list(returned) if isinstance(returned, tuple) else [returned]
    first = parts[0] if parts else None
    if isinstance(first, keras.Model):
        model = _with_list_of_inputs(first)
        rest = parts[1:]
    elif "torch" in sys.modules and isinstance(first, sys.modules["torch"].nn.Module):
        _require_backend("torch", f"{name} returns a torch.nn.Module")
        model = torch_model(first)
        rest = parts[1:]
    elif callable(first) and len(parts) > 1:
        _require_backend("jax", f"{name} returns a JAX function")
        check_jax_function(first, name)
        model = _jax_model(first, parts[1])
        rest = parts[2:]
    else:
        kind = "nothing" if first is None else type(first).__name__
        raise UnavailableError(f"{name} returns {kind}: {_RETURNS}")
    return model, rest[0] if rest else None


def _with_list_of_inputs(model: keras.Model) -> keras.Model:
    """Return a model that accepts a list of inputs in the order of `model.inputs`.

    Keras rejects a list if the model was created with a dict of inputs. Other models are returned
    unchanged.
    """
    # A Sequential model that was never called has inputs, but its `input` is not defined.
    if isinstance(getattr(model, "input", None), dict):
        return keras.Model(model.inputs, model.output)
    return model


def _require_backend(framework: str, statement: str) -> None:
    backend = keras.backend.backend()
    if backend != framework:
        raise UnavailableError(
            f"{statement}, which cannot run with framework={backend}: set framework={framework}"
        )


def check_jax_function(function: Callable[..., Any], name: str) -> None:
    """Check that a JAX function can be called with parameters and inputs.

    Args:
        function: The function.
        name: Name of the user's function or file in messages.

    Raises:
        UnavailableError: If the function does not accept these arguments.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some callables have no signature
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise UnavailableError(
            f"the JAX function of {name} cannot be called as f(parameters, inputs) ({error}): "
            "accept several inputs as one list"
        ) from error


def _jax_model(function: Callable[..., Any], parameters: Any) -> keras.Model:
    def call(params: Any, inputs: Any) -> Any:
        # JaxLayer passes its arguments by these names.
        return function(params, inputs)

    layer = keras.layers.JaxLayer(call, params=parameters, dtype="float32")
    return keras.Sequential([layer])


def torch_model(module: Any) -> keras.Model:
    """Wrap a PyTorch module (`torch.nn.Module`) in a Keras model.

    Under Keras' 16-bit dtype policies, the model runs with PyTorch's automatic mixed precision.
    """
    import torch

    autocast_types = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}
    autocast_type = autocast_types.get(keras.config.dtype_policy().name)

    class TorchModel(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            # Keras would cast float64 and 16-bit inputs of the module to float32.
            super().__init__(dtype="float32", autocast=False)
            self.wrapper = keras.layers.TorchModuleWrapper(module, dtype="float32", autocast=False)

        def call(self, inputs: Any, training: bool = False) -> Any:
            arguments = inputs if isinstance(inputs, list) else [inputs]
            device = arguments[0].device.type
            with torch.autocast(device, autocast_type, enabled=autocast_type is not None):
                outputs = self.wrapper(*arguments, training=training)
            # Models of the package transformers return an object with one of these attributes.
            for attribute in ("logits", "last_hidden_state"):
                outputs = getattr(outputs, attribute, outputs)
            return outputs

    model = TorchModel()
    # The module already has its weights, so Keras has nothing to create at the first call.
    model.built = True
    model.wrapper.built = True
    return model


def _input_specs(
    model: keras.Model, example: Any, input_shape: Sequence[int], name: str
) -> tuple[tuple[ArraySpec, ...], int | None]:
    """Specify the arrays of a batch for a user's model.

    The first available source determines the shapes: the example, `input_shape`, or the inputs that
    a Keras model declares.

    Args:
        model: The model.
        example: Array, or list of arrays, that the user gave as an example of the input; or None.
        input_shape: `model.input_shape`, the shape of the only input without the batch axis; empty
            if the key is not set.
        name: Name of the user's function or file in messages.

    Returns:
        The specification of each array; and the only batch size that the model accepts, or None if
        it accepts any batch size.

    Raises:
        UnavailableError: If the shapes are unknown or open, or an input is not supported.
    """
    if example is not None:
        return _specs_of_example(model, example, name), None
    declared = getattr(model, "inputs", None) or []
    vocabulary = _smallest_vocabulary(model)
    if input_shape and len(declared) <= 1:
        if not declared:
            return (ArraySpec(tuple(input_shape), "float32"),), None
        label = f"input {declared[0].name!r} of {name}"
        return (array_spec(tuple(input_shape), declared[0].dtype, vocabulary, label),), None
    if not declared:
        raise UnavailableError(
            f"the input shape of {name} is unknown: set model.input_shape, or return an example too"
        )
    specs = []
    first_axes = {}
    for tensor in declared:
        label = f"input {tensor.name!r} of {name}"
        shape = tuple(tensor.shape)
        if not shape:
            raise UnavailableError(f"{label} is a scalar: give it a batch axis")
        if None in shape[1:]:
            raise UnavailableError(
                f"{label} has the shape {shape[1:]}, in which None is an unknown size: "
                "set model.input_shape, or return an example too"
            )
        specs.append(array_spec(shape[1:], tensor.dtype, vocabulary, label))
        if shape[0] is not None:
            first_axes[label] = int(shape[0])
    return tuple(specs), common_batch(first_axes)


def _specs_of_example(model: keras.Model, example: Any, name: str) -> tuple[ArraySpec, ...]:
    if isinstance(example, dict):
        raise UnavailableError(
            f"the example of {name} is a dict: return a list in the order of the model's inputs"
        )
    values = list(example) if isinstance(example, list | tuple) else [example]
    if not values:
        raise UnavailableError(f"the example of {name} is empty: return a batch of inputs")
    _check_parameters(model, len(values), name)
    specs = []
    first_axes = {}
    for label, value in zip(_input_labels(model, len(values), name), values, strict=True):
        array = _as_array(value, label)
        highest = int(array.max(initial=1)) if array.dtype.kind in "biu" else 1
        specs.append(array_spec(array.shape[1:], array.dtype, highest + 1, label))
        if not array.ndim:
            raise UnavailableError(
                f"{label} is a scalar: return a batch of one or more inputs, "
                "or make it a constant of the model"
            )
        if not len(array):
            raise UnavailableError(f"{label} is an empty batch: return a batch of one or more")
        first_axes[label] = len(array)
    common_batch(first_axes)
    return tuple(specs)


def _check_parameters(model: keras.Model, count: int, name: str) -> None:
    """Check that a model can be called with the given number of inputs.

    PyTorch modules receive their inputs as positional arguments. Keras models receive one list of
    inputs as the only argument.

    Args:
        model: The model.
        count: Number of inputs.
        name: Name of the user's function or file in messages.

    Raises:
        UnavailableError: If the call is impossible. The message names the parameter that prevents
            it.
    """
    wrapper = getattr(model, "wrapper", None)
    if wrapper is None:
        _check_call(model, name)
        return
    signature = inspect.signature(wrapper.module.forward)
    for parameter in signature.parameters.values():
        is_required = parameter.default is inspect.Parameter.empty
        if is_required and parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            raise UnavailableError(
                f"input {parameter.name!r} of {name} is keyword-only: "
                "inputs are passed by position, so remove the * from forward"
            )
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        raise UnavailableError(
            f"the example of {name}, with {counted(count, 'input')}, does not match the "
            f"parameters of forward ({error}): the example needs one input for each parameter"
        ) from error


def _check_call(model: keras.Model, name: str) -> None:
    """Check that a Keras model requires only one argument.

    Args:
        model: The model.
        name: Name of the user's function or file in messages.

    Raises:
        UnavailableError: If it requires more arguments.
    """
    parameters = list(inspect.signature(model.call).parameters.values())
    for parameter in parameters[1:]:
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_variadic:
            raise UnavailableError(
                f"the method call of {name} has the required parameter {parameter.name!r}, but "
                "Keras passes all inputs as the first argument: accept a list of inputs there"
            )


def _as_array(value: Any, label: str) -> np.ndarray:
    """Return the example of an input as a NumPy array.

    bfloat16, which NumPy lacks, becomes float32.

    Args:
        value: The example, such as a PyTorch tensor on any device.
        label: Name of the input in messages.

    Raises:
        UnavailableError: If the value cannot become an array.
    """
    if hasattr(value, "detach"):  # a PyTorch tensor, which may be on a GPU
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UnavailableError(f"{label} is not an array: {str(error).splitlines()[0]}") from error
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":
        return array.astype("float32")
    return array


def _input_labels(model: keras.Model, count: int, name: str) -> list[str]:
    """Return a label for each input of a model, for use in messages.

    A label contains the name of the input. If names are unknown, it contains the number.

    Args:
        model: The model.
        count: Number of inputs.
        name: Name of the user's function or file.
    """
    declared = getattr(model, "inputs", None) or []
    wrapper = getattr(model, "wrapper", None)
    names = [tensor.name for tensor in declared]
    if wrapper is not None:
        names = list(inspect.signature(wrapper.module.forward).parameters)
    if len(names) < count:
        names = [str(number) for number in range(count)]
    return [f"input {names[number]!r} of {name}" for number in range(count)]


def _smallest_vocabulary(model: keras.Model) -> int:
    """Return the number of rows of the model's smallest embedding; 2 if it has no embedding.

    Integer inputs are drawn below this number, so every embedding accepts them.
    """
    if not hasattr(model, "_flatten_layers"):
        return 2
    vocabularies = [
        layer.input_dim
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
    ]
    return min(vocabularies, default=2)


def _casts(model: keras.Model, example: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a function that casts the integer inputs of a PyTorch module to the types it requires.

    Integer inputs are drawn as int32, but a PyTorch module may require int64 indices or boolean
    masks. The example has the required types. For other models, or without an example, the function
    changes nothing.

    Args:
        model: The model.
        example: Array or tensor, or list of them, that the user gave as an example of the input; or
            None.
    """
    if example is None or getattr(model, "wrapper", None) is None:
        return list
    values = example if isinstance(example, list | tuple) else [example]
    types = [getattr(value, "dtype", None) for value in values]

    def cast(tensors: list[Any]) -> list[Any]:
        return [
            tensor if dtype is None or tensor.is_floating_point() else tensor.to(_torch_type(dtype))
            for tensor, dtype in zip(tensors, types, strict=True)
        ]

    return cast


def _torch_type(dtype: Any) -> Any:
    import torch

    return dtype if isinstance(dtype, torch.dtype) else getattr(torch, np.dtype(dtype).name)


def _output_tensors(outputs: Any, name: str) -> list[tuple[tuple[Any, ...], Any]]:
    """Flatten the outputs of a model; None values are skipped.

    Args:
        outputs: Value that a call of the model returned; it may be nested.
        name: Name of the user's function or file in messages.

    Returns:
        (path, tensor) for each output. The path contains the keys and indices that lead to the
        tensor in nested outputs.

    Raises:
        UnavailableError: If an output is not a dense tensor, or there is no output.
    """
    tensors = []
    for path, value in keras.tree.flatten_with_path(outputs):
        if value is None:
            continue
        position = "".join(f"[{key!r}]" for key in path) or "0"
        label = f"output {position} of {name}"
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            raise UnavailableError(
                f"{label} is of type {type(value).__name__}: a model's outputs must be tensors"
            )
        if type(value).__name__ in _SPARSE_TYPES:
            raise UnavailableError(f"{label} is a {type(value).__name__}: return a dense tensor")
        tensors.append((tuple(path), value))
    if not tensors:
        raise UnavailableError(
            f"the model that {name} returns has no outputs: it must return a tensor"
        )
    return tensors


def _loss_obstacle(outputs: list[tuple[tuple[Any, ...], Any]], batch_size: int) -> str:
    """Return the reason why a model cannot be trained; empty if it can be trained.

    Args:
        outputs: (path, tensor) for each output of one call, as `_output_tensors` returns them.
        batch_size: Batch size of this call.
    """
    if len(outputs) > 1:
        return "it has several outputs"
    path, tensor = outputs[0]
    if len(path) > 1:
        return "its output is nested, one entry per example"
    if _is_sparse_torch_tensor(tensor):
        return "its output is sparse, which no loss accepts"
    if type(tensor).__name__ == "RaggedTensor":
        return "its output is ragged, which no loss accepts"
    shape = tuple(tensor.shape)
    if not shape:
        return "its output is a scalar, without a batch axis"
    if shape[0] != batch_size:
        return f"its output has {shape[0]} in its first axis for a batch of {batch_size}"
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" not in dtype:
        return f"its output is of type {dtype}, which has no gradient"
    return ""


def _is_sparse_torch_tensor(tensor: Any) -> bool:
    layout = str(getattr(tensor, "layout", ""))  # JAX arrays have an unrelated `layout`
    return layout.startswith("torch.sparse")


def _target_and_loss(
    output_shape: Sequence[int], output: str
) -> tuple[ArraySpec, Callable[[Sequence[Any], Any], Any]]:
    """Choose the targets and the loss function for the only output of a model.

    For classes, targets are int32 classes at each position, and the loss is the softmax cross
    entropy over the last axis. For numbers, targets are float32 of the shape of the output, and the
    loss is the mean squared error.

    Args:
        output_shape: Shape of the output, (batch, ...).
        output: "classes", "numbers" or "auto", as in `user_workload`.

    Returns:
        The specification of the targets, and the loss as in `BuiltModel.loss`.
    """
    shape = tuple(int(size) for size in output_shape[1:])
    is_classes = output == "classes"
    if output == "auto":
        is_classes = len(shape) > 0 and shape[-1] > 1
    if is_classes:
        target = ArraySpec(shape[:-1], "int32", shape[-1])
    else:
        target = ArraySpec(shape, "float32")

    def loss(targets: Sequence[Any], outputs: Any) -> Any:
        tensors = [value for value in keras.tree.flatten(outputs) if value is not None]
        # The output may have a 16-bit type.
        predictions = ops.cast(tensors[0], "float32")
        if is_classes:
            return cross_entropy(targets, predictions)
        return ops.mean(ops.square(predictions - targets[0]))

    return target, loss
