"""`python -m tests.worker.exported_program`: it computes what its module does; this process has
Keras on PyTorch.
"""

from pathlib import Path

import pytest

from paradnn.core.errors import UnavailableError
from paradnn.worker import frameworks


def main() -> None:
    frameworks.load("torch")
    import torch

    from paradnn.families.parts.given import exported_workload

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
    with pytest.raises(UnavailableError, match="batch_size=3"):
        built.prepare([torch.zeros(2, 6)])


if __name__ == "__main__":
    main()
