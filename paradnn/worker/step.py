"""The model of a point and its step, as every process of the point builds them."""

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

#: What each precision is called by Keras.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def prepare_step(point: Mapping[str, Any], framework: Framework) -> tuple[BuiltModel, Step]:
    """The model from the point's seed, and the step with its batch in place; UnavailableError for a
    family of elsewhere.
    """
    if "artefact" in point:
        from paradnn.worker.frameworks.engines import Engine

        assert isinstance(framework, Engine)
        return framework.made_step(point)
    family = point["model"]["name"]
    if family not in FAMILIES:
        raise UnavailableError(
            f"no family {family} in this interpreter: install the package that brings it there too"
        )
    choose_types(point, framework)
    with framework.scope():
        workload = build(point["model"])
    if point["mode"] == "train" and not (workload.targets and workload.model.trainable_variables):
        if workload.targets:
            lacks = "weights to train"
        else:
            lacks = f"loss: {workload.no_loss_reason}"
        raise UnavailableError(f"the model has no {lacks}: set mode=inference")
    if workload.batch_size not in (None, point["batch_size"]):
        raise UnavailableError(
            f"the model takes a batch of {workload.batch_size} alone: "
            f"set batch_size={workload.batch_size}"
        )
    return workload, framework.make_step(
        workload, synthetic_batch(workload, point["batch_size"], point["seed"]), point
    )


def choose_types(point: Mapping[str, Any], framework: Framework, mixed: bool = True) -> None:
    """The seed, and the types of weights and products; not `mixed`: of weights what products have.
    An engine converts what is built in float32. Raises UnavailableError for a type that Keras has not.
    """
    import keras

    keras.utils.set_random_seed(point["seed"])
    if FRAMEWORKS[framework.name].is_engine:
        precision = "float32"
    else:
        precision = point["precision"]
    if precision not in POLICIES:
        lacks = f"framework={framework.name} has no precision={precision}"
        raise UnavailableError(f"{lacks}: set framework=litert or onnxruntime")
    keras.config.set_dtype_policy(POLICIES[precision] if mixed else precision)


def synthetic_batch(
    workload: BuiltModel, batch_size: int, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and targets of one step, drawn on the host; arrays are (batch_size, *spec.shape), a
    kernel's their own.
    """
    generator = np.random.default_rng(seed)
    if workload.draw:
        return workload.draw(generator, batch_size), []
    inputs = [_draw(spec, batch_size, generator) for spec in workload.inputs]
    return inputs, [_draw(spec, batch_size, generator) for spec in workload.targets]


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
    """FLOPs of the step's products by the type of their operands; empty where they cannot be known.
    A point is not lost to it: what goes wrong is written to standard error.
    """
    try:
        return sum_products(step.products())
    except Exception:
        traceback.print_exc()
        return {}
