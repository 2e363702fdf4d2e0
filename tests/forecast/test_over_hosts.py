"""Steps over hosts on paper: planted steps and messages are found again, and a channel for free loses nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from paradnn.config.costs import costs_of
from paradnn.config.identity import Identity
from paradnn.config.point import Point, Settings
from paradnn.errors import ConfigError
from paradnn.forecast.communication.data_parallel import Exchange
from paradnn.forecast.communication.over_hosts import HostStep, OverHosts, describe_steps, over_hosts
from paradnn.forecast.forecast import forecast, write_points
from paradnn.forecast.history import Past
from paradnn.forecast.status import SweepStatus, sweep_status
from paradnn.forecast.table import row_of
from paradnn.store.runs import Finished
from paradnn.workloads.channel import Communication
from paradnn.workloads.step import Step
from tests.forecast.planted import Machine, fc, grid

#: Seconds, and seconds a byte: 50 us and 1 GB/s.
ALPHA, BETA = 50e-6, 1e-9
SIZES = [2**power for power in range(6, 27, 2)]
FORWARD = [fc(2, 64, 8, workload=Step("inference"))]
POINTS = [fc(layers, nodes, batch) for layers in (2, 4) for nodes in (256, 1024) for batch in (64, 256)]
HOSTS = (1, 2, 16, 1024)


@dataclass
class Planted:
    """A store with runs of POINTS and so many others on a machine, and a channel whose messages cost `factor` times the
    planted line."""

    machine: Machine
    count: int = 20
    factor: float = 1.0
    where: str = "planted"
    devices: Sequence[str] = ("here",)
    environment: str = ""

    def finished(self, environment_ids: Collection[str], sweep_id: str | None = None) -> dict[Identity, list[Finished]]:
        return {}

    def claimed(self) -> set[Identity]:
        return set()

    def past(self, devices: Collection[str], most: int) -> list[Past]:
        """Of whatever device is asked for."""
        (device,) = devices
        points = [point for point in grid(np.random.default_rng(5), 150) if point.model.name == "fc"][: self.count]
        # Several sessions, none slower than another: a single one leaves open how much they differ.
        runs = [run for name in "abcdefgh" for run in self.machine.session(name, [*points, *POINTS])]
        own = {"device": device, "environment_id": self.environment}
        alone = {"load_average": 1.0}
        return [replace(run, tags={**run.tags, **own}, metrics={**run.metrics, **alone}) for run in runs]

    def messages(self) -> list[Past]:
        found = []
        for device in self.devices:
            for number, size in enumerate(SIZES):
                point = Point(Communication(transport="tcp", pattern="bandwidth", bytes=size), batch_size=1)
                tags = {"device": device, "outcome": "ok"}
                time = {"transfer_us": 1e6 * self.factor * (ALPHA + BETA * size)}
                found.append(Past(f"{device}-{number}", float(number), row_of(point), time, tags))
        return found

    def metrics(self, run_id: str) -> Mapping[str, float]:
        raise KeyError(run_id)


@pytest.fixture
def settings(tmp_path: object) -> Settings:
    """A store that is not there."""
    return replace(Settings(), tracking=replace(Settings().tracking, name="offline", folder=f"{tmp_path}/none"))


def machine() -> Machine:
    """As steady as can be."""
    return Machine(np.random.default_rng(3), noise=1e-3, session=0.0)


def found(
    settings: Settings, history: Planted, exchange: Exchange, points: Sequence[Point] = POINTS
) -> tuple[OverHosts, SweepStatus]:
    status = sweep_status(points, settings, history)
    history.environment = status.environments[0].environment_id
    return over_hosts(status, history, HOSTS, exchange), status


def chosen(steps: OverHosts, scaling: str, index: int) -> dict[int, HostStep]:
    return {step.hosts: step for step in steps.steps if (step.scaling, step.index) == (scaling, index)}


def test_planted_steps_and_messages_are_found_again(settings: Settings) -> None:
    planted = Planted(machine())
    steps, _ = found(settings, planted, Exchange("tcp bandwidth"))
    inside, off = [], []
    for index, point in enumerate(POINTS):
        own, size = planted.machine.law(point), 4.0 * costs_of(point).parameters
        for count, step in chosen(steps, "weak", index).items():
            # Patarasuk and Yuan's ring.
            exchanged = 2 * (count - 1) * ALPHA + 2 * (count - 1) / count * size * BETA
            kept = own / (own + exchanged)
            for drawn, truth in ((step.seconds, own + exchanged), (step.efficiency, kept), (step.waiting, 1 - kept)):
                low, middle, high = np.quantile(drawn, [0.025, 0.5, 0.975])
                inside.append(low - 1e-9 <= truth <= high + 1e-9)
                off.append(abs(middle - truth) / max(truth, 0.01))
    assert np.median(off) < 0.03
    assert np.mean(inside) >= 0.9
    assert steps.largest == max(4.0 * costs_of(point).parameters for point in POINTS) / 2


def test_a_channel_for_free_loses_nothing(settings: Settings) -> None:
    """The null: weak scaling is perfect; strong scaling loses what does not shrink with the batch."""
    planted = Planted(machine(), factor=1e-12)
    steps, _ = found(settings, planted, Exchange("tcp bandwidth"))
    for index, point in enumerate(POINTS):
        for step in chosen(steps, "weak", index).values():
            np.testing.assert_allclose(step.efficiency, 1.0, rtol=1e-6)
        strong = chosen(steps, "strong", index)
        assert set(strong) == {count for count in HOSTS if count <= point.batch_size}
        part = replace(point, batch_size=point.batch_size // 16)
        expected = planted.machine.law(point) / (16 * planted.machine.law(part))
        assert np.median(strong[16].efficiency) == pytest.approx(expected, rel=0.25)
    assert steps.too_many == len(POINTS)


def test_buckets_hide_what_the_pass_leaves_time_for(settings: Settings) -> None:
    at_once, _ = found(settings, Planted(machine()), Exchange("tcp bandwidth"))
    layered, _ = found(settings, Planted(machine()), Exchange("tcp bandwidth", bucket=0))
    for one, other in zip(at_once.steps, layered.steps, strict=True):
        if one.hosts == 2:
            assert (other.seconds < one.seconds).all()


def test_tables_and_rows_say_it(settings: Settings, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    history = Planted(machine())
    steps, status = found(settings, history, Exchange("tcp bandwidth"), POINTS[:1])
    describe_steps(steps, status)
    text = capsys.readouterr().out
    assert "by tcp bandwidth (ring, all gradients at once): on paper" in text
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("fc")] == [["fc", "1", "1"]] * 2
    assert "Left out of strong scaling: 1 step with fewer examples than hosts." in text
    path = tmp_path / "points.csv"
    write_points(forecast(status, settings, history), path, steps.columns())
    heading, row = (line.split(",") for line in path.read_text().splitlines())
    weak = chosen(steps, "weak", 0)
    values = dict(zip(heading, row, strict=True))
    assert float(values["step_ms_weak_16"]) == pytest.approx(1e3 * float(np.median(weak[16].seconds)), rel=1e-4)
    assert float(values["efficiency_weak_1"]) == 1.0


@pytest.mark.parametrize(
    ("name", "points", "devices", "message"),
    [
        ("tcp latency", POINTS, ("here",), "plan.channel=tcp latency: is no fitted channel of these runs"),
        ("tcp bandwidth", POINTS, (), "plan.channel=tcp bandwidth: planted has none; no run measured messages"),
        ("tcp bandwidth", POINTS, ("one", "other"), "is a channel of several devices"),
        ("tcp bandwidth", FORWARD, ("here",), "none of these points is a training step"),
        ("tcp bandwidth", [fc(2, 64, 8, devices=2)], ("here",), "none of these points is a training step"),
    ],
)
def test_what_cannot_be_said_is_refused(
    settings: Settings, name: str, points: Sequence[Point], devices: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        found(settings, Planted(machine(), devices=devices), Exchange(name), points)
