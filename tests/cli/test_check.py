"""`python -m paradnn.check` on this machine."""

import json

import pytest

from paradnn import check
from paradnn.platform.findings import Finding
from tests.conftest import process

HARM = Finding("governor", "clock governor", "powersave", True, "why", "echo performance")
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
    assert "clock governor\n  echo performance" in shown
    monkeypatch.setattr(check, "_look", lambda: [GOOD])
    assert check.main(["--strict"]) == 0
