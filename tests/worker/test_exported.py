"""Programs of `torch.export`: what is read of their archives, and one that is run where PyTorch is."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradnn.core.workload import Unavailable
from paradnn.families.parts.given import _plain_archive, exported_workload

GRAPH, WEIGHTS = "net/models/model.json", "net/data/weights/model_weights_config.json"


def archive(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return path


def test_nothing_that_pytorch_would_unpickle_is_handed_to_it(tmp_path: Path) -> None:
    pickles = ("net/data/sample_inputs/model.pt", "net/data/weights/model.pt", "net/data/constants/custom_obj_0")
    others = (
        "net/data/constants/opaque_obj_0",
        "serialized_state_dict.pt",
        "net/extra/code.py",
        "net/../models/a.json",
    )
    kept = (GRAPH, WEIGHTS, "net/data/weights/weight_0", "net/data/constants/tensor_0", "net/archive_format")
    path = archive(tmp_path / "net.pt2", **dict.fromkeys((*kept, *pickles, *others), "{}"))
    with zipfile.ZipFile(_plain_archive(path)) as copy:
        assert {name for name in copy.namelist() if copy.read(name)} == set(kept)
        assert copy.read(pickles[0]) == b""
    entry = {"weight": {"path_name": "weight_0", "use_pickle": True}}
    path = archive(tmp_path / "pickled.pt2", **{GRAPH: "{}", WEIGHTS: json.dumps({"config": entry})})
    with pytest.raises(Unavailable, match=r"pickled\.pt2 holds pickled tensors"):
        _plain_archive(path)


def test_a_program_computes_what_its_module_does(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU()).eval()
    example = torch.randn(3, 6)
    torch.export.save(torch.export.export(module, (example,)), tmp_path / "net.pt2")
    built = exported_workload(tmp_path / "net.pt2", ())
    assert [(spec.shape, spec.dtype) for spec in built.inputs] == [((6,), "float32")]
    wrapped: Any = built.model
    found = wrapped.wrapped.module(example)
    np.testing.assert_allclose(found.numpy(force=True), module(example).numpy(force=True), rtol=1e-6)
    with pytest.raises(Unavailable, match="batch_size=3"):
        built.prepare([torch.zeros(2, 6)])
