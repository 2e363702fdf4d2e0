"""Check which inputs and outputs of users' PyTorch modules are supported.

Usage: `python -m tests.worker.torch_user_models`, since Keras must run on PyTorch in this process.
"""

from collections.abc import Callable
from typing import Any

import pytest

from paradnn.core.errors import UnavailableError
from paradnn.worker import frameworks


def main() -> None:
    frameworks.load("torch")
    import torch

    from paradnn.families.parts.user_model import user_workload

    class Returning(torch.nn.Module):
        """Module of a linear layer, followed by a function of its output."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.function = function

        def forward(self, data: Any) -> Any:
            return self.function(self.linear(data))

    def workload(function: Callable[[Any], Any]) -> Any:
        return user_workload((Returning(function), torch.zeros(2, 4)), "net")

    with pytest.raises(UnavailableError, match=r"output \['name'\] of net is of type str"):
        workload(lambda output: {"value": output, "name": "linear"})

    class Reshaping(torch.nn.Module):
        """Module that accepts only batches of six examples."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 3)

        def forward(self, data: Any) -> Any:
            return self.linear(data.reshape(3, 8)).repeat(2, 1)

    fixed = user_workload((Reshaping(), torch.zeros(6, 4)), "net")
    assert fixed.batch_size == 6
    with pytest.raises(Exception, match="shape"):
        user_workload((Reshaping(), torch.zeros(5, 4)), "net")
    assert workload(lambda output: output).batch_size is None
    doubles = (torch.nn.Linear(4, 3).double(), torch.zeros(2, 4).double())
    with pytest.raises(
        UnavailableError, match=r"it has float64 parameters: return model\.float\(\)"
    ):
        user_workload(doubles, "net")
    with pytest.raises(UnavailableError, match="the model that net returns has no outputs"):
        workload(lambda output: None)
    with pytest.raises(UnavailableError, match="input 'data' of net is a scalar"):
        user_workload((Returning(lambda output: output), 1.0), "net")

    reason = workload(lambda output: [{"row": row} for row in output]).no_loss_reason
    assert reason == "its output is nested, one entry per example"
    reason = workload(lambda output: output.argmax(-1)).no_loss_reason
    assert reason == "its output is of type int64, which has no gradient"
    reason = workload(lambda output: output.T).no_loss_reason
    assert reason == "its output has 3 in its first axis for a batch of 1"

    reason = workload(lambda output: output.to_sparse()).no_loss_reason
    assert reason == "its output is sparse, which no loss accepts"
    reason = workload(lambda output: output.to_sparse_csr()).no_loss_reason
    assert reason == "its output is sparse, which no loss accepts"

    class KeywordOnly(torch.nn.Module):
        """Module whose second input must be passed by name."""

        def forward(self, data: Any, *, mask: Any) -> Any:
            return data * mask

    with pytest.raises(UnavailableError, match="input 'mask' of net is keyword-only"):
        user_workload((KeywordOnly(), [torch.zeros(2, 4), torch.zeros(2, 4)]), "net")
    pair = [torch.zeros(2, 4), torch.zeros(2, 4)]
    with pytest.raises(
        UnavailableError, match="the example of net has 2 inputs, which do not match"
    ):
        user_workload((torch.nn.Linear(4, 3), pair), "net")

    plain = workload(lambda output: (output, None))
    assert plain.targets[0].shape == ()
    assert plain.targets[0].high == 3

    class Selecting(torch.nn.Module):
        """Module that accepts only int64 indices."""

        def forward(self, indices: Any) -> Any:
            return torch.nn.functional.one_hot(indices, 7).float()

    selecting = user_workload((Selecting(), torch.full((1, 5), 6)), "net")
    drawn = torch.zeros(2, 5, dtype=torch.int32)
    assert selecting.prepare([drawn])[0].dtype == torch.int64


if __name__ == "__main__":
    main()
