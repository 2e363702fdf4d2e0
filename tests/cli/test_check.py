"""`python -m paradnn.check` on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paradnn import check
from paradnn.platform.findings import Finding
from tests.conftest import process

HARM = Finding("governor", "clock governor", "powersave", True, "why", "echo performance", False)
GOOD = Finding("clock_source", "clock source", "tsc", False, "why")


def test_the_first_sentence_is_the_verdict() -> None:
    done = process(["paradnn", "check"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("widen intervals.")
    assert "clock source" in done.stdout


def test_findings_as_data_and_strict(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_look", lambda: [GOOD, HARM])
    assert check.main(["--json", "--strict"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "1 thing here will widen intervals."
    assert [finding["name"] for finding in told["findings"]] == ["clock_source", "governor"]
    assert check.main([]) == 0
    shown = capsys.readouterr().out
    assert "harms  clock governor" in shown
    assert "clock governor: an administrator may set it\n  echo performance" in shown
    monkeypatch.setattr(check, "_look", lambda: [GOOD])
    assert check.main(["--strict"]) == 0


def test_wrong_names_and_nothing_to_restore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--tune", "speed"]) == 2
    assert "--tune=speed: no such setting" in capsys.readouterr().err
    assert check.main(["--restore", "--state", str(tmp_path / "none.json")]) == 0
    assert "nothing to restore" in capsys.readouterr().out
