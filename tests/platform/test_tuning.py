"""Settings of a planted host are set and put back, also after a crash between the two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from paradnn.errors import ConfigError, DataError
from paradnn.platform import tuning
from paradnn.platform.tuning import restore, tune, tuned_names
from tests.platform.planted import CPU, LAPTOP, SERVER, content, plant

SAID: list[str] = []
GOVERNOR = f"{CPU}/cpu1/cpufreq/scaling_governor"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    # A file does not choose among what it offers, as the kernel's does.
    return plant(tmp_path / "host", {**LAPTOP, "sys/kernel/mm/transparent_hugepage/enabled": "always"})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    SAID.clear()
    return tmp_path / "state" / "tuned.json"


def test_tune_sets_what_a_measurement_wants_and_restore_puts_it_back(host: Path, state: Path) -> None:
    before = content(host)
    tune(tuned_names(""), state, SAID.append, host)
    now = content(host)
    changed = {name: (before[name], now[name]) for name in now if now[name] != before[name]}
    assert changed == {
        f"{CPU}/cpu0/cpufreq/scaling_governor": ("powersave", "performance"),
        GOVERNOR: ("powersave", "performance"),
        f"{CPU}/intel_pstate/no_turbo": ("0", "1"),
        "sys/kernel/mm/transparent_hugepage/enabled": ("always", "madvise"),
        "proc/sys/vm/swappiness": ("60", "10"),
    }
    assert len(SAID) == len(changed)
    assert f"clock governor: powersave -> performance ({host / GOVERNOR})" in SAID
    tune(["aslr"], state, SAID.append, host)
    assert content(host)["proc/sys/kernel/randomize_va_space"] == "0"
    assert restore(state, SAID.append)
    assert content(host) == before
    assert not state.exists()
    assert restore(state, SAID.append)
    assert SAID[-1].startswith("nothing to restore")


def test_former_values_are_kept_before_the_first_change(
    host: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tune that dies at its second change, then another: what was there before the first comes back."""
    before, written = content(host), []
    whole = tuning._write

    def write(path: Path, value: str) -> str | None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        return whole(path, value)

    monkeypatch.setattr(tuning, "_write", write)
    with pytest.raises(KeyboardInterrupt):
        tune(tuned_names(""), state, SAID.append, host)
    monkeypatch.setattr(tuning, "_write", whole)
    assert content(host) != before
    tune(tuned_names(""), state, SAID.append, host)
    assert restore(state, SAID.append)
    assert content(host) == before


def test_what_may_not_be_set_is_said_with_its_command(host: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(host)
    monkeypatch.setattr(tuning.os, "access", lambda path, _: "swappiness" in str(path))
    tune(tuned_names(""), state, SAID.append, host)
    assert {name for name, text in content(host).items() if text != before[name]} == {"proc/sys/vm/swappiness"}
    both = f"{host / GOVERNOR.replace('cpu1', 'cpu0')} {host / GOVERNOR}"
    assert f"clock governor: you may not set it. echo performance | sudo tee {both} > /dev/null" in SAID


def test_what_the_kernel_refuses_is_said_and_stays_to_be_restored(
    host: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(["turbo"], state, SAID.append, host)
    monkeypatch.setattr(tuning, "_write", lambda path, value: "Device or resource busy")
    assert not restore(state, SAID.append)
    assert "Device or resource busy: echo 0 | sudo tee" in SAID[-1]
    assert state.exists()
    monkeypatch.undo()
    assert restore(state, SAID.append)


def test_boards_are_set_only_when_asked_for(host: Path, state: Path) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str | None:
        commands.append(command)
        return None

    tune(tuned_names("persistence,clocks=1410"), state, SAID.append, host, run)
    assert restore(state, SAID.append, run)
    assert [" ".join(command) for command in commands] == [
        "nvidia-smi -pm 1",
        "nvidia-smi -lgc 1410,1410",
        "nvidia-smi -pm 0",
        "nvidia-smi -rgc",
    ]


def test_a_host_as_it_should_be_is_left_alone(tmp_path: Path, state: Path) -> None:
    host = plant(tmp_path / "server", SERVER)
    before = content(host)
    tune(tuned_names(""), state, SAID.append, host)
    # The planted file holds all that it offers, of which madvise is chosen.
    assert content(host) == before
    assert not state.exists()
    assert SAID[0].startswith("nothing to set")


def test_a_name_that_is_none_and_a_damaged_state_are_refused(host: Path, state: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tune=speed: no such setting; choose among governor,turbo,thp,"):
        tuned_names("governor,speed")
    with pytest.raises(ConfigError, match=r"--tune=clocks: wants a frequency; give MHz"):
        tuned_names("clocks")
    state.parent.mkdir()
    state.write_text("{")
    before = content(host)
    with pytest.raises(DataError, match="holds the values to restore and cannot be read"):
        tune(tuned_names(""), state, SAID.append, host)
    assert content(host) == before
