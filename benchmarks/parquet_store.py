"""Measure time and memory of analyses on a planted Parquet store of millions of runs.

    python -m benchmarks.parquet_store --runs 10000000 [--dir DIR] [--part]

Plants runs of 85 metrics, 30 params and 24 tags on 40 devices over 36 months, and runs a heat map
and a comparison of two devices on them in separate processes. The planted truth is checked: the
ratio of the two devices, and the ratio of two cells of the map. `--part` plants only the files of
these two devices, which are all that both analyses open. With `--duckdb` the same rows are also
read by DuckDB, if it is installed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.common import ROOT, environment
from paradnn.store.metrics import METRICS
from paradnn.store.parquet import append_table

N_METRICS = 85
MONTHS = 36
FACTORS = np.geomspace(1.0, 100.0, 40)  # speed of each device
SIDES = (9, 7)  # devices that are compared
FIRST = np.datetime64("2023-01", "M")
NODES = 2 ** np.arange(5, 13)
LAYERS = 2 ** np.arange(0, 5)
BATCHES = 2 ** np.arange(4, 12)
NOISE = 0.02  # standard deviation of a log speed
#: Metrics that follow from the point. The other metrics vary from run to run.
CONSTANTS = 30

#: Program that reads the columns of one device's frame with DuckDB.
DUCKDB = """
import duckdb, sys, time
start = time.perf_counter()
folder, device = sys.argv[1:3]
found = duckdb.connect()
found.execute("SET threads=2")
table = found.execute(
    f"SELECT * FROM read_parquet('{folder}/*/*/*/*.parquet', hive_partitioning=true, union_by_name=true) "
    "WHERE experiment='paradnn' AND device=? AND \\"tags.kind\\"='point' AND \\"tags.outcome\\" IS NOT NULL",
    [device]).to_arrow_table()
print(len(table), round(time.perf_counter() - start, 2))
"""
#: Program that reads the same rows with this package, up to columns of codes and numbers.
PYARROW = """
import sys, time
from paradnn.store.address import address_of
from paradnn.store.parquet import ParquetReader
from paradnn.store.runs import Query
start = time.perf_counter()
folder, device = sys.argv[1:3]
query = Query(("paradnn",), tags={"kind": ("point",), "device": (device,)})
reader = ParquetReader(address_of(folder))
table = reader._scan(query)
print(len(table), round(time.perf_counter() - start, 2))
"""


def device(number: int) -> str:
    return f"Device {number}, 8 cores"


def planted_month(
    month: int, runs: int, devices: Sequence[int], draw: np.random.Generator
) -> pa.Table:
    """Return runs of one month on some devices with columns as `paradnn.store.parquet.to_table`
    returns them.
    """
    begin = (FIRST + month).astype("datetime64[ms]").astype("int64")
    end = (FIRST + month + 1).astype("datetime64[ms]").astype("int64")
    starts = np.sort(draw.integers(begin, end, runs))
    on = draw.choice(devices, size=runs)
    nodes = NODES[draw.integers(len(NODES), size=runs)]
    layers = LAYERS[draw.integers(len(LAYERS), size=runs)]
    batch = BATCHES[draw.integers(len(BATCHES), size=runs)]
    session = draw.integers(20, size=runs)
    speed = 1e4 * FACTORS[on] * batch**0.5 / nodes / layers * draw.lognormal(0, NOISE, runs)
    numbers = {
        "examples_per_second": speed,
        "examples_per_second_low": speed * 0.99,
        "examples_per_second_high": speed * 1.01,
        "step_time_ms": 1e3 * batch / speed,
        "flops_per_second": speed * nodes**2 * layers * 6.0,
        "parameters": 1.0 * nodes**2 * layers,
        "flops_per_step": 6.0 * batch * nodes**2 * layers,
        "bytes_per_step": 12.0 * nodes**2 * layers,
    }
    others = [name for name in METRICS if name not in numbers and "step_time" not in name]
    for number, name in enumerate(others[: N_METRICS - len(numbers)]):
        if number < CONSTANTS:
            numbers[name] = (number + 1.0) * nodes * layers * batch
        else:
            numbers[name] = draw.lognormal(0, 0.1, runs)
    coded: dict[str, tuple[np.ndarray, list[str]]] = {}
    constants = {
        "params.model.name": "fc", "params.precision": "float32", "params.platform.name": "cpu",
        "tags.kind": "point", "tags.schema_version": "1", "tags.outcome": "ok", "tags.source": "measured",
        "tags.steady": "true", "tags.protocol_id": "proto", "tags.replicate": "0",
        **{f"params.measure.option_{number}": str(number) for number in range(23)},
        **{f"tags.version.package_{number}": f"{number}.0" for number in range(11)},
    }  # fmt: skip
    for name, text in constants.items():
        coded[name] = (np.zeros(runs, "int32"), [text])
    for name, values, known in (("model.nodes", nodes, NODES), ("model.layers", layers, LAYERS), ("batch_size", batch, BATCHES)):  # fmt: skip
        coded[f"params.{name}"] = (np.searchsorted(known, values), [str(value) for value in known])
    coded["params.replicate"] = (np.zeros(runs, "int32"), ["0"])
    names = range(len(FACTORS))
    coded["tags.device"] = (on, [device(number) for number in names])
    coded["tags.environment_id"] = (on, [f"environment-{number}" for number in names])
    coded["tags.host"] = (session % 4, [f"node{number}" for number in range(4)])
    coded["tags.session_id"] = (session, [f"{month}-{number}" for number in range(20)])
    coded["tags.sweep_id"] = (session // 2, [f"sweep-{month}-{number}" for number in range(10)])
    point = (
        np.searchsorted(NODES, nodes) * 64
        + np.searchsorted(LAYERS, layers) * 8
        + np.searchsorted(BATCHES, batch)
    )
    coded["tags.point_id"] = (
        on * 512 + point, [f"{number:016x}" for number in range(512 * len(FACTORS))],
    )  # fmt: skip
    ids = _ids(draw, runs)
    time_type = pa.timestamp("ms", tz="UTC")
    return pa.table({
        "experiment": pa.array(["paradnn"] * runs),
        "run_id": ids,
        "run_name": pa.DictionaryArray.from_arrays(pa.array(point.astype("int32")), [f"fc {number}" for number in range(512)]),
        "status": pa.DictionaryArray.from_arrays(pa.array(np.zeros(runs, "int32")), ["FINISHED"]),
        "start_time": pa.array(starts).cast(time_type),
        "end_time": pa.array(starts + 20_000).cast(time_type),
        "artifact_uri": pa.array([f"s3://results/{run_id}/artifacts" for run_id in ids.to_pylist()]),
        **{name: pa.DictionaryArray.from_arrays(pa.array(codes.astype("int32")), known) for name, (codes, known) in coded.items()},
        **{f"metrics.{name}": pa.array(values) for name, values in numbers.items()},
    })  # fmt: skip


def _ids(draw: np.random.Generator, runs: int) -> pa.Array:
    """Return random run ids of 32 hexadecimal digits."""
    digits = np.frombuffer(draw.bytes(16 * runs), "uint8")
    letters = np.frombuffer(b"0123456789abcdef", "uint8")
    text = np.stack([letters[digits >> 4], letters[digits & 15]], axis=1).tobytes()
    offsets = np.arange(0, 32 * runs + 1, 32, dtype="int32")
    return pa.StringArray.from_buffers(runs, pa.py_buffer(offsets.tobytes()), pa.py_buffer(text))


def plant(folder: Path, runs: int, devices: Sequence[int]) -> None:
    """Create the store, or reuse an existing one."""
    if folder.exists():
        return
    start = time.perf_counter()
    draw = np.random.default_rng(0)
    making = folder.with_suffix(".part")
    shutil.rmtree(making, ignore_errors=True)
    for month in range(MONTHS):
        append_table(making, planted_month(month, runs // MONTHS, devices, draw))
    making.rename(folder)
    sizes = [path.stat().st_size for path in folder.rglob("*.parquet")]
    size = f"{len(sizes):,} files of {sum(sizes) / 1e9:.2f} GB"
    print(f"planted {runs:,} runs in {time.perf_counter() - start:.0f} s: {size}", flush=True)


def measured(words: list[str], folder: Path) -> str:
    """Run a command, print its time and peak memory, and return its output."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    cpu = usage.ru_utime + usage.ru_stime
    what = " ".join(word for word in words if "\n" not in word and str(folder) not in word)
    print(f"{seconds:6.1f} s, {cpu:6.1f} s of processor time, peak {usage.ru_maxrss / 1e6:.2f} GB, exit code {process.returncode}: {what}", flush=True)  # fmt: skip
    return printed


