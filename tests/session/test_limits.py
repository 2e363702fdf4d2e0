"""Results of a run other than its timing: operation table, ceilings, latency and energy."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paradnn.config.identity import Identity
from paradnn.config.outcome import PointResult
from paradnn.config.point import FrameworkOptions, Measure, Platform, Point, Software, step_costs
from paradnn.config.reading import read_point
from paradnn.config.settings import Tracking
from paradnn.core.messages import Answer, PeakRates, ProductRate
from paradnn.families.fc import FullyConnected
from paradnn.forecast.history import open_history
from paradnn.platform.environment import Environment, describe_environment
from paradnn.platform.load import HostLoad, LoadMonitor
from paradnn.platform.specifications import HARDWARE, find_hardware
from paradnn.session import hardware_peaks as peaks
from paradnn.session.hardware_peaks import Ceilings, CeilingsKeeper, ceilings_identity, overrun_tags
from paradnn.session.workers import WorkerPool
from paradnn.store.journal import Journal, read_record
from paradnn.store.metrics import stored_value
from paradnn.store.runs import Claim, Finished, ResumePolicy
from paradnn.store.tracker import open_tracker
from tests.conftest import SHORT, TINY, Store, run, succeeded

#: Twice the relative rounding error of a metric with seven significant digits that begins with 1.
ROUNDING = 2e-6
#: Maps the device name that a machine reports to the name of its specification, or to None if it
#: has no specification.
DEVICES = {
    "NVIDIA H200": "H200 (SXM)",
    "NVIDIA A100-SXM4-80GB": "A100 (SXM, 80 GB)",
    "NVIDIA A10": "A10",
    "NVIDIA A100-PCIE-40GB": "A100 (SXM, 40 GB)",
    "Tesla V100-SXM2-16GB": "V100 (SXM2, 16 GB)",
    "Tesla V100-PCIE-16GB": None,
    "Tesla V100-SXM2-32GB": "V100 (SXM2, 32 GB)",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
    "NVIDIA H100 80GB HBM3": "H100 (SXM)",
    "NVIDIA H100 PCIe": "H100 (PCIe)",
    "NVIDIA H100 NVL": None,
    "NVIDIA H200 NVL": None,
    "NVIDIA GeForce RTX 3090 Ti": None,
    "NVIDIA GeForce RTX 4090 D": None,
    "Tesla P4": "P4",
    "Tesla P40": None,
    "T4": "T4",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB200": "GB200",
    "NVIDIA GB300": "GB300",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 (Server)",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 (Workstation)",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX PRO 6000 (Max-Q)",
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "TPU v2": "TPU v2 (board, 8 cores)",
    "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz, 40 cores": "Xeon Platinum 8380",
    "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz, 4 cores": None,
    "AMD EPYC, 2 cores": None,
    "NVIDIA Z9000": None,
}
WITH_CEILINGS = [entry for entry in TINY if entry != "ceilings=false"]


def table(path: Path) -> list[dict]:
    content = json.loads(path.read_text())
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


@pytest.mark.framework
def test_points_of_a_sweep_share_ceilings_and_have_profiles(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure two points that share one set of ceilings, without a tracking server.

    Later commands must find the ceilings in files and in the store.
    """
    others_take(monkeypatch, 0.9)  # disturbed ceilings are recorded, too
    monkeypatch.setattr(peaks, "MAX_PROCESSES", 3)
    # Products of sufficient size: TensorFlow does not trace kernels that it considers cheap.
    size = ["model.nodes=256", "model.input_size=512", "batch_size=64"]
    request = peaks._request
    # The smallest products in every precision and compile mode, and arrays that fit into a cache,
    # take seconds instead of half a minute.
    monkeypatch.setattr(peaks, "_request", lambda point: request(point) | {"memory_bytes": 2**20})
    command = [
        "paradnn.train",
        "-m",
        *WITH_CEILINGS,
        *size,
        "compile=graph,xla",
        "measure.profile=true",
    ]
    files = ["tracking=offline", f"tracking.folder={tmp_path / 'files'}"]
    completed = succeeded([*command, *files], store)
    assert completed.stderr.count("measuring the peak performance") == 1
    repeated = succeeded(["paradnn.train", *WITH_CEILINGS, *files, "batch_size=5"], store)
    assert "measuring the peak performance" not in repeated.stderr
    assert run(["paradnn.sync", str(tmp_path / "files"), "--uri", store.uri], store).returncode == 0
    [ceilings] = store.runs("ceilings")
    assert [point["ceilings_run"] for point in store.runs()] == [ceilings["offline_id"]] * 3
    assert ceilings["status"] == "FINISHED"
    measured = store.values("latest_metrics", ceilings["run_id"])
    folder = store.files(ceilings["run_id"])
    rates = [
        row["flops_per_second"]
        for row in table(folder / "matmul.json")
        if row["precision"] == "float32"
    ]
    peak = measured["peak_flops_per_second.float32"]
    assert min(rates) <= peak <= max(rates)
    assert measured["processes"] >= 3
    assert "peak_bytes_per_second" not in measured, "no array fits that no cache holds"
    profiled = [point for point in store.runs() if "extras" in point]
    assert len(profiled) == 2
    for point in profiled:
        metrics = store.values("latest_metrics", point["run_id"])
        folder = store.files(point["run_id"])
        assert point["checks"] == "passed"
        assert point["matmul_types"] == "float32 100.0%"
        assert metrics["peak_flops_per_second"] == peak
        assert metrics["flops_utilization"] == pytest.approx(
            metrics["flops_per_second"] / peak, rel=ROUNDING
        )
        shares = {key: value for key, value in metrics.items() if key.startswith("category_share.")}
        assert math.isclose(
            sum(shares.values()) + metrics["profile_unexplained_share"], 1.0, abs_tol=1e-6
        )
        assert sum(row["share"] for row in table(folder / "operations.json")) == pytest.approx(1.0)
        assert json.loads(point["mlflow.loggedArtifacts"])[0] == {
            "path": "operations.json",
            "type": "table",
        }
        assert point["energy_source"].startswith(("rapl", "unavailable: "))
        assert ("energy_per_step_joules" in metrics) == (point["energy_source"] == "rapl")
    check_exceeded_ceilings(store, command)


