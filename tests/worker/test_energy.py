"""Energy and idle power from planted counters: RAPL as a tree of files, NVML as a module."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paradnn.core.messages import IdlePower
from paradnn.worker import energy
from paradnn.worker.contention import ContentionMonitor
from paradnn.worker.energy import EnergyMeter, measure_idle_power, open_energy_meter
from paradnn.worker.measure import AttemptRecorder

RANGE_JOULES = 1000
NOISE = "other processes took 1.0 of 2 cores"


class Powercap:
    """A tree of RAPL counters in a folder, and a clock that advances only while a caller sleeps.

    Args:
        root: The folder of the tree.
        watts: Power of each zone by the name of its folder.
    """

    def __init__(self, root: Path, **watts: float) -> None:
        self.root = root
        self.seconds = 0.0
        self.watts = {name.replace("_", ":"): value for name, value in watts.items()}
        self.joules = dict.fromkeys(self.watts, float(RANGE_JOULES) - 10)
        for name in self.watts:
            folder = root / f"intel-rapl:{name.removeprefix('zone:')}"
            folder.mkdir()
            kind = "psys" if name == "zone:9" else "package"
            (folder / "name").write_text(f"{kind}\n")
            (folder / "max_energy_range_uj").write_text(f"{RANGE_JOULES * 10**6}\n")
        self.write()

    def write(self) -> None:
        for name, joules in self.joules.items():
            folder = self.root / f"intel-rapl:{name.removeprefix('zone:')}"
            microjoules = round(joules % RANGE_JOULES * 1e6)
            (folder / "energy_uj").write_text(f"{microjoules}\n")

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for name, watts in self.watts.items():
            self.joules[name] += watts * seconds
        self.write()

    def clock(self) -> float:
        return self.seconds


def plant_contention(monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
    """Let the contention monitor report `reason`; None means that nothing disturbed the point."""
    monkeypatch.setattr(ContentionMonitor, "start", lambda _: None)
    monkeypatch.setattr(ContentionMonitor, "stop", lambda _: SimpleNamespace(reason=reason))


def test_energy_is_the_growth_of_the_counters_or_unavailable(tmp_path: Path) -> None:
    for name, value in (
        ("intel-rapl:0", 900),
        ("intel-rapl:1", 100),
        ("intel-rapl:0:0", 5),
        ("intel-rapl:2", 7),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "name").write_text("psys\n" if name == "intel-rapl:2" else "package\n")
        (folder / "energy_uj").write_text(f"{value * 1_000_000}\n")
        (folder / "max_energy_range_uj").write_text("1000000000\n")
    meter = open_energy_meter("cpu", 0, tmp_path)
    assert meter.source == "rapl"
    meter.start()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("50000000\n")  # wrapped at 1000 J
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("130000000\n")
    # The zone of the whole board includes the packages, so it must not be added.
    (tmp_path / "intel-rapl:2" / "energy_uj").write_text("900000000\n")
    joules = meter.joules()
    assert joules == pytest.approx(150 + 30)

    without_counter = open_energy_meter("cpu", 0, tmp_path / "nowhere")
    without_counter.start()
    assert without_counter.joules() is None
    assert without_counter.source.startswith("unavailable: ")
    assert open_energy_meter("tpu", 0).source.startswith("unavailable: ")


@pytest.mark.parametrize(
    ("visible_devices", "board"),
    [
        pytest.param(None, 1, id="variable is not set"),
        pytest.param("3,5", 5, id="indices"),
        pytest.param("GPU-a,GPU-b", "GPU-b", id="UUIDs"),
        pytest.param("3", None, id="too few devices"),
    ],
)
def test_energy_is_measured_on_the_board_that_the_framework_uses(
    visible_devices: str | None, board: Any, monkeypatch: Any
) -> None:
    """Open the meter of the point's second device among those of CUDA_VISIBLE_DEVICES.

    The planted NVML numbers all boards of the host, regardless of this variable.
    """
    opened_boards: list[Any] = []
    planted = {"nvmlInit": lambda: None, "nvmlDeviceGetTotalEnergyConsumption": lambda _: 0}
    planted |= dict.fromkeys(
        ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"), opened_boards.append
    )
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**planted))
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if visible_devices:
        environ["CUDA_VISIBLE_DEVICES"] = visible_devices
    monkeypatch.setattr(os, "environ", environ)

    meter = open_energy_meter("gpu", 1)

    if board is None:
        assert meter.source != "nvml"
        assert opened_boards == []
    else:
        assert meter.source == "nvml"
        assert opened_boards == [board]


@pytest.mark.parametrize(
    ("zones", "watts"),
    [
        pytest.param({"zone_0": 20.0}, 20.0, id="one package, whose counter restarts"),
        pytest.param({"zone_0": 20.0, "zone_1": 15.5}, 35.5, id="two packages"),
        pytest.param({"zone_0": 20.0, "zone_9": 90.0}, 20.0, id="psys contains the package"),
        pytest.param({"zone_0": 20.0, "zone_0_0": 7.0}, 20.0, id="a part of the package"),
    ],
)
def test_idle_power_is_the_power_during_a_wait_without_work(
    zones: dict[str, float], watts: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_contention(monkeypatch, None)
    host = Powercap(tmp_path, **zones)
    meter = open_energy_meter("cpu", 0, tmp_path)

    idle = measure_idle_power(meter, host.sleep, host.clock)

    assert (idle.watts, idle.source, idle.disturbed) == (pytest.approx(watts), "rapl", None)
    assert host.seconds == 3.0


def test_disturbed_idle_power_names_the_disturbance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_contention(monkeypatch, NOISE)
    host = Powercap(tmp_path, zone_0=20.0)

    idle = measure_idle_power(open_energy_meter("cpu", 0, tmp_path), host.sleep, host.clock)

    assert (idle.watts, idle.disturbed) == (pytest.approx(20.0), NOISE)


def test_idle_power_without_a_counter_needs_no_wait(tmp_path: Path) -> None:
    meter = open_energy_meter("cpu", 0, tmp_path)

    idle = measure_idle_power(meter, pytest.fail)

    assert idle == IdlePower(None, "unavailable: this host has no RAPL counter")


def test_a_counter_that_never_advances_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some virtual machines show RAPL zones whose counters never advance."""
    plant_contention(monkeypatch, None)
    host = Powercap(tmp_path, zone_0=0.0)
    meter = open_energy_meter("cpu", 0, tmp_path)
    recorder = AttemptRecorder(meter)

    recorder.start()
    host.sleep(1.0)
    recorder.stop()
    idle = measure_idle_power(meter, host.sleep, host.clock)

    unavailable = "unavailable: the counter does not advance"
    assert recorder.energy == (None, unavailable)
    assert idle == IdlePower(None, unavailable)


