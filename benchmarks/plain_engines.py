"""Compare latencies that ParaDnn reports with a bare loop over the engine's own call.

    python -m benchmarks.plain_engines FOLDER [--pairs 8]

FOLDER was made by `python -m paradnn.train -m framework=litert,onnxruntime,openvino
mode=inference elsewhere=FOLDER`; a file asked-*.json from it selects that point. A pair is two
fresh processes in random order that load the same artifact: FOLDER's run.py, and a loop over the
engine's own call. Ratios are of median latencies of single steps, ours / bare: the geometric mean
over pairs with Student's 95% interval.
"""

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, save
from paradnn.session.measured import mean_interval
from paradnn.store.journal import read_record


def call_of(engine, artefact, inputs):
    """Return a function that runs one step, written as in the engine's documentation."""
    if engine == "litert":
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_content=artefact, num_threads=len(os.sched_getaffinity(0)))
        interpreter.allocate_tensors()
        for place, array in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(place["index"], array)
        return interpreter.invoke
    if engine == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(artefact, providers=["CPUExecutionProvider"])
        bound = session.io_binding()
        for entry, array in zip(session.get_inputs(), inputs, strict=True):
            bound.bind_cpu_input(entry.name, array)
        bound.bind_output(session.get_outputs()[0].name)
        return lambda: session.run_with_iobinding(bound)
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    core = openvino.Core()
    request = core.compile_model(core.read_model(artefact), "CPU", settings).create_infer_request()
    for place, array in enumerate(inputs):
        request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))
    return request.infer


def bare(asked):
    """Return the median of 200 single steps, after the same warm-up as in ParaDnn."""
    point = json.loads(asked.read_text())
    with np.load(asked.with_suffix(".npz")) as held:
        inputs = [held[name] for name in held if name.startswith("input")]
        artefact = held["artefact"].tobytes()
    call = call_of(point["framework"]["name"], artefact, inputs)
    taken = []
    measure = point["measure"]
    begin = time.perf_counter()
    while time.perf_counter() - begin < measure["warmup_seconds"] + measure["min_seconds"]:
        call()
    for _ in range(200):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken)


def fresh(asked):
    """Return `bare` from a separate process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.plain_engines",
        str(asked.parent),
        "--bare",
        str(asked),
    ]
    return float(subprocess.check_output(command, cwd=ROOT, text=True).split()[-1])


def ours(asked):
    """Return the report of run.py in a folder with only this point."""
    with tempfile.TemporaryDirectory() as name:
        for path in (asked, asked.with_suffix(".npz"), asked.parent / "run.py"):
            shutil.copy(path, name)
        environ = {**os.environ, "PYTHONPATH": str(asked.parent)}
        subprocess.run(
            [sys.executable, "run.py"], cwd=name, env=environ, check=True, stdout=subprocess.DEVNULL
        )
        [kept] = Path(name).glob("point-*.json")
        return read_record(kept).record.metrics["latency_p50_ms"]


def main() -> int:
    """Print a row per point; return 1 if a ratio is outside 0.98 .. 1.02."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        print(bare(given.bare))
        return 0
    folder = given.folder.absolute()
    rows = []
    if folder.is_dir():
        points = sorted(folder.glob("asked-*.json"))
    else:
        points = [folder]
    if not points or not points[0].is_file() or given.pairs < 1:
        parser.error(f"no asked-*.json in {folder}, or no pairs")
    for asked in points:
        point = json.loads(asked.read_text())
        ratios = []
        for _ in range(given.pairs):
            took = {side: side(asked) for side in random.sample((ours, fresh), 2)}
            ratios.append(took[ours] / took[fresh])
        low, high = mean_interval(ratios) if len(ratios) > 1 else (math.nan, math.nan)
        found = {
            "bare_ms": took[fresh],
            "ratio": statistics.geometric_mean(ratios),
            "low": low,
            "high": high,
        }
        rows.append(
            {"engine": point["framework"]["name"], "model": point["model"]["name"], **found}
        )
        print(
            *(f"{value:.4g}" if isinstance(value, float) else value for value in rows[-1].values()),
            flush=True,
        )
    save("plain_engines", rows)
    return int(any(not 0.98 <= row["ratio"] <= 1.02 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
