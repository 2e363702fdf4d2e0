"""Tables by type of layer: that of the package, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.published import layers
from benchmarks.published.layers import read_layers

TABLE = Path(layers.__file__).with_suffix(".csv")
#: Percentages of AlexNet on the CPU of a Jetson TK1, and of VGG-16 on the GPU of a TX1, as the paper prints them.
PRINTED = {
    "alexnet b1 Jetson TK1 (CPU)": {"Convolution": 51.42, "Pooling": 0.99, "ReLU": 0.75, "Dense": 30.05},
    "vgg16 b1 Jetson TX1 (GPU)": {"Convolution": 73.98, "Pooling": 1.84, "ReLU": 5.35, "Dense": 17.82},
}


def test_shares_are_the_printed_ones_and_work_is_the_familys() -> None:
    runs = {run.name: run for run in read_layers(TABLE).runs}
    assert len(runs) == 8
    for name, shares in PRINTED.items():
        found = runs[name].metrics
        # Of the sum of all layers' times; the paper's last table adds up to 99%.
        assert {kind: 100 * found[f"op_share.{kind}"] for kind in shares} == pytest.approx(shares, rel=0.02)
    assert runs["alexnet b1 Jetson TK1 (CPU)"].metrics["flops_per_step"] == pytest.approx(2 * 725e6, rel=0.001)