def check_exceeded_ceilings(store: Store, command: list[str]) -> None:
    """Plant ceilings of an extremely busy machine, and check the proposed remedy.

    The driver must use them without a new measurement; only the remedy measures them again.
    """
    store.change(
        "UPDATE latest_metrics SET value = value / 1e6 WHERE key LIKE 'peak_flops_per_second.%'"
    )
    before = {point["run_id"] for point in store.runs()}
    repeated = succeeded([*command, "model.nodes=9", "measure.profile=false"], store)
    assert "measuring the peak performance" not in repeated.stderr
    assert len(store.runs("ceilings")) == 1
    remedy = "python -m paradnn.ceilings platform=cpu"
    assert repeated.stdout.rstrip().endswith(
        f"which is too low. Measure it again on a quiet machine: {remedy}"
    )
    assert "2 points ran at up to" in repeated.stdout
    points = [
        point
        for point in store.runs()
        if point["run_id"] not in before and "ceilings_note" in point
    ]
    assert [point["ceilings_remedy"] for point in points] == [remedy, remedy]
    for point in points:
        ratio = store.values("latest_metrics", point["run_id"])["flops_utilization"]
        stated = float(point["ceilings_note"].partition(" times the measured")[0])
        assert stated == pytest.approx(ratio, rel=ROUNDING, abs=0.006)  # the note has two decimals
    succeeded(remedy.split()[2:], store)
    assert len(store.runs("ceilings")) == 2, "the remedy measures again"


