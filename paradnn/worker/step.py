"""The model of a point and its step, as every process of the point builds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from paradnn.families import FAMILIES, build
from paradnn.families.workload import Workload
from paradnn.worker.data import synthetic_batch
from paradnn.worker.frameworks import FRAMEWORKS, Framework, Step, Unavailable

__all__ = ["POLICIES", "choose_types", "prepare_step"]

#: What each precision is called by Keras.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def prepare_step(point: Mapping[str, Any], framework: Framework) -> tuple[Workload, Step]:
    """The model from the point's seed, and the step with its batch in place; Unavailable for a family of elsewhere."""
    if (family := point["model"]["name"]) not in FAMILIES:
        raise Unavailable(f"no family {family} in this interpreter: install the package that brings it there too")
    choose_types(point, framework)
    with framework.scope():
        workload = build(point["model"])
    if point["mode"] == "train" and not (workload.targets and workload.model.trainable_variables):
        lacks = "weights to train" if workload.targets else "loss: it has several outputs"
        raise Unavailable(f"the model has no {lacks}: set mode=inference")
    return workload, framework.make_step(workload, synthetic_batch(workload, point["batch_size"], point["seed"]), point)


def choose_types(point: Mapping[str, Any], framework: Framework, mixed: bool = True) -> None:
    """The seed, and the types of weights and products; not `mixed`: of weights what products have.

    An engine converts what is built in float32. Raises Unavailable for a type that Keras has not.
    """
    keras.utils.set_random_seed(point["seed"])
    precision = "float32" if FRAMEWORKS[framework.name].is_engine else point["precision"]
    if precision not in POLICIES:
        engines = ", ".join(name for name, entry in FRAMEWORKS.items() if entry.is_engine)
        raise Unavailable(f"framework={framework.name} has no precision={precision}: set framework to one of {engines}")
    keras.config.set_dtype_policy(POLICIES[precision] if mixed else precision)
