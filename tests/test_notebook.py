"""Runs of the whole notebook in a separate kernel, on a store with runs and on an empty one."""

from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from tests.analysis.conftest import Writer
from tests.conftest import ROOT, Store
from tests.processes import PATIENCE

NOTEBOOK = ROOT / "notebooks" / "analysis.ipynb"


def speed(device: str, nodes: int, batch: int) -> float:
    """Return examples per second; the TPU is faster if batch / nodes exceeds 1."""
    return 1e6 / nodes * (batch / nodes) ** (0.5 if device == "TPU v2" else 0.0)


def plant(store: Store) -> None:
    """Record twelve profiled points with phases on each of two platforms.

    One point runs out of memory.
    """
    writer = Writer(store.uri, "paradnn", store.folder / "artifacts")
    for device, platform, peaks in (("TPU v2", "tpu", (1e13, 1e12)), ("V100", "gpu", (1e14, 9e11))):
        for nodes in (32, 128, 512):
            for batch in (64, 256, 1024, 4096):
                params = {
                    "model.name": "fc",
                    "model.nodes": str(nodes),
                    "batch_size": str(batch),
                    "mode": "train",
                }
                params |= {"precision": "float32", "platform.name": platform}
                tags = {
                    "device": device,
                    "environment_id": platform,
                    "point_id": f"{platform}-{nodes}-{batch}",
                }
                if (device, nodes, batch) == ("V100", 512, 4096):
                    writer.run(
                        params,
                        {"parameters": nodes**2},
                        outcome="oom_device",
                        reason="device is full",
                        **tags,
                    )
                    continue
                rate = speed(device, nodes, batch)
                metrics = {
                    "examples_per_second": rate,
                    "flops_per_second": rate * nodes**2,
                    "parameters": nodes**2,
                }
                metrics |= dict(
                    zip(("peak_flops_per_second", "peak_bytes_per_second"), peaks, strict=True)
                )
                metrics |= {
                    "arithmetic_intensity": batch / 8,
                    "phase_measure_seconds": 3.0,
                    "phase_start_seconds": 1.0,
                }
                writer.run(
                    params,
                    metrics,
                    [["MatMul", 0.75], ["Add", 0.25]] if batch == 64 else None,
                    **tags,
                )


def execute(store: Store, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Run the notebook; return the printed output, tables and marks of figures by cell id.

    Raises:
        CellExecutionError: If a cell fails.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(store.folder / "jupyter"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook,
        timeout=int(PATIENCE),
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    ).execute()
    outputs_by_cell = {}
    for cell in notebook.cells:
        parts = []
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            parts += [
                output.get("text", ""),
                data.get("text/plain", ""),
                "(figure)" if "image/png" in data else "",
            ]
        outputs_by_cell[cell.id] = "\n".join(filter(None, parts))
    return outputs_by_cell


def test_every_step_of_the_notebook_finds_the_planted_effect(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(store)
    outputs_by_cell = execute(store, monkeypatch)
    assert outputs_by_cell["frame"].startswith("24 runs")
    assert "device is full" in outputs_by_cell["outcomes"]
    for step in ("heatmap", "sensitivity", "roofline", "speedup", "claims", "phases"):
        assert "(figure)" in outputs_by_cell[step], step
    assert "Not here" not in "".join(outputs_by_cell.values())
    ratios = [
        speed("TPU v2", n, b) / speed("V100", n, b)
        for n in (32, 128, 512)
        for b in (64, 256, 1024, 4096)
    ][:-1]
    wins = sum(ratio > 1 for ratio in ratios)
    mean = np.exp(np.mean(np.log(ratios)))
    assert f"fc      11     {wins}" in outputs_by_cell["speedup"]
    assert f"{mean:.4g}" in outputs_by_cell["speedup"]
    assert f"{mean:.4g}" in outputs_by_cell["compare"]
    assert "MatMul   0.75" in outputs_by_cell["operations"]
    # Every point has phases of 3 s and 1 s.
    assert "the stack's own overhead 25% (95% CI 25% to 25%)" in outputs_by_cell["phases"]


def test_a_store_without_runs_names_the_remedy(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs_by_cell = execute(store, monkeypatch)
    assert "no such experiment in the store" in outputs_by_cell["frame"]
    assert "python -m paradnn.train -m experiment=quick" in outputs_by_cell["frame"]
    assert "python -m analysis import-archive" in outputs_by_cell["frame"]
    assert outputs_by_cell["heatmap"].startswith("Not here: ")


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "parameters" in code[0].metadata.tags
    assert code[0].source.splitlines()[1:] == ["STORE = None", 'EXPERIMENT = "paradnn"']
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert Path(NOTEBOOK).stat().st_size < 20_000