def test_the_remedy_includes_the_keys_on_which_ceilings_depend() -> None:
    platform = Platform("gpu", threads=2, index=1)
    framework = FrameworkOptions("jax", {"XLA_FLAGS": "--a=b c"})
    point = Point(
        FullyConnected(),
        platform=platform,
        framework=framework,
        software=Software("tensorflow-2.20"),
    )
    tags = overrun_tags(point, None, {"flops_utilization": 1.051})
    assert tags["ceilings_remedy"] == (
        "python -m paradnn.ceilings platform=gpu platform.threads=2 platform.index=1 framework=jax "
        "'+framework.env.XLA_FLAGS=\"--a=b c\"' software=tensorflow-2.20"
    )
    assert (
        overrun_tags(point, None, {"flops_utilization": 1.05})
        == overrun_tags(point, None, {})
        == {}
    )


class PlantedPool:
    """Fake worker pool whose processes measure planted rates.

    Args:
        rates: Per process, FLOP/s of one product and the reason of a disturbance, or None.
        references: Seconds of the reference kernel `memory`; None if no kernel is run.
    """

    def __init__(self, *rates: tuple[float, str | None], references: float | None = None) -> None:
        self.left = list(rates)
        self.requested_products = []
        self.references = {"memory": references} if references else {}

    def measure(self, key: object, request: dict, *_: object) -> PointResult:
        rate, disturbed = self.left.pop(0)
        self.requested_products.append(request.get("only"))
        rows = [ProductRate("float32", 512, "graph", rate, rate, rate, 5, True, disturbed)]
        if "only" not in request:
            rows.append(ProductRate("float32", 256, "graph", rate / 2, rate, rate, 5))
        return PointResult(
            "ok", None, Answer("ok", None, {}, peak_rates=PeakRates(rows, [], self.references))
        )