def fail_to_read() -> list[energy.Reading]:
    raise OSError("the GPU is lost")


@pytest.mark.parametrize(
    "readings_before",
    [pytest.param(0, id="first reading fails"), pytest.param(1, id="second reading fails")],
)
def test_a_failing_counter_does_not_fail_the_measurement(readings_before: int) -> None:
    readings: list[Callable[[], list[energy.Reading]]] = [
        *[lambda: [energy.Reading(1.0, 0.0)]] * readings_before,
        fail_to_read,
    ]
    meter = EnergyMeter("nvml", lambda: readings.pop(0)())

    meter.start()

    assert meter.joules() is None
    assert meter.source == "unavailable: the counter failed: the GPU is lost"
    assert not readings


def test_idle_power_of_a_gpu_comes_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant an NVML that counts the millijoules of a board at 71.5 W."""
    plant_contention(monkeypatch, None)
    board = Powercap(Path())
    planted = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: round(71.5e3 * board.seconds),
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**planted))

    idle = measure_idle_power(open_energy_meter("gpu", 0), board.sleep, board.clock)

    assert (idle.watts, idle.source, idle.disturbed) == (pytest.approx(71.5), "nvml", None)


@pytest.mark.parametrize("watts", [0.0, -3.0, float("nan"), 1e9])
def test_impossible_power_violates_the_protocol(watts: float) -> None:
    with pytest.raises(ValueError, match="idle power of"):
        IdlePower(watts, "rapl")
