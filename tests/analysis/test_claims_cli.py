"""Claims as a user writes and asks them: files that are wrong, a store, the paper's fourteen observations."""

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from analysis.claims.evaluate import Data, judge
from analysis.claims.kinds import KINDS
from analysis.claims.load import load_claims, observations, parse_claims
from analysis.cli import main
from analysis.store.load import load
from paradnn.core.errors import ConfigError, DataError
from tests.analysis.conftest import Writer, fc
from tests.analysis.planted import POINTS, runs
from tests.conftest import ROOT

LAYERS, BATCHES = (1, 2, 3, 4), (16, 32, 64, 128)
MINE = """
- id: wide
  says: Batches pay
  checks:
    - {kind: trend, metric: examples_per_second, of: batch_size, direction: rises}
- id: small
  says: Small batches pay
  checks:
    - {kind: trend, metric: examples_per_second, of: batch_size, direction: falls}
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """16 points on one device with TensorFlow 2.9, the same on two with it, and on one with 2.16; read only."""
    folder = tmp_path_factory.mktemp("measured")
    uri = blank_store(folder / "mlflow.db")
    writer = Writer(uri, "paradnn", folder / "artifacts")
    for layers in LAYERS:
        for batch in BATCHES:
            alone = 1000.0 * batch**0.5 / layers
            work = {"flops_per_step": 1e6 * layers * batch, "infeed_fraction": max(0.0, 0.5 - 0.15 * layers)}
            for devices, version, speed in ((1, "2.9", alone), (2, "2.9", alone / 0.6), (1, "2.16", 1.5 * alone)):
                params = {"devices": str(devices), "measure.predict_oom": "true", "mode": "train"}
                writer.run(
                    fc(layers, batch) | params,
                    {"examples_per_second": speed, "op_share.MatMul": 0.6, **work},
                    [["MatMul", 0.6]],
                    version__tensorflow=version,
                    environment_id=f"env-{version}",
                    point_id=f"p-{layers}-{batch}-{devices}",
                )
    return uri


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main([*arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_scaling_software_and_infeed_say_what_was_planted(
    measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [str(tmp_path / "scaling.csv"), str(tmp_path / "scaling.png")]
    one, alone = ("--store", measured, "--tag", "environment_id=env-2.9"), ("--where", "devices=1")
    out = run(capsys, "scaling", *one, "--csv", files[0], "--figure", files[1])
    # 1 / speedup = 0.6 = s + (1 - s) / 2, so s = 0.2.
    assert "fc: over 16 points on 2 against 1 (devices), 20% (20% to 20%) of the step does not run in parallel" in out
    assert pd.read_csv(files[0])["fraction"].tolist() == pytest.approx([0.2] * 16)
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")
    out = run(capsys, "software", "--store", measured, *alone)
    assert "faster in 100% of 16 points (40% to 100%)" in out, "of four models"
    csv = run(capsys, "software", *one[:2], *alone, "--by", "version.tensorflow", "--baseline", "2.16", "--csv", "-")
    assert pd.read_csv(StringIO(csv))["median"].tolist() == pytest.approx([2 / 3])
    error = run(capsys, "software", "--store", measured, "--baseline", "2.9", code=2)
    assert error == "error: --baseline=2.9: is of one column; name it: --by version.tensorflow\n"
    out = run(capsys, "infeed", *one, *alone)
    assert "fc on Test CPU, 2 cores: 8 of 16 points are input-bound, 50% (6.08% to 93.9%)" in out


def test_claims_answers_a_users_own(measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    png = tmp_path / "claims.png"
    chosen = ("claims", "--store", measured, "--tag", "environment_id=env-2.9", "--where", "devices=1")
    out = run(capsys, *chosen, "--file", str(mine), "--figure", str(png))
    assert "wide. Batches pay: SUPPORTED\n  supported: examples_per_second rises with batch_size: rank weight 0." in out
    assert "small. Small batches pay: REFUTED" in out
    assert "2 claims: 1 supported, 1 refuted, 0 not enough data." in out
    assert png.read_bytes().startswith(b"\x89PNG")
    csv = run(capsys, *chosen, "--file", str(mine), "--only", "small", "--csv", "-")
    assert pd.read_csv(StringIO(csv))["claim"].tolist() == ["small"]
    assert run(capsys, *chosen, "--only", "15", code=2) == (
        f"error: --only=15: there is no such claim; choose of {', '.join(str(number) for number in range(1, 15))}\n"
    )
    assert run(capsys, *chosen, "--file", str(tmp_path), code=2).startswith(f"error: {tmp_path}: Is a directory")


def test_the_observations_are_checked_and_logged_with_their_sources(
    measured: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy = tmp_path / "mlflow.db"
    copy.write_bytes(Path(measured.removeprefix("sqlite:///")).read_bytes())
    uri = f"sqlite:///{copy}"
    of_cpu = tmp_path / "of_cpu.yaml"
    of_cpu.write_text((ROOT / "analysis/claims/observations.yaml").read_text().replace("name: tpu", "name: cpu"))
    out = run(capsys, "claims", "--store", uri, "--only", "14", "--file", str(of_cpu), "--where", "devices=1", "--log")
    assert "in each update (Figure 12): NOT ENOUGH DATA, as far as measured: 1 of 3 checks" in out
    assert "median speedup 1.5 (no interval) over 16 points, at least 1 is needed" in out, "16 points of four models"
    logged = load(uri, kind="analysis").iloc[0]
    sources = json.loads((Path(logged["artifact_uri"].removeprefix("file://")) / "sources.json").read_text())
    assert logged["source_count"] == str(len(sources)) == "32"


GOOD = "- id: 1\n  says: it\n  checks:\n    - {kind: compare, a: {x: 1}, b: {x: 2}, at_least: 0.5}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "claims.yaml line 1: is not YAML: "),
        ("a: 1", "claims.yaml: holds no list of claims; begin each with '- id: ...'"),
        ("- 3", "claims.yaml: claim 1=3: is no mapping; write its keys: id, says, checks"),
        (GOOD + GOOD, "claims.yaml: claim 1: id=1: is there twice; give each claim its own"),
        (GOOD.replace("says: it", "sais: it"), "claims.yaml: claim 1: sais=it: no such key; did you mean says?"),
        (GOOD.replace("  says: it\n", ""), "claims.yaml: claim 1: says=(none): is missing; write says: ..."),
        (GOOD.replace("says: it", "says: 3"), "claims.yaml: claim 1: says=3: expects a line of text; quote it"),
        (GOOD.replace("compare", "contrast"), "claim 1: check 1: kind=contrast: no such kind; choose of trend, "),
        (GOOD.replace("at_least", "atleast"), "claim 1: check 1: atleast=0.5: no such key; did you mean at_least?"),
        (GOOD.replace(", at_least: 0.5", ""), "at_least or at_most or between=(none): is missing in a compare"),
        (GOOD.replace("at_least: 0.5", "at_least: half"), "check 1: at_least=half: expects a number"),
        (GOOD.replace("at_least: 0.5", "at_least: 0.5, at_most: 1"), "at_most=1: stands beside at_least"),
        (GOOD.replace("at_least: 0.5", "between: [2, 1]"), "between=[2, 1]: has its ends the wrong way round"),
        (GOOD.replace("at_least: 0.5", "between: 2"), "between=2: expects two numbers; write between: [2.0, 2.6]"),
        (GOOD.replace("b: {x: 2}, ", ""), "check 1: b=(none): is missing in a compare; write b: ..."),
        (GOOD.replace("{x: 2}", "gpu"), "check 1: b=gpu: is no mapping; write b: {platform.name: cpu}"),
        (GOOD.replace("{x: 2}", "{x: '>many'}"), "check 1: b=x>many: compares with no number and no time; write"),
        (GOOD.replace("{x: 2}", "{x: {}}"), "check 1: b: x={}: is no value"),
        (GOOD.replace("at_least: 0.5", "at_least: 1, margin: -1"), "margin=-1.0: must be above 0"),
        ("- {id: 1, says: it, checks: [{kind: ratio, at_least: 1}]}", "a, b or successive=neither: a ratio has"),
        (
            "- {id: 1, says: it, checks: [{kind: threshold, metric: m, at_least: 1, quantile: 90}]}",
            "quantile=90.0: must be above 0 and below 1",
        ),
        (
            "- {id: 1, says: it, checks: [{kind: trend, metric: m, of: x, direction: up}]}",
            "direction=up: no such choice; choose one of rises, falls",
        ),
        ("- {id: 1, says: it, checks: {kind: trend}}", "checks={'kind': 'trend'}: is no list; begin each"),
        ("- {id: 1, says: it, checks: [3]}", "check 1=3: is no mapping; write its keys: kind"),
        (
            "- {id: 1, says: it, checks: [{kind: ratio, a: {x: 1}, b: {x: 2}, paired: maybe, at_least: 1}]}",
            "paired=maybe: expects true or false",
        ),
        (
            GOOD.replace("compare", "ratio").replace("at_least", "paired: false, operations: {type: Add}, at_least"),
            "paired=false: operations are always paired",
        ),
    ],
)
def test_a_wrong_entry_is_one_line(content: str, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=re.escape(message)) as caught:
        parse_claims(content, "claims.yaml")
    assert "\n" not in str(caught.value)


def test_the_fourteen_observations_load_and_an_empty_frame_answers_none() -> None:
    claims = observations()
    assert [claim.id for claim in claims] == [str(number) for number in range(1, 15)]
    asked = {check.kind for claim in claims for check in claim.checks}
    assert asked | {"threshold"} == set(KINDS)
    verdicts = judge(claims, Data(runs(POINTS, examples_per_second=100.0)))
    assert {verdict.answer for verdict in verdicts} == {"not enough data"}
    assert all(finding.missing for verdict in verdicts for finding in verdict.findings)


def test_ours_are_found_by_name_and_yours_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {claim.id for claim in load_claims(Path("engines.yaml"))} >= {"int8-fc", "vision", "language"}
    (tmp_path / "engines.yaml").write_text(GOOD)
    assert load_claims(Path("engines.yaml"))[0].says == "it"
    with pytest.raises(DataError, match=r"none\.yaml: No such file or directory; name a YAML file of claims"):
        load_claims(tmp_path / "none.yaml")