def others_take(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let other processes take a share of two cores at every reading of the load."""
    monkeypatch.setattr(LoadMonitor, "look", lambda _: HostLoad(2, 0.0, share, 0.0, ()))


@pytest.mark.parametrize("rate", [1.00000045e11, 3.14159265e11, 1.00000055e11, 9.9999995e10])
def test_recorded_ceilings_do_not_exceed_their_table(rate: float) -> None:
    """Plant rates that round up to seven digits; the peak must not exceed the table's rates."""
    rows = [ProductRate("float32", 512, "graph", rate, rate, rate, 5)]
    claim = Claim("run", Identity("point", "environment", 0), 0)
    point = Point(FullyConnected())
    environment = describe_environment("cpu", {"tensorflow": "2"})
    processes = [PeakRates(rows, [])] * 3
    record = peaks.make_ceilings_record(
        claim, "ceilings", point, environment, PointResult("ok", None), processes
    )
    [peak] = {stored_value(record.metrics["peak_flops_per_second.float32"])}
    content = record.artifacts["matmul.json"]
    column = content["columns"].index("flops_per_second")
    assert {row[column] for row in content["data"]} == {peak}
    assert peak == pytest.approx(rate, rel=ROUNDING)


def test_disturbed_ceilings_are_marked_and_later_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point(FullyConnected())
    tracker = Journal(tmp_path)
    messages = []
    environment = describe_environment("cpu", {"tensorflow": "2"})

    def obtain(pool: PlantedPool) -> Ceilings:
        ceilings = CeilingsKeeper(pool, tracker, messages.append).of(point, environment)
        assert not pool.left
        return ceilings

    others_take(monkeypatch, 0.9)
    noise = "other processes took 1.0 of 2 cores"
    busy = obtain(PlantedPool(*[(1e11, noise)] * 5, (4e11, None)))
    assert busy.contended == f"peak flops float32: {noise}"
    assert obtain(PlantedPool()) == busy, (
        "while the machine is busy, disturbed ceilings are better than none"
    )
    others_take(monkeypatch, 0.0)
    quiet = PlantedPool((4e11, None), (1e11, noise), (4.2e11, None))
    ceilings = obtain(quiet)
    assert ceilings.contended is None
    assert quiet.requested_products[0] is None
    assert len(quiet.requested_products[1]["matmul"]) == 1
    assert ceilings.flops_per_second == {
        "float32": pytest.approx(math.sqrt(4e11 * 4.2e11), rel=ROUNDING)
    }
    metrics, tags = tracker.fetch(ceilings.run_id)
    record = read_record(tracker.path_of(ceilings.run_id)).record
    assert 0 <= record.end_time - record.start_time < 3_600_000
    low, high = (metrics[f"peak_flops_per_second_{end}.float32"] for end in ("low", "high"))
    assert low < ceilings.flops_per_second["float32"] < high
    assert (tags["contended"], metrics["processes"]) == ("false", 3)
    assert obtain(PlantedPool()) == ceilings


def test_a_waiting_driver_uses_the_ceilings_that_another_driver_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point(FullyConnected())
    environment = describe_environment("cpu", {"tensorflow": "2"})
    noise = "other processes took 1.0 of 2 cores"
    others_take(monkeypatch, 0.9)
    monkeypatch.setattr(peaks, "_CHECK_SECONDS", 0.0)
    tracker = Journal(tmp_path)
    begin = tracker.begin
    measured_by_another = []

    def begin_after_another(*arguments: Any) -> Claim | Finished | None:
        if not measured_by_another:
            pool = PlantedPool(*[(1e11, noise)] * 6)
            keeper = CeilingsKeeper(pool, Journal(tmp_path), lambda _: None)
            measured_by_another.append(keeper.of(point, environment))
            return None
        return begin(*arguments)

    monkeypatch.setattr(tracker, "begin", begin_after_another)

    ceilings = CeilingsKeeper(PlantedPool(), tracker, pytest.fail).of(point, environment)

    assert [ceilings] == measured_by_another
    assert ceilings.contended


def test_the_best_reference_time_of_all_ceilings_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point(FullyConnected())
    tracker = Journal(tmp_path)
    environment = describe_environment("cpu", {"tensorflow": "2"})
    others_take(monkeypatch, 0.0)
    ceilings = []
    for seconds in (2e-3, 1e-3, 1.6e-3):  # slow, at the machine's best, and slow a second time
        keeper = CeilingsKeeper(
            PlantedPool(*[(4e11, None)] * 3, references=seconds), tracker, print
        )
        ceilings.append(keeper.of(point, environment, again=True))
    assert [each.references["best_reference_memory_ms"] for each in ceilings] == pytest.approx(
        [2.0, 1.0, 1.0]
    )
    assert [each.contended for each in ceilings] == [
        None,
        None,
        "the machine ran at 62% of its best speed (memory)",
    ]
    stored = CeilingsKeeper(PlantedPool(), tracker, pytest.fail).of(point, environment)
    assert stored.references == ceilings[-1].references


def test_ceilings_are_measured_once_for_all_experiments_of_a_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point(FullyConnected())
    environment = describe_environment("cpu", {"tensorflow": "2"})
    others_take(monkeypatch, 0.0)

    def ceilings(experiment: str, pool: PlantedPool, *, again: bool = False) -> Ceilings:
        tracker = open_tracker(Tracking(uri=store.uri, experiment=experiment), pytest.fail)
        keeper = CeilingsKeeper(pool, tracker, lambda _: None)
        return keeper.of(point, environment, again=again)

    first = ceilings("paradnn", PlantedPool(*[(4e11, None)] * 3, references=1e-3))
    assert ceilings("another", PlantedPool()) == first, "an empty pool measures nothing"
    measured_again = ceilings(
        "another", PlantedPool(*[(5e11, None)] * 3, references=0.9e-3), again=True
    )
    assert ceilings("paradnn", PlantedPool()) == measured_again
    assert measured_again.references["best_reference_memory_ms"] == pytest.approx(0.9)
    assert len(store.runs("ceilings")) == 2
    planned = open_history(Tracking(uri=store.uri, experiment="third"))
    identity = ceilings_identity(point, environment)
    assert [run.run_id for run in planned.finished_anywhere(identity)] == [
        measured_again.run_id,
        first.run_id,
    ]
    assert planned.metrics(first.run_id)["peak_flops_per_second.float32"] == 4e11


def test_a_profile_requested_after_a_run_is_measured(store: Store) -> None:
    assert "ok" in run(["paradnn.train", *TINY], store).stdout
    assert run(["paradnn.train", *TINY, "measure.keep_trace=true"], store).returncode == 0
    timing_only, with_trace = sorted(store.runs(), key=lambda point: "extras" in point)
    assert "extras" not in timing_only
    assert with_trace["extras"] == "profile keep_trace"
    traces = list(
        (store.files(with_trace["run_id"]) / "trace").rglob("plugins/profile/*/*.xplane.pb")
    )
    assert len(traces) == 1
    assert traces[0].stat().st_size > 1000
    # A run with a trace also has a profile, and satisfies a request for only the timing. A run with
    # only the timing satisfies neither a request for a profile nor one for a trace.
    assert (
        "Already in the store"
        in run(["paradnn.train", *TINY, "measure.profile=true"], store).stdout
    )
    policy = ResumePolicy(True, ())
    for requested in ({}, {"profile": True}, {"keep_trace": True}):
        point = Point(FullyConnected(), measure=Measure(**requested))
        assert policy.accepts(point, with_trace)
        assert policy.accepts(point, timing_only) == (not requested)
    # The timing is the same measurement with and without a profile.
    assert with_trace["protocol_id"] == timing_only["protocol_id"]


@pytest.mark.framework
def test_special_cases_of_points_pass_their_checks(store: Store, tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / "set" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (30 * number, 0, 0)).save(folder / f"{number}.jpg")
    fc = "model: fc, model.layers: 1, model.nodes: 8, model.input_size: 16, model.output_size: 4"
    cnn = "model: residual, model.blocks: 1, model.filters: 4, model.image_size: 32, batch_size: 8"
    short = "measure.min_seconds: 0.02, measure.warmup_seconds: 0.2"
    long = "measure.min_seconds: 1, measure.warmup_seconds: 0.5"
    cases = (
        f"{{{fc}, batch_size: 1, compile: xla, measure.profile: true, {short}}}",
        f"{{{fc}, batch_size: 1, mode: inference, {short}}}",
        f"{{{fc}, batch_size: 4, measure.profile: true, {long}}}",
        f"{{{cnn}, data: images, data.path: '{folder.parent}', data.threads: 1, {short}}}",
    )
    settings = [
        key for key in SHORT if not key.startswith(("measure.min_seconds", "measure.warmup"))
    ]
    succeeded(["paradnn.train", "-m", f"sweep.grids=[{','.join(cases)}]", *settings], store)
    point_by_word = {
        name: point for point in store.runs() for name in point["mlflow.runName"].split()
    }
    assert {point_by_word[name]["checks"] for name in ("xla", "b4", "b8")} == {"passed"}
    single, latencies, cheap, fed = (
        store.values("latest_metrics", point_by_word[name]["run_id"])
        for name in ("xla", "inference", "b4", "b8")
    )
    # With one example, the gradients of weights are outer products. XLA computes them elementwise.
    assert single["profile_flops_ratio"] < 0.9
    # After thousands of steps, TensorFlow would trace hardly any of the cheap kernels.
    assert cheap["profile_flops_ratio"] == 1.0
    assert (
        0
        < latencies["latency_p50_ms"]
        <= latencies["latency_p90_ms"]
        <= latencies["latency_p99_ms"]
    )
    assert latencies["latency_steps"] >= 100
    assert 0 <= fed["infeed_fraction"] <= 1
    assert {"infeed_gain", "phase_input_seconds", "phase_balance_seconds"} <= set(fed)
    assert fed["input_threads"] == 1
    assert store.values("params", point_by_word["b8"]["run_id"])["data.path"] == str(folder.parent)


def test_the_driver_reports_that_another_driver_measures_the_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant a claim of a living process, namely of this one."""
    monkeypatch.setattr(peaks, "_TIMEOUT", 0.02)
    monkeypatch.setattr(peaks, "_CHECK_SECONDS", 0.01)
    point = Point(FullyConnected())
    environment = describe_environment("cpu", {"tensorflow": "2"})
    tracker = Journal(tmp_path)
    tracker.begin(ceilings_identity(point, environment), "ceilings", {}, lambda _: True)
    messages: list[str] = []
    with WorkerPool() as pool:
        assert CeilingsKeeper(pool, tracker, messages.append).of(point, environment) is None
    [line] = messages
    assert line.startswith("no utilization is reported, because another driver")


@pytest.mark.parametrize(("device", "name"), DEVICES.items())
def test_only_a_matching_name_finds_a_specification(device: str, name: str | None) -> None:
    specification = find_hardware(device)
    assert (specification.name if specification else None) == name


def test_every_specification_has_a_source_and_plausible_numbers() -> None:
    assert len({entry.name for entry in HARDWARE}) == len(HARDWARE)
    for entry in HARDWARE:
        assert entry.source
        assert all(1e11 < peak < 1e16 for peak in entry.peak_flops.values())
        assert find_hardware(
            f"{entry.aliases[0]}, {entry.cores} cores" if entry.cores else entry.aliases[0]
        )
        if {"float32", "float16"} <= set(entry.peak_flops):
            assert entry.peak_flops["float16"] > entry.peak_flops["float32"]


def small_point(**changes: Any) -> Point:
    model = {"name": "fc", "layers": 1, "nodes": 8}
    return read_point({"model": model, "batch_size": 64} | changes)


def test_the_costs_of_two_devices_are_those_of_both_replicas() -> None:
    """Each replica processes half the batch."""
    whole = step_costs(small_point())
    half = step_costs(small_point(batch_size=32))
    both = step_costs(small_point(devices=2))

    assert (both.flops_per_step, both.parameters) == (whole.flops_per_step, whole.parameters)
    assert both.bytes_per_step == 2 * half.bytes_per_step
    assert both.bytes_per_step > whole.bytes_per_step


def test_each_device_stores_its_own_weights() -> None:
    """Weights, mean squares and velocities are copied; batch and activations are only divided."""
    whole = step_costs(small_point())
    both = step_costs(small_point(devices=2))

    more = both.memory_lower_bound_bytes - whole.memory_lower_bound_bytes

    assert more == 3 * 4 * (whole.parameters + whole.non_trainable_parameters)


CEILINGS_OF_ONE_DEVICE = Ceilings("run", {"float32": 1e12}, 1e11)
EIGHT_CORES = Environment("some processor", {"cores": 8}, {}, {})
FOUR_CORES = Environment("some processor", {"cores": 4}, {}, {})


def test_the_utilization_of_several_gpus_uses_their_total_peak() -> None:
    gpu = small_point(platform={"name": "gpu"}, devices=1)
    gpus = small_point(platform={"name": "gpu"}, devices=2)
    total_peaks = {"peak_flops_per_second": 2e12, "peak_bytes_per_second": 2e11}

    assert peaks.device_peaks(gpus, EIGHT_CORES, CEILINGS_OF_ONE_DEVICE) == total_peaks
    assert ceilings_identity(gpus, EIGHT_CORES) == ceilings_identity(gpu, EIGHT_CORES)


def test_devices_that_share_a_processor_have_its_peak() -> None:
    two_devices = small_point(devices=2, platform={"name": "cpu", "threads": 2})

    found = peaks.device_peaks(two_devices, EIGHT_CORES, CEILINGS_OF_ONE_DEVICE)

    assert found["peak_flops_per_second"] == 1e12
    assert peaks.single_device(two_devices, EIGHT_CORES).platform.threads == 4


def test_devices_with_all_cores_have_the_ceilings_of_the_machine() -> None:
    two_devices = small_point(devices=2, platform={"name": "cpu", "threads": 2})

    # The default is all cores of the machine.
    identity = ceilings_identity(two_devices, FOUR_CORES)

    assert identity == ceilings_identity(small_point(), FOUR_CORES)
