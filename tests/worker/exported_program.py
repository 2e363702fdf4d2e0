"""`python -m tests.worker.exported_program`: an exported program equals its module.

This process runs Keras on PyTorch.
"""

from pathlib import Path
from typing import Any

import pytest

from paradnn.core.errors import UnavailableError
from paradnn.worker import frameworks


def main() -> None:
    frameworks.load("torch")
    import torch

    from paradnn.families.parts.exported_program import exported_workload

    class Nested(torch.nn.Module):
        def forward(self, data: Any) -> Any:
            return data["a"]

    module = torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU()
    ).eval()
    example = torch.randn(3, 6)
    torch.export.save(torch.export.export(module, (example,)), "net.pt2")
    built = exported_workload(Path("net.pt2"), ())
    assert [(spec.shape, spec.dtype) for spec in built.inputs] == [((6,), "float32")]
    torch.testing.assert_close(
        built.model(example, training=False), module(example), rtol=1e-6, atol=0.0
    )
    assert built.batch_size == 3

    class Stateful(torch.nn.Module):
        def forward(self, data: Any, state: Any) -> Any:
            return data + state.sum()

    def exported(*arguments: Any) -> Path:
        torch.export.save(torch.export.export(Stateful(), arguments), "stateful.pt2")
        return Path("stateful.pt2")

    with pytest.raises(UnavailableError, match=r"input 'state' of stateful\.pt2 is a scalar"):
        exported_workload(exported(torch.zeros(3, 6), torch.tensor(1.0)), ())
    with pytest.raises(UnavailableError, match=r"input 'state' .* has 2 in its first axis"):
        exported_workload(exported(torch.zeros(3, 6), torch.zeros(2, 6)), ())
    with pytest.raises(UnavailableError, match=r"model\.input_shape=\[5\] does not fit"):
        exported_workload(Path("net.pt2"), (5,))
    nested = torch.export.export(Nested(), ({"a": torch.zeros(3, 6)},))
    torch.export.save(nested, "nested.pt2")
    with pytest.raises(UnavailableError, match=r"nested\.pt2 takes keyword arguments or nested"):
        exported_workload(Path("nested.pt2"), ())


if __name__ == "__main__":
    main()
