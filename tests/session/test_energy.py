"""Power and energy of a run, and the energy above idle power, from planted joules."""

from dataclasses import replace

import pytest

from paradnn.config.identity import Identity
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, step_costs
from paradnn.config.reading import read_point
from paradnn.core.messages import IdlePower, PeakRates, ProductRate
from paradnn.families.fc import FullyConnected
from paradnn.platform.environment import Environment
from paradnn.session.hardware_peaks import Ceilings, make_ceilings_record
from paradnn.session.open_point import OpenPoint
from paradnn.session.record import energy_text
from paradnn.store.runs import Claim, Record
from tests.session.records import answered, timing

ENVIRONMENT = Environment("a processor", {"cores": 2}, {}, {"host": "here"})
CLAIM = Claim("run", Identity("point", "environment", 0), 0)
NOISE = "other processes took 1.0 of 2 cores"
REMEDY = "Measure it on a quiet machine: python -m paradnn.ceilings platform=cpu"


def record_with(ceilings: Ceilings | None, joules: float | None) -> Record:
    """Return the record of six steps of 0.5 s with 32 examples each.

    Args:
        ceilings: Ceilings of the point's environment; None if none were measured.
        joules: Energy of all six steps; None if the host has no counter.
    """
    point = read_point({"model": {"name": "fc"}, "batch_size": 32})
    source = "rapl" if joules else "unavailable: no counter"
    result = answered(timing([0.5] * 6), {"energy_joules": joules, "energy_source": source})
    visit = OpenPoint(
        point=point,
        environment=ENVIRONMENT,
        ceilings=ceilings,
        claim=CLAIM,
        tags={},
        costs=step_costs(point),
        results=[result],
    )
    return visit.record()


def ceilings_with(*idle: IdlePower | None) -> tuple[Record, Ceilings]:
    """Return the record of ceilings, and the ceilings that a later command reads from it.

    Args:
        idle: Idle power that each process measured; None if a process did not measure it.
    """
    rows = [ProductRate("float32", 512, "graph", 1e11, 1e11, 1e11, 5)]
    processes = [PeakRates(rows, [], idle=each) for each in idle]
    record = make_ceilings_record(
        CLAIM,
        "ceilings",
        Point(FullyConnected()),
        ENVIRONMENT,
        PointResult("ok", None),
        processes,
    )
    return record, Ceilings.of("run", record.metrics, record.tags)


def test_energy_above_idle_is_separated_from_the_total() -> None:
    """Plant 150 J in 3 s, which are 50 W, on a machine with an idle power of 20 W."""
    _, ceilings = ceilings_with(IdlePower(20.0, "rapl"))

    record = record_with(ceilings, 150.0)

    expected = {
        "power_watts": 50.0,
        "power_idle_watts": 20.0,
        "energy_per_step_joules": 25.0,
        "energy_per_example_joules": 25 / 32,
        "energy_per_example_above_idle_joules": 15 / 32,
    }
    assert {name: record.metrics[name] for name in expected} == pytest.approx(expected)
    assert "idle_power_note" not in record.tags
    text = "0.781 J an example at 50 W, including 0.469 J above the idle power of 20 W"
    assert energy_text(record.metrics) == text
    assert f"Energy: {text}." in record.description


@pytest.mark.parametrize(
    ("idle", "note"),
    [
        pytest.param(
            IdlePower(20.0, "rapl", disturbed=NOISE),
            f"no idle power: {NOISE}. {REMEDY}",
            id="disturbed idle power",
        ),
        pytest.param(
            IdlePower(60.0, "rapl"),
            "the steps drew 50 W, no more than the idle power of 60 W: was the machine busy when "
            f"idle power was measured? {REMEDY}",
            id="idle power above the power of the steps",
        ),
    ],
)
def test_a_note_explains_a_missing_energy_above_idle(idle: IdlePower, note: str) -> None:
    _, ceilings = ceilings_with(idle)

    record = record_with(ceilings, 150.0)

    assert record.tags["idle_power_note"] == note
    assert "energy_per_example_above_idle_joules" not in record.metrics
    assert record.metrics["power_watts"] == pytest.approx(50.0)


def test_a_note_explains_ceilings_of_an_earlier_version() -> None:
    earlier = Ceilings("run", {"float32": 1e11}, None)

    record = record_with(earlier, 150.0)

    assert record.tags["idle_power_note"] == (
        f"no idle power: the version that recorded the ceilings did not measure it. {REMEDY}"
    )


@pytest.mark.parametrize(
    ("joules", "idle"),
    [
        pytest.param(None, IdlePower(None, "unavailable: no counter"), id="no counter"),
        pytest.param(None, IdlePower(20.0, "rapl"), id="no energy of this point"),
    ],
)
def test_a_run_without_energy_has_no_power(joules: float | None, idle: IdlePower) -> None:
    _, ceilings = ceilings_with(idle)

    record = record_with(ceilings, joules)

    assert not [name for name in record.metrics if "power" in name or "energy" in name]
    assert "idle_power_note" not in record.tags
    assert "Energy" not in record.description


def test_idle_power_is_the_mean_of_undisturbed_processes() -> None:
    quiet = [IdlePower(watts, "rapl") for watts in (20.0, 20.5, 21.0)]
    busy = replace(quiet[0], watts=44.0, disturbed=NOISE)

    record, ceilings = ceilings_with(busy, *quiet)

    low, high = (record.metrics[f"power_idle_{end}_watts"] for end in ("low", "high"))
    assert 19 < low < ceilings.idle_watts < high < 22
    assert ceilings.idle_watts == pytest.approx((20 * 20.5 * 21) ** (1 / 3))
    assert record.tags["idle_power_source"] == "rapl"
    assert record.description.endswith("Idle power: 20.5 W.")
    assert ceilings.contended is None, "the products were not disturbed"


@pytest.mark.parametrize(
    ("idle", "source"),
    [
        pytest.param(None, None, id="not measured"),
        pytest.param(
            IdlePower(None, "unavailable: no counter"), "unavailable: no counter", id="no counter"
        ),
        pytest.param(
            IdlePower(20.0, "rapl", disturbed=NOISE), f"unavailable: {NOISE}", id="disturbed"
        ),
    ],
)
def test_ceilings_give_the_reason_for_a_missing_idle_power(
    idle: IdlePower | None, source: str | None
) -> None:
    record, ceilings = ceilings_with(idle)

    assert (ceilings.idle_watts, ceilings.idle_source) == (None, source)
    assert "power_idle_watts" not in record.metrics
