"""Small spreadsheets laid out as DeepBench's are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openpyxl import Workbook

Rows = Sequence[Sequence[Any]]

SPECS: Rows = [("CPU Model", "Some Xeon"), ("GPU Model", "NVIDIA V100"), ("CUDA Version", "10.1"), ("HCA Version", "-")]
GEMM: Rows = [
    (
        "Dense Matrix Multiplication",
        None,
        "M",
        "N",
        "K",
        "A Transpose",
        "B Transpose",
        None,
        "Time (msec)",
        "TERAFLOPS",
    ),
    (None, "DeepSpeech", 1760, 16, 1760, "N", "N", None, 0.038, 2.6085052631578947),
    (None, "DeepSpeech", 512, 48000, 2816, "T", "N", None, 9.939, 13.926152731663144),
]
_IMAGES = "W|H|C|N|K |S (Fitler width)|R (Filter height)|pad_w|pad_h|Horizontal stride|Vertical stride"
_TIMES = "Forward (msec)|wrt Inputs (msec)|wrt Parameters (msec)"
_RATES = "FWD TERAFLOPS|BWD INPUTS TERAFLOPS|BWD PARMS TERAFLOPS|Forward Algorithm"
CONVOLUTION: Rows = [
    ("Convolution",),
    (None, None, *f"{_IMAGES}|{_TIMES}|{_RATES}".split("|")),
    (None, "DeepSpeech", 700, 161, 1, 4, 32, 20, 5, 0, 0, 2, 2, 0.078, "N/A*", 0.127, 8.84, "N/A*", 5.43, "GEMM"),
    (None, "Resnet", 14, 14, 256, 16, 1024, 1, 1, 0, 0, 1, 1, 0.135, 0.186, 0.206, None, None, None, "GEMM"),
    (None, "Resnet", 14, 14, 256, 16, 1024, 1, 1, 0, 0, 1, 1, 0.137, 0.186, 0.206, None, None, None, "GEMM"),
    (None, None, None, "* = The backward pass wrt inputs is excluded for these kernels"),
]
_LAYER = "Time Forward (msec) |Time Backward wrt inputs (msec)|Time Backward wrt weights (msec)"
LSTM: Rows = [
    (
        "Recurrent Layers - LSTM",
        "Source",
        "Input",
        "N",
        "Timesteps",
        None,
        *_LAYER.split("|"),
        "TERAFLOPS FWD",
        "TERAFLOPS BWD",
        "TERAFLOPS BWD Params",
    ),
    (None, "Translation", 512, 16, 25, None, 0.441, 0.891, 0.079, 1.9, 0.94, 10.6),
]
_SPARSE = (
    "M|N|K|A Transpose|B Transpose|Sparsity||Sparse Time (msec)|Dense Time (msec)|SparseTERAFLOPS|Speedup wrt dense"
)
SPARSE: Rows = [
    ("Sparse Matrix Multiplication", None, *_SPARSE.split("|")),
    (None, None, 7680, 1, 2560, "N", "N", 0.95, None, 0.034, 0.223, 1.0986917647058823, 6.56),
    (None, None, 7680, 2, 2560, "N", "N", 0.95, None, None, None, "#DIV/0!", "#DIV/0!"),
]
_REDUCED = "Size # floats|# chips / accelerator cards|||Mean All Reduce Time (msec)||Gigabytes/sec|Selected Algorithm"
REDUCE: Rows = [
    ("All-Reduce", None, *(text or None for text in _REDUCED.split("|"))),
    (),
    (None, None, 100000, 2, None, None, 0.102, None, 7.84, "NCCL 2.0 MPI"),
    (None, None, 100000, 16, 2, None, 0.464, None, 13.8, "OSU Allreduce"),
    (None, None, 3097600, 2, None, None, None, None, None, "NCCL 2.0 Single"),  # as of V100: not timed
]

FLOAT: Rows = [("Precision", "Float"), (), *GEMM, (), *CONVOLUTION, (), *LSTM, (), *REDUCE]
INT8: Rows = [
    ("Precision", "GEMM, Conv: Int8 multiplication, 32 bit accumulation"),
    (None, "Sparse Ops, RNN: single precision"),
    *GEMM,
    (),
    *SPARSE,
]


def write(path: Path, sheets: Mapping[str, Rows]) -> Path:
    """A spreadsheet of these sheets."""
    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)
    return path


def folder_of(place: Path, results: Rows = FLOAT) -> Path:
    """A folder as DeepBench's `results`: one file of training, one of inference."""
    write(place / "train" / "DeepBench_NV_V100.xlsx", {"Results FP32": results, "Specs": SPECS})
    specs = [("CPU Model", "Some Xeon"), ("GPU Model", "Nvidia TitanXp")]
    write(place / "inference" / "server" / "DeepBench_NV_TitanXp.xlsx", {"Results": INT8, "Specs": specs})
    return place
