"""Users' Keras models and PyTorch modules: supported and unsupported inputs and outputs."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from paradnn.core.errors import UnavailableError
from paradnn.families.parts.user_model import check_jax_function, user_workload
from tests.worker.families import run_module

pytestmark = pytest.mark.usefixtures("clean")


def dense_model(**settings: Any) -> keras.Model:
    inputs = keras.Input(**settings)
    return keras.Model(inputs, keras.layers.Dense(3)(inputs))


class FirstInput(keras.layers.Layer):  # type: ignore[misc]
    """Layer that returns its first input."""

    def call(self, inputs: Any) -> Any:
        return inputs[0]


class Mean(keras.layers.Layer):  # type: ignore[misc]
    """Layer that returns the mean of all values, a scalar."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.mean(inputs)


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        pytest.param((np.ones((2, 4)), 0.5), "input 'b' of net is a scalar", id="scalar"),
        pytest.param(
            (np.ones((4, 4)), np.ones((2, 4, 4))),
            "input 'b' of net has size 2 in its first axis, input 'a' of net has size 4",
            id="different-first-axes",
        ),
        pytest.param(
            (np.ones((2, 4)), np.ones((0, 4))),
            "input 'b' of net is an empty batch",
            id="no-example",
        ),
        pytest.param(
            (np.ones((2, 4)), np.array(["a", "b"])),
            "input 'b' of net has the type <U1",
            id="strings",
        ),
        pytest.param(
            (np.ones((2, 4)), np.ones((2, 4), "complex64")),
            "input 'b' of net has the type complex64",
            id="complex",
        ),
        pytest.param({"a": np.ones((2, 4))}, "the example of net is a dict", id="dict"),
        pytest.param([], "the example of net is empty", id="empty"),
        pytest.param(
            (np.ones((2, 4)), [[1, 2], [3]]), "input 'b' of net is not an array", id="ragged"
        ),
    ],
)
def test_the_error_names_an_unsupported_input_of_an_example(example: Any, reason: str) -> None:
    inputs = [keras.Input((4,), name="a"), keras.Input((4,), name="b")]
    model = keras.Model(inputs, FirstInput()(inputs))
    with pytest.raises(UnavailableError, match=reason):
        user_workload((model, example), "net")


def test_the_error_names_a_declared_input_of_strings() -> None:
    inputs = keras.Input((1,), dtype="string", name="text")
    model = keras.Model(inputs, FirstInput()([inputs]))
    with pytest.raises(UnavailableError, match="input 'text' of net has the type string"):
        user_workload(model, "net")


def test_the_error_names_declared_inputs_of_different_batch_sizes() -> None:
    inputs = [keras.Input(batch_shape=(1, 4), name="a"), keras.Input(batch_shape=(2, 4), name="b")]
    model = keras.Model(inputs, FirstInput()(inputs))
    with pytest.raises(UnavailableError, match="input 'b' of net has size 2 in its first axis"):
        user_workload(model, "net")


def test_a_fixed_batch_size_is_reported() -> None:
    workload = user_workload(dense_model(batch_shape=(5, 4)), "net")
    assert workload.batch_size == 5
    assert workload.inputs[0].shape == (4,)


def test_a_scalar_output_has_no_loss() -> None:
    inputs = keras.Input((4,))
    workload = user_workload(keras.Model(inputs, Mean()(inputs)), "net")
    assert not workload.targets
    assert workload.no_loss_reason == "its output is a scalar, without a batch axis"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        pytest.param(lambda params, x, y: x + y, "missing a required argument: 'y'", id="separate"),
        pytest.param(lambda params, *, x: x, "too many positional arguments", id="keyword-only"),
    ],
)
def test_a_jax_function_with_unsupported_arguments_is_unavailable(
    function: Any, reason: str
) -> None:
    with pytest.raises(UnavailableError, match=reason):
        check_jax_function(function, "net")


def test_a_jax_function_of_parameters_and_inputs_is_accepted() -> None:
    check_jax_function(lambda params, inputs, scale=1: inputs, "net")


class Separate(keras.Model):  # type: ignore[misc]
    """Model with two inputs as separate arguments."""

    def call(self, inputs: Any, scale: Any) -> Any:
        return inputs * scale


class KeywordOnly(keras.Model):  # type: ignore[misc]
    """Model with an input that is passed by name."""

    def call(self, inputs: Any, *, scale: Any) -> Any:
        return inputs * scale


@pytest.mark.parametrize(
    "model_class",
    [pytest.param(Separate, id="separate"), pytest.param(KeywordOnly, id="keyword-only")],
)
def test_the_error_names_an_input_outside_the_first_argument(
    model_class: type[keras.Model],
) -> None:
    with pytest.raises(UnavailableError, match="call of net has the required parameter 'scale'"):
        user_workload((model_class(), [np.ones((2, 4)), np.ones((2, 4))]), "net")


def test_named_inputs_are_passed_in_the_order_of_the_model() -> None:
    named = {"wide": keras.Input((4,), name="wide"), "narrow": keras.Input((3,), name="narrow")}
    outputs = {"sum": keras.ops.sum(named["wide"], -1) - keras.ops.sum(named["narrow"], -1)}

    workload = user_workload(keras.Model(named, outputs), "net")

    batch = [np.ones((2, *spec.shape), spec.dtype) for spec in workload.inputs]
    returned = workload.model(batch)
    assert keras.ops.convert_to_numpy(returned["sum"]).tolist() == [1.0, 1.0]


class Sparse(keras.Model):  # type: ignore[misc]
    """Model with a sparse output."""

    def call(self, inputs: Any) -> Any:
        import tensorflow as tf

        return {"rows": tf.sparse.from_dense(inputs)}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="sparse type of TensorFlow")
def test_the_error_names_a_sparse_output() -> None:
    with pytest.raises(UnavailableError, match=r"output \['rows'\] of net is a SparseTensor"):
        user_workload((Sparse(), np.ones((2, 4))), "net")


def test_unsupported_outputs_of_pytorch_modules_have_reasons(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run_module("torch_user_models", "torch", [], tmp_path)
