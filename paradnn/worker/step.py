"""Build a model and its training or inference step, in every process of a measurement."""

import sys
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from paradnn.core.errors import UnavailableError
from paradnn.core.versions import FRAMEWORKS
from paradnn.families import FAMILIES, build
from paradnn.families.built import ArraySpec, BuiltModel
from paradnn.worker.frameworks import Framework, Step
from paradnn.worker.profile.shapes import sum_products

#: Keras dtype policies by precision.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def prepare_step(point: Mapping[str, Any], framework: Framework) -> tuple[BuiltModel, Step]:
    """Build a model, and its training or inference step with a synthetic batch.

    Args:
        point: The configuration to measure, as nested mappings of plain values. `model`,
            `batch_size`, `mode`, `precision`, `compile` and `seed` determine the model and the
            step. The optional `artefact` is the path of a model that another machine converted for
            an inference engine. It replaces the model, and its file contains the batch.
        framework: The framework with its devices open.

    Returns:
        The model, initialized with the seed of the configuration, and the step.

    Raises:
        UnavailableError: If this interpreter lacks the model family, or the model does not support
            the step.
    """
    if "artefact" in point:
        from paradnn.worker.frameworks.engines import Engine

        assert isinstance(framework, Engine)
        return framework.converted_step(point)
    family = point["model"]["name"]
    if family not in FAMILIES:
        remedy = "install the package that provides this family in that interpreter"
        raise UnavailableError(f"model={family} is unknown to {sys.executable}: {remedy}")
    choose_types(point, framework)
    with framework.scope():
        workload = build(point["model"])
    if point["mode"] == "train":
        _require_trainable(workload)
    if workload.batch_size not in (None, point["batch_size"]):
        raise UnavailableError(
            f"the model accepts only batches of {workload.batch_size}: "
            f"set batch_size={workload.batch_size}"
        )
    batch = synthetic_batch(workload, point["batch_size"], point["seed"])
    return workload, framework.make_step(workload, batch, point)


def _require_trainable(workload: BuiltModel) -> None:
    """Raise UnavailableError if the model has no loss or no weights to train."""
    if not workload.targets:
        missing = f"loss: {workload.no_loss_reason}"
    elif not workload.model.trainable_variables:
        missing = "weights to train"
    else:
        return
    raise UnavailableError(f"the model has no {missing}: set mode=inference")


def choose_types(point: Mapping[str, Any], framework: Framework, *, mixed: bool = True) -> None:
    """Set Keras' random seed, and the element types of weights and of matrix products.

    For an inference engine, the types are float32; the engine converts the model later.

    Args:
        point: The configuration to measure, with the keys `seed` and `precision`.
        framework: The framework or inference engine that runs the model.
        mixed: Whether weights stay in float32 (mixed precision). If False, weights also have the
            requested precision.

    Raises:
        UnavailableError: If Keras does not support the precision.
    """
    import keras

    keras.utils.set_random_seed(point["seed"])
    precision = "float32" if FRAMEWORKS[framework.name].is_engine else point["precision"]
    if precision not in POLICIES:
        reason = f"framework={framework.name} has no precision={precision}"
        raise UnavailableError(f"{reason}: set framework=litert or onnxruntime")
    keras.config.set_dtype_policy(POLICIES[precision] if mixed else precision)


def synthetic_batch(
    workload: BuiltModel, batch_size: int, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return random inputs and targets of one step, drawn on the host.

    If the model has a `draw` function, that function returns the inputs, and there are no targets.

    Args:
        workload: The model, with the shapes and element types of its inputs and targets.
        batch_size: Number of examples.
        seed: Seed of the random generator.

    Returns:
        The input arrays and the target arrays, each of the shape (batch_size, *spec.shape).
    """
    generator = np.random.default_rng(seed)
    if workload.draw:
        return workload.draw(generator, batch_size), []
    inputs = [_draw(spec, batch_size, generator) for spec in workload.inputs]
    targets = [_draw(spec, batch_size, generator) for spec in workload.targets]
    return inputs, targets


def _draw(spec: ArraySpec, batch_size: int, generator: np.random.Generator) -> np.ndarray:
    shape = (batch_size, *spec.shape)
    if spec.dtype == "float32":
        return generator.standard_normal(shape, dtype=np.float32)
    if spec.zeros is None:
        return generator.integers(0, spec.high, shape, dtype=np.int32)
    values = generator.integers(1, spec.high, shape, dtype=np.int32)
    values[generator.random(shape) < spec.zeros] = 0
    return values


def product_flops(step: Step) -> dict[str, float]:
    """Return the FLOPs of the step's matrix products and convolutions by their element type.

    The keys are element types of the operands, such as "float32". The result is empty if the FLOPs
    are unknown. If counting them raises an exception, the exception is printed to standard error,
    and the result is empty, too.
    """
    try:
        return sum_products(step.products())
    except Exception:
        traceback.print_exc()
        return {}
