"""The paper's fourteen observations: of nothing, of another platform, of the published measurements."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.claims.evaluate import Data, judge
from analysis.claims.kinds import KINDS
from analysis.claims.load import observations, restate
from analysis.published.archive import read_archive
from analysis.store.load import NUMBERS
from paradnn.core.errors import ConfigError
from tests.analysis.planted import BATCH, POINTS, SIZE, runs
from tests.analysis.published import frame_of
from tests.analysis.test_archive import write
from tests.conftest import ROOT


def test_the_fourteen_observations_load_and_an_empty_frame_answers_none() -> None:
    claims = observations()
    assert [claim.id for claim in claims] == [str(number) for number in range(1, 15)]
    asked = {check.kind for claim in claims for check in claim.checks}
    assert asked | {"threshold"} == set(KINDS)
    verdicts = judge(claims, Data(runs(POINTS, examples_per_second=100.0)))
    assert {verdict.answer for verdict in verdicts} == {"not enough data"}
    assert all(finding.missing for verdict in verdicts for finding in verdict.findings)


def test_claims_of_a_tpu_can_be_asked_of_a_cpu() -> None:
    (first, *_) = restate(observations(), {"tpu": "cpu"})
    assert first.says == "TPU exploits the parallelism from batch size and the model width [tpu read as cpu]"
    number = np.arange(len(POINTS))
    noise = np.exp(0.05 * np.random.default_rng(3).standard_normal(len(POINTS)))
    sizes = {"model.input_size": 1000 * (1 + number % 2), "model.output_size": 100 * (1 + number // 3 % 2)}
    frame = runs(POINTS.assign(**sizes), flops_per_second=SIZE * BATCH * noise)
    verdict = judge([first], Data(frame))[0]
    assert [finding.answer for finding in verdict.findings[:4]] == ["supported"] * 4
    with pytest.raises(ConfigError, match=r"--as=npu=cpu: no condition of a claim says npu; they say "):
        restate(observations(), {"npu": "cpu"})


def published(folder: Path) -> Data:
    """The published files as the importer reads them, without a store."""
    found = read_archive(folder)
    own = [(run.point_id, row) for run in found.runs for row in run.tables.get("operation_types.json", ((), []))[1]]
    operations = pd.DataFrame([[point, *row] for point, row in own], columns=["run_id", "type", *NUMBERS])
    return Data(frame_of(found), lambda runs: operations[operations["run_id"].isin(runs["run_id"])])


def test_the_published_measurements_answer_what_they_can(tmp_path: Path) -> None:
    beside = ROOT.parent / "shared" / "reference" / "paradnn"
    folder = Path(os.environ.get("PARADNN_ARCHIVE", beside))
    real = folder.is_dir()
    verdicts = {
        verdict.claim.id: verdict for verdict in judge(observations(), published(folder if real else write(tmp_path)))
    }
    assert {verdicts[str(name)].answer for name in (*range(4, 7), *range(9, 15))} == {"not enough data"}
    assert verdicts["6"].findings[0].missing == "no runs with family=fc, mode=train, platform.name=cpu"
    # Of few points nothing is concluded; 2 and 8 rest on too few models.
    expected = {"1", "3"} if real else set()
    assert {name for name, verdict in verdicts.items() if verdict.answer == "supported"} == expected
    assert all(verdict.answer != "refuted" for verdict in verdicts.values())
    if real:
        large, small = verdicts["7"].findings[1:3]
        tpu, gpu = (
            dict(zip(content["labels"], content["example_per_sec"], strict=True))
            for content in (json.loads((folder / f"{name}_fc.json").read_text()) for name in ("tpu", "gpu"))
        )
        for finding, batch in ((large, 16384), (small, 64)):
            wins = [tpu[label] > gpu[label] for label in gpu if label in tpu and label.endswith(f"-bs_{batch}")]
            assert finding.points == len(wins)
            assert finding.value == pytest.approx(np.mean(wins))
        assert (large.answer, small.answer) == ("supported", "not enough data")
