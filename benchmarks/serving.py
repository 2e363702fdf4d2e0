"""Compare the load generator and server on a real clock with queueing theory and MLPerf's
LoadGen.

    python -m benchmarks.serving [--seconds 20] [--service-ms 2] [--loads 0.3,0.5,0.7,0.9]

The service is a stub with a fixed time, so theory gives the result (M/D/1). LoadGen queries a
second stub at the same time in another process, so disturbances of the machine affect both.
"""

import argparse
import multiprocessing
import queue
import re
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import mlperf_loadgen as lg
import numpy as np

from paradnn.worker.arrivals import LOADGEN_SEED, arrivals
from paradnn.worker.energy import EnergyMeter
from paradnn.worker.peak_search import percentile
from paradnn.workloads.serve import SERVER
from paradnn.workloads.serve.generator import QueryGenerator
from paradnn.workloads.serve.load import Service, measure_load, serve
from paradnn.workloads.serve.queries import QueryLog

_SHARES = (50, 90, 99)


def stub(seconds: float) -> Callable[[int], None]:
    """Return a service with a fixed time. It sleeps except at the end, where it spins like a
    device wait.
    """

    def run(_: int) -> None:
        end = time.perf_counter() + seconds
        if seconds > 0.001:
            time.sleep(seconds - 0.001)
        while time.perf_counter() < end:
            pass

    return run


def served(rate: float, seconds: float, service: float) -> QueryLog:
    """Serve queries by LoadGen's schedule, one at a time."""
    with QueryGenerator(rate, LOADGEN_SEED, seconds, 1) as generated:
        generated.begin()
        return serve(generated, stub(service), time.monotonic_ns, 1).log


def loadgen(
    scenario: str, queries: int, issue: Callable[[list[lg.QuerySample]], object], **settings: float
) -> str:
    """Return the summary that LoadGen writes for a scenario; `issue` receives its queries."""
    asked = lg.TestSettings()
    asked.scenario = getattr(lg.TestScenario, scenario)
    asked.mode = lg.TestMode.PerformanceOnly
    asked.min_duration_ms = 0
    asked.min_query_count = queries
    asked.max_query_count = queries
    for name, value in settings.items():
        setattr(asked, name, value)
    system = lg.ConstructSUT(issue, lambda: None)
    library = lg.ConstructQSL(8, 8, lambda _: None, lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        log = lg.LogSettings()
        log.log_output.outdir = folder
        log.log_output.copy_summary_to_stdout = False
        log.enable_trace = False
        lg.StartTestWithLogSettings(system, library, asked, log)
        text = (Path(folder) / "mlperf_log_summary.txt").read_text()
    lg.DestroySUT(system)
    lg.DestroyQSL(library)
    return text


def answer(samples: list[lg.QuerySample]) -> None:
    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0) for sample in samples])


def by_loadgen(rate: float, queries: int, service: float) -> dict[int, float]:
    """Return LoadGen's quantiles in ms, for the given number of queries on the same schedule."""
    waiting: queue.SimpleQueue[list[lg.QuerySample]] = queue.SimpleQueue()
    run = stub(service)

    def work() -> None:
        while True:
            for sample in waiting.get():
                run(1)
                answer([sample])

    threading.Thread(target=work, daemon=True).start()
    text = loadgen(
        "Server", queries, waiting.put, server_target_qps=rate, schedule_rng_seed=LOADGEN_SEED
    )
    found = re.findall(r"(\d+\.\d+) percentile latency \(ns\)\s*: (\d+)", text)
    return {
        int(float(share)): int(value) / 1e6 for share, value in found if float(share) in _SHARES
    }


def mean_wait(log: QueryLog, service: float) -> tuple[float, float]:
    """Return the measured mean wait in ms, and that of the same arrivals if each takes `service`
    s.
    """
    due = np.array(log.scheduled)
    walk = np.concatenate([[0], np.cumsum(service * 1e9 - np.diff(due))])
    return float((np.array(log.started) - due).mean()) / 1e6, float(
        (walk - np.minimum.accumulate(walk)).mean()
    ) / 1e6


def beside_loadgen(loads: list[float], seconds: float, service: float) -> None:
    """Print our quantiles and LoadGen's per load, both queried at the same time."""
    print(
        "load  queries  wait (ms)  exact  M/D/1   late p50, p99, max   p50, p90, p99 (ms)   "
        "LoadGen's   ratio"
    )
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as elsewhere:
        elsewhere.submit(time.sleep, 0).result()  # it has imported all
        for load in loads:
            rate = load / service
            asked = elsewhere.submit(
                by_loadgen, rate, len(arrivals(rate, LOADGEN_SEED, seconds, 1)), service
            )
            log = served(rate, seconds, service)
            wait, exact = mean_wait(log, service)
            theory = load / (1 - load) / 2 * service * 1e3
            late = sorted(ns / 1e6 for ns in log.delays())
            ours = {share: percentile(log.latencies(), share / 100) / 1e6 for share in _SHARES}
            by_oracle = asked.result()
            ratios = {share: ours[share] / by_oracle[share] for share in _SHARES}
            lates = dict(
                zip(_SHARES, (percentile(late, 0.5), percentile(late, 0.99), late[-1]), strict=True)
            )
            shares = (
                ", ".join(f"{each[share]:.3f}" for share in _SHARES)
                for each in (lates, ours, by_oracle, ratios)
            )
            print(
                f"{load:4}  {len(log):7}  {wait:9.3f}  {exact:5.3f}  {theory:5.3f} ",
                *shares,
                sep="  ",
                flush=True,
            )


def search_twice(seconds: float, service: float) -> None:
    """Search the peak rate of the stub with two schedules."""
    peak = replace(SERVER, latency_ms=5e3 * service, min_seconds=seconds, batch=1)
    for seed in (LOADGEN_SEED, 1):
        begin = time.monotonic()
        serving = Service(stub(service), 1, 1 / service, service)
        load_of = measure_load(replace(peak, seed=seed), serving, 600.0, EnergyMeter("unavailable"))
        failed = min(
            probe.rate
            for probe in load_of.probes
            if not probe.held and probe.rate > (load_of.rate or 0)
        )
        print(
            f"peak at p99 of {peak.latency_ms:g} ms, seed {seed}: {load_of.rate:.1f} .. "
            f"{failed:.1f} "
            f"of {1 / service:g}/s, {len(load_of.probes)} probes in {time.monotonic() - begin:.0f} "
            "s"
        )


def main() -> None:
    """Print the comparison with LoadGen, and two peak searches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--service-ms", type=float, default=2.0)
    parser.add_argument("--loads", default="0.3,0.5,0.7,0.9")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    service = arguments.service_ms / 1e3
    beside_loadgen([float(load) for load in arguments.loads.split(",")], seconds, service)
    search_twice(seconds, service)


if __name__ == "__main__":
    main()