def main() -> None:
    """Plant the store, and measure a heat map and a comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, help="keep the store in this folder and use it again")
    parser.add_argument("--duckdb", action="store_true", help="also read with DuckDB")
    parser.add_argument("--part", action="store_true", help="plant only two devices of the store")
    parser.add_argument("--whole", action="store_true", help="also a heat map of every device")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = given.dir or Path(temporary)
        base.mkdir(parents=True, exist_ok=True)
        devices = SIDES if given.part else range(len(FACTORS))
        folder = base / f"runs-{given.runs}-on-{len(devices)}"
        plant(folder, given.runs * len(devices) // len(FACTORS), devices)
        store = ["--store", str(folder)]
        table = base / "table.csv"
        module = ["-m", "analysis"]
        shape = [
            "--x",
            "batch_size",
            "--y",
            "nodes",
            "--where",
            "model.layers=4",
            "--metric",
            "examples_per_second",
        ]
        measured(
            [*module, "heatmap", *shape, "--device", device(SIDES[1]), *store, "--csv", str(table)],
            base,
        )
        cells = pd.read_csv(table).set_index(["batch_size", "model.nodes"])["examples_per_second"]
        print(
            f"cells (2048, 32) / (16, 4096): {cells[2048, 32] / cells[16, 4096]:.1f}, planted {128**0.5 * 128:.1f}"
        )
        sides = [f"device={device(number)}" for number in SIDES]
        printed = measured([*module, "compare", *sides, *store, "--csv", str(table)], base)
        print(f"planted {FACTORS[SIDES[0]] / FACTORS[SIDES[1]]:.4f}; {printed.splitlines()[0]}")
        measured([*module, "runs", *store], base)
        if given.whole:
            measured([*module, "heatmap", *shape, *store, "--csv", str(table)], base)
        if given.duckdb:
            for name, program in (("pyarrow", PYARROW), ("duckdb", DUCKDB)):
                print(name, measured(["-c", program, str(folder), device(SIDES[1])], base).strip())


if __name__ == "__main__":
    main()
