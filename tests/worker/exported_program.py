"""Check that an exported PyTorch program computes the same outputs as its module.

Usage: `python -m tests.worker.exported_program`, since Keras must run on PyTorch in this process.
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

    def export_stateful(*arguments: Any) -> Path:
        torch.export.save(torch.export.export(Stateful(), arguments), "stateful.pt2")
        return Path("stateful.pt2")

    with pytest.raises(UnavailableError, match=r"input 'state' of stateful\.pt2 is a scalar"):
        exported_workload(export_stateful(torch.zeros(3, 6), torch.tensor(1.0)), ())
    with pytest.raises(UnavailableError, match=r"input 'state' .* has size 2 in its first axis"):
        exported_workload(export_stateful(torch.zeros(3, 6), torch.zeros(2, 6)), ())
    with pytest.raises(UnavailableError, match=r"model\.input_shape=\[5\] does not match"):
        exported_workload(Path("net.pt2"), (5,))
    nested = torch.export.export(Nested(), ({"a": torch.zeros(3, 6)},))
    torch.export.save(nested, "nested.pt2")
    with pytest.raises(UnavailableError, match=r"nested\.pt2 requires keyword arguments or nested"):
        exported_workload(Path("nested.pt2"), ())
    check_dtype_of_the_file(torch)
    check_unsupported_inputs(torch)
    check_unsupported_files(torch)


def check_dtype_of_the_file(torch: Any) -> None:
    """Check that a program computes in the dtype of its file; Keras must not cast its inputs."""
    from paradnn.families.parts.exported_program import exported_workload

    for dtype in (torch.float64, torch.bfloat16):
        module = torch.nn.Linear(6, 4).to(dtype)
        example = torch.randn(3, 6, dtype=dtype)
        torch.export.save(torch.export.export(module, (example,)), "typed.pt2")
        built = exported_workload(Path("typed.pt2"), ())

        outputs = built.model(built.prepare([example.float()])[0], training=False)

        assert outputs.dtype == dtype
        torch.testing.assert_close(outputs, module(example))


def check_unsupported_inputs(torch: Any) -> None:
    from paradnn.families.parts.exported_program import exported_workload

    class Scaled(torch.nn.Module):
        def forward(self, data: Any, factor: int) -> Any:
            return data * factor

    class WithoutInput(torch.nn.Module):
        def forward(self) -> Any:
            return torch.ones(3)

    for module, arguments, problem in (
        (Scaled(), (torch.zeros(3, 6), 2), "input 'factor' of other.pt2 is not a tensor"),
        (WithoutInput(), (), "other.pt2 has no input"),
        (torch.nn.ReLU(), (torch.zeros(0, 6),), "has size 0 in its first axis"),
    ):
        torch.export.save(torch.export.export(module, arguments), "other.pt2")
        with pytest.raises(UnavailableError, match=problem):
            exported_workload(Path("other.pt2"), ())


def check_unsupported_files(torch: Any) -> None:
    from paradnn.families.parts.exported_program import exported_workload

    module = torch.nn.Linear(6, 4)
    torch.jit.trace(module, torch.zeros(3, 6)).save("script.pt")
    torch.save(module.state_dict(), "weights.pt")
    Path("text.pt").write_text("no archive\n")
    for name, problem in (
        ("script.pt", "is a TorchScript file: save the module with torch.export.save"),
        ("weights.pt", "contains pickled weights or a module"),
        ("text.pt", "is not a program that this PyTorch can load"),
    ):
        with pytest.raises(UnavailableError, match=problem):
            exported_workload(Path(name), ())


if __name__ == "__main__":
    main()
